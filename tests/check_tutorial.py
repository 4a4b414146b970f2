#!/usr/bin/env python3
"""check_tutorial.py: docs/TUTORIAL.md does what it says.

Usage: check_tutorial.py ROOT SOFTRNN. The page's NumPy code is that of examples/python/tutorial.py; its Python runs, with
its assertions, and prints what the page shows; its commands succeed. Needs the package: PYTHONPATH, SOFTRNN_LIBRARIES.
"""
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NUMPY_LINES = 60


def blocks(page):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", page, re.M | re.S)


def cells(script):
    """The code of each cell of a notebook kept as a script."""
    return [cell.partition("\n")[2].strip() for cell in re.split(r"^# %% ", script, flags=re.M)[1:]]


def run_python(found):
    """Runs the blocks in one namespace; a block without a language is the expected output of those before it."""
    names, printed = {"__name__": "tutorial"}, io.StringIO()
    for language, text in found:
        if language == "python":
            with contextlib.redirect_stdout(printed):
                exec(compile(text, "docs/TUTORIAL.md", "exec"), names)
        elif not language:
            assert printed.getvalue() == text, f"the page shows\n{text}and the code prints\n{printed.getvalue()}"
            printed = io.StringIO()


def run_commands(found, program):
    """Runs the commands of console blocks, in an empty folder."""
    commands = [line[2:] for language, text in found if language == "console" for line in text.splitlines()]
    environment = {**os.environ, "PATH": os.pathsep.join([str(program.parent), os.environ["PATH"]])}
    with tempfile.TemporaryDirectory() as folder:
        for command in commands:
            done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return len(commands)


def main():
    root, program = (Path(argument).resolve() for argument in sys.argv[1:])
    found = blocks((root / "docs/TUTORIAL.md").read_text(encoding="utf-8"))
    script = cells((root / "examples/python/tutorial.py").read_text(encoding="utf-8"))
    code = [text.strip() for language, text in found if language == "python"]
    assert code[:len(script)] == script, "the page and examples/python/tutorial.py have different code"
    lines = sum(1 for line in "\n".join(script).splitlines() if line.strip())
    assert lines <= NUMPY_LINES, f"{lines} lines of NumPy; the page promises {NUMPY_LINES}"
    run_python(found)
    commands = run_commands(found, program)
    print(f"{lines} lines of NumPy, {len(code)} blocks of Python, {commands} commands: ok")


main()
