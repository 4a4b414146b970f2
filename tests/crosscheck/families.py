#!/usr/bin/env python3
"""Makes small random models of every published family that is read, with varied members of
config.json, by transformers, and compares them: logits of a whole pass and token by token, and the
files that are written again.

    tests/crosscheck/families.py build/tests/test_families [--count 60] [--seed 1] [--only qwen3]

Needs the PyPI packages torch and transformers. The models are made in a temporary folder, or where
--keep says."""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import types

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

LAST_ROWS = 12
ILL_CONDITIONED = 3e-5


def pick(r, *values):
    return r.choice(values)


def sizes(r, even_groups=False):
    """What every family has: heads, widths, layers."""
    groups = pick(r, 1, 2, 3)
    heads = groups * pick(r, 1, 2, 3)
    head = pick(r, 4, 8, 12, 16)
    hidden = heads * head if even_groups or r.random() < 0.5 else 2 * heads * r.randint(3, 9)
    sizes = dict(vocab_size=r.randint(40, 90), hidden_size=hidden, head_dim=head,
                 intermediate_size=r.randint(20, 90), num_hidden_layers=r.randint(2, 5),
                 num_attention_heads=heads, num_key_value_heads=groups,
                 max_position_embeddings=pick(r, 96, 128, 200), pad_token_id=0,
                 tie_word_embeddings=r.random() < 0.4, initializer_range=pick(r, 0.05, 0.2, 0.4))
    if even_groups:
        del sizes["head_dim"]
    return sizes


def head_of(c):
    return c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]


def longrope(r, c, angles):
    """LongRoPE, whose long texts are refused: they are longer than the ones below."""
    return dict(rope_type="longrope", short_factor=[1.0 + 0.1 * i for i in range(angles)],
                long_factor=[2.0 + 0.3 * i for i in range(angles)],
                original_max_position_embeddings=pick(r, 64, c["max_position_embeddings"]),
                **pick(r, {}, dict(factor=4.0), dict(attention_factor=1.3)))


