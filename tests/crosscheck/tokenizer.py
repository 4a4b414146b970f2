#!/usr/bin/env python3
"""tokenizer.py: softrnn's tokenizers against Hugging Face's tokenizers package, id by id.

Usage: tokenizer.py PROGRAM TEXT TOKENIZER...

PROGRAM is softrnn, TEXT any UTF-8 file to borrow sentences from, TOKENIZER a tokenizer.json or
tokenizer.json.gz. Encodes 2 MB of mixed text (many scripts, emoji, code, control bytes, special
tokens) and some hundred short awkward ones, and decodes the results and random ids; then trains a
tokenizer on TEXT, which must load in the package, give the same ids there, and have the merges that
the package's trainer learns. Needs the Python package `tokenizers`.
"""
import gzip
import json
import random
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

RANGES = [(0x20, 0x7F)] * 6 + [
    (0x00, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00),
    (0x1780, 0x1800), (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4),
    (0xE000, 0xE010), (0x10000, 0x10100), (0x1F300, 0x1F6FF), (0x20000, 0x20100)]
PIECES = [
    "<|endoftext|>", "<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|start_story|>", " ", "  ", "\n",
    "\n\n", " \n", "\t", "'s", "'S", "'ll", "'RE", "don't", "I'M", "123", "4567", "\r\n", "\u00a0",
    "\u2003", "\u180e", "\u200b", "\u3000", "\u0085", "\u2581", "\u2581\u2581", "e\u0301", "<0x0A>",
    "\0", "\x7f", "\u017f", "'\u017f", "if (x) {\n\treturn 0;\n}\n", "    ", "        def f():"]


def mixed(rng, text, size):
    parts, bytes_so_far = [], 0
    while bytes_so_far < size:
        kind = rng.random()
        if kind < 0.3:
            at = rng.randrange(max(1, len(text) - 300))
            part = text[at:at + rng.randrange(1, 300)]
        elif kind < 0.6:
            part = rng.choice(PIECES)
        else:
            first, last = rng.choice(RANGES)
            part = "".join(chr(rng.randrange(first, last)) for _ in range(rng.randrange(1, 12)))
        parts.append(part)
        bytes_so_far += len(part.encode())
    return "".join(parts)


def encode(program, name, text):
    done = subprocess.run([program, "tokenizer", "encode", "--tokenizer", name],
                          input=text.encode(), stdout=subprocess.PIPE, check=True)
    return [int(word) for word in done.stdout.split()]


def decode(program, name, ids):
    done = subprocess.run([program, "tokenizer", "decode", "--tokenizer", name],
                          input=" ".join(map(str, ids)).encode(), stdout=subprocess.PIPE, check=True)
    return done.stdout.decode(errors="replace")


def compare_decoding(program, name, package, texts, rng):
    """Added tokens between all kinds of neighbours; also ids that no text encodes to."""
    added = list(package.get_added_tokens_decoder())
    lists = [package.encode(text, add_special_tokens=False).ids for text in texts[1:]]
    lists += [[rng.choice(added) if added and rng.random() < 0.4
               else rng.randrange(package.get_vocab_size()) for _ in range(rng.randrange(1, 10))]
              for _ in range(60)]
    wrong = 0
    for ids in lists:
        expected = package.decode(ids, skip_special_tokens=False)
        got = decode(program, name, ids)
        if got != expected:
            wrong += 1
            print(f"{name}: {ids[:20]} is {got[:60]!r}, the package has {expected[:60]!r}")
    print(f"{name}: {len(lists)} lists of ids, {wrong} differ")
    return wrong


def compare(program, name, texts, rng):
    with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:
        package = Tokenizer.from_str(file.read().decode())
    wrong = compare_decoding(program, name, package, texts, rng)
    for text in texts:
        expected = package.encode(text, add_special_tokens=False).ids
        got = encode(program, name, text)
        if got != expected:
            wrong += 1
            at = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]),
                      min(len(got), len(expected)))
            print(f"{name}: {text[:60]!r}: from id {at} on {got[at:at + 5]}, the package has "
                  f"{expected[at:at + 5]}")
    print(f"{name}: {len(texts)} texts, {wrong} differ")
    return wrong


def merges_of(text):
    return [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
            for merge in json.loads(text)["model"]["merges"]]


def compare_merges(trained, path):
    package = Tokenizer(models.BPE())
    package.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False)
    with open(path, encoding="utf-8") as file:
        package.train_from_iterator(file.read().split("<|endoftext|>"), trainer)
    with open(trained, encoding="utf-8") as file:
        ours, theirs = merges_of(file.read()), merges_of(package.to_str())
    wrong = sum(a != b for a, b in zip(ours, theirs)) + abs(len(ours) - len(theirs))
    print(f"{path}: {len(theirs)} merges, {wrong} differ")
    return wrong


def main():
    program, path, *names = sys.argv[1:]
    rng = random.Random(1)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(1000000)
    texts = [mixed(rng, text, 2000000), ""] + PIECES
    texts += [mixed(rng, text, rng.choice([5, 20, 60])) for _ in range(30)]
    wrong = sum(compare(program, name, texts, rng) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        trained = folder + "/tokenizer.json"
        subprocess.run([program, "tokenizer", "train", path, "--vocab", "2000", "--out", trained],
                       check=True)
        wrong += compare(program, trained, texts, rng)
        wrong += compare_merges(trained, path)
    sys.exit(1 if wrong else 0)


main()
