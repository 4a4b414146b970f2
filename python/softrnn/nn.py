"""Layers for torch models, with weights under the names that softrnn's checkpoints have.

>>> layer = softrnn.nn.Attention(64, heads=4, attention="gate")
>>> layer(torch.randn(2, 10, 64)).shape
torch.Size([2, 10, 64])
>>> sorted(name for name, _ in layer.named_parameters())[:2]
['k_proj.weight', 'o_proj.weight']
"""

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from ._attention import attention as attend
from ._library import ArgumentError, UnsupportedError, text
from ._plans import CPU, Options, Sizes, make_problem
from ._state import State
from ._variants import Variant, operands_of, parse

__all__ = ["Attention", "AttentionState", "rotary"]


class _Learned(NamedTuple):
    """What the layer learns for an operand."""

    operand: str
    parameter: str  # its name in checkpoints: of a vector, or of the linear layer that gives a tensor
    tensor: bool
    heads: int
    width: int  # of a tensor with four axes; else 0
    initial: float
    shape: Tuple[int, ...]  # of a vector in checkpoints


def _learned(variant: Variant, H: int, Hkv: int, D: int) -> List[_Learned]:
    problem, _ = make_problem(variant, Sizes("float32", 1, H, Hkv, 1, D, D), Options(), CPU)
    found = []
    for o in operands_of(problem):
        sizes = tuple(o.sizes[axis] for axis in range(o.rank))
        if o.learned:
            heads, width = (sizes[1], sizes[3] if len(sizes) == 4 else 0) if o.tensor else (0, 0)
            shape = (1, sizes[0], 1, 1) if o.file_rank == 4 else sizes
            found.append(_Learned(text(o.name), text(o.learned), bool(o.tensor), heads, width, o.initial, shape))
    return found


def rotary(positions: Tensor, D: int, theta: float = 10000.0) -> Tuple[Tensor, Tensor]:
    """cos and sin (..., D) of rotary position at positions (...), in the rotate-half layout."""
    frequency = theta ** (-torch.arange(0, D, 2, dtype=torch.float64, device=positions.device) / D)
    angles = positions.to(torch.float64)[..., None] * torch.cat((frequency, frequency))
    return angles.cos().float(), angles.sin().float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, heads, T, D) by cos and sin (B or 1, T, D)."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos[:, None] + turned * sin[:, None]).to(x.dtype)


class AttentionState:
    """What a layer remembers of the tokens fed so far: the attention's state, and inputs of the convolution."""

    def __init__(self, layer: "Attention", B: int, dtype: torch.dtype, device: Any, **options: Any):
        computed = dtype if torch.device(device).type == "cuda" and dtype == torch.bfloat16 else (
            dtype if dtype == torch.float64 else torch.float32)
        self.dtype = computed
        self.attention = State(layer.variant, B=B, H=layer.H, Hkv=layer.Hkv, D=layer.D, dtype=computed, device=device,
                               **options)
        self.before: Optional[Tensor] = None  # (B, width - 1, channels)

    @property
    def position(self) -> int:
        """Tokens fed since the start."""
        return self.attention.position

    @property
    def nbytes(self) -> int:
        """Bytes it holds."""
        return self.attention.nbytes + (self.before.numel() * self.before.element_size()
                                        if self.before is not None else 0)


