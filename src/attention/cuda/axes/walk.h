/* walk.h (private): linear scores, and series, through a state, token by token. */
#ifndef SR_ATTENTION_CUDA_AXES_WALK_H
#define SR_ATTENTION_CUDA_AXES_WALK_H

#include "attention/cuda/axes/call.h"
#include "attention/cuda/shared/multisets.h"

/* sum_j exp(C - C_j) feature(k_j) u_j^T over the tokens seen, of each level, head by head. Level 0
 * holds what came since the last of the merges that make room for a block of twice the length. */
struct axes_state {
    float *numbers;    /* (B Hkv, head): matrix (levels, features, Dv), column (levels, features) */
    double *reference; /* (B Hkv, levels, decays): C that the numbers of a level are of. Decode
                        * moves it with those that it writes; else it is that of the last token */
    int64_t head;      /* numbers of one */
    int64_t features;  /* of the score: F, or multisets of it */
    int levels;
    bool column; /* row sums are wanted */
};

/* Takes it from `layout`; p: the plan's core. */
axes_state sr_axes_state_place(const srnn_problem *p, sr_layout *layout);

/* Backward: states before chunks and tokens, and gradients of parts of the columns. */
struct axes_walk_scratch {
    float *chunks;  /* (B Hkv, column groups, chunks, F, 4) */
    float *tokens;  /* (B Hkv, column groups, chunk, F, 4) */
    float *d_q;     /* (slices, B, H, T, F) */
    float *d_k;     /* (slices, B, Hkv, T, F) */
    double *d_gate; /* (slices, B, Hkv, T, decays) */
    float *d_beta;  /* (slices, B, Hkv, T) */
};

axes_walk_scratch sr_axes_walk_place(const srnn_plan *plan, sr_layout *layout);

/* All levels become those after the last token, and those that hold nothing zero. position: tokens
 * that the state has; or, not NULL, where the device has them. */
srnn_status sr_axes_settle(const srnn_problem *p, const axes_state &state, int64_t position,
                           const int64_t *on_device, cudaStream_t stream);

/* C of the lowest level becomes that of all. */
srnn_status sr_axes_spread(const axes_state &state, int heads, int decays, cudaStream_t stream);

/* Numerators and row sums. With a carry the state is read and left behind the last token; without,
 * it is workspace. */
srnn_status sr_axes_walk_forward(const sr_axes_call &call, const axes_state &state,
                                 const sr_feature_table &table, cudaStream_t stream);

/* Decode: whether a call of one token with a carry can do without the prologue; and the numerators
 * and row sums, the state and the carry's decays behind the token. */
bool sr_axes_takes_one(const sr_axes_call &call);
srnn_status sr_axes_take_one(const sr_axes_call &call, const axes_state &state,
                             cudaStream_t stream);

/* True if sr_axes_walk_backward computes it: linear scores without levels. */
bool sr_axes_walks_back(const srnn_attention *attention);

srnn_status sr_axes_walk_backward(const sr_axes_call &call, const axes_walk_scratch &scratch,
                                  cudaStream_t stream);

#endif
