"""transformers: softrnn as an attention implementation, and models of any variant. Importing this module registers both.

    import softrnn.hf
    AutoModelForCausalLM.from_pretrained(folder, attn_implementation="softrnn")   # any Llama-like model
    AutoModelForCausalLM.from_pretrained("runs/norm/checkpoints/...")             # what softrnn train wrote

The variant of a model with attn_implementation="softrnn" is config.softrnn_attention ("softmax" if there is none): one for
all layers, or by layers, "0-3:norm,4-:order:2".
"""

import re
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import numpy as np
import torch
from torch import Tensor
from transformers import (AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationMixin, LlamaConfig,
                          LlamaForCausalLM, PreTrainedModel)
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMode
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from ._attention import attention as attend
from ._caches import Memory, StatesCache, count_of
from ._layer import is_described
from ._library import ArgumentError, FormatError, UnsupportedError
from ._state import State
from ._torch import is_traced, is_transformed
from ._variants import Variant, parse
from .lab import Model
from .nn import Attention, AttentionState

__all__ = ["AttentionCache", "LabForCausalLM", "SoftrnnConfig", "SoftrnnForCausalLM", "StateCache", "attention_forward",
           "layer_variants"]


def __dir__() -> List[str]:
    return __all__


def layer_variants(text: str, layers: int) -> List[Variant]:
    """The variant of each layer, from one for all of them, from ranges, or from counts that are repeated.

    >>> [str(variant) for variant in softrnn.hf.layer_variants("0:softmax,1-:order:2", 3)]
    ['softmax', 'score=taylor:2', 'score=taylor:2']
    >>> [str(variant) for variant in softrnn.hf.layer_variants("2*order:2,1*softmax", 4)]
    ['score=taylor:2', 'score=taylor:2', 'softmax', 'score=taylor:2']
    """
    if re.match(r"\d+\*", text):
        pattern = [parse(part.split("*", 1)[1]) for part in re.split(r",(?=\d+\*)", text)
                   for _ in range(int(part.split("*", 1)[0]))]
        if not pattern:
            raise FormatError(f"{text}: counts of layers are 1* or more")
        return [pattern[layer % len(pattern)] for layer in range(layers)]
    if not re.match(r"\d+(-\d*)?:", text):
        return [parse(text)] * layers
    found: Dict[int, Variant] = {}
    for part in re.split(r",(?=\d+(?:-\d*)?:)", text):
        layers_of, variant = part.split(":", 1)
        first, dash, last = layers_of.partition("-")
        for layer in range(int(first), int(last or (layers - 1 if dash else first)) + 1):
            found[layer] = parse(variant)
    if sorted(found) != list(range(layers)):
        raise FormatError(f"{text}: the attention of each of {layers} layers must be given")
    return [found[layer] for layer in range(layers)]


# ---- documents: what a token sees, from masks and positions


def _offsets(cuts: Tensor) -> Tensor:
    """Document offsets from cuts (B, T), true where a document starts."""
    cuts[:, 0] = True
    starts = cuts.flatten().nonzero().flatten()
    return torch.cat((starts, starts.new_tensor([cuts.numel()]))).cpu()


_last: Tuple[Any, Any, Optional[Tensor]] = (lambda: None, None, None)


def _documents(mask: Optional[Tensor], positions: Optional[Tensor], B: int) -> Optional[Tensor]:
    """Padding (mask (B, T), true for tokens) is a document of its own, and so is each packed sequence, whose positions
    (B or 1, T) start anew. All layers of a model ask for the same."""
    global _last
    given = mask if mask is not None else positions
    if given is None or given.dim() != 2 or given.shape[1] < 2:
        return None
    if _is_traced(given):
        return _all_documents(given.expand(B, -1), mask is not None)
    last, version = _last, None if given.is_inference() else (given._version, B)  # one read: threads share it
    if version is not None and last[0]() is given and last[1] == version:
        return last[2]
    offsets = _found_documents(mask, given, B)
    _last = (weakref.ref(given), version, offsets)
    return offsets