class Attention(nn.Module):
    """An attention layer of any variant: projections, gates, convolution, position, the equation, output projection.

    dim: width of the model. heads, kv_heads (default: heads), head_dim (default: dim / heads). attention: as in
    softrnn.attention. bias: of q, k, v (and of the convolution); output_bias (default: bias). theta: of the rotary
    position, where the variant has one. options: form, chunk, kernel, threads, state_limit.

    A variant drops into a model in one line:

    >>> model = torch.nn.Sequential(torch.nn.Embedding(100, 32), softrnn.nn.Attention(32, heads=2, attention="norm"))
    >>> model(torch.arange(10)[None]).shape
    torch.Size([1, 10, 32])
    """

    def __init__(self, dim: int, heads: int, kv_heads: Optional[int] = None, head_dim: Optional[int] = None, *,
                 attention: Union[str, Variant] = "softmax", bias: bool = False, output_bias: Optional[bool] = None,
                 theta: float = 10000.0, **options: Any):
        super().__init__()
        self.variant = parse(attention)
        self.H, self.Hkv = heads, kv_heads or heads
        self.D = head_dim or dim // heads
        self.theta = theta
        self.options = options
        self._check()
        self.learned = _learned(self.variant, self.H, self.Hkv, self.D)
        queries, keys = self.H * self.D, self.Hkv * self.D
        self.sizes = (queries, keys, keys)
        if self.variant.short_conv:
            self.qkv_proj = nn.Linear(dim, sum(self.sizes), bias=bias)
            self.conv1d = nn.Conv1d(sum(self.sizes), sum(self.sizes), self.variant.short_conv, bias=bias,
                                    groups=sum(self.sizes))
        else:
            self.q_proj = nn.Linear(dim, queries, bias=bias)
            self.k_proj = nn.Linear(dim, keys, bias=bias)
            self.v_proj = nn.Linear(dim, keys, bias=bias)
        self.o_proj = nn.Linear(queries, dim, bias=bias if output_bias is None else output_bias)
        for learned in self.learned:
            self._add(learned, dim)

    def _check(self) -> None:
        axes = self.variant.axes
        if axes["layer"] != "plain":
            raise UnsupportedError(f"{self.variant} has a layer of its own (layer={axes['layer']}), which "
                                   "softrnn.nn.Attention is not; softrnn.attention computes its equation")
        if axes["position"] not in ("rope", "none"):
            raise UnsupportedError(f"{self.variant}: softrnn.nn.Attention has no position={axes['position']}")
        if axes["position"] == "rope" and self.D % 2:
            raise ArgumentError(f"head_dim is {self.D}; rotary position needs an even one")

    def _add(self, learned: _Learned, dim: int) -> None:
        """Registers what is learned for an operand under its name in checkpoints, which may hold a dot."""
        if learned.tensor:
            self.add_module(learned.parameter, nn.Linear(dim, learned.heads * max(learned.width, 1)))
            return
        parameter = nn.Parameter(torch.full(learned.shape, float(learned.initial)))
        owner: nn.Module = self
        *path, last = learned.parameter.split(".")
        for name in path:
            if not hasattr(owner, name):
                owner.add_module(name, nn.Module())
            owner = getattr(owner, name)
        owner.register_parameter(last, parameter)

    def _vector(self, learned: _Learned) -> Tensor:
        found: Any = self
        for name in learned.parameter.split("."):
            found = getattr(found, name)
        return found.flatten() if len(learned.shape) == 4 else found

    def new_state(self, B: int = 1, **options: Any) -> AttentionState:
        """For feeding B sequences in pieces: layer(x, state=state)."""
        weight = self.o_proj.weight
        kept = {name: value for name, value in self.options.items() if name in ("chunk", "threads", "state_limit")}
        return AttentionState(self, B, weight.dtype, weight.device, **{**kept, **options})

    def forward(self, x: Tensor, *, position: Optional[Tuple[Tensor, Tensor]] = None, documents: Any = None,
                state: Optional[AttentionState] = None) -> Tensor:
        """x (B, T, dim) to (B, T, dim). position: cos and sin (1 or B, T, head_dim) in place of the layer's own.
        documents: as in softrnn.attention. state: x holds the next tokens of the sequences that the state knows; there
        are no gradients then."""
        B, T, _ = x.shape
        where = _positions(B, T, documents, state, x.device)
        q, k, v = self._project(x, where, state)
        if self.variant.position == "rope":
            cos, sin = position if position is not None else rotary(where, self.D, self.theta)
            q, k = (_rotate(part, cos.to(part.device), sin.to(part.device)) for part in (q, k))
        operands = self._operands(x)
        if state is not None:
            vectors = self.variant.vectors
            values = {name: value.to(torch.float32 if name in vectors and state.dtype == torch.bfloat16 else state.dtype)
                      for name, value in {"q": q, "k": k, "v": v, **operands}.items()}
            o = state.attention.feed(**values).to(x.dtype)
        else:
            o = attend(q, k, v, self.variant, documents=documents, **self.options, **operands)
        return self.o_proj(o.transpose(1, 2).reshape(B, T, self.H * self.D))

    def _operands(self, x: Tensor) -> Dict[str, Any]:
        B, T, _ = x.shape
        found: Dict[str, Any] = {}
        for learned in self.learned:
            if not learned.tensor:
                found[learned.operand] = self._vector(learned)
                continue
            gate = getattr(self, learned.parameter)(x)
            if learned.width:
                gate = gate.reshape(B, T, learned.heads, learned.width)
            found[learned.operand] = gate.transpose(1, 2)
        return found

    def _project(self, x: Tensor, where: Tensor, state: Optional[AttentionState]) -> List[Tensor]:
        B, T, _ = x.shape
        if self.variant.short_conv:
            parts = self._convolve(self.qkv_proj(x), where, state).split(self.sizes, dim=-1)  # type: ignore[no-untyped-call]
        else:
            parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        return [part.reshape(B, T, -1, self.D).transpose(1, 2) for part in parts]

    def _convolve(self, x: Tensor, where: Tensor, state: Optional[AttentionState]) -> Tensor:
        """Each channel over its document's last tokens, then SiLU; the last tap meets the token itself."""
        width = self.variant.short_conv
        before = state.before if state is not None else None
        if before is None:
            before = x.new_zeros(x.shape[0], width - 1, x.shape[2])
        padded = torch.cat((before, x), dim=1)
        if state is not None:
            state.before = padded[:, padded.shape[1] - (width - 1):].clone()
        T = x.shape[1]
        y = x * self.conv1d.weight[:, 0, width - 1]
        for back in range(1, width):
            earlier = padded[:, width - 1 - back:width - 1 - back + T]
            y = y + torch.where((where >= back)[..., None], earlier, torch.zeros_like(earlier)) * \
                self.conv1d.weight[:, 0, width - 1 - back]
        if self.conv1d.bias is not None:
            y = y + self.conv1d.bias
        return nn.functional.silu(y)


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
