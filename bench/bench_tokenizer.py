#!/usr/bin/env python3
"""bench_tokenizer.py: encoding and training against Hugging Face's tokenizers, same text, same run.

Usage: bench_tokenizer.py PROGRAM TEXT VOCAB TOKENIZER...

PROGRAM is bench_tokenizer; TEXT holds documents separated by <|endoftext|>. The two programs
alternate on one thread; one JSON line per case.
"""
import gzip
import json
import os
import subprocess
import sys
import time

os.environ["RAYON_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

REPEATS = 3


def ours(program, *arguments):
    """The first record printed: one thread."""
    lines = subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout
    print(lines, end="", flush=True)
    return json.loads(lines.splitlines()[0])


def report(record, seconds, size, other):
    record.update(program="tokenizers", threads=1, bytes=size, seconds=round(seconds, 4),
                  megabytes_per_second=round(size / seconds / 1e6, 2),
                  softrnn_is_faster=round(seconds / other["seconds"], 2))
    print(json.dumps(record), flush=True)


def best_of(work):
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def bench_encoding(program, name, path, documents, size):
    one = ours(program, "encode", name, path, "2")
    with (gzip.open if name.endswith(".gz") else open)(name, "rb") as file:
        text = file.read().decode()
    tokens = 0

    def work():
        nonlocal tokens
        fresh = Tokenizer.from_str(text)
        start = time.perf_counter()
        tokens = sum(len(e.ids) for e in fresh.encode_batch(documents, add_special_tokens=False))
        return time.perf_counter() - start

    seconds = min(work() for _ in range(REPEATS))
    assert tokens == one["tokens"], f"{tokens} tokens, softrnn has {one['tokens']}"
    report({"case": "encode", "tokenizer": name}, seconds, size, one)


def bench_training(program, vocab, path, documents, size):
    one = ours(program, "train", vocab, path, "1")
    ours(program, "train", vocab, path, "2")

    def work():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=int(vocab), special_tokens=["<|endoftext|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator(documents, trainer)

    report({"case": "train", "vocab": int(vocab)}, best_of(work), size, one)


def main():
    program, path, vocab, *names = sys.argv[1:]
    with open(path, "rb") as file:
        documents = file.read().decode().split("<|endoftext|>")
    size = sum(len(document.encode()) for document in documents)
    bench_training(program, vocab, path, documents, size)
    for name in names:
        bench_encoding(program, name, path, documents, size)


main()
