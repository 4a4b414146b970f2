#!/usr/bin/env python3
"""tasks.py: every row of every synthetic task, regenerated from the definitions alone.

Usage: tasks.py PROGRAM [ROWS]. For each task and split, ROWS rows (1000) of `softrnn data show` are compared, token by
token, with those that this script makes: from Philox (Salmon et al. 2011), the keyed permutation (docs/DATA.md) and the
definition of each task, written independently of the program. In addition the targets are derived once more from the ids by
the meaning of a task (a value follows its key), independently of how a row was drawn.
Exit 1 at the first difference.
"""
import itertools
import math
import re
import subprocess
import sys

PROGRAM = sys.argv[1]
ROWS = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
SEED = 7
MASK = (1 << 64) - 1


# ---- random numbers

def philox(seed, stream, counter):
    left, right, key = counter, stream, seed
    for _ in range(10):
        product = 0xD2B74407B1CE6E93 * left
        left, right = (product >> 64) ^ key ^ right, product & MASK
        key = (key + 0x9E3779B97F4A7C15) & MASK
    return left


def permute(key, count, index):
    """A Feistel network of eight rounds, repeated until the number is below `count`."""
    half = 1
    while half < 32 and (count - 1) >> (2 * half) > 0:
        half += 1
    mask = (1 << half) - 1
    while True:
        left, right = index >> half, index & mask
        for step in range(8):
            left, right = right, left ^ (philox(key, step, right) & mask)
        index = left << half | right
        if index < count:
            return index


class Draws:
    def __init__(self, seed, split, number):
        self.seed, self.stream, self.counter = seed, 2 * number + split, 0

    def bits(self):
        self.counter += 1
        return philox(self.seed, self.stream, self.counter - 1)

    def below(self, bound):
        return self.bits() * bound >> 64

    def uniform(self):
        return (self.bits() >> 11) * 2.0 ** -53


# ---- the tasks: ids and targets (None: none) of one row

def blank(count):
    return [None] * count


def recall(draw, train, length, vocab, pairs, shown):
    keys = vocab // 2
    order = draw.bits()
    table = [(permute(order, keys, i), keys + draw.below(vocab - keys)) for i in range(pairs)]
    ids = [token for pair in table for token in pair]
    targets = blank(len(ids))
    while len(ids) < length:
        key, value = table[draw.below(pairs)]
        ids, targets = ids + [key], targets + [value]
        if shown and len(ids) < length:
            ids, targets = ids + [value], targets + [None]
    return ids, targets


def mqar(draw, train, length, vocab, pairs, power, noise):
    keys, slots = vocab // 2, (length - 2 * pairs) // 2
    weights = list(itertools.accumulate((i + 1) ** (power - 1) for i in range(slots)))
    key_order, value_order = draw.bits(), draw.bits()
    ids, targets = [0] * length, blank(length)
    for i in range(pairs):
        key, value = 1 + permute(key_order, keys - 1, i), keys + permute(value_order, vocab - keys, i)
        ids[2 * i:2 * i + 2] = key, value
        while True:
            at = weights[-1] * draw.uniform()
            slot = 2 * pairs + 2 * next((n for n, end in enumerate(weights[:-1]) if end > at), slots - 1)
            if ids[slot] == 0:
                break
        ids[slot], targets[slot] = key, value
    if noise:
        for t in range(2 * pairs, length):
            if ids[t] == 0:
                ids[t] = draw.below(vocab)
    return ids, targets


def induction(draw, train, length, vocab):
    first = draw.below(length - 2)
    ids = [draw.below(vocab - 1) for _ in range(length - 1)] + [vocab - 1]
    ids[first] = vocab - 1
    return ids, blank(length - 1) + [ids[first + 1]]


def copy(draw, train, length, vocab, tokens):
    body, symbols, ids = length - tokens, [], []
    for t in range(body):
        if draw.below(body - t) < tokens - len(symbols):
            symbols.append(draw.below(vocab - 2))
            ids.append(symbols[-1])
        else:
            ids.append(vocab - 2)
    return ids + [vocab - 1] * tokens, blank(body) + symbols


