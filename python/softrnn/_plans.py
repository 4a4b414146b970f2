"""Problems and plans of the C library: what arrays must look like, and plans that wait to be used again.

A plan costs more than a small attention, and only one thread may use it at a time. So plans are kept after use: a call
takes one that waits, or makes one.
"""

import re
import threading
import warnings
from contextlib import nullcontext
from typing import Any, Dict, Hashable, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from ._library import ArgumentError, ArgumentTypeError, check, encoded, ffi, header, lib, owned, text, words
from ._variants import Variant, operands_of

NULL = ffi.NULL
FORMS = {word: number for number, word in enumerate(words("srnn_form"))}
DTYPES = {"float32": lib.SRNN_F32, "float64": lib.SRNN_F64, "bfloat16": lib.SRNN_BF16}


class Place:
    """Where arrays are: the CPU, or a stream of a GPU. Calls on one GPU's stream follow each other."""

    def __init__(self, name: str, stream: Optional[int] = None):
        self.name = name
        self.device = NULL
        self.opened: Any = None
        self.lock: Optional[threading.Lock] = None
        if name != "cpu":
            out = ffi.new("srnn_device **")
            check(lib.srnn_device_open(out, name.encode()))
            self.opened = owned(out, lib.srnn_device_close)
            self.device = out[0]
            self.lock = threading.Lock()
            if stream is not None:
                check(lib.srnn_device_stream(self.device, ffi.cast("void *", stream)))


CPU = Place("cpu")


