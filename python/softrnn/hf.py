"""transformers: softrnn as an attention implementation, and models of any variant. Importing this module registers both.

    import softrnn.hf
    AutoModelForCausalLM.from_pretrained(folder, attn_implementation="softrnn")   # any Llama-like model
    AutoModelForCausalLM.from_pretrained("runs/norm")                             # what softrnn train wrote

The variant of a model with attn_implementation="softrnn" is config.softrnn_attention ("softmax" if there is none): one for
all layers, or by layers, "0-3:norm,4-:order:2".
"""

import re
import weakref
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor
from transformers import (AttentionInterface, AutoConfig, AutoModelForCausalLM, GenerationMixin, LlamaConfig,
                          LlamaForCausalLM, PreTrainedModel)
from transformers.cache_utils import Cache
from transformers.generation import GenerationMode
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from ._attention import attention as attend
from ._library import ArgumentError, FormatError, UnsupportedError
from ._state import State
from ._variants import Variant, parse
from .lab import Model
from .nn import Attention, AttentionState

__all__ = ["AttentionCache", "LabForCausalLM", "SoftrnnConfig", "SoftrnnForCausalLM", "StateCache", "attention_forward",
           "layer_variants"]


def layer_variants(text: str, layers: int) -> List[Variant]:
    """The variant of each layer, from one for all of them or from ranges.

    >>> [str(variant) for variant in softrnn.hf.layer_variants("0:softmax,1-:order:2", 3)]
    ['softmax', 'score=taylor:2', 'score=taylor:2']
    """
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


_last: Tuple[Any, Optional[int], Optional[Tensor]] = (lambda: None, None, None)


def _documents(mask: Optional[Tensor], positions: Optional[Tensor]) -> Optional[Tensor]:
    """Padding (mask (B, T), true for tokens) is a document of its own, and so is each packed sequence, whose positions
    (B, T) start anew. All layers of a model ask for the same."""
    global _last
    given = mask if mask is not None else positions
    if given is None or given.dim() != 2 or given.shape[1] < 2:
        return None
    last, version = _last, None if given.is_inference() else given._version  # one read: threads share it
    if version is not None and last[0]() is given and last[1] == version:
        return last[2]
    if mask is not None:
        follows = mask[:, 1:].bool() == mask[:, :-1].bool()
        begins = mask[:, 0].bool() + (mask[:, 1:].bool() & ~mask[:, :-1].bool()).sum(1)
        if bool((begins > 1).any()):
            raise UnsupportedError("attention_mask leaves out tokens inside a sequence; softrnn's attention takes masks "
                                   "of padding before and after it")
    else:
        follows = given[:, 1:] == given[:, :-1] + 1
    offsets = None
    if not bool(follows.all()):
        offsets = _offsets(torch.cat((torch.ones_like(follows[:, :1]), ~follows), dim=1))
    _last = (weakref.ref(given), version, offsets)
    return offsets


# ---- attn_implementation="softrnn"


def _count(tokens: Any) -> int:
    """How many tokens come: what transformers gives a cache is their number, and before version 5 their positions."""
    return len(tokens) if isinstance(tokens, Tensor) and tokens.dim() else int(tokens)


class _States(Cache):  # type: ignore[misc]
    """A cache of states, which forget no token and whose sequences keep their places."""

    is_compileable = False

    def _refuse(self, *arguments: Any, **keywords: Any) -> None:
        raise UnsupportedError("a state forgets no token and its sequences keep their places: generate without beams and "
                               "assistants")

    crop = reset = reorder_cache = batch_repeat_interleave = batch_select_indices = _refuse


def _refuse_padding(mask: Optional[Tensor]) -> None:
    if mask is not None and not bool(mask.all()):
        raise UnsupportedError("sequences of different lengths cannot generate side by side: attention_mask has padding")


class _LayerMemory:
    """What one layer of a model with attn_implementation="softrnn" remembers while it generates."""

    def __init__(self) -> None:
        self.state: Optional[State] = None
        self.asked = False  # keys were stored, and attention has not been computed yet

    def feed(self, query: Tensor, key: Tensor, value: Tensor, variant: Variant) -> Tensor:
        self.asked = False
        kept = query.dtype == torch.float64 or (query.is_cuda and query.dtype == torch.bfloat16)
        dtype = query.dtype if kept else torch.float32
        if self.state is None:
            (B, H, _, D), Hkv, Dv = query.shape, key.shape[1], value.shape[3]
            self.state = State(variant, B=B, H=H, Hkv=Hkv, D=D, Dv=Dv, dtype=dtype, device=query.device)
        return self.state.feed(*(x.detach().to(dtype) for x in (query, key, value))).to(query.dtype)


