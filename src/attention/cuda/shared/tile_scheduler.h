/* tile_scheduler.h (private): the tile scheduler: the order in which tiles of rows are computed. */
#ifndef SR_ATTENTION_CUDA_SHARED_TILE_SCHEDULER_H
#define SR_ATTENTION_CUDA_SHARED_TILE_SCHEDULER_H

#include "device/cuda/platform.h"

/* Tiles of all heads, numbered so that concurrently running blocks read few heads, and the longest
 * tiles of a group of heads come first. */
struct sr_tile_order {
    int heads, tiles;  /* in all; of a head */
    int heads_a_group; /* what they read together stays in the L2 cache */
};

struct sr_tile_place {
    int head, rank; /* rank 0: the longest tile */
};

SR_BOTH int tile_count(const sr_tile_order &order) {
    return order.heads * order.tiles;
}

SR_BOTH sr_tile_place tile_place(const sr_tile_order &order, int index) {
    const int each = order.heads_a_group * order.tiles, group = index / each;
    const int before = group * order.heads_a_group, left = order.heads - before;
    const int heads = left < order.heads_a_group ? left : order.heads_a_group;
    const int inside = index - group * each, rank = inside / heads;
    return {before + inside - rank * heads, rank};
}

/* For `heads` heads that read `bytes` each; `shared` neighbours read the same. Groups have nearly
 * equal size. */
static inline sr_tile_order tile_order(int heads, int tiles, int64_t bytes, int shared) {
    const int64_t cache = (int64_t)40 << 20;
    int64_t most = cache / (bytes > 0 ? bytes : 1) * shared;
    if (most < shared)
        most = shared;
    const int64_t groups = (heads + most - 1) / most;
    int64_t each = (heads + groups - 1) / groups;
    each = (each + shared - 1) / shared * shared;
    return {heads, tiles, (int)(each < heads ? each : heads)};
}

#endif