def rope(r, c, partial=False):
    """One of the rotary scalings, as rope_parameters has them."""
    positions = c["max_position_embeddings"]
    part = pick(r, 0.5, 1.0) if partial else 1
    original = pick(r, positions // 2, positions // 4)
    kinds = [dict(rope_type="default"), dict(rope_type="linear", factor=pick(r, 2.0, 3.5)),
             dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=original),
             dict(rope_type="yarn", factor=pick(r, 2.0, 4.0), beta_fast=pick(r, 32.0, 8.0),
                  original_max_position_embeddings=original),
             dict(rope_type="yarn", factor=4.0, mscale=0.7, mscale_all_dim=1.1, truncate=False,
                  original_max_position_embeddings=original),
             dict(rope_type="dynamic", factor=2.0),
             longrope(r, c, int(head_of(c) * part) // 2)]
    chosen = dict(pick(r, *kinds), rope_theta=pick(r, 500.0, 10000.0, 1e6))
    if partial:
        chosen["partial_rotary_factor"] = part
    return chosen


def own_or_even_heads(r, c, head):
    """Heads of another width than the hidden size has for each, or without the member."""
    if r.random() < 0.5:
        del c["head_dim"]
        c["hidden_size"] = c["num_attention_heads"] * head


def llama(r, c):
    c.update(attention_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
             rope_parameters=rope(r, c))


def windowed(r, c):
    c.update(sliding_window=pick(r, None, 5, 17, 4096),
             rope_parameters=rope(r, c))


def layer_types(r, L, *types):
    return [pick(r, *types) for _ in range(L)]


def qwen2(r, c):
    own_or_even_heads(r, c, 8)
    c.update(use_sliding_window=pick(r, True, False), sliding_window=9,
             max_window_layers=r.randint(0, 3), rope_parameters=rope(r, c))


def qwen3(r, c):
    c.update(attention_bias=pick(r, True, False), use_sliding_window=pick(r, True, False),
             sliding_window=9, max_window_layers=r.randint(0, 3),
             rope_parameters=rope(r, c))
    if c["use_sliding_window"] and r.random() < 0.5:
        c["layer_types"] = layer_types(r, c["num_hidden_layers"], "full_attention",
                                       "sliding_attention")


def gated_delta(r, c):
    groups = pick(r, 1, 2, 3)
    c.update(head_dim=pick(r, 8, 16), linear_num_key_heads=groups, linear_num_value_heads=groups * pick(r, 1, 2, 3),
             linear_key_head_dim=pick(r, 4, 6, 8), linear_value_head_dim=pick(r, 4, 8, 10),
             linear_conv_kernel_dim=pick(r, 2, 4), attention_bias=pick(r, True, False),
             rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                  partial_rotary_factor=pick(r, 0.25, 0.5, 1.0)))
    if r.random() < 0.5:
        c["layer_types"] = layer_types(r, c["num_hidden_layers"], "full_attention",
                                       "linear_attention")


def qwen3_next(r, c):
    gated_delta(r, c)
    experts(r, c, "num_experts", pick(r, 0, 4, 8))
    c.update(mlp_only_layers=pick(r, [], [0], [1]), decoder_sparse_step=pick(r, 1, 2),
             shared_expert_intermediate_size=r.randint(8, 40), norm_topk_prob=pick(r, True, False))
    if not c["num_experts"]:
        c["mlp_only_layers"] = list(range(c["num_hidden_layers"]))


def qwen3_5_moe(r, c):
    gated_delta(r, c)
    del c["intermediate_size"]
    experts(r, c, "num_experts", pick(r, 4, 8))
    c.update(shared_expert_intermediate_size=r.randint(8, 40))


def experts(r, c, key, count):
    c.update({key: count, "num_experts_per_tok": r.randint(1, max(1, count - 1)),
              "moe_intermediate_size": r.randint(8, 40)})


def qwen3_moe(r, c):
    qwen3(r, c)
    experts(r, c, "num_experts", pick(r, 4, 6, 16))
    c.update(mlp_only_layers=pick(r, [], [0], [1]), decoder_sparse_step=pick(r, 1, 2),
             norm_topk_prob=pick(r, True, False))


def qwen2_moe(r, c):
    qwen2(r, c)
    experts(r, c, "num_experts", pick(r, 4, 6))
    c.update(mlp_only_layers=pick(r, [], [1]), decoder_sparse_step=pick(r, 1, 2),
             shared_expert_intermediate_size=r.randint(8, 40), norm_topk_prob=pick(r, True, False),
             qkv_bias=pick(r, True, False))


def mixtral(r, c):
    windowed(r, c)
    c.update(num_local_experts=pick(r, 2, 4, 8), num_experts_per_tok=pick(r, 1, 2))


def olmoe(r, c):
    own_or_even_heads(r, c, 8)
    c.update(num_experts=pick(r, 4, 8), num_experts_per_tok=pick(r, 1, 3),
             norm_topk_prob=pick(r, True, False), attention_bias=pick(r, True, False),
             rope_parameters=rope(r, c))


def gpt_oss(r, c):
    c.update(num_local_experts=pick(r, 2, 4, 7), num_experts_per_tok=pick(r, 1, 2),
             sliding_window=pick(r, 5, 11), attention_bias=pick(r, True, False),
             swiglu_limit=pick(r, 7.0, 0.5), swiglu_alpha=pick(r, 1.702, 1.3),
             rope_parameters=dict(rope_type="yarn", factor=pick(r, 4.0, 32.0), rope_theta=150000.0,
                                  beta_fast=32.0, beta_slow=1.0, truncate=pick(r, True, False),
                                  original_max_position_embeddings=pick(r, 32, 4096)))


def olmo2(r, c):
    own_or_even_heads(r, c, 8)
    c.update(attention_bias=pick(r, True, False), rope_parameters=rope(r, c))


def by_type(r, c):
    plain = dict(rope_type="default", rope_theta=pick(r, 10000.0, 500.0))
    return dict(full_attention=rope(r, c), sliding_attention=plain)


def olmo3(r, c):
    olmo2(r, c)
    c.update(sliding_window=pick(r, 5, 17), rope_parameters=by_type(r, c))
    if r.random() < 0.5:
        c["layer_types"] = layer_types(r, c["num_hidden_layers"], "full_attention",
                                       "sliding_attention")


def olmo_hybrid(r, c):
    heads = c["num_attention_heads"]
    c["hidden_size"] = heads * 8
    c["num_hidden_layers"] = r.randint(2, 6)
    c.update(linear_num_key_heads=heads, linear_num_value_heads=heads * pick(r, 1, 2),
             linear_key_head_dim=pick(r, 4, 6), linear_value_head_dim=pick(r, 4, 8, 12),
             linear_conv_kernel_dim=pick(r, 2, 4), attention_bias=pick(r, True, False),
             linear_allow_neg_eigval=pick(r, True, False))
    del c["head_dim"]
    c["rope_parameters"] = pick(r, None, rope(r, c))
    c["layer_types"] = layer_types(r, c["num_hidden_layers"] - 1, "full_attention",
                                   "linear_attention") + ["full_attention"]


def smollm3(r, c):
    c.update(no_rope_layers=pick(r, None, [r.randint(0, 1) for _ in range(c["num_hidden_layers"])]),
             no_rope_layer_interval=pick(r, 2, 3, 4), use_sliding_window=pick(r, True, False),
             sliding_window=pick(r, None, 9), attention_bias=pick(r, True, False),
             mlp_bias=pick(r, True, False))
    own_or_even_heads(r, c, 8)
    c["rope_parameters"] = rope(r, c)


def gemma(r, c):
    c.update(hidden_act=pick(r, "gelu_pytorch_tanh", "gelu", "silu"),
             attention_bias=pick(r, True, False), rope_parameters=rope(r, c))


def gemma2(r, c):
    c.update(hidden_activation=pick(r, "gelu_pytorch_tanh", "gelu", "silu"),
             query_pre_attn_scalar=pick(r, 8, 13, 256), sliding_window=pick(r, 5, 17),
             final_logit_softcapping=pick(r, None, 3.0, 30.0),
             attn_logit_softcapping=pick(r, 2.0, 50.0), attention_bias=pick(r, True, False),
             rope_parameters=rope(r, c))


def gemma3(r, c):
    gemma2(r, c)
    c.update(rope_parameters=by_type(r, c), attn_logit_softcapping=pick(r, None, 2.0))
    if r.random() < 0.5:
        c["layer_types"] = layer_types(r, c["num_hidden_layers"], "full_attention",
                                       "sliding_attention")


def phi3(r, c):
    del c["head_dim"]
    c["hidden_size"] = c["num_attention_heads"] * 16
    part = pick(r, 0.5, 0.75, 1.0)
    plain = dict(rope_type="default")
    c.update(sliding_window=pick(r, None, 5, 17),
             rope_parameters=dict(pick(r, longrope(r, c, int(16 * part) // 2), plain),
                                  rope_theta=pick(r, 500.0, 10000.0), partial_rotary_factor=part),
             original_max_position_embeddings=pick(r, c["max_position_embeddings"], 64, 96))


def granite(r, c):
    c.update(attention_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
             embedding_multiplier=pick(r, 1.0, 12.0), residual_multiplier=pick(r, 1.0, 0.22),
             logits_scaling=pick(r, 1.0, 8.0), attention_multiplier=pick(r, 1.0, 0.1),
             rope_parameters=rope(r, c))


def stablelm(r, c):
    del c["head_dim"]
    c["hidden_size"] = c["num_attention_heads"] * 16
    c.update(use_qkv_bias=pick(r, True, False), qk_layernorm=pick(r, True, False),
             use_parallel_residual=pick(r, True, False), hidden_act=pick(r, "silu", "gelu"),
             rope_parameters=rope(r, c, partial=True))


def seed_oss(r, c):
    c.update(attention_bias=pick(r, True, False), attention_out_bias=pick(r, True, False),
             mlp_bias=pick(r, True, False), rope_parameters=rope(r, c))


def exaone4(r, c):
    c.update(sliding_window=pick(r, 5, 17), sliding_window_pattern=pick(r, 2, 3),
             rope_parameters=rope(r, c))


def glm(r, c):
    c.update(attention_bias=pick(r, True, False),
             rope_parameters=rope(r, c, partial=True))


def plain_bias(r, c):
    c.update(attention_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
             rope_parameters=rope(r, c))


def arcee(r, c):
    plain_bias(r, c)
    c.update(hidden_act=pick(r, "relu2", "silu", "gelu"))


def ernie(r, c):
    c.update(use_bias=pick(r, True, False), rope_parameters=rope(r, c))


def hunyuan(r, c):
    c.update(attention_bias=pick(r, True, False), rope_parameters=pick(
        r, rope(r, c),
        dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0)))


def nemotron(r, c):
    c.update(attention_bias=pick(r, True, False), mlp_bias=pick(r, True, False),
             hidden_act=pick(r, "relu2", "gelu"),
             rope_parameters=rope(r, c, partial=True))


def apertus(r, c):
    c.update(attention_bias=pick(r, True, False), rope_parameters=rope(r, c))


def lfm2(r, c):
    own_or_even_heads(r, c, 8)
    c.update(conv_bias=pick(r, True, False), conv_L_cache=pick(r, 2, 3, 4),
             block_auto_adjust_ff_dim=pick(r, True, False), block_multiple_of=pick(r, 8, 16),
             block_ffn_dim_multiplier=pick(r, 1.0, 1.3, 2), rope_parameters=rope(r, c))
    if r.random() < 0.3:
        c["block_ff_dim"] = c.pop("intermediate_size")
    if r.random() < 0.3:
        c["tie_embedding"] = c.pop("tie_word_embeddings")
    L = c["num_hidden_layers"]
    c.update(r.choice([dict(layer_types=layer_types(r, L, "full_attention", "conv")),
                       dict(full_attn_idxs=r.sample(range(L), r.randint(0, L))), {}]))


def falcon_h1(r, c):
    groups = pick(r, 1, 2, 3)
    heads = groups * pick(r, 1, 2, 4)
    head = pick(r, 4, 8, 10)
    norm = pick(r, True, False)
    c.update(mamba_d_ssm=heads * head, mamba_n_heads=heads, mamba_d_head=pick(r, head, "auto"),
             mamba_d_state=pick(r, 6, 8, 17), mamba_n_groups=groups, mamba_d_conv=pick(r, 2, 4),
             mamba_rms_norm=norm, mamba_norm_before_gate=pick(r, True, False),
             mamba_conv_bias=pick(r, True, False), mamba_proj_bias=pick(r, True, False),
             projectors_bias=pick(r, True, False), attention_bias=pick(r, True, False),
             mlp_bias=pick(r, True, False), attention_in_multiplier=pick(r, 1.0, 0.7),
             attention_out_multiplier=pick(r, 1.0, 0.9), key_multiplier=pick(r, 1.0, 0.5),
             embedding_multiplier=pick(r, 1.0, 5.6), lm_head_multiplier=pick(r, 1.0, 0.04),
             ssm_in_multiplier=pick(r, 1.0, 1.25), ssm_out_multiplier=pick(r, 1.0, 0.2),
             mlp_multipliers=pick(r, [1.0, 1.0], [0.9, 0.1]),
             ssm_multipliers=pick(r, [1.0] * 5, [0.35, 0.25, 0.2, 0.5, 0.3]),
             rope_parameters=rope(r, c))


def kimi(r, c):
    del c["head_dim"]
    c["num_key_value_heads"] = c["num_attention_heads"]
    c["tie_word_embeddings"] = False  # transformers saves a head all the same
    c.update(linear_num_heads=pick(r, 2, 3), linear_head_dim=pick(r, 4, 8), linear_conv_kernel_dim=pick(r, 2, 4),
             layer_types=["linear_attention"] * c["num_hidden_layers"],
             mlp_layer_types=["dense"] * c["num_hidden_layers"])


def mamba2(r, c):
    heads, head = pick(r, 4, 6), pick(r, 4, 8)
    for key in ("head_dim", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                "max_position_embeddings"):
        del c[key]
    c.update(hidden_size=heads * head // 2, num_heads=heads, head_dim=head, expand=2,
             state_size=pick(r, 6, 8), n_groups=pick(r, 1, 2), conv_kernel=pick(r, 2, 4),
             use_bias=pick(r, True, False), use_conv_bias=pick(r, True, False))


FAMILIES = {
    "llama": llama, "mistral": windowed, "ministral": windowed, "qwen2": qwen2, "qwen3": qwen3,
    "qwen3_5_text": gated_delta, "qwen3_next": qwen3_next, "olmo2": olmo2, "olmo3": olmo3,
    "olmo_hybrid": olmo_hybrid, "smollm3": smollm3, "gemma": gemma, "gemma2": gemma2,
    "gemma3_text": gemma3, "phi3": phi3, "granite": granite, "stablelm": stablelm,
    "seed_oss": seed_oss, "exaone4": exaone4, "glm": glm, "glm4": glm, "arcee": arcee,
    "ernie4_5": ernie, "hunyuan_v1_dense": hunyuan, "nemotron": nemotron, "apertus": apertus,
    "kimi_linear": kimi, "mamba2": mamba2, "lfm2": lfm2, "falcon_h1": falcon_h1,
    "gpt_oss": gpt_oss, "qwen3_moe": qwen3_moe, "qwen2_moe": qwen2_moe, "mixtral": mixtral,
    "olmoe": olmoe, "qwen3_5_moe_text": qwen3_5_moe,
}


def perturb(model):
    """Vectors that start as ones or zeros would hide mistakes."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            with torch.no_grad():
                parameter.add_(torch.randn_like(parameter) * 0.3)


# Members of config.json without which tensors would have other shapes.
SHAPES = ("vocab", "hidden_size", "intermediate", "num_", "head", "linear_", "conv", "layer_types",
          "model_type", "architectures", "mamba", "state_size", "n_groups", "expand", "bias", "tie",
          "mlp_", "qk_layernorm", "no_rope", "block_", "expert", "lora", "v_head", "kernel", "dtype", "sparse", "parallel")


def as_older_files_are(r, c):
    """The same model as transformers 4 wrote it, or with members left to their defaults."""
    rope = c.get("rope_parameters")
    if isinstance(rope, dict) and "rope_type" in rope and r.random() < 0.7:
        del c["rope_parameters"]
        c["rope_theta"] = rope.pop("rope_theta", 10000.0)
        part = rope.pop("partial_rotary_factor", None)
        if part is not None:
            c["partial_rotary_factor"] = part
        if rope["rope_type"] != "default":
            rope[r.choice(["type", "rope_type"])] = rope.pop("rope_type")
            c["rope_scaling"] = rope
        elif r.random() < 0.5:
            c["rope_scaling"] = None
    elif isinstance(rope, dict) and isinstance(rope.get("full_attention"), dict) and r.random() < 0.7:
        full, sliding = c.pop("rope_parameters").values()
        c["rope_theta"] = full.pop("rope_theta")
        c["rope_local_base_freq"] = sliding["rope_theta"]
        if full["rope_type"] != "default":
            c["rope_scaling"] = full
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    if "original_max_position_embeddings" in scaling and r.random() < 0.3:
        c["original_max_position_embeddings"] = scaling.pop("original_max_position_embeddings")
    if r.random() < 0.2 and "full_attention" in (c.get("layer_types") or []):
        c["layer_types"] = ["attention" if t == "full_attention" else t for t in c["layer_types"]]
    optional = [key for key in c if not any(part in key for part in SHAPES)]
    for key in r.sample(optional, min(len(optional), r.randint(0, 3))):
        del c[key]
    if r.random() < 0.3:
        c["torch_dtype"] = c.pop("dtype", "float32")


def without_defaults(r, c, folder):
    """Leaves out every member that transformers fills in again with the same value."""
    def meaning(members):
        with open(f"{folder}/config.json", "w") as file:
            json.dump(members, file)
        return AutoConfig.from_pretrained(folder).to_dict()

    whole = meaning(c)
    for key in r.sample(list(c), len(c)):
        value = c.pop(key)
        try:
            same = key != "model_type" and meaning(c) == whole
        except Exception:  # it cannot do without
            same = False
        if not same:
            c[key] = value


def longest_is_plain(config):
    """Texts of LongRoPE that are longer than the original positions are refused."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] + [part for part in rope.values() if isinstance(part, dict)]
    return all(part.get("rope_type") != "longrope" for part in kinds)


def in_double(model):
    """The same model all of whose arithmetic is double: transformers computes norms and the delta
    rule in float32, whatever the weights are."""
    module = sys.modules[type(model).__module__]
    with open(module.__file__) as file:
        source = file.read()
    for narrow, wide in (("torch.float32", "torch.float64"), (".float()", ".double()"),
                         ("dtype=torch.float)", "dtype=torch.float64)")):
        source = source.replace(narrow, wide)
    wide = types.ModuleType(module.__name__)
    wide.__package__, wide.__file__ = module.__package__, module.__file__
    exec(compile(source, module.__file__, "exec"), vars(wide))
    model.config.dtype = torch.float64  # after saving it is a word, which some layers do not read
    same = getattr(wide, type(model).__name__)(model.config).double().eval()
    same.load_state_dict(model.state_dict())
    return same


def make(family, r, folder, older, sparse):
    """Expected are logits in float64, unless float32 loses too many digits of them by itself."""
    c = sizes(r)
    FAMILIES[family](r, c)
    config = AutoConfig.for_model(family, **c)
    config._experts_implementation = "eager"  # the others want widths that are multiples of 4
    model = AutoModelForCausalLM.from_config(config).float().eval()
    perturb(model)
    stored = r.choice([torch.bfloat16, torch.float16]) if older and r.random() < 0.3 else torch.float32
    model.to(stored).save_pretrained(folder, max_shard_size=r.choice(["20KB", "1GB"]) if older else "1GB")
    model.float()
    if older or sparse:
        with open(f"{folder}/config.json") as file:
            members = json.load(file)
        if older:
            as_older_files_are(r, members)
        if sparse:
            without_defaults(r, members, folder)
        with open(f"{folder}/config.json", "w") as file:
            json.dump(members, file)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                     experts_implementation="eager").eval()
    longest = getattr(config, "max_position_embeddings", 64) if longest_is_plain(config) else 64
    ids = torch.randint(1, c["vocab_size"], (2, r.choice([r.randint(20, 64), longest])))
    with torch.no_grad():
        narrow = model(ids, use_cache=False).logits[:, -LAST_ROWS:]
        logits = in_double(model)(ids, use_cache=False).logits[:, -LAST_ROWS:]
    lost = ((narrow - logits).abs().max() / logits.abs().max()).item()
    if not lost < ILL_CONDITIONED:
        raise ValueError(f"float32 is {lost:.1e} from float64")
    with open(f"{folder}/expected.json", "w") as file:
        json.dump({"ids": ids.tolist(), "logits": logits.tolist()}, file)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("test")
    options.add_argument("--count", type=int, default=60)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only")
    options.add_argument("--keep")
    options.add_argument("--older", action="store_true",
                         help="config.json as older files are, weights in shards")
    options.add_argument("--sparse", action="store_true",
                         help="config.json without what transformers has as a default")
    options = options.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    families = options.only.split(",") if options.only else list(FAMILIES)
    with tempfile.TemporaryDirectory() as where:
        where = options.keep or where
        for number in range(options.count):
            family = families[number % len(families)]
            seed = options.seed * 100000 + number
            torch.manual_seed(seed)
            folder = f"{where}/{family}-{seed}"
            os.makedirs(folder, exist_ok=True)
            try:
                make(family, random.Random(seed), folder, options.older, options.sparse)
            except Exception as error:  # a combination that transformers does not compute
                print(f"{family}-{seed}: not made: {error}")
                shutil.rmtree(folder)
        sys.exit(subprocess.run([options.test], env=dict(os.environ, SOFTRNN_FAMILIES=where)).returncode)


main()
