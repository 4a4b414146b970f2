#!/usr/bin/env python3
"""peers.py: PyTorch's speed on this machine, for comparison with ours at the same time.

Usage: peers.py attention|variants|systems|step|cpu_step [--repeats N] [--threads N] [--precision float|bf16]

attention: scaled_dot_product_attention with each of its backends, causal, bf16, forward and with backward.
variants:  norm and linear attention written in PyTorch, eager and compiled.
systems:   the chunked kernels of flash-linear-attention, where it imports: each call as it is, and replayed from a
           CUDA graph, which leaves out the time that Python needs to launch it.
step:      one training step of the small model (compiled, autocast to bf16, fused AdamW).
cpu_step:  the same of the midi model on the CPU (oneDNN), eager and, where a C++ compiler is there, compiled.
One JSON line per case, in the units of `softrnn bench attention`. All but cpu_step need PyTorch with CUDA.
"""
import argparse
import contextlib
import importlib
import json
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = [(36, 16, 1024, 64), (8, 16, 4096, 64), (2, 16, 16384, 64), (4, 16, 4096, 128), (1, 16, 16384, 128)]
BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def seconds(work, repeats):
    """The median time of a call, by CUDA events, after three warm-up calls."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def operands(B, H, T, D):
    """q, k, v and the gradient of the output, in torch's layout."""
    return [torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16, requires_grad=i < 3) for i in range(4)]


def report(name, attend, shape, repeats):
    """Times forward alone and with backward; prints a line."""
    B, H, T, D = shape
    q, k, v, d_o = operands(*shape)

    def both():
        q.grad = k.grad = v.grad = None
        attend(q, k, v).backward(d_o)

    with torch.no_grad():
        forward = seconds(lambda: attend(q, k, v), repeats)
    whole = seconds(both, repeats)
    flops = 2.0 * B * H * T * T * D
    print(json.dumps({"peer": name, "B": B, "H": H, "T": T, "D": D, "seconds_forward": forward,
                      "seconds_forward_backward": whole, "gflops_forward": flops / forward * 1e-9,
                      "gflops_forward_backward": 3.5 * flops / whole * 1e-9}), flush=True)


def attention(repeats):
    """Softmax attention by every backend, at every shape it supports."""
    for shape in SHAPES:
        for name, backend in BACKENDS.items():
            def attend(q, k, v, backend=backend):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            try:
                report(name, attend, shape, repeats)
            except RuntimeError as error:
                print(json.dumps({"peer": name, "shape": shape, "error": str(error)[:120]}), flush=True)


def norm(q, k, v):
    """exp(q k) v, divided by its length."""
    logits = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    mask = torch.ones(q.shape[-2], q.shape[-2], device=q.device, dtype=torch.bool).tril()
    logits = logits.masked_fill(~mask, float("-inf"))
    weights = torch.exp(logits.float() - logits.float().amax(-1, keepdim=True)).to(q.dtype)
    return F.normalize((weights @ v).float(), dim=-1).to(q.dtype)


