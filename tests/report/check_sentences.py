#!/usr/bin/env python3
"""Every sentence of a study's report against its numbers, for studies of awkward shapes.

Makes records of studies that are partial, unbalanced, of one seed, with failed runs, without their baseline, of two
sizes or learning rates, and so on; reports each; and compares the page with numbers computed here from
summary.json and from the given endings of the runs. Usage: check_sentences.py SOFTRNN MAKE_RECORDS"""
import csv
import json
import math
import random
import re
import resource
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

ANY = 10  # studies of any shape in each draw
MARGIN = 0.02  # relative to the baseline's result: the margin for keeping up
PAPER = {"norm": "normed", "norm clamp": "normed", "bare": "unbounded", "bare clamp": "unbounded",
         "elu": "linear", "relu": "linear",
         "order 1": "truncated", "order 2": "truncated", "order 4": "truncated"}
ORDERS = {"elu": 1, "relu": 1, "order 1": 1, "order 2": 2, "order 4": 4}
ATTENTION = {"softmax": "softmax", "norm": "norm", "norm clamp": "norm,clamp=5", "bare clamp": "softmax,normaliser=none,clamp=5",
             "bare": "softmax,normaliser=none", "elu": "linear_elu",
             "relu": "linear_relu", "order 1": "order:1", "order 2": "order:2", "order 4": "order:4", "gate": "gate",
             "both gates": "gated_softmax", "value gate": "gated_softmax_no_out_gate", "rms": "softmax,norm=rms",
             "hybrid": "1*gla,1*softmax", "mamba2": "mamba2", "changed mamba2": "mamba2,norm=l2", "gla": "gla", "forget": "forget", "delta": "delta_net", "wide": "gate"}
SYSTEMS = ["mamba2", "changed mamba2", "gla", "forget", "delta"]


TUNED = [0.001, 0.002, 0.004]


def plain_name(name):
    """A variant's name without its optimizer."""
    return re.sub(" (adamw|muon)$", "", name)


# ---- studies

class Study:
    """A study's file and the endings of its runs."""

    def __init__(self, variants, tasks=("text",), seeds=3, sizes=(), rates=(), title="A made study", optimizers=(), tuned=False,
                 tests=()):
        self.given, self.optimizers = list(variants), list(optimizers)
        self.variants = self.given + [f"{name} {other}" for other in self.optimizers[1:] for name in self.given]
        self.tasks, self.sizes, self.rates, self.tests = list(tasks), list(sizes), list(rates), list(tests)
        self.seeds, self.title, self.tuned = list(range(1, seeds + 1)), title, tuned
        self.endings = {}

    def settings(self, name):
        """What the runs of a variant have of their own."""
        plain = plain_name(name)
        found = {"mlp-hidden": "80"} if plain == "wide" else {}
        if self.optimizers:
            found["optimizer"] = name[len(plain) + 1:] or self.optimizers[0]
        return found

    def alike(self, name):
        """Whether a variant differs from the baseline in its attention alone."""
        return self.settings(name) == self.settings("softmax")

    def text(self):
        lines = [f"title: {json.dumps(self.title)}", "baseline: softmax", f"seeds: {self.seeds}", "variants:"]
        for name in self.given:
            own = ", settings: {mlp-hidden: 80}" if name == "wide" else ""
            lines.append(f'  "{name}": {{attention: "{ATTENTION[name]}"{own}}}')
        lines += ["settings: {layers: 2, heads: 2, hidden: 16, steps: 8, batch: 2, mlp-hidden: 32}", "tasks:"]
        for task in self.tasks:
            measure = "accuracy" if task.startswith("recall") else "loss"
            lines += [f"  {task}:", f'    title: "Task {task}"', f"    measure: {measure}",
                      '    settings: {data: "recall:pairs=2,vocab=8,length=12"}']
        if self.sizes:
            lines += ["sizes:"] + [f"  {size}: {{hidden: {16 * (i + 1)}}}" for i, size in enumerate(self.sizes)]
        if self.rates:
            lines.append(f"learning-rates: {self.rates}")
        if self.optimizers:
            lines.append(f"optimizers: {self.optimizers}")
        if self.tuned:
            lines.append(f"tune: {{learning-rate: {TUNED}, per: variant}}")
        return "\n".join(lines) + "\n"

    def runs(self):
        for task in self.tasks:
            for size in self.sizes or [""]:
                for rate in self.rates or [None]:
                    for variant in self.variants:
                        for seed in self.seeds:
                            yield task, size, rate, variant, seed

    @staticmethod
    def run_id(task, size, rate, variant, seed):
        parts = [task, re.sub(r"[^A-Za-z0-9_+=-]", "_", variant)] + [size] * bool(size)
        return ".".join(parts) + (f".lr{rate:g}" if rate else "") + f".{seed}"

    def end(self, effects, noise=0.01, status=lambda *run: "finished", dice=random):
        """Losses around 2 plus the variant's effect; the accuracy follows the loss."""
        for run in self.runs():
            task, _, rate, variant, seed = run
            word = status(*run)
            if word == "waiting":
                continue
            undertrained = 0.7 * self.rates.index(rate) if rate else 0
            loss = 2 + 0.05 * seed + effects.get(variant, 0) - undertrained + noise * dice.gauss(0, 1)
            if callable(effects.get((variant, rate))):
                loss = effects[variant, rate](seed)
            accuracy = min(1, max(0, 0.9 - 0.3 * (loss - 2)))
            if word == "nan":
                word, loss, accuracy = "finished", math.nan, math.nan
            if word in ("diverged", "failed"):
                loss, accuracy = math.nan, math.nan
            self.endings[run] = word, loss, accuracy, 3 if word == "diverged" else 0
        return self

    def write(self, folder, make_records):
        folder.mkdir()
        (folder / "made.yaml").write_text(self.text())
        (folder / "endings").write_text("".join(
            f"{self.run_id(*run)} {e[0]} {e[1]} {e[2]} {e[3]}\n" for run, e in self.endings.items()))
        subprocess.run([make_records, folder / "made.yaml", folder / "endings", folder], check=True)
        self.write_tests(folder)
        if self.tuned:
            self.write_tuning(folder)

    def accuracy_in(self, data, variant, seed):
        """Of a run in a test."""
        return random.Random(f"{data} {variant} {seed}").random()

    def write_tests(self, folder):
        for run, ending in self.endings.items():
            if self.tests and ending[0] == "finished":
                found = [{"data": data, "chance": 0.1, "loss": 1.0, "accuracy": self.accuracy_in(data, run[3], run[4])}
                         for data in self.tests]
                (folder / "runs" / self.run_id(*run) / "tests.json").write_text(json.dumps({"tests": found}))

    def write_tuning(self, folder):
        """Every other variant's rate is the smallest of the list; the last variant has none."""
        rates = [{"task": task, "size": size, "variant": variant, "learning_rate": TUNED[i % 2], "edge": i % 2 == 0,
                  "trials": [{"learning_rate": rate, "round": 1, "losses": [2.5]} for rate in TUNED]}
                 for task in self.tasks for size in self.sizes or [""] for i, variant in enumerate(self.variants[:-1])]
        flops = sum(run["flops"] for run in json.loads((folder / "study.json").read_text())["runs"])
        made = {"format": "softrnn-tuning", "version": 1, "runs": 42, "tokens": 1, "flops": 0.37 * flops, "seconds": 1, "rates": rates}
        (folder / "tuning.json").write_text(json.dumps(made))


