#!/usr/bin/env python3
"""comments.py: a public header as Doxygen wants it, so that the header itself can have plain comments.

Usage: comments.py HEADER. A comment that starts a line belongs to what follows it, any other to what is in front of it;
the first one describes the file. A line such as "---- 2. Names ----" begins a group, with the text below it; the
group of the first is HEADER_1, and so on.
"""
import re
import sys
from pathlib import Path

header = Path(sys.argv[1])
groups = 0


def escape(text):
    """Keeps < and @ from starting a tag or a command, except in lines that are indented as code. These begin a block."""
    text = re.sub(r":\n( \*\s{5})", r":\n *\n\1", text)
    return "\n".join(line if re.match(r" \*\s{5}", line) else re.sub(r"([<>@])", r"\\\1", line)
                     for line in text.split("\n"))


def convert(match):
    global groups
    before, text = match.groups()
    text = escape(text)
    section = re.match(r" -{4} (?:\d+\. )?(.*?) -+(.*)", text, re.S)
    if section:
        groups += 1
        close = "/** @} */ " if groups > 1 else ""
        return f"{close}/** @defgroup {header.stem}_{groups} {section[1]}\n{section[2]}\n @{{ */"
    if match.start() == 0:
        return f"/** @file\n *{text}*/"
    return f"{before}/**<{text}*/" if before.strip() else f"{before}/**{text}*/"


text = re.sub(r"^([^\n]*?)/\*(.*?)\*/", convert, header.read_text(encoding="utf-8"), flags=re.M | re.S)
print(re.sub(r"(\n#ifdef __cplusplus\n}\n#endif)", r"\n/** @} */\1", text))
