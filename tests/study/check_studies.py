#!/usr/bin/env python3
"""check_studies.py: every study that comes with the sources is a valid plan, and those for a GPU run when they are made tiny.

Usage: check_studies.py PROGRAM STUDIES
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

PROGRAM, STUDIES = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
# Studies for a GPU, and which of their runs are tried.
TRIED = {"gpu_long": "long,softmax,gate,'*.1'", "matched_text": "softmax,'hybrid 7 to 1','*.1'",
         "matched_tasks": "mqar,softmax,gla,'*.1'", "reference": "paper,softmax,elu", "muon": "'*.1'"}
TINY = {"device": "cpu", "precision": "float", "hidden": 32, "heads": 2, "batch": 2, "length": 24, "steps": 4, "stop-step": 2,
        "warmup": 1, "validate-every": 2, "validate-batches": 1, "preset": "tiny"}
# More rates than two, and MLPs made to match, would take time alone.
SMALLER = ((r"learning-rate: \[[^]]*\]", "learning-rate: [0.001, 0.002]"), (r"mlp-hidden: \d+", "mlp-hidden: 32"),
           (r"length=\d+,pairs=\d+", "length=16,pairs=2"), (r"layers: \d+\n", "layers: 2\n"))


def run(*command):
    done = subprocess.run([str(PROGRAM), *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit(f"softrnn {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def shrink(text):
    for name, value in TINY.items():
        old = r"\d+" if isinstance(value, int) else r"\w+"  # a variant may be called "length"
        text = re.sub(rf"(?<![\w-]){name}: {old}(?!\w)", f"{name}: {value}", text)
    for pattern, smaller in SMALLER:
        text = re.sub(pattern, smaller, text)
    return text.replace("7*gated_delta_net", "1*gated_delta_net")


def main():
    with tempfile.TemporaryDirectory() as name:
        here = pathlib.Path(name)
        shutil.copytree(STUDIES, here / "studies")
        (here / "runs").mkdir()
        for data in ("gpu-data", "reference-data"):
            run("data", "prepare", "--tokenizer", "bytes", "--validation", "0.5", "--out", str(here / "runs" / data),
                *(str(path) for path in sorted(STUDIES.glob("*.yaml"))))
        for path in sorted((here / "studies").glob("*.yaml")):
            plan = path.read_text().replace("device: cuda", "device: cpu").replace("precision: bf16", "precision: float")
            path.write_text(plan)
            last = run("study", str(path), "--dry-run").strip().splitlines()[-1]
            if path.stem in TRIED:
                path.write_text(shrink(plan))
                only = TRIED[path.stem].replace("'", "")
                said = run("study", str(path), "--out", str(here / path.stem), "--only", only, "--jobs", "2", "--together", "2",
                           "--minutes", "10")
                if " 0 failed" not in said:
                    sys.exit(f"{path.name}:\n{said}")
                last = next(line for line in said.splitlines() if re.match(r"\d+ runs: ", line))
            print(f"{path.name}: {last}")


main()
