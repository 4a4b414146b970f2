/* state.h: KV cache and recurrent state of attention on a GPU. */
#ifndef SR_ATTENTION_CUDA_DECODE_STATE_H
#define SR_ATTENTION_CUDA_DECODE_STATE_H

#include "attention/cuda/shared/lanes.h"

/* The two kinds of state: KV cache, and recurrent state of fixed size. */
extern const sr_state_kernel sr_cuda_state_kv_cache_f32, sr_cuda_state_kv_cache_bf16;
extern const sr_state_kernel sr_cuda_state_recurrent_f32, sr_cuda_state_recurrent_bf16;

/* Split-K partials: sums over parts of the keys of a row, for rows (B, H, T). */
struct sr_partials {
    float *x;             /* (rows, parts, Dv): numerators */
    float *sum, *maximum; /* (rows, parts); the maximum in units of the score's logarithm */
    int parts;
};

/* The KV cache, for `capacity` tokens. */
template <class N> struct sr_kv_cache {
    N *keys, *values; /* (B Hkv, capacity, D or Dv) */
    double *decay;    /* (B Hkv, capacity), or NULL */
    /* (B H + 1): blocks that are done with a row, and with the feed; 0 between feeds */
    int *arrived;
    int64_t capacity;
};

/* Whether its weights are exponentials of dot products alone, relative to the running maximum. */
template <class N>
inline bool sr_is_exponential(const sr_score_rule &rule, const sr_kv_cache<N> &memory) {
    return rule.kind == SR_CLASS_EXPONENTIAL && rule.maximum && !memory.decay;
}

/* A feed of one token: applies RoPE, appends it, attends, and advances the position. */
template <class N>
srnn_status sr_attend_one(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                          sr_partials partials, const sr_rope_angles &rope,
                          const srnn_device *device);

/* Parts of a row of such a feed, at most. */
enum { SR_ONE_PARTS = 8 };

/* Partials of `count` parts in all. */
sr_partials sr_partials_place(const srnn_problem *problem, int64_t count, sr_layout *layout);

/* Combines the parts and writes the outputs; then advances the state's position. */
template <class N>
srnn_status sr_partials_finish(const sr_attention_view<N> &call, const sr_partials &partials,
                               cudaStream_t stream);

#endif
