#!/usr/bin/env python3
"""A study of students from its file to its page: its numbers and its sentences, computed again.

Runs a tiny study of two students and their controls, once in one piece and once stopped and resumed; computes
summary.json's "students" again from the records of the runs; and compares every sentence of the verdict with the
numbers, also with made numbers of every sign. Usage: check_students.py SOFTRNN, or, to compute only the numbers of a
finished study of students again: check_students.py FOLDER"""
import copy
import html
import json
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDY = """
title: A made study
seeds: [1, 2, 3]
teacher: {settings: {steps: 40, learning-rate: 0.01}}
variants: {window: "softmax,window=3", linear: linear_elu}
budgets: {none: "", one: "1"}
students: {stages: "align,distil", align-steps: 6, distil-steps: 6, align-rate: 0.01, distil-rate: 0.004}
controls: {teacher: {learning-rate: 0.002}, scratch: {learning-rate: 0.01}}
settings: {layers: 2, heads: 2, hidden: 16, mlp-hidden: 32, initial-range: 0.3, batch: 8, warmup: 2, validate-every: 3,
  validate-batches: 2, save-every: 2, keep: 1}
tasks: {recall: {title: "Recall <i>of</i> pairs", measure: accuracy, settings: {data: "recall:pairs=2,vocab=8,length=12"}}}
"""
STEPS, EVERY = 12, 3
failures = []


def expect(truth, *words):
    if not truth:
        failures.append(" ".join(str(w) for w in words))


# ---- statistics, from docs/STUDY.md ("How far to trust an interval") and the papers named there

def digamma(x):
    return math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6) if x > 12 \
        else digamma(x + 1) - 1 / x


def trigamma(x):
    return 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7) if x > 12 \
        else trigamma(x + 1) + 1 / x**2


def bisect(function, low, high):
    """Where an increasing function is 0."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def incomplete_beta(a, b, x):
    """Regularised, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, 1 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    c, d, result = 1.0, 0.0, 1.0
    for i in range(3000):
        m = i // 2
        term = 1.0 if i == 0 else m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) if i % 2 == 0 else \
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / (1 + term * d)
        c = 1 + term / c
        result *= c * d
        if i > 2 and abs(c * d - 1) < 1e-15:
            break
    return front * (result - 1)


def student_t(degrees):
    return bisect(lambda t: 1 - incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) - 0.95, 0, 1e4)


def fisher_above(ratio, upper, lower):
    return incomplete_beta(lower / 2, upper / 2, lower / (lower + upper * ratio))


def mean(values):
    return sum(values) / len(values) if values else math.nan


def covariance(a, b):
    pairs = [(x, y) for x, y in zip(a, b) if math.isfinite(x) and math.isfinite(y)]
    if len(pairs) < 2:
        return len(pairs), math.nan
    ma, mb = mean([x for x, _ in pairs]), mean([y for _, y in pairs])
    return len(pairs), sum((x - ma) * (y - mb) for x, y in pairs) / (len(pairs) - 1)


def prior_of(rows):
    """Degrees and variance of the prior of the rows' variances."""
    own = [(count - 1, max(variance, 1e-8)) for count, variance in (covariance(r, r) for r in rows) if count > 1]
    if len(own) < 2:
        return 0, math.nan
    logs = [math.log(v) - digamma(d / 2) + math.log(d / 2) for d, v in own]
    degrees = sum(d for d, _ in own)
    pooled = sum(d * v for d, v in own) / degrees
    shared = [c for i, a in enumerate(rows) for b in rows[:i] for n, c in [covariance(a, b)] if n > 1]
    share = min(max(mean(shared) / pooled if shared else 0, 0.5), 1)
    worth = degrees / (1 + (len(own) - 1) * share**2) - degrees / len(own)
    spread = sum((x - mean(logs))**2 for x in logs) / (len(logs) - 1) - mean([trigamma(d / 2) for d, _ in own])
    if spread <= 0:
        return worth, pooled
    half = bisect(lambda x: spread - trigamma(x), 1e-6, 1e9)
    return min(2 * half, worth), math.exp(mean(logs) + digamma(half) - math.log(half))


def interval_of(row, prior):
    values = [v for v in row if math.isfinite(v)]
    if len(values) < 2:
        return mean(values), math.nan, math.nan
    own, variance, more = len(values) - 1, max(covariance(values, values)[1], 1e-8), 0
    if prior[0] > 0:
        more = prior[0] * fisher_above(variance / prior[1], own, 1e6)
        variance = (more * prior[1] + own * variance) / (more + own)
    half = student_t(more + own) * math.sqrt(variance / len(values))
    return mean(values), mean(values) - half, mean(values) + half


# ---- summary.json from the records