def copying(draw, train, length, vocab, shortest):
    count = shortest + draw.below(length // 2 - shortest + 1)
    text = [draw.below(vocab - 1) for _ in range(count)]
    ids = text + [vocab - 1] + text[:-1]
    return (ids + [vocab - 1] * (length - 2 * count),
            blank(count) + text + blank(length - 2 * count))


def permutation(draw, train, length, size):
    elements = list(itertools.permutations(range(size)))
    product, ids, targets = elements[0], [], []
    for _ in range(length):
        ids.append(draw.below(len(elements)))
        product = tuple(elements[ids[-1]][image] for image in product)
        targets.append(elements.index(product))
    return ids, targets


def cyclic(draw, train, length, size):
    ids = [draw.below(size) for _ in range(length)]
    return ids, [total % size for total in itertools.accumulate(ids)]


def parity(draw, train, length, shortest):
    bits = shortest + draw.below(length - shortest + 1) - 1
    ids = [1 + draw.below(2) for _ in range(bits)]
    rest = length - 1 - bits
    return ids + [0] * rest, blank(bits - 1) + [1 + ids.count(2) % 2] + blank(rest)


def arithmetic(draw, train, length, shortest, modulus):
    most = (length + 1) // 2
    least = min((shortest + 1) // 2, most)
    count = 2 * (least + draw.below(most - least + 1)) - 3
    ids = [1 + draw.below(3) if t % 2 else 5 + draw.below(modulus) for t in range(count)]
    value = eval("".join("+-*"[i - 1] if t % 2 else str(i - 5) for t, i in enumerate(ids))) % modulus
    rest = length - 2 - count
    return ids + [4] + [0] * rest, blank(count) + [5 + value] + blank(rest)


def in_context(draw, train, length, vocab, noise_vocab=0, noise=0.0):
    used = vocab - noise_vocab
    keys, table, tokens, answers = used // 2, {}, [], []
    pair_at_end = draw.below(length // 2 - 1)
    for pair in range(length // 2 - 1):
        if noise > 0 and pair != pair_at_end and draw.uniform() < noise:
            tokens += [used + draw.below(noise_vocab) for _ in range(2)]
            answers += [False, False]
            continue
        key = draw.below(keys)
        answers += [False, key in table]
        if key not in table:
            table[key] = keys + draw.below(used - keys)
        tokens += [key, table[key]]
    key = list(table)[draw.below(len(table))]
    return shifted(tokens + [key, table[key]], answers + [False, True], train)


def shifted(tokens, answers, train):
    return tokens[:-1], [t if train or a else None for t, a in zip(tokens[1:], answers[1:])]


def motif(draw, size, tokens):
    left = list(tokens)
    return tuple(left.pop(draw.below(len(left))) for _ in range(size))


def fuzzy(draw, train, length, vocab, key_size, value_size):
    used = vocab - 1
    keys, values = range(used // 2), range(used // 2, used)
    sizes = range(1 if train else key_size, key_size + 1)
    probe_size, answer_size = sizes[draw.below(len(sizes))], 1 + draw.below(value_size)
    probe = motif(draw, probe_size, keys)
    answer = motif(draw, answer_size, values)
    most = length - probe_size - answer_size - key_size - value_size
    place = draw.below(most)
    table, tokens, answers = {}, [], []

    def add(key, value):
        known = key in table
        value = table.setdefault(key, value)
        tokens.extend(key + value)
        answers.extend([False] * len(key) + [known] * len(value))

    while len(tokens) < most:
        if probe not in table and (len(tokens) >= place or len(tokens) + key_size + value_size >= most):
            add(probe, answer)
            continue
        own, own_value = sizes[draw.below(len(sizes))], 1 + draw.below(value_size)
        key, value = motif(draw, own, keys), motif(draw, own_value, values)
        add(key, answer if key == probe else value)
    add(probe, answer)
    pad = length + 1 - len(tokens)
    return shifted([vocab - 1] * pad + tokens, [False] * pad + answers, train)


def selective(draw, train, length, vocab, tokens):
    symbols = [draw.below(vocab - 2) for _ in range(tokens)]
    blanks = [draw.below(tokens) for _ in range(length - 2 * tokens - 1)]
    ids = []
    for i, symbol in enumerate(symbols):
        ids += [vocab - 2] * blanks.count(i) + [symbol]
    return ids + [vocab - 1] + [vocab - 2] * tokens, blank(length - tokens) + symbols


def compression(draw, train, length, vocab):
    symbols = [draw.below(vocab - 1) for _ in range(length - 1)]
    return symbols + [vocab - 1] * (length - 1), blank(length - 1) + symbols


def memorization(draw, train, length, vocab):
    keys = (vocab - 1) // 2
    order = 0x6D656D6F72697A65  # the same for every seed
    ids, targets = [], []
    for _ in range(length // 2):
        key = draw.below(keys)
        ids += [key, vocab - 1]
        targets += [None, keys + permute(order, vocab - 1 - keys, key)]
    return ids, targets


FOR, IS, QUESTION, ZERO, NOISE, NAMES = 1, 2, 3, 4, list(range(14, 19)), 19


def asking(ids, answer, length):
    """The row with the answer shown except for its last token, and blanks after it."""
    targets = blank(len(ids) - 1) + list(answer)
    ids = ids + list(answer[:-1])
    rest = length - len(ids)
    return ids + [0] * rest, targets + blank(rest)


def niah(draw, train, length, vocab, keys, haystack, digits):
    needle = 3 + digits
    units = (length - keys * needle - (needle - 1)) // (needle if haystack else 5)
    order = draw.bits()
    queried = draw.below(keys)
    numbers, ids = [], []

    def put(index):
        number = [ZERO + 1 + draw.below(9)] + [ZERO + draw.below(10) for _ in range(digits - 1)]
        ids.extend([FOR, NAMES + permute(order, vocab - NAMES, index), IS] + number)
        return number

    for unit in range(units):
        if draw.below(units - unit) < keys - len(numbers):
            numbers.append(put(len(numbers)))
        if haystack:
            put(keys + unit)
        else:
            ids.extend(NOISE)
    return asking(ids + [QUESTION, NAMES + permute(order, vocab - NAMES, queried), IS], numbers[queried], length)


def variable_tracking(draw, train, length, vocab, chains, hops):
    units = (length - chains * (8 + 5 * hops) - (7 + hops)) // 5
    order, values = draw.bits(), draw.bits()
    names = [NAMES + permute(order, vocab - NAMES, i) for i in range(chains * (hops + 1))]
    digits = [[ZERO + int(d) for d in str(10000 + permute(values, 90000, c))] for c in range(chains)]
    parts = [NOISE] * units
    for chain in range(chains):
        own = names[chain * (hops + 1):][:hops + 1]
        left = [[FOR, own[0], IS] + digits[chain]] + [[FOR, b, IS, FOR, a] for a, b in zip(own, own[1:])]
        mixed = []
        for i in reversed(range(len(parts))):
            mixed.append(parts[i])
            if draw.below(i + 1) < len(left):
                mixed.append(left.pop())
        parts = mixed[::-1]
    ids = [token for part in parts for token in part]
    return asking(ids + [QUESTION] + digits[0] + [IS], names[:hops + 1], length)


def frequent_words(draw, train, length, vocab, alpha):
    ranks = min(1 + vocab - 3, length)
    scale = sum(k ** -alpha for k in range(1, 1000)) + 1000 ** (1 - alpha) / (alpha - 1) + 1000 ** -alpha / 2

    def counts(words):
        return [math.floor(words * k ** -alpha / scale) for k in range(1, ranks + 1)]

    words = 0
    while sum(counts(words + 1)) <= length - 3:
        words += 1
    order = draw.bits()
    word = [1] + [3 + permute(order, vocab - 3, i) for i in range(ranks - 1)]
    ids = [word[k] for k, count in enumerate(counts(words)) for _ in range(count)]
    for i in range(len(ids) - 1, 0, -1):
        j = draw.below(i + 1)
        ids[i], ids[j] = ids[j], ids[i]
    return asking(ids + [2], word[1:4], length)


# ---- what targets mean, derived from the ids alone

def follows_key(ids, targets, context):
    """Each target is the token after the first occurrence of the token at its position."""
    for t, target in enumerate(targets):
        if target is not None:
            place = ids.index(ids[t])
            assert place < min(context, t) and ids[place + 1] == target


def mean_mqar(ids, targets, length, vocab, pairs, **_):
    follows_key(ids, targets, 2 * pairs)
    assert sum(target is not None for target in targets) == pairs
    assert len(set(ids[:2 * pairs:2])) == len(set(ids[1:2 * pairs:2])) == pairs
    assert all(1 <= k < vocab // 2 <= v for k, v in zip(ids[:2 * pairs:2], ids[1:2 * pairs:2]))


def mean_in_context(ids, targets, length, vocab, noise_vocab=0, **_):
    keys = (vocab - noise_vocab) // 2
    seen = set()
    for t in range(0, length, 2):
        known = ids[t] in seen
        assert (targets[t] is not None) == known
        assert not known or ids[ids[::2].index(ids[t]) * 2 + 1] == targets[t]
        seen |= {ids[t]} if ids[t] < keys else set()
    assert targets[length - 2] is not None


def mean_fuzzy(ids, targets, length, vocab, **_):
    tokens = ids + [targets[-1]]
    text = "".join(chr(0x4e00 + token) for token in tokens)
    keys = (vocab - 1) // 2
    pairs = re.findall("([%c-%c]+)([%c-%c]+)" % (0x4e00, 0x4e00 + keys - 1, 0x4e00 + keys, 0x4e00 + vocab - 2), text)
    table = {}
    for key, value in pairs:
        assert table.setdefault(key, value) == value
    last = pairs[-1]
    assert pairs[:-1].count(last) >= 1 and targets[-len(last[1]):] == [ord(c) - 0x4e00 for c in last[1]]


def mean_niah(ids, targets, length, vocab, keys, haystack, digits):
    question = ids.index(QUESTION)
    needles = [t for t in range(question) if ids[t] == FOR]
    found = [t for t in needles if ids[t + 1] == ids[question + 1]]
    assert len(found) == 1 and len({ids[t + 1] for t in needles}) == len(needles)
    assert [t for t in targets if t is not None] == ids[found[0] + 3:found[0] + 3 + digits]


def mean_variable_tracking(ids, targets, length, vocab, chains, hops):
    question = ids.index(QUESTION)
    value, known, holders = ids[question + 1:question + 6], {}, []
    t = 0
    while t < question:
        if ids[t] == NOISE[0]:
            t += 5
            continue
        by_name = ids[t + 3] == FOR
        known[ids[t + 1]] = known[ids[t + 4]] if by_name else ids[t + 3:t + 8]
        holders += [ids[t + 1]] if known[ids[t + 1]] == value else []
        t += 5 if by_name else 8
    assert [t for t in targets if t is not None] == holders and len(holders) == hops + 1


def mean_frequent_words(ids, targets, length, vocab, alpha):
    context = ids[:ids.index(2)]
    words = sorted(set(context) - {1}, key=context.count, reverse=True)
    assert context.count(words[2]) > context.count(words[3]) and context.count(1) > context.count(words[0])
    assert [t for t in targets if t is not None] == words[:3]


def mean_copying(ids, targets, length, vocab, shortest):
    text = ids[:ids.index(vocab - 1)]
    assert [t for t in targets if t is not None] == text and shortest <= len(text) <= length // 2


def mean_selective(ids, targets, length, vocab, tokens):
    assert targets[-tokens:] == [i for i in ids[:ids.index(vocab - 1)] if i < vocab - 2]


# ---- the comparison

# name in the program, row, meaning of validation rows, texts
TASKS = {
    "recall": (recall, None, ["", "length=37,vocab=21,pairs=5,shown=0"]),
    "mqar": (mqar, mean_mqar, ["length=64,pairs=4", "length=256,pairs=64", "pairs=16,power=0.5,noise=0"]),
    "induction": (induction, None, ["", "length=300,vocab=5"]),
    "copy": (copy, None, [""]),
    "copying": (copying, mean_copying, ["", "length=200,shortest=70"]),
    "permutation": (permutation, None, ["", "size=5"]),
    "cyclic": (cyclic, None, [""]),
    "parity": (parity, None, ["", "length=256,shortest=40"]),
    "arithmetic": (arithmetic, None, ["", "length=256,shortest=40", "modulus=7"]),
    "in-context-recall": (in_context, mean_in_context, ["", "vocab=64,length=40"]),
    "noisy-recall": (in_context, mean_in_context, ["", "noise=0.8"]),
    "fuzzy-recall": (fuzzy, mean_fuzzy, ["", "vocab=33,length=50,key-size=2"]),
    "selective-copying": (selective, mean_selective, [""]),
    "compression": (compression, None, [""]),
    "memorization": (memorization, None, [""]),
    "niah": (niah, mean_niah, ["", "haystack=1", "keys=4,digits=3"]),
    "variable-tracking": (variable_tracking, mean_variable_tracking, ["", "chains=3,hops=2"]),
    "frequent-words": (frequent_words, mean_frequent_words, ["", "length=400,vocab=20,alpha=1.5"]),
}


def lines(text, split, rows):
    command = [PROGRAM, "data", "show", "--ids", "--seed", str(SEED), "--split", split, "--batch", str(rows), text]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [line for line in out.splitlines() if not line.startswith("---")]


def settings_of(text, defaults):
    settings = dict(defaults)
    settings.update(part.split("=") for part in text.split(",") if part)
    return {name.replace("-", "_"): float(value) if float(value) % 1 or name in ("power", "noise", "alpha")
            else int(float(value)) for name, value in settings.items()}


def all_defaults():
    out = subprocess.run([PROGRAM, "data", "tasks"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [line.split(":") for line in out.splitlines() if not line.startswith(" ")]
    return {name: dict(part.split("=") for part in rest.split(",")) for name, rest in found}


def shown(ids, targets):
    return " ".join(str(i) if t is None else f"{i}>{t}" for i, t in zip(ids, targets))


def row_of(text, split, number, defaults):
    name, _, rest = text.partition(":")
    settings = settings_of(rest, defaults[name])
    make, mean, _ = TASKS[name]
    ids, targets = make(Draws(philox(SEED, 0x73796e746865, 0), split, number), split == 0, **settings)
    if mean and split == 1:
        mean(ids, targets, **settings)
    return ids, targets


def compare(text, split, expected):
    for number, (line, row) in enumerate(zip(lines(text, ("train", "validation")[split], ROWS), expected)):
        if line != shown(*row):
            sys.exit(f"{text}, {('train', 'validation')[split]} row {number} differs:\n  program {line}\n  script  "
                     f"{shown(*row)}")


def mixture(text, split, number, defaults):
    parts = [(int(part.split("*")[0]) if "*" in part else 1, part.split("*")[-1]) for part in text.split(" + ")]
    rows = [row_of(part, split, number, defaults) for _, part in parts]
    at = philox(philox(SEED, 0x6d697874757265, 0), 2 * number + split, 0) * sum(w for w, _ in parts) >> 64
    chosen = next(i for i, end in enumerate(itertools.accumulate(w for w, _ in parts)) if end > at)
    ids, targets = rows[chosen]
    rest = max(len(ids) for ids, _ in rows) - len(ids)
    return ids + [0] * rest, targets + blank(rest)


MIXTURE = "5*mqar:length=64,pairs=4 + mqar:length=128,pairs=8 + parity:length=256,shortest=200"


def main():
    defaults = all_defaults()
    missing = set(defaults) - set(TASKS)
    if missing:
        sys.exit(f"no definition of {', '.join(sorted(missing))}")
    total = 0
    for name, (_, _, texts) in TASKS.items():
        for text in texts:
            for split in (0, 1):
                compare(f"{name}:{text}", split, (row_of(f"{name}:{text}", split, n, defaults) for n in range(ROWS)))
                total += ROWS
    for split in (0, 1):
        compare(MIXTURE, split, (mixture(MIXTURE, split, n, defaults) for n in range(ROWS)))
        total += ROWS
    print(f"{total} rows of {len(TASKS)} tasks: 0 differences")


if __name__ == "__main__":
    main()
