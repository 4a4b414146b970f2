/* synthetic_task.c: the synthetic tasks, one table row each. */
#include "data/rows/synthetic_task.h"

#include "base/memory.h"
#include "base/random.h"
#include "data/rows/permutation.h"

#include <math.h>
#include <string.h>

/* Settings that several tasks share have the same index in all of them. */
enum { LENGTH, VOCAB, COUNT, POWER, NOISE };
enum { SHOWN = POWER };
enum { MOST_LENGTH = 1 << 20, MOST_VOCAB = 1 << 24, MOST_ELEMENTS = 7 };

/* The random numbers of one row. */
typedef struct draws {
    uint64_t seed, stream, counter;
} draws;

/* One stream per row: even ones for training, odd ones for validation. */
static draws draws_of(const sr_synthetic *self, sr_split split, int64_t number) {
    return (draws){self->seed, (uint64_t)number * SR_SPLITS + (uint64_t)split, 0};
}

static int32_t below(draws *from, int64_t bound) {
    return (int32_t)sr_random_below(from->seed, from->stream, from->counter++, (uint64_t)bound);
}

static uint64_t bits(draws *from) {
    return sr_random_bits(from->seed, from->stream, from->counter++);
}

static int setting(const sr_synthetic *self, int which) {
    return (int)self->values[which];
}

static const sr_synthetic *begin_row(const sr_source *source, sr_token_row *row) {
    row->starts[0] = 0;
    row->documents = 1;
    for (int t = 0; t < source->T; t++)
        row->targets[t] = -1;
    return (const sr_synthetic *)source;
}

static srnn_status set_size(sr_synthetic *self, int vocab) {
    self->source.vocab = vocab;
    self->source.T = setting(self, LENGTH);
    return SRNN_OK;
}

/* ---- recall: pairs, then queries for random ones of them */

static srnn_status recall_prepare(sr_synthetic *self) {
    int pairs = setting(self, COUNT), vocab = setting(self, VOCAB);
    if (pairs > vocab / 2)
        return SR_FAIL(SRNN_ERR_FORMAT, "recall: %d pairs need vocab=%d or more (half are keys)",
                       pairs, 2 * pairs);
    if (setting(self, LENGTH) <= 2 * pairs)
        return SR_FAIL(SRNN_ERR_FORMAT, "recall: %d pairs need length=%d or more", pairs,
                       2 * pairs + 1);
    return set_size(self, vocab);
}

static srnn_status recall_fill(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const sr_synthetic *self = begin_row(source, row);
    draws from = draws_of(self, split, number);
    int pairs = setting(self, COUNT), keys = source->vocab / 2;
    uint64_t key = bits(&from);
    for (int pair = 0; pair < pairs; pair++) {
        row->ids[2 * pair] = (int32_t)sr_permutation_at(key, (uint64_t)keys, (uint64_t)pair);
        row->ids[2 * pair + 1] = keys + below(&from, source->vocab - keys);
    }
    for (int t = 2 * pairs; t < source->T; t++) {
        int pair = below(&from, pairs);
        row->ids[t] = row->ids[2 * pair];
        row->targets[t] = row->ids[2 * pair + 1];
        if (setting(self, SHOWN) && t + 1 < source->T) {
            t++;
            row->ids[t] = row->targets[t - 1];
        }
    }
    return SRNN_OK;
}

/* ---- mqar: Arora, Eyuboglu et al., "Zoology", 2023, and zoology/data/multiquery_ar.py */

static srnn_status mqar_prepare(sr_synthetic *self) {
    int pairs = setting(self, COUNT), vocab = setting(self, VOCAB), length = setting(self, LENGTH);
    if (length % 2 != 0 || length < 4 * pairs)
        return SR_FAIL(SRNN_ERR_FORMAT, "mqar: %d pairs need an even length of %d or more", pairs,
                       4 * pairs);
    if (vocab <= length)
        return SR_FAIL(SRNN_ERR_FORMAT, "mqar: length=%d needs vocab=%d or more", length,
                       length + 1);
    int slots = (length - 2 * pairs) / 2;
    SR_TRY(sr_alloc((void **)&self->gap_ends, (size_t)slots, sizeof *self->gap_ends));
    double sum = 0;
    for (int slot = 0; slot < slots; slot++)
        self->gap_ends[slot] = sum += pow(slot + 1, self->values[POWER] - 1);
    return set_size(self, vocab);
}

