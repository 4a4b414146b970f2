#!/usr/bin/env python3
"""check_records.py: a study that is packed, unpacked elsewhere and continued there ends like one that was never moved.

Usage: check_records.py PROGRAM TOOL
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

PROGRAM, TOOL = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
STUDY = """
seeds: [1, 2]
variants: {softmax: softmax, norm: norm}
tune: {learning-rate: [0.003, 0.01], per: variant, share: 0.3}
settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, batch: 4, length: 16, steps: 130, validate-every: 13, validate-batches: 2,
  sample: 4, threads: 1, data: ../runs/tokens}
tasks:
  text: {measure: loss}
  recall: {measure: accuracy, settings: {data: 'recall:pairs=1,vocab=8,length=8', sample: 0, test: 'recall:pairs=2,vocab=8,length=10'}}
"""


def run(*command, cwd, code=0):
    done = subprocess.run([str(word) for word in command], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)
    if done.returncode != code:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}, not {code}\n{done.stdout}")
    return done.stdout


def study(cwd, *options, file="studies/small.yaml"):
    return run(PROGRAM, "study", file, "--jobs", "2", "--no-report", *options, cwd=cwd)


def summary(folder):
    """What a study found; how fast its runs were depends on the machine."""
    def without_speed(value):
        if isinstance(value, dict):
            return {key: without_speed(item) for key, item in value.items() if key not in ("tokens_per_second", "apart")}
        return [without_speed(item) for item in value] if isinstance(value, list) else value
    return without_speed(json.loads((folder / "summary.json").read_text()))


def expect(true, what):
    if not true:
        sys.exit("check_records.py: " + what)


def prepare(here):
    (here / "studies").mkdir()
    (here / "runs").mkdir()
    (here / "studies/small.yaml").write_text(STUDY)
    for part in range(8):
        (here / f"{part}.txt").write_text("".join(f"{i} times {part} is {i * part}\n" for i in range(100)))
    run(PROGRAM, "data", "prepare", "--tokenizer", "bytes", "--validation", "0.5", "--out", "runs/tokens",
        *(f"{part}.txt" for part in range(8)), cwd=here)


def first_sitting(here):
    """All runs of seed 1; of seed 2, one that was stopped and one that failed."""
    study(here, "--out", "part", "--only", "*.1")
    for name in ("text.norm.2", "recall.norm.2"):
        shutil.copytree(here / "part/runs" / name.replace(".2", ".1"), here / "part/runs" / name)
        yaml = here / "part/runs" / name / "run.yaml"
        yaml.write_text(yaml.read_text().replace("seed: 1\n", "seed: 2\n"))
    (here / "part/runs/text.norm.2/result.json").unlink()
    failed = here / "part/runs/recall.norm.2/result.json"
    failed.write_text(failed.read_text().replace('"finished"', '"failed"'))


def check_packed(here):
    run(TOOL, "pack", "part", "records.json", cwd=here)
    text = (here / "records.json").read_text()
    files = json.loads(text)
    names = list(files["texts"]) + list(files["tables"])
    expect(str(here) not in text, "a path of this machine was packed")
    expect(not any(".norm.2/" in name or "checkpoint" in name for name in names), "runs that have not ended, or weights, were packed")
    expect("runs/recall.softmax.1/tests.json" in names and "runs/text.norm.1/samples.json" in names, "tests or samples are missing")
    rows = sum(len(table["rows"]) for table in files["tables"]["runs/text.norm.1/metrics.jsonl"])
    expect(rows == 43 + 7, f"{rows} rows instead of every third of 130 and the other validations")
    expect(len(text) < 80000, f"{len(text)} bytes")


def check_continued(here, there):
    whole = here / "whole"
    run(TOOL, "unpack", here / "records.json", "later", cwd=there)
    run(TOOL, "pack", "later", "again.json", cwd=there)
    expect((here / "records.json").read_bytes() == (there / "again.json").read_bytes(), "packed again, records differ")
    steps = [json.loads(line)["step"] for line in (there / "later/runs/text.norm.1/metrics.jsonl").open()]
    expect(steps == sorted(steps), "steps are not in order")
    run(PROGRAM, "report", "later", cwd=there)  # without the tokens
    for name in ("runs", "studies"):
        shutil.move(here / name, there / name)
    before = {path: path.read_bytes() for path in (there / "later/runs").glob("*.1/result.json")}
    said = study(there.parent, "--out", there / "later", file=there / "studies/small.yaml")
    expect(" 8 finished, 0 diverged, 0 failed, 0 not ended" in said, said)
    expect(all(path.read_bytes() == text for path, text in before.items()), "runs that had ended were executed again")
    expect(not (there / "later/tuning/round-1/runs/text.norm.lr0.003.1000000000/checkpoints").exists(), "rates were tuned again")
    expect(summary(there / "later") == summary(whole), "the continued study found something else")
    tuning = (there / "later/tuning.json").read_text()
    (there / "later/tuning.json").unlink()  # as after a sitting that ended while it was tuning
    shutil.rmtree(there / "later/runs")
    study(there, "--out", "later", "--only", "*.1")
    expect((there / "later/tuning.json").read_text() == tuning, "the rounds of tuning say something else")


def check_refusals(here, there):
    expect("a study in this folder already" in run(TOOL, "unpack", here / "records.json", "later", cwd=there, code=1), "unpacked into a study")
    expect("not the folder of a study" in run(TOOL, "pack", "runs", "x.json", cwd=there, code=1), "packed what is not a study")
    (there / "bad.json").write_text('{"format": "softrnn-records", "version": 1, "texts": {"../out": ""}, "tables": {}}')
    expect("outside" in run(TOOL, "unpack", "bad.json", "bad", cwd=there, code=1), "a file was written outside of the folder")
    (there / "bad.json").write_text('{"format": "softrnn-records", "version": 2}')
    expect("not the records" in run(TOOL, "unpack", "bad.json", "bad", cwd=there, code=1), "another version was read")


def main():
    with tempfile.TemporaryDirectory() as name:
        here, there = pathlib.Path(name).resolve() / "here", pathlib.Path(name).resolve() / "there/deeper"
        here.mkdir()
        there.mkdir(parents=True)
        prepare(here)
        study(here, "--out", "whole")
        first_sitting(here)
        check_packed(here)
        check_continued(here, there)
        check_refusals(here, there)


main()
