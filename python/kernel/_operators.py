"""Attention and its gradient as operators of torch.library, which autograd and torch.compile know."""

import contextlib
import ctypes
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _declarations as c
from ._library import check, lib, operands_of, parse

_NAMESPACE = __package__.split(".")[0]  # its own for each build, so that two versions can be loaded
_DTYPES = {torch.float32: c.SRNN_F32, torch.float64: c.SRNN_F64, torch.bfloat16: c.SRNN_BF16}
_FORMS = {name[len("SRNN_FORM_"):].lower(): value for name, value in vars(c).items() if name.startswith("SRNN_FORM_")}
_ALIGNMENT = 64
_devices: Dict[Tuple[int, int], Any] = {}
_lock = threading.Lock()  # of the devices; a stream's calls follow each other


def _device(tensor: Tensor) -> Any:
    """NULL for the CPU; else a device that works in the current stream."""
    if tensor.device.type == "cpu":
        return None
    stream = torch.cuda.current_stream(tensor.device).cuda_stream or 1  # cudaStreamLegacy
    key = (tensor.device.index, stream)
    with _lock:
        if key not in _devices:
            device = ctypes.c_void_p()
            check(lib.srnn_device_open(ctypes.byref(device), str(tensor.device).encode()))
            check(lib.srnn_device_stream(device, stream))
            _devices[key] = device
        return _devices[key]


def shares_queries(attention: str) -> bool:
    """Whether heads share q and k, so that v has the heads of o."""
    problem = c.srnn_problem(attention=parse(attention), B=1, H=2, Hkv=1, T=1, D=1)
    return next(operands_of(problem)).sizes[1] == 1


def names_of(attention: str) -> List[str]:
    """What the variant reads, in the order in which the operators take it."""
    problem = c.srnn_problem(attention=parse(attention), B=1, H=2, Hkv=1, T=1, D=1)
    return [operand.name.decode() for operand in operands_of(problem)]


def _problem(operands: Sequence[Tensor], attention: str, form: str, chunk: int, threads: int) -> Any:
    q, k, v = operands[:3]
    if any(x.dim() != 4 for x in (q, k, v)):
        raise ValueError(f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} axes; (B, heads, T, width) is needed")
    if form not in _FORMS:
        raise ValueError(f"form must be one of {', '.join(_FORMS)}, not {form!r}")
    heads = (v if shares_queries(attention) else q).shape[1]
    return c.srnn_problem(attention=parse(attention), dtype=_DTYPES[q.dtype], B=q.shape[0], H=heads, Hkv=k.shape[1],
                          T=q.shape[2], D=q.shape[3], Dv=v.shape[3], form=_FORMS[form], chunk=chunk, threads=threads,
                          device=_device(q))


def _bind(problem: Any, tensors: Sequence[Tensor]) -> Any:
    """A srnn_operands that points at the tensors."""
    struct = c.srnn_operands()
    for operand, tensor in zip(operands_of(problem), tensors):
        name = operand.name.decode()
        if tuple(tensor.shape) != tuple(operand.sizes[:operand.rank]):
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)}; {tuple(operand.sizes[:operand.rank])} is needed")
        setattr(struct, name, _tensor(tensor) if operand.tensor else tensor.data_ptr())
    return struct


def _tensor(tensor: Tensor) -> Any:
    return c.srnn_tensor(tensor.data_ptr(), *tensor.stride()[:3])


def _plain(tensor: Tensor) -> Tensor:
    """With strides that the library takes."""
    taken = tensor.dim() < 4 or tensor.stride(3) == 1
    return tensor if taken and all(tensor.stride()) and tensor.dim() > 2 else tensor.contiguous()


