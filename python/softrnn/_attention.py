"""The functions of the package, for every kind of array."""

import math
import numbers
import sys
from typing import Any, Dict, Optional, Tuple, Union

from . import _numpy, _states
from ._library import ArgumentError, ArgumentTypeError
from ._plans import TENSORS, Options, named_operands, operand_table
from ._variants import Variant, described_scale, parse


def is_torch(value: Any) -> bool:
    """Whether it is a tensor of torch, which is not imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


_loaded: Any = None


def _torch_module() -> Any:
    """_torch, imported with the first tensor: the package does not need torch."""
    global _loaded
    if _loaded is None:
        from . import _torch as _loaded
    return _loaded


def _torch_states() -> Any:
    """The same for calls with states."""
    from . import _torch_states as loaded
    return loaded


def attention(q: Any, k: Any, v: Any, attention: Union[str, Variant] = "softmax", *, documents: Any = None,
              form: str = "auto", chunk: int = 0, kernel: Optional[str] = None, threads: int = 0,
              state_limit: int = 0, levels: int = 0, rope_theta: float = 0.0, scale: Optional[float] = None,
              layout: str = "bhtd", initial_state: Any = None, return_state: bool = False, **operands: Any) -> Any:
    """Causal attention of any variant: o (B, H, T, Dv), or (o, state) with return_state.

    q is (B, H, T, D), k (B, Hkv, T, D) and v (B, Hkv, T, Dv), with their position applied; H is a multiple of Hkv.
    NumPy arrays give a NumPy array; torch tensors give a tensor on the same device, with gradients. Nothing is copied:
    float32 and float64 (on the CPU), float32 and bfloat16 (on a GPU) are read where they are, with any strides whose
    last is 1. Other floating types are computed in float32 and rounded back.

    attention: a name, a text form or softrnn.parse's result. Gates and learned vectors that the variant reads
    (softrnn.parse(...).operands) are given by name, before their sigmoid, with the shapes below.

    documents: where packed documents start, counted over all B*T tokens, and where the last one ends; a token sees its
    own document only. form: "auto", "parallel", "chunked" (a state between chunks of `chunk` tokens) or "recurrent".
    kernel, threads, state_limit (bytes), levels (of a level gate) and rope_theta (of rotations that the equation does
    itself; 0: 10000): as in softrnn.h.

    scale: of the scores, in place of the variant's own (1 / sqrt(D), where it has one). layout: "bthd": q, k, v, gates and o have
    their tokens before their heads, (B, T, H, ..), as in flash-linear-attention.

    initial_state, return_state: the recurrent state (B, heads, F, W), as srnn_states in softrnn.h has it, before the first token
    (of the row's first document) and after the last (of its last document), for rows that are cut into pieces. With torch
    gradients pass through both. Only variants whose state is a matrix have one; a token at a time, with any variant, is
    softrnn.State.

    >>> q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 4, 32, 16))
    >>> o, state = softrnn.attention(q[:, :, :20], k[:, :, :20], v[:, :, :20], "order:1", return_state=True)
    >>> rest = softrnn.attention(q[:, :, 20:], k[:, :, 20:], v[:, :, 20:], "order:1", initial_state=state)
    >>> bool(numpy.abs(rest - softrnn.attention(q, k, v, "order:1")[:, :, 20:]).max() < 1e-9)
    True
    >>> softrnn.attention(q, k, v, "norm").shape
    (1, 4, 32, 16)
    >>> a = softrnn.attention(q, k, v, "order:2", form="parallel")
    >>> b = softrnn.attention(q, k, v, "order:2", form="chunked", chunk=8)
    >>> bool(numpy.abs(a - b).max() < 1e-9)
    True
    >>> softrnn.attention(q, k, v, "gate")
    Traceback (most recent call last):
    softrnn.ArgumentError: gate reads output_gate, which was not given
    """
    options = Options(form, chunk, kernel, threads, state_limit, levels, rope_theta)
    states = (initial_state, return_state) if initial_state is not None or return_state else None
    if layout != "bhtd":
        swapped = _swapped(layout, {**operands, "q": q, "k": k, "v": v})
        found = _attend(swapped.pop("q"), swapped.pop("k"), swapped.pop("v"), attention, documents, options, scale, states, swapped)
        return (found[0].swapaxes(1, 2), found[1]) if return_state else found.swapaxes(1, 2)
    return _attend(q, k, v, attention, documents, options, scale, states, operands)


def _swapped(layout: str, values: Dict[str, Any]) -> Dict[str, Any]:
    """Operands (B, T, heads, ..) as (B, heads, T, ..)."""
    if layout != "bthd":
        raise ArgumentError(f"layout must be bhtd, for (B, H, T, D), or bthd, for (B, T, H, D), not {layout!r}")
    return {name: value.swapaxes(1, 2) if name in TENSORS and _has_axes(value) and value.ndim > 2 else value
            for name, value in values.items()}


def _has_axes(value: Any) -> bool:
    return is_torch(value) or hasattr(value, "swapaxes")  # tensors first: older torch.compile knows no hasattr of them


def _factor(q: Any, scale: Any, attention: Union[str, Variant]) -> float:
    """What q is multiplied by, so that the scores have another scale than the variant's own."""
    own, feature = (_torch_module().described_scale if is_torch(q) else described_scale)(attention)
    if isinstance(scale, bool) or not isinstance(scale, numbers.Real):  # NumPy's are
        raise ArgumentTypeError(f"scale must be a number, not {type(scale).__name__}")
    scale = float(scale)
    if not math.isfinite(scale):
        raise ArgumentError(f"scale must be finite, not {scale}")
    if feature != "identity":
        raise ArgumentError(f"scale is given, and the variant's feature={feature} does not keep it: scale the output or the values")
    factor: float = scale * q.shape[-1] ** 0.5 if own == "inverse_sqrt" else scale
    return factor


