#!/usr/bin/env python3
"""check_includes.py: modules include only what their place in the design allows.

Usage: check_includes.py ROOT. Prints each wrong include; exit 1 if there is one.

A header is public if another module includes it, or a public header does. All others say "(private)"
after their name in their first line. Tests and benchmarks may include everything, and do not count.
"""
import re
import sys
from pathlib import Path

# module -> the modules whose headers it may include, besides its own.
MAY_INCLUDE = {
    "base": set(),
    "files": {"base"},
    "ranks": {"base"},
    "data": {"files", "base"},
    "equation": {"base"},
    "device": {"base"},
    "attention": {"device", "equation", "base"},
    "ops": {"attention", "device", "equation", "base"},
    "verify": {"attention", "device", "equation", "base"},
    "model": {"ops", "attention", "device", "equation", "data", "files", "base"},
    "train": {"ranks", "model", "ops", "attention", "device", "equation", "data", "files", "base"},
    "analysis": {"model", "ops", "attention", "device", "equation", "data", "files", "base"},
    "distil": {"analysis", "train", "ranks", "model", "ops", "attention", "device", "equation", "data", "files", "base"},
    "report": {"files", "base"},
    "study": {"distil", "report", "ranks", "train", "model", "equation", "data", "files", "base"},
    "api": {"study", "ranks", "train", "model", "ops", "attention", "device", "equation", "data", "files", "base"},
    "cli": {"study", "report", "distil", "analysis", "ranks", "train", "model", "verify", "ops", "attention", "device", "equation",
            "data", "files", "base"},
}
# Subfolders of a module, in order: each may include those before it. Files in the module's own folder come last.
SUBFOLDERS = {
    "data": ["text", "tokenizer", "shards", "rows"],
    "report": ["draw", "records", "page", "orders", "runs", "students", "study"],
    "study": ["plan", "results", "execute"],
    "verify": ["oracle"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
PRIVATE = re.compile(r"^/\* \S+ \(private\):")
SUFFIXES = {".c", ".h", ".cu", ".cuh"}


def module_of(path):
    """The module a file belongs to, given its path from the root."""
    return path.parts[1] if path.parts[0] == "src" else path.parts[0]


def subfolder_of(path):
    """The index of a file's subfolder in its module's list; None if the module has none."""
    places = SUBFOLDERS.get(module_of(path))
    return places.index(path.parts[2]) if places and path.parts[2] in places else None


def find(root, source, included):
    """The included file as a path from the root; None if there is none."""
    for folder in (source.parent, Path("src"), Path("include"), Path(".")):
        if (root / folder / included).exists():
            return Path((root / folder / included).resolve().relative_to(root))
    return None


def problem(source, target):
    """Why `source` may not include `target`; None if it may. Both are paths from the root."""
    if target is None:
        return "is not found from src/ or next to the file"
    if target.parts[0] == "include":
        return None
    ours, theirs = module_of(source), module_of(target)
    if target.suffix == ".c":
        # A module may compile its own files several ways, but not those of others.
        return None if theirs == ours else "is a .c file of another module"
    if theirs == ours:
        places = subfolder_of(source), subfolder_of(target)
        if None not in places and places[1] > places[0]:
            return f"goes against the order of subfolders: {', '.join(SUBFOLDERS[ours])}"
        return None
    if theirs not in MAY_INCLUDE[ours]:
        return f"goes against the direction: {ours} may not know {theirs}"
    return None


def says_private(header):
    with open(header, encoding="utf-8") as file:
        return bool(PRIVATE.match(file.readline()))


def includes(root, source):
    """The numbers of the lines with an include, what they include as written, and as a path from the root."""
    for number, line in enumerate((root / source).read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), find(root, source, Path(match.group(1)))


def public_headers(root, files):
    """The headers that are part of a module's contract, each with a file that makes it so."""
    public = {target: source for source in files for _, _, target in includes(root, source)
              if target and module_of(target) != module_of(source)}
    reached = list(public)
    while reached:
        header = reached.pop()
        for _, _, target in includes(root, header):
            if target and target not in public:
                public[target] = header
                reached.append(target)
    return public


def marks(root, files):
    """Errors in the first lines of the headers."""
    public = public_headers(root, files)
    for header in files:
        if header.suffix != ".h" or header.parts[0] != "src":
            continue
        if header in public and says_private(root / header):
            yield f"{header}:1: is not private: {public[header]} shows it to another module"
        if header not in public and not says_private(root / header):
            yield f'{header}:1: only its own module uses it: "/* {header.name} (private): ..."'


def main():
    root = Path(sys.argv[1]).resolve()
    files = [f.relative_to(root) for top in ("src", "cli") for f in sorted((root / top).rglob("*"))
             if f.suffix in SUFFIXES]
    wrong = []
    for source in files:
        if module_of(source) not in MAY_INCLUDE:
            wrong.append(f"{source}: module '{module_of(source)}' is not in the table of {Path(__file__).name}")
            continue
        if module_of(source) in SUBFOLDERS and len(source.parts) > 3 and subfolder_of(source) is None:
            wrong.append(f"{source}: subfolder '{source.parts[2]}' is not in the table of {Path(__file__).name}")
        for number, written, target in includes(root, source):
            reason = problem(source, target)
            if reason:
                wrong.append(f'{source}:{number}: "{written}" {reason}')
    wrong += marks(root, files)
    print("\n".join(wrong + [f"{len(files)} files, {len(wrong)} wrong"]))
    return 1 if wrong or not files else 0


sys.exit(main())