def linear(q, k, v, chunk=128):
    """elu + 1 features in chunks with a state between them."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    B, H, T, D = q.shape
    q, k, v = (x.view(B, H, T // chunk, chunk, D) for x in (q, k, v))
    states = (k.transpose(-1, -2).float() @ v.float()).cumsum(2)
    states = torch.cat([torch.zeros_like(states[:, :, :1]), states[:, :, :-1]], 2)
    mask = torch.ones(chunk, chunk, device=q.device, dtype=q.dtype).tril()
    inside = (q @ k.transpose(-1, -2)) * mask
    return (inside @ v + q @ states.to(q.dtype)).view(B, H, T, D)


def variants(repeats):
    """Variants as a user would write them."""
    for name, attend in (("norm", norm), ("linear", linear)):
        report(name + ", eager", attend, SHAPES[0], repeats)
        report(name + ", compiled", torch.compile(attend), SHAPES[0], repeats)


# What each system is called there, and the shapes it is timed at: B, H, T, D.
SYSTEM_SHAPES = [(36, 16, 1024, 64), (8, 16, 4096, 64)]
WIDE_SHAPES = [(8, 16, 1024, 128), (8, 16, 4096, 128)]


def fla_systems(shape):
    """Yields the name of each system that imports, its operands, and a function of them."""
    B, H, T, D = shape

    def rows(unit=False):
        x = torch.randn(B, T, H, D, device="cuda")
        return (F.normalize(x, dim=-1) if unit else x).to(torch.bfloat16).requires_grad_()

    def gate(*width, scale=1.0):
        return (F.logsigmoid(torch.randn(B, T, H, *width, device="cuda") + 2) * scale).requires_grad_()

    def beta():
        return torch.rand(B, T, H, device="cuda").to(torch.bfloat16).requires_grad_()

    def op(path, name):
        try:
            return getattr(importlib.import_module("fla.ops." + path), name)
        except (ImportError, AttributeError):
            return None

    levels = torch.rand(B, T, H, T.bit_length() + 1, device="cuda").requires_grad_()
    table = [
        ("linear, decay per head", op("simple_gla", "chunk_simple_gla"), [rows(), rows(), rows(), gate()]),
        ("gla", op("gla", "chunk_gla"), [rows(), rows(), rows(), gate(D, scale=1 / 16)]),
        ("delta_net", op("delta_rule", "chunk_delta_rule"), [rows(True), rows(True), rows(), beta()]),
        ("gated_delta_net", op("gated_delta_rule", "chunk_gated_delta_rule"),
         [rows(True), rows(True), rows(), gate(), beta()]),
        ("kda", op("kda", "chunk_kda"), [rows(True), rows(True), rows(), gate(D, scale=1 / 16), beta()]),
        ("forget", op("forgetting_attn", "parallel_forgetting_attn"), [rows(), rows(), rows(), gate()]),
        ("log_linear", op("log_linear_attn", "chunk_log_linear_attn"), [rows(), rows(), rows(), gate(), levels]),
    ]
    for name, function, operands in table:
        if function:
            yield name, operands, function


def graph_seconds(work, repeats):
    """The median time of a replay of the captured call."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return seconds(graph.replay, repeats)


def systems(repeats):
    """Every system at every shape, eager and from a graph; a system that fails says why."""
    for shape in SYSTEM_SHAPES + WIDE_SHAPES:
        B, H, T, D = shape
        for name, operands, function in fla_systems(shape):
            d_o = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16)

            def forward(operands=operands, function=function):
                with torch.no_grad():
                    function(*operands)

            def both(operands=operands, function=function, d_o=d_o):
                out = function(*operands)
                torch.autograd.grad(out[0] if isinstance(out, tuple) else out, operands, d_o)

            line = {"peer": "fla " + name, "B": B, "H": H, "T": T, "D": D}
            for key, work in (("forward", forward), ("forward_backward", both)):
                for mode, clock in (("", seconds), ("_graph", graph_seconds)):
                    try:
                        line[f"seconds_{key}{mode}"] = clock(work, repeats)
                    except Exception as error:  # of any kind: a compiler's, a driver's, an assertion
                        line[f"error_{key}{mode}"] = str(error).strip()[-120:]
                        break
            print(json.dumps(line), flush=True)


