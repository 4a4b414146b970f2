#!/usr/bin/env python3
"""Compares logits with transformers: small random models of every family and rotary scaling that is
read, and models written by `softrnn convert`.

    tests/crosscheck/models.py build/cli/softrnn

Needs the PyPI packages torch and transformers."""
import sys
import tempfile

import torch
from program import logits_here, softrnn
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig,
                          MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM)

SIZES = dict(vocab_size=61, hidden_size=48, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             initializer_range=0.3)


def yarn(**more):
    return dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                original_max_position_embeddings=32, **more)


def cases():
    llama, mistral, qwen2 = ((LlamaForCausalLM, LlamaConfig), (MistralForCausalLM, MistralConfig),
                             (Qwen2ForCausalLM, Qwen2Config))
    yield "llama", llama, {}
    yield "llama, biases", llama, dict(attention_bias=True, mlp_bias=True)
    yield "llama, tied", llama, dict(tie_word_embeddings=True)
    yield "llama, linear", llama, dict(
        rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=500.0))
    yield "llama, llama3", llama, dict(rope_parameters=dict(
        rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
        high_freq_factor=4.0, original_max_position_embeddings=32))
    yield "llama, yarn", llama, dict(rope_parameters=yarn())
    yield "llama, yarn with its members", llama, dict(
        rope_parameters=yarn(beta_fast=8.0, beta_slow=2.0, attention_factor=1.3, truncate=False))
    yield "llama, yarn with mscale", llama, dict(rope_parameters=yarn(mscale=0.7, mscale_all_dim=1.2))
    yield "mistral", mistral, dict(sliding_window=None)
    yield "mistral, wide window", mistral, dict(sliding_window=128)
    yield "mistral, yarn", mistral, dict(sliding_window=None, rope_parameters=yarn())
    yield "qwen2", qwen2, {}
    yield "qwen2, tied, yarn", qwen2, dict(tie_word_embeddings=True, rope_parameters=yarn())


def distance(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


def untie(model, folder):
    """A separate head in a folder whose config ties it to the embedding."""
    model.save_pretrained(folder)
    tensors = load_file(f"{folder}/model.safetensors")
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"])
    save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})


def check(name, model, folder, where, ids):
    with torch.no_grad():
        theirs = model(ids).logits
    converted = tempfile.mkdtemp(dir=where)
    softrnn("convert", "--in", folder, "--out", converted)
    again = AutoModelForCausalLM.from_pretrained(converted)
    with torch.no_grad():
        back = again(ids).logits
    errors = distance(logits_here(folder, where, ids), theirs), distance(back, theirs)
    print(f"{name:32} read {errors[0]:.1e}   converted and loaded by transformers {errors[1]:.1e}")
    return max(errors)


def main():
    torch.manual_seed(1)
    worst = 0.0
    ids = torch.randint(0, SIZES["vocab_size"], (2, 100))
    for name, (kind, config), more in cases():
        with tempfile.TemporaryDirectory() as where:
            model = kind(config(**{**SIZES, **more})).eval()
            for parameter_name, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    torch.nn.init.normal_(parameter, 1.0 if "norm" in parameter_name else 0.0, 0.3)
            model.save_pretrained(f"{where}/model")
            worst = max(worst, check(name, model, f"{where}/model", where, ids))
            if more.get("tie_word_embeddings"):
                untie(model, f"{where}/model")
                own_head = AutoModelForCausalLM.from_pretrained(f"{where}/model").eval()
                worst = max(worst, check(name + ", its own head", own_head, f"{where}/model", where, ids))
    print(f"worst relative difference {worst:.1e}")
    sys.exit(worst > 1e-5)


main()