def shapes(dice):
    paper = ["softmax", "norm", "bare", "order 1", "order 2", "order 4", "elu", "relu"]
    gates = ["softmax", "gate", "both gates", "value gate", "norm", "rms"]
    systems = ["softmax", "mamba2", "gla", "forget", "delta", "gate", "rms", "changed mamba2"]

    def effects(names, scale=0.3):
        return {name: dice.choice([-1, 1, 0.02]) * scale * dice.random() for name in names if name != "softmax"}

    def made(name, study, **how):
        how.setdefault("noise", dice.choice([0.002, 0.02, 0.1]))
        return name, study.end(how.pop("effects", effects(study.variants)), dice=dice, **how)

    both = ["recall", "text"]
    yield made("full", Study(paper, both))
    yield made("kinds of several forms", Study([*paper, "norm clamp", "bare clamp"], both))
    yield made("two ahead of the others", Study(gates), effects={"gate": -0.5, "rms": -0.5, "norm": 0.5}, noise=0.1)
    yield made("one ahead of the others", Study(gates), effects={"gate": -0.5, "rms": -0.2, "norm": 0.5}, noise=0.002)
    yield made("gates", Study(gates, title="Do gates help?"))
    yield made("few", Study(["softmax", "gate", "rms"], both))
    yield made("systems", Study(systems, both))
    yield made("one pair of runs", Study(paper, both),
               status=lambda t, s, r, v, seed: "finished" if seed == 1 else "waiting")
    yield made("systems, one pair", Study(systems),
               status=lambda t, s, r, v, seed: "finished" if seed == 1 else "running")
    yield made("stopped in the second seed", Study(paper, both),
               status=lambda t, s, r, v, seed: "finished" if seed == 1 or (seed == 2 and v in paper[:4]) else "waiting")
    yield made("stopped in the first seed", Study(paper),
               status=lambda t, s, r, v, seed: "finished" if seed == 1 and v in paper[2:5] else "waiting")
    yield made("unbalanced", Study(paper, both),
               status=lambda t, s, r, v, seed: "finished" if seed <= 1 + paper.index(v) % 3 else "unrequested")
    yield made("one seed", Study(paper, both, seeds=1))
    yield made("failed runs", Study(paper, both),
               status=lambda t, s, r, v, seed: dice.choice(["finished", "finished", "failed"]))
    yield made("unstable runs", Study(paper, both),
               status=lambda t, s, r, v, seed: dice.choice(["finished", "finished", "diverged", "nan"]))
    yield made("two sizes", Study(gates, both, sizes=["small", "wide"]))
    yield made("no baseline", Study(paper, both),
               status=lambda t, s, r, v, seed: "waiting" if v == "softmax" else "finished")
    yield made("the baseline was not requested", Study(gates),
               status=lambda t, s, r, v, seed: "unrequested" if v == "softmax" else "finished")
    yield made("unstable without a baseline", Study(paper[:4]),
               status=lambda t, s, r, v, seed: "unrequested" if v == "softmax" else "diverged" if v == "norm" else "finished")
    yield made("the baseline failed", Study(paper, both),
               status=lambda t, s, r, v, seed: "failed" if v == "softmax" else "finished")
    yield made("the baseline diverged once", Study(gates),
               status=lambda t, s, r, v, seed: "diverged" if v == "softmax" and seed == 2 else "finished")
    yield made("two rates", Study(paper, both, rates=[0.0003, 0.003]))
    yield made("two rates, a best one for each", Study(["softmax", "gate", "rms"], rates=[0.001, 0.01]), effects={
        ("gate", 0.001): lambda seed: 0.4 + 0.01 * seed, ("gate", 0.01): lambda seed: 3.0 + 0.01 * seed})
    yield made("two rates, two sizes, stopped", Study(gates, sizes=["small", "wide"], rates=[0.001, 0.01]),
               status=lambda t, s, r, v, seed: dice.choice(["finished", "waiting", "finished"]))
    yield made("a part", Study(paper, both),
               status=lambda t, s, r, v, seed: "finished" if t == "text" and v in paper[:3] else "unrequested")
    yield made("a norm is worse by less than the margin", Study(paper), effects={"norm": 0.02}, noise=0.002)
    yield made("one order", Study(["softmax", "order 2", "gate", "rms"]))
    yield made("one order twice", Study(["softmax", "order 1", "elu", "relu"]))
    yield made("more parameters", Study(["softmax", "wide", "gate"]), effects={"wide": -0.5}, noise=0.002)
    yield made("own settings in one axis", Study(["softmax", "wide", "rms", "bare"]), noise=0.002)
    yield made("two optimizers", Study(paper[:6], both, optimizers=["adamw", "muon"]))
    yield made("two optimizers of one variant", Study(["softmax"], optimizers=["muon", "adamw"]), effects={"softmax adamw": -0.5})
    yield made("hybrids", Study(["softmax", "gla", "hybrid", "wide"], both, seeds=2))
    yield made("tuned", Study(paper, both, tuned=True))
    yield made("tuned in part, with optimizers", Study(gates, tuned=True, optimizers=["adamw", "muon"]),
               status=lambda *run: dice.choice(["finished", "finished", "unrequested", "diverged"]))
    yield made("tests", Study(gates, both, tests=["mqar:length=64,pairs=4", "mqar:length=128,pairs=4", "mqar:length=128,pairs=8"]),
               status=lambda *run: dice.choice(["finished", "finished", "finished", "failed", "diverged"]))
    yield made("one test", Study(gates[:3], tests=["parity:length=256,shortest=256"]))
    yield made("the baseline alone", Study(["softmax"]))
    yield made("nothing ended", Study(gates), status=lambda *run: "waiting")
    for n in range(ANY):
        names = ["softmax"] + dice.sample([x for x in ATTENTION if x != "softmax"], dice.randint(0, 8))
        study = Study(names, dice.choice([["text"], both]), dice.randint(1, 4), dice.choice([(), ["small", "wide"]]),
                      dice.choice([(), [0.0003, 0.001, 0.01]]), optimizers=dice.choice([(), (), ["adamw", "muon"]]))
        names = study.variants
        words = dice.choices(["waiting", "unrequested", "running", "failed", "diverged", "nan"], k=3)
        share, of_variants = dice.choice([0, 0.1, 0.5]), dice.random() < 0.5
        own = {name: dice.random() for name in names}

        def status(task, size, rate, variant, seed, words=words, share=share, own=own if of_variants else {}):
            return dice.choice(words) if own.get(variant, dice.random()) < share else "finished"

        yield made(f"any {n}", study, status=status, effects=effects(names, dice.choice([0.01, 0.5])),
                   noise=dice.choice([0, 0.0005, 0.02, 0.1]))


