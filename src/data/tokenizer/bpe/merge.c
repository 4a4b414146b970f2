/* merge.c: merges the symbols of one piece, best rank first. */
#include "data/tokenizer/bpe/bpe.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT_PIECE = 48 }; /* up to this many symbols a linear scan beats a heap */

static uint32_t rank_of(const sr_bpe *bpe, uint32_t left, uint32_t right) {
    const sr_bpe_pair *pair = sr_bpe_find_pair(bpe, left, right);
    return pair ? pair->rank : UINT32_MAX;
}

static size_t merge_short(const sr_bpe *bpe, uint32_t *symbols, size_t count) {
    uint32_t ranks[SHORT_PIECE]; /* of the pair at i and i + 1 */
    for (size_t i = 0; i + 1 < count; i++)
        ranks[i] = rank_of(bpe, symbols[i], symbols[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best])
                best = i;
        if (ranks[best] == UINT32_MAX)
            break;
        symbols[best] = sr_bpe_find_pair(bpe, symbols[best], symbols[best + 1])->merged;
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        memmove(ranks + best, ranks + best + 1, (count - best - 1) * sizeof *ranks);
        if (best + 1 < count)
            ranks[best] = rank_of(bpe, symbols[best], symbols[best + 1]);
        if (best > 0)
            ranks[best - 1] = rank_of(bpe, symbols[best - 1], symbols[best]);
    }
    return count;
}

/* The heap holds rank << 32 | position, smallest on top. An entry is stale if the rank of the pair
 * at its position has changed. */
static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t moving = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child])
            child++;
        if (moving <= heap[child])
            break;
        heap[at] = heap[child];
    }
    heap[at] = moving;
}

static srnn_status heap_push(sr_bpe_scratch *scratch, uint64_t entry) {
    if (scratch->heap_count == scratch->heap_capacity) {
        size_t capacity = scratch->heap_capacity ? scratch->heap_capacity * 2 : 256;
        uint64_t *heap = realloc(scratch->heap, capacity * sizeof *heap);
        if (!heap)
            return SR_FAIL(SRNN_ERR_MEMORY, "could not grow a heap to %zu entries", capacity);
        scratch->heap = heap;
        scratch->heap_capacity = capacity;
    }
    size_t at = scratch->heap_count++;
    for (; at > 0 && entry < scratch->heap[(at - 1) / 2]; at = (at - 1) / 2)
        scratch->heap[at] = scratch->heap[(at - 1) / 2];
    scratch->heap[at] = entry;
    return SRNN_OK;
}

static uint64_t heap_pop(sr_bpe_scratch *scratch) {
    uint64_t top = scratch->heap[0];
    scratch->heap[0] = scratch->heap[--scratch->heap_count];
    if (scratch->heap_count)
        sift_down(scratch->heap, scratch->heap_count, 0);
    return top;
}

static srnn_status prepare_long(const sr_bpe *bpe, sr_bpe_scratch *scratch) {
    size_t count = scratch->symbols.count;
    scratch->ranks.count = scratch->previous.count = scratch->next.count = 0;
    scratch->heap_count = 0;
    SR_TRY(sr_tokens_reserve(&scratch->ranks, count));
    SR_TRY(sr_tokens_reserve(&scratch->previous, count));
    SR_TRY(sr_tokens_reserve(&scratch->next, count));
    const uint32_t *symbols = scratch->symbols.ids;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rank = i + 1 < count ? rank_of(bpe, symbols[i], symbols[i + 1]) : UINT32_MAX;
        scratch->ranks.ids[i] = rank;
        scratch->previous.ids[i] = i - 1; /* UINT32_MAX for the first */
        scratch->next.ids[i] = i + 1;
        if (rank != UINT32_MAX)
            SR_TRY(heap_push(scratch, (uint64_t)rank << 32 | i));
    }
    return SRNN_OK;
}

/* Looks up the pair at `at` again after one of its sides changed. */
static srnn_status renew_pair(const sr_bpe *bpe, sr_bpe_scratch *scratch, uint32_t at) {
    uint32_t next = scratch->next.ids[at], rank = UINT32_MAX;
    if (next < scratch->symbols.count)
        rank = rank_of(bpe, scratch->symbols.ids[at], scratch->symbols.ids[next]);
    scratch->ranks.ids[at] = rank;
    return rank == UINT32_MAX ? SRNN_OK : heap_push(scratch, (uint64_t)rank << 32 | at);
}

static srnn_status merge_long(const sr_bpe *bpe, sr_bpe_scratch *scratch) {
    SR_TRY(prepare_long(bpe, scratch));
    uint32_t *symbols = scratch->symbols.ids, *ranks = scratch->ranks.ids;
    uint32_t *previous = scratch->previous.ids, *next = scratch->next.ids;
    size_t count = scratch->symbols.count;
    while (scratch->heap_count) {
        uint64_t top = heap_pop(scratch);
        uint32_t left = (uint32_t)top;
        if (ranks[left] != top >> 32)
            continue;
        uint32_t right = next[left];
        symbols[left] = sr_bpe_find_pair(bpe, symbols[left], symbols[right])->merged;
        ranks[right] = UINT32_MAX;
        next[left] = next[right];
        if (next[left] < count)
            previous[next[left]] = left;
        SR_TRY(renew_pair(bpe, scratch, left));
        if (previous[left] != UINT32_MAX)
            SR_TRY(renew_pair(bpe, scratch, previous[left]));
    }
    size_t written = 0;
    for (uint32_t at = 0; at < count; at = next[at])
        symbols[written++] = symbols[at];
    scratch->symbols.count = written;
    return SRNN_OK;
}

srnn_status sr_bpe_merge(const sr_bpe *bpe, sr_bpe_scratch *scratch) {
    sr_tokens *symbols = &scratch->symbols;
    if (symbols->count > SHORT_PIECE) {
        if (symbols->count >= UINT32_MAX)
            return SR_FAIL(SRNN_ERR_LIMIT, "a piece of %zu symbols is too long", symbols->count);
        return merge_long(bpe, scratch);
    }
    symbols->count = merge_short(bpe, symbols->ids, symbols->count);
    return SRNN_OK;
}

void sr_bpe_scratch_free(sr_bpe_scratch *scratch) {
    sr_tokens_free(&scratch->symbols);
    sr_tokens_free(&scratch->ranks);
    sr_tokens_free(&scratch->previous);
    sr_tokens_free(&scratch->next);
    free(scratch->heap);
    *scratch = (sr_bpe_scratch){0};
}
