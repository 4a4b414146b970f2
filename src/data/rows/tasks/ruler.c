/* ruler.c: the tasks of Hsieh et al., "RULER", 2024, that need no corpus, one word per token.
 * docs/DATA.md lists the differences from the original texts and the reasons. */
#include "base/memory.h"
#include "data/rows/permutation.h"
#include "data/rows/tasks/task.h"

#include <math.h>
#include <string.h>

enum { KEYS = SR_TASK_VOCAB + 1, HAYSTACK, DIGITS };
enum { CHAINS = SR_TASK_VOCAB + 1, HOPS };
enum { ALPHA = SR_TASK_VOCAB + 1 };

/* Ids: the words of sentences, ten digits, the five sentences that form the haystack, and then
 * names. */
enum { BLANK, FOR, IS, QUESTION, ZERO, NOISE = ZERO + 10, FIRST_NAME = NOISE + 5 };
enum { NOISE_TOKENS = FIRST_NAME - NOISE, MOST_DIGITS = 9 };

/* A row being written, and its current end. */
typedef struct writer {
    sr_token_row *row;
    int t;
} writer;

static void put(writer *to, int32_t id) {
    to->row->ids[to->t++] = id;
}

/* Appends a token that is also a target. */
static void answer(writer *to, int32_t id) {
    to->row->targets[to->t - 1] = id;
    put(to, id);
}

static void put_noise(writer *to) {
    for (int i = 0; i < NOISE_TOKENS; i++)
        put(to, NOISE + i);
}

static int32_t name_at(uint64_t key, const sr_source *source, int index) {
    const uint64_t names = (uint64_t)(source->vocab - FIRST_NAME);
    return FIRST_NAME + (int32_t)sr_permutation_at(key, names, (uint64_t)index);
}

/* ---- niah: a needle in a haystack of noise, or of needles with other keys */

static int needle_tokens(const sr_synthetic *self) {
    return 3 + sr_task_setting(self, DIGITS);
}

/* The number of units of the haystack without the needles. */
static int haystack_units(const sr_synthetic *self) {
    int needle = needle_tokens(self), question = needle - 1;
    int unit = sr_task_setting(self, HAYSTACK) ? needle : NOISE_TOKENS;
    int needles = sr_task_setting(self, KEYS) * needle;
    return (sr_task_setting(self, SR_TASK_LENGTH) - needles - question) / unit;
}

static srnn_status niah_prepare(sr_synthetic *self) {
    int length = sr_task_setting(self, SR_TASK_LENGTH),
        vocab = sr_task_setting(self, SR_TASK_VOCAB);
    int keys = sr_task_setting(self, KEYS), units = haystack_units(self);
    int names = keys + (sr_task_setting(self, HAYSTACK) ? units : 0);
    if (units < keys)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "niah: length=%d is too short for %d needles between %d "
                       "parts of a haystack",
                       length, keys, keys);
    if (vocab < FIRST_NAME + names)
        return SR_FAIL(SRNN_ERR_FORMAT, "niah: %d different keys need vocab=%d or more", names,
                       FIRST_NAME + names);
    return sr_task_set_size(self, length, vocab, 10);
}

/* The key, and a number that does not begin with 0. */
static void put_needle(writer *to, int32_t key, int digits, sr_draws *from) {
    put(to, FOR);
    put(to, key);
    put(to, IS);
    put(to, ZERO + 1 + sr_draw_below(from, 9));
    for (int i = 1; i < digits; i++)
        put(to, ZERO + sr_draw_below(from, 10));
}

static srnn_status niah_fill(const sr_source *source, sr_token_row *row, sr_split split,
                             int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int keys = sr_task_setting(self, KEYS), units = haystack_units(self), placed = 0, found = 0;
    int digits = sr_task_setting(self, DIGITS);
    uint64_t names = sr_draw_bits(&from); /* distinct: the original may query the same one twice */
    int queried = sr_draw_below(&from, keys);
    writer to = {row, 0};
    for (int unit = 0; unit < units; unit++) {
        if (sr_draw_below(&from, units - unit) < keys - placed) {
            found = placed == queried ? to.t + 3 : found;
            put_needle(&to, name_at(names, source, placed++), digits, &from);
        }
        if (sr_task_setting(self, HAYSTACK))
            put_needle(&to, name_at(names, source, keys + unit), digits, &from);
        else
            put_noise(&to);
    }
    put(&to, QUESTION);
    put(&to, name_at(names, source, queried));
    put(&to, IS);
    for (int i = 0; i + 1 < digits; i++)
        answer(&to, row->ids[found + i]);
    row->targets[to.t - 1] = row->ids[found + digits - 1];
    sr_task_pad(row, to.t, source->T, BLANK);
    return SRNN_OK;
}

