#!/usr/bin/env python3
"""draw.py: the README's figures, from the record of a study and from the sizes of states.

Usage: draw.py            writes idea.svg and verdict.svg next to this file
       draw.py --check    exits with 1 if either differs from what would be written

verdict.svg shows docs/results/gpu/summary.json, which `softrnn study studies/gpu.yaml` wrote.
"""
import json
import math
import re
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
SUMMARY = HERE.parent / "results/gpu/summary.json"

STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --paper: #ffffff; --grid: #e3e6ea; --card: #f3f5f8;
  --blue: #0072b2; --orange: #d55e00; --green: #009e73; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ed; --soft: #9aa4af; --paper: #14171b; --grid: #2c333b;
  --card: #1f242b; --blue: #4aa8e0; --orange: #ff8a3d; --green: #2fc79a; } }
svg { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
text { fill: var(--ink); } .soft { fill: var(--soft); } .small { font-size: 12.5px; } .strong { font-weight: 600; }
.math { font-family: "STIX Two Math", "Cambria Math", "Latin Modern Math", Georgia, serif; font-size: 17px; }
.large { font-size: 20px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: var(--paper); } .card { fill: var(--card); stroke: var(--grid); } .edge { stroke: var(--blue); stroke-width: 2; }
.grid { stroke: var(--grid); fill: none; } .zero { stroke: var(--soft); stroke-dasharray: 4 4; fill: none; }
.arrow { stroke: var(--soft); fill: none; stroke-width: 1.5; } .head { fill: var(--soft); }
.interval { fill: none; stroke-width: 2.5; stroke-linecap: round; } .mark { stroke-width: 2; }
.better { stroke: var(--green); fill: var(--green); } .worse { stroke: var(--orange); fill: var(--orange); }
.unclear { stroke: var(--ink); fill: var(--paper); } .baseline { stroke: var(--ink); fill: var(--ink); }
.cell { fill: var(--blue); }
"""


def number(value):
    return f"{value:.1f}".rstrip("0").rstrip(".")


def text(x, y, words, style=""):
    """A line of text; _{..} and ^{..} lower and raise what they hold."""
    pieces, shift = [], 0
    for kind, held, plain in re.findall(r"([_^]){([^}]*)}|([^_^{]+)", words):
        piece = held if kind else plain
        wanted = {"_": 4, "^": -6}.get(kind, 0)
        size = ' font-size="70%"' if wanted else ""
        move = f' dy="{wanted - shift}"' if wanted != shift else ""
        pieces.append(f"<tspan{move}{size}>{escape(piece)}</tspan>" if move or size else escape(piece))
        shift = wanted
    return f'<text x="{number(x)}" y="{number(y)}" class="{style}">{"".join(pieces)}</text>'


def box(x, y, width, height, style):
    return (f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="8" '
            f'class="{style}"/>')


def arrow(x1, y1, x2, y2):
    """A straight arrow to (x2, y2)."""
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    bx, by = x2 - 8 * ux, y2 - 8 * uy
    points = [(x2, y2), (bx - 4 * uy, by + 4 * ux), (bx + 4 * uy, by - 4 * ux)]
    return (f'<path class="arrow" d="M{number(x1)} {number(y1)}L{number(bx)} {number(by)}"/>'
            f'<path class="head" d="M{"L".join(f"{number(x)} {number(y)}" for x, y in points)}z"/>')


def drawing(width, height, title, parts):
    body = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
            f'{box(0, 0, width, height, "paper")}\n{body}\n</svg>\n')


def state_size(order, D):
    """Bytes of the state of one order of one head: symmetric products of keys, times values and the row sum's column."""
    return math.comb(D + order - 1, order) * (D + 1) * 4


def in_units(size):
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024


def idea():
    D = 64
    columns = [  # term, name, size of the state
        ("1", "order 0: a mean", "state: D numbers"),
        ("q·k", "order 1: linear", "state: D × D"),
        ("(q·k)^{2} / 2!", "order 2", "state: D^{2}/2 × D"),
        ("(q·k)^{3} / 3!", "order 3", "state: D^{3}/6 × D"),
    ]
    left, step, width = 136, 180, 158
    middle_of_all = left + (3 * step + width) / 2
    parts = [text(24, 44, "exp(q·k)", "math large"), text(118, 44, "=", "math large")]
    for order, (term, name, state) in enumerate(columns):
        x = left + order * step
        middle = x + width / 2
        parts += [
            text(middle, 44, term, "math large middle"),
            text(x + width + 11, 44, "+", "math large middle"),
            arrow(middle, 56, middle, 84),
            box(x, 86, width, 124, "card edge" if order == 1 else "card"),
            text(middle, 110, name, "strong middle"),
            text(middle, 140, f"H_{{{order}}} += φ_{{{order}}}(k) v^{{T}}", "math middle"),
            text(middle, 168, state, "small middle"),
            text(middle, 194, f"{in_units(state_size(order, D))} per head", "small soft middle"),
            arrow(middle, 212, middle, 252),
        ]
    parts += [
        text(left + 4 * step + 4, 44, "…", "math large"),
        text(left + 4 * step + 4, 150, "…", "math large"),
        text(24, 132, "One recurrence", "small soft"), text(24, 150, "per order; state", "small soft"),
        text(24, 168, f"sizes for D = {D}", "small soft"),
        box(left, 254, 3 * step + width, 44, "card"),
        text(middle_of_all, 282, "y = Σ_{n} φ_{n}(q)^{T} H_{n}", "math middle"),
        text(24, 281, "Sum of orders", "small soft"),
        arrow(middle_of_all, 300, middle_of_all, 326),
        text(24, 351, "What bounds y:", "small soft"), text(24, 369, "one of these", "small soft"),
    ]
    ends = [("softmax", "÷ sum of weights"), ("gate", "÷ length, × sigmoid"), ("norm", "l2 norm of y"), ("none", "recall is not learned")]
    for i, (name, what) in enumerate(ends):
        x = left + i * step
        parts += [box(x, 330, width, 54, "card"), text(x + width / 2, 353, name, "strong middle"),
                  text(x + width / 2, 373, what, "small soft middle")]
    return drawing(880, 402, "exp of q·k is a power series. Each order is a recurrence with a state of fixed size; their sum is "
                   f"divided by the row sum, or bounded by a gate or a norm. Sizes are of one head of {D} in float.", parts)


# Names in the figure, where the study's own need a word more.
NAMES = {"softmax": "softmax (baseline)", "none": "no denominator", "length": "divided by length", "elu": "linear, elu",
         "relu": "linear, relu", "order 1 + l2 norm": "linear + l2 norm", "cosine + l2 norm": "linear, cosine + l2 norm"}
RECALL = [("recall 8", "8 in 128"), ("recall 16", "16 in 128"), ("recall 8 long", "8 in 256"), ("recall 16 long", "16 in 256")]
LOW, HIGH = -1.0, 1.2


def interval(entry, y, place):
    """One variant's difference and interval; arrows where it leaves the axis."""
    difference = entry["difference"]
    if not difference:
        return [f'<circle class="mark baseline" cx="{number(place(0))}" cy="{number(y)}" r="5"/>']
    style = difference["verdict"]
    low, high = max(difference["low"], LOW), min(difference["high"], HIGH)
    parts = [f'<path class="interval {style}" d="M{number(place(low))} {number(y)}H{number(place(high))}"/>']
    for end, cut, way in ((low, difference["low"] < LOW, -1), (high, difference["high"] > HIGH, 1)):
        if cut:
            x = place(end)
            parts.append(f'<path class="{style}" style="fill:none" stroke-width="2" d="M{number(x - 6 * way)} {number(y - 4)}'
                         f'L{number(x)} {number(y)}L{number(x - 6 * way)} {number(y + 4)}"/>')
    parts.append(f'<circle class="mark {style}" cx="{number(place(difference["mean"]))}" cy="{number(y)}" r="5"/>')
    return parts


def cell(values, x, y):
    """The accuracy of a task, shaded; both seeds where they end apart."""
    mean = sum(values) / len(values)
    apart = max(values) - min(values) > 0.05
    words = " / ".join(f"{value:.2f}" for value in values) if apart else f"{mean:.2f}"
    return [f'<rect class="cell" x="{number(x)}" y="{number(y - 11)}" width="78" height="22" rx="4" '
            f'fill-opacity="{0.06 + 0.4 * mean:.2f}"/>', text(x + 39, y + 4.5, words, "small middle")]


def verdict():
    summary = json.loads(SUMMARY.read_text(encoding="utf-8"))
    cells = {cell["task"]: {entry["variant"]: entry for entry in cell["variants"]} for cell in summary["cells"]}
    means = {name: entry["loss"]["mean"] for name, entry in cells["text"].items()}
    names = sorted(means, key=means.get)
    left, right, top, row = 190, 520, 62, 27
    bottom = top + row * len(names)

    def place(value):
        return left + (right - left) * (value - LOW) / (HIGH - LOW)

    parts = [text((left + right) / 2, 26, "Text: validation loss minus softmax's, nats", "strong middle"),
             text((left + right) / 2, 46, "less is better; bars are 95 % intervals over two seeds", "small soft middle"),
             text(540 + 164, 26, "Recall: accuracy", "strong middle"),
             text(540 + 164, bottom + 22, "pairs to recall, in rows of 128 or 256 tokens", "small soft middle")]
    for tick in (-1, -0.5, 0, 0.5, 1):
        x = place(tick)
        parts += [f'<path class="{"zero" if tick == 0 else "grid"}" d="M{number(x)} {top - 6}V{bottom - 6}"/>',
                  text(x, bottom + 14, f"{tick:g}".replace("-", "−") if tick <= 0 else f"+{tick:g}", "small soft middle")]
    parts += [text(540 + 82 * i + 39, 46, label, "small soft middle") for i, (_, label) in enumerate(RECALL)]
    for i, name in enumerate(names):
        y = top + row * i + 8
        parts.append(text(left - 14, y + 5, NAMES.get(name, name), "end strong" if name == "softmax" else "end"))
        parts += interval(cells["text"][name], y, place)
        for column, (task, _) in enumerate(RECALL):
            parts += cell(cells[task][name]["accuracy"]["values"], 540 + 82 * column, y)
    parts.append(text((left + right) / 2, bottom + 36, "filled: the interval excludes zero", "small soft middle"))
    return drawing(880, bottom + 50, "Fifteen variants of attention: validation loss on text minus softmax's, and accuracy of "
                   "four recall tasks. The table in docs/RESULTS.md holds the numbers.", parts)


def main():
    wrong = 0
    for name, draw in (("idea.svg", idea), ("verdict.svg", verdict)):
        path, drawn = HERE / name, draw()
        if "--check" not in sys.argv:
            path.write_text(drawn, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != drawn:
            print(f"docs/figures/{name} is not what docs/figures/draw.py draws: run docs/figures/draw.py")
            wrong = 1
    return wrong


sys.exit(main())