class Options(NamedTuple):
    """How a problem is computed: members of srnn_problem by the same names."""

    form: str = "auto"
    chunk: int = 0
    kernel: Optional[str] = None
    threads: int = 0
    state_limit: int = 0
    levels: int = 0
    rope_theta: float = 0.0

    def checked(self) -> "Options":
        """Itself, if every member is of the right type, and the form one that there is."""
        for name in ("form", "kernel"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "kernel" and value is None):
                raise ArgumentTypeError(f"{name} must be a text, not {type(value).__name__}")
        if self.form not in FORMS:
            raise ArgumentError(f"form must be one of {', '.join(FORMS)}, not {self.form!r}")
        for name in ("chunk", "threads", "state_limit", "levels"):
            if not hasattr(getattr(self, name), "__index__"):
                raise ArgumentTypeError(f"{name} must be a whole number, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.rope_theta, (int, float)) or not 0 <= self.rope_theta < float("inf"):
            raise ArgumentTypeError(f"rope_theta must be a number that is not negative, not {self.rope_theta!r}")
        return self


class Sizes(NamedTuple):
    """The sizes of a problem, and the type of its numbers."""

    dtype: str
    B: int
    H: int
    Hkv: int
    T: int
    D: int
    Dv: int


class Operand(NamedTuple):
    """One thing that a problem reads."""

    name: str
    shape: Tuple[int, ...]
    tensor: bool  # (B, heads, T) or (B, heads, T, width), with strides; else a learned vector


def make_problem(variant: Variant, sizes: Sizes, options: Options, place: Place) -> Any:
    """A srnn_problem. It holds pointers into `keep`, which is returned with it."""
    problem = ffi.new("srnn_problem *")
    problem.attention = variant._struct[0]
    problem.dtype = DTYPES[sizes.dtype]
    problem.form = FORMS[options.form]
    problem.device = place.device
    values = dict(zip(("B", "H", "Hkv", "T", "D", "Dv"), sizes[1:]),
                  chunk=options.chunk, threads=options.threads, state_limit=options.state_limit,
                  levels=options.levels, rope_theta=options.rope_theta)
    for name, value in values.items():
        try:
            setattr(problem, name, value)
        except (OverflowError, TypeError):
            raise ArgumentError(f"{name} must be a number that fits, not {value!r}") from None
    kernel = ffi.new("char[]", encoded(options.kernel, "kernel")) if options.kernel is not None else NULL
    problem.kernel = kernel
    return problem, kernel


def _shape(operand: Any) -> Tuple[int, ...]:
    return tuple(operand.sizes[axis] for axis in range(operand.rank))


class Binding:
    """A srnn_operands that receives addresses and strides. All of it is words of 64 bits, which are written as such: a
    pointer object for each would cost more."""

    def __init__(self, operands: Sequence[Operand]):
        self.struct = ffi.new("srnn_operands *")
        self.words = ffi.cast("int64_t *", self.struct)
        self.places = [ffi.offsetof("srnn_operands", operand.name) // 8 for operand in operands]
        self.operands = operands

    def set_strides(self, index: int, strides: Sequence[int]) -> None:
        """Of (B, heads, T), in elements; vectors have none."""
        if self.operands[index].tensor:
            place = self.places[index]
            self.words[place + 1], self.words[place + 2], self.words[place + 3] = strides[:3]

    def set_addresses(self, addresses: Iterable[int]) -> None:
        """One for each operand; 0: none."""
        words = self.words
        for place, address in zip(self.places, addresses):
            words[place] = address


class Output:
    """A srnn_tensor for o or d_o, in the same way."""

    def __init__(self) -> None:
        self.struct = ffi.new("srnn_tensor *")
        self.words = ffi.cast("int64_t *", self.struct)

    def set_strides(self, strides: Sequence[int]) -> None:
        self.words[1], self.words[2], self.words[3] = strides[:3]


_forward = lib.srnn_attention_forward
_backward = lib.srnn_attention_backward


class Plan:
    """A plan, with the operands that its calls fill in: strides once, addresses with every call."""

    def __init__(self, key: Hashable, variant: Variant, sizes: Sizes, options: Options, place: Place):
        self.key = key
        problem, self._keep = make_problem(variant, sizes, options.checked(), place)
        out = ffi.new("srnn_plan **")
        check(lib.srnn_plan_create(out, problem))
        self.plan = out[0]
        self.place = place
        self.operands = [Operand(text(o.name), _shape(o), bool(o.tensor)) for o in operands_of(problem)]
        self.shape = (sizes.B, sizes.H, sizes.T, sizes.Dv)  # of the output
        self.inputs = Binding(self.operands)
        self.gradients = Binding(self.operands)
        self.o, self.d_o = Output(), Output()
        self._saved = ffi.new("void **")
        self._saved_word = ffi.cast("int64_t *", self._saved)
        self.saved_bytes = int(lib.srnn_plan_saved_bytes(self.plan))
        self.scratch_bytes = int(lib.srnn_plan_scratch_bytes(self.plan))
        self.packed = False
        self.siblings: Optional["_Siblings"] = None  # the pool's
        self.used = 0

    def set_strides(self, shapes: Sequence[Tuple[int, ...]], strides: Sequence[Sequence[int]]) -> None:
        """Of the inputs, in elements; raises if the library does not take them."""
        for index, operand in enumerate(self.operands):
            check_layout(operand, shapes[index], strides[index])
            self.inputs.set_strides(index, strides[index])

    def documents(self, offsets: Optional[Any]) -> None:
        """Packed documents for the next calls; None: every row is one."""
        if offsets is not None:
            check(lib.srnn_plan_documents(self.plan, ffi.from_buffer("int64_t[]", offsets), len(offsets) - 1))
        elif self.packed:
            check(lib.srnn_plan_documents(self.plan, NULL, 0))
        self.packed = offsets is not None

    def forward(self, o: int, saved: int) -> None:
        """Computes what lies at the address o, with the strides of self.o; saved: an address, or 0."""
        self.o.words[0] = o
        self._saved_word[0] = saved
        if self.place.lock is None:
            check(_forward(self.plan, self.o.struct[0], self.inputs.struct, self._saved[0]))
        else:
            self._locked(_forward, self.o.struct[0], self.inputs.struct)

    def backward(self, d_o: int, saved: int) -> None:
        """Computes the gradients that have an address."""
        self.d_o.words[0] = d_o
        self._saved_word[0] = saved
        self._locked(_backward, self.gradients.struct, self.d_o.struct[0], self.inputs.struct)

    def _locked(self, function: Any, *arguments: Any) -> None:
        with self.place.lock or nullcontext():
            check(function(self.plan, *arguments, self._saved[0]))

    def free(self) -> None:
        lib.srnn_plan_free(self.plan)


class _Siblings(List["Plan"]):
    """Plans of one key that wait."""

    forgotten = False  # the pool has no plan of this key any more, and dropped the key


class Pool:
    """Plans that wait to be used again: the most recently used ones, within limits.

    The key of a plan is everything about a call but its addresses, so that a call like an earlier one checks nothing
    again. Making the hash of a key is what a call pays most for here, so it is made once: a plan knows the list to which it
    comes back."""

    MOST_PLANS = 64
    MOST_BYTES = 256 << 20

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Dict[Hashable, _Siblings] = {}
        self._count = 0
        self._bytes = 0
        self._uses = 0

    def take(self, key: Hashable) -> Optional[Plan]:
        """A plan for the caller alone, to be given back; None: none waits."""
        with self._lock:
            plans = self._waiting.get(key)
            if not plans:
                return None
            plan = plans.pop()
            self._count -= 1
            self._bytes -= plan.scratch_bytes
            return plan

    def give_back(self, plan: Plan) -> None:
        """Also a new one."""
        with self._lock:
            if plan.siblings is None or plan.siblings.forgotten:
                plan.siblings = self._waiting.setdefault(plan.key, _Siblings())
            plan.siblings.append(plan)
            self._uses += 1
            plan.used = self._uses
            self._count += 1
            self._bytes += plan.scratch_bytes
            full = self._count > self.MOST_PLANS or self._bytes > self.MOST_BYTES
        if full:
            self._shrink()

    def _shrink(self) -> None:
        """Frees those that have waited longest, until the others are within the limits; one may always wait."""
        old = []
        with self._lock:
            waiting = sorted((plan for plans in self._waiting.values() for plan in plans), key=lambda plan: plan.used)
            for plan in waiting[:-1]:
                if self._count <= self.MOST_PLANS and self._bytes <= self.MOST_BYTES:
                    break
                siblings = self._waiting[plan.key]
                siblings.remove(plan)
                if not siblings:
                    siblings.forgotten = True
                    del self._waiting[plan.key]
                self._count -= 1
                self._bytes -= plan.scratch_bytes
                old.append(plan)
        for plan in old:
            plan.free()


pool = Pool()


def check_layout(operand: Operand, shape: Tuple[int, ...], strides: Sequence[int]) -> None:
    """Raises unless an array has the operand's shape and strides that the library takes."""
    name = operand.name
    if tuple(shape) != operand.shape:
        raise ArgumentError(f"{name} has the shape {tuple(shape)}; {operand.shape} is needed")
    if not operand.tensor:
        if len(shape) == 2 and shape[0] > 1 and strides[0] != shape[1]:
            raise ArgumentError(f"{name} must be contiguous")
    if len(shape) == 4 or not operand.tensor:
        if shape[-1] > 1 and strides[-1] != 1:
            raise ArgumentError(f"{name}: numbers of the last axis must follow each other (stride 1, not "
                                f"{strides[-1]}); make it contiguous first")
    if operand.tensor:
        for axis in range(3):
            if shape[axis] > 1 and strides[axis] == 0:
                raise ArgumentError(f"{name}: axis {axis} is expanded (stride 0), which is not taken; make it "
                                    "contiguous first")


ALL_OPERANDS = tuple(name for name, _ in ffi.typeof("srnn_operands").fields)
TENSORS = tuple(name for name, field in ffi.typeof("srnn_operands").fields if field.type.kind == "struct")  # over tokens

# What others call things.
_HINTS = {
    **dict.fromkeys(("causal", "is_causal"), "attention is always causal"),
    **dict.fromkeys(("attn_mask", "attention_mask", "mask"), "packed sequences and padding are documents=..."),
    **dict.fromkeys(("cu_seqlens", "offsets"), "packed sequences are documents=..., counted over all B*T tokens"),
    **dict.fromkeys(("head_first",), 'layout="bthd" puts tokens before heads'),
    **dict.fromkeys(("output_final_state", "state"), "states are initial_state=... and return_state=True"),
    **dict.fromkeys(("g", "gk", "f", "alpha"), "the decay is decay=..., before its activation"),
    **dict.fromkeys(("beta", "b"), "the delta rule's beta is write_gate=..., before its sigmoid"),
    **dict.fromkeys(("sm_scale", "scaling", "softmax_scale"), "the scale of scores is scale=..."),
    **dict.fromkeys(("dropout", "dropout_p"), "weights have no dropout"),
    "variant": "the variant is attention=...",
}


def operand_table() -> str:
    """A line for each operand: its name and shape, as softrnn.h documents them."""
    found = re.findall(r"(?:srnn_tensor |void \*)(\w+); +/\* (.*?) *\*/", header("softrnn.h"), flags=re.S)
    shapes = {name: " ".join(comment.split()) for name, comment in found}
    return "\n".join(f"    {name:<12} {shapes[name]}" for name in ALL_OPERANDS if name in shapes)


def named_operands(variant: Variant, q: Any, k: Any, v: Any, others: Dict[str, Any]) -> List[Any]:
    """What the variant reads, in the order of its operands; raises for what is missing or not read."""
    if not others and len(variant.operands) == 3:
        return [q, k, v]
    return ordered_operands(str(variant), variant.operands, q, k, v, others)


def ordered_operands(variant: str, names: Sequence[str], q: Any, k: Any, v: Any, others: Dict[str, Any]) -> List[Any]:
    """The same for a variant that reads these names."""
    given = {"q": q, "k": k, "v": v}
    for name, value in others.items():
        if name not in ALL_OPERANDS:
            hint = _HINTS.get(name) or f"gates and vectors are {', '.join(ALL_OPERANDS[3:])}"
            raise ArgumentTypeError(f"attention has no argument {name}; {hint}")
        if value is not None and name not in names:
            raise ArgumentError(f"{name} is not read by {variant}: leave it out")
        if value is not None:
            given[name] = value
    for name in names:
        if name not in given:
            raise ArgumentError(f"{variant} reads {name}, which was not given")
    return [given[name] for name in names]


_MANY_HEADS = 128  # more of them are rather tokens


def sizes_of(variant: Variant, dtype: str, q: Tuple[int, ...], k: Tuple[int, ...], v: Tuple[int, ...]) -> Sizes:
    """The sizes of a problem from the shapes of q, k and v."""
    for name, shape in (("q", q), ("k", k), ("v", v)):
        if len(shape) != 4:
            raise ArgumentError(f"{name} has the shape {tuple(shape)}; four axes are needed: (B, heads, T, width)")
        if 0 in shape:
            raise ArgumentError(f"{name} has the shape {tuple(shape)}, which is empty: heads and widths must be 1 or more, and B "
                                "and T those of q")
    heads = v[1] if variant._shares_queries else q[1]
    if heads > _MANY_HEADS and heads > 2 * q[2] > 2:
        warnings.warn(f"q has the shape {tuple(q)}: {heads} heads of {q[2]} tokens. Tensors (B, T, H, D) need layout=\"bthd\"",
                      stacklevel=2)
    return Sizes(dtype, q[0], heads, k[1], q[2], q[3], v[3])


def empty_output(variant: Variant, shapes: Sequence[Tuple[int, ...]]) -> Tuple[int, ...]:
    """The shape of o where B or T is 0; the other sizes are checked as ever."""
    whole = [tuple(size or 1 for size in shape[:1]) + shape[1:2] + tuple(size or 1 for size in shape[2:3]) + shape[3:]
             for shape in shapes[:3]]
    sizes = sizes_of(variant, "float32", *whole)  # type: ignore[arg-type]
    if any(shape[0] != shapes[0][0] or shape[2] != shapes[0][2] for shape in shapes[:3]):
        raise ArgumentError(f"q, k and v have the shapes {shapes[0]}, {shapes[1]} and {shapes[2]}; B and T must be the same")
    return (shapes[0][0], sizes.H, shapes[0][2], sizes.Dv)
