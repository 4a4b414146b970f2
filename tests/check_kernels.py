#!/usr/bin/env python3
"""check_kernels.py: every CUDA kernel has a comment that says who owns what, and what moves.

Usage: check_kernels.py ROOT. The comment is the last one between the previous definition and the kernel; it names an owner
(block, cluster, warp, thread or lane), and memory or an access to it. Prints the kernels without; exit 1 if there are any.
"""
import re
import sys
from pathlib import Path

KERNEL = re.compile(r"^(?! \*).*__global__ void\s+(?:__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s+)?(\w+)\(", re.M)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
OWNER = re.compile(r"\b(block|cluster|warpgroup|warp|thread|lane)s?\b", re.I)
MOVE = re.compile(r"\b(global|shared memory|registers?|memory|TMA|cp\.async|workspace|loads?|stores?|reads?|writes?|copies|copy)\b",
                  re.I)
# What comes before the text of a definition.
END = re.compile(r"^\}|^\};|^#include|^/\* ---- ", re.M)


def comment_of(text, at):
    """The comment of the definition that `at` is in; empty if it has none."""
    start = max((found.end() for found in END.finditer(text, 0, at)), default=0)
    comments = COMMENT.findall(text[start:at])
    return comments[-1] if comments else ""


def findings(path):
    text = path.read_text(encoding="utf-8")
    for found in KERNEL.finditer(text):
        comment = comment_of(text, found.start())
        missing = [what for what, pattern in (("who owns what", OWNER), ("what moves", MOVE)) if not pattern.search(comment)]
        if missing:
            yield text[:found.start(1)].count("\n") + 1, found.group(1), " and ".join(missing)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root, wrong, count = Path(sys.argv[1]), 0, 0
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in (".cu", ".h") or "emulator" in path.parts:
            continue
        count += len(KERNEL.findall(path.read_text(encoding="utf-8")))
        for line, name, missing in findings(path):
            wrong += 1
            print(f"{path.relative_to(root)}:{line}: the comment of {name} does not say {missing}")
    if count == 0:
        sys.exit("no kernel found under src/")
    sys.exit(1 if wrong else 0)


main()
