"""Attention on torch tensors: gradients, streams, autocast, torch.compile."""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from ._saved import pack, unpack
from ._library import ArgumentError, ArgumentTypeError, SoftrnnError, UnsupportedError, check, ffi, lib
from ._numpy import as_offsets
from ._plans import CPU, Options, Place, Plan, empty_output, pool, sizes_of
from ._variants import Variant
from ._variants import described_scale as _described_scale

Tensor = torch.Tensor

_NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16"}
_FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_DEVICES = ("cpu", "cuda")
_LEGACY_STREAM = 1  # cudaStreamLegacy: what torch means by stream 0, where the library means its own

_places: Dict[Tuple[int, int], Place] = {}
_places_lock = threading.Lock()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream or _LEGACY_STREAM


def _open_place(device: torch.device, stream: int) -> Place:
    try:
        return Place(str(device), stream)
    except SoftrnnError as error:
        raise type(error)(f"q is on {device}: {error}") from None


def _place(device: torch.device) -> Place:
    """The CPU, or the current stream of a GPU."""
    if device.type == "cpu":
        return CPU
    if device.type != "cuda":
        raise ArgumentTypeError(f"q is on {device}; attention is computed on the CPU and on CUDA")
    key = (device.index, _stream(device))
    with _places_lock:
        if key not in _places:
            with torch.cuda.device(device):
                _places[key] = _open_place(device, key[1])
        return _places[key]


# ---- what tensors must be


def _check_tensors(names: Sequence[str], tensors: Sequence[Any]) -> None:
    """Raises, with the argument's name, for what is not a plain tensor on q's device."""
    device = tensors[0].device
    for name, tensor in zip(names, tensors):
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} must be a tensor like q, not {type(tensor).__name__}")
        if tensor.device != device:
            raise ArgumentError(f"{name} is on {tensor.device}, and q on {device}")
        if tensor.dtype not in _FLOATING:
            raise ArgumentTypeError(f"{name} is of type {tensor.dtype}; a floating type is needed")
        if tensor.layout != torch.strided or tensor.is_nested:
            kind = "is nested" if tensor.is_nested else f"has the layout {tensor.layout}"
            raise ArgumentTypeError(f"{name} {kind}; only plain (strided) tensors are taken")


_autocasts: Callable[[str], bool]
_autocast_type: Callable[[str], torch.dtype]
if hasattr(torch, "get_autocast_dtype"):  # torch 2.4
    _autocasts = torch.is_autocast_enabled
    _autocast_type = torch.get_autocast_dtype
else:
    _autocasts = lambda device: torch.is_autocast_enabled() if device == "cuda" else torch.is_autocast_cpu_enabled()
    _autocast_type = lambda device: (torch.get_autocast_gpu_dtype() if device == "cuda" else
                                     torch.get_autocast_cpu_dtype())


