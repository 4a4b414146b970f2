/* batches.c: training batches read from a file, in file order. */
#include "train/batches.h"

#include "base/hash.h"
#include "base/memory.h"
#include "files/safetensors.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

typedef struct batches {
    sr_source base; /* first, so that a pointer to it is a pointer to the whole */
    int64_t rows;
    int32_t *ids; /* (rows, T+1) */
} batches;

static srnn_status fill_row(const sr_source *source, sr_token_row *row, sr_split split,
                            int64_t number) {
    (void)split; /* there is only one */
    const batches *all = (const batches *)source;
    const int32_t *ids = all->ids + number % all->rows * (source->T + 1);
    for (int32_t t = 0; t < source->T; t++) {
        row->ids[t] = ids[t];
        row->targets[t] = ids[t + 1];
    }
    row->starts[0] = 0;
    row->documents = 1;
    return SRNN_OK;
}

static void free_batches(sr_source *source) {
    batches *all = (batches *)source;
    free(all->ids);
    free(all);
}

/* Ids as int32; -1 marks a missing target or an empty token. */
static srnn_status read_ids(batches *all, const sr_tensor *tensor, const char *path) {
    void *memory, *wide;
    SR_TRY(sr_alloc(&memory, tensor->count, sizeof(int32_t)));
    all->ids = memory;
    SR_TRY(sr_alloc(&wide, tensor->count, sizeof(double)));
    const double *ids = wide;
    sr_tensor_to_double(wide, tensor);
    srnn_status status = SRNN_OK;
    for (size_t i = 0; i < tensor->count && status == SRNN_OK; i++) {
        if (!(ids[i] >= -1 && ids[i] < INT32_MAX) || ids[i] != floor(ids[i]))
            status =
                SR_FAIL(SRNN_ERR_FORMAT, "%s: ids holds %g, which is not a token", path, ids[i]);
        else
            all->ids[i] = (int32_t)ids[i];
        if (status == SRNN_OK && all->ids[i] >= all->base.vocab)
            all->base.vocab = all->ids[i] + 1;
    }
    free(wide);
    uint64_t sum = SR_HASH_BEGIN;
    for (size_t i = 0; i < tensor->count && status == SRNN_OK; i++)
        sum = sr_hash_add(sum, (uint64_t)all->ids[i]);
    all->base.sum = sr_hash_end(sum);
    return status;
}

static srnn_status read_file(batches *all, int *B, const sr_safetensors *file, const char *path) {
    const sr_tensor *tensor;
    SR_TRY(sr_safetensors_require(&tensor, file, "ids"));
    const int64_t *shape = tensor->shape;
    if (tensor->rank != 3 || tensor->count == 0 || shape[2] < 2 || shape[2] > INT_MAX ||
        shape[1] > INT_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: ids must have the shape (steps, B, T+1)", path);
    all->rows = shape[0] * shape[1];
    *B = (int)shape[1];
    all->base = (sr_source){.T = (int32_t)(shape[2] - 1),
                            .exact = true,
                            .rows = {all->rows, 0},
                            .fill = fill_row,
                            .free = free_batches};
    return read_ids(all, tensor, path);
}

srnn_status sr_batches_open(sr_source **source, int *B, const char *path) {
    sr_safetensors *file;
    void *memory;
    *source = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(batches)));
    batches *all = memory;
    srnn_status status = sr_safetensors_open(&file, path);
    if (status == SRNN_OK) {
        status = read_file(all, B, file, path);
        sr_safetensors_free(file);
    }
    if (status != SRNN_OK) {
        free_batches(&all->base);
        return status;
    }
    *source = &all->base;
    return SRNN_OK;
}
