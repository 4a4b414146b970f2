#!/usr/bin/env python3
"""check_ranks.py: one run shared by several ranks, as mpirun starts them.

Usage: check_ranks.py PROGRAM CASE. The cases are the functions below whose names begin with case_; their docstrings
describe them. Exit 77: a dependency of the case is missing. SOFTRNN_KILLS says how often case_killed kills (3).
"""
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

PROGRAM = Path(sys.argv[1]).resolve()
SKIPPED = 77
MODEL = ("--data recall:pairs=4 --hidden 32 --mlp-hidden 64 --layers 3 --heads 2 --batch 4 --warmup 2 "
         "--validate-every 5 --validate-batches 5 --threads 1").split()
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none",
                   OMPI_MCA_btl_vader_single_copy_mechanism="none",
                   HWLOC_HIDE_ERRORS="2",  # its warning where /sys is not mounted would be taken for output of the program
                   ASAN_OPTIONS="detect_leaks=0")  # MPI's own


def fail(message):
    print("FAILED:", message)
    sys.exit(1)


def check(truth, message):
    if not truth:
        fail(message)


def launcher(ranks):
    """The command that starts this many ranks; empty for one. case_hosts replaces it."""
    return ["mpirun", "-n", str(ranks)] if ranks > 1 else []


def start(ranks, *arguments):
    """Starts the program on this many ranks."""
    before = LAUNCHER(ranks)
    return subprocess.Popen([*before, str(PROGRAM), *map(str, arguments)], env=ENVIRONMENT, text=True, errors="replace",
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def end(process, seconds=200):
    """Exit code and output of a started program."""
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        fail(f"did not end within {seconds} seconds:\n{output}")
    return process.returncode, output


def run(ranks, *arguments):
    code, output = end(start(ranks, *arguments))
    check(code == 0, f"{ranks} ranks, {arguments}: exit code {code}\n{output}")
    return output


def processes(folder):
    """rank -> process of the ranks working in a run's folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                variables = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
                found[int(variables[b"OMPI_COMM_WORLD_RANK"])] = int(entry.name)
        except (OSError, KeyError, ValueError):
            pass
    return found


def cpu_seconds(process):
    """What a process has computed so far."""
    numbers = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition, what, seconds=100):
    begin = time.monotonic()
    while not condition():
        check(time.monotonic() - begin < seconds, f"waited {seconds} seconds for {what}")
        time.sleep(0.02)


def records(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def weights(checkpoint):
    """name -> bytes of every tensor of a model, from all of its files."""
    found = {}
    for path in checkpoint.glob("model*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        header.pop("__metadata__", None)
        for name, facts in header.items():
            check(name not in found, f"{path}: {name} is in two files")
            first, end = facts["data_offsets"]
            found[name] = data[start + first:start + end]
    return found


def same(a, b):
    """Two runs have the same records and the same last weights, bit by bit."""
    check(records(a) == records(b), f"{a} and {b} have other records")
    last = [sorted((f / "checkpoints").glob("step-*"))[-1] for f in (a, b)]
    check(last[0].name == last[1].name, f"{a} ends with {last[0].name}, {b} with {last[1].name}")
    check(weights(last[0]) and weights(last[0]) == weights(last[1]), f"{a} and {b} have other weights")


def case_bits(here):
    """N ranks have the bits of one that accumulates N times, with sharded moments, recomputed layers and without."""
    train = [*MODEL, "--steps", 6, "--save-every", 3]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 4)
    for ranks, sharding in ((2, "optimizer"), (4, "optimizer"), (4, "none"), (2, "none")):
        name = here / f"{ranks}-{sharding}"
        run(ranks, "train", "--out", name, *train, "--accumulate", 4 // ranks, "--shard", sharding)
        same(here / "one", name)
    muon = [*train, "--optimizer", "muon"]
    run(1, "train", "--out", here / "muon", *muon, "--accumulate", 3)
    run(3, "train", "--out", here / "muon3", *muon, "--stop-step", 3)
    run(2, "train", "--resume", here / "muon3", "--stop-step", 4, "--shard", "none")
    run(2, "train", "--resume", here / "muon3", "--stop-step", 0)
    same(here / "muon", here / "muon3")
    check(records(here / "muon") != records(here / "one"), "Muon is AdamW")
    clip = [*muon, "--initial-range", 0.5, "--z-loss", 0.01]
    run(1, "train", "--out", here / "unclipped", *clip, "--accumulate", 3)
    run(1, "train", "--out", here / "clip", *clip, "--accumulate", 3, "--qk-clip", 0.5)
    run(3, "train", "--out", here / "clip3", *clip, "--qk-clip", 0.5)
    same(here / "clip", here / "clip3")
    check(records(here / "clip") != records(here / "unclipped"), "--qk-clip does nothing")
    run(2, "train", "--out", here / "again", *train, "--accumulate", 2, "--recompute", "attention", "--stop-step", 4)
    run(4, "train", "--resume", here / "again", "--stop-step", 0, "--recompute", "block")
    same(here / "one", here / "again")
    pieces = sorted(f.name for f in (here / "4-optimizer/checkpoints/step-000000006").glob("optimizer*"))
    check(len(pieces) == 4, f"a checkpoint of 4 ranks has {pieces}")
    files = sorted(f.name for f in (here / "4-optimizer/checkpoints/step-000000006").glob("model-*"))
    check(len(files) > 1 and files[0] == "model-00001-of-00004.safetensors", f"the weights of 4 ranks are in {files}")
    logits = [run(1, "eval", "--model", here / name, "--data", "recall:pairs=4", "--batches", 2).splitlines()[-1]
              for name in ("one", "4-optimizer")]
    check(logits[0] == logits[1], f"a model in pieces is another one: {logits}")
    other = ["--attention", "gate", "--tied", "--layout", "packed", "--data", __file__]
    for ranks, name in ((1, "text"), (3, "text3")):
        run(ranks, "train", "--out", here / name, *train, *other, "--length", 40, "--accumulate", 3 // ranks)
    same(here / "text", here / "text3")
    avey = [*MODEL, "--data", __file__, "--attention", "avey_causal,chunk=8,chunks=2,expansion=4,share=0.5", "--length", 32,
            "--validate-every", 0, "--steps", 4]
    for name, batch, accumulate in (("split", 2, 2), ("whole", 4, 1)):
        run(1, "train", "--out", here / name, *avey, "--batch", batch, "--accumulate", accumulate)
    norms = [[json.loads(line)["gradient_norm"] for line in records(here / name)] for name in ("split", "whole")]
    check(all(abs(a - b) < 1e-4 * a for a, b in zip(*norms)), f"batches add up to another gradient: {norms}")


def close(a, b):
    """Two runs have the same losses and gradients, up to the order of summation."""
    pairs = list(zip(*([json.loads(line) for line in records(f)] for f in (a, b))))
    check(len(pairs) == len(records(a)) == len(records(b)), f"{a} and {b} have other steps")
    for one, other in pairs:
        for name in ("loss", "gradient_norm"):
            check(abs(one[name] - other[name]) < 1e-4 * abs(one[name]), f"{a} and {b}: {one} and {other}")


def case_gpus(here):
    """Ranks on emulated GPUs with a fake NCCL: the numbers of one rank that accumulates, and the same bits again."""
    train = [*MODEL, "--device", "cuda", "--steps", 4, "--validate-every", 2]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 2)
    for name, more in (("two", []), ("again", ["--recompute", "block"]), ("none", ["--shard", "none"])):
        run(2, "train", "--out", here / name, *train, *more)
        close(here / "one", here / name)
    same(here / "two", here / "again")  # layers that are recomputed give the same bits
    same(here / "two", here / "none")  # a sum of two has only one order
    run(1, "train", "--out", here / "four", *train, "--accumulate", 4)
    run(2, "train", "--out", here / "rounds", *train, "--accumulate", 2, "--stop-step", 2)
    run(1, "train", "--resume", here / "rounds", "--stop-step", 3)
    run(2, "train", "--resume", here / "rounds", "--stop-step", 0, "--shard", "none")
    close(here / "four", here / "rounds")
    bf16 = [*train, "--precision", "bf16"]
    run(1, "train", "--out", here / "alone", *bf16)
    code, output = end(subprocess.Popen(["mpirun", "-n", "1", str(PROGRAM), "train", "--out", here / "first", *map(str, bf16)],
                                        env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    check(code == 0, output)
    same(here / "alone", here / "first")
    for name, sharding in (("divided", "optimizer"), ("whole", "none")):
        run(2, "train", "--out", here / name, *bf16, "--tied", "--attention", "gated_softmax", "--shard", sharding)
    same(here / "whole", here / "divided")  # float masters, of which each rank of the second has a part
    for name, precision in (("float", train), ("bf16", bf16)):
        muon = [*precision, "--optimizer", "muon", "--initial-range", 0.5, "--qk-clip", 0.5]
        run(1, "train", "--out", here / f"{name}-muon", *muon, "--accumulate", 2)
        run(2, "train", "--out", here / f"{name}-muon2", *muon, "--stop-step", 2 if name == "bf16" else 0)
        if name == "bf16":
            run(2, "train", "--resume", here / f"{name}-muon2", "--stop-step", 0, "--shard", "none")
        close(here / f"{name}-muon", here / f"{name}-muon2")
    lora = ["--model", here / "one", "--lora-rank", 2, "--clip", 0.5, "--data", "recall:pairs=4", "--batch", 4, "--device", "cuda",
            "--steps", 4, "--validate-every", 2, "--validate-batches", 2, "--threads", 1]
    run(1, "train", "--out", here / "lora", *lora, "--accumulate", 2)
    run(2, "train", "--out", here / "lora2", *lora, "--stop-step", 2)
    run(2, "train", "--resume", here / "lora2", "--stop-step", 0)
    close(here / "lora", here / "lora2")
    run(3, "train", "--out", here / "three", *bf16, "--stop-step", 2)
    run(2, "train", "--resume", here / "three", "--stop-step", 3)
    run(1, "train", "--resume", here / "three", "--stop-step", 0)


def near(a, b):
    """Two runs have the same losses and gradients within 1e-6, in training and in validation."""
    pairs = list(zip(*([json.loads(line) for line in records(f)] for f in (a, b))))
    check(len(pairs) == len(records(a)) == len(records(b)) > 0, f"{a} and {b} have other steps")
    for one, other in pairs:
        for name in {"loss", "gradient_norm", "validation_loss"} & one.keys():
            check(abs(one[name] - other[name]) < 1e-6 * abs(one[name]), f"{a} and {b}: {one} and {other}")


CONTEXT = ("--layout packed --length 61 --hidden 32 --mlp-hidden 64 --layers 3 --heads 2 --batch 2 --warmup 2 --steps 6 "
           "--validate-every 3 --validate-batches 5 --threads 1 --data").split() + [__file__]


def dry_bytes(*arguments):
    """What --dry-run counts that all layers send in a batch."""
    output = run(1, "train", "--dry-run", *CONTEXT, *arguments)
    return float(re.search(r"all layers: ([0-9.]+) MB", output).group(1)) * 1e6


def check_bytes():
    """--dry-run counts by the formulas of docs/SCALING.md: 2 rows of 64 tokens, 2 heads of 16, one layer."""
    layer = ["--length", 64, "--layers", 1, "--attention"]
    long = ["--length", 2048, *layer[2:]]  # a state of order 2 pays
    rows, heads, D = 2, 2, 16
    plain = "score=linear,normaliser=none,position=none"
    for attention, state, inputs in ((plain, D * D, 0), (plain + ",short_conv=3", D * D, 2 * 3 * D),
                                     ("score=taylor:2,normaliser=none,position=none,decay", (1 + D + D * (D + 1) // 2) * D, 0),
                                     ("delta_net,short_conv=4", D * D, 3 * 3 * D)):
        for ranks in (2, 4):
            expected = 4 * 2 * (ranks - 1) * rows * heads * (state + inputs)
            found = dry_bytes(*long, attention, "--context-ranks", ranks)
            check(found == expected, f"{attention} on {ranks} ranks: {found} bytes, not {expected}")
    for ranks, visits, queries in ((2, 1, 0.5), (4, 5, 2)):  # a and b of the formula
        keys, sums = heads * 2 * D, heads * (5 * D + 4) + 2
        expected = 4 * rows * 64 / ranks * (3 * visits * keys + queries * sums)
        found = dry_bytes(*layer, "softmax", "--context-ranks", ranks)
        check(found == expected, f"softmax on {ranks} ranks: {found} bytes, not {expected}")


def case_context_variants(here):
    """Every named variant is a layer of one model, whose rows every grid of ranks divides."""
    names = [v["name"] for v in json.loads(run(1, "variants", "--json")) if not v["name"].startswith("avey")]
    check(len(names) > 70, f"only {len(names)} variants")
    layers = ",".join(f"{number}:{name}" for number, name in enumerate(names))
    train = [*CONTEXT, "--layers", len(names), "--attention", layers, "--hidden", 16, "--mlp-hidden", 16, "--steps", 2,
             "--validate-every", 0]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 2)
    for context, rows in ((2, 1), (4, 1), (2, 2), (4, 2)):
        name = here / f"{context}x{rows}"
        run(context * rows, "train", "--out", name, *train, "--accumulate", 2 // rows, "--context-ranks", context)
        near(here / "one", name)


def case_context(here):
    """Ranks that share the tokens of rows have the losses and gradients of one, in every grid and resumed in another."""
    for number, attention in enumerate(("0:gated_delta_net,1:order:2,short_conv=3,2:mamba2",
                                         "0:rwkv7,1:softmax,2:rat,pool=3")):
        train = [*CONTEXT, "--attention", attention]
        name = [here / f"{number}-{grid}" for grid in ("one", "2x1", "4x1", "2x2")]
        run(1, "train", "--out", name[0], *train, "--accumulate", 2)
        run(2, "train", "--out", name[1], *train, "--accumulate", 2, "--context-ranks", 2)
        run(4, "train", "--out", name[2], *train, "--accumulate", 2, "--context-ranks", 4, "--recompute", "block")
        run(4, "train", "--out", name[3], *train, "--context-ranks", 2)
        for other in name[1:]:
            near(name[0], other)
        same(name[1], name[3])  # units are added in the same order
    again = here / "again"
    run(4, "train", "--out", again, *train, "--accumulate", 2, "--context-ranks", 4, "--stop-step", 2)
    run(1, "train", "--resume", again, "--context-ranks", 1, "--stop-step", 4)
    run(2, "train", "--resume", again, "--context-ranks", 2, "--stop-step", 0)
    near(name[0], again)
    for where in ("--data", "--text"):
        evaluate = ["eval", "--model", again, where, __file__, "--length", 61, "--batch", 3, "--json"]
        alone, shared = (json.loads(run(ranks, *evaluate, "--context-ranks", min(ranks, 2))) for ranks in (1, 4))
        for what in ("loss", "accuracy", "bits_per_byte"):
            check(abs(alone[what] - shared[what]) <= 1e-6 * alone[what], f"{where}: {alone} and {shared}")
        check(alone["targets"] == shared["targets"], f"{where}: {alone} and {shared}")
    check_bytes()
    ring = [*CONTEXT, "--attention", "0:gated_softmax,1:nala,2:softmax,window=21,sink=learned,short_conv=3"]
    run(1, "train", "--out", here / "ring-one", *ring, "--accumulate", 2)
    run(4, "train", "--out", here / "ring-4x1", *ring, "--accumulate", 2, "--context-ranks", 4, "--recompute", "attention")
    run(4, "train", "--out", here / "ring-2x2", *ring, "--context-ranks", 2)
    near(here / "ring-one", here / "ring-4x1")
    near(here / "ring-one", here / "ring-2x2")
    # parts of more than a tile of keys, one of them a token longer
    tiles = [*CONTEXT, "--length", 301, "--batch", 1, "--steps", 3, "--layers", 3,
             "--attention", "0:softmax,1:sigmoid,2:forget,short_conv=2"]
    run(1, "train", "--out", here / "tiles-one", *tiles)
    run(3, "train", "--out", here / "tiles-3x1", *tiles, "--context-ranks", 3)
    near(here / "tiles-one", here / "tiles-3x1")
    # messages of several pieces
    pieces = [*CONTEXT, "--length", 1201, "--hidden", 256, "--heads", 4, "--layers", 1, "--steps", 1, "--validate-every", 0,
              "--attention", "softmax"]
    run(1, "train", "--out", here / "pieces-one", *pieces)
    run(2, "train", "--out", here / "pieces-2x1", *pieces, "--context-ranks", 2)
    near(here / "pieces-one", here / "pieces-2x1")
    for ranks, arguments, words in ((1, ["--context-ranks", 2], "multiple of 2"), (3, ["--context-ranks", 2], "multiple of 2"),
                                    (2, ["--context-ranks", 2, "--attention", "avey_causal"], "avey"),
                                    (2, ["--context-ranks", 2, "--attention", "softmax", "--qk-clip", 1], "qk-clip needs"),
                                    (2, ["--context-ranks", 2, "--length", 5, "--attention", "mamba2"], "3 tokens before")):
        code, output = end(start(ranks, "train", "--out", here / "refused", *CONTEXT, *arguments))
        check(code != 0 and words in output, f"{arguments}: exit code {code}\n{output}")


def case_context_lost(here):
    """A context rank that is killed or hangs is named, and the run continues with another number of them."""
    train = [*CONTEXT, "--steps", 100000, "--save-every", 2, "--rank-patience", 2, "--attention"]
    for number, what, attention in ((signal.SIGKILL, "rank 1", "0:gla,1:softmax,2:rat"), (signal.SIGSTOP, "gave no answer", "gla"),
                                    (signal.SIGSTOP, "gave no answer", "log_linear")):
        name = here / f"{number}-{attention[:3]}"
        started = start(2, "train", "--out", name, *train, attention, "--context-ranks", 2)
        wait_for(lambda: len(records(name)) > 4, "some steps")
        os.kill(processes(name)[1], number)
        code, output = end(started, 60)
        check(code != 0 and what in output and "rank 1" in output, f"exit code {code}\n{output}")
        run(1, "train", "--resume", name, "--context-ranks", 1, "--stop-step", len(records(name)) + 2)
    run(1, "train", "--out", here / "model", *CONTEXT, "--attention", "0:softmax,1-:gla", "--steps", 1, "--validate-every", 0)
    (here / "prompts").write_text("".join(f"the prompt of number {n}\n" for n in range(100000)))
    prefill = ["generate", "--model", here / "model", "--prompts", here / "prompts", "--threads", 1, "--batch", 1, "--tokens", 1,
               "--prefill-chunk", 3, "--rank-patience", 2, "--context-ranks", 2]
    for number, what in ((signal.SIGKILL, "rank 1"), (signal.SIGSTOP, "rank 1 on")):
        started = start(2, *prefill)
        started.stdout.readline()
        os.kill(processes(here)[1], number)
        code, output = end(started, 60)
        check(code != 0 and what in output, f"exit code {code}\n{output[-2000:]}")
    (here / "long").write_text(Path(__file__).read_text() * 100)
    started = start(2, "eval", "--model", here / "model", "--text", here / "long", "--length", 61, "--threads", 1, "--rank-patience", 2,
                    "--context-ranks", 2)
    wait_for(lambda: 1 in processes(here) and cpu_seconds(processes(here)[1]) > 1, "some rows")
    os.kill(processes(here)[1], signal.SIGSTOP)
    code, output = end(started, 60)
    check(code != 0 and "rank 1 on" in output, f"exit code {code}\n{output[-2000:]}")


def case_gpus_context(here):
    """Context ranks on emulated GPUs: the numbers of one rank in bf16, and the same bits again."""
    train = [*CONTEXT, "--device", "cuda", "--precision", "bf16", "--steps", 3, "--layers", 2, "--hidden", 16, "--heads", 1,
             "--mlp-hidden", 16, "--length", 29, "--batch", 1, "--validate-batches", 2,
             "--attention", "0:gated_delta_net,1:gla,short_conv=3"]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 2)
    run(2, "train", "--out", here / "2x1", *train, "--accumulate", 2, "--context-ranks", 2)
    run(2, "train", "--out", here / "again", *train, "--accumulate", 2, "--context-ranks", 2, "--recompute", "block")
    run(4, "train", "--out", here / "2x2", *train, "--context-ranks", 2)
    for name in ("2x1", "2x2"):
        close(here / "one", here / name)
    same(here / "2x1", here / "again")  # layers that are recomputed give the same bits
    heads = [*train, "--heads", 2, "--attention", "0:softmax,1:log_linear"]  # which change places
    run(1, "train", "--out", here / "heads", *heads, "--accumulate", 2)
    run(2, "train", "--out", here / "heads-2x1", *heads, "--accumulate", 2, "--context-ranks", 2, "--recompute", "attention")
    run(4, "train", "--out", here / "heads-2x2", *heads, "--context-ranks", 2)
    close(here / "heads", here / "heads-2x1")
    close(here / "heads", here / "heads-2x2")
    ENVIRONMENT["FAKE_NCCL_SECONDS"] = "3"
    for stops, arguments in ((70, train), (20, heads)):
        code, output = end(start_two(f"FAKE_NCCL_STOPS={stops}", "train", "--out", here / f"hung{stops}", *arguments,
                                     "--context-ranks", 2), 60)
        check(code != 0 and "rank 1 on" in output and "gives no answer" in output, f"exit code {code}\n{output}")


def case_gpus_context_variants(here):
    """Every named variant that a GPU computes in float is a layer of one model, whose rows emulated GPUs divide."""
    names = [v["name"] for v in json.loads(run(1, "variants", "--json")) if not v["name"].startswith(("avey", "gdn2", "rwkv7"))]
    for ranks, some in ((2, names), (4, names[::9])):
        layers = ",".join(f"{number}:{name}" for number, name in enumerate(some))
        train = [*CONTEXT, "--layers", len(some), "--attention", layers, "--hidden", 16, "--mlp-hidden", 16, "--steps", 1, "--length", 13,
                 "--batch", 1, "--validate-every", 0, "--device", "cuda", "--precision", "float"]
        run(1, "train", "--out", here / f"one-{ranks}", *train)
        run(ranks, "train", "--out", here / str(ranks), *train, "--context-ranks", ranks)
        near(here / f"one-{ranks}", here / str(ranks))


def start_two(variable, *arguments, second=()):
    """Two ranks; only the second has this environment variable, and more arguments."""
    program = [str(PROGRAM), *map(str, arguments)]
    return subprocess.Popen(["mpirun", "-n", "1", *program, ":", "-n", "1", "-x", variable, *program, *map(str, second)],
                            env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def case_gpus_begin(here):
    """A rank on a GPU that cannot start reports why at once, although the others are already waiting for it."""
    train = [*MODEL, "--device", "cuda", "--steps", 3]
    run(1, "train", "--out", here / "run", *train, "--stop-step", 1)
    for name in ("good", "bad"):
        (here / name).mkdir()
        for file in ("config.json", "model.safetensors"):
            shutil.copy(here / "run/checkpoints/step-000000001" / file, here / name)
    bad = here / "bad/model.safetensors"
    bad.write_bytes(bad.read_bytes().replace(b'"model.norm.weight"', b'"model.gone.weight"'))  # detected when weights are read
    code, output = end(start_two("NOTHING=1", "train", "--out", here / "two", *train, "--model", here / "good",
                                 second=["--model", here / "bad"]), 40)
    check(code != 0 and "bad: " in output and "gave no answer" not in output, f"exit code {code}\n{output}")


def case_gpus_lost(here):
    """A rank on a GPU that dies, hangs or has no NCCL is named within seconds; the others end, nothing is lost."""
    train = [*MODEL, "--device", "cuda", "--steps", 500, "--save-every", 1, "--validate-every", 0, "--precision", "bf16"]
    name = here / "killed"
    started = start(2, "train", "--out", name, *train)
    wait_for(lambda: len(records(name)) > 2, "some steps")
    os.kill(processes(name)[1], signal.SIGKILL)
    code, output = end(started, 30)
    check(code != 0 and "rank 1" in output, f"exit code {code}, rank 1 is not named:\n{output}")
    run(2, "train", "--resume", name, "--stop-step", len(records(name)) + 1)
    ENVIRONMENT["FAKE_NCCL_SECONDS"] = "3"
    for variable, words in (("FAKE_NCCL_STOPS=70", "gives no answer; NCCL: a sum over the ranks cannot be ended"),
                            ("SOFTRNN_NCCL=/nowhere/libnccl.so.2", "need NCCL"), ("FAKE_NCCL_REFUSES=1", "CommInitRank")):
        code, output = end(start_two(variable, "train", "--out", here / variable[:12], *train))
        check(code != 0 and "rank 1 on" in output and words in output, f"{variable}: exit code {code}\n{output}")


PR_SET_THP_DISABLE = 41


def measure(ranks, name, sharding, *train):
    """Bytes per rank as reported by the program and as used by rank 1, and the number of parameters."""
    ENVIRONMENT["MALLOC_MMAP_THRESHOLD_"] = "65536"  # freed memory is returned to the system
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # huge pages, where there are any, count whole; inherited
    started = start(ranks, "train", "--out", name, *train, "--shard", sharding)
    wait_for(lambda: len(records(name)) > 2, "a step")
    status, used = Path("/proc") / str(processes(name)[1]) / "status", []
    last = len(records(name)) + 8  # on a busy machine a step takes seconds, and all of one must be seen
    while len(used) < 400 or len(records(name)) < last:  # the minimum: between messages, which need memory too
        used.append(int(status.read_text().split("RssAnon:")[1].split()[0]) * 1024)
        time.sleep(0.025)
    os.kill(started.pid, signal.SIGUSR1)
    _, output = end(started)
    return {"reported": float(output.split("memory ")[1].split(" MB")[0]) * 1e6, "used": min(used),
            "numbers": float(output.split(" M parameters")[0].split()[-1]) * 1e6}


def check_less(whole, divided, expected):
    for what in ("reported", "used"):
        less = whole[what] - divided[what]
        check(abs(less - expected) < 0.05 * expected + 2e5,
              f"{what}: {less / 1e6:.2f} MB less of {whole['numbers'] / 1e6:.2f} M numbers, not {expected / 1e6:.2f}")


MEASURED = ["--data", "recall:pairs=4", "--heads", 2, "--batch", 1, "--steps", 100000, "--validate-every", 0,
            "--save-every", 0, "--threads", 1]


def case_memory(here):
    """A rank with sharded moments and sums uses less memory by the computed amount, and reports that."""
    train = [*MEASURED, "--hidden", 384, "--mlp-hidden", 1536, "--layers", 4]
    whole, divided = (measure(4, here / sharding, sharding, *train) for sharding in ("none", "optimizer"))
    check_less(whole, divided, 12 * whole["numbers"] * 3 / 4)


def case_gpus_memory(here):
    """A rank on a GPU has its shard of moments, masters and sum, and floats of the weights outside of GEMMs."""
    train = [*MEASURED, "--hidden", 64, "--mlp-hidden", 4096, "--layers", 2, "--device", "cuda", "--precision", "bf16"]
    whole, divided = (measure(2, here / sharding, sharding, *train) for sharding in ("none", "optimizer"))
    numbers = whole["numbers"]
    matrices = 2 * (4 * 64 * 64 + 3 * 64 * 4096)
    check_less(whole, divided, 12 * numbers / 2 - 4 * numbers / 2 - 4 * (numbers - matrices))


def case_resume(here):
    """A run resumed with 4, 2, 1 and 3 ranks has the bits of an uninterrupted one."""
    train = [*MODEL, "--steps", 16, "--save-every", 100]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 4)
    run(4, "train", "--out", here / "many", *train, "--stop-step", 4)
    for ranks, stop in ((2, 8), (1, 12), (3, 0)):
        run(ranks, "train", "--resume", here / "many", "--stop-step", stop)
    same(here / "one", here / "many")


def adapters(folder):
    """The adapters of a run's last checkpoint."""
    return (sorted((folder / "checkpoints").glob("step-*"))[-1] / "adapter_model.safetensors").read_bytes()


def case_adapters(here):
    """Adapters trained by N ranks, also resumed with other numbers of them, have the bits of one process."""
    run(1, "train", "--out", here / "base", *MODEL, "--steps", 2, "--validate-every", 0)
    train = ["--model", here / "base", "--data", "recall:pairs=4", "--batch", 4, "--lora-rank", 3, "--steps", 8,
             "--save-every", 100, "--learning-rate", 0.01, "--clip", 0.5, "--validate-every", 2, "--validate-batches", 2]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 4)
    run(2, "train", "--out", here / "two", *train, "--accumulate", 2)
    run(4, "train", "--out", here / "many", *train, "--stop-step", 2)
    for ranks, stop in ((1, 4), (3, 6), (2, 0)):
        run(ranks, "train", "--resume", here / "many", "--stop-step", stop)
    for name in ("two", "many"):
        same(here / "one", here / name)
        check(adapters(here / "one") == adapters(here / name), f"{name} has other adapters")
    check(weights(here / "base/checkpoints/step-000000002") != weights(here / "one/checkpoints/step-000000008"),
          "the adapters learn nothing")
    run(1, "train", "--out", here / "text", *CONTEXT, "--attention", "order:2", "--stop-step", 2)
    parts = ["--model", here / "text", "--lora-rank", 3, "--layout", "packed", "--length", 61, "--batch", 2, "--steps", 4,
             "--validate-every", 2, "--validate-batches", 2, "--threads", 1, "--data", __file__]
    run(1, "train", "--out", here / "rows", *parts, "--accumulate", 2)
    run(2, "train", "--out", here / "parts", *parts, "--accumulate", 2, "--context-ranks", 2)
    near(here / "rows", here / "parts")
    distil = ["--teacher", here / "base", "--attention", "linear_elu", "--data", "recall:pairs=4", "--batch", 4,
              "--align-steps", 2, "--distil-steps", 4, "--learn", "lora", "--validate-every", 2, "--validate-batches", 2]
    for ranks, name in ((1, "student"), (2, "student2")):
        run(ranks, "distil", "--out", here / name, *distil, "--accumulate", 2 // ranks)
    for stage in ("align", "distil"):
        same(here / "student" / stage, here / "student2" / stage)


def bytes_read(process):
    return int((Path("/proc") / str(process) / "io").read_text().split("rchar: ")[1].split()[0])


def case_sums(here):
    """Ranks share the verification of a checkpoint's files by their checksums; a damaged one is named."""
    train = [*MODEL, "--hidden", 96, "--mlp-hidden", 384, "--layers", 4, "--steps", 100000, "--save-every", 5]
    name = here / ("long" * 50) / ("path" * 50) / "many"
    name.parent.mkdir(parents=True)
    started = start(4, "train", "--out", name, *train)
    wait_for(lambda: list((name / "checkpoints").glob("step-*")), "a checkpoint")
    steps, found = len(records(name)), processes(name)
    before = [bytes_read(found[rank]) for rank in range(4)]
    wait_for(lambda: len(records(name)) > steps + 40, "more checkpoints")
    read = [bytes_read(found[rank]) - before[rank] for rank in range(4)]
    checkpoints = (len(records(name)) - steps) / 5
    os.kill(started.pid, signal.SIGUSR1)
    end(started)
    last = max((name / "checkpoints").glob("step-*"))
    files = sum(f.stat().st_size for f in last.iterdir())
    check(read[0] < 0.6 * files * (checkpoints + 1) and min(read) > 0.1 * files * (checkpoints - 2),
          f"ranks have read {read} bytes of {checkpoints} checkpoints of {files} each")
    sums = json.loads((last / "run.json").read_text())["files"]
    for path in last.iterdir():
        if path.name != "run.json":
            data = path.read_bytes()
            check(sums.pop(path.name) == {"bytes": len(data), "crc32": zlib.crc32(data)}, f"{path}: another checksum")
    check(not sums, f"checksums of files that are not there: {sums}")
    run(3, "train", "--resume", name, "--stop-step", int(last.name[5:]) + 5)
    last = max((name / "checkpoints").glob("step-*"))
    piece = bytearray((last / "optimizer-00002-of-00003.safetensors").read_bytes())
    piece[-1] ^= 1
    (last / "optimizer-00002-of-00003.safetensors").write_bytes(piece)
    for ranks in (1, 2):
        code, output = end(start(ranks, "train", "--resume", name))
        check(code != 0 and "optimizer-00002-of-00003.safetensors: is damaged" in output and "is whole" in output, output)
        check(f"to resume from it, remove {last.name}\n" in output, f"it is not said what to remove:\n{output}")
        check(not re.search(r"rank 0 on \S+ ends all ranks: .*rank 0 on", output), f"rank 0 is named twice:\n{output}")


def case_killed(here):
    """If a rank is killed the others end within seconds, and nothing is lost."""
    kills = int(os.environ.get("SOFTRNN_KILLS", "3"))
    train = [*MODEL, "--steps", 50 + 50 * kills, "--save-every", 10, "--validate-every", 200]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 4)
    many = here / "many"
    chance = random.Random(int(os.environ.get("SOFTRNN_KILL_SEED", "1")))
    command = ["train", "--out", many, *train]
    for _ in range(kills):
        before = len(records(many))
        ranks = 4 if command[1] == "--out" else chance.choice((2, 4))
        started = start(ranks, *command)
        wait_for(lambda: len(records(many)) > before or started.poll() is not None, "a step")
        time.sleep(chance.random() * 0.3)
        victim = chance.randrange(ranks)
        process = processes(many).get(victim)
        if started.poll() is None and process:
            os.kill(process, signal.SIGKILL)
            begin = time.monotonic()
            code, output = end(started, 60)
            check(code != 0, f"rank {victim} was killed, and all ended well:\n{output}")
            # Between hosts Open MPI may end the job first, as soon as a send fails; it then names the peer's host, not the rank.
            by_mpi = LAUNCHER is not launcher and re.search(r"unexpectedly disconnected.*Peer host:", output, re.DOTALL)
            check(f"rank {victim}" in output or by_mpi, f"rank {victim} is not named:\n{output}")
            check(time.monotonic() - begin < 20, "the others took too long")
        else:
            end(started)
        command = ["train", "--resume", many]
    run(2, "train", "--resume", many)
    same(here / "one", many)


