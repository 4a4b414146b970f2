/* mad.c: the six tasks of Poli et al., "Mechanistic design and scaling of hybrid architectures",
 * 2024, as in the baselines of mad-lab (multi-query). docs/DATA.md lists the differences and
 * reasons. Training rows have the next token as target everywhere, as there; validation rows have
 * only the answers. */
#include "base/random.h"
#include "data/rows/permutation.h"
#include "data/rows/tasks/task.h"

#include <string.h>

enum { NOISE_VOCAB = SR_TASK_VOCAB + 1, NOISE };
enum { KEY_SIZE = SR_TASK_VOCAB + 1, VALUE_SIZE };
enum { COUNT = SR_TASK_VOCAB + 1 };
enum { MOST_MOTIF = 8 };

/* Halves of the rest of the vocabulary: keys first. */
static int key_count(const sr_synthetic *self, int others) {
    return (sr_task_setting(self, SR_TASK_VOCAB) - others) / 2;
}

/* ---- in-context recall, and the same with pairs of noise among the pairs */

static int noise_vocab(const sr_synthetic *self) {
    return self->task->settings[NOISE_VOCAB].name ? sr_task_setting(self, NOISE_VOCAB) : 0;
}

static double noise_share(const sr_synthetic *self) {
    return self->task->settings[NOISE].name ? self->values[NOISE] : 0;
}

static srnn_status in_context_prepare(sr_synthetic *self) {
    const char *name = self->task->entry.name;
    int length = sr_task_setting(self, SR_TASK_LENGTH), others = noise_vocab(self);
    int vocab = sr_task_setting(self, SR_TASK_VOCAB), keys = key_count(self, others);
    if (length % 2 != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: length=%d must be even", name, length);
    if (vocab < others + 2)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: noise-vocab=%d needs vocab=%d or more", name, others,
                       others + 2);
    return sr_task_set_size(self, length - 1, vocab, vocab - others - keys);
}

/* The earlier position of the key at t as a key; -1: none. */
static int seen_at(const int32_t *ids, int t) {
    for (int before = t - 2; before >= 0; before -= 2)
        if (ids[before] == ids[t])
            return before;
    return -1;
}

/* Writes a key at t and its value unless that is past the end of the row; returns the value. */
static int32_t put_pair(int32_t *ids, int t, int keys, int values, sr_draws *from) {
    ids[t] = sr_draw_below(from, keys);
    int before = seen_at(ids, t);
    return before < 0 ? keys + sr_draw_below(from, values) : ids[before + 1];
}

/* The key of the n-th pair with a new key. */
static int nth_new_key(const int32_t *ids, int keys, int n) {
    int t = 0;
    for (;; t += 2)
        if (ids[t] < keys && seen_at(ids, t) < 0 && n-- == 0)
            return t;
}

static void target_all(sr_token_row *row, int T, int32_t last) {
    for (int t = 0; t + 1 < T; t++)
        row->targets[t] = row->ids[t + 1];
    row->targets[T - 1] = last;
}

static srnn_status in_context_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                   int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int others = noise_vocab(self), used = source->vocab - others, keys = key_count(self, others);
    int last = source->T - 1, fresh = 0;
    /* One pair is never noise. (The original may choose the one past the end.) */
    int clean = sr_draw_below(&from, last / 2);
    for (int t = 0; t < last; t += 2) {
        if (noise_share(self) > 0 && t / 2 != clean && sr_draw_uniform(&from) < noise_share(self)) {
            row->ids[t] = used + sr_draw_below(&from, others);
            row->ids[t + 1] = used + sr_draw_below(&from, others);
            continue;
        }
        row->ids[t + 1] = put_pair(row->ids, t, keys, used - keys, &from);
        bool known = seen_at(row->ids, t) >= 0;
        row->targets[t] = known ? row->ids[t + 1] : -1;
        fresh += !known;
    }
    int queried = nth_new_key(row->ids, keys, sr_draw_below(&from, fresh));
    row->ids[last] = row->ids[queried];
    row->targets[last] = row->ids[queried + 1];
    if (split == SR_SPLIT_TRAIN)
        target_all(row, source->T, row->ids[queried + 1]);
    return SRNN_OK;
}

/* ---- fuzzy in-context recall: keys and values of several tokens */

typedef struct motif {
    int32_t ids[MOST_MOTIF];
    int size;
} motif;

static srnn_status fuzzy_prepare(sr_synthetic *self) {
    int length = sr_task_setting(self, SR_TASK_LENGTH), keys = key_count(self, 1);
    int key_size = sr_task_setting(self, KEY_SIZE), value_size = sr_task_setting(self, VALUE_SIZE);
    int vocab = sr_task_setting(self, SR_TASK_VOCAB), values = vocab - 1 - keys;
    if (keys < key_size || values < value_size)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: vocab=%d has %d tokens for keys and %d for values, fewer than one of "
                       "them needs",
                       self->task->entry.name, vocab, keys, values);
    if (length <= 2 * (key_size + value_size))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: length=%d: two pairs need %d or more",
                       self->task->entry.name, length, 2 * (key_size + value_size) + 1);
    return sr_task_set_size(self, length, vocab, values);
}

