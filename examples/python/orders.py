"""Orders of a trained Llama: what is lost if exp is cut off after order N, and what the state of that order costs.

    python examples/python/orders.py [LLAMA_FOLDER TEXT_FILE]

exp is a power series; cut off after order N, softmax attention is a recurrence with a state of fixed size. Without a
folder, a small model is trained first.
"""
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import softrnn.hf
import softrnn.lab

# %% a trained Llama, and a text
if len(sys.argv) > 2:
    folder, text = Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8")
    tokenizer = softrnn.lab.Tokenizer(folder)
else:
    work = Path(tempfile.mkdtemp())
    text = "the cat sat on the mat; the dog sat on the log. " * 300
    (work / "text.txt").write_text(text)
    run = softrnn.lab.train(work / "run", data=work / "text.txt", attention="softmax", steps=100, batch=8, length=64,
                            layers=2, hidden=64, heads=4, learning_rate=0.003)
    folder = work / "model"
    folder.mkdir()
    run.model.save(folder)
    tokenizer = softrnn.lab.Tokenizer("bytes")
ids = torch.tensor([tokenizer.encode(text[:4000])[:256]])

# %% the same weights, with transformers' model and our attention
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="softrnn")
heads, D = model.config.num_attention_heads, model.config.head_dim


def loss(attention):
    model.config.softrnn_attention = attention
    with torch.no_grad():
        return float(model(ids, labels=ids).loss)


# %% order by order
whole = loss("softmax")
print(f"softmax      loss {whole:.4f}")
for order in (1, 2, 4, 6, 8, 12, 16):
    variant = softrnn.parse(f"order:{order}")
    print(f"order {order:2}     loss {loss(variant.text):.4f}   {variant.state_numbers(D):>12} numbers of state a head")
