/* tracking.c: state tracking: a finite state that each token updates. */
#include "data/rows/tasks/task.h"

enum { SIZE = SR_TASK_LENGTH + 1 };
enum { SHORTEST = SR_TASK_LENGTH + 1, MODULUS };
enum { MOST_ELEMENTS = 7 };

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
    int elements = factorial(sr_task_setting(self, SIZE));
    return sr_task_set_size(self, sr_task_setting(self, SR_TASK_LENGTH), elements, elements);
}

static srnn_status permutation_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                    int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int n = sr_task_setting(self, SIZE), product[MOST_ELEMENTS], next[MOST_ELEMENTS];
    unrank(product, n, 0);
    for (int t = 0; t < source->T; t++) {
        row->ids[t] = sr_draw_below(&from, source->vocab);
        unrank(next, n, row->ids[t]);
        for (int place = 0; place < n; place++)
            product[place] = next[product[place]];
        row->targets[t] = rank_of(product, n);
    }
    return SRNN_OK;
}

/* ---- cyclic: the word problem of a cyclic group */

static srnn_status cyclic_prepare(sr_synthetic *self) {
    int size = sr_task_setting(self, SIZE);
    return sr_task_set_size(self, sr_task_setting(self, SR_TASK_LENGTH), size, size);
}

static srnn_status cyclic_fill(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t sum = 0;
    for (int t = 0; t < source->T; t++) {
        row->ids[t] = sr_draw_below(&from, source->vocab);
        row->targets[t] = sum = (sum + row->ids[t]) % source->vocab;
    }
    return SRNN_OK;
}

/* ---- parity and arithmetic, as in the code of Beck et al., "xLSTM", 2024, appendix D; there a
 * length counts the answer, which is not read: rows have length - 1 tokens */

enum { PARITY_VOCAB = 3, PLUS = 1, MINUS, TIMES, EQUALS, FIRST_NUMBER };

static srnn_status ranged_prepare(sr_synthetic *self, int vocab, int answers) {
    int shortest = sr_task_setting(self, SHORTEST), length = sr_task_setting(self, SR_TASK_LENGTH);
    if (shortest > length)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: shortest=%d is longer than length=%d",
                       self->task->entry.name, shortest, length);
    return sr_task_set_size(self, length - 1, vocab, answers);
}

static srnn_status parity_prepare(sr_synthetic *self) {
    return ranged_prepare(self, PARITY_VOCAB, 2);
}

static srnn_status parity_fill(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int shortest = sr_task_setting(self, SHORTEST), length = sr_task_setting(self, SR_TASK_LENGTH);
    int bits = shortest + sr_draw_below(&from, length - shortest + 1) - 1;
    int32_t parity = 0;
    for (int t = 0; t < bits; t++) {
        row->ids[t] = 1 + sr_draw_below(&from, 2);
        parity ^= row->ids[t] - 1;
    }
    row->targets[bits - 1] = 1 + parity;
    sr_task_pad(row, bits, source->T, 0);
    return SRNN_OK;
}

static srnn_status arithmetic_prepare(sr_synthetic *self) {
    int modulus = sr_task_setting(self, MODULUS);
    return ranged_prepare(self, FIRST_NUMBER + modulus, modulus);
}

/* The value of number, operator, number, .. with products before sums. It is reduced at every step:
 * the original multiplies in 64 bits, which overflow in long products. */
static int32_t value_of(const int32_t *ids, int count, int32_t modulus) {
    int64_t sum = 0, sign = 1, product = ids[0] - FIRST_NUMBER;
    for (int t = 1; t + 1 < count; t += 2) {
        int64_t next = ids[t + 1] - FIRST_NUMBER;
        if (ids[t] == TIMES) {
            product = product * next % modulus;
            continue;
        }
        sum += sign * product;
        sign = ids[t] == MINUS ? -1 : 1;
        product = next;
    }
    sum = (sum + sign * product) % modulus;
    return (int32_t)(sum < 0 ? sum + modulus : sum);
}

static srnn_status arithmetic_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                   int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int32_t modulus = sr_task_setting(self, MODULUS);
    int most = (sr_task_setting(self, SR_TASK_LENGTH) + 1) / 2;
    int least = (sr_task_setting(self, SHORTEST) + 1) / 2;
    least = least < most ? least : most;
    int count = 2 * (least + sr_draw_below(&from, most - least + 1)) - 3;
    for (int t = 0; t < count; t++)
        row->ids[t] =
            t % 2 ? PLUS + sr_draw_below(&from, 3) : FIRST_NUMBER + sr_draw_below(&from, modulus);
    row->ids[count] = EQUALS;
    row->targets[count] = FIRST_NUMBER + value_of(row->ids, count, modulus);
    sr_task_pad(row, count + 1, source->T, 0);
    return SRNN_OK;
}

const sr_synthetic_task sr_tasks_tracking[] = {
    {{"permutation", "permutations of `size` things; the product of all so far"},
     {{"length", 48, 1, SR_TASK_MOST_LENGTH, false}, {"size", 3, 2, MOST_ELEMENTS, false}},
     permutation_prepare,
     permutation_fill},
    {{"cyclic", "numbers below `size`; the sum of all so far modulo `size`"},
     {{"length", 48, 1, SR_TASK_MOST_LENGTH, false}, {"size", 60, 2, SR_TASK_MOST_VOCAB, false}},
     cyclic_prepare,
     cyclic_fill},
    {{"parity", "bits; what is their parity? the answer is counted in the length, as in xLSTM"},
     {{"length", 40, 3, SR_TASK_MOST_LENGTH, false},
      {"shortest", 3, 3, SR_TASK_MOST_LENGTH, false}},
     parity_prepare,
     parity_fill},
    {{"arithmetic", "numbers with + - * between them and an =: the value modulo `modulus`"},
     {{"length", 40, 3, SR_TASK_MOST_LENGTH, false},
      {"shortest", 3, 3, SR_TASK_MOST_LENGTH, false},
      {"modulus", 5, 2, 1 << 20, false}},
     arithmetic_prepare,
     arithmetic_fill},
    {{NULL, NULL}, {{NULL, 0, 0, 0, false}}, NULL, NULL},
};