def number(value):
    return math.nan if value is None else value


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Runs:
    """The records of a task in a study's folder."""

    def __init__(self, folder, task):
        plan = json.loads((folder / "study.json").read_text())
        runs = [r for r in plan["runs"] if r["task"] == task]
        self.runs = {(r["variant"], r["seed"]): folder / r["folder"] for r in runs}
        self.seeds = sorted({r["seed"] for r in runs})
        self.students = [v for v in plan["variants"] if v["role"] == "student"]
        self.windows = {v["budget"]: v["name"] for v in reversed(self.students) if "window=" in v["text"]}
        self.tokens = runs[0]["batch"] * runs[0]["length"]

    def student(self, variant, seed):
        return json.loads((self.runs[variant, seed] / "student.json").read_text())

    def validations(self, variant, seed):
        return {line["step"]: line for line in lines_of(self.runs[variant, seed] / "metrics.jsonl")
                if "validation_loss" in line}

    def last(self, variant, seed):
        lines = self.validations(variant, seed)
        return lines[max(lines)]


def recovered(student, loss):
    lost = student["copied"]["loss"] - student["teacher"]["loss"]
    return (student["copied"]["loss"] - loss) / lost if lost >= 0.01 else math.nan


def check_numbers(folder, index=0):
    """Task `index` of summary.json's students; a study without unfinished runs."""
    summary = json.loads((folder / "summary.json").read_text())["students"][index]
    runs, students = Runs(folder, summary["task"]), summary["students"]
    names, budget = [s["variant"] for s in students], {s["variant"]: s["budget"] for s in students}
    expect(names == [v["name"] for v in runs.students], "students", names)
    losses = {n: mean([runs.student(n, s)["student"]["loss"] for s in runs.seeds]) for n in names}

    def table(function):
        return {name: [function(name, seed) for seed in runs.seeds] for name in names}

    def loss(name, seed):
        return runs.student(name, seed)["student"]["loss"]

    def window(name):
        return runs.windows[budget[name]]

    def best(name):
        return min((n for n in names if budget[n] == budget[name]), key=losses.get)

    tables = {
        "swap_loss": table(lambda n, s: runs.student(n, s)["copied"]["loss"]),
        "teacher_loss": table(lambda n, s: runs.student(n, s)["teacher"]["loss"]),
        "student_loss": table(loss),
        "kl": table(lambda n, s: runs.student(n, s)["student"]["kl"]),
        "accuracy": table(lambda n, s: runs.student(n, s)["student"]["accuracy"]),
        "recovered": table(lambda n, s: recovered(runs.student(n, s), loss(n, s))),
        "above_teacher": table(lambda n, s: loss(n, s) - runs.student(n, s)["teacher"]["loss"]),
        "zeroed": table(lambda n, s: runs.student(n, s)["zeroed"]["loss"] - loss(n, s)),
        "from_scratch": table(lambda n, s: loss(n + " from scratch", s) - loss(n, s)),
        "teacher_again": table(lambda n, s: loss(n, s) - runs.last("teacher", s)["validation_loss"]),
        "window": table(lambda n, s: math.nan if window(n) == n else loss(window(n), s) - loss(n, s)),
        "behind": table(lambda n, s: math.nan if best(n) == n else loss(n, s) - loss(best(n), s)),
    }
    compared = 0
    for quantity, rows in tables.items():
        prior = prior_of(list(rows.values()))
        for student in students:
            compared += compare(f"{student['variant']} {quantity}", student[quantity], rows[student["variant"]], prior)
    curves = {(n, s): runs.validations(n, s) for n in names for s in runs.seeds}
    for i, step in enumerate(sorted(curves[names[0], runs.seeds[0]])):
        rows = table(lambda n, s, at=step: recovered(runs.student(n, s), curves[n, s][at]["validation_loss"]))
        prior = prior_of(list(rows.values()))
        for student in students:
            point = student["curve"][i]
            expect(point["tokens"] == step * runs.tokens, "tokens at step", step, point["tokens"])
            compared += compare(f"{student['variant']} at {step}", point, rows[student["variant"]], prior)
    for i in range(len(students[0]["positions"])):
        rows = table(lambda n, s, at=i: number(runs.student(n, s)["student"]["positions"][at]["loss"]) -
                     number(runs.student(n, s)["teacher"]["positions"][at]["loss"]))
        prior = prior_of(list(rows.values()))
        for student in students:
            compared += compare(f"{student['variant']} at position {i}", student["positions"][i]["above_teacher"],
                                rows[student["variant"]], prior)
    for student in students:
        check_means(runs, student)
    return compared + check_bytes(runs, summary, loss)


