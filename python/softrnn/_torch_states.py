"""Attention with an initial and a final state on torch tensors, with gradients of both."""

from typing import Any, Optional, Sequence, Tuple

import torch

from . import _torch
from ._library import ArgumentTypeError, UnsupportedError
from ._numpy import as_offsets
from ._plans import Options, Plan, pool
from ._states import backward, check_state, forward, with_states
from ._torch import Tensor
from ._variants import Variant


def _address(tensor: Optional[Tensor]) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _take(variant: Variant, tensors: Sequence[Tensor], documents: Optional[Any], options: Options) -> Plan:
    plan = _torch._take_plan(variant, tensors, options)
    plan.documents(documents)
    plan.inputs.set_addresses([tensor.data_ptr() for tensor in tensors])
    return plan


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Tuple[Any, ...], initial: Optional[Tensor], *tensors: Tensor) -> Tuple[Tensor, Tensor]:
        variant, documents, options, shape = call
        plan = _take(variant, tensors, documents, options)
        try:
            saved = tensors[0].new_empty(plan.saved_bytes, dtype=torch.uint8)
            o = _torch._output(tensors[0], plan.shape)
            final = tensors[0].new_empty(shape, dtype=_state_type(tensors[0].dtype))
            forward(plan, o.data_ptr(), saved.data_ptr(), _address(initial), final.data_ptr())
        finally:
            pool.give_back(plan)
        ctx.call = (variant, documents, options)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(saved, initial, *tensors)
        return o, final

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: Optional[Tensor], d_final: Optional[Tensor]) -> Any:
        saved, initial, *tensors = ctx.saved_tensors
        wants_initial, *wanted = ctx.needs_input_grad[1:]
        plan = _take(ctx.call[0], tensors, *ctx.call[1:])
        try:
            d_o = tensors[0].new_zeros(plan.shape) if d_o is None else _torch._readable(d_o)
            d_final = None if d_final is None else d_final.contiguous()
            d_initial = torch.empty_like(initial) if wants_initial else None
            plan.d_o.set_strides(d_o.stride())
            results = [torch.empty_like(tensor) if want else None for tensor, want in zip(tensors, wanted)]
            for index, gradient in enumerate(results):
                if gradient is not None:
                    plan.gradients.set_strides(index, gradient.stride())
            plan.gradients.set_addresses([_address(gradient) for gradient in results])
            backward(plan, d_o.data_ptr(), saved.data_ptr(), _address(initial), _address(d_final), _address(d_initial))
        finally:
            pool.give_back(plan)
        return (None, d_initial, *results)


def _state_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _check_types(variant: Variant, tensors: Sequence[Tensor]) -> None:
    """Nothing is converted here: a state would have been rounded with its operands."""
    q = tensors[0]
    if q.dtype not in _torch._NAMES or (q.dtype == torch.bfloat16 and q.device.type == "cpu"):
        raise ArgumentTypeError(f"q is of type {q.dtype}; with states float32 or float64 is needed, or bfloat16 on a GPU")
    _torch._check_operands(variant, tensors)


def attention(variant: Variant, tensors: Sequence[Any], documents: Optional[Any], options: Options, initial: Optional[Any],
              wanted: bool) -> Any:
    """o, and the final state if it is wanted."""
    if _torch.is_traced((*tensors, initial)):
        raise UnsupportedError("initial_state and return_state cannot be traced or transformed (torch.compile, vmap, func.grad): "
                               "call softrnn.attention outside")
    _torch._check_tensors(variant.operands, tensors)
    _check_types(variant, tensors)
    tensors = [_torch._plain(tensor) for tensor in tensors]
    q = tensors[0]
    options, shape = with_states(variant, _torch._NAMES[q.dtype], [tuple(tensor.shape) for tensor in tensors], options,
                                 _torch._place(q.device))
    if initial is not None:
        _torch._check_tensors(("q", "initial_state"), (q, initial))
        check_state(initial.shape, str(initial.dtype), shape, str(_state_type(q.dtype)))
        initial = initial.contiguous()
    if documents is not None:
        documents = as_offsets(documents.cpu() if isinstance(documents, Tensor) else documents)
    o, final = _Attention.apply((variant, documents, options, shape), initial, *tensors)
    return (o, final) if wanted else o