def _is_traced(tensor: Tensor) -> bool:
    """Whether torch records what is computed of a tensor, or knows its sizes alone: its numbers can decide nothing then."""
    return torch.compiler.is_compiling() or (is_traced((tensor,)) and not is_transformed())


def _found_documents(mask: Optional[Tensor], given: Tensor, B: int) -> Optional[Tensor]:
    """The offsets of documents in a mask, or in positions; None: each row is one."""
    if mask is not None:
        follows = mask[:, 1:].bool() == mask[:, :-1].bool()
        begins = mask[:, 0].bool() + (mask[:, 1:].bool() & ~mask[:, :-1].bool()).sum(1)
        if bool((begins > 1).any()):
            raise UnsupportedError("attention_mask leaves out tokens inside a sequence; softrnn's attention takes masks "
                                   "of padding before and after it")
    else:
        follows = given[:, 1:] == given[:, :-1] + 1
    if bool(follows.all()):
        return None
    return _offsets(torch.cat((torch.ones_like(follows[:, :1]), ~follows), dim=1).repeat(B // len(follows), 1))


@torch.library.custom_op("softrnn::documents", mutates_args=())
def _all_documents(given: Tensor, is_mask: bool) -> Tensor:
    """_documents for compilers and tracers, from a mask or from positions (B, T): B*T + 1 offsets, the last of which repeat the end,
    since a graph knows no size that depends on numbers."""
    offsets = _found_documents(given if is_mask else None, given, len(given))
    tokens, T = given.numel(), given.shape[1]
    found = offsets if offsets is not None else torch.arange(0, tokens + 1, T)
    return torch.cat((found, found.new_full((tokens + 1 - len(found),), tokens)))


@_all_documents.register_fake
def _(given: Tensor, is_mask: bool) -> Tensor:
    return given.new_empty(given.shape[0] * given.shape[1] + 1, dtype=torch.int64, device="cpu")


# ---- attn_implementation="softrnn"


class AttentionCache(StatesCache):
    """The cache of a model with attn_implementation="softrnn": a softrnn.State for each layer, of fixed size where the
    variant has such a state, in place of all keys and values.

    apart: each sequence has a state of its own, which padding, beams and copies need. rewinds: tokens can be taken back, as
    an assistant and the model that it assists do. generate() chooses both."""

    def __init__(self, apart: bool = False, rewinds: bool = False) -> None:
        super().__init__()
        self.apart, self.rewinds = apart, rewinds
        self.pending: Set[int] = set()  # layers whose keys were stored, and whose attention has not been computed yet

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *others: Any,
               **keywords: Any) -> Tuple[Tensor, Tensor]:
        """Gives the new keys and values back, with a way to what came before them."""
        if layer_idx in self.pending:
            raise UnsupportedError("this model does not give the keys of its cache to its attention: generate with "
                                   "past_key_values=transformers.DynamicCache()")
        self.pending.add(layer_idx)
        key_states.softrnn_memory = (self, layer_idx)  # type: ignore[attr-defined]
        return key_states, value_states

    def feed(self, layer: int, query: Tensor, key: Tensor, value: Tensor, variant: str, mask: Optional[Tensor],
             sinks: Dict[str, Tensor]) -> Tensor:
        """What layer number `layer` gives for the next tokens; mask (B, T), or None: true for tokens, false for padding."""
        if layer not in self.pending:
            raise UnsupportedError("this model computes attention more than once with the keys of a layer: generate with "
                                   "past_key_values=transformers.DynamicCache()")
        self.pending.discard(layer)
        supported = query.dtype == torch.float64 or (query.is_cuda and query.dtype == torch.bfloat16)
        dtype = query.dtype if supported else torch.float32
        if layer not in self.memories:
            (_, H, _, D), Hkv, Dv = query.shape, key.shape[1], value.shape[3]
            sizes = dict(H=H, Hkv=Hkv, D=D, Dv=Dv, dtype=dtype, device=query.device)
            self.memories[layer] = Memory(partial(_new_state, variant, sizes), self.apart, self.rewinds)
        inputs = tuple(x.detach().to(dtype) for x in (query, key, value))
        learned = {name: x.detach().to(torch.float32 if dtype == torch.bfloat16 else dtype) for name, x in sinks.items()}
        return self.memories[layer].feed(partial(State.feed, **learned), 2, inputs, mask).to(query.dtype)  # type: ignore[arg-type]

    def reset(self) -> None:
        """The next token is the first, also after a pass that ended in between."""
        super().reset()
        self.pending.clear()


def _new_state(variant: str, sizes: Dict[str, Any], B: int) -> State:
    return State(variant, B=B, **sizes)


def _cache_kind(config: Any, mode: Any, keywords: Dict[str, Any]) -> Dict[str, bool]:
    """How the states of a call of generate() are kept."""
    mask = keywords.get("attention_mask")
    together = mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE) and (mask is None or bool(mask.all()))
    assisted = mode == GenerationMode.ASSISTED_GENERATION or bool(getattr(config, "is_assistant", False))
    return {"apart": not together, "rewinds": assisted}


