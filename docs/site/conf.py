"""conf.py: how Sphinx turns the documents, both headers and the Python package into one searchable site (`make docs`)."""
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from myst_parser.parsers.sphinx_ import MystParser
from sphinx.util import inspect

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ["SOFTRNN_DOCS"])  # where Doxygen left its XML
BUILD = Path(os.environ["SOFTRNN_LIBRARIES"])  # the program and the libraries of the Python package
sys.path.insert(0, str(ROOT / "python"))

project = "softrnn"
author = "the softrnn authors"
version = ".".join(re.findall(r"SRNN_VERSION_\w+ (\d+)", (ROOT / "include/softrnn.h").read_text(encoding="utf-8")))
extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/site/*.rst", "examples/*.md", "examples/python/*.py"]
exclude_patterns = ["build*", ".*", "src", "tests", "cli", "python"]

html_theme = "furo"
html_title = f"softrnn {version}"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_copyright = False
highlight_language = "none"

myst_heading_anchors = 4
myst_linkify_fuzzy_links = False

breathe_projects = {"softrnn": str(OUT / "doxygen/xml")}
breathe_default_project = "softrnn"
breathe_domain_by_extension = {"h": "c"}
breathe_show_include = False

autodoc_member_order = "bysource"
autodoc_mock_imports = [name for name in ("torch", "transformers", "pandas", "matplotlib")
                        if not importlib.util.find_spec(name)]


def cells_to_markdown(script):
    """A script with cells (# %% title) as a page: the docstring, then a heading and a block of code for each cell."""
    docstring, code = re.match(r'"""(.*?)"""\n(.*)', script, re.S).groups()
    title, _, text = docstring.partition("\n")
    imports, *cells = re.split(r"^# %% ", code, flags=re.M)
    page = [f"# {title.rstrip('.')}", text]
    for cell in ["\n" + imports, *cells]:
        heading, _, body = cell.partition("\n")
        page += [f"## {heading[0].upper()}{heading[1:]}"] if heading else []
        page += [f"```python\n{body.strip()}\n```"] if body.strip() else []
    return "\n\n".join(page)


class NotebookParser(MystParser):
    """Notebooks kept as plain scripts."""

    supported = ("notebook",)

    def parse(self, inputstring, document):
        super().parse(cells_to_markdown(inputstring), document)


def navigation():
    """The groups of docs/README.md, each with the titles and names of its pages, then what only the site has."""
    groups = {}
    for section in re.split(r"^## ", (ROOT / "docs/README.md").read_text(encoding="utf-8"), flags=re.M)[1:]:
        links = re.findall(r"^- \[([^]]+)\]\(([^)]+)\.md\)", section, re.M)
        groups[section.partition("\n")[0]] = {os.path.normpath(f"docs/{link}"): title for title, link in links}
    groups["Reference"] = {"docs/site/commands": "Commands", "docs/site/c": "C: softrnn.h",
                           "docs/site/lab": "C: softrnn_lab.h", "docs/site/python": "Python", "docs/README": "All pages"}
    notebooks = sorted((ROOT / "examples/python").glob("*.py"))
    groups["Notebooks"] = {f"examples/python/{path.stem}": path.name for path in notebooks}
    return groups


def add_navigation(app, name, source):
    """Puts the navigation below the first page. A page that docs/README.md does not list appears under "More"."""
    if name != root_doc:
        return
    groups = navigation()
    listed = {page for pages in groups.values() for page in pages}
    groups["More"] = {page: "" for page in sorted(app.env.found_docs - listed)}  # by their own titles
    for caption, pages in groups.items():
        lines = [f"{title} <{page}>" if title else page for page, title in pages.items() if page != root_doc]
        if lines:
            source[0] += "\n\n```{{toctree}}\n:caption: {}\n:hidden:\n\n{}\n```\n".format(caption, "\n".join(lines))


def add_commands(app, name, source):
    """What `softrnn COMMAND --help` prints, for each command."""
    if name != "docs/site/commands":
        return
    commands = re.findall(r"^  (\w+)  ", say("help").partition("Commands:")[2].partition("Examples:")[0], re.M)
    for command in commands:
        words = say("help", command).replace("\n", "\n   ")
        source[0] += f"\nsoftrnn {command}\n{'-' * 40}\n\n.. code-block:: text\n\n   {words}\n"


def say(*arguments):
    return subprocess.run([BUILD / "cli/softrnn", *arguments], check=True, capture_output=True, text=True).stdout


def add_groups(app, name, source):
    """Below the introduction of a header, its sections in their order."""
    header = {"docs/site/c": "softrnn", "docs/site/lab": "softrnn_lab"}.get(name)
    files = sorted((OUT / "doxygen/xml").glob(f"group__{header.replace('_', '__')}__[0-9]*.xml")) if header else []
    for file in files:
        group = ElementTree.parse(file).find("compounddef")
        title = group.findtext("title")
        source[0] += (f"\n{title}\n{'-' * len(title)}\n\n.. doxygengroup:: {group.findtext('compoundname')}\n"
                      "   :content-only:\n   :members:\n")


def leave_folders_alone(app, env, node, text):
    """A link to a folder of the source tree, which has no page, is plain text."""
    folder = Path(env.doc2path(node.get("refdoc", root_doc))).parent / node["reftarget"]
    return text if folder.is_dir() else None


def show_parameters(app, what, name, found, options, signature, returns):
    """A class that derives from a library which is not installed still shows the parameters of its own __init__."""
    init = vars(found).get("__init__") if what == "class" else None
    if init and signature.startswith("(*args"):
        own = inspect.signature(init, bound_method=True)
        return inspect.stringify_signature(own, show_return_annotation=False, unqualified_typehints=True), returns
    return None


def add_front_door(app, exception):
    """index.html, which leads to the first page."""
    if not exception and app.builder.format == "html":
        page = f'<meta http-equiv="refresh" content="0; url={root_doc}.html"><a href="{root_doc}.html">softrnn</a>'
        Path(app.outdir, "index.html").write_text(f"<!doctype html>\n{page}\n", encoding="utf-8")


def setup(app):
    app.add_source_suffix(".py", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_commands)
    app.connect("source-read", add_groups)
    app.connect("autodoc-process-signature", show_parameters)
    app.connect("missing-reference", leave_folders_alone)
    app.connect("build-finished", add_front_door)
