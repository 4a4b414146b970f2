"""From softmax to a series to a recurrent state, in NumPy alone; docs/TUTORIAL.md explains each cell.

    python examples/python/tutorial.py
"""
# %% causal softmax attention of one head
import math
from itertools import combinations_with_replacement

import numpy as np

T, D = 64, 8                                    # tokens, head size
q, k, v = np.random.default_rng(0).normal(size=(3, T, D))


def attention(score, q, k, v):
    s = q @ k.T / math.sqrt(q.shape[1])         # logits: s_ij for query i and key j
    w = np.tril(score(s))                       # weights: a query sees no later key
    return w @ v / w.sum(axis=1, keepdims=True)


softmax = attention(np.exp, q, k, v)


# %% exp as a power series
def series(N):
    return lambda s: sum(s**n / math.factorial(n) for n in range(N + 1))


for N in (0, 2, 4, 8, 16, 24):
    error = np.abs(attention(series(N), q, k, v) - softmax).max()
    print(f"order {N:2}: largest error {error:.0e}")
assert error < 1e-6


# %% a power of a dot product is a dot product of features
def features(x, N):
    x = x / x.shape[-1] ** 0.25                 # 1/sqrt(D), half of it on either side
    columns = []
    for n in range(N + 1):
        for chosen in combinations_with_replacement(range(x.shape[-1]), n):
            repeats = math.prod(math.factorial(chosen.count(i)) for i in set(chosen))
            columns.append(x[..., list(chosen)].prod(axis=-1) / math.sqrt(repeats))
    return np.stack(columns, axis=-1)


assert features(q, 2).shape == (T, math.comb(D + 2, 2)) == (64, 45)
assert np.allclose(features(q, 2) @ features(k, 2).T, series(2)(q @ k.T / math.sqrt(D)))


# %% the same attention as a recurrent network
class RNN:
    def __init__(self, N, D):
        self.N = N
        self.state = np.zeros((math.comb(D + N, N), D + 1))       # never grows

    def step(self, q, k, v):
        self.state += np.outer(features(k, self.N), [*v, 1])      # write the token
        *numerator, denominator = features(q, self.N) @ self.state  # read
        return np.array(numerator) / denominator


rnn = RNN(2, D)
outputs = np.array([rnn.step(q[t], k[t], v[t]) for t in range(T)])
assert np.allclose(outputs, attention(series(2), q, k, v))
print(f"order 2: {rnn.state.size} numbers of state; keys and values would be {k.size + v.size} by now")


# %% pairs inside a chunk, a state between chunks
def chunked(q, k, v, N, size):
    state, outputs = np.zeros((math.comb(D + N, N), D + 1)), []
    for t in range(0, len(q), size):
        queries, keys = features(q[t:t + size], N), features(k[t:t + size], N)
        values = np.pad(v[t:t + size], ((0, 0), (0, 1)), constant_values=1)
        sums = queries @ state + np.tril(queries @ keys.T) @ values   # earlier chunks, then this one
        state += keys.T @ values
        outputs.append(sums[:, :-1] / sums[:, -1:])
    return np.concatenate(outputs)


assert np.allclose(chunked(q, k, v, 2, size=16), outputs)
