"""Attention as operators of torch.library, which torch's compilers, tracers and transforms know: torch 2.4 and newer."""

from typing import Any, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from torch import Tensor

from . import _torch
from ._saved import pack, packed_bytes
from ._library import UnsupportedError, lib
from ._numpy import as_offsets
from ._plans import CPU, FORMS, Options, Plan, ordered_operands, pool, sizes_of
from ._variants import Variant, parse


def _options(form: str, chunk: int, kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> Options:
    return Options(form, chunk, kernel or None, threads, state_limit, levels, rope_theta)


def _offsets(documents: Optional[Tensor], shape: Sequence[int]) -> Optional[np.ndarray]:
    """Document offsets as C reads them; the end may be there more than once, so that their number need not depend on what
    tensors hold. None: each row is a document."""
    offsets = as_offsets(documents.cpu() if documents is not None else None)
    if offsets is None:
        return None
    offsets = offsets[:int(np.searchsorted(offsets, offsets[-1])) + 1]
    rows = np.arange(shape[0] + 1) * shape[2]
    return None if np.array_equal(offsets, rows) else offsets


@torch.library.custom_op("softrnn::attention", mutates_args=())
def _forward(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int,
             kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> Tuple[Tensor, Tensor]:
    offsets = _offsets(documents, operands[0].shape)
    options = _options(form, chunk, kernel, threads, state_limit, levels, rope_theta)
    variant, wide = parse(attention), _torch.widened(operands)
    plan = _torch._take_plan(variant, wide, options)
    try:
        # The kernels leave gaps, and an operator's results must be the same each time.
        saved = torch.zeros(plan.saved_bytes, dtype=torch.uint8, device=operands[0].device)
        o = _torch._forward(plan, wide, offsets, saved)
    finally:
        pool.give_back(plan)
    part = pack(variant, plan.shape, o.dtype, saved)
    assert len(part) == packed_bytes(variant, plan.shape, o.dtype)
    return o.to(operands[0].dtype), part


@_forward.register_fake
def _(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int, kernel: str,
      threads: int, state_limit: int, levels: int, rope_theta: float) -> Tuple[Tensor, Tensor]:
    q, v, variant = operands[0], operands[2], parse(attention)
    heads = (v if variant._shares_queries else q).shape[1]
    o = _torch._output(q, (q.shape[0], heads, q.shape[2], v.shape[3]))
    return o, q.new_empty(packed_bytes(variant, o.shape, _torch._computed(q.dtype, q.device)), dtype=torch.uint8)


@torch.library.custom_op("softrnn::attention_gradient", mutates_args=())
def _backward(d_o: Tensor, o: Optional[Tensor], saved: Tensor, operands: Sequence[Tensor], documents: Optional[Tensor],
              attention: str, form: str, chunk: int, kernel: str, threads: int, state_limit: int, levels: int,
              rope_theta: float) -> List[Tensor]:
    offsets = _offsets(documents, operands[0].shape)
    gradients = _torch._run_backward(parse(attention), d_o, o, saved, operands, offsets,
                                     _options(form, chunk, kernel, threads, state_limit, levels, rope_theta), [True] * len(operands))
    return [gradient for gradient in gradients if gradient is not None]


@_backward.register_fake
def _(d_o: Tensor, o: Optional[Tensor], saved: Tensor, operands: Sequence[Tensor], documents: Optional[Tensor], attention: str,
      form: str, chunk: int, kernel: str, threads: int, state_limit: int, levels: int, rope_theta: float) -> List[Tensor]:
    return [torch.empty_like(operand) for operand in operands]


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    operands, documents, *ctx.settings = inputs
    ctx.save_for_backward(*operands, _output_kept(ctx.settings, output[0]), output[1], documents)
    ctx.mark_non_differentiable(output[1])


def _output_kept(settings: Sequence[Any], o: Tensor) -> Optional[Tensor]:
    """The output where backward needs it."""
    return o if parse(settings[0]).keeps_output else None


def _differentiate(ctx: Any, d_o: Tensor, d_saved: Optional[Tensor]) -> Tuple[Any, ...]:
    *operands, o, saved, documents = ctx.saved_tensors
    gradients = _backward(d_o, o, saved, operands, documents, *ctx.settings)
    return (gradients, None) + (None,) * len(ctx.settings)


def _refuse(ctx: Any, *gradients: Any) -> Any:
    raise _torch._twice()


_forward.register_autograd(_differentiate, setup_context=_keep)
_backward.register_autograd(_refuse, setup_context=lambda ctx, inputs, output: None)


# ---- torch.func: vmap is one call in which B is larger; where learned vectors have a gradient for each, a call for each


def _fold(tensors: Sequence[Tensor], dims: Sequence[Optional[int]], N: int) -> List[Tensor]:
    """(N, B, ..) as (N*B, ..)."""
    folded = []
    for tensor, dim in zip(tensors, dims):
        tensor = tensor.movedim(dim, 0) if dim is not None else tensor.expand(N, *tensor.shape)
        folded.append(_rows(_torch._plain(tensor.flatten(0, 1))))
    return folded


def _fold_documents(documents: Optional[Tensor], dim: Optional[int], N: int) -> Optional[Tensor]:
    if dim is not None:
        raise UnsupportedError("vmap over documents: those of all calls must be the same")
    if documents is None:
        return None
    starts = torch.arange(N, device=documents.device)[:, None] * documents[-1] + documents[:-1]
    return torch.cat((starts.flatten(), N * documents[-1:]))


def _rows(tensor: Tensor) -> Tensor:
    """With numbers of the last axis that follow each other, also where vmap maps over that axis (in_dims=-1)."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _one(tensor: Any, dim: Optional[int], n: int) -> Any:
    return _rows(tensor.select(dim, n)) if dim is not None else tensor


class _Gradient(torch.autograd.Function):
    """The gradients of all operands."""

    @staticmethod
    def forward(settings: Tuple[Any, ...], documents: Optional[Tensor], d_o: Tensor, o: Optional[Tensor], saved: Tensor,
                *operands: Tensor) -> Any:
        return tuple(_backward(d_o, o, saved, list(operands), documents, *settings))

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise _torch._twice()

    @staticmethod
    def vmap(info: Any, in_dims: Any, settings: Tuple[Any, ...], documents: Optional[Tensor], d_o: Tensor, o: Optional[Tensor],
             saved: Tensor, *operands: Tensor) -> Any:
        N, (_, documents_dim, d_dim, o_dim, saved_dim, *dims) = info.batch_size, in_dims
        d_all = d_o.movedim(d_dim, 0) if d_dim is not None else d_o.expand(N, *d_o.shape)
        if all(dim is None for dim in dims) or saved_dim is not None:  # saved by one call for each, or by one for all
            calls = [_Gradient.apply(settings, documents, d_all[n], _one(o, o_dim, n), _one(saved, saved_dim, n),
                                     *[_one(x, dim, n) for x, dim in zip(operands, dims)]) for n in range(N)]
            return tuple(torch.stack(parts) for parts in zip(*calls)), (0,) * len(operands)
        o_all = o.movedim(o_dim, 0).flatten(0, 1) if o is not None else None
        gradients = _Gradient.apply(settings, _fold_documents(documents, documents_dim, N), d_all.flatten(0, 1), o_all, saved,
                                    *_fold(operands, dims, N))
        return tuple(gradient.unflatten(0, (N, -1)) for gradient in gradients), (0,) * len(operands)


class _Transformed(torch.autograd.Function):
    """The operator for torch.func, whose transforms do not take those of torch.library: o, and what backward needs."""

    @staticmethod
    def forward(settings: Tuple[Any, ...], documents: Optional[Tensor], *operands: Tensor) -> Tuple[Tensor, Tensor]:
        return _forward(list(operands), documents, *settings)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
        ctx.settings, documents, *operands = inputs
        ctx.save_for_backward(documents, _output_kept(ctx.settings, output[0]), output[1], *operands)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_o: Tensor, d_saved: Optional[Tensor]) -> Any:
        documents, o, saved, *operands = ctx.saved_tensors
        return (None, None, *_Gradient.apply(ctx.settings, documents, d_o, o, saved, *operands))

    @staticmethod
    def vmap(info: Any, in_dims: Any, settings: Tuple[Any, ...], documents: Optional[Tensor], *operands: Tensor) -> Any:
        variant, N, (_, documents_dim, *dims) = parse(settings[0]), info.batch_size, in_dims
        if not variant.vectors:  # which have a gradient for each call
            o, saved = _Transformed.apply(settings, _fold_documents(documents, documents_dim, N),
                                          *_fold(operands, dims, N))
            return (o.unflatten(0, (N, -1)), saved), (0, None)
        calls = [_Transformed.apply(settings, documents, *[_one(x, dim, n) for x, dim in zip(operands, dims)]) for n in range(N)]
        return (torch.stack([o for o, _ in calls]), torch.stack([saved for _, saved in calls])), (0, 0)


# ---- FLOPs, as torch counts those of its own attention: of all pairs of tokens


def _flops(shapes: Sequence[Sequence[int]], attention: str, form: str, chunk: int) -> int:
    """Of the products of the forward pass."""
    variant = parse(attention)
    sizes = sizes_of(variant, "float32", *map(tuple, shapes[:3]))  # type: ignore[arg-type]
    plan = Plan(None, variant, sizes, Options(form, chunk), CPU)
    computed = int(lib.srnn_plan_form(plan.plan))
    plan.free()
    if computed == FORMS["parallel"]:
        return 2 * sizes.B * sizes.H * sizes.T * sizes.T * (sizes.D + sizes.Dv)
    return 4 * sizes.B * sizes.H * sizes.T * variant.state_numbers(sizes.D, sizes.Dv)


try:
    from torch.utils.flop_counter import register_flop_formula
except ImportError:
    pass
else:
    @register_flop_formula(torch.ops.softrnn.attention)
    def _(operands: Any, documents: Any, attention: str, form: str, chunk: int, *others: Any, **keywords: Any) -> int:
        return _flops(operands, attention, form, chunk)

    @register_flop_formula(torch.ops.softrnn.attention_gradient)
    def _(d_o: Any, o: Any, saved: Any, operands: Any, documents: Any, attention: str, form: str, chunk: int, *others: Any,
          **keywords: Any) -> int:
        return _flops(operands, attention, form, chunk) * 5 // 2  # scores once more, and two products for each of the two


def _settings(text: str, options: Options) -> Tuple[Any, ...]:
    """What the operators take besides tensors."""
    form, chunk, kernel, threads, state_limit, levels, rope_theta = options
    return text, form, chunk, kernel or "", threads, state_limit, levels, rope_theta


def gradients(variant: Variant, d_o: Tensor, o: Optional[Tensor], part: Tensor, operands: Sequence[Tensor],
              documents: Optional[Any], options: Options) -> Tuple[Tensor, ...]:
    """Those of all operands by the operator, of a call without it."""
    offsets = torch.from_numpy(documents) if documents is not None else None
    return _Gradient.apply(_settings(variant.text, options), offsets, d_o, o, part, *operands)


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
    if not _torch._is_compiling():
        _torch._check_tensors(names, tensors)
    converted, _ = _torch.rounded(names, vectors.split(","), tensors)
    q, v = converted[0], converted[2]
    if q.dim() == 4 and (q.shape[0] == 0 or q.shape[2] == 0):
        empty: Any = _torch.nothing((q.shape[0], max(q.shape[1], v.shape[1]), q.shape[2], v.shape[3]), converted)
        return empty.to(q.dtype)
    if documents is not None and not isinstance(documents, Tensor):
        documents = torch.as_tensor(documents)
    settings = _settings(text, options)
    if not _torch._is_compiling() and _torch.is_transformed():
        return _Transformed.apply(settings, documents, *converted)[0]
    o: Tensor = _forward(converted, documents, *settings)[0]
    return o
