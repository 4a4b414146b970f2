/* tasks.h (private): a decode queue as its kernel sees it, and how a device keeps one.
 *
 * What a task computes for later tasks is stored as marked numbers (device/cuda/cooperative.h),
 * each with the mark of this run of the kernel: a consumer loads until the marks are right. Every
 * task of a queue has its own, so nothing is overwritten. All blocks load the same numbers at the
 * same time: there are copies of them, over which the blocks are distributed. */
#ifndef SR_OPS_CUDA_DECODE_TASKS_H
#define SR_OPS_CUDA_DECODE_TASKS_H

#include "attention/cuda/decode/state.h"
#include "device/cuda/cooperative.h"
#include "ops/cuda/decode/queue.h"

enum {
    SR_DECODE_BYTES = 52 << 10, /* of the tasks of one kernel, in shared memory */
    SR_DECODE_TASKS = 256,
    SR_DECODE_LISTS = 512 << 10, /* of the tasks of all kernels of one coalesced call or graph */
};

/* Where rows are read: marked, or if that is NULL from memory, written by an earlier kernel. */
struct sr_decode_source {
    const sr_marked *marked;
    int32_t marked_stride; /* even */
    int32_t copies;        /* a power of two; all rows of one, then all of the next */
    sr_decode_place plain;
};

/* Where rows are written. plain.data NULL: a later task overwrites them anyway. */
struct sr_decode_target {
    sr_marked *marked;
    int32_t marked_stride;
    int32_t copies; /* 0: no task of the queue reads them */
    sr_decode_place plain;
};

enum { SR_DECODE_COPIES = 8 }; /* at most */

/* Copies per row count: more of them spread the loads, and take longer to write. */
SR_BOTH int sr_decode_copies(int rows) {
    return rows == 1 ? SR_DECODE_COPIES : rows == 2 ? 4 : 2;
}

struct sr_decode_gemm_task {
    sr_decode_gemm of; /* row and column in it are unused */
    sr_decode_source x, c;
    sr_decode_target d;
    int pairs, tiles; /* pairs of columns; four of them are a tile */
};

struct sr_decode_attention_task {
    sr_attention_view<sr_bf16> call;
    sr_kv_cache<sr_bf16> memory;
    sr_decode_source token[3]; /* q, k, v: (B, heads * width) */
    sr_decode_target o;
    sr_marked *partials; /* (B H, parts, sr_decode_partial(width)) */
    int parts;           /* a power of two */
    /* weights are exponentials of dot products, divided by their sum, with no further epilogue */
    bool softmax;
};

/* Heads are computed with this width. */
SR_BOTH int sr_decode_width(int D, int Dv) {
    return D <= 64 && Dv <= 64 ? 64 : 128;
}

/* Numerators, row sum and maximum. */
SR_BOTH constexpr int sr_decode_partial(int width) {
    return width + 2;
}

enum sr_decode_kind { SR_DECODE_GEMM, SR_DECODE_ATTENTION };

struct sr_decode_entry {
    int32_t kind, offset; /* of the task, in the list */
};

/* The tasks follow the entries. */
struct alignas(16) sr_decode_list {
    int32_t count, bytes;
    sr_decode_entry entry[SR_DECODE_TASKS];
};

/* State that persists from run to run. */
struct sr_decode_state {
    uint32_t mark; /* of the next run; never 0 */
    int done;      /* blocks of this one */
};

/* Launches one kernel for the list, which is in device memory, with that many blocks. */
srnn_status sr_decode_launch(const sr_decode_list *list, sr_decode_state *state, int blocks,
                             cudaStream_t stream);

#endif
