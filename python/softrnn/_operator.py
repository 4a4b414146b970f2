"""Attention as operators of torch.library, which torch.compile and torch.export know: torch 2.4 and newer."""

from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import _torch
from ._numpy import as_offsets
from ._plans import Options, ordered_operands, pool
from ._variants import Variant, parse


def _options(form: str, chunk: int, kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> Options:
    return Options(form, chunk, kernel or None, threads, state_limit, levels, rope_theta)


@torch.library.custom_op("softrnn::attention", mutates_args=())
def _forward(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int,
             kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> Tuple[Tensor, Tensor]:
    offsets = as_offsets(documents.cpu() if documents is not None else None)
    options = _options(form, chunk, kernel, threads, state_limit, levels, rope_theta)
    plan = _torch._take_plan(parse(attention), operands, options)
    try:
        # The kernels leave gaps, and an operator's results must be the same each time.
        saved = torch.zeros(plan.saved_bytes, dtype=torch.uint8, device=operands[0].device)
        o = _torch._forward(plan, operands, offsets, saved)
    finally:
        pool.give_back(plan)
    return o, saved


@_forward.register_fake
def _(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int, kernel: str,
      threads: int, state_limit: int, levels: int, rope_theta: float) -> Tuple[Tensor, Tensor]:
    q, v = operands[0], operands[2]
    heads = (v if parse(attention)._shares_queries else q).shape[1]
    o = _torch._output(q, (q.shape[0], heads, q.shape[2], v.shape[3]))
    return o, q.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


@torch.library.custom_op("softrnn::attention_gradient", mutates_args=())
def _backward(d_o: Tensor, operands: Sequence[Tensor], saved: Tensor, documents: Optional[Tensor], attention: str,
              form: str, chunk: int, kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> List[Tensor]:
    offsets = as_offsets(documents.cpu() if documents is not None else None)
    gradients = _torch._run_backward(parse(attention), d_o, operands, saved, offsets,
                                     _options(form, chunk, kernel, threads, state_limit, levels, rope_theta), [True] * len(operands))
    return [gradient for gradient in gradients if gradient is not None]


@_backward.register_fake
def _(d_o: Tensor, operands: Sequence[Tensor], saved: Tensor, documents: Optional[Tensor], attention: str, form: str,
      chunk: int, kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> List[Tensor]:
    return [torch.empty_like(operand) for operand in operands]


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    operands, documents, *ctx.settings = inputs
    ctx.save_for_backward(*operands, output[1], documents)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, d_o: Tensor, d_saved: Optional[Tensor]) -> Tuple[Any, ...]:
    *operands, saved, documents = ctx.saved_tensors
    gradients = _backward(d_o, operands, saved, documents, *ctx.settings)
    return (gradients, None) + (None,) * len(ctx.settings)


def _refuse(ctx: Any, *gradients: Any) -> Any:
    raise _torch._twice()


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _described(attention: Union[str, Variant]) -> str:
    """The canonical text, the operands and the vectors of a variant, in one text."""
    variant = parse(attention)
    return f"{variant.text} {','.join(variant.operands)} {','.join(variant.vectors)}"


def attention(attention: Union[str, Variant], values: Tuple[Any, ...], documents: Optional[Any],
              options: Options) -> Tensor:
    """o (B, H, T, Dv) by the operator. values: q, k, v, and the other operands by their names."""
    text, operands, vectors = _described(attention).split(" ")
    names = operands.split(",")
    tensors = ordered_operands(text, names, *values)
    converted, result = _torch._converted(names, vectors.split(","), tensors)
    if documents is not None and not isinstance(documents, Tensor):
        documents = torch.as_tensor(documents)
    form, chunk, kernel, threads, state_limit, levels, rope_theta = options
    o = _forward(converted, documents, text, form, chunk, kernel or "", threads, state_limit, levels, rope_theta)[0]
    return o.to(result)
