"""A variant in a torch model: the same small language model with softmax and with others, on the same text.

    python examples/python/variant_in_torch.py [TEXT_FILE] [STEPS]
"""
import sys
from pathlib import Path

import torch

import softrnn.nn

# %% a text, as bytes
text = Path(sys.argv[1]).read_bytes() if len(sys.argv) > 1 else b"the cat sat on the mat; the dog sat on the log. " * 200
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 40
data = torch.tensor(list(text))


# %% a model whose attention is one line
class Block(torch.nn.Module):
    def __init__(self, dim, attention):
        super().__init__()
        self.attention = softrnn.nn.Attention(dim, heads=4, attention=attention)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(dim, 4 * dim), torch.nn.GELU(), torch.nn.Linear(4 * dim, dim))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(dim) for _ in range(2))

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def make_model(attention, dim=64, layers=2):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(256, dim), *(Block(dim, attention) for _ in range(layers)),
                               torch.nn.Linear(dim, 256))


# %% training
def train(attention, length=64, batch=8):
    model = make_model(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    random = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(data) - length - 1, (batch,), generator=random)
        rows = torch.stack([data[start:start + length + 1] for start in starts])
        loss = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


# %% softmax, without its normaliser, its second order, linear attention
for attention in ("softmax", "norm", "gate", "order:2", "linear_elu"):
    print(f"{attention:12} loss {train(attention):.3f}")
