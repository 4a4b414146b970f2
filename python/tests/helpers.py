"""What several tests use: operands of any variant, and attention once more, plainly."""
import unittest

import numpy as np

import softrnn
from softrnn._library import text
from softrnn._plans import CPU, Options, Sizes, make_problem
from softrnn._variants import operands_of

try:
    import torch
except ImportError:
    torch = None

needs_torch = unittest.skipUnless(torch, "torch is not installed")


def shapes(attention, B=1, H=2, Hkv=1, T=5, D=4, Dv=3):
    """The shape of everything that a variant reads."""
    problem, _ = make_problem(softrnn.parse(attention), Sizes("float64", B, H, Hkv, T, D, Dv), Options(), CPU)
    return {text(o.name): tuple(o.sizes[i] for i in range(o.rank)) for o in operands_of(problem)}


def operands(attention, seed=0, dtype="float64", **sizes):
    """Random operands by name."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes(attention, **sizes).items()}


def softmax(q, k, v):
    """Softmax attention, plainly."""
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3])
    s = np.where(np.tril(np.ones(s.shape[2:], bool)), s, -np.inf)
    w = np.exp(s - s.max(axis=3, keepdims=True))
    return w @ v / w.sum(axis=3, keepdims=True)


def is_computed(variant):
    """Whether the CPU has a kernel for it."""
    try:
        softrnn.attention(**operands(variant), attention=variant)
    except softrnn.UnsupportedError:
        return False
    return True


def each_variant():
    """Every named variant that can be computed, once per meaning."""
    found = {variant.text: variant for variant in softrnn.variants()}.values()
    computed = [variant for variant in found if is_computed(variant)]
    assert len(computed) >= 35, f"{len(computed)} of {len(found)} variants"
    return computed
