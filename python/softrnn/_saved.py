"""What a call on torch tensors keeps for backward: no more than torch's own attention keeps, where the output gives the
numerators that the library saved."""

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from ._numpy import ALIGNMENT
from ._variants import Variant


def _bytes(count: Any, dtype: torch.dtype) -> Any:
    """The bytes of this count of numbers, as a part of srnn_plan_saved_bytes."""
    return (count * (torch.finfo(dtype).bits // 8) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _statistic(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def numerator_bytes(shape: Sequence[Any], dtype: torch.dtype) -> Any:
    """The first part of what srnn_plan_saved_bytes counts, for an output (B, H, T, Dv) computed in dtype. Sizes may be symbols."""
    B, H, T, Dv = shape
    return _bytes(B * H * T * Dv, dtype)


def statistics_bytes(shape: Sequence[Any], dtype: torch.dtype) -> Any:
    """The rest: the row sums, and what rows were divided by."""
    B, H, T, _ = shape
    return 2 * _bytes(B * H * T, _statistic(dtype))


def packed_bytes(variant: Variant, shape: Sequence[Any], dtype: torch.dtype) -> Any:
    """The bytes of what pack() returns."""
    return statistics_bytes(shape, dtype) + (0 if variant.keeps_output else numerator_bytes(shape, dtype))


def pack(variant: Variant, shape: Sequence[int], dtype: torch.dtype, saved: Tensor) -> Tensor:
    """What must stay of what forward saved, besides operands and, where variant.keeps_output, the output."""
    return saved[numerator_bytes(shape, dtype):].clone() if variant.keeps_output else saved


def unpack(variant: Variant, o: Optional[Tensor], part: Tensor, dtype: torch.dtype) -> Tensor:
    """What forward saved, from what pack() returned."""
    if o is None:
        return part.clone() if part.data_ptr() % ALIGNMENT else part  # it may be a piece of another tensor
    start = int(numerator_bytes(o.shape, dtype))
    saved = part.new_empty(start + len(part))
    saved[start:] = part
    numerators = saved[:o.numel() * (torch.finfo(dtype).bits // 8)].view(dtype).view(o.shape)
    if variant.normaliser == "row_sum":
        sums = part.view(_statistic(dtype))[:o[..., 0].numel()]
        torch.mul(o, sums.view(*o.shape[:3], 1), out=numerators)
    else:
        numerators.copy_(o)
    return saved