def check_bytes(runs, task, loss):
    """The best student of each share of the bytes, what it gains on the one before, and the teacher trained again."""
    share, before = {s["variant"]: s["state_bytes"] / s["cache_bytes"] for s in task["students"]}, None
    means = {name: mean([loss(name, s) for s in runs.seeds]) for name in share}
    expect([part["share"] for part in task["bytes"]] == [0.1, 0.3], "shares", task["bytes"])
    for part in task["bytes"]:
        best = min((n for n in share if share[n] <= part["share"]), key=means.get, default=None)
        expect(part["variant"] == best, part["share"], part["variant"], "is not", best)
        if best is None or before is None or best == before:
            expect(part["gain"] is None, part["share"], "gains", part["gain"])
        else:
            rows = {n: [loss(before, s) - loss(n, s) for s in runs.seeds] for n in share if n != before}
            compare("gain", part["gain"], rows[best], prior_of(list(rows.values())))
        before = best
    row = [runs.last("teacher", s)["validation_loss"] - runs.student(next(iter(share)), s)["teacher"]["loss"]
           for s in runs.seeds]
    return compare("the teacher trained again", task["teacher_again"], row, prior_of([row]))


def compare(what, found, row, prior):
    for a, b in zip(found["values"], row):
        expect(a is None and math.isnan(b) or a is not None and abs(a - b) < 1e-6, what, a, "is not", b)
    for name, want in zip(("mean", "low", "high"), interval_of(row, prior)):
        have = number(found[name])
        expect(math.isnan(have) == math.isnan(want) and not abs(have - want) > 1e-4 * (1 + abs(want)),
               what, name, have, "is not", want)
    return 1


def check_means(runs, student):
    """Bytes, layers and positions, which are means over seeds."""
    name = student["variant"]
    records = [runs.student(name, s) for s in runs.seeds]
    expect(student["state_bytes"] == records[0]["state_bytes"] and student["cache_bytes"] == records[0]["cache_bytes"], name)
    for i, layer in enumerate(student["layers"]):
        expect(all(r["layers"][i]["layer"] == layer["layer"] for r in records), name, "layers")
        for stage in ("copied", "aligned"):
            want = mean([r["layers"][i][stage]["kl"] for r in records])
            expect(abs(layer[stage + "_kl"] - want) < 1e-6 * (1 + want), name, "KL of layer", layer["layer"])
    for i, p in enumerate(student["positions"]):
        values = [number(r["student"]["positions"][i]["loss"]) for r in records]
        want = mean([v for v in values if math.isfinite(v)])
        expect(math.isnan(want) and p["student"] is None or abs(p["student"] - want) < 1e-6, name, "position", i)


def check_student(runs, student):
    """That a student of the made study has the files, steps and bytes that it must have."""
    name = student["variant"]
    expect(student["cache_bytes"] == 2 * 2 * 12 * 16 * 4, name, "cache", student["cache_bytes"])
    kept = 2 * 12 * 16 * 4 if name.endswith(", one") else 0
    expect(student["state_bytes"] - kept < student["cache_bytes"] - kept, name, "state", student["state_bytes"])
    expect([layer["layer"] for layer in student["layers"]] == ([0] if kept else [0, 1]), name, "layers")
    for seed in runs.seeds:
        record, curve = runs.student(name, seed), runs.validations(name, seed)
        expect(sorted(curve) == list(range(EVERY, STEPS + 1, EVERY)), name, "validated at", sorted(curve))
        expect(abs(curve[STEPS]["validation_loss"] - record["student"]["loss"]) < 1e-5, name, "last validation")
        expect(abs(curve[STEPS]["validation_kl"] - record["student"]["kl"]) < 1e-5, name, "last KL")
        stages = [line["stage"] for line in lines_of(runs.runs[name, seed] / "metrics.jsonl")]
        expect(stages == ["align"] * 6 + ["distil"] * 6, name, "stages", stages)
        for layer in record["layers"]:
            expect(layer["copied"]["kl"] >= 0, name, "KL")


def check_made(folder):
    summary = json.loads((folder / "summary.json").read_text())["students"][0]
    names = [s["variant"] for s in summary["students"]]
    expect(names == ["window, none", "window, one", "linear, none", "linear, one"], "students", names)
    for student in summary["students"]:
        check_student(Runs(folder, summary["task"]), student)


# ---- the page

def decimals(low, high, least):
    around = low <= 0 <= high
    size = max(abs(low), abs(high)) if around else min(abs(low), abs(high))
    if not math.isfinite(size) or size == 0:
        return least
    return min(max(least, int(1 - math.floor(math.log10(size)))), 9)


def fixed(value, places):
    return f"{0 if abs(value) < 0.5 * 10**-places else value:.{places}f}"


def signed(value, places):
    text = fixed(value, places)
    return "+" + text if float(text) > 0 else text.replace("-", "\u2212")


def size(value):
    return fixed(abs(value), decimals(abs(value), abs(value), 0))


def interval(q):
    value, low, high = (number(q[k]) for k in ("mean", "low", "high"))
    places = decimals(low, high, 3)
    if math.isfinite(low):
        return f"{signed(value, places)} [{signed(low, places)}, {signed(high, places)}]"
    return f"{signed(value, places)} (no interval)"


def bounds(q):
    return interval(q)[interval(q).index("["):]


def percent(value):
    return fixed(100 * value, 1).replace("-", "\u2212") + " %"


