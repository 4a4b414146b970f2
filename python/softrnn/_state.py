"""Attention one piece at a time."""

import contextlib
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence, Union

import numpy as np

from . import _numpy
from ._attention import _torch_module, is_torch
from ._library import ArgumentError, ArgumentTypeError, SoftrnnError, check, ffi, lib, owned, text
from ._plans import CPU, DTYPES, Binding, Operand, Options, Place, Sizes, _shape, check_layout, make_problem, named_operands
from ._variants import Variant, operands_of, parse


class State:
    """What attention remembers of the tokens fed so far; outputs are those of the whole sequence, wherever it is cut.

    Variants with a state of fixed size use it (`is_fixed`), the others keep keys and values. Sizes as in attention().
    dtype: of the arrays that are fed. device: "cpu", "cuda", "cuda:1". piece: the longest piece for which memory is
    taken; longer ones are fed in parts. form="chunked" demands the fixed size.

    >>> q, k, v = numpy.random.default_rng(0).normal(size=(3, 1, 4, 10, 16))
    >>> state = softrnn.State("order:2", H=4, D=16, dtype="float64")
    >>> parts = [state.feed(q[:, :, t:t+2], k[:, :, t:t+2], v[:, :, t:t+2]) for t in range(0, 10, 2)]
    >>> whole = softrnn.attention(q, k, v, "order:2")
    >>> bool(numpy.abs(numpy.concatenate(parts, axis=2) - whole).max() < 1e-9), state.position, state.is_fixed
    (True, 10, True)
    >>> other = softrnn.State("order:2", H=4, D=16, dtype="float64")
    >>> other.load(state.save()); other.position
    10
    """

    def __init__(self, attention: Union[str, Variant] = "softmax", *, H: int, D: int, B: int = 1,
                 Hkv: Optional[int] = None, Dv: Optional[int] = None, dtype: Any = "float32", device: Any = "cpu",
                 piece: int = 64, form: str = "auto", chunk: int = 0, threads: int = 0, state_limit: int = 0,
                 levels: int = 0, rope_theta: float = 0.0):
        self.variant = parse(attention)
        self.dtype = np.dtype(dtype).name if isinstance(dtype, (type, np.dtype)) else str(dtype).replace("torch.", "")
        if hasattr(piece, "__index__") and piece < 1:
            raise ArgumentError(f"piece is {piece}; it must be 1 or more")
        if self.dtype not in DTYPES:
            raise ArgumentTypeError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype}")
        self.piece = piece
        self._arguments = dict(H=H, D=D, B=B, Hkv=Hkv, Dv=Dv, dtype=self.dtype, device=str(device), piece=piece,
                               form=form, chunk=chunk, threads=threads, state_limit=state_limit, levels=levels, rope_theta=rope_theta)
        self._place = CPU if str(device) == "cpu" else Place(str(device))
        sizes = Sizes(self.dtype, B, H, Hkv or H, piece, D, Dv or D)
        self._problem, self._keep = make_problem(
            self.variant, sizes, Options(form, chunk, None, threads, state_limit, levels, rope_theta).checked(), self._place)
        out = ffi.new("srnn_state **")
        check(lib.srnn_state_create(out, self._problem))
        self._state = owned(out, lib.srnn_state_free, self._place.opened)
        self._lock = threading.RLock()
        self._used = False

    @contextlib.contextmanager
    def _using(self) -> Iterator[None]:
        """One call at a time. The handler of a signal would wait for its own thread for ever, and is refused."""
        with self._lock:
            if self._used:
                raise SoftrnnError("the state is in use by this thread (a signal handler during feed()?); use it when "
                                   "that call has ended")
            try:
                self._used = True
                yield
            finally:
                self._used = False

    def feed(self, q: Any, k: Any, v: Any, **operands: Any) -> Any:
        """o (B, H, T, Dv) for the next T tokens. Operands as in attention(); a tensor that requires gradients is
        refused, since a state gives none."""
        values = named_operands(self.variant, q, k, v, operands)
        with self._using():
            if is_torch(q):
                return _torch_module().feed(self, values)
            return self._feed_numpy(values)

    def _feed_numpy(self, values: Sequence[Any]) -> Any:
        if self._place is not CPU:
            raise ArgumentTypeError(f"q is a NumPy array, and the state is on {self._place.name}")
        arrays = [_numpy.plain(_numpy.as_array(value, name)) for value, name in zip(values, self.variant.operands)]
        if arrays[0].ndim != 4 or not arrays[0].size:
            raise ArgumentError(f"q has the shape {arrays[0].shape}; (B, H, T, D) is needed")
        for name, array in zip(self.variant.operands, arrays):
            if array.dtype.name != self.dtype:
                raise ArgumentTypeError(f"{name} is of type {array.dtype}; the state's is {self.dtype}")
        o = np.empty(self._output(arrays[0].shape[2]), self.dtype)
        self._feed_parts([(a.shape, _numpy._strides(a, n), a.ctypes.data)
                          for a, n in zip(arrays, self.variant.operands)], o.ctypes.data, o.itemsize)
        return o

    def _device_index(self) -> Optional[int]:
        """Of its GPU; None: the CPU."""
        name = text(lib.srnn_device_name(self._place.device)) if self._place is not CPU else ""
        return int(name.split(":")[1]) if name else None

    def _output(self, T: int) -> Any:
        problem = self._problem
        return (problem.B, problem.H, T, problem.Dv)

    def _operands(self, T: int) -> List[Operand]:
        self._problem.T = T
        found = [Operand(text(o.name), _shape(o), bool(o.tensor)) for o in operands_of(self._problem)]
        self._problem.T = self.piece
        return found

    def _feed_parts(self, views: Sequence[Any], o: int, size: int) -> None:
        """views: (shape, strides, address) of each operand; o: address of a contiguous output."""
        T = views[0][0][2]
        operands = self._operands(T)
        binding = Binding(operands)
        for index, (operand, (shape, strides, _)) in enumerate(zip(operands, views)):
            check_layout(operand, shape, strides)
            binding.set_strides(index, strides)
        _, H, _, Dv = self._output(T)
        output = ffi.new("srnn_tensor *", {"batch": H * T * Dv, "head": T * Dv, "time": Dv})
        for start in range(0, T, self.piece):
            binding.set_addresses([address + (start * strides[2] * size if operand.tensor else 0)
                                   for operand, (_, strides, address) in zip(operands, views)])
            output.data = ffi.cast("void *", o + start * Dv * size)
            check(lib.srnn_state_feed(self._state[0], output[0], binding.struct, min(self.piece, T - start)))

    def reset(self) -> None:
        """Forgets everything: the next token is the first."""
        with self._using():
            check(lib.srnn_state_reset(self._state[0]))

    def save(self) -> bytes:
        """The state as bytes, for load()."""
        with self._using():
            memory = ffi.new("char[]", lib.srnn_state_saved_bytes(self._state[0]))
            check(lib.srnn_state_save(self._state[0], memory, len(memory)))
            return bytes(ffi.buffer(memory))

    def load(self, saved: bytes) -> None:
        """Resumes from what save() returned for a state of the same problem."""
        try:
            memory = ffi.from_buffer(saved)
        except TypeError:
            raise ArgumentTypeError(f"saved must be bytes, not {type(saved).__name__}") from None
        with self._using():
            check(lib.srnn_state_load(self._state[0], memory, len(memory)))

    def copy(self) -> "State":
        """Another state that remembers the same."""
        other = State(self.variant, **self._arguments)  # type: ignore[arg-type]
        other.load(self.save())
        return other

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> "State":
        return self.copy()

    def __reduce__(self) -> Any:
        return _restored, (self.variant, self._arguments, self.save())

    @property
    def position(self) -> int:
        """Tokens fed since the start."""
        return int(lib.srnn_state_position(self._state[0]))

    @property
    def is_fixed(self) -> bool:
        """Whether the size does not grow with the sequence."""
        return bool(lib.srnn_state_is_recurrent(self._state[0]))

    @property
    def nbytes(self) -> int:
        """Bytes that the state holds after the tokens fed so far."""
        return int(lib.srnn_state_bytes(self._problem, self.position))

    def __repr__(self) -> str:
        kind = "fixed size" if self.is_fixed else "keys and values"
        return f"<softrnn.State of {self.variant}: {self.position} tokens, {self.nbytes} bytes, {kind}>"


def _restored(variant: Variant, arguments: Dict[str, Any], saved: bytes) -> State:
    """What pickle makes of a state."""
    state = State(variant, **arguments)
    state.load(saved)
    return state
