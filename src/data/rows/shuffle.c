/* shuffle.c: the rows of a dataset, reshuffled every epoch. */
#include "data/rows/shuffle.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/random.h"
#include "data/rows/permutation.h"

#include <stdlib.h>

typedef struct shuffle {
    sr_source source; /* first, so that a pointer to it is a pointer to the shuffle */
    sr_dataset datasets[SR_SPLITS];
    sr_shuffle_settings settings;
    int64_t validation_first; /* first row used of the validation split */
} shuffle;

/* Row `number` of the endless sequence is this row of the dataset. */
static int64_t shuffled(const shuffle *self, sr_split split, int64_t number) {
    int64_t rows = self->source.rows[split];
    uint64_t epoch = (uint64_t)(number / rows);
    uint64_t key = sr_random_bits(self->settings.seed, (uint64_t)split, epoch);
    const int64_t first = split == SR_SPLIT_VALIDATION ? self->validation_first : 0;
    return first + (int64_t)sr_permutation_at(key, (uint64_t)rows, (uint64_t)(number % rows));
}

/* T+1 tokens from `begin` on, as ids and their targets. Past the end of the dataset the row is
 * empty: id 0 without a target. */
static srnn_status read_row(sr_token_row *row, const sr_dataset *dataset, int64_t begin, int T) {
    const int64_t left = dataset->token_count - 1 - begin;
    const int have = left < T ? (int)left : T;
    SR_TRY(sr_dataset_read(dataset, row->ids, begin, have));
    for (int t = 0; t + 1 < have; t++)
        row->targets[t] = row->ids[t + 1];
    for (int t = have; t < T; t++) {
        row->ids[t] = 0;
        row->targets[t] = -1;
    }
    row->starts[0] = 0;
    row->documents = 1;
    return sr_dataset_read(dataset, row->targets + have - 1, begin + have, 1);
}

static srnn_status fill_stream(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const shuffle *self = (const shuffle *)source;
    int64_t begin = shuffled(self, split, number) * source->T;
    return read_row(row, &self->datasets[split], begin, source->T);
}

static srnn_status fill_packed(const sr_source *source, sr_token_row *row, sr_split split,
                               int64_t number) {
    const shuffle *self = (const shuffle *)source;
    const sr_dataset *dataset = &self->datasets[split];
    int64_t begin = shuffled(self, split, number) * source->T;
    SR_TRY(read_row(row, dataset, begin, source->T));
    int64_t document = sr_dataset_document_of(dataset, begin);
    for (;;) {
        int64_t first, count;
        SR_TRY(sr_dataset_document(dataset, document++, &first, &count));
        int64_t next = first + count - begin; /* where the document after it starts */
        if (next > source->T)
            return SRNN_OK;
        row->targets[next - 1] = -1;
        if (next == source->T || document == dataset->document_count)
            return SRNN_OK;
        row->starts[row->documents++] = next;
    }
}

/* As in the reference: right padding with the end-of-document id. That id is a target once, at the
 * end of a document that fits, so that a model learns to stop. */
static srnn_status fill_document(const sr_source *source, sr_token_row *row, sr_split split,
                                 int64_t number) {
    const shuffle *self = (const shuffle *)source;
    const sr_dataset *dataset = &self->datasets[split];
    int64_t T = source->T, begin, count;
    SR_TRY(sr_dataset_document(dataset, shuffled(self, split, number), &begin, &count));
    if (count > T)
        return read_row(row, dataset, begin, source->T);
    SR_TRY(sr_dataset_read(dataset, row->ids, begin, count));
    for (int64_t t = count; t < T; t++)
        row->ids[t] = dataset->end_token < 0 ? 0 : (int32_t)dataset->end_token;
    for (int64_t t = 0; t < T; t++)
        row->targets[t] = t + 1 < count ? row->ids[t + 1] : -1;
    row->starts[0] = 0;
    row->documents = 1;
    return SRNN_OK;
}

static int64_t rows_of(const sr_dataset *dataset, const sr_shuffle_settings *settings) {
    const int64_t targets = dataset->token_count > 0 ? dataset->token_count - 1 : 0;
    switch (settings->layout) {
    case SR_ROWS_STREAM:
    case SR_ROWS_PACKED:
        return targets / settings->T + (settings->whole && targets % settings->T > 0);
    case SR_ROWS_DOCUMENT:
        return dataset->document_count;
    }
    return 0;
}

