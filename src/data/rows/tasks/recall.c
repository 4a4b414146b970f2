/* recall.c: associative recall: the value that followed a key */
#include "base/memory.h"
#include "data/rows/permutation.h"
#include "data/rows/tasks/task.h"

#include <math.h>

enum { COUNT = SR_TASK_VOCAB + 1, POWER, NOISE };
enum { SHOWN = POWER };

/* ---- recall: pairs, then queries for random ones of them */

static srnn_status recall_prepare(sr_synthetic *self) {
    int pairs = sr_task_setting(self, COUNT), vocab = sr_task_setting(self, SR_TASK_VOCAB);
    if (pairs > vocab / 2)
        return SR_FAIL(SRNN_ERR_FORMAT, "recall: %d pairs need vocab=%d or more (half are keys)",
                       pairs, 2 * pairs);
    if (sr_task_setting(self, SR_TASK_LENGTH) <= 2 * pairs)
        return SR_FAIL(SRNN_ERR_FORMAT, "recall: %d pairs need length=%d or more", pairs,
                       2 * pairs + 1);
    return sr_task_set_size(self, sr_task_setting(self, SR_TASK_LENGTH), vocab, vocab - vocab / 2);
}

static srnn_status recall_fill(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int pairs = sr_task_setting(self, COUNT), keys = source->vocab / 2;
    uint64_t key = sr_draw_bits(&from);
    for (int pair = 0; pair < pairs; pair++) {
        row->ids[2 * pair] = (int32_t)sr_permutation_at(key, (uint64_t)keys, (uint64_t)pair);
        row->ids[2 * pair + 1] = keys + sr_draw_below(&from, source->vocab - keys);
    }
    for (int t = 2 * pairs; t < source->T; t++) {
        int pair = sr_draw_below(&from, pairs);
        row->ids[t] = row->ids[2 * pair];
        row->targets[t] = row->ids[2 * pair + 1];
        if (sr_task_setting(self, SHOWN) && t + 1 < source->T) {
            t++;
            row->ids[t] = row->targets[t - 1];
        }
    }
    return SRNN_OK;
}

/* ---- mqar: Arora, Eyuboglu et al., "Zoology", 2023, and zoology/data/multiquery_ar.py */

static srnn_status mqar_prepare(sr_synthetic *self) {
    int pairs = sr_task_setting(self, COUNT), vocab = sr_task_setting(self, SR_TASK_VOCAB),
        length = sr_task_setting(self, SR_TASK_LENGTH);
    if (length % 2 != 0 || length < 4 * pairs)
        return SR_FAIL(SRNN_ERR_FORMAT, "mqar: %d pairs need an even length of %d or more", pairs,
                       4 * pairs);
    if (vocab <= length)
        return SR_FAIL(SRNN_ERR_FORMAT, "mqar: length=%d needs vocab=%d or more", length,
                       length + 1);
    int slots = (length - 2 * pairs) / 2;
    SR_TRY(sr_alloc((void **)&self->weights, (size_t)slots, sizeof *self->weights));
    double sum = 0;
    for (int slot = 0; slot < slots; slot++)
        self->weights[slot] = sum += pow(slot + 1, self->values[POWER] - 1);
    return sr_task_set_size(self, length, vocab, vocab - vocab / 2);
}

/* Draws a slot according to the slot probabilities. */
static int mqar_slot(const sr_synthetic *self, sr_draws *from, int slots) {
    double at = self->weights[slots - 1] * sr_draw_uniform(from);
    int low = -1, high = slots - 1; /* weights[low] <= at < weights[high] */
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (self->weights[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return high;
}

static srnn_status mqar_fill(const sr_source *source, sr_token_row *row, sr_split split,
                             int64_t number) {
    const sr_synthetic *self = sr_task_begin_row(source, row);
    sr_draws from = sr_draws_of(self, split, number);
    int pairs = sr_task_setting(self, COUNT), context = 2 * pairs,
        slots = (source->T - context) / 2;
    int keys = source->vocab / 2; /* key 0 is the blank and not used */
    uint64_t key = sr_draw_bits(&from), value = sr_draw_bits(&from);
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
    for (int t = context; t < source->T && sr_task_setting(self, NOISE); t++)
        if (row->ids[t] == 0)
            row->ids[t] = sr_draw_below(&from, source->vocab);
    return SRNN_OK;
}

const sr_synthetic_task sr_tasks_recall[] = {
    {{"recall", "key value pairs, then queries, each followed by its answer (shown=0: not)"},
     {{"length", 48, 3, SR_TASK_MOST_LENGTH, false},
      {"vocab", 32, 2, SR_TASK_MOST_VOCAB, false},
      {"pairs", 8, 1, SR_TASK_MOST_LENGTH, false},
      {"shown", 1, 0, 1, false}},
     recall_prepare,
     recall_fill},
    {{"mqar", "zoology's multi-query recall; gaps between pair and query follow a power law"},
     {{"length", 64, 4, SR_TASK_MOST_LENGTH, false},
      {"vocab", 8192, 4, SR_TASK_MOST_VOCAB, false},
      {"pairs", 8, 1, SR_TASK_MOST_LENGTH, false},
      {"power", 0.01, 0, 1, true},
      {"noise", 1, 0, 1, false}},
     mqar_prepare,
     mqar_fill},
    {{NULL, NULL}, {{NULL, 0, 0, 0, false}}, NULL, NULL},
};
