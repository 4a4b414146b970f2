#!/usr/bin/env python3
"""scaling.py: the cost of data-parallel training on many GPUs, estimated from measured kernels and published links.

Usage: scaling.py            prints the tables of docs/SCALING.md
       scaling.py --check    fails if the document differs, or a measured run is far from the estimate
"""
import sys
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/SCALING.md"
VOCABULARY, LENGTH = 32000, 1024
GPUS_A_NODE = 8
NVLINK, INFINIBAND = 450e9, 50e9  # bytes per second and GPU, one way: NVLink 4, NDR with a port for each GPU
# Measured (docs/PERFORMANCE.md): tokens per second of `--preset small`, softmax, on one H200, in bf16.
MEASURED_TOKENS = 293400
RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass
class Model:
    name: str
    width: int
    inner: int
    layers: int
    heads: int
    batch: int  # tokens in a step of all GPUs

    @property
    def multiplying(self):
        """Weights that multiply every token: all except the embedding."""
        layer = 4 * self.width ** 2 + 3 * self.width * self.inner
        return self.layers * layer + VOCABULARY * self.width

    @property
    def embedding(self):
        """Embedding weights, which are looked up and kept as floats."""
        return VOCABULARY * self.width

    @property
    def numbers(self):
        return self.multiplying + self.embedding

    def operations(self, length=LENGTH):
        """FLOPs per token, forward and backward; causal attention covers half of the row."""
        return 6 * self.multiplying + 6 * self.layers * self.width * length


SMALL = Model("0.28 B", 1024, 2048, 20, 16, 1 << 19)
MODELS = (SMALL, Model("2 B", 3072, 6144, 20, 16, 1 << 20), Model("7 B", 4096, 11008, 32, 32, 1 << 22))
RATE = MEASURED_TOKENS * SMALL.operations()  # operations per second of one GPU


def memory(model, ranks):
    """Bytes of a rank besides activations: whole bf16 weights and float gradients, and the embedding in float; masters,
    moments and gradient sum are sharded."""
    return model.numbers * (2 + 4 + (4 + 8 + 4) / ranks) + 4 * model.embedding


def sent(model, ranks):
    """Bytes: gradients in float, weights in bf16, the embedding in float as a sum, which is all-reduced."""
    return (6 * model.numbers + 8 * model.embedding) * (ranks - 1) / ranks


def memory_whole(model):
    return model.numbers * (2 + 4 + 4 + 8)


def seconds(bytes_of_all, ranks):
    """Reduce-scatter or all-gather of an array: within nodes, then between them."""
    nodes = ranks // GPUS_A_NODE
    inside = bytes_of_all * (GPUS_A_NODE - 1) / GPUS_A_NODE / NVLINK
    between = bytes_of_all / GPUS_A_NODE * (nodes - 1) / nodes / INFINIBAND
    return inside + between


@dataclass
class Step:
    compute: float
    scatter: float  # of float gradients
    gather: float   # of bf16 weights, and of the embedding in float

    @property
    def exposed(self):
        """Reductions overlap with backward, two thirds of the computation; the all-gather of weights does not."""
        return max(0.0, self.scatter - self.compute * 2 / 3) + self.gather

    @property
    def efficiency(self):
        return self.compute / (self.compute + self.exposed)


def step(model, ranks):
    return Step(model.batch / ranks * model.operations() / RATE, seconds(4 * model.numbers, ranks),
                seconds(2 * model.numbers + 8 * model.embedding, ranks))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def bytes_table():
    rows = []
    for model in MODELS:
        for ranks in (1, 8, 64, 1024):
            whole = f"{memory_whole(model) / 1e9:.1f}" if ranks == 1 else f"{memory(model, ranks) / 1e9:.1f}"
            rows.append([model.name if ranks == 1 else "", str(ranks), whole, f"{sent(model, ranks) / 1e9:.2f}",
                         f"{model.batch / ranks * model.operations() / 1e12:,.1f}"])
    return table(("model", "GPUs", "GB of a rank, activations not counted", "GB a rank sends in a step",
                  "TFLOP of a rank in a step"), rows)


def efficiency_table():
    rows = []
    for ranks in RANKS:
        row = [str(ranks)]
        for model in MODELS:
            if model.batch // ranks < LENGTH:
                row.append("less than a row")
                continue
            s = step(model, ranks)
            row.append(f"{1e3 * s.compute:.0f} + {1e3 * s.exposed:.0f} ms, {s.efficiency:.2f}")
        rows.append(row)
    return table(("GPUs", *(f"{m.name}, {m.batch // 1024} Ki tokens" for m in MODELS)), rows)


def sequence_table():
    """One row of `length` tokens, divided among 8 GPUs of a node, one layer after the other."""
    rows, ranks = [], 8
    for model in MODELS:
        head = model.width // model.heads
        state = model.heads * head * (head + 1) * 4
        for length in (1 << 15, 1 << 18, 1 << 20):
            keys = 2 * (length // ranks) * model.width * 2 * (ranks - 1)
            linear = 6 * model.multiplying * length / ranks / RATE
            pairs = 6 * model.layers * model.width * length * length / ranks / RATE
            rows.append([model.name if length == 1 << 15 else "", f"{length // 1024} Ki",
                         f"{linear:.2f}", f"{pairs:.2f}", f"{state / 1e6:.2f}", f"{keys / 1e6:,.0f}"])
    return table(("model", "tokens of the row", "s of products", "s of softmax's pairs",
                  "MB a layer passes on: state of linear attention", "keys and values"), rows)


BYTES = 256  # tokens of a text without a tokenizer


@dataclass
class Measured:
    """A run of docs/PERFORMANCE.md, "Ranks on CPUs": MB that one rank uses more than each of several."""
    model: Model
    ranks: int
    less: float

    @property
    def counted(self):
        """The other ranks' shards of moments and sum, minus the buffers for four pieces of a layer each."""
        layer = 4 * self.model.width ** 2 + 3 * self.model.width * self.model.inner
        numbers = self.model.layers * layer + 2 * BYTES * self.model.width
        return (12 * numbers * (self.ranks - 1) / self.ranks - 4 * 4 * layer) / 1e6


MINI, MIDI = Model("mini", 256, 512, 4, 4, 0), Model("midi", 512, 1024, 8, 8, 0)
MEASURED = (Measured(MINI, 2, 6.5), Measured(MIDI, 2, 86.0), Measured(MIDI, 8, 189.2))


def measured_table():
    return table(("model", "ranks", "MB less, counted", "MB less, measured"),
                 [[m.model.name, str(m.ranks), f"{m.counted:.1f}", f"{m.less:.1f}"] for m in MEASURED])


TABLES = (bytes_table, efficiency_table, sequence_table, measured_table)


def main():
    if sys.argv[1:] != ["--check"]:
        print("\n\n".join(make() for make in TABLES))
        return 0
    text = DOCUMENT.read_text(encoding="utf-8")
    wrong = [make.__name__ for make in TABLES if make() not in text]
    if wrong:
        print(f"{DOCUMENT.name} has other tables than bench/scaling.py: {', '.join(wrong)}")
    far = [m.model.name for m in MEASURED if abs(m.counted - m.less) > 0.1 * m.less]
    if far:
        print(f"what was counted is not what was measured: {', '.join(far)}")
    return 1 if wrong or far else 0


sys.exit(main())
