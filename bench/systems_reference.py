#!/usr/bin/env python3
"""Times the chunked kernels of related systems against references in PyTorch on the CPU, forward and with backward.

The references compute the cores (no gates, norms or convolutions) like the plain versions of the public code: token by token on a
state, and in chunks of matrix products, the delta rule by a triangular solve. All of ours is timed: decays, gates and norms
included. PyTorch keeps every state for its backward: with backward, token by token, T = 4096 needs several GB. One JSON line
each. Usage: bench/systems_reference.py [PROGRAM] [T] [H] [D]
"""
import json
import subprocess
import sys
import time

import torch

CHUNK = 64


def recurrent(q, k, v, log_decay, beta):
    """log_decay (B, H, T, 1 or D) and beta (B, H, T) may be None."""
    B, H, T, D = q.shape
    state = q.new_zeros(B, H, D, v.shape[-1])
    out = []
    for t in range(T):
        if log_decay is not None:
            state = state * log_decay[:, :, t, :, None].exp()
        key, value = k[:, :, t], v[:, :, t]
        if beta is not None:
            value = (value - (state * key[..., None]).sum(-2)) * beta[:, :, t, None]
        state = state + key[..., None] * value[..., None, :]
        out.append((q[:, :, t, :, None] * state).sum(-2))
    return torch.stack(out, 2)


def chunked(q, k, v, log_decay, beta):
    B, H, T, D = q.shape
    state = q.new_zeros(B, H, D, v.shape[-1])
    seen = torch.ones(CHUNK, CHUNK, dtype=torch.bool).tril()
    out = []
    for t in range(0, T, CHUNK):
        part = slice(t, t + CHUNK)
        total = log_decay[:, :, part].cumsum(2)
        last = total[:, :, -1:]
        risen, near = q[:, :, part] * total.exp(), (k[:, :, part] * (-total).exp()).transpose(-1, -2)
        value = v[:, :, part]
        if beta is not None:
            own, gate = k[:, :, part] * total.exp(), beta[:, :, part, None]
            taken = gate * (own @ near).tril(-1) + torch.eye(CHUNK)
            value = torch.linalg.solve_triangular(taken, gate * (value - own @ state), upper=False, unitriangular=True)
        out.append(risen @ state + (risen @ near).masked_fill(~seen, 0.0) @ value)
        late = k[:, :, part] * (last - total).exp()
        state = state * last.transpose(-1, -2).exp() + late.transpose(-1, -2) @ value
    return torch.cat(out, 2)


def problem(name, T, H, D):
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, H, T, D) for _ in range(3))
    if name == "gla":
        return q / D**0.5, k, v, torch.nn.functional.logsigmoid(torch.randn(1, H, T, D)) / 16, None
    log_decay = -torch.nn.functional.softplus(torch.randn(1, H, T, 1)) * 0.1
    if name == "mamba2":
        return q, k, v, log_decay, None
    k = torch.nn.functional.normalize(k, dim=-1)
    return q / D**0.5, k, v, log_decay, torch.rand(1, H, T)


def seconds(function, rounds):
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def with_backward(core, operands):
    inputs = [x if x is None else x.detach().requires_grad_() for x in operands]
    core(*inputs).sum().backward()


def compare(name, core, operands, ours, rounds):
    line = {"variant": name, "reference": core.__name__}
    with torch.no_grad():
        forward = seconds(lambda: core(*operands), rounds)
    both = seconds(lambda: with_backward(core, operands), rounds)
    for key, theirs in (("forward", forward), ("forward_backward", both)):
        own = ours[f"seconds_{key}"]
        line |= {f"seconds_{key}": own, f"torch_seconds_{key}": theirs, f"times_faster_{key}": theirs / own}
    print(json.dumps(line), flush=True)


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/cli/softrnn"
    T, H, D = (int(sys.argv[n]) if len(sys.argv) > n else size for n, size in ((2, 1024), (3, 8), (4, 64)))
    torch.set_num_threads(2)
    for name in ("mamba2", "gla", "gated_delta_net"):
        operands = problem(name, T, H, D)
        command = [program, "bench", "attention", "--attention", name, "--form", "chunked", "--T", str(T), "--H", str(H),
                   "--D", str(D), "--threads", "2", "--repeats", "7", "--backward"]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with torch.no_grad():
            assert torch.allclose(recurrent(*operands), chunked(*operands), atol=2e-3, rtol=1e-3)
        compare(name, recurrent, operands, ours, 2)
        compare(name, chunked, operands, ours, 5)


if __name__ == "__main__":
    main()