_prepare_cache = GenerationMixin._prepare_cache_for_generation


def _prepare_states(self: Any, generation_config: Any, model_kwargs: Dict[str, Any], generation_mode: Any,
                    *others: Any) -> Any:
    """transformers asks here for the cache that a call of generate() works with: AttentionCache in place of one that holds
    nothing but keys and values."""
    mask = model_kwargs.get("attention_mask")
    wanted = (self.config._attn_implementation == "softrnn" and generation_config.cache_implementation is None and
              model_kwargs.get("past_key_values") is None and (mask is None or mask.dim() == 2))
    prepared = _prepare_cache(self, generation_config, model_kwargs, generation_mode, *others)
    if wanted and _holds_keys_alone(model_kwargs.get("past_key_values")):
        model_kwargs["past_key_values"] = AttentionCache(**_cache_kind(generation_config, generation_mode, model_kwargs))
    return prepared


def _holds_keys_alone(cache: Any) -> bool:
    """Whether every layer of a cache keeps keys and values; layers that are no attention keep other states."""
    return type(cache) is DynamicCache and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)


GenerationMixin._prepare_cache_for_generation = _prepare_states


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _makes_windows(name: str) -> bool:
    """Whether the Python module of a model makes masks of sliding windows; Moshi has one in its configuration alone."""
    return hasattr(sys.modules.get(name), "create_sliding_window_causal_mask")


def _window_of_mask(module: Any, keywords: Dict[str, Any]) -> Optional[int]:
    """The sliding window of a layer that has it in its mask without naming it to its attention, as Phi-3.5-MoE and Qwen 2 MoE
    do; None: there is none."""
    window: Optional[int] = getattr(module.config, "sliding_window", None) or None
    if window is None or "sliding_window" in keywords or not _makes_windows(type(module).__module__):
        return None
    kinds = getattr(module.config, "layer_types", None)
    return window if not kinds or kinds[module.layer_idx] == "sliding_attention" else None


