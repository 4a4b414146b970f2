"""How the layer of a variant is wired, as the laboratory's library says it: which projections, convolutions and learned
tensors make what the equation reads."""

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from ._library import ArgumentError, UnsupportedError, check, ffi, text
from ._variants import Variant
from .lab import lab

# The names that config.json has for sizes of a layer (softrnn_sizes), and those of srnl_layer_sizes.
_SIZES = {"heads": "heads", "groups": "kv_heads", "key_size": "key_size", "value_size": "value_size", "rank": "rank",
          "levels": "levels"}


class Projection(NamedTuple):
    """A linear layer from columns of the row of a token, or from the layer's input, to further columns of it."""

    name: str
    bias: bool
    source: int  # -1: the layer's input
    inputs: int
    first: int
    outputs: int


class Convolution(NamedTuple):
    """A causal convolution, and SiLU unless it is plain, from columns of that row to columns of a second one."""

    name: str
    bias: bool
    source: int
    first: int
    columns: int
    taps: int
    plain: bool


class LayerOperand(NamedTuple):
    """Where an operand of the equation comes from."""

    name: str
    learned: Optional[str]  # the tensor that it is, or that is added to its columns
    shape: Tuple[int, ...]  # with B = T = 1
    over_tokens: bool
    convolved: bool  # its columns are those of the second row
    first: int
    columns: int


class Layer:
    """The description of a layer. sizes: members of srnl_layer_sizes."""

    def __init__(self, variant: Variant, sizes: Dict[str, int]):
        self.variant, self.sizes = variant, sizes
        handle = self._handle()
        self.tensors: List[Tuple[str, Tuple[int, ...]]] = [
            (text(t.name), tuple(t.sizes[0:t.rank])) for t in _list(handle, "srnl_layer_tensor", lab.srnl_layer_tensor_at)]
        self.projections = [
            Projection(_module(p.weight), bool(p.bias), p.source, p.inputs, p.to, p.outputs)
            for p in _list(handle, "srnl_layer_projection", lab.srnl_layer_projection_at)]
        self.convolutions = [
            Convolution(_module(c.weight), bool(c.bias), c.source, c.to, c.columns, c.taps, bool(c.plain))
            for c in _list(handle, "srnl_layer_convolution", lab.srnl_layer_convolution_at)]
        self.operands = [
            LayerOperand(text(o.name), text(o.learned) if o.learned else None, tuple(o.sizes[0:o.rank]), bool(o.over_tokens),
                         bool(o.convolved), o.first, o.columns)
            for o in _list(handle, "srnl_layer_operand", lab.srnl_layer_operand_at)]
        ends = lab.srnl_layer_ends_of(handle)
        self.output, self.output_bias = _module(ends.weight), bool(ends.bias)
        self.own_norm = text(ends.own_norm) if ends.own_norm else None

    def _handle(self) -> Any:
        out = ffi.new("srnl_layer **")
        check(lab.srnl_layer_create(out, self.variant._struct, _struct(self.sizes)))
        return ffi.gc(out[0], lab.srnl_layer_free)

    def first_values(self, seed: int) -> Iterator[Tuple[str, np.ndarray]]:
        """What each tensor starts with in a new model, as softrnn train draws it."""
        handle = self._handle()
        for index, (name, shape) in enumerate(self.tensors):
            values = np.empty(shape, np.float32)
            check(lab.srnl_layer_start(handle, index, ffi.cast("float *", values.ctypes.data), 0.0, seed))
            yield name, values


def _struct(sizes: Dict[str, int]) -> Any:
    struct = ffi.new("srnl_layer_sizes *")
    for name, value in sizes.items():
        try:
            setattr(struct, name, value)
        except (OverflowError, TypeError):
            raise ArgumentError(f"{name} must be a number that fits, not {value!r}") from None
    return struct


def _list(handle: Any, kind: str, at: Callable[..., bool]) -> Iterator[Any]:
    row = ffi.new(kind + " *")
    index = 0
    while at(handle, row, index):
        yield row
        index += 1


def _module(weight: Any) -> str:
    """The linear layer or convolution that a tensor is the weight of."""
    return text(weight)[:-len(".weight")]


def layer_of(variant: Variant, given: Dict[str, int], own: Optional[Dict[str, int]]) -> Layer:
    """given: dim, layers, bias, output_bias, and heads, kv_heads and key_size of the model around the layer. own: sizes of the
    layer itself, by their names in config.json; those that are missing are the usual ones."""
    struct = _struct(given)
    lab.srnl_layer_usual(struct, variant._struct)
    sizes = {**given, **{name: int(getattr(struct, name)) for name in _SIZES.values()}}
    for name, value in (own or {}).items():
        if name not in _SIZES:
            raise ArgumentError(f"a layer has no size '{name}'; sizes are {', '.join(_SIZES)}")
        sizes[_SIZES[name]] = value
    return Layer(variant, sizes)


def is_described(variant: Variant) -> bool:
    """Whether the library describes the variant's layer as projections and convolutions, from which torch can build it."""
    try:
        layer_of(variant, dict(dim=64, heads=4, kv_heads=4, key_size=16), None)
    except UnsupportedError:
        return False
    return True
