"""Attention with an initial and a final state, for rows that are cut into pieces."""

from contextlib import nullcontext
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from . import _numpy
from ._library import ArgumentError, ArgumentTypeError, check, ffi, lib
from ._plans import CPU, Options, Place, Plan, make_problem, pool, sizes_of
from ._variants import Variant

Shape = Tuple[int, ...]


def with_states(variant: Variant, dtype: str, shapes: Sequence[Shape], options: Options, place: Place) -> Tuple[Options, Shape]:
    """The options of a call with states, which are those of the chunked form and of a kernel that takes them; and the shape
    of a state, (B, heads, F, W), as in softrnn.h. Another form or kernel that was given is the library's to judge. Raises for a
    variant without such a state."""
    options = options._replace(form="chunked") if options.form == "auto" else options
    problem, _keep = make_problem(variant, sizes_of(variant, dtype, *shapes[:3]), options.checked(), place)
    sizes = ffi.new("int64_t[4]")
    check(lib.srnn_states_sizes(sizes, problem))
    if place is not CPU and options.kernel is None:
        options = options._replace(kernel="chunks")  # the one of a GPU that takes states, not always the fastest without
    return options, tuple(sizes)


def check_state(shape: Shape, dtype: str, expected: Shape, expected_type: str) -> None:
    if tuple(shape) != expected:
        raise ArgumentError(f"initial_state has the shape {tuple(shape)}; {expected} is needed")
    if dtype != expected_type:
        raise ArgumentTypeError(f"initial_state is of type {dtype}; {expected_type} is needed")


def _call(plan: Plan, function: Any, arguments: Sequence[Any], saved: int, **states: int) -> None:
    """states: addresses; 0: none."""
    struct = ffi.new("srnn_states *", {name: ffi.cast("void *", address) for name, address in states.items()})
    with plan.place.lock or nullcontext():
        check(function(plan.plan, *arguments, ffi.cast("void *", saved), struct))


def forward(plan: Plan, o: int, saved: int, initial: int, final: int) -> None:
    plan.o.words[0] = o
    _call(plan, lib.srnn_attention_states_forward, (plan.o.struct[0], plan.inputs.struct), saved, initial=initial, final=final)


def backward(plan: Plan, d_o: int, saved: int, initial: int, d_final: int, d_initial: int) -> None:
    plan.d_o.words[0] = d_o
    _call(plan, lib.srnn_attention_states_backward, (plan.gradients.struct, plan.d_o.struct[0], plan.inputs.struct), saved,
          initial=initial, d_final=d_final, d_initial=d_initial)


def attention(variant: Variant, values: Sequence[Any], documents: Optional[Any], options: Options, initial: Optional[Any],
              wanted: bool) -> Any:
    """NumPy arrays: o, and the final state if it is wanted."""
    arrays, dtype = _numpy._arrays(variant, values)
    offsets = _numpy.as_offsets(documents)
    options, shape = with_states(variant, arrays[0].dtype.name, [array.shape for array in arrays], options, CPU)
    if initial is not None:
        initial = np.ascontiguousarray(_numpy.as_array(initial, "initial_state"))
        check_state(initial.shape, initial.dtype.name, shape, arrays[0].dtype.name)
    final = np.empty(shape, arrays[0].dtype)
    plan = _numpy._take_plan(variant, arrays, options)
    try:
        plan.documents(offsets)
        o = np.empty(plan.shape, arrays[0].dtype)
        forward(plan, o.ctypes.data, 0, 0 if initial is None else initial.ctypes.data, final.ctypes.data)
    finally:
        pool.give_back(plan)
    o = o.astype(dtype, copy=False)
    return (o, final) if wanted else o
