#!/usr/bin/env python3
"""check_docs.py: what the documents name exists, and the README's way through the sources is short.

Usage: check_docs.py ROOT. Prints what is wrong; exit 1 if anything is.
"""
import re
import sys
from pathlib import Path

READING_LINES = 2000
# Paths as the documents write them: from the root, in backticks or as links.
PATH = re.compile(r"[`(]((?:src|include|tests|cli|docs|studies|tools|cmake|bench|examples|python|emulator)/[\w./-]*\w)[`)]")
LINK = re.compile(r"\]\(([\w./-]+\.md)(?:#([\w-]+))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)


def anchors(document):
    """The names that links give to a page's headings: lower case, punctuation dropped, spaces as dashes."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in HEADING.findall(document.read_text(encoding="utf-8"))}


def missing(root, document):
    """Names in a document of files, and of headings in them, that do not exist."""
    text = document.read_text(encoding="utf-8")
    for match in PATH.finditer(text):
        if not (root / match.group(1)).exists():
            yield f"{document.relative_to(root)}: {match.group(1)} does not exist"
    for match in LINK.finditer(text):
        target, anchor = document.parent / match.group(1), match.group(2)
        if not target.exists():
            yield f"{document.relative_to(root)}: the link {match.group(1)} leads nowhere"
        elif anchor and anchor not in anchors(target):
            yield f"{document.relative_to(root)}: {match.group(1)} has no heading #{anchor}"


def reading(root):
    """What is wrong with the list of files to begin with."""
    section = (root / "README.md").read_text(encoding="utf-8").split("## Where to begin reading")[1].split("\n## ")[0]
    files = re.findall(r"^\d+\. \[[^]]+\]\(([^)]+)\)", section, re.M)
    lines = sum(len((root / file).read_text(encoding="utf-8").splitlines()) for file in files if (root / file).exists())
    if len(files) != 6 or lines >= READING_LINES:
        yield f"README.md: {len(files)} files of {lines} lines to begin with; six of under {READING_LINES} are promised"


def main():
    root = Path(sys.argv[1]).resolve()
    documents = [root / "README.md", root / "CONTRIBUTING.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    wrong = [line for document in documents for line in missing(root, document)] + list(reading(root))
    print("\n".join(wrong + [f"{len(documents)} documents, {len(wrong)} wrong"]))
    return 1 if wrong else 0


sys.exit(main())
