#!/usr/bin/env python3
"""check_gpu_record.py: whether the records in docs/gpu match the current CUDA sources.

Usage: check_gpu_record.py FOLDER

A record that cannot be read, or of a failed check, fails. One of other sources is stale: the test is skipped, since
only a machine with a GPU can make a new one (tools/gpu_check.sh).
"""
import json
import os
import sys

SKIPPED = 77


def main():
    """Checks every record."""
    root = sys.argv[1]
    sys.path.insert(0, os.path.join(root, "tools"))
    from gpu_record import source_hash  # the only definition of what is hashed
    folder, now, stale = os.path.join(root, "docs", "gpu"), source_hash(), 0
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(".json")] if os.path.isdir(folder) else []
    for name in names:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            record = json.load(file)
        failed = [step for step, result in record["steps"].items() if not result["passed"]]
        if record["cuda_sources"] != now:
            print(f"stale: docs/gpu/{name} is of {record['date']} and other CUDA sources; run tools/gpu_check.sh")
            stale += 1
        elif failed:
            sys.exit(f"docs/gpu/{name}: failed on the GPU: {', '.join(failed)}")
    if not names:
        print("stale: there is no record in docs/gpu; run tools/gpu_check.sh on a machine with a GPU")
    sys.exit(SKIPPED if stale or not names else 0)


main()