class Block(torch.nn.Module):
    """One decoder layer of a Llama."""

    def __init__(self, C, H, inner):
        super().__init__()
        self.H = H
        self.norms = torch.nn.ModuleList([torch.nn.RMSNorm(C), torch.nn.RMSNorm(C)])
        self.qkv, self.o = torch.nn.Linear(C, 3 * C, bias=False), torch.nn.Linear(C, C, bias=False)
        self.up, self.down = torch.nn.Linear(C, 2 * inner, bias=False), torch.nn.Linear(inner, C, bias=False)

    def turn(self, x, table):
        a, b = x.chunk(2, -1)
        return torch.cat([a * table[0] - b * table[1], b * table[0] + a * table[1]], -1).to(x.dtype)

    def forward(self, x, table):
        B, T, C = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(B, T, 3, self.H, C // self.H).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(self.turn(q, table), self.turn(k, table), v, is_causal=True)
        x = x + self.o(o.transpose(1, 2).reshape(B, T, C))
        gate, up = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Model(torch.nn.Module):
    """A Llama without position tables in it, for timing."""

    def __init__(self, V, C, H, L, inner):
        super().__init__()
        self.embedding = torch.nn.Embedding(V, C)
        self.blocks = torch.nn.ModuleList([Block(C, H, inner) for _ in range(L)])
        self.norm, self.head = torch.nn.RMSNorm(C), torch.nn.Linear(C, V, bias=False)

    def forward(self, ids, targets, table):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, table)
        return F.cross_entropy(self.head(self.norm(x)).view(-1, self.head.out_features).float(), targets.reshape(-1))


def angles_of(T, D, device):
    """Cosines and sines of the rotary position."""
    angles = torch.arange(T, device=device)[:, None] * 10000 ** (-torch.arange(0, D, 2, device=device) / D)
    return torch.stack([angles.cos(), angles.sin()])


def cpu_seconds(work, repeats):
    """The shortest of `repeats` calls, after two to warm up."""
    times = []
    for _ in range(2 + repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times[2:])


def cpu_step(repeats, threads, precision, B=8, T=512, V=32000, C=512, H=8, L=8, inner=1024):
    """Tokens per second of the midi model on the CPU."""
    torch.set_num_threads(threads)
    model = Model(V, C, H, L, inner)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids, table = torch.randint(V, (B, T + 1)), angles_of(T, C // H, "cpu")
    for mode, run in (("eager", model), ("compiled", torch.compile(model))):
        def train(run=run):
            with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext():
                loss = run(ids[:, :-1], ids[:, 1:], table)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        try:
            taken = cpu_seconds(train, repeats)
        except Exception as error:  # of any kind: no compiler, no fused optimizer for this device
            print(json.dumps({"peer": "PyTorch, CPU, " + mode, "error": str(error).strip()[-200:]}), flush=True)
            continue
        print(json.dumps({"peer": "PyTorch, CPU, " + mode, "precision": precision, "B": B, "T": T, "V": V,
                          "threads": threads, "seconds": taken, "tokens_per_second": B * T / taken}), flush=True)


def step(repeats, B=36, T=1024, V=32000, C=1024, H=16, L=20, inner=2048):
    """Tokens per second of the compiled model."""
    model = Model(V, C, H, L, inner).cuda()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    compiled = torch.compile(model)
    ids = torch.randint(V, (B, T + 1), device="cuda")
    table = angles_of(T, C // H, "cuda")

    def train():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids[:, :-1], ids[:, 1:], table)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    taken = seconds(train, repeats)
    print(json.dumps({"peer": "torch.compile, small model", "B": B, "T": T, "seconds": taken,
                      "tokens_per_second": B * T / taken,
                      "parameters": sum(p.numel() for p in model.parameters()),
                      "memory_gib": torch.cuda.max_memory_allocated() / 2**30}), flush=True)


def main():
    """One of the jobs above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=("attention", "variants", "systems", "step", "cpu_step"))
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="cpu_step")
    parser.add_argument("--precision", choices=("float", "bf16"), default="bf16", help="cpu_step")
    arguments = parser.parse_args()
    if arguments.job == "cpu_step":
        cpu_step(arguments.repeats, arguments.threads, arguments.precision)
        return
    {"attention": attention, "variants": variants, "systems": systems, "step": step}[arguments.job](arguments.repeats)


if __name__ == "__main__":
    main()
