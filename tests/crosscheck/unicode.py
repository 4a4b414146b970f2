#!/usr/bin/env python3
"""unicode.py: characters that the regular expressions of Hugging Face's tokenizers package know and PCRE2 does not.

Usage: unicode.py

Asks both about every character and prints the rows of src/data/text/unicode_newer.c: first, last, general
category; then first, last, script. Run it with the oldest PCRE2 that is supported (10.40, Unicode 14)
when the package moves to a newer Unicode. Needs the Python package `tokenizers` and libpcre2-8.
"""
import ctypes

from tokenizers import Regex, normalizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cf "
              "Co").split()
SCRIPTS = "Han Hiragana Katakana Hangul Latin Greek Cyrillic Arabic Hebrew Thai Devanagari".split()
CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
UTF, UCP, NO_UTF_CHECK = 0x00080000, 0x00020000, 0x40000000


def package_knows(expression):
    remove = normalizers.Replace(Regex(expression), "")
    known = set()
    for at in range(0, len(CHARACTERS), 256):
        block = CHARACTERS[at:at + 256]
        known |= set(block) - set(remove.normalize_str("".join(block)))
    return known


def library():
    pcre2 = ctypes.CDLL("libpcre2-8.so.0")
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    pcre2.pcre2_compile_8.restype = pointer
    pcre2.pcre2_compile_8.argtypes = [
        ctypes.c_char_p, size, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(size),
        pointer]
    pcre2.pcre2_match_data_create_8.restype = pointer
    pcre2.pcre2_match_data_create_8.argtypes = [ctypes.c_uint32, pointer]
    pcre2.pcre2_match_8.argtypes = [
        pointer, ctypes.c_char_p, size, size, ctypes.c_uint32, pointer, pointer]
    return pcre2


def library_knows(pcre2, expression):
    error, where = ctypes.c_int(), ctypes.c_size_t()
    code = pcre2.pcre2_compile_8(expression.encode(), len(expression), UTF | UCP,
                                 ctypes.byref(error), ctypes.byref(where), None)
    assert code, expression
    match = pcre2.pcre2_match_data_create_8(1, None)
    return {character for character in CHARACTERS if pcre2.pcre2_match_8(
        code, character.encode(), len(character.encode()), 0, NO_UTF_CHECK, match, None) > 0}


def ranges(characters):
    found = []
    for code in sorted(map(ord, characters)):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def main():
    pcre2 = library()
    for names, prefix in ((CATEGORIES, ""), (SCRIPTS, "sc:")):
        rows, known = [], set()
        for name in names:
            known |= library_knows(pcre2, r"\p{%s%s}" % (prefix, name))
        for name in names:  # characters that the library has in another category are skipped
            new = package_knows(r"\p{%s}" % name) - known
            rows += [(first, last, name) for first, last in ranges(new)]
        for row in sorted(rows):
            print('    {0x%X, 0x%X, "%s"},' % row)
        print()


if __name__ == "__main__":
    main()