def _attend(q: Any, k: Any, v: Any, attention: Union[str, Variant], documents: Any, options: Options, scale: Optional[float],
            states: Optional[Tuple[Any, bool]], operands: Dict[str, Any]) -> Any:
    """states: the initial one and whether the final one is wanted; None: neither."""
    if scale is not None:
        q = q * _factor(q, scale, attention)
    torch = _torch_module() if is_torch(q) else None
    if torch is not None:
        given = (q, k, v, *operands.values()) if operands else (q, k, v)
        torch.refuse_tangents(given)
        if states is None and torch.is_traced(given):
            return torch.traced(attention, (q, k, v, operands), documents, options)
    variant = parse(attention)
    values = named_operands(variant, q, k, v, operands)
    if states is not None:
        return (_torch_states() if torch is not None else _states).attention(variant, values, documents, options, *states)
    if torch is not None:
        return torch.attention(variant, values, documents, options)
    return _numpy.attention(variant, values, documents, options)


def gradients(d_o: Any, q: Any, k: Any, v: Any, attention: Union[str, Variant] = "softmax", *, documents: Any = None,
              form: str = "auto", chunk: int = 0, kernel: Optional[str] = None, threads: int = 0,
              state_limit: int = 0, levels: int = 0, rope_theta: float = 0.0, scale: Optional[float] = None,
              layout: str = "bhtd", **operands: Any) -> Dict[str, Any]:
    """Gradients on NumPy arrays: {"o": the output, "q": d_q, "k": d_k, ...} for all that the variant reads, given the
    gradient d_o (B, H, T, Dv) of the output. Everything else is as in attention(). (With torch, call backward.)

    >>> d_o, q, k, v = numpy.random.default_rng(0).normal(size=(4, 1, 2, 8, 4))
    >>> sorted(softrnn.gradients(d_o, q, k, v, "softmax"))
    ['k', 'o', 'q', 'v']
    """
    if is_torch(q):
        raise ArgumentTypeError("q is a torch tensor, whose gradients backward() gives")
    variant, options = parse(attention), Options(form, chunk, kernel, threads, state_limit, levels, rope_theta)
    swapped = layout != "bhtd"
    if swapped:
        values = _swapped(layout, {**operands, "q": q, "k": k, "v": v})
        d_o, q, k, v, operands = _numpy.as_array(d_o, "d_o").swapaxes(1, 2), values.pop("q"), values.pop("k"), values.pop("v"), values
    factor = 1.0 if scale is None else _factor(q, scale, attention)
    q = q if scale is None else q * factor
    found = _numpy.gradients(variant, d_o, named_operands(variant, q, k, v, operands), documents, options)
    if scale is not None:
        found["q"] *= factor
    return {"o": found.pop("o").swapaxes(1, 2), **_swapped(layout, found)} if swapped else found


attention.__doc__ = f"""{attention.__doc__}
    Operands (H: heads of the output; Hkv, Hq and Hv: of k, q and v, where heads share them):

{operand_table()}
    """
