#!/usr/bin/env python3
"""check_parameters.py: no function has more than six parameters without a stated reason.

Usage: check_parameters.py ROOT. A reason is a comment right before the function that says "parameters".
"""
import re
import sys
from pathlib import Path

MOST = 6
FOLDERS = ["src", "cli", "include", "tests", "bench", "examples"]
START = re.compile(r"^(?:[A-Za-z_][\w \t*<>,]*?[ \t*\n]+)?([A-Za-z_]\w*(?:\(\w+\))?)[ \t\n]*\(", re.M)
WORDS = {"if", "for", "while", "switch", "return", "sizeof", "defined", "else", "do"}


def without_comments(text):
    """The same text with comments, strings, preprocessor lines and template arguments blanked; offsets stay the same."""
    def blank(found):
        return re.sub(r"[^\n]", " ", found.group(0))
    code = re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', blank, text,
                  flags=re.S | re.M)
    for _ in range(2):  # commas of template arguments, nested once, do not separate parameters
        code = re.sub(r"(?<=\w)<[^<>;(){}]*>", blank, code)
    return code


def parameters(code, at):
    """The number of parameters in the parentheses that open at `at`, and where these end."""
    depth, count = 0, 1
    for i in range(at, len(code)):
        c = code[i]
        if c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                inside = code[at + 1:i].strip()
                return (0 if inside in ("", "void") else count), i
        elif c == "," and depth == 1:
            count += 1
    return 0, len(code)


def findings(path):
    text = path.read_text()
    code = without_comments(text)
    for found in START.finditer(code):
        name = found.group(1)
        if name in WORDS or found.group(0)[0].isspace():
            continue
        count, end = parameters(code, found.end() - 1)
        if count <= MOST or not re.match(r"\s*(?:\{|;|SR|__attribute__)", code[end + 1:]):
            continue
        before = re.sub(r"template\s*<[^<>]*>\s*$", "", text[:found.start()]).rstrip()
        comment = before[before.rfind("/*"):] if before.endswith("*/") else ""
        if "parameters" not in comment.lower():
            yield text[:found.start(1)].count("\n") + 1, name, count


def main():
    root = Path(sys.argv[1]).resolve()
    wrong = seen = 0
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu"):
                continue
            seen += 1
            for line, name, count in findings(path):
                print(f"{path.relative_to(root)}:{line}: {name} has {count} parameters: use a struct, "
                      f'or say why in a comment above that names its "parameters"')
                wrong += 1
    print(f"{seen} files, {wrong} functions with more than {MOST} parameters and no reason")
    return 1 if wrong or not seen else 0


sys.exit(main())
