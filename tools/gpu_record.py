#!/usr/bin/env python3
"""gpu_record.py: the record of the checks on a GPU, and of the sources they apply to.

Usage: gpu_record.py hash
       gpu_record.py write RECORD RESULTS

hash:  prints the hash of the sources that only a GPU can run.
write: makes the record from the results of tools/gpu_check.sh: the names of all steps in steps, the outcome of each in
       NAME.json, its output in NAME.log, facts about the machine in machine.json. Fails while steps are missing, without
       a record, and if one has failed.
"""
import datetime
import hashlib
import json
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDERS = ("src/attention/cuda", "src/device/cuda", "src/ops/cuda")  # without the folder emulator/, which GPUs do not use


def sources_in(folder):
    """The sources below a folder, as paths from the root."""
    for path, _, names in os.walk(os.path.join(ROOT, folder)):
        below = os.path.relpath(path, ROOT)
        if "emulator" not in below.split(os.sep):
            yield from (f"{below}/{name}" for name in names if name.endswith((".cu", ".h", ".c")))


def source_hash():
    """Hash of names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(name for folder in FOLDERS for name in sources_in(folder)):
        with open(os.path.join(ROOT, name), "rb") as source:
            digest.update(f"{name}\0".encode() + source.read())
    return digest.hexdigest()


def lines_of(path):
    """The JSON lines of a log, ignoring other lines."""
    with open(path, encoding="utf-8", errors="replace") as log:
        return [json.loads(line) for line in log if line.startswith("{")]


def write(record, results):
    """Collects the steps, of which none may be missing; a step's JSON lines are its numbers. Returns the message of what
    is missing or has failed."""
    with open(os.path.join(results, "steps"), encoding="utf-8") as names:
        names = names.read().split()
    missing = [name for name in names if not os.path.exists(os.path.join(results, name + ".json"))]
    if missing:
        return f"{record} is not written: {len(missing)} of {len(names)} steps have yet to run: {' '.join(missing)}"
    with open(os.path.join(results, "machine.json"), encoding="utf-8") as machine:
        out = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
               "cuda_sources": source_hash(), "machine": json.load(machine), "steps": {}}
    for name in names:
        out["steps"][name] = lines_of(os.path.join(results, name + ".json"))[0]
        out["steps"][name]["numbers"] = lines_of(os.path.join(results, name + ".log"))
    failed = [name for name in names if not out["steps"][name]["passed"]]
    out["passed"] = not failed
    with open(record, "w", encoding="utf-8") as file:
        json.dump(out, file, indent=1)
        file.write("\n")
    return f"failed: {' '.join(failed)}" if failed else None


def main():
    """One of the jobs above."""
    if sys.argv[1:] == ["hash"]:
        print(source_hash())
    elif len(sys.argv) == 4 and sys.argv[1] == "write":
        sys.exit(write(sys.argv[2], sys.argv[3]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