# ---- what the numbers say

def finite(x):
    return isinstance(x, (int, float)) and math.isfinite(x)


class Entry:
    """A variant in a cell, judged by its numbers."""

    def __init__(self, data, cell, baseline):
        self.data, self.name, self.accuracy = data, data["variant"], cell["measure"] == "accuracy"
        self.mean = data[cell["measure"]]["mean"]
        d = data["difference"] or {}
        self.difference, self.low, self.high = d.get("mean"), d.get("low"), d.get("high")
        self.of_accuracy = d.get("of") == "accuracy"
        self.is_baseline = self.name == baseline
        sign = -1 if self.of_accuracy else 1
        self.cost = sign * self.difference if finite(self.difference) else None
        bounds = [sign * self.low, sign * self.high] if finite(self.low) and finite(self.high) else None
        self.most = max(bounds) if bounds else None
        self.least = min(bounds) if bounds else None
        self.kind = self.judge()

    def judge(self):
        if self.is_baseline:
            return "baseline"
        if self.data["diverged"] or self.data["not_finite"]:
            return "unstable"
        if self.cost is None:
            return "unknown"
        if self.most is None:
            return "too few"
        return "worse" if self.least > 0 else "better" if self.most < 0 else "unclear"


class Cell:
    def __init__(self, data, summary, at_best):
        self.data, self.at_best = data, at_best
        self.task, self.size, self.rate = data["task"], data["size"], data["learning_rate"]
        self.entries = [Entry(v, data, summary["baseline"]) for v in data["variants"]]
        self.by_name = {e.name: e for e in self.entries}
        self.baseline = self.by_name.get(summary["baseline"])
        rates = {c["learning_rate"] for c in summary["cells"] if (c["task"], c["size"]) == (self.task, self.size)}
        self.leads = at_best or len(rates) == 1
        self.title = f"Task {self.task}" + (f", {self.size}" if self.size else "")
        if at_best:
            self.title += ", each variant at its best learning rate"
        elif summary["tuned"]:
            self.title += ", learning rates tuned"
        elif len(rates) > 1:
            self.title += f", learning rate {self.rate:g}"

    def of(self, *kinds):
        return [e for e in self.entries if e.kind in kinds]

    @property
    def judged(self):
        return self.of("better", "worse", "unstable", "unclear")

    @property
    def compared(self):
        return self.judged + self.of("too few")

    def margin(self, entry):
        return MARGIN * abs(self.baseline.mean if entry.of_accuracy else self.baseline.data["loss"]["mean"])

    def keeps_up(self, entry):
        return entry.kind in ("better", "worse", "unclear") and entry.most <= self.margin(entry)

    def more_parameters(self, entry):
        return entry.data["parameters"] / self.baseline.data["parameters"] - 1


def cells_of(summary):
    cells, groups = [], set()
    for data in summary["cells"]:
        group = data["task"], data["size"]
        cells += [Cell(b, summary, True) for b in summary["best"]
                  if (b["task"], b["size"]) == group and group not in groups]
        groups.add(group)
        cells.append(Cell(data, summary, False))
    return cells


# ---- what the page says