def sign(q):
    value, low, high = (number(q[k]) for k in ("mean", "low", "high"))
    if math.isnan(value):
        return "none"
    return "few" if math.isnan(low) else "positive" if low > 0 else "negative" if high < 0 else "unclear"


def brief(q):
    return interval(q).replace(" (no interval)", "")


def listed(parts):
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def headline(group):
    best = group[0]
    kept = f"layer {best['keep']} keeps" if best["keep"] else "every layer is replaced"
    if best["keep"] == "1-/4":
        kept = "every layer whose number is 1 plus a multiple of 4 keeps"
    kept += " the teacher\u2019s attention and its cache" * bool(best["keep"])
    text = f"{best['budget']}: {kept} "
    if best["student_loss"]["mean"] is None:
        return text + "No student has a finished run."
    q = best["above_teacher"]
    text += best["variant"] + {
        "positive": lambda: f" stays {size(q['mean'])} nats above the teacher {bounds(q)}",
        "negative": lambda: f" ends {size(q['mean'])} nats below the teacher {bounds(q)}, which has not seen these "
                            "tokens again,",
        "unclear": lambda: f" cannot be told from the teacher ({interval(q)} nats)" if q["high"] - q["low"] <= 0.1 else
                           f" comes closest, and these seeds cannot say how close: {interval(q)} nats from the teacher,",
        "few": lambda: f" is {brief(q)} nats from the teacher, of too few runs to judge",
        "none": lambda: " has no finished run"}[sign(q)]()
    text += f" with {100 * best['state_bytes'] / best['cache_bytes']:.0f} % of the bytes of its cache (BYTES)"
    q = best["recovered"]
    accuracy = f". Its accuracy is {best['accuracy']['mean']:.3f}, that of the teacher " \
               f"{best['teacher_accuracy']['mean']:.3f}, and {best['swap_accuracy']['mean']:.3f} as copied."
    if q["mean"] is None and best["swap_loss"]["mean"] is None:
        return text + ". What replacing attention alone lost is not finite, so the share that is recovered is unknown" + \
            accuracy
    if q["mean"] is None:
        return text + ". Replacing attention alone lost less than 0.01 nats here, so there is nothing to recover" + accuracy
    text += f". Of the {size(best['swap_loss']['mean'] - best['teacher_loss']['mean'])} nats that replacing attention " \
            f"loses before training, {percent(q['mean'])} are recovered"
    return text + (f" [{percent(q['low'])}, {percent(q['high'])}]" if q["low"] is not None else "") + accuracy


def others(group):
    if group[0]["student_loss"]["mean"] is None:
        return None
    words = {"unclear": ("ties with it: the interval includes zero", "tie with it: the intervals include zero"),
             "wide": ("cannot be told from it with these seeds: the interval is wide",
                      "cannot be told from it with these seeds: the intervals are wide"),
             "positive": ("is worse", "are worse"),
             "negative": ("is better on the seeds that both have", "are better on the seeds that both have"),
             "few": ("has too few runs to judge", "have too few runs to judge"),
             "apart": ("has no finished run with a seed of the best student\u2019s",
                       "have no finished run with a seed of the best student\u2019s"),
             "none": ("has no finished run", "have no finished run")}

    def standing(student):
        kind = sign(student["behind"])
        if kind == "unclear" and student["behind"]["high"] - student["behind"]["low"] > 0.1:
            return "wide"
        return "apart" if kind == "none" and student["student_loss"]["mean"] is not None else kind
    text = "Next to it, in nats above it:" if len(group) > 1 else ""
    for kind, (one, many) in words.items():
        named = [s for s in group[1:] if standing(s) == kind]
        if named:
            names = listed([f"{s['variant']} ({brief(s['behind'])})" if kind not in ("apart", "none") else
                            f"{s['variant']} (\u2013)" for s in named])
            text += f" {names} {one if len(named) == 1 else many}."
    return text


CONTROLS = {
    "from_scratch": ("Is the teacher needed?",
                     "is better than the same model trained from scratch on as many tokens",
                     "are better than the same model trained from scratch on as many tokens",
                     "is worse than the same model from scratch", "are worse than the same model from scratch"),
    "teacher_again": ("Is it the tokens?", "stays above the teacher that learned from as many tokens again",
                      "stay above the teacher that learned from as many tokens again", "ends below that teacher",
                      "end below that teacher"),
    "zeroed": ("Is the state used?", "gets worse if it is zeroed before every token",
               "get worse if it is zeroed before every token", "gets better if it is zeroed",
               "get better if it is zeroed"),
    "window": ("Would a window do?", "is better than the window of the same budget",
               "are better than the window of the same budget", "is worse than that window", "are worse than that window"),
}


