/* evaluation_parts.c: an evaluation divided among ranks. */
#include "train/parallel/evaluation_parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static sr_ranks *ranks_of(const sr_evaluation_parts *parts) {
    return parts->ranks ? parts->ranks : sr_ranks_alone();
}

static srnn_status grow(sr_evaluation_parts *parts) {
    if (parts->count < parts->capacity)
        return SRNN_OK;
    const size_t capacity = parts->capacity ? 2 * parts->capacity : 64;
    sr_evaluation *more = realloc(parts->own, capacity * sizeof *more);
    if (!more)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the parts of an evaluation");
    parts->own = more;
    parts->capacity = capacity;
    return SRNN_OK;
}

srnn_status sr_evaluation_parts_next(sr_evaluation_parts *parts, sr_evaluation **mine) {
    const sr_ranks *ranks = ranks_of(parts);
    *mine = NULL;
    if (parts->taken++ % ranks->count != ranks->rank)
        return SRNN_OK;
    SR_TRY(grow(parts));
    *mine = &parts->own[parts->count++];
    **mine = (sr_evaluation){0};
    return SRNN_OK;
}

static void add(sr_evaluation *sum, const sr_evaluation *part) {
    sum->loss_sum += part->loss_sum;
    sum->targets += part->targets;
    sum->correct += part->correct;
    sum->bytes += part->bytes;
    sum->cut += part->cut;
    sum->skipped += part->skipped;
}

srnn_status sr_evaluation_parts_end(sr_evaluation_parts *parts, sr_evaluation *result) {
    sr_ranks *ranks = ranks_of(parts);
    const int64_t count = ranks->count, rounds = (parts->taken + count - 1) / count;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)(count * rounds), sizeof(sr_evaluation)));
    sr_evaluation *all = memory;
    if (parts->count > 0)
        memcpy(all + ranks->rank * rounds, parts->own, parts->count * sizeof *all);
    const srnn_status status = sr_ranks_gather(ranks, all, (size_t)rounds * sizeof *all);
    for (int64_t part = 0; part < parts->taken; part++)
        add(result, &all[part % count * rounds + part / count]);
    free(memory);
    return status;
}

void sr_evaluation_parts_free(sr_evaluation_parts *parts) {
    free(parts->own);
    *parts = (sr_evaluation_parts){0};
}
