#!/usr/bin/env python3
"""sentencepiece_models.py: softrnn's SentencePiece models against the package, id by id.

Usage: sentencepiece_models.py PROGRAM TEXT

Trains BPE models on TEXT with user-defined symbols (including spaces), with and without a leading
space, extra white space and byte fallback, and compares ids and decoded text over awkward texts and
the paragraphs of TEXT. Needs the Python package `sentencepiece`.
"""
import random
import subprocess
import sys
import tempfile

import sentencepiece

SETTINGS = [
    {"user_defined_symbols": ["  "]},
    {"user_defined_symbols": ["  "], "remove_extra_whitespaces": False},
    {"user_defined_symbols": ["\u2581\u2581"]},
    {"user_defined_symbols": ["<x>", " the", "  a ", "\u00e9"]},
    {"user_defined_symbols": ["  ", "<x>"], "add_dummy_prefix": False},
    {"user_defined_symbols": ["  ", " ", " b"], "byte_fallback": True},
    {"user_defined_symbols": [" "]},
    {},
]
PIECES = ["a", "b", " ", "  ", "   ", "<x>", "the", " the", "\u00e9", "\u2581", "\u2581\u2581", "\n",
          "\u65e5"]


def run(program, what, name, text):
    done = subprocess.run([program, "tokenizer", what, "--tokenizer", name], input=text.encode(),
                          stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def compare(program, name, texts):
    package = sentencepiece.SentencePieceProcessor(model_file=name)
    wrong = 0
    for text in texts:
        expected = package.encode(text)
        got = [int(word) for word in run(program, "encode", name, text).split()]
        decoded = run(program, "decode", name, " ".join(map(str, expected)))
        if got != expected or decoded != package.decode(expected):
            wrong += 1
            print(f"{text[:60]!r}: {got[:12]} and {decoded[:60]!r}, the package has {expected[:12]} "
                  f"and {package.decode(expected)[:60]!r}")
    return wrong


def main():
    program, path = sys.argv[1:]
    rng = random.Random(1)
    with open(path, encoding="utf-8") as file:
        paragraphs = [p for p in file.read().split("\n\n") if len(p) < 2000]
    texts = ["a  b", "  a", "a   b", "a  ", "    ", "  a  <x>  the  a  b \u2581\u2581 c", " "]
    texts += ["".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 14))) for _ in range(100)]
    texts += [p.replace(" ", "  ") if i % 2 else p
              for i, p in enumerate(rng.sample(paragraphs, min(50, len(paragraphs))))]
    wrong = 0
    for settings in SETTINGS:
        with tempfile.TemporaryDirectory() as folder:
            sentencepiece.SentencePieceTrainer.train(
                input=path, model_prefix=folder + "/m", model_type="bpe", vocab_size=600,
                normalization_rule_name="identity", minloglevel=2, **settings)
            differ = compare(program, folder + "/m.model", texts)
            print(f"{settings}: {len(texts)} texts, {differ} differ")
            wrong += differ
    sys.exit(1 if wrong else 0)


main()
