/* evaluation_parts.c: parts of an evaluation that ranks take turns at. */
#include "train/parallel/evaluation_parts.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static sr_ranks *ranks_of(const sr_evaluation_parts *turns) {
    return turns->ranks ? turns->ranks : sr_ranks_alone();
}

static srnn_status make_room(sr_evaluation_parts *turns) {
    if (turns->count < turns->capacity)
        return SRNN_OK;
    const size_t capacity = turns->capacity ? 2 * turns->capacity : 64;
    sr_evaluation *more = realloc(turns->own, capacity * sizeof *more);
    if (!more)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the parts of an evaluation");
    turns->own = more;
    turns->capacity = capacity;
    return SRNN_OK;
}

srnn_status sr_evaluation_parts_next(sr_evaluation_parts *turns, sr_evaluation **mine) {
    const sr_ranks *ranks = ranks_of(turns);
    *mine = NULL;
    if (turns->taken++ % ranks->count != ranks->rank)
        return SRNN_OK;
    SR_TRY(make_room(turns));
    *mine = &turns->own[turns->count++];
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

srnn_status sr_evaluation_parts_end(sr_evaluation_parts *turns, sr_evaluation *result) {
    sr_ranks *ranks = ranks_of(turns);
    const int64_t count = ranks->count, rounds = (turns->taken + count - 1) / count;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)(count * rounds), sizeof(sr_evaluation)));
    sr_evaluation *all = memory;
    if (turns->count > 0)
        memcpy(all + ranks->rank * rounds, turns->own, turns->count * sizeof *all);
    const srnn_status status = sr_ranks_gather(ranks, all, (size_t)rounds * sizeof *all);
    for (int64_t turn = 0; turn < turns->taken; turn++)
        add(result, &all[turn % count * rounds + turn / count]);
    free(memory);
    return status;
}

void sr_evaluation_parts_free(sr_evaluation_parts *turns) {
    free(turns->own);
    *turns = (sr_evaluation_parts){0};
}