/* Distinct tokens of `count`, in any order, all choices equally likely. */
static motif draw_motif(sr_draws *from, int size, int first, int count) {
    motif m = {.size = size};
    int32_t sorted[MOST_MOTIF];
    for (int i = 0; i < size; i++) {
        int32_t token = sr_draw_below(from, count - i); /* of the remaining ones */
        int place = 0;
        for (; place < i && sorted[place] <= token; place++)
            token++;
        memmove(sorted + place + 1, sorted + place, (size_t)(i - place) * sizeof *sorted);
        sorted[place] = token;
        m.ids[i] = first + token;
    }
    return m;
}

/* A row being generated. */
typedef struct fuzzy_row {
    int32_t ids[SR_TASK_MOST_SEARCHED + 1];
    bool answers[SR_TASK_MOST_SEARCHED + 1]; /* tokens that can be predicted */
    int starts[SR_TASK_MOST_SEARCHED];       /* (pairs) of each pair */
    int8_t key_sizes[SR_TASK_MOST_SEARCHED], value_sizes[SR_TASK_MOST_SEARCHED];
    int pairs, count;
} fuzzy_row;

/* Appends a pair; its value is `value` unless its key occurred before. */
static void add_pair(fuzzy_row *row, const motif *key, const motif *value) {
    int before = 0;
    size_t bytes = (size_t)key->size * sizeof *key->ids;
    while (before < row->pairs && (row->key_sizes[before] != key->size ||
                                   memcmp(row->ids + row->starts[before], key->ids, bytes) != 0))
        before++;
    bool known = before < row->pairs;
    const int32_t *ids = known ? row->ids + row->starts[before] + key->size : value->ids;
    int size = known ? row->value_sizes[before] : value->size;
    row->starts[row->pairs] = row->count;
    row->key_sizes[row->pairs] = (int8_t)key->size;
    row->value_sizes[row->pairs++] = (int8_t)size;
    memcpy(row->ids + row->count, key->ids, bytes);
    memcpy(row->ids + row->count + key->size, ids, (size_t)size * sizeof *ids);
    for (int i = 0; i < key->size + size; i++)
        row->answers[row->count + i] = known && i >= key->size;
    row->count += key->size + size;
}

static bool same_motif(const motif *a, const motif *b) {
    return a->size == b->size && memcmp(a->ids, b->ids, (size_t)a->size * sizeof *a->ids) == 0;
}

/* Training rows have keys of all sizes up to the largest, validation rows only of the largest. */
static void draw_fuzzy(fuzzy_row *row, const sr_synthetic *self, sr_split split, sr_draws *from) {
    int keys = key_count(self, 1), values = sr_task_setting(self, SR_TASK_VOCAB) - 1 - keys;
    int key_size = sr_task_setting(self, KEY_SIZE), value_size = sr_task_setting(self, VALUE_SIZE);
    int least = split == SR_SPLIT_TRAIN ? 1 : key_size;
    int size = least + sr_draw_below(from, key_size - least + 1);
    int probe_value_size = 1 + sr_draw_below(from, value_size);
    motif probe = draw_motif(from, size, 0, keys);
    motif answer = draw_motif(from, probe_value_size, keys, values);
    int available = sr_task_setting(self, SR_TASK_LENGTH) - probe.size - answer.size;
    int most = available - key_size - value_size;
    int place = sr_draw_below(from, most);
    bool placed = false;
    row->pairs = row->count = 0;
    while (row->count < most) {
        /* No later than before the last possible pair. In the original the place may be after it:
         * the answer to the last key is then not in the row. */
        if (!placed && (row->count >= place || row->count + key_size + value_size >= most)) {
            add_pair(row, &probe, &answer);
            placed = true;
            continue;
        }
        int own_size = least + sr_draw_below(from, key_size - least + 1);
        int own_value_size = 1 + sr_draw_below(from, value_size);
        motif key = draw_motif(from, own_size, 0, keys);
        motif value = draw_motif(from, own_value_size, keys, values);
        bool same = same_motif(&key, &probe);
        add_pair(row, &key, same ? &answer : &value);
        placed = placed || same;
    }
    add_pair(row, &probe, &answer);
}

static srnn_status fuzzy_fill(const sr_source *source, sr_token_row *row, sr_split split,
                              int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    fuzzy_row drawn;
    draw_fuzzy(&drawn, self, split, &from);
    /* The tokens are at the end of length + 1 positions, the last of which is only a target. */
    int blank = source->T + 1 - drawn.count;
    for (int t = 0; t <= source->T; t++) {
        int32_t id = t < blank ? source->vocab - 1 : drawn.ids[t - blank];
        bool counts = split == SR_SPLIT_TRAIN || (t >= blank && drawn.answers[t - blank]);
        if (t < source->T)
            row->ids[t] = id;
        if (t > 0)
            row->targets[t - 1] = counts ? id : -1;
    }
    return SRNN_OK;
}