def case_slow(here):
    """A rank that pauses for a while is waited for."""
    train = [*MODEL, "--steps", 60]
    run(1, "train", "--out", here / "one", *train, "--accumulate", 2)
    started = start(2, "train", "--out", here / "two", *train)
    wait_for(lambda: len(records(here / "two")) > 2, "a step")
    for rank in (1, 0):
        process = processes(here / "two").get(rank)
        if process:
            os.kill(process, signal.SIGSTOP)
            time.sleep(1)
            os.kill(process, signal.SIGCONT)
    code, output = end(started)
    check(code == 0, output)
    same(here / "one", here / "two")


def case_hung(here):
    """A rank that hangs for longer than the others' patience is named, and the run can be resumed."""
    train = [*MODEL, "--steps", 2000, "--save-every", 5, "--rank-patience", 2]
    for victim in (2, 0):
        name = here / str(victim)
        started = start(3, "train", "--out", name, *train)
        wait_for(lambda: len(records(name)) > 6, "some steps")
        os.kill(processes(name)[victim], signal.SIGSTOP)
        code, output = end(started, 60)
        check(code != 0 and f"rank {victim} on" in output and "gave no answer" in output, output)
        run(2, "train", "--resume", name, "--stop-step", len(records(name)) + 2, "--rank-patience", 60)
    name = here / "checkpoint"  # its messages are still in flight: the run must not continue without it
    started = start(2, "train", "--out", name, *MODEL, "--steps", 100000, "--save-every", 1, "--rank-patience", 2)
    wait_for(lambda: len(records(name)) > 2, "some steps")
    stop_while(processes(name)[1], (name / "checkpoints/.writing").exists)
    code, output = end(started, 60)
    check(code != 0 and "rank 1 on" in output and ", continuing: " not in output, output)


