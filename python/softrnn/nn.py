"""Layers for torch models, with weights under the names that softrnn's checkpoints have.

>>> layer = softrnn.nn.Attention(64, heads=4, attention="gate")
>>> layer(torch.randn(2, 10, 64)).shape
torch.Size([2, 10, 64])
>>> sorted(name for name, _ in layer.named_parameters())[:2]
['k_proj.weight', 'o_proj.weight']
"""

import copy
from operator import attrgetter
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from ._attention import attention as attend
from ._layer import Convolution, layer_of
from ._library import ArgumentError, ArgumentTypeError
from ._plans import Options
from ._state import State
from ._variants import Variant, parse

__all__ = ["Attention", "AttentionState", "rotary"]

_OWN_NORM_EPSILON = 1e-5

# What others call the arguments of Attention.
_NAMES = {**dict.fromkeys(("hidden", "hidden_size", "embed_dim", "d_model"), "dim"),
          **dict.fromkeys(("num_heads", "n_heads", "num_attention_heads", "nhead"), "heads"),
          **dict.fromkeys(("num_kv_heads", "num_key_value_heads"), "kv_heads"),
          **dict.fromkeys(("head_size", "key_size", "d_head"), "head_dim"),
          **dict.fromkeys(("variant", "attn_implementation"), "attention"), "rope_theta": "theta"}


def __dir__() -> List[str]:
    return __all__


def rotary(positions: Tensor, D: int, theta: float = 10000.0) -> Tuple[Tensor, Tensor]:
    """cos and sin (..., D) of rotary position at positions (...), in the rotate-half layout."""
    frequency = theta ** (-torch.arange(0, D, 2, dtype=torch.float64, device=positions.device) / D)
    angles = positions.to(torch.float64)[..., None] * torch.cat((frequency, frequency))
    return angles.cos().float(), angles.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, heads, T, D) by cos and sin (B or 1, T, D)."""
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos[:, None] + rotated * sin[:, None]).to(x.dtype)


class AttentionState:
    """What a layer remembers of the tokens fed so far: the attention's state, and inputs of the convolutions."""

    def __init__(self, layer: "Attention", B: int, dtype: torch.dtype, device: Any, **options: Any):
        computed = dtype if torch.device(device).type == "cuda" and dtype == torch.bfloat16 else (
            dtype if dtype == torch.float64 else torch.float32)
        self.layer, self.B = layer, B
        self.dtype = computed
        self.attention = State(layer.variant, B=B, H=layer.heads, Hkv=layer.kv_heads, D=layer.head_dim, Dv=layer.value_dim, dtype=computed,
                               device=device, **options)
        self.before: Dict[str, Tensor] = {}  # (B, taps - 1, columns) of each convolution
        self.after: Dict[str, Tensor] = {}  # the same once the tokens at hand are fed

    def feed(self, operands: Dict[str, Any]) -> Tensor:
        """The next tokens; nothing has changed where they are refused."""
        o: Tensor = self.attention.feed(**operands)
        self.before = self.after
        return o

    def copy(self) -> "AttentionState":
        """Another state of the same layer that remembers the same."""
        other = copy.copy(self)
        other.attention = self.attention.copy()
        other.before = {name: x.clone() for name, x in self.before.items()}
        return other

    def __deepcopy__(self, memo: Dict[int, Any]) -> "AttentionState":
        """Of the same layer, unless that is copied too."""
        other = self.copy()
        other.layer = memo.get(id(self.layer), self.layer)
        return other

    @property
    def position(self) -> int:
        """Tokens fed since the start."""
        return self.attention.position

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        return self.attention.nbytes + sum(x.numel() * x.element_size() for x in self.before.values())


_Row = List[Tuple[int, Tensor]]  # pieces of the row of a token: first column, (B, T, columns)


def _columns(row: _Row, first: int, count: int) -> Tensor:
    """Columns of one of the pieces."""
    for start, piece in row:
        if start <= first < start + piece.shape[-1]:
            return piece[..., first - start:first - start + count]
    raise AssertionError(f"no piece has the column {first}")