class AttentionCache(_States):
    """The cache of a model with attn_implementation="softrnn": a softrnn.State for each layer, of fixed size where the
    variant has such a state, in place of all keys and values. generate() takes it where all sequences begin together."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.memories: Dict[int, _LayerMemory] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *others: Any,
               **keywords: Any) -> Tuple[Tensor, Tensor]:
        """Gives the new keys and values back, with a way to what came before them."""
        memory = self.memories.setdefault(layer_idx, _LayerMemory())
        if memory.asked:
            raise UnsupportedError("this model does not give the keys of its cache to its attention: generate with "
                                   "past_key_values=transformers.DynamicCache()")
        memory.asked = True
        key_states.softrnn_memory = memory  # type: ignore[attr-defined]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        memory = self.memories.get(layer_idx)
        return memory.state.position if memory is not None and memory.state is not None else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> Tuple[int, int]:
        return self.get_seq_length(layer_idx) + _count(query_length), 0

    @property
    def is_sliding(self) -> List[bool]:
        return [False] * max(1, len(self.memories))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(memory.state.nbytes for memory in self.memories.values() if memory.state is not None)


def _begin_together(keywords: Dict[str, Any]) -> bool:
    mask = keywords.get("attention_mask")
    return mask is None or (mask.dim() == 2 and bool(mask.all()))


_prepare_cache = GenerationMixin._prepare_cache_for_generation


def _prepare_states(self: Any, generation_config: Any, model_kwargs: Dict[str, Any], generation_mode: Any,
                    *others: Any) -> Any:
    """transformers asks here for the cache that a call of generate() works with: AttentionCache where that can be."""
    plain = generation_mode in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
    if (self.config._attn_implementation == "softrnn" and plain and generation_config.use_cache is not False and
            model_kwargs.get("past_key_values") is None and generation_config.cache_implementation is None and
            _begin_together(model_kwargs)):
        model_kwargs["past_key_values"] = AttentionCache()
        return None
    return _prepare_cache(self, generation_config, model_kwargs, generation_mode, *others)


GenerationMixin._prepare_cache_for_generation = _prepare_states


def _refuse_what_is_not_here(module: Any, keywords: Dict[str, Any], dropout: float, T: int) -> None:
    window = keywords.get("sliding_window")
    reasons = {
        "dropout of weights": dropout > 0,
        f"a sliding window of {window} tokens": window is not None and window < T,
        "a soft cap of scores": keywords.get("softcap") is not None,
        "attention sinks": keywords.get("s_aux") is not None,
        "a bias of positions": keywords.get("position_bias") is not None,
        "attention in both directions": not getattr(module, "is_causal", True) or keywords.get("is_causal") is False,
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise UnsupportedError(f"{type(module).__name__} asks for {reason}, which softrnn's attention does not have")


def _variant_of(module: Any) -> Variant:
    text = getattr(module.config, "softrnn_attention", None) or "softmax"
    variant = layer_variants(text, module.config.num_hidden_layers)[module.layer_idx]
    if len(variant.operands) > 3:
        raise UnsupportedError(f"{variant} reads {', '.join(variant.operands[3:])}, which {type(module).__name__} does not "
                               "have: load a model that softrnn made")
    return variant


def _mask(**keywords: Any) -> Optional[Tensor]:
    """What transformers gives attention_forward as attention_mask: that of padding, also where nothing is padded but the
    cache has room for tokens to come, and None otherwise."""
    mask: Optional[Tensor] = flash_attention_mask(**keywords)
    where = keywords.get("cache_position")  # before transformers 5
    end = int(where[-1]) + 1 if where is not None else int(keywords.get("q_offset", 0)) + int(keywords["q_length"])
    if mask is None and end < int(keywords["kv_length"]):
        mask = torch.ones(int(keywords["batch_size"]), end, dtype=torch.bool)
    return mask


def attention_forward(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Optional[Tensor],
                      scaling: Optional[float] = None, dropout: float = 0.0, **keywords: Any) -> Tuple[Tensor, None]:
    """What transformers calls: (B, T, H, Dv) from query (B, H, T, D) and key, value (B, Hkv, all tokens so far, ..)."""
    T, D = query.shape[2:]
    memory = getattr(key, "softrnn_memory", None)
    seen = memory.state.position if memory is not None and memory.state is not None else 0
    _refuse_what_is_not_here(module, keywords, dropout, seen + key.shape[2])
    if attention_mask is not None and attention_mask.dim() != 2:
        raise UnsupportedError("attention_mask has four axes; softrnn's attention takes masks of padding (B, T) only")
    if scaling is not None and scaling != D ** -0.5:
        query = query * (scaling * D ** 0.5)
    if memory is not None:
        _refuse_padding(attention_mask)
        return memory.feed(query, key, value, _variant_of(module)).transpose(1, 2).contiguous(), None
    if attention_mask is not None and attention_mask.shape[1] < key.shape[2]:  # a cache with room for tokens to come
        key, value = key[:, :, :attention_mask.shape[1]], value[:, :, :attention_mask.shape[1]]
    past = key.shape[2] - T
    if past:  # the equation has a query at every position: those of the past are not looked at
        query = torch.cat((query.new_zeros(*query.shape[:2], past, D), query), dim=2)
    positions = keywords.get("position_ids") if not past else None
    documents = _documents(attention_mask, positions)
    o = attend(query, key, value, _variant_of(module), documents=documents)
    return o[:, :, past:].transpose(1, 2).contiguous(), None


# ---- models of any variant


class SoftrnnConfig(LlamaConfig):  # type: ignore[misc]
    """config.json as softrnn writes it: a Llama's, with the attention of its layers in softrnn_attention."""

    model_type = "softrnn"
    softrnn_attention: str = "softmax"
    softrnn_sizes: Any = None  # of layers that are not those of a Llama: an object, or a list of one for each layer
    softrnn_output_bias: Optional[bool] = None
    mlp_type: str = "gated"