def _computed(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type in which the library computes for tensors of a type."""
    if dtype == torch.float16 or (dtype == torch.bfloat16 and device.type == "cpu"):
        return torch.float32
    return dtype


def rounded(names: Sequence[str], vectors: Sequence[str], tensors: Sequence[Tensor]) -> Tuple[List[Tensor], torch.dtype]:
    """Operands in the type that the result has, and this type: q's, or autocast's. Tensors stay as they are if they have it;
    learned vectors are small, and have the type in which the library computes."""
    device, dtype = tensors[0].device, tensors[0].dtype
    autocast = dtype != torch.float64 and device.type in _DEVICES and _autocasts(device.type)
    result = _autocast_type(device.type) if autocast else dtype
    learned = torch.float64 if result == torch.float64 else torch.float32
    found = []
    for name, tensor in zip(names, tensors):
        vector = name in vectors
        if result == dtype and not vector and tensor.dtype != dtype:
            raise ArgumentTypeError(f"{name} is of type {tensor.dtype}; like q it must be {dtype}")
        if not vector and result != dtype:
            tensor = tensor.to(result)  # autocast rounds what goes in
        found.append(_plain(tensor.to(learned if vector else result)))
    return found, result


def widened(tensors: Sequence[Tensor]) -> List[Tensor]:
    """Rounded operands in the type in which the library computes."""
    return [tensor.to(_computed(tensor.dtype, tensor.device)) for tensor in tensors]


# ---- calls of the library


def _key(variant: Variant, tensors: Sequence[Tensor], options: Options) -> Any:
    """Everything about a call but its addresses."""
    q = tensors[0]
    return (variant.text, options, CPU if q.is_cpu else _place(q.device),
            *[(t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def _check_operands(variant: Variant, tensors: Sequence[Tensor]) -> None:
    """Those of the operator come from anybody."""
    if len(tensors) != len(variant.operands):
        raise ArgumentError(f"{variant} reads {', '.join(variant.operands)}; {len(tensors)} operands were given")
    _check_tensors(variant.operands, tensors)
    dtype = tensors[0].dtype
    for name, tensor in zip(variant.operands, tensors):
        expected = torch.float32 if dtype == torch.bfloat16 and name in variant.vectors else dtype
        if tensor.dtype != expected or dtype not in _NAMES:
            raise ArgumentTypeError(f"{name} is of type {tensor.dtype}; float32, float64 or bfloat16 like q is needed")


def _make_plan(key: Any, variant: Variant, tensors: Sequence[Tensor], options: Options) -> Plan:
    """Checks everything about a call that its key says."""
    _check_operands(variant, tensors)
    shapes = [tuple(tensor.shape) for tensor in tensors]
    plan = Plan(key, variant, sizes_of(variant, _NAMES[tensors[0].dtype], *shapes[:3]), options, _place(tensors[0].device))
    try:
        plan.set_strides(shapes, [tensor.stride() for tensor in tensors])
    except Exception:
        plan.free()
        raise
    plan.o.set_strides(_output(tensors[0], plan.shape).stride())
    return plan


def _take_plan(variant: Variant, tensors: Sequence[Tensor], options: Options) -> Plan:
    key = _key(variant, tensors, options)
    try:
        plan = pool.take(key)
    except TypeError:  # something in the options has no hash
        options.checked()
        raise
    return plan if plan is not None else _make_plan(key, variant, tensors, options)


def _waiting_plan(variant: Variant, tensors: Sequence[Any], options: Options) -> Optional[Plan]:
    """The plan of an earlier call like this one, which then needs neither a check nor a conversion."""
    try:
        kind = "cpu" if tensors[0].is_cpu else "cuda"
        if _autocasts(kind):
            return None
        return pool.take(_key(variant, tensors, options))
    except (AttributeError, RuntimeError, TypeError):  # no tensor, no strides, no hash, another device
        return None


def _output(q: Tensor, shape: Tuple[int, ...]) -> Tensor:
    """Memory for o; where q lies token by token, so does o."""
    if q.shape == shape:
        return torch.empty_like(q)
    B, H, T, Dv = shape
    if H > 1 and T > 1 and q.stride(1) < q.stride(2):
        return q.new_empty((B, T, H, Dv)).transpose(1, 2)
    return q.new_empty(shape)


def _forward(plan: Plan, tensors: Sequence[Tensor], documents: Optional[Any], saved: Optional[Tensor]) -> Tensor:
    """o; saved receives what backward needs."""
    plan.documents(documents)
    plan.inputs.set_addresses([tensor.data_ptr() for tensor in tensors])
    o = _output(tensors[0], plan.shape)
    plan.forward(o.data_ptr(), saved.data_ptr() if saved is not None else 0)
    return o


def _readable(tensor: Tensor) -> Tensor:
    """The gradient of o with strides that the library takes; sums give expanded ones."""
    taken = tensor.stride(3) == 1 and all(tensor.stride(axis) for axis in range(3))
    return tensor if taken else tensor.contiguous()


def _run_backward(variant: Variant, d_o: Tensor, o: Optional[Tensor], part: Tensor, operands: Sequence[Tensor],
                  documents: Optional[Any], options: Options, wanted: Sequence[bool]) -> List[Optional[Tensor]]:
    """The gradients of the rounded operands; o and part: what pack() returned (_saved.py)."""
    tensors = widened(operands)
    saved = unpack(variant, o, part, tensors[0].dtype)
    plan = _take_plan(variant, tensors, options)
    try:
        plan.documents(documents)
        d_o = _readable(d_o.to(tensors[0].dtype))
        plan.d_o.set_strides(d_o.stride())
        results: List[Optional[Tensor]] = []
        for index, (tensor, want) in enumerate(zip(tensors, wanted)):
            gradient = torch.empty_like(tensor) if want else None
            if gradient is not None:
                plan.gradients.set_strides(index, gradient.stride())
            results.append(gradient)
        plan.inputs.set_addresses([tensor.data_ptr() for tensor in tensors])
        plan.gradients.set_addresses([x.data_ptr() if x is not None else 0 for x in results])
        plan.backward(d_o.data_ptr(), saved.data_ptr())
    finally:
        pool.give_back(plan)
    return [gradient.to(x.dtype) if gradient is not None else None for gradient, x in zip(results, operands)]


class _Gradient(torch.autograd.Function):
    """The backward pass as a function, so that asking for its gradient is refused with a reason."""

    @staticmethod
    def forward(ctx: Any, call: Tuple[Any, ...], d_o: Tensor, o: Optional[Tensor], part: Tensor, *tensors: Tensor) -> Any:
        variant, documents, options, wanted = call
        return tuple(_run_backward(variant, d_o, o, part, tensors, documents, options, wanted))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise _twice()


def _twice() -> SoftrnnError:
    return UnsupportedError("attention has no second derivative: its gradient cannot be differentiated again "
                            "(create_graph=True)")


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Tuple[Any, ...], *tensors: Tensor) -> Tensor:
        plan, wide, *ctx.call = call
        variant, documents, _ = ctx.call
        saved = torch.empty(plan.saved_bytes, dtype=torch.uint8, device=tensors[0].device)
        o = _forward(plan, wide, documents, saved)
        part = pack(variant, plan.shape, o.dtype, saved)
        o = o.to(tensors[0].dtype)
        # hooks, offloading and checkpointing see all of it
        ctx.save_for_backward(part, o if variant.keeps_output else None, *tensors)
        return o

    @staticmethod
    def backward(ctx: Any, d_o: Tensor) -> Any:
        variant, documents, options = ctx.call
        part, o, *tensors = ctx.saved_tensors
        call = (variant, documents, options, ctx.needs_input_grad[1:])
        if is_traced((d_o, *tensors)):  # by what sees the backward pass alone
            return (None, *traced_gradients(variant, d_o, o, part, tensors, documents, options))
        _refuse_batched(d_o)
        if torch.is_grad_enabled():  # create_graph=True
            return (None,) + _Gradient.apply(call, d_o, o, part, *tensors)
        return (None,) + tuple(_run_backward(variant, d_o, o, part, tensors, documents, options, call[3]))


def _plain(tensor: Tensor) -> Tensor:
    """The same numbers, none of which lies at the place of another: an expanded axis is copied out."""
    expanded = any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape))
    return tensor.contiguous() if expanded else tensor


def nothing(shape: Tuple[int, ...], tensors: Sequence[Tensor]) -> Optional[Tensor]:
    """o where there is no sequence (B = 0) or no token (T = 0); None otherwise. Gradients are zeros."""
    if shape[0] and shape[2]:
        return None
    return tensors[0].new_zeros(shape) + sum(tensor.sum() * 0 for tensor in tensors)


def attention(variant: Variant, tensors: Sequence[Any], documents: Optional[Any], options: Options) -> Tensor:
    """o (B, H, T, Dv), with gradients."""
    plan, wide, result = _waiting_plan(variant, tensors, options), tensors, None
    if plan is None:
        _check_tensors(variant.operands, tensors)
        tensors, result = rounded(variant.operands, variant.vectors, tensors)
        if not tensors[0].numel():
            empty = nothing(empty_output(variant, [tuple(tensor.shape) for tensor in tensors]), tensors)
            if empty is not None:
                return empty.to(result)
        with torch.no_grad():
            wide = widened(tensors)
        plan = _take_plan(variant, wide, options)
    try:
        offsets = None
        if documents is not None:
            offsets = as_offsets(documents.cpu() if isinstance(documents, Tensor) else documents)
        if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in tensors]):
            o = _Attention.apply((plan, wide, variant, offsets, options), *tensors)
        else:
            o = _forward(plan, wide, offsets, None)
    finally:
        pool.give_back(plan)
    return o if result is None else o.to(result)


def feed(state: Any, tensors: Sequence[Any]) -> Tensor:
    """The next tokens of a State."""
    names = state.variant.operands
    _check_tensors(names, tensors)
    tensors = [_plain(tensor) for tensor in tensors]
    for name, tensor in zip(names, tensors):
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(f"{name} requires a gradient, which a state does not compute: use softrnn.attention, or "
                                "torch.no_grad()")
        expected = "float32" if state.dtype == "bfloat16" and name in state.variant.vectors else state.dtype
        if _NAMES.get(tensor.dtype) != expected:
            raise ArgumentTypeError(f"{name} is of type {tensor.dtype}; the state's is {expected}")
    q = tensors[0]
    if q.dim() != 4 or not q.numel():
        raise ArgumentError(f"q has the shape {tuple(q.shape)}; (B, H, T, D) is needed")
    if (q.device.type == "cpu") != (state._place is CPU) or q.device.index != state._device_index():
        raise ArgumentError(f"q is on {q.device}, and the state on {state._place.name}")
    if q.device.type == "cuda":
        check(lib.srnn_device_stream(state._place.device, ffi.cast("void *", _stream(q.device))))
    o = q.new_empty(state._output(q.shape[2]))
    state._feed_parts([(t.shape, t.stride(), t.data_ptr()) for t in tensors], o.data_ptr(), o.element_size())
    return o


# ---- tracers and transforms: the same as an operator that torch's compilers know

_compiler = getattr(torch, "compiler", None)
_is_compiling = getattr(_compiler, "is_compiling", lambda: False)
described_scale = getattr(_compiler, "assume_constant_result", lambda function: function)(_described_scale)
_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_transforms = getattr(getattr(torch._C, "_functorch", None), "get_interpreter_stack", lambda: None)
_is_batched = getattr(getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda tensor: False)
_unpack_dual: Callable[[Tensor], Any] = torch.autograd.forward_ad.unpack_dual
_PLAIN = (Tensor, torch.nn.Parameter)


def is_transformed() -> bool:
    """Whether a transform of torch.func (vmap, grad) is at work."""
    return _transforms() is not None


def is_traced(tensors: Sequence[Any]) -> bool:
    """Whether torch wants to know what is computed (torch.compile, make_fx, torch.jit.trace, FlopCounterMode) or changes it
    (vmap, func.grad): the operator says so, where a call of the library would pass unseen."""
    if _is_compiling() or _modes() or torch._C._get_tracing_state() is not None or is_transformed():
        return True
    return any([type(tensor) not in _PLAIN or tensor.is_meta for tensor in tensors if isinstance(tensor, Tensor)])


def _refuse_batched(d_o: Tensor) -> None:
    """torch.autograd's own batches of gradients, which no operator can have a rule for."""
    if _is_batched(d_o):
        raise UnsupportedError("gradients of several outputs at once (is_grads_batched=True, vectorize=True) are not computed by "
                               "torch.autograd here: use torch.func.jacrev or torch.vmap, or call it once for each")


def refuse_tangents(tensors: Sequence[Any]) -> None:
    """Forward-mode derivatives, which would be lost."""
    if _is_compiling() or torch.autograd.forward_ad._current_level < 0:
        return
    transforms = _transforms() or []
    if any("Jvp" in str(transform.key()) for transform in transforms) or not transforms and any(
            _unpack_dual(tensor).tangent is not None for tensor in tensors if isinstance(tensor, Tensor)):
        raise UnsupportedError("attention has no forward-mode derivative (jvp, forward_ad): use backward(), torch.func.grad or "
                               "jacrev")


if hasattr(torch.library, "custom_op"):
    from ._operator import attention as traced
    from ._operator import gradients as traced_gradients
else:

    def traced(attention: Union[str, Variant], values: Tuple[Any, ...], documents: Optional[Any],
               options: Options) -> Tensor:
        raise UnsupportedError("q is not a plain tensor, or torch traces or transforms the call; both need torch 2.4 or newer")

    def traced_gradients(variant: Variant, d_o: Tensor, o: Optional[Tensor], part: Tensor, operands: Sequence[Tensor],
                         documents: Optional[Any], options: Options) -> Tuple[Tensor, ...]:
        raise UnsupportedError("torch traces or transforms the backward pass, which needs torch 2.4 or newer")