def stop_while(process, condition):
    """Stops the process while this is true, and checks that it stays true."""
    for _ in range(100):
        os.kill(process, signal.SIGSTOP)
        time.sleep(0.2)
        if condition():
            return
        os.kill(process, signal.SIGCONT)
        time.sleep(0.013)
    fail("it was never stopped at the right moment")


def case_signal(here):
    """A scheduler's signal, to one rank or all, makes them write a checkpoint of the same step."""
    train = [*MODEL, "--steps", 100000, "--save-every", 0]
    for number, to_all in ((signal.SIGTERM, False), (signal.SIGUSR1, True), (signal.SIGXCPU, False)):
        name = here / f"{number}"
        started = start(2, "train", "--out", name, *train)
        wait_for(lambda: len(records(name)) > 3, "a step")
        os.kill(started.pid if to_all else processes(name)[1], number)
        code, output = end(started, 100)
        check(code == 128 + number and "interrupted" in output, f"exit code {code}\n{output}")
        step = int(max((name / "checkpoints").glob("step-*")).name[5:])
        check(step == len(records(name)), "the checkpoint is not of the last step")
        run(2, "train", "--resume", name, "--stop-step", step + 2)


def case_disk(here):
    """A full disk on rank 0 or another skips checkpoints, ends nothing, and the last one stays intact."""
    for victim in (1, 0):
        name = here / str(victim)
        started = start(2, "train", "--out", name, *MODEL, "--steps", 100000, "--save-every", 20)
        wait_for(lambda: list((name / "checkpoints").glob("step-*")), "a checkpoint")
        begin, before = time.monotonic(), len(records(name))
        wait_for(lambda: len(records(name)) > before + 40, "more steps")
        pause = 1 + 2 * (time.monotonic() - begin)  # long enough for a checkpoint to become due on a slow machine
        process = processes(name)[victim]
        resource.prlimit(process, resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY))
        frozen = len(records(name))
        if victim == 1:
            wait_for(lambda: len(records(name)) > frozen + 60, "steps on a full disk")
        else:
            time.sleep(pause)
        resource.prlimit(process, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        time.sleep(pause)
        os.kill(started.pid, signal.SIGUSR1)
        code, output = end(started, 100)
        check(code == 128 + signal.SIGUSR1 and "no checkpoint" in output, f"exit code {code}\n{output}")
        check(victim == 0 or "rank 1 on" in output, f"rank 1 is not named:\n{output}")
        run(1, "train", "--resume", name, "--stop-step", len(records(name)) + 1)


def case_split(here):
    """Evaluation and the prompts of a file are shared by ranks, with the same output."""
    run(1, "train", "--out", here / "model", *MODEL, "--data", __file__, "--length", 64, "--steps", 3)
    (here / "prompts").write_text("".join(f"prompt {i}\n" for i in range(11)))
    (here / "words").write_text("".join(f'{{"text": "guess the word {i}"}}\n' for i in range(7)))
    model = ["--model", here / "model", "--threads", 1]
    for command in (["eval", *model, "--data", __file__, "--batch", 2, "--json"],
                    ["eval", *model, "--text", __file__, "--batch", 3, "--json"],
                    ["eval", *model, "--last-words", here / "words", "--json"],
                    ["generate", *model, "--prompts", here / "prompts", "--batch", 2, "--tokens", 9],
                    ["generate", *model, "--prompt", "one", "--tokens", 9]):
        alone = run(1, *command)
        for ranks in (2, 3):
            check(run(ranks, *command) == alone, f"{ranks} ranks say something else: {command}")


def case_prefill(here):
    """Prompts that ranks feed in turn have the same continuation, whatever states their layers have."""
    run(1, "train", "--out", here / "model", *MODEL, "--data", __file__, "--length", 128, "--steps", 2, "--layers", 6,
        "--attention", "0:softmax,1:gla,short_conv=4,2:log_linear_mamba2,3:rat,pool=3,4:forget,5:softmax,window=9")
    lines = [f"prompt {i} " + "of some length " * i for i in range(5)] + ["", "a", "bc"]  # some with fewer pieces than ranks
    (here / "prompts").write_text("\n".join(lines) + "\n")
    generate = ["generate", "--model", here / "model", "--threads", 1, "--prompts", here / "prompts", "--tokens", 7]
    for choice in (["--greedy", "--batch", 1, "--prefill-chunk", 7], ["--temperature", 0.8, "--batch", 3, "--prefill-chunk", 1],
                   ["--temperature", 0.8, "--batch", 1, "--prefill-chunk", 1000, "--stop", "e|a"]):
        alone = run(1, *generate, *choice)
        for ranks in (2, 3):
            check(run(ranks, *generate, *choice, "--context-ranks", ranks) == alone,
                  f"{ranks} ranks continue something else: {choice}")
    code, output = end(start(2, *generate, "--context-ranks", 3))
    check(code == 2 and "there are 2 ranks" in output, f"exit code {code}\n{output}")


def case_study(here):
    """A study whose runs are shared by ranks has the records of a local one, also when it was stopped."""
    (here / "small.yaml").write_text("""
name: small
seeds: [1, 2]
variants: {softmax: softmax, norm: norm}
settings: {layers: 2, hidden: 32, mlp-hidden: 64, heads: 2, batch: 8, steps: 80, save-every: 20, validate-every: 40}
tasks:
  recall: {settings: {data: "recall:pairs=4"}}
""")
    command = ["study", here / "small.yaml", "--out"]
    run(1, *command, here / "local", "--jobs", 1)
    started = start(2, *command, here / "ranked", "--launcher", "mpi")
    wait_for(lambda: len(records(here / "ranked/runs/recall.softmax.1")) > 5, "a step")
    os.kill(started.pid, signal.SIGUSR1)
    code, output = end(started)
    check(code != 0 and "the same command resumes it" in output, f"exit code {code}\n{output}")
    run(3, *command, here / "ranked", "--launcher", "mpi")
    for name in ("softmax.1", "softmax.2", "norm.1", "norm.2"):
        same(here / f"local/runs/recall.{name}", here / f"ranked/runs/recall.{name}")
    status = run(1, *command, here / "ranked", "--status")
    check(status.count("finished  step 80 of 80") == 4, status)


def case_missing(_):
    """Without the MPI module a rank reports what is missing; without ranks it is not needed."""
    ranked = dict(ENVIRONMENT, OMPI_COMM_WORLD_SIZE="2", SOFTRNN_MPI="/nonexistent/softrnn_mpi.so")
    command = [str(PROGRAM), "train", "--out", "/nonexistent/run", *MODEL]
    for environment, words in ((ranked, "libopenmpi-dev"),
                               (dict(ENVIRONMENT, SLURM_STEP_NUM_TASKS="3", SLURM_PROCID="0"), "--mpi=pmix")):
        result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        check(result.returncode in (1, 2) and words in result.stderr, result.stderr)


def case_hosts(here):
    """Ranks on two hosts (network namespaces): bits, resuming, a killed and a slow rank, full disks."""
    global LAUNCHER
    if os.getuid() != 0 or not shutil.which("ip"):
        sys.exit(SKIPPED)
    hosts = [f"srnn{os.getpid()}{c}" for c in "ab"]
    commands = [f"ip netns add {hosts[0]}", f"ip netns add {hosts[1]}",
                f"ip link add v{hosts[0]} netns {hosts[0]} type veth peer name v{hosts[1]} netns {hosts[1]}"]
    for number, host in enumerate(hosts, 1):
        commands += [f"ip -n {host} address add 10.77.0.{number}/24 dev v{host}",
                     f"ip -n {host} link set v{host} up", f"ip -n {host} link set lo up"]
    shell = here / "shell"  # how mpirun reaches the other host
    shell.write_text(f"#!/bin/sh\nshift\nexec ip netns exec {hosts[1]} \"$SHELL_OF_TEST\" -c \"$*\"\n")
    shell.chmod(0o755)
    ENVIRONMENT["SHELL_OF_TEST"] = "/bin/sh"

    def on_hosts(ranks):
        there = f"10.77.0.1:{ranks - ranks // 2},10.77.0.2:{ranks // 2}"
        return ["ip", "netns", "exec", hosts[0], *launcher(ranks), "--host", there, "--mca", "plm_rsh_agent", str(shell),
                "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "10.77.0.0/24",
                "--mca", "oob_tcp_if_include", "10.77.0.0/24"] if ranks > 1 else []

    try:
        for command in commands:
            if subprocess.run(command.split(), check=False).returncode != 0:
                sys.exit(SKIPPED)
        LAUNCHER = on_hosts
        for case in (case_bits, case_resume, case_killed, case_slow, case_disk):
            (here / case.__name__).mkdir()
            case(here / case.__name__)
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


LAUNCHER = launcher


def main():
    case = globals()[f"case_{sys.argv[2]}"]
    if case is not case_missing and not shutil.which("mpirun"):
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory(prefix="softrnn_ranks") as folder:
        case(Path(folder))
    print(f"{sys.argv[2]}: {case.__doc__}")


main()
