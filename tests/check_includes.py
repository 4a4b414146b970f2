#!/usr/bin/env python3
"""check_includes.py: modules include only what their place in the design allows.

Usage: check_includes.py ROOT. Prints each wrong include; exit 1 if there is one.
"""
import re
import sys
from pathlib import Path

# module -> the modules whose headers it may include, besides its own. tests and bench may include
# everything.
MAY_INCLUDE = {
    "base": set(),
    "data": {"base"},
    "attention": {"base"},
    "device": {"attention", "base"},
    "backend": {"attention", "base"},
    "model": {"backend", "attention", "data", "base"},
    "train": {"model", "backend", "attention", "data", "base"},
    "analysis": {"model", "backend", "attention", "data", "base"},
    "report": {"base"},
    "study": {"report", "train", "model", "attention", "data", "base"},
    "cli": {"study", "report", "analysis", "train", "model", "backend", "attention", "data", "base"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
SUFFIXES = {".c", ".h", ".cu", ".cuh"}


def module_of(path):
    """The module a file belongs to, given its path from the root; None outside the modules."""
    if path.parts[0] == "src":
        return path.parts[1]
    return path.parts[0] if path.parts[0] in MAY_INCLUDE else None


def problem(root, source, included):
    """Why `source` may not include `included`; None if it may. Both are paths, one as written."""
    module = module_of(source)
    beside = root / source.parent / included
    if beside.exists() or included == Path("softrnn.h"):
        target = module
    elif (root / "src" / included).exists():
        target = included.parts[0]
    else:
        return "is not found from src/ or beside the file"
    if included.suffix == ".c":
        # A module may compile one of its own files several ways; nobody else's.
        return None if target == module else "is a .c file of another module"
    if target == module:
        return None
    if target not in MAY_INCLUDE[module]:
        return f"goes against the direction: {module} may not know {target}"
    if included.stem.endswith("_private"):
        return f"is private to {target}"
    return None


def main():
    root = Path(sys.argv[1])
    files = [f for top in ("src", "cli") for f in (root / top).rglob("*") if f.suffix in SUFFIXES]
    wrong = 0
    for file in sorted(files):
        source = file.relative_to(root)
        if module_of(source) not in MAY_INCLUDE:
            print(f"{source}: module '{module_of(source)}' is not in the table of {Path(__file__).name}")
            wrong += 1
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            reason = match and problem(root, source, Path(match.group(1)))
            if reason:
                print(f'{source}:{number}: "{match.group(1)}" {reason}')
                wrong += 1
    print(f"{len(files)} files, {wrong} wrong includes")
    return 1 if wrong or not files else 0


sys.exit(main())