class StateCache(_States):
    """What a model remembers of B sequences while it generates: one state a layer, of fixed size where the variant has
    such a state."""

    def __init__(self, model: "SoftrnnForCausalLM", B: int):
        super().__init__(layers=[])
        self.states: List[AttentionState] = [layer.self_attn.new_state(B) for layer in model.model.layers]
        self.front = 0  # empty tokens that the model put in front

    def get_seq_length(self, layer_idx: int = 0) -> int:
        position = self.states[layer_idx].position
        return position - self.front if position else 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> Tuple[int, int]:
        return self.states[layer_idx].position + _count(query_length), 0

    @property
    def is_sliding(self) -> List[bool]:
        return [False] * len(self.states)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(state.nbytes for state in self.states)


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
        self.layer_idx = layer_idx
        if not self.get_submodule(self.layer.output).weight.is_meta:
            parts: List[Any] = [*self.modules(), *self.parameters()]
            for part in parts:
                part._is_hf_initialized = True  # which keeps transformers from drawing first values again

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None,  # type: ignore[override]
                attention_mask: Optional[Tensor] = None, past_key_values: Optional[StateCache] = None,
                position_ids: Optional[Tensor] = None, **keywords: Any) -> Any:
        state = past_key_values.states[self.layer_idx] if past_key_values is not None else None
        if state is not None:
            _refuse_padding(attention_mask)
            return super().forward(hidden_states, position=position_embeddings, state=state), None
        return super().forward(hidden_states, position=position_embeddings,
                               documents=_documents(attention_mask, position_ids)), None


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
        super().__init__(config)
        self.variants = layer_variants(config.softrnn_attention, config.num_hidden_layers)
        self.front_tokens = max(variant.front_tokens for variant in self.variants)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = _SelfAttention(config, index, self.variants[index])
            if config.mlp_type == "gelu":
                layer.mlp = _PlainMLP(config)
            if config.mlp_type == "none":
                layer.mlp, layer.post_attention_layernorm = _NoMLP(), torch.nn.Identity()
        self.post_init()

    @classmethod
    def from_pretrained(cls, folder: Any, *arguments: Any, **keywords: Any) -> Any:
        """Also what is no Llama with another attention (Avey): a LabForCausalLM."""
        config = keywords.get("config")
        if config is None:
            config = SoftrnnConfig.from_pretrained(folder)
        if config.softrnn_attention.startswith("avey"):
            return LabForCausalLM(config, folder)
        return super().from_pretrained(folder, *arguments, **keywords)

    def _init_weights(self, module: Any) -> None:
        if not isinstance(module, Attention):
            super()._init_weights(module)

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Dict[str, Any], mode: Any,
                                      batch_size: int, *others: Any) -> Any:
        if generation_config.use_cache is not False and model_kwargs.get("past_key_values") is None:
            beams = max(generation_config.num_beams or 1, generation_config.num_return_sequences or 1)
            model_kwargs["past_key_values"] = StateCache(self, batch_size * beams)

    def forward(self, input_ids: Optional[Tensor] = None, past_key_values: Optional[StateCache] = None,
                attention_mask: Optional[Tensor] = None, position_ids: Optional[Tensor] = None,
                inputs_embeds: Optional[Tensor] = None, use_cache: Optional[bool] = None,
                **keywords: Any) -> Any:
        front = self.front_tokens if past_key_values is None or not past_key_values.get_seq_length() else 0
        if self.front_tokens:
            keywords.pop("cache_position", None)  # of transformers before version 5, which counts no tokens in front
        if front:
            if past_key_values is not None:
                _refuse_padding(attention_mask)
            input_ids, attention_mask = self._with_front(input_ids, attention_mask, front)
            position_ids = None
            labels = keywords.pop("labels", None)
            if labels is not None:
                keywords["labels"] = torch.nn.functional.pad(labels, (front, 0), value=-100)
            if past_key_values is not None:
                past_key_values.front = front
        elif self.front_tokens and past_key_values is not None:
            tokens: Any = input_ids if input_ids is not None else inputs_embeds
            start = past_key_values.states[0].position
            position_ids = torch.arange(start, start + tokens.shape[1], device=tokens.device)[None]
            attention_mask = None
        output = super().forward(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                                 inputs_embeds=inputs_embeds, past_key_values=past_key_values, use_cache=False, **keywords)
        if front and input_ids is not None and output.logits is not None and \
                output.logits.shape[1] == input_ids.shape[1]:
            output.logits = output.logits[:, front:]
        output.past_key_values = past_key_values
        return output

    def _with_front(self, input_ids: Optional[Tensor], mask: Optional[Tensor], front: int) -> Tuple[Tensor, None]:
        if input_ids is None:
            raise ArgumentError("inputs_embeds were given; this model puts tokens in front and needs input_ids")
        if mask is not None and not bool(mask[:, 0].all()):
            raise UnsupportedError("this model puts tokens in front of every sequence: padding must be on the right")
        return torch.nn.functional.pad(input_ids, (front, 0), value=0), None


