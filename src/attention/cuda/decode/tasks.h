/* tasks.h (private): a chain as its kernel sees it, and how a device keeps one.
 *
 * What a task makes for later tasks stands in marked numbers (together.h), each with the mark of this run of the kernel: whoever
 * needs it loads until the marks are right. Every task of a chain has its own, so nothing is overwritten. All blocks ask for
 * the same numbers at the same time: there are copies of them, among which the blocks divide themselves. */
#ifndef SR_ATTENTION_CUDA_DECODE_TASKS_H
#define SR_ATTENTION_CUDA_DECODE_TASKS_H

#include "attention/cuda/decode/queue.h"
#include "attention/cuda/decode/state.h"
#include "device/cuda/cooperative.h"

enum {
    SR_CHAIN_BYTES = 52 << 10, /* of the tasks of one kernel, in shared memory */
    SR_CHAIN_TASKS = 256,
    SR_CHAIN_LISTS = 512 << 10, /* of the tasks of all kernels of one gathering */
};

/* Where rows are read: marked, or if that is NULL in memory, where a kernel in front has left them. */
struct sr_chain_source {
    const sr_marked *marked;
    int32_t marked_stride; /* even */
    int32_t copies;        /* a power of two; all rows of one, then all of the next */
    sr_chain_place plain;
};

/* Where rows go. plain.data NULL: a later task writes there anyway. */
struct sr_chain_target {
    sr_marked *marked;
    int32_t marked_stride;
    int32_t copies; /* 0: nobody in the chain reads them */
    sr_chain_place plain;
};

enum { SR_CHAIN_COPIES = 8 }; /* at most */

/* So many for so many rows: more of them spread what is asked for, and take longer to write. */
SR_BOTH int sr_chain_copies(int rows) {
    return rows == 1 ? SR_CHAIN_COPIES : rows == 2 ? 4 : 2;
}

struct sr_chain_product_task {
    sr_chain_product of; /* the places in it are not used */
    sr_chain_source x, c;
    sr_chain_target d;
    int pairs, tiles; /* pairs of columns; four of them are a tile */
};

struct sr_chain_attention_task {
    sr_attention_view<sr_bf16> call;
    sr_kept_memory<sr_bf16> memory;
    sr_chain_source token[3]; /* q, k, v: (B, heads * width) */
    sr_chain_target o;
    sr_marked *partials; /* (B H, parts, sr_chain_partial(width)) */
    int parts;           /* a power of two */
    bool
        softmax; /* weights are exponentials of dots, divided by their sum, and nothing else is done */
};

/* Heads are computed with so many numbers. */
SR_BOTH int sr_chain_width(int D, int Dv) {
    return D <= 64 && Dv <= 64 ? 64 : 128;
}

/* Numerators, row sum and maximum. */
SR_BOTH constexpr int sr_chain_partial(int width) {
    return width + 2;
}

enum sr_chain_kind { SR_CHAIN_PRODUCT, SR_CHAIN_ATTENTION };

struct sr_chain_entry {
    int32_t kind, offset; /* of the task, in the list */
};

/* The tasks follow behind the entries. */
struct alignas(16) sr_chain_list {
    int32_t count, bytes;
    sr_chain_entry entry[SR_CHAIN_TASKS];
};

/* What lasts from run to run. */
struct sr_chain_state {
    uint32_t mark; /* of the next run; never 0 */
    int done;      /* blocks of this one */
};

/* One kernel for the list, which is in device memory, with so many blocks. */
srnn_status sr_chain_launch(const sr_chain_list *list, sr_chain_state *state, int blocks,
                            cudaStream_t stream);

/* ---- what a device has */

typedef struct sr_chain sr_chain;

srnn_status sr_chain_create(sr_chain **chain, int multiprocessors, cudaStream_t stream);
void sr_chain_free(sr_chain *chain);

/* From here on tasks are collected. Lists of them go to `lists` (SR_CHAIN_LISTS bytes of device memory), before each
 * kernel or, if what happens is recorded, when the recording is over: sr_chain_send. */
void sr_chain_open(sr_chain *chain, char *lists, bool recorded);
bool sr_chain_is_open(const sr_chain *chain);
bool sr_chain_is_recorded(const sr_chain *chain); /* open, and what happens is recorded */

/* Starts what was collected. */
void sr_chain_start(sr_chain *chain, cudaStream_t stream);

/* Nothing is collected any more. Fails if something could not be started since it was opened. */
srnn_status sr_chain_close(sr_chain *chain);
srnn_status sr_chain_send(sr_chain *chain, cudaStream_t stream);

/* The device's; NULL: it has none. */
sr_chain *sr_cuda_chain(const srnn_device *device);

/* A feed of one token that needs nothing before it; false as for products. */
bool sr_chain_add_attention(const srnn_device *device, const sr_attention_view<sr_bf16> &call,
                            const sr_kept_memory<sr_bf16> &memory);

#endif