/* ---- variable tracking: chains of assignments among noise; which variables have this value? */

enum { VALUE_DIGITS = 5, LEAST_VALUE = 10000, VALUES = 90000 };
enum { ASSIGN_VALUE = 3 + VALUE_DIGITS, ASSIGN_NAME = 5 };

static int noise_units(const sr_synthetic *self) {
    int chains = sr_task_setting(self, CHAINS), hops = sr_task_setting(self, HOPS);
    int statements = chains * (ASSIGN_VALUE + hops * ASSIGN_NAME);
    int question = 2 + VALUE_DIGITS + hops;
    return (sr_task_setting(self, SR_TASK_LENGTH) - statements - question) / NOISE_TOKENS;
}

static srnn_status tracking_prepare(sr_synthetic *self) {
    int length = sr_task_setting(self, SR_TASK_LENGTH),
        vocab = sr_task_setting(self, SR_TASK_VOCAB);
    int chains = sr_task_setting(self, CHAINS), hops = sr_task_setting(self, HOPS);
    int names = chains * (hops + 1);
    if (noise_units(self) <= hops)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "variable-tracking: length=%d is too short for %d chains of "
                       "%d hops between %d parts of a haystack",
                       length, chains, hops, hops + 1);
    if (vocab < FIRST_NAME + names)
        return SR_FAIL(SRNN_ERR_FORMAT, "variable-tracking: %d variables need vocab=%d or more",
                       names, FIRST_NAME + names);
    return sr_task_set_size(self, length, vocab, vocab - FIRST_NAME);
}

/* Inserts the statements of a chain, in order, before random parts of the `count` parts of the
 * text. Returns the new number of parts. */
static int insert_chain(int64_t *parts, int count, int first, int statements, sr_draws *from) {
    int to = count + statements - 1, left = statements;
    for (int i = count - 1; i >= 0; i--) {
        parts[to--] = parts[i];
        if (sr_draw_below(from, i + 1) < left)
            parts[to--] = first + --left;
    }
    return count + statements;
}

static void put_value(writer *to, int value) {
    for (int unit = LEAST_VALUE; unit > 0; unit /= 10)
        put(to, ZERO + value / unit % 10);
}

static srnn_status tracking_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                 int64_t number) {
    const sr_synthetic *self = (const sr_synthetic *)source;
    sr_draws from = sr_draws_of(self, split, number);
    int chains = sr_task_setting(self, CHAINS), links = sr_task_setting(self, HOPS) + 1;
    int count = noise_units(self);
    /* Names and values differ: in the original two chains may have the same value, and a name drawn
     * twice shifts the others to other chains. */
    uint64_t names = sr_draw_bits(&from), values = sr_draw_bits(&from);
    int64_t *parts = row->starts; /* -1: noise; else a statement's number; until the end */
    for (int i = 0; i < count; i++)
        parts[i] = -1;
    for (int chain = 0; chain < chains; chain++)
        count = insert_chain(parts, count, chain * links, links, &from);
    writer to = {row, 0};
    for (int i = 0; i < count; i++) {
        int statement = (int)parts[i];
        if (statement < 0) {
            put_noise(&to);
            continue;
        }
        put(&to, FOR);
        put(&to, name_at(names, source, statement));
        put(&to, IS);
        if (statement % links == 0) {
            put_value(&to, LEAST_VALUE + (int)sr_permutation_at(values, VALUES,
                                                                (uint64_t)(statement / links)));
            continue;
        }
        put(&to, FOR);
        put(&to, name_at(names, source, statement - 1));
    }
    sr_task_begin_row(source, row);
    put(&to, QUESTION);
    put_value(&to, LEAST_VALUE + (int)sr_permutation_at(values, VALUES, 0));
    put(&to, IS);
    for (int i = 0; i + 1 < links; i++)
        answer(&to, name_at(names, source, i));
    row->targets[to.t - 1] = name_at(names, source, links - 1);
    sr_task_pad(row, to.t, source->T, BLANK);
    return SRNN_OK;
}

/* ---- frequent words: the word of rank k occurs in proportion to k^-alpha. Rank 1 is noise; which
 * are the next three? */

enum { DOTS = 1, ASK, FIRST_WORD, ASKED = 3 };

static double zeta(double alpha) {
    enum { TERMS = 1000 };
    double sum = 0;
    for (int k = 1; k < TERMS; k++)
        sum += pow(k, -alpha);
    /* Euler-Maclaurin formula, accurate beyond double precision. */
    return sum + pow(TERMS, 1 - alpha) / (alpha - 1) + pow(TERMS, -alpha) / 2 +
           alpha * pow(TERMS, -alpha - 1) / 12;
}