class Attention(nn.Module):
    """An attention layer of any variant: projections, convolutions, gates, position, the equation, output projection, as
    softrnn train has them, with first values drawn in the same way.

    dim: width of the model. heads, kv_heads (default: heads), head_dim (default: dim / heads): those of the model; a layer
    of its own (layer=mamba2, ..) makes its sizes of them, or has them from sizes ({"heads": .., "groups": .., "key_size": ..,
    "value_size": .., "rank": .., "levels": ..}). attention: as in softrnn.attention. bias: of q, k, v (and of the convolution);
    output_bias (default: bias). theta: of the rotary position, where the variant has one. layers: of the model, for first
    values. form, chunk, kernel, threads, state_limit: as in softrnn.attention. It is causal, as everything here.

    A variant drops into a model in one line:

    >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 32), softrnn.nn.Attention(32, heads=2, attention="norm"))
    >>> model(torch.arange(10)[None]).shape
    torch.Size([1, 10, 32])
    """

    def __init__(self, dim: int, heads: int, kv_heads: Optional[int] = None, head_dim: Optional[int] = None, *,
                 attention: Union[str, Variant] = "softmax", bias: bool = False, output_bias: Optional[bool] = None,
                 theta: float = 10000.0, layers: int = 1, sizes: Optional[Dict[str, int]] = None, form: str = "auto",
                 chunk: int = 0, kernel: Optional[str] = None, threads: int = 0, state_limit: int = 0, **others: Any):
        super().__init__()
        for name in others:
            hint = f": did you mean {_NAMES[name]}?" if name in _NAMES else ""
            raise ArgumentTypeError(f"Attention got an unexpected keyword argument '{name}'{hint}")
        self.variant = parse(attention)
        options = Options(form, chunk, kernel, threads, state_limit).checked()
        if head_dim is None and heads > 0 and dim % heads:
            raise ArgumentError(f"a width of {dim} cannot be divided among {heads} heads: give head_dim, or another dim or heads")
        self.layer = layer_of(self.variant, dict(
            dim=dim, heads=heads, kv_heads=kv_heads or heads, key_size=head_dim or dim // max(heads, 1), layers=layers, bias=bias,
            output_bias=bias if output_bias is None else output_bias), sizes)
        found = self.layer.sizes
        # Whole words: checkpoints have tensors that are called D and L.
        self.heads, self.kv_heads, self.head_dim, self.value_dim = (
            found[n] for n in ("heads", "kv_heads", "key_size", "value_size"))
        self.theta = theta
        self.options = options._replace(levels=found["levels"], rope_theta=theta)
        if self.variant.position == "rope" and self.head_dim % 2:
            raise ArgumentError(f"head_dim is {self.head_dim}; rotary position needs an even one")
        for p in self.layer.projections:
            self._add(p.name, nn.Linear(p.inputs, p.outputs, bias=p.bias))
        for c in self.layer.convolutions:
            self._add(c.name, nn.Conv1d(c.columns, c.columns, c.taps, groups=c.columns, bias=c.bias))
        self._add(self.layer.output, nn.Linear(self.heads * self.value_dim, dim, bias=self.layer.output_bias))
        there = {name for name, _ in self.named_parameters()}
        for name, shape in self.layer.tensors:
            if name not in there:
                self._add(name, nn.Parameter(torch.empty(shape)))
        self.reset_parameters()

    def _add(self, name: str, value: Any) -> None:
        """Registers a module or a parameter under its name in checkpoints, which may hold dots."""
        owner: nn.Module = self
        *path, last = name.split(".")
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, nn.Module())
            owner = getattr(owner, part)
        setattr(owner, last, value)

    def _tensor(self, name: str) -> Tensor:
        """A parameter, or what torch.func.functional_call or a parametrization has put in its place."""
        found: Tensor = attrgetter(name)(self)
        return found

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def reset_parameters(self) -> None:
        """First values, as softrnn train draws them; torch's generator gives the seed."""
        if any(parameter.is_meta for parameter in self.parameters()):
            return
        seed = int(torch.randint(1 << 62, (), device="cpu"))
        for name, values in self.layer.first_values(seed):
            self.get_parameter(name).copy_(torch.from_numpy(values))

    def new_state(self, B: int = 1, **options: Any) -> AttentionState:
        """For feeding B sequences in pieces: layer(x, state=state)."""
        weight: Any = self.get_submodule(self.layer.output).weight
        inherited = {name: value for name, value in self.options._asdict().items()
                if name in ("chunk", "threads", "state_limit", "levels", "rope_theta")}
        return AttentionState(self, B, weight.dtype, weight.device, **{**inherited, **options})

    def forward(self, x: Tensor, *, position: Optional[Tuple[Tensor, Tensor]] = None, documents: Any = None,
                state: Optional[AttentionState] = None) -> Tensor:
        """x (B, T, dim) to (B, T, dim). position: cos and sin (1 or B, T, head_dim) in place of the layer's own.
        documents: as in softrnn.attention. state: x holds the next tokens of the sequences that the state knows; there
        are no gradients then."""
        self._check(x, state)
        B, T, _ = x.shape
        where = _positions(B, T, documents, state, x.device)
        operands: Dict[str, Any] = self._operands(self._normed(x), where, state)
        if self.variant.position == "rope":
            cos, sin = position if position is not None else rotary(where, self.head_dim, self.theta)
            for name in ("q", "k"):
                operands[name] = _rotate(operands[name], cos.to(x.device), sin.to(x.device))
        if state is not None:
            vectors = self.variant.vectors
            values = {name: value.to(torch.float32 if name in vectors and state.dtype == torch.bfloat16 else state.dtype)
                      for name, value in operands.items()}
            o = state.feed(values).to(x.dtype)
        else:
            o = attend(attention=self.variant, documents=documents, **self.options._asdict(), **operands)
        y: Tensor = self.get_submodule(self.layer.output)(o.transpose(1, 2).reshape(B, T, self.heads * self.value_dim))
        return y if self.layer.own_norm is None else x + y

    def _check(self, x: Tensor, state: Optional[AttentionState]) -> None:
        if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[2] != self.layer.sizes["dim"]:
            kind = f"the shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"the type {type(x).__name__}"
            raise ArgumentError(f"x has {kind}; a tensor (B, T, {self.layer.sizes['dim']}) is needed")
        if state is not None and state.layer is not self:
            raise ArgumentError("state is that of another layer: make one with this layer's new_state()")
        if state is not None and state.B != x.shape[0]:
            raise ArgumentError(f"x has {x.shape[0]} sequences, and the state {state.B}")

    def extra_repr(self) -> str:
        """What print says of the layer besides its modules."""
        return f"attention={self.variant}, heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"

    def _normed(self, x: Tensor) -> Tensor:
        """The input of a layer with a norm of its own."""
        if self.layer.own_norm is None:
            return x
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + _OWN_NORM_EPSILON)
        return wide.to(x.dtype) * self._tensor(self.layer.own_norm)

    def _operands(self, x: Tensor, where: Tensor, state: Optional[AttentionState]) -> Dict[str, Any]:
        """What the equation reads."""
        B, T, _ = x.shape
        projected = self._project(x)
        if state is not None:
            state.after = {}
        convolved = [(c.first, self._convolve(c, _columns(projected, c.source, c.columns), where, state))
                     for c in self.layer.convolutions]
        found: Dict[str, Tensor] = {}
        for o in self.layer.operands:
            if not o.over_tokens:
                found[o.name] = self._tensor(o.learned or "").reshape(o.shape)
                continue
            columns = _columns(convolved if o.convolved else projected, o.first, o.columns)
            heads = (o.shape[1],) + o.shape[3:]
            found[o.name] = columns.reshape(B, T, *heads).transpose(1, 2)
        return found

    def _project(self, x: Tensor) -> _Row:
        row: _Row = []
        for p in self.layer.projections:
            y = self.get_submodule(p.name)(x if p.source < 0 else _columns(row, p.source, p.inputs))
            for o in self.layer.operands:  # columns with a bias of their own
                if o.over_tokens and o.learned and not o.convolved and p.first <= o.first < p.first + p.outputs:
                    before = o.first - p.first
                    y = y + nn.functional.pad(self._tensor(o.learned), (before, p.outputs - before - o.columns))
            row.append((p.first, y))
        return row

    def _convolve(self, c: Convolution, x: Tensor, where: Tensor, state: Optional[AttentionState]) -> Tensor:
        """Each column over its document's last tokens, then SiLU unless it is plain; the last tap meets the token itself."""
        module: Any = self.get_submodule(c.name)
        before = state.before.get(c.name) if state is not None else None
        if before is None:
            before = x.new_zeros(x.shape[0], c.taps - 1, x.shape[2])
        padded = torch.cat((before, x), dim=1)
        if state is not None:
            state.after[c.name] = padded[:, padded.shape[1] - (c.taps - 1):].clone()
        T = x.shape[1]
        y = x * module.weight[:, 0, c.taps - 1]
        for back in range(1, c.taps):
            earlier = padded[:, c.taps - 1 - back:c.taps - 1 - back + T]
            y = y + torch.where((where >= back)[..., None], earlier, torch.zeros_like(earlier)) * \
                module.weight[:, 0, c.taps - 1 - back]
        if module.bias is not None:
            y = y + module.bias
        return y if c.plain else nn.functional.silu(y)


def _positions(B: int, T: int, documents: Any, state: Optional[AttentionState], device: Any) -> Tensor:
    """Where each token stands in its document: (1, T), or (B, T) with documents."""
    if documents is None:
        start = state.position if state is not None else 0
        return torch.arange(start, start + T, device=device)[None]
    if state is not None:
        raise ArgumentError("documents are not for pieces that are fed to a state")
    starts = torch.as_tensor(documents, device=device)
    tokens = torch.arange(B * T, device=device)
    first = starts[torch.searchsorted(starts, tokens, right=True) - 1]
    return (tokens - first).reshape(B, T)