/* ---- selective copying */

static srnn_status selective_prepare(sr_synthetic *self) {
    int length = sr_task_setting(self, SR_TASK_LENGTH), count = sr_task_setting(self, COUNT);
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    if (length <= 2 * count + 1)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %d tokens need length=%d or more",
                       self->task->entry.name, count, 2 * count + 2);
    return sr_task_set_size(self, length, vocab, vocab - 2);
}

/* Each blank is before a random symbol, so that none follows the last. The original draws these
 * places from an unseeded generator. */
static srnn_status selective_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                  int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t blank = source->vocab - 2, mark = source->vocab - 1;
    int count = sr_task_setting(self, COUNT), first = source->T - count, t = 0;
    int32_t *blanks = row->ids + first; /* before each symbol, until the symbols are placed */
    for (int i = 0; i < count; i++) {
        row->targets[first + i] = sr_draw_below(&from, blank);
        blanks[i] = 0;
    }
    for (int i = 0; i < first - count - 1; i++)
        blanks[sr_draw_below(&from, count)]++;
    for (int i = 0; i < count; i++) {
        for (int n = 0; n < blanks[i]; n++)
            row->ids[t++] = blank;
        row->ids[t++] = row->targets[first + i];
    }
    row->ids[t] = mark;
    sr_task_pad(row, first, source->T, blank);
    return SRNN_OK;
}

/* ---- compression: the symbols of the row are queried one by one after it. The original's decoder
 * reads only the last position, which has no equivalent in a language model. */

static srnn_status compression_prepare(sr_synthetic *self) {
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    int symbols = sr_task_setting(self, SR_TASK_LENGTH) - 1;
    return sr_task_set_size(self, 2 * symbols, vocab, vocab - 1);
}

static srnn_status compression_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                    int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int symbols = source->T / 2;
    for (int t = 0; t < symbols; t++) {
        row->ids[t] = sr_draw_below(&from, source->vocab - 1);
        row->ids[symbols + t] = source->vocab - 1;
        row->targets[symbols + t] = row->ids[t];
    }
    return SRNN_OK;
}

/* ---- memorisation: keys whose values are the same in all rows */

/* The values of the keys: the same for every seed, as in the original. */
static const uint64_t key_values = 0x6d656d6f72697a65;

static srnn_status memorization_prepare(sr_synthetic *self) {
    int vocab = sr_task_setting(self, SR_TASK_VOCAB);
    return sr_task_set_size(self, sr_task_setting(self, SR_TASK_LENGTH) / 2 * 2, vocab,
                            vocab - 1 - key_count(self, 1));
}

static srnn_status memorization_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                     int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int keys = key_count(self, 1), values = source->vocab - 1 - keys;
    for (int t = 0; t < source->T; t += 2) {
        row->ids[t] = sr_draw_below(&from, keys);
        row->ids[t + 1] = source->vocab - 1;
        row->targets[t + 1] =
            keys + (int32_t)sr_permutation_at(key_values, (uint64_t)values, (uint64_t)row->ids[t]);
    }
    return SRNN_OK;
}

#define LENGTH_AND_VOCAB(length, vocab, least)             \
    {"length", length, 4, SR_TASK_MOST_SEARCHED, false}, { \
        "vocab", vocab, least, SR_TASK_MOST_VOCAB, false   \
    }

const sr_synthetic_task sr_tasks_mad[] = {
    {{"in-context-recall", "MAD: pairs of key and value; the value of a key that was there before"},
     {LENGTH_AND_VOCAB(128, 16, 2)},
     in_context_prepare,
     in_context_fill},
    {{"noisy-recall", "MAD: the same, a share of the pairs being noise"},
     {LENGTH_AND_VOCAB(128, 32, 3),
      {"noise-vocab", 16, 1, SR_TASK_MOST_VOCAB, false},
      {"noise", 0.2, 0, 0.99, true}},
     in_context_prepare,
     in_context_fill},
    {{"fuzzy-recall", "MAD: the same with keys and values of one to several tokens"},
     {LENGTH_AND_VOCAB(128, 16, 3),
      {"key-size", 3, 1, MOST_MOTIF, false},
      {"value-size", 3, 1, MOST_MOTIF, false}},
     fuzzy_prepare,
     fuzzy_fill},
    {{"selective-copying", "MAD: symbols among blanks, repeated in their order"},
     {LENGTH_AND_VOCAB(256, 16, 3), {"tokens", 16, 1, SR_TASK_MOST_SEARCHED, false}},
     selective_prepare,
     selective_fill},
    {{"compression", "MAD: length-1 symbols, a mark, and all of them again without being shown"},
     {LENGTH_AND_VOCAB(32, 16, 2)},
     compression_prepare,
     compression_fill},
    {{"memorization", "MAD: keys whose values are the same in all rows, not in the row"},
     {LENGTH_AND_VOCAB(32, 256, 4)},
     memorization_prepare,
     memorization_fill},
    {{NULL, NULL}, {{NULL, 0, 0, 0, false}}, NULL, NULL},
};
