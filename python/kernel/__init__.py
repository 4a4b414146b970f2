"""Softmax attention as an RNN, and every variant of it, as a kernel of the Hugging Face Hub.

The whole package, with states, layers and the laboratory, is softrnn itself (pip install softrnn)."""

from functools import lru_cache
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from ._library import lib
from ._operators import forward, names_of

__version__ = lib.srnn_version().decode()
__all__ = ["attention", "variants"]

_names = lru_cache(maxsize=1024)(names_of)


def variants() -> List[str]:
    """The names of variants; families with a number (order:N, power:p, ..) and text forms are taken too."""
    found: List[str] = []
    while True:
        row = lib.srnn_variant_at(len(found))
        if not row:
            return found
        found.append(row.contents.name.decode())


def attention(q: Tensor, k: Tensor, v: Tensor, attention: str = "softmax", *, documents: Optional[Tensor] = None,
              form: str = "auto", chunk: int = 0, threads: int = 0, **operands: Tensor) -> Tensor:
    """Causal attention of any variant: o (B, H, T, Dv), with gradients.

    q is (B, H, T, D), k (B, Hkv, T, D) and v (B, Hkv, T, Dv), with their position applied. attention: a name or a text
    form; gates and learned vectors that the variant reads are given by name, before their sigmoid. documents: where
    packed documents start, counted over all B*T tokens, and where the last one ends. form: auto, parallel, chunked or
    recurrent. float32 and float64 (on the CPU), float32 and bfloat16 (on a GPU) are computed as they are, other types in
    float32."""
    names = _names(attention)
    given = dict(operands, q=q, k=k, v=v)
    for name in (*names, *operands):
        if name not in given:
            raise ValueError(f"{attention} reads {name}, which was not given")
        if name not in names:
            raise ValueError(f"{name} is not read by {attention}, which reads {', '.join(names)}")
        if not given[name].is_floating_point():
            raise ValueError(f"{name} is of type {given[name].dtype}; a floating type is needed")
        if given[name].device != q.device:
            raise ValueError(f"{name} is on {given[name].device}, and q on {q.device}")
    for name, value in (("chunk", chunk), ("threads", threads)):
        if not 0 <= value < 2**31:
            raise ValueError(f"{name} must be from 0 (chosen by the library) to {2**31 - 1}, not {value}")
    computed, vectors = _types(q)
    tensors = [given[name].to(vectors if given[name].dim() < 3 else computed) for name in names]
    return forward(tensors, documents, attention, form, chunk, threads)[0].to(q.dtype)


def _types(q: Tensor) -> Tuple[Any, Any]:
    """The types in which the library computes, of tensors and of learned vectors."""
    if q.dtype == torch.float64 and q.device.type == "cpu":
        return torch.float64, torch.float64
    bfloat16 = q.dtype == torch.bfloat16 and q.device.type != "cpu"
    return torch.bfloat16 if bfloat16 else torch.float32, torch.float32