def control(students, key):
    title, one, many, other, many_others = CONTROLS[key]
    by = {kind: [s for s in students if sign(s[key]) == kind] for kind in ("positive", "negative", "unclear", "few")}
    count = sum(map(len, by.values()))
    if not count:
        return None

    def names(kind):
        return listed([f"{s['variant']} ({brief(s[key])})" for s in by[kind]])
    parts = []
    if by["positive"]:
        least, most = (size(f(s[key]["mean"] for s in by["positive"])) for f in (min, max))
        parts.append(f"{len(by['positive'])} of {count} student{'s' * (count != 1)} "
                     f"{one if len(by['positive']) == 1 else many}, by {least}{'' if least == most else ' to ' + most} nats")
    if by["negative"]:
        parts.append(f"{names('negative')} {other if len(by['negative']) == 1 else many_others}")
    if by["unclear"]:
        parts.append(f"no difference shows for {names('unclear')}")
    if by["few"]:
        parts.append(f"too few runs to judge {names('few')}")
    return f"{title} {'; '.join(parts)}."


BYTES = ("What the bytes of the teacher\u2019s cache buy: of the students that take at most a share of them, the one with "
         "the lowest mean loss.")


def bought(task):
    """What each share of the bytes buys."""
    students, before, lines = {s["variant"]: s for s in task["students"]}, None, []
    for part in task["bytes"]:
        line, best = f"At most {100 * part['share']:.0f} %:", students.get(part["variant"])
        if best is None:
            lines.append(line + " no student with a finished run takes so few bytes.")
            continue
        if best is before:
            lines.append(f"{line} {best['variant']} again: none that takes more bytes has a lower loss.")
            continue
        line += f" {best['variant']} takes {100 * best['state_bytes'] / best['cache_bytes']:.1f} %"
        if best["accuracy"]["mean"] is not None:
            line += f" and has an accuracy of {best['accuracy']['mean']:.3f}"
        if best["above_teacher"]["mean"] is not None:
            line += f"; its loss is {brief(best['above_teacher'])} nats from the teacher\u2019s"
        gain = part["gain"] or {"mean": None, "low": None, "high": None}
        if before is not None and gain["mean"] is not None:
            ends = (gain["high"], gain["low"])
            more = {"mean": -gain["mean"], "low": None if None in ends else -ends[0], "high": None if None in ends else -ends[1]}
            line += f", and {brief(more)} from the best with fewer bytes" + {
                "unclear": ": no difference shows", "few": ", of too few runs to judge"}.get(sign(more), "")
        lines.append(line + ".")
        before = best
    if task["teacher_again"]["mean"] is not None:
        line = "100 %: the teacher itself, trained on as many tokens again, has a loss " \
               f"{brief(task['teacher_again'])} nats from what it was"
        if before is not None and before["teacher_again"]["mean"] is not None:
            line += f"; {before['variant']} is {brief(before['teacher_again'])} from that"
        lines.append(line + ".")
    return lines


def text_of(fragment):
    text = html.unescape(re.sub(r"<[^>]*>", "", fragment)).replace("\u202f", " ")
    return re.sub(r"\(\S+ \S+ instead of \S+ \S+\)", "(BYTES)", " ".join(text.split()))


def check_page(folder, name):
    task = json.loads((folder / "summary.json").read_text())["students"][0]
    students = task["students"]
    page = (folder / "report.html").read_text()
    page = page[page.index('id="verdict"'):page.index('id="1-recall"')]
    groups = {}
    for student in students:
        groups.setdefault(student["budget"], []).append(student)
    for group in groups.values():
        group.sort(key=lambda s: math.inf if s["student_loss"]["mean"] is None else s["student_loss"]["mean"])
    headlines = [text_of(m) for m in re.findall(r'<p class="headline">(.*?)</p>', page, re.S)]
    expect(headlines == [headline(g) for g in groups.values()], name, headlines, [headline(g) for g in groups.values()])
    paragraphs = [text_of(m) for m in re.findall(r"<p>(.*?)</p>", page, re.S)]
    want = [t for t in map(others, groups.values()) if t is not None] + [BYTES, "The controls:"]
    expect(paragraphs == want, name, paragraphs, want)
    lists = [[text_of(m) for m in re.findall(r"<li>(.*?)</li>", part, re.S)] for part in page.split("<ul>")[1:]]
    want = [bought(task), [t for t in (control(students, key) for key in CONTROLS) if t]]
    lists[-1] = [t for t in lists[-1] if t.split("?")[0] + "?" in [c[0] for c in CONTROLS.values()]]
    expect(lists == want, name, lists, want)


MEASURES = {
    "order_2_rise": "nats lost with exp cut at order 2", "loss_order": "order that the loss needs",
    "entropy": "entropy of the weights", "mean_distance": "mean distance", "last_tokens": "weight of the last tokens",
    "first_token": "weight of the first token", "order_2_error": "error of the outputs at order 2",
    "order": "order that the outputs need", "number": "the layer\u2019s number (control)"}


def ordered(layer, name):
    """An order of a layer: infinite above all that were tried, None if it was not measured."""
    orders = layer["orders"]
    return None if orders is None else math.inf if orders[name] is None else orders[name]


