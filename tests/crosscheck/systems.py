#!/usr/bin/env python3
"""Compares logits of published models of related systems: Mamba-2 with transformers' own code, and
GLA, DeltaNet and Gated DeltaNet, whose code needs a GPU, with the plain recurrences below, which follow
flash-linear-attention's description of its layers. Each model is read, converted, and the copy computed again.

    tests/crosscheck/systems.py build/cli/softrnn
    tests/crosscheck/systems.py build/cli/softrnn --write tests/inputs/published

The second form writes what tests/model/test_published.c compares with: config.json, names and shapes of
tensors, tokens and logits. Weights are not part of it: both compute them from the tensors' names.

Needs the PyPI packages torch and transformers (5.23 or newer: older ones take Mamba-2's norm over all groups)."""
import json
import math
import os
import sys
import tempfile

import torch
import torch.nn.functional as F
from program import logits_here, softrnn
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mamba2Config, Mamba2ForCausalLM

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9]
SIZES = dict(vocab_size=11, hidden_size=12, num_hidden_layers=2)


def weight(name, shape):
    """The same formula as in the C test."""
    count = math.prod(shape)
    phase = sum(name.encode()) % 97
    numbers = 0.3 * torch.sin(phase + 0.61 * torch.arange(count, dtype=torch.float64))
    return (numbers + (1 if "norm" in name else 0)).to(torch.float32).reshape(shape)


# ---- Mamba-2

def mamba2_cases():
    sizes = dict(SIZES, num_heads=4, head_dim=6, state_size=5, n_groups=1, chunk_size=8, pad_token_id=None,
                 bos_token_id=None, eos_token_id=2)
    yield "mamba2", sizes
    yield "mamba2_groups", dict(sizes, n_groups=2)
    yield "mamba2_tied", dict(sizes, tie_word_embeddings=True, conv_kernel=3, use_bias=True,
                              layer_norm_epsilon=1e-3)


def mamba2_logits(folder, ids):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(ids).logits[0]


def make_mamba2(folder, members):
    model = Mamba2ForCausalLM(Mamba2Config(**members))
    tied = members.get("tie_word_embeddings", False)
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()
              if not (tied and name == "lm_head.weight")}
    model.load_state_dict({name: weight(name, shape) for name, shape in shapes.items()}, strict=False)
    model.save_pretrained(folder)
    return shapes


# ---- flash-linear-attention

FLA = dict(SIZES, norm_eps=1e-6, hidden_act="swish", intermediate_size=14, max_position_embeddings=64,
           tie_word_embeddings=False, bos_token_id=1, eos_token_id=2, attn=None)


def fla_cases():
    gla = dict(FLA, model_type="gla", num_heads=3, expand_k=0.5, expand_v=1, num_kv_heads=None,
               feature_map=None, use_short_conv=False, use_output_gate=True, clamp_min=None)
    delta = dict(FLA, model_type="delta_net", num_heads=3, expand_k=0.75, expand_v=1.25, conv_size=4,
                 use_short_conv=True, use_gate=False, use_beta=True, qk_norm="l2", qk_activation="silu",
                 use_output_norm=True, allow_neg_eigval=False)
    gated = dict(FLA, model_type="gated_deltanet", num_heads=2, head_dim=5, expand_v=2, conv_size=4,
                 use_short_conv=True, use_gate=True, allow_neg_eigval=False)
    yield "gla", gla
    yield "gla_shared", dict(gla, num_heads=6, num_kv_heads=2, expand_v=2, tie_word_embeddings=True)
    yield "gla_conv", dict(gla, use_short_conv=True, conv_size=3)
    yield "delta_net", delta
    yield "delta_net_gate", dict(delta, use_gate=True, conv_size=3, intermediate_size=None)
    yield "gated_deltanet", gated
    yield "gated_deltanet_shared", dict(gated, num_v_heads=4, use_gate=False, expand_v=1.2)