def _refuse_what_is_not_here(module: Any, keywords: Dict[str, Any], dropout: float, tokens: Optional[int]) -> None:
    """tokens: of the whole sequence, or None where more may follow."""
    window = _window_of_mask(module, keywords)
    reasons = {
        f"a sliding window of {window} tokens, which it has in its mask alone": window is not None and
                                                                               (tokens is None or window < tokens),
        "compressed entries among its keys": getattr(module, "compressor", None) is not None,  # DeepSeek-V4
        "attention to chosen keys alone": any(keywords.get(name) is not None for name in ("indices", "block_indices")),
        "dropout of weights": dropout > 0,
        "a bias of positions": keywords.get("position_bias") is not None,
        "attention in both directions": not getattr(module, "is_causal", True) or keywords.get("is_causal") is False,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise UnsupportedError(f"{type(module).__name__} needs {reason}, which softrnn's attention does not support")


def _refuse_weights(module: Any, config: Any, keywords: Dict[str, Any]) -> None:
    if keywords.get("output_attentions", getattr(config, "output_attentions", False)):
        raise UnsupportedError(f"{type(module).__name__} was called with output_attentions=True, and softrnn's attention does not keep "
                               'the weights: load the model with attn_implementation="eager" for them')


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _variant_text(text: str, layers: int, layer: int, kind: str, axes: str) -> str:
    """The text form of a layer's variant with the axes that the model adds, if it reads nothing but q, k, v and sinks."""
    if layer >= layers:
        raise UnsupportedError(f"{kind} is layer {layer} of a model whose configuration has {layers}: softrnn's attention cannot know "
                               "its variant")
    variant = layer_variants(text, layers)[layer]
    if axes:
        variant = parse(f"{variant.text},{axes}")
    others = [name for name in variant.operands[3:] if name != "sinks" or "sink=" not in axes]
    if others:
        raise UnsupportedError(f"{variant} reads {', '.join(others)}, which {kind} does not have: load a model "
                               "that softrnn made")
    return variant.text


def _axes_of(keywords: Dict[str, Any], tokens: Optional[int]) -> str:
    """What a model asks of its attention besides the variant, as axes; tokens: of the whole sequence, or None where more
    may follow."""
    window, cap = keywords.get("sliding_window"), keywords.get("softcap")
    axes = [f"window={int(window)}"] if window is not None and (tokens is None or window < tokens) else []
    axes += [f"cap={float(cap)!r}"] if cap is not None else []
    axes += ["sink=learned"] if keywords.get("s_aux") is not None else []
    return ",".join(axes)


def _variant_of(module: Any, axes: str) -> str:
    text = getattr(module.config, "softrnn_attention", None) or "softmax"
    return _variant_text(text, module.config.num_hidden_layers, module.layer_idx, type(module).__name__, axes)


def _refuse_other_masks(keywords: Dict[str, Any], end: int) -> None:
    """Masks that are neither causal nor of padding or packed rows; sliding windows are an axis (_axes_of)."""
    chunk = getattr(keywords.get("config"), "attention_chunk_size", None)
    reasons = {
        f"attention within chunks of {chunk} tokens": chunk is not None and keywords.get("local_size") == chunk < end,
        "a mask of its own": bool(keywords.get("use_vmap")),
        "blocks that are seen in both directions": "blockwise_overlay" in _mask_names(keywords.get("mask_function")),
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise UnsupportedError(f"the model needs {reason}, which softrnn's attention does not support")


def _mask_names(function: Any) -> str:
    """The names of the mask functions that one is made of."""
    if isinstance(function, tuple):
        return " ".join(map(_mask_names, function))
    if not callable(function):
        return ""
    inside = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return " ".join([getattr(function, "__qualname__", ""), *map(_mask_names, inside)])


def _mask(**keywords: Any) -> Optional[Tensor]:
    """What transformers gives attention_forward as attention_mask: that of padding, also where nothing is padded but the
    cache has unused slots, and None otherwise."""
    mask: Optional[Tensor] = keywords.get("attention_mask")
    if mask is not None and _is_traced(mask):  # what a mask holds is not known there: attention_forward takes one of all tokens too
        mask = mask[:, -keywords["kv_length"]:]
    else:
        mask = flash_attention_mask(**keywords)
    where = keywords.get("cache_position")  # before transformers 5
    if where is None:
        end = int(keywords.get("q_offset", 0)) + int(keywords["q_length"])
    else:
        end = int(keywords["kv_length"]) if _is_traced(where) else int(where[-1]) + 1
    _refuse_other_masks(keywords, end)
    if mask is None and end < int(keywords["kv_length"]):
        mask = torch.ones(int(keywords["batch_size"]), end, dtype=torch.bool)
    return mask


def attention_forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
                      scaling: Optional[float] = None, dropout: float = 0.0, **keywords: Any) -> Tuple[Tensor, None]:
    """What transformers calls: (B, T, H, Dv) from query (B, H, T, D) and key, value (B, Hkv, all tokens so far, ..)."""
    T, D = query.shape[2:]
    memory = getattr(key, "softrnn_memory", None)
    sinks = {"sinks": keywords["s_aux"]} if keywords.get("s_aux") is not None else {}
    _refuse_what_is_not_here(module, keywords, dropout, key.shape[2] if memory is None else None)
    _refuse_weights(module, module.config, keywords)
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError("attention_mask has four axes; softrnn's attention takes masks of padding (B, T) only")
    if scaling is not None and scaling != D ** -0.5:
        query = query * (scaling * D ** 0.5)
    if memory is not None:
        cache, layer = memory
        mask = attention_mask[:, -T:] if attention_mask is not None else None
        variant = _variant_of(module, _axes_of(keywords, None))
        return cache.feed(layer, query, key, value, variant, mask, sinks).transpose(1, 2).contiguous(), None
    if attention_mask is not None and attention_mask.shape[1] < key.shape[2]:  # a cache with unused slots
        key, value = key[:, :, :attention_mask.shape[1]], value[:, :, :attention_mask.shape[1]]
    past = key.shape[2] - T
    if past:  # the equation has a query at every position: those of the past are not looked at
        query = torch.cat((query.new_zeros(*query.shape[:2], past, D), query), dim=2)
    positions = keywords.get("position_ids") if not past else None
    documents = _documents(attention_mask, positions, query.shape[0])
    variant = _variant_of(module, _axes_of(keywords, key.shape[2]))
    o = attend(query, key, value, variant, documents=documents, **sinks)
    return o[:, :, past:].transpose(1, 2).contiguous(), None


_choose_implementation = PreTrainedModel.get_correct_attn_implementation


def _choose_softrnn(self: Any, requested_attention: Optional[str], *others: Any, **keywords: Any) -> Any:
    """transformers asks here whether a model has an implementation, and which one if none was named: that is softrnn where
    config.softrnn_attention names a variant."""
    if requested_attention is None and getattr(self.config, "softrnn_attention", None):
        requested_attention = "softrnn"
    if requested_attention == "softrnn" and not self._supports_attention_backend:
        raise UnsupportedError(f"{type(self).__name__} computes its attention itself, not through transformers' "
                               'AttentionInterface: attn_implementation="softrnn" would not reach it, or would without a '
                               "causal mask")
    if requested_attention == "softrnn" and getattr(self.config, "index_topk", None) is not None:
        raise UnsupportedError(f"{type(self).__name__} has an indexer that chooses the keys of each query (index_topk), which "
                               "softrnn's attention does not support")
    return _choose_implementation(self, requested_attention, *others, **keywords)


PreTrainedModel.get_correct_attn_implementation = _choose_softrnn


# ---- models of any variant


class SoftrnnConfig(LlamaConfig):  # type: ignore[misc]
    """config.json as softrnn writes it: a Llama's, with the attention of its layers in softrnn_attention."""

    model_type = "softrnn"
    softrnn_attention: str = "softmax"
    softrnn_sizes: Any = None  # of layers that are not those of a Llama: an object, or a list of one for each layer
    softrnn_output_bias: Optional[bool] = None
    softrnn_parts: Any = None  # of published families: see docs/CHECKPOINTS.md
    mlp_type: str = "gated"


def _has_parts(config: SoftrnnConfig) -> bool:
    """Whether the model has parts of published families, or layers with token shifts, which only softrnn.lab computes."""
    if config.softrnn_parts or config.mlp_type == "plain":
        return True
    return not all(map(is_described, set(layer_variants(config.softrnn_attention, config.num_hidden_layers))))


class StateCache(StatesCache):
    """What a model remembers of B sequences while it generates: one state for each layer, of fixed size where the variant has
    such a state. apart and rewinds: as in AttentionCache."""

    def __init__(self, model: "SoftrnnForCausalLM", B: int, apart: bool = False, rewinds: bool = False):
        super().__init__()
        self.B = B
        self.memories = {index: Memory(layer.self_attn.new_state, apart, rewinds)
                         for index, layer in enumerate(model.model.layers)}
        self.front = 0  # empty tokens that the model put in front

    def get_seq_length(self, layer_idx: int = 0) -> int:
        length = self.memories[layer_idx].length
        return length - self.front if length else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> Tuple[int, int]:
        return self.memories[layer_idx].length + count_of(query_length), 0

    def crop(self, *arguments: Any, **keywords: Any) -> None:
        length = int(arguments[0] if arguments else next(iter(keywords.values())))
        super().crop(length if length <= 0 else length + self.front)


def _theta(config: Any) -> float:
    """Which newer transformers keep with the rest of what they know of rotary positions."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return float(parameters.get("rope_theta") or getattr(config, "rope_theta", None) or 10000.0)


class _SelfAttention(Attention):
    """softrnn.nn.Attention with the call of a Llama's layer."""

    def __init__(self, config: SoftrnnConfig, layer_idx: int, variant: Variant):
        sizes = config.softrnn_sizes
        super().__init__(config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim,
                         attention=variant, bias=config.attention_bias, output_bias=config.softrnn_output_bias,
                         theta=_theta(config), layers=config.num_hidden_layers,
                         sizes=sizes[layer_idx] if isinstance(sizes, list) else sizes)
        self.layer_idx, self.config = layer_idx, config
        if not self.get_submodule(self.layer.output).weight.is_meta:
            parts: List[Any] = [*self.modules(), *self.parameters()]
            for part in parts:
                part._is_hf_initialized = True  # which keeps transformers from drawing first values again

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None,  # type: ignore[override]
                attention_mask: Optional[Tensor] = None, past_key_values: Optional[StateCache] = None,
                position_ids: Optional[Tensor] = None, **keywords: Any) -> Any:
        _refuse_weights(self, self.config, keywords)
        if past_key_values is None:
            return super().forward(hidden_states, position=position_embeddings,
                                   documents=_documents(attention_mask, position_ids, hidden_states.shape[0])), None
        memory = past_key_values.memories[self.layer_idx]
        mask = attention_mask[:, -hidden_states.shape[1]:] if attention_mask is not None else None
        return memory.feed(self._step, 1, (hidden_states, *position_embeddings), mask), None

    def _step(self, state: AttentionState, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The next tokens of a state."""
        return super().forward(hidden_states, position=(cos, sin), state=state)


class _PlainMLP(torch.nn.Module):
    """down(gelu(up(x))): the reference's."""

    def __init__(self, config: SoftrnnConfig):
        super().__init__()
        self.up_proj = torch.nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(torch.nn.functional.gelu(self.up_proj(x)))


class _NoMLP(torch.nn.Module):
    """Adds nothing: a layer is its attention alone."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class SoftrnnForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama with any attention, as softrnn train writes it; generates with states as its cache."""

    config_class = SoftrnnConfig
    _supports_attention_backend = True

    def __init__(self, config: SoftrnnConfig):
        config._attn_implementation = "softrnn"  # masks of padding only
        if _has_parts(config):
            raise UnsupportedError("the model has norms, positions, token shifts, activations or multipliers that a Llama does "
                                   "not have: load it with from_pretrained or softrnn.lab.Model; `softrnn convert` writes a "
                                   "published model's own files again")
        super().__init__(config)
        self.variants = layer_variants(config.softrnn_attention, config.num_hidden_layers)
        self.prefix_tokens = max(variant.prefix_tokens for variant in self.variants)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = _SelfAttention(config, index, self.variants[index])
            if config.mlp_type == "gelu":
                layer.mlp = _PlainMLP(config)
            if config.mlp_type == "none":
                layer.mlp, layer.post_attention_layernorm = _NoMLP(), torch.nn.Identity()
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: Any, *arguments: Any, **keywords: Any) -> Any:
        """Also what is no Llama with another attention (Avey, RWKV-7, parts of published families): a LabForCausalLM."""
        config = keywords.get("config")
        if config is None:
            config = SoftrnnConfig.from_pretrained(folder)
        if config.softrnn_attention.startswith("avey") or _has_parts(config):
            return LabForCausalLM(config, folder)
        return super().from_pretrained(folder, *arguments, **keywords)

    def get_correct_attn_implementation(self, requested_attention: Optional[str], *others: Any, **keywords: Any) -> Any:
        """Its attention is that of the variant; others would be given masks that it does not take."""
        if requested_attention not in (None, "softrnn"):
            raise UnsupportedError(f'attn_implementation="{requested_attention}" is not for a model that softrnn made: its '
                                   "attention is that of config.softrnn_attention")
        return super().get_correct_attn_implementation("softrnn", *others, **keywords)

    def _init_weights(self, module: Any) -> None:
        if not isinstance(module, Attention):
            super()._init_weights(module)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Dict[str, Any], mode: Any,
                                      batch_size: int, *others: Any) -> Any:
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            beams = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
            model_kwargs["past_key_values"] = StateCache(self, batch_size * beams,
                                                         **_cache_kind(generation_config, mode, model_kwargs))

    def forward(self, input_ids: Optional[Tensor] = None, past_key_values: Optional[StateCache] = None,
                attention_mask: Optional[Tensor] = None, position_ids: Optional[Tensor] = None,
                inputs_embeds: Optional[Tensor] = None, use_cache: Optional[bool] = None, labels: Optional[Tensor] = None,
                logits_to_keep: Union[int, Tensor] = 0, **keywords: Any) -> Any:
        # Trainer and generate() look for labels and logits_to_keep by name.
        front = self.prefix_tokens if past_key_values is None or not past_key_values.get_seq_length() else 0
        if self.prefix_tokens:
            keywords.pop("cache_position", None)  # of transformers before version 5, which counts no tokens in front
            tokens: Any = input_ids if input_ids is not None else inputs_embeds
            T = tokens.shape[1] + front
            attention_mask = _front_mask(attention_mask, self.prefix_tokens)
            position_ids = None if front else torch.arange(T, device=tokens.device)[None] + \
                past_key_values.get_mask_sizes(0, 0)[0]  # type: ignore[union-attr]
            if attention_mask is not None:
                position_ids = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -T:]
        if front:
            input_ids = self._with_front(input_ids, attention_mask, front)
            if labels is not None:
                labels = torch.nn.functional.pad(labels, (front, 0), value=-100)
            if past_key_values is not None:
                past_key_values.front = front
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                                 inputs_embeds=inputs_embeds, past_key_values=past_key_values, use_cache=False, labels=labels,
                                 logits_to_keep=logits_to_keep, **keywords)
        if front and input_ids is not None and output.logits is not None and \
                output.logits.shape[1] == input_ids.shape[1]:
            output.logits = output.logits[:, front:]
        output.past_key_values = past_key_values
        return output

    def _with_front(self, input_ids: Optional[Tensor], mask: Optional[Tensor], front: int) -> Tensor:
        if input_ids is None:
            raise ArgumentError("inputs_embeds were given; this model puts tokens in front and needs input_ids")
        fronted = torch.nn.functional.pad(input_ids, (front, 0), value=0)
        if mask is None:
            return fronted
        text = torch.nn.functional.pad(mask[:, front:].bool() & mask[:, :-front].bool(), (front, 0))
        return fronted.where(text, 0)  # padding on the left makes room for the tokens in front