def ranking_sentences(record):
    """What the page says of layers.json."""
    measured = [layer for layer in record["layers"] if layer["orders"] is not None]
    lines = []
    if measured:
        parts = [f"{sum(ordered(layer, 'order') <= most for layer in measured)} at most order {most} "
                 f"({sum(ordered(layer, 'high') <= most for layer in measured)} by the upper end of the interval)"
                 for most in (2, 6)]
        above = sum(ordered(layer, "order") == math.inf for layer in measured)
        lines.append("Which order of exp does a layer need so that the teacher loses less than 0.01 nats with that layer "
                     f"alone cut? Of {len(measured)} layer{'s' * (len(measured) != 1)} need {', '.join(parts)}, and {above} "
                     "more than any that was tried.")
    rho = {name: record["correlations"][name]["aligned"] for name in MEASURES}
    line = "Does a measure of forward passes alone rank the layers by what they cost once aligned? "
    known = [name for name, q in rho.items() if name != "number" and None not in q.values()]
    if not known:
        return lines + [line + "There are too few layers to tell."]
    best = max(known, key=lambda name: abs(rho[name]["rho"]))
    q, control = ({"mean": r["rho"], **r} for r in (rho[best], rho["number"]))
    unclear = sign(q) == "unclear"
    line += f"{'It does not show' if unclear else 'It does'}: of 8 measures, {MEASURES[best]} does it best, with a rank " \
            f"correlation \u03c1 of {interval(q)}{': the interval includes zero' * unclear}"
    if control["mean"] is not None:
        line += f". The control, the layer\u2019s number, has {interval(control)}"
        line += ": no measure says more than the depth does" * (abs(control["mean"]) >= abs(q["mean"]))
    return lines + [line + "."]


def check_ranking_page(folder, record, name):
    page = (folder / "report.html").read_text()
    part = page[page.index("What each layer of the teacher costs"):page.index('id="provenance"')]
    found = [text_of(m) for m in re.findall(r"<p>(.*?)</p>", part, re.S)][1:]
    expect(found == ranking_sentences(record), name, found, ranking_sentences(record))


def check_ranking(softrnn, whole, work):
    """layers/TASK of a study's folder becomes a section of its page."""
    teacher = next(whole.glob("teachers/runs/*"))
    (whole / "layers").mkdir()
    subprocess.run([softrnn, "distil", "--rank-layers", "--teacher", teacher, "--attention", "linear_elu", "--data",
                    "recall:pairs=2,vocab=8,length=12", "--batch", "4", "--align-steps", "2", "--validate-batches", "6",
                    "--most-order", "4", "--out", whole / "layers" / "recall"], check=True, capture_output=True)
    file = whole / "layers" / "recall" / "layers.json"
    record = json.loads(file.read_text())
    expect(record["attention"] == "linear_elu", "attention", record["attention"])
    plain, dice = file.read_text(), random.Random(5)
    for made in range(20):
        if made:
            record["layers"] = [copy.deepcopy(record["layers"][0]) for _ in range(dice.choice([1, 3, 8]))]
            for layer in record["layers"]:
                if layer["orders"] is not None:
                    values = sorted(dice.choice([1, 2, 4, 6, 8, 40]) for _ in range(3))
                    layer["orders"].update({n: None if v == 40 else v for n, v in zip(("low", "order", "high"), values)})
                if dice.random() < 0.1:
                    layer["orders"] = None
            if record["layers"][0]["orders"] is None:
                record["layers"][0] = copy.deepcopy(json.loads(plain)["layers"][0])
            for q in record["correlations"].values():
                value = dice.choice([-1, 1]) * dice.random()
                q["aligned"] = dice.choice([{"rho": None, "low": None, "high": None},
                                            {"rho": value, "low": value - 0.3, "high": value + 0.3},
                                            {"rho": value, "low": value / 2, "high": value * 1.5}
                                            if value > 0 else {"rho": value, "low": value * 1.5, "high": value / 2}])
            file.write_text(json.dumps(record))
        subprocess.run([softrnn, "report", whole], check=True, capture_output=True)
        check_ranking_page(whole, record, f"layers {made}")
        rows = (next((whole / "tables").glob("*-teacher-layers.csv"))).read_text().splitlines()
        expect(len(rows) == 1 + len(record["layers"]), "rows of layers", len(rows))
        kl = [float(row.split(",")[2]) for row in rows[1:]]
        expect(all(abs(a - b["aligned"]["kl"]) < 1e-6 for a, b in zip(kl, record["layers"])), "KL", kl)
    file.write_text("{")
    subprocess.run([softrnn, "report", whole], check=True, capture_output=True)
    expect("costs cannot be read" in (whole / "report.html").read_text(), "a broken layers.json")
    shutil.rmtree(whole / "layers")