static srnn_status check_half(const sr_dataset *validation, const sr_shuffle_settings *settings) {
    const int64_t rows = rows_of(validation, settings);
    if (settings->validation_half == SR_HALF_ALL || rows >= 2)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT,
                   "the validation split fills %lld rows of %d tokens, and its halves need two: a "
                   "larger --validation-share, a longer text, or shorter rows (--length)",
                   (long long)rows, settings->T);
}

static srnn_status check(const sr_dataset *datasets, const sr_shuffle_settings *settings) {
    const sr_dataset *train = &datasets[SR_SPLIT_TRAIN];
    const sr_dataset *validation = &datasets[SR_SPLIT_VALIDATION];
    if (settings->T < 1)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a row of %d tokens is impossible", settings->T);
    if (validation->shard_count > 0 && validation->vocab != train->vocab)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "the splits have vocabularies of %u and %u", train->vocab,
                       validation->vocab);
    if (rows_of(train, settings) == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "the training split has %lld tokens, too few for one row of %d and the "
                       "token after it: a longer text, or shorter rows (--length)",
                       (long long)train->token_count, settings->T);
    return check_half(validation, settings);
}

static void order_free(sr_source *source) {
    shuffle *self = (shuffle *)source;
    for (int split = 0; split < SR_SPLITS; split++)
        sr_dataset_free(&self->datasets[split]);
    free(self);
}

static srnn_status verify(const sr_source *source) {
    const shuffle *self = (const shuffle *)source;
    for (int split = 0; split < SR_SPLITS; split++)
        SR_TRY(sr_dataset_verify(&self->datasets[split]));
    return SRNN_OK;
}

/* Combined checksum and stamp of the datasets. */
static void sum_up(sr_source *source, const sr_dataset *datasets) {
    uint64_t sum = SR_HASH_BEGIN, stamp = SR_HASH_BEGIN;
    for (int split = 0; split < SR_SPLITS; split++) {
        sum = sr_dataset_sum(&datasets[split], sum);
        stamp = sr_dataset_stamp(&datasets[split], stamp);
    }
    source->sum = sr_hash_end(sum);
    source->stamp = sr_hash_end(stamp);
    source->verify = verify;
}

static void take_half(shuffle *self) {
    int64_t *rows = &self->source.rows[SR_SPLIT_VALIDATION];
    const int64_t before = *rows - *rows / 2;
    switch (self->settings.validation_half) {
    case SR_HALF_ALL:
        break;
    case SR_HALF_FIRST:
        *rows = before;
        break;
    case SR_HALF_SECOND:
        self->validation_first = before;
        *rows -= before;
        break;
    }
}

static srnn_status create(shuffle **created, const sr_dataset *datasets,
                          const sr_shuffle_settings *settings) {
    static srnn_status (*const fills[])(const sr_source *, sr_token_row *, sr_split, int64_t) = {
        [SR_ROWS_STREAM] = fill_stream,
        [SR_ROWS_PACKED] = fill_packed,
        [SR_ROWS_DOCUMENT] = fill_document,
    };
    SR_TRY(check(datasets, settings));
    SR_TRY(sr_alloc_zero((void **)created, 1, sizeof **created));
    sr_source *source = &(*created)->source;
    *source = (sr_source){
        .vocab = (int32_t)datasets[SR_SPLIT_TRAIN].vocab,
        .T = settings->T,
        .fill = fills[settings->layout],
        .free = order_free,
    };
    for (int split = 0; split < SR_SPLITS; split++)
        source->rows[split] = rows_of(&datasets[split], settings);
    sum_up(source, datasets);
    (*created)->settings = *settings;
    take_half(*created);
    return SRNN_OK;
}

srnn_status sr_shuffle_create(sr_source **source, sr_dataset datasets[SR_SPLITS],
                              const sr_shuffle_settings *settings) {
    shuffle *created = NULL;
    srnn_status status = create(&created, datasets, settings);
    for (int split = 0; split < SR_SPLITS; split++) {
        if (created)
            created->datasets[split] = datasets[split];
        else
            sr_dataset_free(&datasets[split]);
        datasets[split] = (sr_dataset){0};
    }
    if (created)
        *source = &created->source;
    return status;
}