# ---- models that only the laboratory computes


class SessionCache(_States):
    """A softrnn.lab.Session as transformers' cache."""

    def __init__(self, model: Model, B: int):
        super().__init__(layers=[])
        self.session = model.session(B)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.session.position  # these models put nothing in front


class LabForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model of softrnn.lab in the place of one of torch: logits and generate, on the CPU, without gradients."""

    config_class = SoftrnnConfig

    def __init__(self, config: SoftrnnConfig, folder: Any):
        super().__init__(config)
        self.lab_model = Model(folder)
        self.place = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # tells transformers device and type

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: Dict[str, Any], mode: Any,
                                      batch_size: int, *others: Any) -> Any:
        if model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = SessionCache(self.lab_model, batch_size)

    def forward(self, input_ids: Tensor, past_key_values: Optional[SessionCache] = None,
                attention_mask: Optional[Tensor] = None, labels: Optional[Tensor] = None,
                **keywords: Any) -> CausalLMOutputWithPast:
        """logits (B, T, V); with a cache (B, 1, V): those of what follows the last token."""
        if attention_mask is not None and not bool(attention_mask.all()):
            raise UnsupportedError("this model takes no padding: give it sequences of one length")
        ids = input_ids.cpu().numpy()
        if past_key_values is None:
            logits = torch.from_numpy(self.lab_model.logits(ids))
        else:
            logits = torch.from_numpy(past_key_values.session.feed(ids, logits=True))[:, None]
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def prepare_inputs_for_generation(self, input_ids: Tensor, past_key_values: Optional[SessionCache] = None,
                                      **keywords: Any) -> Dict[str, Any]:
        fed = past_key_values.get_seq_length() if past_key_values is not None else 0
        return {"input_ids": input_ids[:, fed:], "past_key_values": past_key_values,
                "attention_mask": keywords.get("attention_mask")}

    def save_pretrained(self, save_directory: Any, **keywords: Any) -> None:
        self.lab_model.save(save_directory)


AttentionInterface.register("softrnn", attention_forward)
AttentionMaskInterface.register("softrnn", _mask)
AutoConfig.register("softrnn", SoftrnnConfig)
AutoModelForCausalLM.register(SoftrnnConfig, SoftrnnForCausalLM)