def made_quantity(dice, kind):
    value = dice.choice([1e-4, 0.003, 0.05, 0.7]) * (0.5 + dice.random())
    if kind == "none":
        return {"mean": None, "low": None, "high": None}
    if kind == "few":
        return {"mean": dice.choice([-1, 1]) * value, "low": None, "high": None}
    middle = {"positive": 1, "negative": -1, "unclear": dice.choice([-0.3, 0, 0.3])}[kind] * value
    return {"mean": middle, "low": middle - 0.8 * value, "high": middle + 0.8 * value}


def check_sentences(softrnn, folder, work):
    """The page of summaries with made numbers."""
    plain = json.loads((folder / "summary.json").read_text())
    made = work / "made"
    shutil.copytree(folder, made, ignore=shutil.ignore_patterns("checkpoints", "figures", "tables"))
    for seed in range(25):
        dice, summary = random.Random(seed), copy.deepcopy(plain)
        for student in summary["students"][0]["students"]:
            student["keep"] = "1-/4" if student["keep"] and seed % 2 else student["keep"]
            for key in ("above_teacher", "behind", "recovered", *CONTROLS):
                student[key] = made_quantity(dice, dice.choice(["positive", "negative", "unclear", "few", "none"]))
            student["student_loss"]["mean"] = dice.choice([None, 2.0, 2 + dice.random(), 2 + dice.random()])
            if student["recovered"]["mean"] is None and dice.random() < 0.5:
                student["swap_loss"]["mean"] = None
        task, kinds = summary["students"][0], ["positive", "negative", "unclear", "few", "none"]
        task["teacher_again"] = made_quantity(dice, dice.choice(kinds))
        for part in task["bytes"]:
            part["variant"] = dice.choice([None, *(s["variant"] for s in task["students"])])
            part["gain"] = dice.choice([None, made_quantity(dice, dice.choice(kinds))])
        (made / "summary.json").write_text(json.dumps(summary))
        subprocess.run([softrnn, "report", made], check=True, capture_output=True)
        check_page(made, f"made numbers {seed}")


# ---- running, stopping and resuming

