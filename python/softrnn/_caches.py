"""What transformers calls a cache, made of states: sequences of different lengths, beams, and tokens that are taken back."""

import copy
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ._library import ArgumentError, UnsupportedError

_Step = Callable[..., Tensor]  # (state, *inputs) to what the layer gives for these tokens


def count_of(tokens: Any) -> int:
    """How many tokens come: what transformers gives a cache is their number, and before version 5 their positions."""
    return len(tokens) if isinstance(tokens, Tensor) and tokens.dim() else int(tokens)


class Memory:
    """What one layer remembers of B sequences: one state of all of them, or, with apart=True, one state for each, which can
    have padding, change places and be copied. rewinds: tokens can be taken back (crop)."""

    def __init__(self, make: Callable[[int], Any], apart: bool, rewinds: bool):
        self.make, self.apart, self.rewinds = make, apart, rewinds
        self.states: List[Any] = []
        self.length = 0  # tokens fed, padding included
        self.base: Tuple[int, List[Any]] = (0, [])  # the length and the states that crop() starts from
        self.fed: List[Tuple[_Step, int, Tuple[Tensor, ...], Optional[Tensor]]] = []  # since then

    @property
    def nbytes(self) -> int:
        return sum(state.nbytes for state in self.states)

    def feed(self, step: _Step, axis: int, inputs: Tuple[Tensor, ...], mask: Optional[Tensor]) -> Tensor:
        """What `step` gives for the next tokens: inputs (B or 1, ..), with tokens along `axis`; mask (B, T), or None: true for
        tokens, false for padding, for which zeros are given."""
        B, T = inputs[0].shape[0], inputs[0].shape[axis]
        if mask is not None and bool(mask.all()):
            mask = None
        if not self.states:
            self.apart = self.apart or mask is not None
            self.states = [self.make(1) for _ in range(B)] if self.apart else [self.make(B)]
        if self.apart and len(self.states) != B:
            raise ArgumentError(f"{B} sequences are fed to a cache of {len(self.states)}")
        if mask is not None and not self.apart:
            raise UnsupportedError("padding follows tokens of sequences that were fed without any: start with a new cache")
        o = self._feed(step, axis, inputs, mask)
        if self.rewinds:
            self.fed.append((step, axis, inputs, mask))
        self.length += T
        return o

    def _feed(self, step: _Step, axis: int, inputs: Tuple[Tensor, ...], mask: Optional[Tensor]) -> Tensor:
        if not self.apart:
            return step(self.states[0], *inputs)
        rows = []
        for b, state in enumerate(self.states):
            row = tuple(x if x.shape[0] == 1 else x[b:b + 1] for x in inputs)
            rows.append(_feed_row(step, axis, state, row, None if mask is None else mask[b].bool()))
        width = next((o for o in rows if o is not None), None)
        if width is None:
            raise UnsupportedError("a piece that is padding in every sequence was fed: leave it out")
        T = inputs[0].shape[axis]
        shape = [1 if n == 0 else T if n == axis else size for n, size in enumerate(width.shape)]
        return torch.cat([_spread(o, width.new_zeros(shape), axis, None if mask is None else mask[b].bool())
                          for b, o in enumerate(rows)])

    def select(self, rows: List[int]) -> None:
        """Sequence n becomes what sequence rows[n] was."""
        if not self.apart and rows != list(range(len(rows))):
            raise UnsupportedError("the sequences of this cache share one state: make it with apart=True, so that they can "
                                   "change places")
        if not self.states or not self.apart:
            return
        taken: List[int] = []
        states = []
        for row in rows:
            states.append(self.states[row].copy() if row in taken else self.states[row])
            taken.append(row)
        self.states = states
        self._rebase()

    def crop(self, length: int) -> None:
        """Takes back the last -length tokens; a length above 0: all tokens from there on, as before transformers 5."""
        length = self.length + length if length <= 0 else length
        if length >= self.length:
            return self._rebase()
        start, states = self.base
        if not self.rewinds or length < start:
            raise UnsupportedError(f"a state forgets no token: make the cache with rewinds=True to take tokens back, {start} "
                                   f"or more of which stay; {length} of {self.length} were to stay")
        fed, self.fed, self.length = self.fed, [], start
        self.states = [state.copy() for state in states]
        for step, axis, inputs, mask in fed:
            T = min(length - self.length, inputs[0].shape[axis])
            if T > 0:
                self.feed(step, axis, tuple(x.narrow(axis, 0, T) for x in inputs), mask[:, :T] if mask is not None else None)
        self._rebase()

    def _rebase(self) -> None:
        """What is remembered now cannot be taken back any more."""
        if self.rewinds:
            self.base = (self.length, [state.copy() for state in self.states])
            self.fed = []

    def __deepcopy__(self, memo: Any) -> "Memory":
        """Of the same layer."""
        other = copy.copy(self)
        other.states = [state.copy() for state in self.states]
        other.base, other.fed = (self.base[0], [state.copy() for state in self.base[1]]), list(self.fed)
        return other

    def reset(self) -> None:
        """The next token is the first."""
        self.states, self.length, self.base, self.fed = [], 0, (0, []), []


def _feed_row(step: _Step, axis: int, state: Any, row: Tuple[Tensor, ...], mask: Optional[Tensor]) -> Optional[Tensor]:
    """One sequence without its padding; None: it is nothing else."""
    if mask is None or bool(mask.all()):
        return step(state, *row)
    where = mask.nonzero().flatten()
    if not len(where):
        return None
    return step(state, *(x.index_select(axis, where.to(x.device)) for x in row))


def _spread(o: Optional[Tensor], zeros: Tensor, axis: int, mask: Optional[Tensor]) -> Tensor:
    """The outputs of a sequence among zeros for its padding."""
    if o is None:
        return zeros
    if mask is None or o.shape[axis] == len(mask):
        return o
    return zeros.index_copy(axis, mask.nonzero().flatten().to(o.device), o)


class StatesCache(Cache):  # type: ignore[misc]
    """A cache of states: one Memory for each layer."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.memories: Dict[int, Memory] = {}

    def get_seq_length(self, layer_idx: int = 0) -> int:
        memory = self.memories.get(layer_idx)
        return memory.length if memory is not None else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> Tuple[int, int]:
        return self.get_seq_length(layer_idx) + count_of(query_length), 0

    @property
    def is_sliding(self) -> List[bool]:
        return [False] * max(1, len(self.memories))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(memory.nbytes for memory in self.memories.values())

    def crop(self, *arguments: Any, **keywords: Any) -> None:
        """Takes back the last tokens, where rewinds=True: crop(-3) three of them."""
        for memory in self.memories.values():
            memory.crop(int(arguments[0] if arguments else next(iter(keywords.values()))))

    def reset(self) -> None:
        """The next token is the first."""
        for memory in self.memories.values():
            memory.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence n becomes what sequence beam_idx[n] was."""
        for memory in self.memories.values():
            memory.select(torch.as_tensor(beam_idx).flatten().tolist())

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        for memory in self.memories.values():
            memory.select([row for row in range(len(memory.states)) for _ in range(repeats)])
