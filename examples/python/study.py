"""A study: variants trained under identical conditions, its table, and what they differ by.

    python examples/python/study.py [FOLDER]
"""
import sys
import tempfile
from pathlib import Path

import softrnn.lab

# %% the question: docs/STUDY.md documents the file of a study
folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
folder.mkdir(parents=True, exist_ok=True)
(folder / "small.yaml").write_text("""\
name: small
title: Does recall need exp?
baseline: softmax
seeds: [1, 2]
variants:
  softmax: softmax
  order 2: order:2
  linear: linear_elu
settings: {layers: 1, heads: 2, hidden: 32, mlp-hidden: 64, initial-range: 0.07, learning-rate: 0.003}
tasks:
  recall:
    title: Recall of 4 pairs
    measure: accuracy
    settings: {data: "recall:pairs=4,vocab=16,length=24", batch: 16, steps: 60, validate-every: 20}
""")

# %% the runs, each in a process of its own
study = softrnn.lab.study(folder / "records", folder / "small.yaml",
                          callback=lambda ended, runs: print(f"\r{ended} of {runs} runs", end="", flush=True))
print()

# %% tables: pandas frames
print(study.summary[["task", "variant", "loss", "accuracy", "difference", "low", "high", "verdict"]].to_string(index=False))
print(study.runs[["id", "status", "seconds", "state_bytes"]].to_string(index=False))

# %% curves: a matplotlib figure. In a notebook, `study` alone shows table and curves.
study.plot().savefig(folder / "curves.svg")
print("curves:", folder / "curves.svg")