class Page(HTMLParser):
    """The texts of the elements that hold sentences."""

    def __init__(self, html):
        super().__init__()
        self.stack, self.headlines, self.warnings, self.findings, self.paragraphs = [], [], [], [], []
        self.captions = []
        self.feed(html)
        self.text = re.sub(r"<[^>]+>", "", html)

    def handle_starttag(self, tag, attributes):
        if tag in ("br", "meta", "link", "input", "img", "hr", "path", "line", "rect", "circle", "use", "polyline"):
            return
        names = dict(attributes).get("class") or ""
        self.stack.append([tag, names, ""])
        if tag == "div" and names == "finding":
            self.findings.append({"items": {}})

    def handle_data(self, data):
        for element in self.stack:
            element[2] += data

    def handle_endtag(self, tag):
        while self.stack:
            name, names, text = self.stack.pop()
            self.take(name, names, " ".join(text.replace("\u202f", " ").split()))
            if name == tag:
                return

    def take(self, tag, names, text):
        inside = any(e[1] == "finding" for e in self.stack)
        if names == "headline":
            self.headlines.append(text)
        elif names == "warning":
            self.warnings.append(text)
        elif tag == "h3" and inside:
            self.findings[-1]["title"] = text
        elif names == "lead":
            self.findings[-1]["lead"] = text
        elif tag == "p" and inside:
            self.findings[-1].setdefault("paragraphs", []).append(text)
        elif tag == "li" and inside:
            self.findings[-1]["items"].setdefault(text.split(":")[0], []).append(text)
        elif tag == "p":
            self.paragraphs.append(text)
        elif tag == "figcaption":
            self.captions.append(text)


NUMBER = r"[+\u2212-]?[0-9.]+(?:e-?[0-9]+)?"


def number(text):
    return float(text.replace("\u2212", "-"))


