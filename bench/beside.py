#!/usr/bin/env python3
"""beside.py: attention of this library and of cuDNN (through PyTorch) on one GPU, alternating.

Usage: beside.py PATH/TO/test_attention_hopper

Causal, bf16, the five large shapes. For each: cuDNN, ours (which also checks itself, twice for the same bits), cuDNN
again. Both sides idle for 60 ms before each measurement and then run back to back, so that each figure is the time per
call. One line per side and shape; cuDNN's are the better of its two. Needs PyTorch with CUDA.
"""
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from peers import SHAPES, operands

CALLS = 20


def milliseconds(work):
    """Time per call over CALLS calls, after three warm-up calls, on an idle GPU."""
    torch.cuda.synchronize()
    time.sleep(0.06)
    for _ in range(3):
        work()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / CALLS


def cudnn(shape):
    """Forward alone, and backward alone."""
    q, k, v, d_o = operands(*shape)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        with torch.no_grad():
            forward = milliseconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        backward = milliseconds(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))
    return forward, backward


def main():
    """All shapes."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for number, (B, H, T, D) in enumerate(SHAPES):
        before = cudnn((B, H, T, D))
        torch.cuda.empty_cache()
        ours = subprocess.run([sys.argv[1], "large", str(number)], check=False, capture_output=True, text=True)
        after = cudnn((B, H, T, D))
        forward, backward = (min(pair) for pair in zip(before, after))
        product = B * H * T * T * D * 1e-9
        print(f"B{B:<2} H{H} T{T:<5} D{D:<3} {'cuDNN':28} forward {forward:.3f} ms {2 * product / forward:4.0f} TFLOP/s,"
              f" backward {backward:.3f} ms {5 * product / backward:4.0f} TFLOP/s")
        print(ours.stdout, end="", flush=True)
        if ours.returncode:
            sys.exit(ours.stderr or f"failed with {ours.returncode}")


main()
