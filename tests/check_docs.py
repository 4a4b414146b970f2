#!/usr/bin/env python3
"""check_docs.py: names and links in the documents exist, every page can be reached from the README or from
docs/README.md, the page about GPU kernels names existing code, and the README's reading route is short.

Usage: check_docs.py ROOT. Prints what is wrong; exit 1 if anything is. Links to other sites are not followed.
"""
import os
import re
import sys
from pathlib import Path

READING_LINES = 2000
# Paths as the documents write them: from the root, in backticks or as links.
PATH = re.compile(r"[`(]((?:src|include|tests|cli|docs|studies|tools|cmake|bench|examples|python|emulator)/[\w./-]*\w)[`)]")
LINK = re.compile(r"\]\(([^()\s]+)\)")
ELSEWHERE = ("http://", "https://", "mailto:")
ENTRANCES = ("README.md", "docs/README.md")


def text_of(document):
    """The text without code blocks, whose brackets are not links."""
    return re.sub(r"^(```+).*?^\1", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(document):
    """Anchors of the headings, as GitHub and the site name them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text_of(document), re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().replace(" ", "-")
        name = base = re.sub(r"[^\w-]", "", words)
        number = 0
        while name in found:
            number += 1
            name = f"{base}-{number}"
        found.add(name)
    return found


def links(document):
    """(link, file, anchor) of each link within the tree."""
    for link in LINK.findall(text_of(document)):
        if not link.startswith(ELSEWHERE):
            file, _, anchor = link.partition("#")
            yield link, Path(os.path.normpath(document.parent / file)) if file else document, anchor


def missing(root, document):
    """Files and headings that a document names and that do not exist."""
    name = document.relative_to(root)
    for match in PATH.finditer(document.read_text(encoding="utf-8")):
        if not (root / match.group(1)).exists():
            yield f"{name}: {match.group(1)} does not exist"
    for link, file, anchor in links(document):
        if not file.exists():
            yield f"{name}: the link {link} leads nowhere"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{name}: {file.name} has no heading for the link {link}"


def renamed(root):
    """Names of code in the page about GPU kernels that the sources no longer have."""
    document = root / "docs/GPU_KERNELS.md"
    sources = [file.read_text(encoding="utf-8") for file in root.glob("src/**/*") if file.suffix in (".cu", ".h", ".c")]
    known = set(re.findall(r"\w+", " ".join(sources)))
    for name in sorted(set(re.findall(r"`(\w+)`", document.read_text(encoding="utf-8"))) - known):
        yield f"{document.relative_to(root)}: no source has the name {name}"


def unreachable(root, documents):
    """Documents that cannot be reached by links."""
    waiting = [root / entrance for entrance in ENTRANCES]
    reached = set(waiting)
    while waiting:
        found = {file for _, file, _ in links(waiting.pop()) if file in documents} - reached
        reached |= found
        waiting += found
    for document in documents:
        if document not in reached:
            yield f"{document.relative_to(root)}: not linked from {' or '.join(ENTRANCES)}; add it to docs/README.md"


def reading(root):
    """Errors in the list of files to read first."""
    section = (root / "README.md").read_text(encoding="utf-8").split("## Where to begin reading")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. \[[^]]+\]\(([^)]+)\)", section, re.M)
    lines = sum(len((root / file).read_text(encoding="utf-8").splitlines()) for file in files if (root / file).exists())
    if len(files) != 6 or lines >= READING_LINES:
        yield f"README.md: {len(files)} files of {lines} lines to begin with; six of under {READING_LINES} are promised"


def main():
    root = Path(sys.argv[1]).resolve()
    documents = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/*.md")])
    wrong = [line for document in documents for line in missing(root, document)]
    wrong += [*unreachable(root, documents), *renamed(root), *reading(root)]
    print("\n".join(wrong + [f"{len(documents)} documents, {len(wrong)} wrong"]))
    return 1 if wrong else 0


sys.exit(main())
