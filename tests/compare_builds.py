#!/usr/bin/env python3
"""compare_builds.py: two builds of the program compute the same bits.

Usage: compare_builds.py OLD NEW [VARIANT ...]. OLD and NEW are softrnn programs.

Trains a small model of every variant that OLD names (or of those given) for a few steps with both, and
compares losses, the tensors of the last checkpoint, moments included, and the logits of that checkpoint, all bit
by bit. Prints each difference; exit 1 if there is one.
"""
import json
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LENGTH, BATCH, STEPS, VOCABULARY = 150, 2, 3, 256
OTHERS = ["order:2", "order:3,decay,value_gate,output_gate,norm=rms", "power:2",
          "linear_elu,decay,value_gate,output_gate,post_gate,norm=l2"]
SHAPE = ["--hidden", "48", "--mlp-hidden", "64", "--layers", "2", "--heads", "4", "--kv-heads", "2"]


def tensors(path):
    """The tensors of a safetensors file: name to dtype, shape and bytes."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], tuple(entry["shape"]),
                   data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def moments(arrays):
    """All numbers of each of the optimizer's two arrays, sorted by value: older builds have another layout, with
    zeros between tensors."""
    bits = {kind: [] for kind in ("mean", "square")}
    for name, (_, _, data) in arrays.items():
        bits[name.split(".")[0]] += struct.unpack(f"<{len(data) // 4}I", data)
    return {f"moments: {kind}": sorted(number for number in numbers if number) for kind, numbers in bits.items()}


def write_ids(path, seed, shape):
    count = 1
    for size in shape:
        count *= size
    numbers = random.Random(seed)
    data = struct.pack(f"<{count}i", *(numbers.randrange(VOCABULARY) for _ in range(count)))
    header = json.dumps({"ids": {"dtype": "I32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def call(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, words))}\n{done.stderr}")
    return done.stdout


def results(program, variant, folder, here):
    """Everything that a short run computes: name to bits."""
    call(program, "train", "--out", folder, "--data", here / "text.txt", "--batches", here / "batches",
         "--attention", variant, "--vocab", VOCABULARY, *SHAPE, "--validate-every", "0", "--clip", "0.5")
    last = max((folder / "checkpoints").iterdir(), key=lambda path: path.name)
    call(program, "eval", "--model", last, "--tokens", here / "rows", "--dump-logits", folder / "logits")
    found = {"logits: " + name: value for name, value in tensors(folder / "logits").items()}
    found |= tensors(last / "model.safetensors")
    found |= moments(tensors(last / "optimizer.safetensors"))
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found |= {f"loss of step {record['step']}": record["loss"] for record in records if "loss" in record}
    return found


def differences(old, new):
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            yield f"{name} is gone"
        elif name not in old:
            yield f"{name} is new"
        elif old[name] != new[name]:
            yield f"{name} differs"


def main():
    old, new = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    listed = json.loads(call(old, "variants", "--json"))
    names = sys.argv[3:] or [row["name"] for row in listed] + OTHERS
    wrong = compared = 0
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        write_ids(here / "batches", 1, [STEPS, BATCH, LENGTH + 1])
        write_ids(here / "rows", 2, [BATCH, LENGTH + 1])
        (here / "text.txt").write_text("unused, but required\n" * 500)
        for number, name in enumerate(names):
            before = results(old, name, here / f"old{number}", here)
            after = results(new, name, here / f"new{number}", here)
            compared += len(before)
            for difference in differences(before, after):
                print(f"{name}: {difference}")
                wrong += 1
    print(f"{len(names)} variants, {compared} results, {wrong} differences")
    return 1 if wrong or not compared else 0


sys.exit(main())