def fla_widths(c):
    """Heads of values and of keys, widths of a head of keys and of values."""
    if c["model_type"] == "gated_deltanet":
        return c.get("num_v_heads") or c["num_heads"], c["num_heads"], c["head_dim"], int(c["head_dim"] * c["expand_v"])
    keys, values = int(c["hidden_size"] * c["expand_k"]), int(c["hidden_size"] * c["expand_v"])
    heads = c["num_heads"]
    return heads, c.get("num_kv_heads") or heads, keys // heads, values // heads


def fla_shapes(c):
    C, heads = c["hidden_size"], fla_widths(c)
    H, G, Dk, Dv = heads
    inner = c["intermediate_size"] or 256 * -(-int(C * 4 * 2 / 3) // 256)
    kind = c["model_type"]
    if kind == "gla":
        widths = (("q", H * Dk), ("k", G * Dk), ("v", G * Dv))
        layer = {"q_proj.weight": [H * Dk, C], "k_proj.weight": [G * Dk, C], "v_proj.weight": [G * Dv, C],
                 "g_proj.weight": [H * Dv, C], "gk_proj.0.weight": [16, C],
                 "gk_proj.1.weight": [G * Dk, 16], "gk_proj.1.bias": [G * Dk],
                 "g_norm_swish_gate.weight": [Dv]}
    else:
        layer = {"q_proj.weight": [G * Dk, C], "k_proj.weight": [G * Dk, C], "v_proj.weight": [H * Dv, C],
                 "b_proj.weight": [H, C], "o_norm.weight": [Dv]}
        widths = (("q", G * Dk), ("k", G * Dk), ("v", H * Dv))
        if kind == "gated_deltanet":
            layer.update({"a_proj.weight": [H, C], "A_log": [H], "dt_bias": [H]})
        if c["use_gate"]:
            layer["g_proj.weight"] = [H * Dv, C]
    if c.get("use_short_conv", kind != "gla"):
        layer.update({f"{part}_conv1d.weight": [width, 1, c["conv_size"]] for part, width in widths})
    layer["o_proj.weight"] = [C, H * Dv]
    shapes = {"model.embeddings.weight": [c["vocab_size"], C], "model.norm.weight": [C]}
    if not c["tie_word_embeddings"]:
        shapes["lm_head.weight"] = [c["vocab_size"], C]
    for n in range(c["num_hidden_layers"]):
        here = f"model.layers.{n}."
        shapes.update({here + "attn_norm.weight": [C], here + "mlp_norm.weight": [C],
                       here + "mlp.gate_proj.weight": [inner, C], here + "mlp.up_proj.weight": [inner, C],
                       here + "mlp.down_proj.weight": [C, inner]})
        shapes.update({here + "attn." + name: shape for name, shape in layer.items()})
    return shapes


def rms(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def convolved(x, weight):
    """Causal, depthwise, followed by SiLU. x (T, channels)."""
    taps = weight.shape[-1]
    return F.silu(F.conv1d(F.pad(x.T[None], (taps - 1, 0)), weight, groups=x.shape[1])[0].T)


def recur(q, k, v, decay, beta):
    """q, k (T, H, Dk), v (T, H, Dv), decay (T, H, Dk) in logarithms, beta (T, H) or None."""
    T, H, Dk = q.shape
    S, out = torch.zeros(H, Dk, v.shape[-1], dtype=q.dtype), []
    for t in range(T):
        S = S * decay[t].exp()[..., None]
        u = v[t] if beta is None else beta[t][:, None] * (v[t] - (S * k[t][..., None]).sum(1))
        S = S + k[t][..., None] * u[:, None]
        out.append((S * q[t][..., None]).sum(1) * Dk ** -0.5)
    return torch.stack(out)


def fla_layer(x, w, c):
    H, G, Dk, Dv = fla_widths(c)
    T, kind = x.shape[0], c["model_type"]
    q, k, v = (x @ w[f"{part}_proj.weight"].T for part in "qkv")
    if c.get("use_short_conv", kind != "gla"):
        q, k, v = (convolved(y, w[f"{part}_conv1d.weight"]) for part, y in (("q", q), ("k", k), ("v", v)))
    if kind == "gla":
        gate = F.logsigmoid((x @ w["gk_proj.0.weight"].T) @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]) / 16
        k, gate, v = (y.reshape(T, G, -1).repeat_interleave(H // G, 1) for y in (k, gate, v))
        o = recur(q.reshape(T, H, Dk), k, v, gate, None)
        o = rms(o, w["g_norm_swish_gate.weight"], c["norm_eps"]) * F.silu(x @ w["g_proj.weight"].T).reshape(T, H, Dv)
        return o.reshape(T, -1) @ w["o_proj.weight"].T
    q, k = (y.reshape(T, G, Dk).repeat_interleave(H // G, 1) for y in (q, k))
    q, k = (y * torch.rsqrt(y.pow(2).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    decay = torch.zeros(T, H, dtype=x.dtype)
    if kind == "gated_deltanet":
        decay = -w["A_log"].exp() * F.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
    o = recur(q, k, v.reshape(T, H, Dv), decay[..., None].expand(T, H, Dk), torch.sigmoid(x @ w["b_proj.weight"].T))
    o = rms(o, w["o_norm.weight"], c["norm_eps"])
    if c["use_gate"]:
        o = o * F.silu(x @ w["g_proj.weight"].T).reshape(T, H, Dv)
    return o.reshape(T, -1) @ w["o_proj.weight"].T


def fla_logits(folder, ids):
    c = json.load(open(f"{folder}/config.json"))
    w = {name: tensor.double() for name, tensor in load_file(f"{folder}/model.safetensors").items()}
    x = w["model.embeddings.weight"][ids[0]]
    for n in range(c["num_hidden_layers"]):
        here = f"model.layers.{n}."
        own = {name[len(here + "attn."):]: tensor for name, tensor in w.items() if name.startswith(here + "attn.")}
        x = x + fla_layer(rms(x, w[here + "attn_norm.weight"], c["norm_eps"]), own, c)
        y = rms(x, w[here + "mlp_norm.weight"], c["norm_eps"])
        inner = F.silu(y @ w[here + "mlp.gate_proj.weight"].T) * (y @ w[here + "mlp.up_proj.weight"].T)
        x = x + inner @ w[here + "mlp.down_proj.weight"].T
    head = w.get("lm_head.weight", w["model.embeddings.weight"])
    return rms(x, w["model.norm.weight"], c["norm_eps"]) @ head.T


def make_fla(folder, members):
    os.makedirs(folder)
    shapes = fla_shapes(members)
    save_file({name: weight(name, shape) for name, shape in shapes.items()}, f"{folder}/model.safetensors",
              metadata={"format": "pt"})
    json.dump(members, open(f"{folder}/config.json", "w"), indent=2)
    return shapes


# ---- the comparison

def check(name, make, logits, members, target):
    ids = torch.tensor([TOKENS])
    with tempfile.TemporaryDirectory() as where:
        folder, copy = f"{where}/model", f"{where}/copy"
        shapes = make(folder, members)
        theirs = logits(folder, ids).double()
        softrnn("convert", "--in", folder, "--out", copy)
        errors = [((got.double() - theirs).norm() / theirs.norm()).item()
                  for got in (logits_here(folder, where, ids)[0], logits(copy, ids), logits_here(copy, where, ids)[0])]
        if target:
            record = dict(config=json.load(open(f"{folder}/config.json")), tensors=shapes, ids=TOKENS,
                          logits=[[round(x, 6) for x in row] for row in theirs.tolist()])
            with open(f"{target}/{name}.json", "w") as out:
                json.dump(record, out, indent=1)
                out.write("\n")
    print(f"{name:24} read {errors[0]:.1e}   converted {errors[1]:.1e}   and read again {errors[2]:.1e}")
    return max(errors)


def main():
    target = sys.argv[3] if len(sys.argv) > 3 and sys.argv[2] == "--write" else None
    if target:
        os.makedirs(target, exist_ok=True)
    worst = 0.0
    for name, members in mamba2_cases():
        worst = max(worst, check(name, make_mamba2, mamba2_logits, members, target))
    for name, members in fla_cases():
        worst = max(worst, check(name, make_fla, fla_logits, members, target))
    print(f"worst relative difference {worst:.1e}")
    sys.exit(worst > 1e-5)


main()