static double word_count(double words, int rank, double alpha, double scale) {
    return floor(words * pow(rank, -alpha) / scale);
}

static double total_count(double words, int ranks, double alpha, double scale) {
    double total = 0, count = 1;
    for (int rank = 1; rank <= ranks && count > 0; rank++)
        total += count = word_count(words, rank, alpha, scale);
    return total;
}

static srnn_status frequent_prepare(sr_synthetic *self) {
    int length = sr_task_setting(self, SR_TASK_LENGTH),
        vocab = sr_task_setting(self, SR_TASK_VOCAB);
    int ranks = 1 + vocab - FIRST_WORD, available = length - ASKED;
    double alpha = self->values[ALPHA], scale = zeta(alpha), words = 0;
    ranks = ranks < length ? ranks : length;
    for (double step = 1 << 24; step >= 1; step /= 2)
        words += total_count(words + step, ranks, alpha, scale) <= available ? step : 0;
    SR_TRY(sr_alloc((void **)&self->weights, (size_t)ranks + 1, sizeof *self->weights));
    double total = 0, count[ASKED + 2];
    for (int rank = 1; rank <= ranks; rank++) {
        const double own = word_count(words, rank, alpha, scale);
        if (rank <= ASKED + 2)
            count[rank - 1] = own;
        self->weights[rank - 1] = total += own;
    }
    self->weights[ranks] = INFINITY;
    for (int rank = 1; rank <= ASKED + 1; rank++)
        if (!(count[rank - 1] > count[rank]))
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "frequent-words: in length=%d the words of rank %d and "
                           "%d are as frequent: a longer row is needed",
                           length, rank, rank + 1);
    return sr_task_set_size(self, length, vocab, vocab - FIRST_WORD);
}

static int32_t word_at(uint64_t key, const sr_source *source, int rank) {
    const uint64_t words = (uint64_t)(source->vocab - FIRST_WORD);
    return rank == 1 ? DOTS
                     : FIRST_WORD + (int32_t)sr_permutation_at(key, words, (uint64_t)(rank - 2));
}

/* The original shuffles every row in the same way. */
static void shuffle(int32_t *ids, int count, sr_draws *from) {
    for (int i = count - 1; i > 0; i--) {
        int j = sr_draw_below(from, i + 1);
        int32_t id = ids[i];
        ids[i] = ids[j];
        ids[j] = id;
    }
}

static srnn_status frequent_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                 int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    uint64_t words = sr_draw_bits(&from);
    writer to = {row, 0};
    for (int rank = 1; isfinite(self->weights[rank - 1]); rank++)
        while (to.t < self->weights[rank - 1])
            put(&to, word_at(words, source, rank));
    shuffle(row->ids, to.t, &from);
    put(&to, ASK);
    for (int i = 0; i + 1 < ASKED; i++)
        answer(&to, word_at(words, source, 2 + i));
    row->targets[to.t - 1] = word_at(words, source, 1 + ASKED);
    sr_task_pad(row, to.t, source->T, BLANK);
    return SRNN_OK;
}

const sr_synthetic_task sr_tasks_ruler[] = {
    {{"niah", "RULER: the number of a key, in noise (haystack=1: among numbers of other keys)"},
     {{"length", 256, 16, SR_TASK_MOST_LENGTH, false},
      {"vocab", 128, FIRST_NAME + 1, SR_TASK_MOST_VOCAB, false},
      {"keys", 1, 1, SR_TASK_MOST_LENGTH, false},
      {"haystack", 0, 0, 1, false},
      {"digits", 7, 1, MOST_DIGITS, false}},
     niah_prepare,
     niah_fill},
    {{"variable-tracking", "RULER: chains of assignments; which variables have this value?"},
     {{"length", 256, 16, SR_TASK_MOST_LENGTH, false},
      {"vocab", 128, FIRST_NAME + 1, SR_TASK_MOST_VOCAB, false},
      {"chains", 1, 1, 1000, false},
      {"hops", 4, 1, 1000, false}},
     tracking_prepare,
     tracking_fill},
    {{"frequent-words",
      "RULER: the three most frequent words but for the noise, most frequent first"},
     {{"length", 256, 16, SR_TASK_MOST_LENGTH, false},
      {"vocab", 128, FIRST_WORD + 4, SR_TASK_MOST_VOCAB, false},
      {"alpha", 2, 1.1, 10, true}},
     frequent_prepare,
     frequent_fill},
    {{NULL, NULL}, {{NULL, 0, 0, 0, false}}, NULL, NULL},
};