/* Draws a slot according to the slot probabilities. */
static int mqar_slot(const sr_synthetic *self, draws *from, int slots) {
    double at =
        self->gap_ends[slots - 1] * sr_random_uniform(from->seed, from->stream, from->counter++);
    int low = -1, high = slots - 1; /* gap_ends[low] <= at < gap_ends[high] */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (self->gap_ends[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static srnn_status mqar_fill(const sr_source *source, sr_token_row *row, sr_split split,
                             int64_t number) {
    const sr_synthetic *self = begin_row(source, row);
    draws from = draws_of(self, split, number);
    int pairs = setting(self, COUNT), context = 2 * pairs, slots = (source->T - context) / 2;
    int keys = source->vocab / 2; /* key 0 is the blank and not used */
    uint64_t key = bits(&from), value = bits(&from);
    for (int t = context; t < source->T; t++)
        row->ids[t] = 0;
    for (int pair = 0; pair < pairs; pair++) {
        uint64_t n = (uint64_t)pair;
        int32_t *placed = row->ids + 2 * pair;
        placed[0] = 1 + (int32_t)sr_permutation_at(key, (uint64_t)keys - 1, n);
        placed[1] = keys + (int32_t)sr_permutation_at(value, (uint64_t)(source->vocab - keys), n);
        /* Without replacement: a slot that is taken is drawn again. */
        int t;
        do
            t = context + 2 * mqar_slot(self, &from, slots);
        while (row->ids[t] != 0);
        row->ids[t] = placed[0];
        row->targets[t] = placed[1];
    }
    for (int t = context; t < source->T && setting(self, NOISE); t++)
        if (row->ids[t] == 0)
            row->ids[t] = below(&from, source->vocab);
    return SRNN_OK;
}

/* ---- induction: random symbols; a mark occurs twice, the second time at the end */

static srnn_status induction_prepare(sr_synthetic *self) {
    return set_size(self, setting(self, VOCAB));
}

static srnn_status induction_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                  int64_t number) {
    const sr_synthetic *self = begin_row(source, row);
    draws from = draws_of(self, split, number);
    int32_t mark = source->vocab - 1;
    int last = source->T - 1, first = below(&from, source->T - 2);
    for (int t = 0; t < last; t++)
        row->ids[t] = below(&from, mark);
    row->ids[first] = mark;
    row->ids[last] = mark;
    row->targets[last] = row->ids[first + 1];
    return SRNN_OK;
}

/* ---- copy: selective copying, Gu and Dao, "Mamba", 2023, section 4.1.1 */

static srnn_status copy_prepare(sr_synthetic *self) {
    int count = setting(self, COUNT);
    if (setting(self, LENGTH) < 2 * count)
        return SR_FAIL(SRNN_ERR_FORMAT, "copy: %d tokens need length=%d or more", count, 2 * count);
    return set_size(self, setting(self, VOCAB));
}

static srnn_status copy_fill(const sr_source *source, sr_token_row *row, sr_split split,
                             int64_t number) {
    const sr_synthetic *self = begin_row(source, row);
    draws from = draws_of(self, split, number);
    int32_t blank = source->vocab - 2, mark = source->vocab - 1;
    int count = setting(self, COUNT), body = source->T - count, placed = 0;
    for (int t = 0; t < body; t++) {
        /* Selection sampling: every choice of places is equally likely. */
        bool chosen = below(&from, body - t) < count - placed;
        row->ids[t] = chosen ? below(&from, blank) : blank;
        if (chosen)
            row->targets[body + placed++] = row->ids[t];
    }
    for (int t = body; t < source->T; t++)
        row->ids[t] = mark;
    return SRNN_OK;
}

/* ---- permutation: the word problem of a symmetric group; ids are ranks in lexical order */

static int factorial(int n) {
    return n < 2 ? 1 : n * factorial(n - 1);
}

static void unrank(int images[], int n, int rank) {
    bool used[MOST_ELEMENTS] = {false};
    for (int place = 0; place < n; place++) {
        int smaller = rank / factorial(n - 1 - place), image = 0;
        rank %= factorial(n - 1 - place);
        for (; used[image] || smaller > 0; image++)
            smaller -= !used[image];
        used[image] = true;
        images[place] = image;
    }
}

static int rank_of(const int images[], int n) {
    int rank = 0;
    for (int place = 0; place < n; place++) {
        int smaller = 0;
        for (int later = place + 1; later < n; later++)
            smaller += images[later] < images[place];
        rank += smaller * factorial(n - 1 - place);
    }
    return rank;
}

static srnn_status permutation_prepare(sr_synthetic *self) {
    return set_size(self, factorial(setting(self, VOCAB)));
}

static srnn_status permutation_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                    int64_t number) {
    const sr_synthetic *self = begin_row(source, row);
    draws from = draws_of(self, split, number);
    int n = setting(self, VOCAB), product[MOST_ELEMENTS], next[MOST_ELEMENTS];
    unrank(product, n, 0);
    for (int t = 0; t < source->T; t++) {
        row->ids[t] = below(&from, source->vocab);
        unrank(next, n, row->ids[t]);
        for (int place = 0; place < n; place++)
            product[place] = next[product[place]];
        row->targets[t] = rank_of(product, n);
    }
    return SRNN_OK;
}

static const sr_synthetic_task tasks[] = {
    {{"recall", "key value pairs, then queries, each followed by its answer (shown=0: not)"},
     {{"length", 48, 3, MOST_LENGTH, false},
      {"vocab", 32, 2, MOST_VOCAB, false},
      {"pairs", 8, 1, MOST_LENGTH, false},
      {"shown", 1, 0, 1, false}},
     recall_prepare,
     recall_fill},
    {{"mqar", "zoology's multi-query recall; gaps between pair and query follow a power law"},
     {{"length", 64, 4, MOST_LENGTH, false},
      {"vocab", 8192, 4, MOST_VOCAB, false},
      {"pairs", 8, 1, MOST_LENGTH, false},
      {"power", 0.01, 0, 1, true},
      {"noise", 1, 0, 1, false}},
     mqar_prepare,
     mqar_fill},
    {{"induction", "random symbols; what followed the mark the first time?"},
     {{"length", 48, 3, MOST_LENGTH, false}, {"vocab", 16, 2, MOST_VOCAB, false}},
     induction_prepare,
     induction_fill},
    {{"copy", "symbols among blanks, to be repeated in their order"},
     {{"length", 48, 2, MOST_LENGTH, false},
      {"vocab", 16, 3, MOST_VOCAB, false},
      {"tokens", 8, 1, MOST_LENGTH, false}},
     copy_prepare,
     copy_fill},
    {{"permutation", "permutations of `size` things; the product of all so far"},
     {{"length", 48, 1, MOST_LENGTH, false}, {"size", 3, 2, MOST_ELEMENTS, false}},
     permutation_prepare,
     permutation_fill},
};

const sr_synthetic_task *sr_synthetic_task_at(size_t index) {
    return index < sizeof tasks / sizeof *tasks ? &tasks[index] : NULL;
}