def _front_mask(mask: Optional[Tensor], front: int) -> Optional[Tensor]:
    """A mask of padding (B, T) for sequences that start with `front` tokens more: (B, front + T)."""
    if mask is None or not _is_traced(mask) and bool(mask.all()):
        return None
    shifted = [torch.nn.functional.pad(mask.bool(), (n, front - n)) for n in range(front + 1)]
    return torch.stack(shifted).any(0)


# ---- models that only the laboratory computes


class SessionCache(StatesCache):
    """Sessions of softrnn.lab as transformers' cache: one for all sequences, or, where they have padding, one for each."""

    def __init__(self, model: Model, B: int):
        super().__init__()
        self.model, self.B = model, B
        self.sessions: List[Any] = []
        self.length = 0  # tokens fed, padding included

    def feed(self, ids: Any, mask: Optional[Any]) -> Any:
        """Logits (B, V) of what follows the last tokens of ids (B, T); mask (B, T), or None: false for padding."""
        if len(ids) != self.B:
            raise ArgumentError(f"{len(ids)} sequences are fed to a cache of {self.B}")
        if not self.sessions:
            self.sessions = [self.model.session(self.B)] if mask is None else [self.model.session() for _ in range(self.B)]
        if len(self.sessions) == 1 and self.B > 1:
            if mask is not None:
                raise UnsupportedError("padding follows tokens of sequences that were fed without any: start with a new cache")
            logits = self.sessions[0].feed(ids, logits=True)
        else:
            rows = [row if mask is None else row[mask[b]] for b, row in enumerate(ids)]
            logits = np.concatenate([session.feed(row[None], logits=True) for session, row in zip(self.sessions, rows)])
        self.length += ids.shape[1]
        return logits

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length  # these models put nothing in front

    def _refuse(self, *arguments: Any, **keywords: Any) -> None:
        raise UnsupportedError("a session of softrnn.lab cannot be copied or cut: generate without beams and assistants")

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse


class LabForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model of softrnn.lab in the place of one of torch: logits and generate, on the CPU, without gradients."""

    config_class = SoftrnnConfig
    _supports_attention_backend = True  # there is no attention that softrnn would not reach

    def __init__(self, config: SoftrnnConfig, folder: Any):
        super().__init__(config)
        self.lab_model = Model(folder)
        self.place = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # tells transformers device and type

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Dict[str, Any], mode: Any,
                                      batch_size: int, *others: Any) -> Any:
        if (generation_config.num_beams or 1) > 1:
            raise UnsupportedError("a model of softrnn.lab generates without beams: num_beams must be 1")
        if model_kwargs.get("past_key_values") is None:
            sequences = batch_size * (generation_config.num_return_sequences or 1)
            model_kwargs["past_key_values"] = SessionCache(self.lab_model, sequences)

    def forward(self, input_ids: Tensor, past_key_values: Optional[SessionCache] = None,
                attention_mask: Optional[Tensor] = None, labels: Optional[Tensor] = None,
                **keywords: Any) -> CausalLMOutputWithPast:
        """logits (B, T, V); with a cache (B, 1, V): those of what follows the last token."""
        ids, mask = input_ids.cpu().numpy(), None
        if attention_mask is not None and not bool(attention_mask.all()):
            mask = attention_mask[:, -ids.shape[1]:].bool().cpu().numpy()
        if past_key_values is not None:
            logits = torch.from_numpy(past_key_values.feed(ids, mask))[:, None]
        elif mask is not None:
            raise UnsupportedError("this model takes padding only where it generates: give it sequences of one length")
        else:
            logits = torch.from_numpy(self.lab_model.logits(ids))
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def prepare_inputs_for_generation(self, input_ids: Tensor, past_key_values: Optional[SessionCache] = None,
                                      attention_mask: Optional[Tensor] = None, **keywords: Any) -> Dict[str, Any]:
        fed = past_key_values.get_seq_length() if past_key_values is not None else 0
        return {"input_ids": input_ids[:, fed:], "past_key_values": past_key_values,
                "attention_mask": attention_mask}

    def save_pretrained(self, save_directory: Any, **keywords: Any) -> None:
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        self.lab_model.save(save_directory)


AttentionInterface.register("softrnn", attention_forward)
AttentionMaskInterface.register("softrnn", _mask)
AutoConfig.register("softrnn", SoftrnnConfig)
AutoModelForCausalLM.register(SoftrnnConfig, SoftrnnForCausalLM)
