"""Variants of softmax attention: the descriptor of softrnn.h, read from a text, and the named ones."""

from functools import reduce
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from ._library import ArgumentTypeError, check, encoded, ffi, lib, text, words


def _fields(struct: Any, path: Tuple[str, ...] = ()) -> Iterator[Tuple[str, Any, Tuple[str, ...]]]:
    """Name, type and path of every field of a struct, those of structs inside it included."""
    for name, field in struct.fields:
        if field.type.kind == "struct":
            yield from _fields(field.type, (*path, name))
        else:
            yield name, field.type, (*path, name)


_FIELDS = list(_fields(ffi.typeof("srnn_attention")))


def _value(kind: Any, number: Any) -> Union[str, int, float, bool]:
    """A field of the descriptor as a word or a number."""
    return words(kind.cname)[int(ffi.cast("int", number))] if kind.kind == "enum" else number


def operands_of(problem: Any) -> Iterator[Any]:
    """A srnn_operand for everything that the problem's variant reads."""
    index = 0
    while True:
        operand = ffi.new("srnn_operand *")
        if not lib.srnn_operand_at(operand, problem, index):
            return
        yield operand
        index += 1


class Variant:
    """A variant of softmax attention: one attribute per axis of the equation, as docs/VARIANTS.md lists them.

    `name` (None if it has none), `text` (the canonical text form), `note`, `operands` (what the equation reads: q, k,
    v, and gates and learned vectors of this variant; `vectors`: the latter) and `has_state` (a state of fixed size) say the rest.

    >>> norm = softrnn.parse("norm")
    >>> norm.score, norm.norm, norm.has_state
    ('exp', 'l2', False)
    >>> softrnn.parse("order:2,norm=rms").text
    'score=taylor:2,norm=rms'
    >>> softrnn.parse("gate").operands
    ('q', 'k', 'v', 'output_gate')
    """

    def __init__(self, struct: Any, name: Optional[str] = None, note: str = ""):
        self._struct = struct
        self.axes: Dict[str, Any] = {name: _value(kind, reduce(getattr, path, struct)) for name, kind, path in _FIELDS}
        characters = ffi.new("char[]", lib.srnn_attention_print(ffi.NULL, 0, struct) + 1)
        lib.srnn_attention_print(characters, len(characters), struct)
        self.text = text(characters)
        known = lib.srnn_attention_name(struct)
        self.name = name or (text(known) if known else None)
        self.note = note
        self.has_state = bool(lib.srnn_attention_has_state(struct))
        found = list(operands_of(self._smallest()))
        self.operands = tuple(text(operand.name) for operand in found)
        self.vectors = tuple(text(operand.name) for operand in found if not operand.tensor)
        self._shares_queries = found[0].sizes[1] == 1  # heads share q and k; else k and v
        # backward needs the output and row statistics: o times the row's normaliser is the numerator
        self.keeps_output = (
            all(self.axes[name] == "none" for name in ("norm", "output_gate", "skip", "sink")) and not self.axes["post_gate"] and
            not self.axes["epsilon"] and self.axes["normaliser"] in ("row_sum", "none", "value_power"))

    def _smallest(self) -> Any:
        """A problem with this variant in which heads share something, for questions that do not depend on sizes."""
        problem = ffi.new("srnn_problem *", {"B": 1, "H": 2, "Hkv": 1, "T": 1, "D": 1})
        problem.attention = self._struct[0]
        return problem

    def __getattr__(self, name: str) -> Any:
        axes = self.__dict__.get("axes", {})
        if name in axes:
            return axes[name]
        raise AttributeError(f"a variant has no axis '{name}'; it has {', '.join(axes)}")

    def state_numbers(self, D: int, Dv: int = 0) -> int:
        """Numbers in the fixed-size state of one kv head; 0 if there is none.

        >>> softrnn.parse("order:2").state_numbers(64)
        139425
        """
        return int(lib.srnn_attention_state_numbers(self._struct, D, Dv or D))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variant) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.name or self.text

    def __repr__(self) -> str:
        return f"softrnn.parse({str(self)!r})"

    def __reduce__(self) -> Any:
        return parse, (self.text,)


_parsed: Dict[str, Variant] = {}
_MOST_PARSED = 1024


def parse(attention: Union[str, Variant]) -> Variant:
    """Reads a name, a text form, or a name followed by changes.

    >>> softrnn.parse("score=exp,clamp=5,normaliser=row_length,output_gate").name
    'softmax_divS_gate'
    >>> softrnn.parse("order:4,norm=l2").order
    4
    >>> softrnn.parse("nrom")
    Traceback (most recent call last):
    softrnn.FormatError: ...did you mean 'norm'...
    """
    if isinstance(attention, Variant):
        return attention
    try:
        return _parsed[attention]
    except (KeyError, TypeError):
        pass
    if not isinstance(attention, str):
        raise ArgumentTypeError(f"attention must be a text or a softrnn.Variant, not {type(attention).__name__}")
    struct = ffi.new("srnn_attention *")
    check(lib.srnn_attention_parse(struct, encoded(attention, "attention")))
    variant = Variant(struct)
    if len(_parsed) < _MOST_PARSED:
        _parsed[attention] = variant
    return variant


def variants() -> List[Variant]:
    """The named variants in the order of the table.

    >>> [variant.name for variant in softrnn.variants()][:3]
    ['softmax', 'softmax_clamp_denom', 'softmax_detach_denom']
    """
    found: List[Variant] = []
    while True:
        row = lib.srnn_variant_at(len(found))
        if not row:
            return found
        found.append(Variant(ffi.new("srnn_attention *", row.attention), text(row.name), text(row.note)))


def described_scale(attention: Union[str, Variant]) -> Tuple[str, str]:
    """The scale and the feature of a variant, as words."""
    variant = parse(attention)
    return variant.scale, variant.feature