def run(softrnn, file, out, stop=None, by=signal.SIGINT):
    """True if the study ended, False if it was interrupted; `stop`: seconds after which `by` happens."""
    process = subprocess.Popen([softrnn, "study", file, "--out", out], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    if stop is not None:
        time.sleep(stop)
        process.send_signal(by)
    said = process.communicate()[1]
    if process.returncode and not (stop and ("resumes it" in said or process.returncode < 0)):
        raise SystemExit(f"{out}: {said[-500:]}")
    return process.returncode == 0


def check_resumed(softrnn, file, whole, work):
    """Stopped or killed again and again, and moved in between, it ends with the same records."""
    parts, stops = work / "parts", 0
    while not run(softrnn, file, parts, 0.3 * 1.3**stops, signal.SIGKILL if stops % 2 else signal.SIGINT):
        stops += 1
        if stops == 3:
            parts = parts.rename(work / "moved")
    records = [p.relative_to(whole) for p in sorted(whole.glob("runs/*/*"))
               if p.name in ("metrics.jsonl", "student.json")]
    expect(len(records) == 3 * (1 + 2 * 8), len(records), "records")
    for path in records:
        expect((parts / path).read_bytes() == (whole / path).read_bytes(), path, "differs after", stops, "stops")


def check_refusals(softrnn, file, whole, work):
    for change, why in ((("distil-steps: 6", "distil-steps: 7"), "another steps"),
                        (("align-rate: 0.01", "align-rate: 0.02"), "request"),
                        (('one: "1"', 'one: "0"'), "request"),
                        (("batch: 8", "batch: 4"), "batch"),
                        (("steps: 40", "steps: 41"), "steps"),
                        (("budgets:", "sizes: {a: {hidden: 8}}\nbudgets:"), "not a key of a study with a teacher"),
                        (('one: "1"', 'one: "0-"'), "nothing is replaced"),
                        (("align-steps: 6", "align-steps: x"), "line 7: align-steps"),
                        (("teacher: {settings", "baseline: linear\nteacher: {settings"), "the baseline"),
                        (("variants: {window", "variants: {teacher"), "another name")):
        text = STUDY.replace(*change)
        expect(text != STUDY, "no change", change)
        other = work / "other.yaml"
        other.write_text(text)
        result = subprocess.run([softrnn, "study", other, "--out", whole], capture_output=True, text=True)
        expect(result.returncode != 0 and why in result.stderr, change[1], "is not refused:", result.stderr[-300:])
    late = work / "late"
    subprocess.run([softrnn, "study", file, "--out", late, "--minutes", "0.0001"], capture_output=True)
    expect(not list(late.glob("teachers/runs/*/result.json")), "--minutes does not stop the teachers")
    dry = subprocess.run([softrnn, "study", file, "--dry-run"], capture_output=True, text=True)
    expect(dry.returncode == 0 and dry.stdout.count("from_scratch") == 12, "dry run", dry.stdout, dry.stderr)


def check_given(softrnn, whole, work):
    """A teacher that exists: a model, or the run of one; its text must be in its tokens."""
    teacher = next(whole.glob("teachers/runs/*"))
    text = re.sub(r"layers: 2, heads: 2, hidden: 16, mlp-hidden: 32, ", "", STUDY).replace("seeds: [1, 2, 3]", "seeds: [1, 2]")
    text = text.replace("teacher: {settings: {steps: 40, learning-rate: 0.01}}", f"teacher: {{model: {teacher}}}")
    file, out = work / "given.yaml", work / "given"
    file.write_text(text)
    expect(run(softrnn, file, out), "a given teacher")
    expect(check_numbers(out) > 0 and not (out / "teachers").exists(), "a given teacher is not trained")
    theirs = {n: json.loads((whole / f"runs/{n}/student.json").read_text())["teacher"]["loss"] for n in ("recall.linear__one.1",)}
    for name, loss in theirs.items():
        own = json.loads((out / f"runs/{name}/student.json").read_text())["teacher"]["loss"]
        expect(abs(own - loss) < 1e-9, name, "has another teacher", own, loss)
    page = (out / "report.html").read_text()
    expect(f"The teacher is {teacher}" in page, "the page does not name the teacher")
    bin_file = work / "model.bin"
    bin_file.write_bytes(b"x" * 64)
    file.write_text(text.replace(str(teacher), str(bin_file)))
    result = subprocess.run([softrnn, "study", file, "--out", work / "bin"], capture_output=True, text=True)
    expect(result.returncode == 1 and "softrnn convert --in" in result.stderr, "a .bin", result.returncode, result.stderr[-300:])


def check_damaged(softrnn, file, whole):
    """Numbers that a student.json lacks are left out."""
    before = {path: path.read_text() for path in whole.glob("runs/recall.linear__none.*/student.json")}
    expect(len(before) == 3, "records", list(before))
    for path, text in before.items():
        record = json.loads(text)
        for place in record["student"]["positions"]:
            del place["from"]
        record["copied"]["loss"] = "none"
        path.write_text(json.dumps(record))
    expect(run(softrnn, file, whole), "a student.json without some numbers")
    for path, text in before.items():
        path.write_text(text)


def check_shipped(softrnn, work):
    """The studies that come with the program, in tiny sizes: two steps of each stage, one seed."""
    studies = Path(__file__).resolve().parent.parent.parent / "studies"
    for name, runs in (("rnn.yaml", 3 * (1 + 2 * 6)), ("rnn_gpu.yaml", 1 + 2 * 8)):
        text = (studies / name).read_text()
        for pattern, tiny in ((r"steps: \d+", "steps: 2"), (r"seeds: .*", "seeds: [1]"), (r"hidden: \d+", "hidden: 16"),
                              (r"heads: \d+", "heads: 2"), (r"batch: \d+", "batch: 2"), (r"length: \d+", "length: 24"),
                              (r"validate-batches: \d+", "validate-batches: 1"), (r"validate-every: \d+", "validate-every: 2"),
                              (r"device: cuda", "device: cpu"), (r"precision: bf16", "precision: float"),
                              (r"data: (\.\./runs/gpu-data|\"@text\"|\"(?:recall|niah).*\")",
                               'data: "recall:pairs=2,vocab=8,length=24"')):
            text, count = re.subn(pattern, tiny, text)
            expect(count or "cuda" in pattern or "bf16" in pattern, name, "has no", pattern)
        file, out = work / name, work / f"shipped-{name}"
        file.write_text(text)
        run(softrnn, file, out)
        results = [json.loads(p.read_text())["status"] for p in out.glob("runs/*/result.json")]
        expect(results == ["finished"] * runs, name, len(results), set(results))


def conclude(compared):
    print("\n".join(failures + [f"{compared} quantities compared, {len(failures)} failures"]))
    return 1 if failures else 0


def check_finished(folder):
    """The summary of a study that is there, task by task."""
    tasks = json.loads((folder / "summary.json").read_text())["students"]
    return sum(check_numbers(folder, index) for index in range(len(tasks)))


def main():
    softrnn = sys.argv[1]
    if (Path(softrnn) / "summary.json").exists():
        return conclude(check_finished(Path(softrnn)))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        file, whole = work / "made.yaml", work / "whole"
        file.write_text(STUDY)
        expect(run(softrnn, file, whole), "the study failed")
        compared = check_numbers(whole)
        check_made(whole)
        check_page(whole, "the study")
        check_sentences(softrnn, whole, work)
        check_ranking(softrnn, whole, work)
        check_refusals(softrnn, file, whole, work)
        check_given(softrnn, whole, work)
        check_damaged(softrnn, file, whole)
        check_shipped(softrnn, work)
        check_resumed(softrnn, file, whole, work)
    return conclude(compared)


if __name__ == "__main__":
    sys.exit(main())
