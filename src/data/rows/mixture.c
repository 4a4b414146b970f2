/* mixture.c: rows of several tasks in one source. */
#include "data/rows/mixture.h"

#include "base/memory.h"
#include "base/random.h"
#include "data/rows/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PARTS = 16, MOST_PART_BYTES = 256, MOST_WEIGHT = 1000000 };
static const char separator[] = " + ";
/* Separates the choice of a part from the part's own random numbers. */
static const uint64_t choice_stream = 0x6d697874757265;

typedef struct mixture {
    sr_source source; /* first */
    sr_source *parts[MOST_PARTS];
    int64_t ends[MOST_PARTS]; /* cumulative weights */
    int count;
    uint64_t seed;
} mixture;

/* The length of "5*", 0 if there is none. */
static size_t weight_bytes(const char *text) {
    size_t digits = strspn(text, "0123456789");
    return digits > 0 && text[digits] == '*' ? digits + 1 : 0;
}

bool sr_mixture_is(const char *text) {
    size_t weight = weight_bytes(text);
    const char *plus = strstr(text, separator);
    char first[MOST_PART_BYTES];
    if ((!weight && !plus) || strlen(text) == weight)
        return false;
    size_t bytes = (plus ? (size_t)(plus - text) : strlen(text)) - weight;
    if (bytes >= sizeof first || (plus && (size_t)(plus - text) < weight))
        return false;
    memcpy(first, text + weight, bytes);
    first[bytes] = '\0';
    return weight_bytes(first) == 0 && sr_synthetic_is(first);
}

static void mixture_free(sr_source *source) {
    mixture *self = (mixture *)source;
    for (int i = 0; i < self->count; i++)
        sr_source_free(self->parts[i]);
    free(self);
}

static srnn_status mixture_fill(const sr_source *source, sr_token_row *row, sr_split split,
                                int64_t number) {
    const mixture *self = (const mixture *)source;
    uint64_t stream = (uint64_t)number * SR_SPLITS + (uint64_t)split;
    int64_t at =
        (int64_t)sr_random_below(self->seed, stream, 0, (uint64_t)self->ends[self->count - 1]);
    int part = 0;
    while (self->ends[part] <= at)
        part++;
    SR_TRY(self->parts[part]->fill(self->parts[part], row, split, number));
    for (int t = self->parts[part]->T; t < source->T; t++) {
        row->ids[t] = 0;
        row->targets[t] = -1;
    }
    return SRNN_OK;
}

static srnn_status add_part(mixture *self, const char *text, size_t bytes, uint64_t seed,
                            sr_mixture_part *create) {
    char part[MOST_PART_BYTES];
    size_t weight = weight_bytes(text);
    int64_t share = weight ? strtoll(text, NULL, 10) : 1;
    if (self->count == MOST_PARTS)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: a mixture of more than %d tasks", text, MOST_PARTS);
    if (share < 1 || share > MOST_WEIGHT || weight > bytes || bytes - weight >= sizeof part)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: a part of a mixture is WEIGHT*TASK, the weight from 1 to %d", text,
                       MOST_WEIGHT);
    memcpy(part, text + weight, bytes - weight);
    part[bytes - weight] = '\0';
    SR_TRY(create(&self->parts[self->count], part, seed));
    const sr_source *made = self->parts[self->count];
    self->ends[self->count] = share + (self->count ? self->ends[self->count - 1] : 0);
    self->count++;
    self->source.T = made->T > self->source.T ? made->T : self->source.T;
    self->source.vocab = made->vocab > self->source.vocab ? made->vocab : self->source.vocab;
    return SRNN_OK;
}

static srnn_status add_parts(mixture *self, const char *text, uint64_t seed,
                             sr_mixture_part *create) {
    for (const char *plus; (plus = strstr(text, separator)); text = plus + strlen(separator))
        SR_TRY(add_part(self, text, (size_t)(plus - text), seed, create));
    return add_part(self, text, strlen(text), seed, create);
}

srnn_status sr_mixture_create(sr_source **source, const char *text, uint64_t seed,
                              sr_mixture_part *create) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(mixture)));
    mixture *self = memory;
    self->seed = sr_random_bits(seed, choice_stream, 0);
    self->source.fill = mixture_fill;
    self->source.free = mixture_free;
    for (int split = 0; split < SR_SPLITS; split++)
        self->source.rows[split] = INT64_MAX;
    const srnn_status status = add_parts(self, text, seed, create);
    if (status != SRNN_OK) {
        mixture_free(&self->source);
        return status;
    }
    *source = &self->source;
    return SRNN_OK;
}

/* Targets of a validation row, estimated from the first ones: in some tasks they vary by row. */
static srnn_status mean_targets(double *mean, const sr_source *part) {
    enum { ROWS = 64 };
    void *memory;
    const size_t T = (size_t)part->T;
    SR_TRY(sr_alloc(&memory, T, 2 * sizeof(int32_t) + sizeof(int64_t)));
    int64_t *starts = memory, count = 0;
    int32_t *ids = (int32_t *)(starts + T);
    srnn_status status = SRNN_OK;
    for (int64_t number = 0; number < ROWS && status == SRNN_OK; number++) {
        sr_token_row row = {.ids = ids, .targets = ids + T, .starts = starts};
        status = part->fill(part, &row, SR_SPLIT_VALIDATION, number);
        for (size_t t = 0; t < T && status == SRNN_OK; t++)
            count += row.targets[t] >= 0;
    }
    free(memory);
    *mean = (double)count / ROWS;
    return status;
}

double sr_mixture_chance(const sr_source *source) {
    const mixture *self = (const mixture *)source;
    double hits = 0, all = 0;
    for (int i = 0; i < self->count; i++) {
        double targets;
        if (mean_targets(&targets, self->parts[i]) != SRNN_OK)
            return NAN;
        targets *= (double)(self->ends[i] - (i ? self->ends[i - 1] : 0));
        hits += targets * sr_synthetic_chance(self->parts[i]);
        all += targets;
    }
    return hits / all;
}
