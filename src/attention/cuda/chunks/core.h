/* core.h (private): the contract of a core of chunks/, and the list of cores. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CORE_H
#define SR_ATTENTION_CUDA_CHUNKS_CORE_H

#include "attention/cuda/chunks/call.h"
#include "attention/kernel.h"

/* What decides whether a core can compute a call; widths as in sr_chunk_call. */
struct sr_chunk_shape {
    int B, H, Hkv, T, group, F, V;
    int shared; /* heads of rows of q and k, each of which H / shared heads have; 0: no sharing */
    int decays; /* 0, 1 or F */
    int levels; /* 0: none, which all cores but that of levels compute */
    bool delta, sums_rows;
    int capability; /* 80, 90 ... */
    int multiprocessors;
    size_t shared_bytes; /* that a block can have */
};

struct sr_chunk_core {
    const char *name;
    bool makes_units; /* computes calls whose feature is unit or unit_smooth */
    bool (*fits)(const sr_chunk_shape &shape);
    /* Bytes of device memory that a call needs, at an address that is a multiple of 256. Nothing in
     * it lasts from forward to backward. */
    size_t (*workspace)(const sr_chunk_shape &shape, bool backward);
    srnn_status (*forward)(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                           cudaStream_t stream);
    srnn_status (*backward)(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                            cudaStream_t stream);
    /* NULL: 0. How many sums of gradients it leaves for each head of rows of q and k; a core that
     * adds them up also folds factors of values and a skip into its steps. 0: it does neither. */
    int (*parts)(const sr_chunk_shape &shape);
};

/* Additive writes with a gate per head or none; either write with a gate per channel; the delta
 * rule with a gate per head or none. */
extern const sr_chunk_core sr_chunk_core_head, sr_chunk_core_channel, sr_chunk_core_delta;
/* Additive writes with levels, and a gate per head or none. */
extern const sr_chunk_core sr_chunk_core_levels;

#endif
