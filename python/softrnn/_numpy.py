"""Attention on NumPy arrays, and on whatever gives its memory as one (__array_interface__, __dlpack__)."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ._library import ArgumentError, ArgumentTypeError
from ._plans import CPU, Options, Plan, empty_output, pool, sizes_of
from ._variants import Variant

ALIGNMENT = 64
_COMPUTED = {"float32": "float32", "float64": "float64", "float16": "float32"}


def as_array(value: Any, name: str) -> np.ndarray:
    """The same memory as a NumPy array."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as error:
            raise ArgumentTypeError(f"{name}: {error}") from None
    raise ArgumentTypeError(f"{name} must be an array, not {type(value).__name__}")


def as_offsets(documents: Optional[Any]) -> Optional[np.ndarray]:
    """Document offsets as C reads them."""
    if documents is None:
        return None
    offsets = np.asarray(documents)
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.size < 2:
        raise ArgumentTypeError("documents must be a list of at least two whole numbers: where each document starts, "
                                "and where the last one ends")
    return np.ascontiguousarray(offsets, dtype=np.int64)


def aligned(count: int, dtype: Any = np.uint8) -> np.ndarray:
    """An array whose memory starts where the library wants it."""
    size = np.dtype(dtype).itemsize
    memory = np.empty(count * size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start:start + count * size].view(dtype)


def _strides(array: np.ndarray, name: str) -> Tuple[int, ...]:
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        raise ArgumentError(f"{name}: its numbers do not lie at multiples of their size; copy it first")
    return tuple(stride // size for stride in array.strides)


def _check_types(names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    dtype = arrays[0].dtype
    if dtype.name not in _COMPUTED or not dtype.isnative:
        raise ArgumentTypeError(f"q is of type {dtype}; float32 or float64 is needed")
    for name, array in zip(names, arrays):
        if array.dtype != dtype:
            raise ArgumentTypeError(f"{name} is of type {array.dtype}; like q it must be {dtype}")


def _make_plan(key: Any, variant: Variant, arrays: Sequence[np.ndarray], options: Options) -> Plan:
    """Checks everything about a call that its key says."""
    _check_types(variant.operands, arrays)
    shapes = [array.shape for array in arrays]
    plan = Plan(key, variant, sizes_of(variant, arrays[0].dtype.name, *shapes[:3]), options, CPU)
    try:
        plan.set_strides(shapes, [_strides(array, name) for array, name in zip(arrays, variant.operands)])
    except Exception:
        plan.free()
        raise
    return plan


def _take_plan(variant: Variant, arrays: Sequence[np.ndarray], options: Options) -> Plan:
    """A plan whose inputs are these arrays."""
    key = (variant.text, options, *[(array.shape, array.strides, array.dtype) for array in arrays])
    try:
        plan = pool.take(key)
    except TypeError:  # something in the options has no hash
        options.checked()
        raise
    if plan is None:
        plan = _make_plan(key, variant, arrays, options)
    plan.inputs.set_addresses([_address(array, plan) for array in arrays])
    return plan


def _address(array: np.ndarray, plan: Plan) -> int:
    address: int = array.__array_interface__["data"][0]
    if address % array.itemsize:
        pool.give_back(plan)
        raise ArgumentError("an array's numbers do not lie at multiples of their size; copy it first")
    return address


def _forward(plan: Plan, dtype: Any, documents: Optional[np.ndarray], saved: int) -> np.ndarray:
    plan.documents(documents)
    o = np.empty(plan.shape, dtype)
    plan.forward(o.__array_interface__["data"][0], saved)
    return o


def _arrays(variant: Variant, values: Sequence[Any]) -> Tuple[List[np.ndarray], Any]:
    """Operands as arrays that the library reads, and the type of the result."""
    arrays = [value if type(value) is np.ndarray else as_array(value, name)
              for value, name in zip(values, variant.operands)]
    dtype = arrays[0].dtype
    if dtype == np.float16:
        _check_types(variant.operands, arrays)
        arrays = [array.astype(np.float32) for array in arrays]
    return [plain(array) for array in arrays], dtype


def plain(array: np.ndarray) -> np.ndarray:
    """The same numbers, none of which lies at the place of another: an expanded axis is copied out."""
    expanded = 0 in array.strides and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape))
    return np.ascontiguousarray(array) if expanded else array


def _nothing(variant: Variant, arrays: Sequence[np.ndarray]) -> Optional[np.ndarray]:
    """o where there is no sequence (B = 0) or no token (T = 0); None otherwise."""
    if arrays[0].size:
        return None
    _check_types(variant.operands, arrays)
    shape = empty_output(variant, [array.shape for array in arrays])
    return None if shape[0] and shape[2] else np.zeros(shape, arrays[0].dtype)


def attention(variant: Variant, values: Sequence[Any], documents: Optional[Any], options: Options) -> np.ndarray:
    """o (B, H, T, Dv)."""
    arrays, dtype = _arrays(variant, values)
    offsets = as_offsets(documents)
    empty = _nothing(variant, arrays)
    if empty is not None:
        return empty.astype(dtype)
    plan = _take_plan(variant, arrays, options)
    try:
        o = _forward(plan, arrays[0].dtype, offsets, 0)
    finally:
        pool.give_back(plan)
    return o if o.dtype == dtype else o.astype(dtype)


def gradients(variant: Variant, d_o: Any, values: Sequence[Any], documents: Optional[Any],
              options: Options) -> Dict[str, np.ndarray]:
    """The gradient of every operand, and o, by name."""
    arrays, dtype = _arrays(variant, values)
    offsets = as_offsets(documents)
    d_o = as_array(d_o, "d_o")
    empty = _nothing(variant, arrays)
    if empty is not None:
        return {"o": empty.astype(dtype),
                **{name: np.zeros(array.shape, dtype) for name, array in zip(variant.operands, arrays)}}
    plan = _take_plan(variant, arrays, options)
    try:
        if d_o.shape != plan.shape or d_o.dtype != dtype:
            raise ArgumentError(f"d_o has the shape {d_o.shape} and type {d_o.dtype}; {plan.shape} and {dtype} are "
                                "needed")
        d_o = np.ascontiguousarray(d_o, dtype=arrays[0].dtype)
        saved = aligned(plan.saved_bytes)
        results = {"o": _forward(plan, arrays[0].dtype, offsets, saved.ctypes.data)}
        found = [np.empty(operand.shape, arrays[0].dtype) for operand in plan.operands]  # strides of 0: contiguous
        plan.gradients.set_addresses([gradient.ctypes.data for gradient in found])
        results.update(zip(variant.operands, found))
        plan.backward(d_o.ctypes.data, saved.ctypes.data)
    finally:
        pool.give_back(plan)
    return {name: result.astype(dtype, copy=False) for name, result in results.items()}