class _Plan:
    """A plan for one call."""

    def __init__(self, operands: Sequence[Tensor], documents: Optional[Tensor], settings: Tuple[Any, ...]):
        self.operands = [_plain(tensor) for tensor in operands]
        problem = _problem(self.operands, *settings)
        self.inputs = _bind(problem, self.operands)
        if documents is not None:
            self.offsets = documents.to("cpu", torch.int64).contiguous()
            problem.offsets, problem.documents = self.offsets.data_ptr(), len(documents) - 1
        self.problem = problem
        self.plan = ctypes.c_void_p()
        with _lock:
            check(lib.srnn_plan_create(ctypes.byref(self.plan), ctypes.byref(problem)))

    def __enter__(self) -> "_Plan":
        return self

    def __exit__(self, *error: Any) -> None:
        with _lock:
            lib.srnn_plan_free(self.plan)

    def _alone(self) -> Any:
        """Plans share a device, which takes one call at a time."""
        return _lock if self.problem.device else contextlib.nullcontext()

    def forward(self) -> Tuple[Tensor, Tensor]:
        problem, q = self.problem, self.operands[0]
        o = q.new_empty((problem.B, problem.H, problem.T, problem.Dv))
        # The kernels leave gaps, and an operator's results must be the same each time.
        saved = torch.zeros(lib.srnn_plan_saved_bytes(self.plan), dtype=torch.uint8, device=q.device)
        with self._alone():
            check(lib.srnn_attention_forward(self.plan, _tensor(o), ctypes.byref(self.inputs), saved.data_ptr()))
        return o, saved

    def backward(self, d_o: Tensor, saved: Tensor) -> List[Tensor]:
        results = [torch.empty_like(tensor) for tensor in self.operands]
        gradients, d_o = _bind(self.problem, results), _plain(d_o)
        if saved.data_ptr() % _ALIGNMENT:  # part of another tensor
            saved = saved.clone()
        with self._alone():
            check(lib.srnn_attention_backward(self.plan, ctypes.byref(gradients), _tensor(d_o), ctypes.byref(self.inputs),
                                              saved.data_ptr()))
        return results


@torch.library.custom_op(f"{_NAMESPACE}::attention", mutates_args=())
def forward(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int,
            threads: int) -> Tuple[Tensor, Tensor]:
    with _Plan(operands, documents, (attention, form, chunk, threads)) as plan:
        return plan.forward()


@torch.library.custom_op(f"{_NAMESPACE}::attention_gradient", mutates_args=())
def backward(d_o: Tensor, operands: Sequence[Tensor], saved: Tensor, documents: Optional[Tensor], attention: str,
             form: str, chunk: int, threads: int) -> List[Tensor]:
    with _Plan(operands, documents, (attention, form, chunk, threads)) as plan:
        return plan.backward(d_o, saved)


@forward.register_fake
def _(operands: Sequence[Tensor], documents: Optional[Tensor], attention: str, form: str, chunk: int,
      threads: int) -> Tuple[Tensor, Tensor]:
    q, v = operands[0], operands[2]
    heads = (v if shares_queries(attention) else q).shape[1]
    o = q.new_empty((q.shape[0], heads, q.shape[2], v.shape[3]))
    rows = q.shape[0] * heads * q.shape[2]
    parts = (rows * v.shape[3] * q.dtype.itemsize, *[rows * max(4, q.dtype.itemsize)] * 2)  # srnn_plan_saved_bytes
    size = sum((part + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT for part in parts)
    return o, q.new_empty(size, dtype=torch.uint8)


@backward.register_fake
def _(d_o: Tensor, operands: Sequence[Tensor], saved: Tensor, documents: Optional[Tensor], attention: str, form: str,
      chunk: int, threads: int) -> List[Tensor]:
    return [torch.empty_like(tensor) for tensor in operands]


def _keep(ctx: Any, inputs: Tuple[Any, ...], output: Tuple[Tensor, Tensor]) -> None:
    operands, documents, *ctx.settings = inputs
    ctx.save_for_backward(*operands, output[1], documents)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, d_o: Tensor, d_saved: Optional[Tensor]) -> Tuple[Any, ...]:
    *operands, saved, documents = ctx.saved_tensors
    return backward(d_o, operands, saved, documents, *ctx.settings), None, *[None] * len(ctx.settings)


forward.register_autograd(_differentiate, setup_context=_keep)
