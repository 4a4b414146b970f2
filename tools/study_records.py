#!/usr/bin/env python3
"""study_records.py: the records of a study as one small text file, and the study's folder from it.

    study_records.py pack DIR FILE      the runs of DIR that have ended, without weights, figures and pages
    study_records.py unpack FILE DIR    a folder that `softrnn study` continues and `softrnn report` reads

Everything that is compared or counted stays. Of curves one step in fifty is kept, and every validation; of the runs of tuning the
validations alone.
"""
import glob
import json
import os
import sys

POINTS = 50  # steps of a curve that are kept
TEXTS = ("run.yaml", "result.json", "tests.json", "samples.json")
LINES = ("metrics.jsonl", "timings.jsonl")


def fail(message):
    sys.exit("study_records.py: " + message)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_lines(path):
    """Complete lines only: a process may have been killed in the last one."""
    return [json.loads(line) for line in read(path).splitlines(True) if line.endswith("\n")]


def steps_kept(metrics, points):
    last = metrics[-1]["step"]
    every = -(-last // points) if points else last
    return {line["step"] for line in metrics
            if "validation_loss" in line or line["step"] % every == 0 or line["step"] == last}


def tables(lines):
    """Lines with the same keys as one table; they are sorted by step again when unpacked."""
    found = {}
    for line in lines:
        found.setdefault(tuple(line), []).append(list(line.values()))
    return [{"keys": list(keys), "rows": rows} for keys, rows in found.items()]


def without_here(text):
    """Absolute paths below the current folder become relative: `softrnn study` follows those its file gives relative to itself."""
    return text.replace('"' + os.getcwd() + "/", '"')


def pack_run(packed, root, run, points):
    place = os.path.relpath(run, root)
    metrics = read_lines(os.path.join(run, "metrics.jsonl"))
    kept = steps_kept(metrics, points) if metrics else set()
    for name in TEXTS:
        if os.path.exists(os.path.join(run, name)):
            packed["texts"][f"{place}/{name}"] = without_here(read(os.path.join(run, name)))
    for name in LINES:
        if os.path.exists(os.path.join(run, name)):
            lines = read_lines(os.path.join(run, name))
            packed["tables"][f"{place}/{name}"] = tables([line for line in lines if line["step"] in kept])


def ended(root, pattern):
    """Failed runs are tried again, those under way start again."""
    for path in sorted(glob.glob(os.path.join(root, pattern, "result.json"))):
        if json.loads(read(path))["status"] != "failed":
            yield os.path.dirname(path)


def pack(root, file):
    if not os.path.exists(os.path.join(root, "study.json")):
        fail(f"{root}: no study.json: this is not the folder of a study")
    if "teacher" in json.loads(read(os.path.join(root, "study.json"))):
        fail(f"{root}: the students of a study cannot continue without the weights of their teachers")
    packed = {"texts": {}, "tables": {}}
    for name in ("study.yaml", "study.json", "summary.json", "tuning.json"):
        if os.path.exists(os.path.join(root, name)):
            packed["texts"][name] = read(os.path.join(root, name))
    for run in ended(root, "runs/*"):
        pack_run(packed, root, run, POINTS)
    for run in ended(root, "tuning/*/runs/*"):
        pack_run(packed, root, run, 0)
    write(file, packed)


def write(file, packed):
    """One line per file of the study, so that a session that adds runs adds lines."""
    def part(name):
        lines = [f"{json.dumps(path)}: {json.dumps(value, separators=(',', ':'))}"
                 for path, value in packed[name].items()]
        return f'"{name}": {{\n' + ",\n".join(lines) + "\n}"
    with open(file + ".part", "w", encoding="utf-8") as out:
        out.write('{"format": "softrnn-records", "version": 1,\n' + part("texts") + ",\n" + part("tables") + "}\n")
    os.replace(file + ".part", file)


def lines_of(parts):
    lines = [dict(zip(part["keys"], row)) for part in parts for row in part["rows"]]
    return "".join(json.dumps(line) + "\n" for line in sorted(lines, key=lambda line: line["step"]))


def put(root, place, text):
    path = os.path.normpath(os.path.join(root, place))
    if os.path.isabs(place) or os.path.relpath(path, root).startswith(".."):
        fail(f"{place}: outside of the study's folder")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as out:
        out.write(text)


def unpack(file, root):
    packed = json.loads(read(file))
    if packed.get("format") != "softrnn-records" or packed.get("version") != 1:
        fail(f"{file}: not the records of a study that this version reads")
    if os.path.exists(os.path.join(root, "study.json")):
        fail(f"{root}: there is a study in this folder already")
    for place, text in packed["texts"].items():
        put(root, place, text)
    for place, parts in packed["tables"].items():
        put(root, place, lines_of(parts))


def main():
    commands = {"pack": pack, "unpack": unpack}
    if len(sys.argv) != 4 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])


main()