class Check:
    def __init__(self, name, study, folder):
        self.name, self.study, self.failures = name, study, []
        self.summary = json.loads((folder / "summary.json").read_text())
        self.plan = json.loads((folder / "study.json").read_text())
        html = (folder / "report.html").read_text()
        self.html = html[html.index("<main"):html.index("</main>")]
        self.page, self.folder, self.cells = Page(self.html), folder, cells_of(self.summary)

    def expect(self, truth, *words):
        if not truth:
            self.failures.append(f"{self.name}: " + " ".join(str(w) for w in words))

    def all(self):
        self.statistics()
        self.expect(len(self.page.findings) == len(self.cells), "findings", len(self.page.findings))
        for finding, cell in zip(self.page.findings, self.cells):
            self.expect(finding["title"] == cell.title, "title", finding["title"], "of", cell.title)
            self.lead(finding["lead"], cell)
            self.lists(finding["items"], cell)
            self.baseline(finding.get("paragraphs", []), cell)
        for index, cell in enumerate(self.cells):
            self.table(index, cell)
            self.orders(index, cell)
            self.axes(index, cell)
            self.marks(index, cell)
            self.tests(index, cell)
            self.tuning(index, cell)
        self.headline()
        self.warnings()
        self.question()
        self.reading()
        self.claims()
        self.pages()
        return self.failures

    # -- the summary itself, from the endings the runs were given

    def statistics(self):
        for cell in self.cells:
            for e in cell.entries:
                runs = [x for r, x in self.study.endings.items() if (r[0], r[1], r[3]) == (cell.task, cell.size, e.name)
                        and (r[2] is None or abs(r[2] - e.data["learning_rate"]) < 1e-12)]
                losses = [x[1] for x in runs if x[0] == "finished" and finite(x[1])]
                mean = e.data["loss"]["mean"]
                self.expect((mean is None) == (not losses), e.name, "has a mean of", len(losses), "losses:", mean)
                if losses and mean is not None:
                    self.expect(abs(mean - sum(losses) / len(losses)) < 1e-6, e.name, "mean", mean, losses)
                if cell.at_best and losses and not e.data["diverged"] and not e.data["not_finite"]:
                    means = [x for c in self.cells if not c.at_best and (c.task, c.size) == (cell.task, cell.size)
                             for x in c.entries if x.name == e.name and finite(x.mean) and
                             not x.data["diverged"] and not x.data["not_finite"]]
                    kind = "accuracy" if e.accuracy else "loss"
                    most = max(x.data[kind]["count"] for x in means)
                    best = (max if e.accuracy else min)(x.mean for x in means if x.data[kind]["count"] == most)
                    self.expect(abs(e.mean - best) < 1e-12, e.name, "is not at its best rate", e.mean, best)

    # -- the verdict of a cell

    def lead(self, text, cell):
        found = re.fullmatch(
            r"Of (\d+) variants?, (none|\d+) (?:is|are) worse than .+?, (none|\d+) (?:is|are) better"
            r"(?:, (\d+) (?:is|are) unstable)?(?:, (\d+) ha(?:s|ve) too few runs to judge)?"
            r"(?:, (\d+) cannot be compared yet)?, and (\d+) cannot be told apart from it here\.", text)
        others = [e for e in cell.entries if not e.is_baseline]
        if not found:
            self.expect("othing" in text and not (cell.compared and cell.baseline), "lead:", text)
            self.expect(("baseline has no run" in text) ==
                        (bool(others) and (not cell.baseline or not finite(cell.baseline.mean))), "lead:", text)
            return
        said = [0 if x in (None, "none") else int(x) for x in found.groups()]
        want = [len(others)] + [len(cell.of(kind)) for kind in
                                ("worse", "better", "unstable", "too few", "unknown", "unclear")]
        self.expect(said == want, "lead:", text, "but", want)

    HEADINGS = {"Better": "better", "Worse": "worse", "Unstable": "unstable",
                "No difference shown (the interval includes zero)": "unclear", "Too few runs to judge": "too few"}

    def lists(self, items, cell):
        for heading, kind in self.HEADINGS.items():
            names = [e.name for e in cell.of(kind)]
            text = items.get(heading, [""])[0][len(heading) + 2:]
            if not cell.baseline and kind != "unstable":
                self.expect(not text, heading, "without a baseline:", text)
                continue
            self.expect(bool(text) == bool(names), heading, "has", repr(text), "for", names)
            for name in names:
                self.item(text, heading, cell, cell.by_name[name])

    def item(self, text, heading, cell, entry):
        if entry.kind == "unstable":
            self.expect(entry.name in text, heading, entry.name, "is not in", text)
            return
        found = re.search(rf"(?:^|, ){re.escape(entry.name)} ({NUMBER})(?: \[({NUMBER}), ({NUMBER})\]| \(no interval\))"
                          r"(?: \(with ([0-9.]+) % (more|fewer) parameters\))?", text)
        self.expect(found, heading, entry.name, "has no number in", text)
        if not found:
            return
        self.expect(abs(number(found[1]) - entry.difference) < 6e-4, heading, found[0], "but", entry.difference)
        self.expect(bool(found[2]) == (entry.kind != "too few"), heading, found[0])
        if found[2]:
            low, high = number(found[2]), number(found[3])
            self.expect((low > 0 or high < 0) == (entry.kind != "unclear"), heading, found[0])
        share = cell.more_parameters(entry)
        self.expect(bool(found[4]) == (entry.kind == "better" and abs(share) > 0.02), heading, found[0], share)
        if found[4]:
            self.expect(abs(number(found[4]) - 100 * abs(share)) < 0.6 and (found[5] == "more") == (share > 0), found[0])

    def baseline(self, paragraphs, cell):
        text = next((p for p in paragraphs if p.startswith("The baseline")), "")
        self.expect(bool(text) == bool(cell.baseline), "baseline:", text)
        if not text:
            return
        count = cell.baseline.data[cell.data["measure"]]["count"]
        found = re.search(r"ends at a validation (?:loss|accuracy) of ([0-9.]+) \((\d+ seeds|one seed( so far)?)", text)
        self.expect(bool(found) == (count > 0), "baseline:", text)
        if found:
            self.expect(abs(number(found[1]) - cell.baseline.mean) < 6e-5, "baseline:", text)
            self.expect(found[2].split()[0] == ("one" if count == 1 else str(count)), "baseline:", text)
            self.expect(bool(found[3]) == (count == 1 and cell.baseline.data["runs"] > 1), "baseline:", text)

    # -- tables and figures of a cell

    def table(self, index, cell):
        path = self.folder / "tables" / f"{index + 1}-{cell.task}-differences.csv"
        self.expect(path.exists(), path.name, "is missing")
        rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
        self.expect({r["variant"] for r in rows} == set(cell.by_name), path.name)
        ranks = []
        for row in rows:
            entry = cell.by_name[row["variant"]]
            word = {"unknown": "not known"}.get(entry.kind, entry.kind)
            self.expect(row["verdict"].split(",")[0] == word, path.name, row["verdict"], "but", entry.kind)
            self.expect((row["difference"] == "") == (entry.difference is None), path.name, row)
            if row["difference"]:
                self.expect(abs(float(row["difference"]) - entry.difference) < 1e-6, path.name, row)
            pairs = len((entry.data["difference"] or {"pairs": []})["pairs"])
            self.expect(row["pairs"] == ("" if entry.is_baseline else str(pairs)), path.name, "pairs", row["pairs"])
            self.expect("parameters" not in row["verdict"] or abs(cell.more_parameters(entry)) > 0.02, row["verdict"])
            if entry.kind in ("better", "worse", "unclear", "too few"):
                ranks.append(entry.cost)
            elif entry.is_baseline and finite(entry.mean):
                ranks.append(0)
        self.expect(ranks == sorted(ranks), path.name, "is not best first:", ranks)

    def orders(self, index, cell):
        drawn = (self.folder / "figures" / f"{index + 1}-{cell.task}-orders.svg").exists()
        orders = {ORDERS[plain_name(e.name)] for e in cell.entries if plain_name(e.name) in ORDERS and finite(e.mean)}
        self.expect(drawn == (len(orders) > 1), cell.title, "orders", orders, "drawn:", drawn)

    def axes(self, index, cell):
        """The table of variants that differ from the baseline in one axis."""
        path = self.folder / "tables" / f"{index + 1}-{cell.task}-axes.csv"
        rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
        known = [e for e in cell.compared if e.name in ("bare", "rms")]
        self.expect(len(known) < 2 or {e.name for e in known} <= {row["variant"] for row in rows}, path.name, rows)
        costs = {}
        for row in rows:
            entry = cell.by_name[row["variant"]]
            self.expect(not entry.is_baseline and row["baseline"] != row["here"], path.name, row)
            self.expect(self.study.alike(entry.name), path.name, entry.name, "has settings of its own")
            self.expect(row["verdict"] == entry.kind, path.name, row, "but", entry.kind)
            for column, value in (("difference", entry.difference), ("from", entry.low), ("to", entry.high)):
                self.expect((row[column] == "") == (value is None) and
                            (value is None or abs(float(row[column]) - value) < 1e-6), path.name, row, value)
            if entry.cost is not None and entry.kind != "unstable":
                costs.setdefault(row["axis"], []).append(entry.cost)
        for axis, found in costs.items():
            self.expect(found == sorted(found), path.name, axis, "is not best first:", found)

    def marks(self, index, cell):
        for quantity in ("accuracy", "loss"):
            path = self.folder / "figures" / f"{index + 1}-{cell.task}-differences-in-{quantity}.svg"
            of = [e for e in cell.compared if e.of_accuracy == (quantity == "accuracy")]
            self.expect(path.exists() == bool(of), path.name, "exists:", path.exists())
            if not path.exists():
                continue
            text = path.read_text()
            for words, kinds in (("Bars are", ("better", "worse", "unclear")), ("Filled:", ("better", "worse")),
                                 ("it includes zero", ("unclear",)), ("too few runs to judge", ("too few",)),
                                 ("Squares", ("unstable",))):
                self.expect((words in text) == bool(cell.of(*kinds)), path.name, words)

    def tests(self, index, cell):
        """Means of the finished runs in each test, and a figure for each setting in which the tests differ."""
        path = self.folder / "tables" / f"{index + 1}-{cell.task}-tests.csv"
        runs = [r for r, e in self.study.endings.items() if e[0] == "finished" and (r[0], r[1]) == (cell.task, cell.size) and
                r[3] in cell.by_name and (r[2] is None or abs(r[2] - cell.by_name[r[3]].data["learning_rate"]) < 1e-12)]
        self.expect(path.exists() == bool(self.study.tests and runs), path.name, "exists:", path.exists())
        if not path.exists():
            return
        rows = list(csv.DictReader(path.open(newline="")))
        self.expect([row["test"] for row in rows] == self.study.tests, path.name, rows)
        for row in rows:
            for name in cell.by_name:
                found = [self.study.accuracy_in(row["test"], name, r[4]) for r in runs if r[3] == name]
                want = sum(found) / len(found) if found else None
                self.expect((row[name] == "") == (want is None) and (want is None or abs(float(row[name]) - want) < 1e-6),
                            path.name, name, row[name], "but", want)
        for setting in {x.split("=")[0] for data in self.study.tests for x in data.split(":")[1].split(",")}:
            values = {re.search(rf"{setting}=(\d+)", data)[1] for data in self.study.tests}
            drawn = list((self.folder / "figures").glob(f"{index + 1}-{cell.task}-tests-*-{setting}.svg"))
            self.expect(bool(drawn) == (len(values) > 1), "tests against", setting, "drawn:", drawn, values)

    def tuning(self, index, cell):
        path = self.folder / "tables" / f"{index + 1}-{cell.task}-tuning.csv"
        self.expect(path.exists() == self.study.tuned, path.name, "exists:", path.exists())
        rows = list(csv.DictReader(path.open(newline=""))) if path.exists() else []
        self.expect(not rows or {row["variant"] for row in rows} == set(cell.by_name), path.name, rows)
        for row in rows:
            place = self.study.variants.index(row["variant"])
            known = place < len(self.study.variants) - 1
            self.expect(row["learning rate"] == (f"{TUNED[place % 2]:g}" if known else ""), path.name, row)
            self.expect(row["at the end of the list"] == (["yes", "no"][place % 2] if known else ""), path.name, row)

    # -- the headline

    def headline(self):
        leading = [c for c in self.cells if c.leads]
        first = {}
        for cell in leading:
            first.setdefault(cell.data["measure"], cell.task)
        want = [c for c in leading if first[c.data["measure"]] == c.task][:4]
        self.expect(len(self.page.headlines) == len(want), "headlines:", self.page.headlines)
        for text, cell in zip(self.page.headlines, want):
            self.expect(text.startswith(cell.title + ": "), "headline:", text, "is not about", cell.title)
            self.sentence(text[len(cell.title) + 2:], cell)

    def sentence(self, text, cell):
        better = sorted(cell.of("better"), key=lambda e: e.cost)
        one_seed = all(e.data["runs"] == 1 for e in cell.entries)
        self.expect(("ne seed: another may say" in text) == (one_seed and bool(cell.judged)), "headline:", text)
        self.winner(text, cell, better)
        for entry in cell.compared:
            found = re.search(rf"[Tt]he variant {re.escape(entry.name)} ((?:is|has|costs|gains|cannot) .+?)(?:; |\.$| \(of one seed|$)", text)
            if found:
                self.predicate(found[1], cell, entry)
            elif cell.judged and len(cell.compared) <= 4:
                self.expect(entry.name in text, "headline does not name", entry.name, ":", text)
        self.kinds(text, cell)
        self.systems(text, cell)

    def winner(self, text, cell, better):
        if not cell.compared or not cell.baseline:
            self.expect("othing can be compared" in text or "here is nothing to compare" in text, "headline:", text)
        elif not cell.judged:
            self.expect("too few runs to judge" in text.split(";")[0], "headline:", text)
            ahead = min(cell.compared, key=lambda e: e.cost)
            found = re.search(r"so far (.+?) is ahead, by ([0-9.e-]+)", text)
            self.expect(bool(found) == (ahead.cost < 0), "headline:", text)
            self.expect(found or "so far none is ahead of the baseline softmax" in text, "headline:", text)
            if found:
                self.expect(found[1] == ahead.name, "headline:", text, "but", ahead.name)
                self.expect(abs(number(found[2]) + ahead.cost) < 0.06 * abs(ahead.cost), "headline:", text)
        elif better:
            found = re.search(r"The (?:best variant|(variant ahead)) is (.+?): it gains ([0-9.e-]+)", text)
            self.expect(found and found[2] == better[0].name, "headline:", text, "but", better[0].name)
            if found:
                self.expect(abs(number(found[3]) + better[0].cost) < 0.06 * abs(better[0].cost), "headline:", text)
                tie = (len(better) > 1 and better[0].of_accuracy == better[1].of_accuracy and
                       better[1].least <= better[0].most)
                self.expect(bool(found[1]) == tie, "headline:", text, "a tie:", tie)
                self.expect((f"not shown to be more than {better[-1 if not tie else 1].name} gains" in text) == tie, "headline:", text)
            more = re.search(r"and (\d+) more (?:is|are) better", text)
            self.expect((int(more[1]) if more else 0) == len(better) - 1, "headline:", text)
        else:
            found = re.search(r"(?:None of the (\d+) variants(?: with enough runs)?|No variant) is shown to be better", text)
            self.expect(found and int(found[1] or 1) == len(cell.judged), "headline:", text, len(cell.judged))
            more = re.search(r", and (\d+) ha(?:s|ve) too few runs to judge\.", text)
            self.expect((int(more[1]) if more else 0) == len(cell.of("too few")), "headline:", text)

    def predicate(self, words, cell, entry):
        """The headline's part on one variant."""
        said = ("unstable" if "is unstable" in words else "too few" if "too few runs" in words else
                "level" if "nothing that shows" in words else "open" if "cannot be judged" in words else
                "better" if words.startswith("gains") else "worse" if words.startswith("costs") else words)
        want = entry.kind if entry.kind != "unclear" else "level" if cell.keeps_up(entry) else "open"
        self.expect(said == want, "headline says of", entry.name, repr(words), "but it is", want)
        if said in ("better", "worse"):
            size = number(re.search(r"[0-9.e-]+[0-9]", words)[0])
            self.expect(abs(size - abs(entry.cost)) < 0.06 * abs(entry.cost), entry.name, words, entry.cost)
            share = cell.more_parameters(entry)
            self.expect(("parameters" in words) == (said == "better" and abs(share) > 0.02), entry.name, words, share)

    def kinds(self, text, cell):
        """The paper's kinds: linear attention in all its forms, orders, the denominator."""
        of_kind = {}
        for entry in cell.compared:
            of_kind.setdefault(PAPER.get(entry.name), []).append(entry)
        for subject, kind in (("ropping the denominator", "unbounded"), (" norm in its place", "normed"),
                              (" norm in place of the denominator", "normed")):
            found = re.search(rf"{subject} (.+?)(?:; |\.$| \(of one seed|$)", text)
            if found:
                self.forms(found, cell, of_kind[kind])
        found = re.search(r"inear attention (.+?)(?:; |\.$| \(of one seed|$)", text)
        if found:
            self.forms(found, cell, of_kind["linear"])
        self.order(text, cell, of_kind.get("truncated", []))

    def order(self, text, cell, truncated):
        """Where exp may be cut off: the least order from which on all that were tried keep up, or what the highest does."""
        found = re.search(r"utting exp after order (\d+)( or later costs less than 2.%)? ?(.*?)(?:; |\.$| \(of one seed|$)", text)
        if not found:
            return
        orders = sorted({ORDERS[e.name] for e in truncated})
        fails = [ORDERS[e.name] for e in truncated if not cell.keeps_up(e)]
        good = [order for order in orders if order > max(fails, default=-1)]
        self.expect(bool(found[2]) == (len(good) > 1), "headline:", found[0], "of", orders, "fail", fails)
        self.expect(int(found[1]) == (good[0] if len(good) > 1 else orders[-1]), "headline:", found[0], orders, fails)
        if not found[2]:
            self.predicate(found[3], cell, next(e for e in truncated if ORDERS[e.name] == orders[-1]))

    def forms(self, found, cell, forms):
        """What the headline says of all variants of a kind together."""
        if len(forms) == 1:
            self.predicate(found[1], cell, forms[0])
            return
        worse = sorted(e.cost for e in forms if e.kind == "worse")
        said = re.search(r"costs ([0-9.e-]+[0-9])(?: to ([0-9.e-]+[0-9]))?", found[1])
        self.expect(bool(said) == bool(worse), "headline:", found[0], "but", worse)
        if said and worse:
            for size, cost in ((said[1], worse[0]), (said[2] or said[1], worse[-1])):
                self.expect(abs(number(size) - cost) < 0.06 * cost, "headline:", found[0], "but", worse)
        for words, some in (("unstable", [e for e in forms if e.kind == "unstable"]),
                            ("nothing that shows", [e for e in forms if e.kind == "unclear" and cell.keeps_up(e)]),
                            ("cannot be judged", [e for e in forms if e.kind == "unclear" and not cell.keeps_up(e)]),
                            ("too few runs", [e for e in forms if e.kind == "too few"]),
                            ("gains", [e for e in forms if e.kind == "better"])):
            self.expect((words in found[1]) == bool(some), "headline:", found[0], "but", words, len(some))
        counts = [int(x) for x in re.findall(r" in (\d+)", found[1])]
        self.expect(not counts or sum(counts) == len(forms), "headline:", found[0], "of", len(forms))

    def systems(self, text, cell):
        found = re.search(r"[Oo]f (\d+) systems, (.+?)(?:; |\.$)", text)
        if not found:
            return
        some = [e for e in cell.compared if plain_name(e.name) in SYSTEMS]
        want = {"better": 0, "keep": 0, "worse": 0, "unstable": 0, "cannot": 0, "too few": 0}
        for entry in some:
            want[entry.kind if entry.kind != "unclear" else "keep" if cell.keeps_up(entry) else "cannot"] += 1
        self.expect(int(found[1]) == len(some), "headline:", text)
        for words, count in want.items():
            said = re.search(rf"(\d+) (?:(?:is|are|has|have) )?{words}", found[2])
            self.expect((int(said[1]) if said else 0) == count, "headline:", found[0], "but", words, count)

    # -- the rest of the page

    def warnings(self):
        text = " ".join(self.page.warnings)
        requested = sum(1 for run in self.study.runs() if self.study.endings.get(run, ("",))[0] != "unrequested")
        ended = [e for e in self.study.endings.values() if e[0] in ("finished", "diverged", "failed")]
        planned = sum(1 for _ in self.study.runs())
        for pattern, want in ((r"(\d+) of (\d+) runs have not ended", (requested - len(ended), requested)),
                              (r"(\d+) of (\d+) runs failed", (sum(e[0] == "failed" for e in ended), requested)),
                              (r"(\d+) of (\d+) runs were requested", (requested if requested < planned else 0, planned))):
            found = re.search(pattern, text)
            said = (int(found[1]), int(found[2])) if found else (0, want[1])
            self.expect(said == want, "warnings:", text, "but", want)
        self.expect("Stale" not in text, "warnings:", text)

    def question(self):
        found = re.search(r"Here (\d+) small (model is trained|models that differ in their (.+?) are trained)", self.page.text)
        used = {e.name for c in self.cells for e in c.entries}
        self.expect(found and int(found[1]) == len(used), "question:", found and found[0], "but", len(used))
        attention = len({ATTENTION[plain_name(name)] for name in used}) > 1
        settings = len({str(self.study.settings(name)) for name in used}) > 1
        layers = any(plain_name(name) in SYSTEMS for name in self.study.variants)
        words = (None if len(used) < 2 else "settings alone" if not attention else "attention and in settings of their own" if settings
                 else "attention" if layers else "attention alone")
        self.expect(found and found[3] == words, "question:", found and found[0], "but", words)
        compared = "compared with softmax, the baseline." in " ".join(self.page.text.split())
        self.expect(compared == (len(used) > 1 and "softmax" in used), "question: compared with the baseline:", compared)
        runs = {e.data["runs"] for c in self.cells for e in c.entries}
        seeds = re.search(r"(?:each )?with (?:(\d+) to )?(\d+) seeds of random", self.page.text)
        said = {int(x) for x in seeds.groups() if x} if seeds else {1} if runs == {1} else set()
        self.expect(said == ({min(runs), max(runs)} if runs else set()), "question:", seeds and seeds[0], "but", runs)
        of_paper = sum(name in PAPER for name in used)
        about = of_paper > 0 and 2 * of_paper >= len(used - {"softmax"})
        self.expect(("arxiv.org" in self.html) == about, "question: the paper", of_paper, "of", len(used))

    def reading(self):
        text = " ".join(self.page.paragraphs)
        tuned = re.search(r"(\d+) runs, ([0-9]+) % of what the comparison costs", text)
        self.expect(bool(tuned) == self.study.tuned and (not tuned or tuned.groups() == ("42", "37")), "reading:", tuned)
        best = any(c.at_best for c in self.cells)
        self.expect(("were not tuned" in text) == (len(self.study.variants) > 1 and not self.study.tuned and not best), "reading: tuned")
        intervals = any(e.most is not None for c in self.cells for e in c.entries)
        self.expect(("confidence interval1 of that" in text) == intervals, "reading:", intervals)
        self.expect(("none of them is judged" in text) == (not intervals), "reading:", intervals)

    def pages(self):
        """Pages of systems describe them as they are published: changed ones have none."""
        of = {re.sub(r"^[0-9]+-", "", path.name) for path in (self.folder / "systems").glob("*")}
        self.expect(not of & {"changed-mamba2", "rms", "bare"}, "pages of systems:", of)

    def claims(self):
        path = self.folder / "tables" / "claims.csv"
        if not path.exists():
            return
        leading = {c.title: c for c in self.cells if c.leads}
        judges = {"A norm": self.norm, "Something": self.unbounded, "Linear": self.linear, "With more": self.more_orders}
        for row in csv.DictReader(path.open(newline="")):
            words = row.pop("The paper says")
            judge = next(j for start, j in judges.items() if words.startswith(start))
            self.expect(set(row) == set(leading), "claims:", list(row))
            for title, text in row.items():
                if title not in leading:
                    continue
                self.expect(text.split(":")[0] == judge(leading[title]), "claim:", words, title, text)
                for name, word in re.findall(r"(?:^[a-z ]+: |; )([a-z0-9 ]+): ([a-z ]+),", text):
                    self.expect(word == leading[title].by_name[name].kind, "claim:", text)

    def some(self, cell, kind):
        some = [e for e in cell.compared if cell.baseline and PAPER.get(e.name) == kind]
        short = [e for e in some if e.kind in ("worse", "unstable")]
        return some, short, [e for e in some if cell.keeps_up(e)]

    def norm(self, cell):
        some, short, level = self.some(cell, "normed")
        if not some:
            return "\u2013"
        if len(level) == len(some):
            return "seen here"
        beyond = [e for e in short if e not in level]
        return "cannot tell" if not beyond else "seen in part" if level else "not seen here"

    def worse(self, cell, kind):
        some, short, level = self.some(cell, kind)
        if not some:
            return "\u2013"
        if short:
            return "seen here" if len(short) == len(some) else "seen in part"
        return "not seen here" if len(level) == len(some) else "cannot tell"

    def unbounded(self, cell):
        return self.worse(cell, "unbounded")

    def linear(self, cell):
        return self.worse(cell, "linear")

    def more_orders(self, cell):
        some, short, level = self.some(cell, "truncated")
        if len(some) < 2:
            return "\u2013"
        some.sort(key=lambda e: ORDERS[e.name])
        if some[-1] in level:
            return "seen here" if some[0] in short else "seen in part"
        return "not seen here" if some[-1] in short else "cannot tell"


def check_time(program, make_records, folder):
    """A report of 3,000 runs is linear in them: it took 39 s on one core when families of cells were searched in all
    pairs of cells, and takes less than a second now."""
    study = Study(["softmax", "norm", "gate", "rms", "order 2"], [f"recall{i}" for i in range(300)], seeds=2)
    study.end({}, dice=random.Random(0)).write(folder, make_records)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run([program, "report", folder], capture_output=True, check=True)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return [f"the report of 3,000 runs took {seconds:.1f} s of one core"] if seconds > 12 else []


def main():
    program, make_records = sys.argv[1:3]
    failures, count = [], 0
    with tempfile.TemporaryDirectory() as work:
        for draw in range(2):
            for name, study in shapes(random.Random(draw)):
                folder = Path(work) / f"{count}"
                study.write(folder, make_records)
                done = subprocess.run([program, "report", folder], capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    failures.append(f"{name}: no report: {done.stderr}")
                else:
                    failures += Check(f"{name} ({draw})", study, folder).all()
                count += 1
        failures += check_time(program, make_records, Path(work) / "large")
    print("\n".join(failures[:40]))
    print(f"{count} studies, {len(failures)} contradictions")
    return 1 if failures or count < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
