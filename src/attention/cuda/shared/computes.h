/* computes.h (private): the axes and values that the GPU kernels have in common
 * (equation/support.h). */
#ifndef SR_ATTENTION_CUDA_SHARED_COMPUTES_H
#define SR_ATTENTION_CUDA_SHARED_COMPUTES_H

/* Prologue and epilogue, which all kernels share. */
#define SR_CUDA_ROWS                                                                             \
    "position=rope|none scale=inverse_sqrt|one feature=identity|relu|elu1|unit|unit_heads "      \
    "value_gate=off|sigmoid "                                                                    \
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on " \
    "epsilon=any output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid " \
    "norm=none|layer|rms|l2|l2_scaled "

#define SR_CUDA_SCORES "score=exp|linear|taylor|power clamp=any "
#define SR_CUDA_SERIES "score=linear|taylor|power "

/* One decay per head, on the weights. */
#define SR_CUDA_DECAY "decay=none|learned "

/* What the cores on tensor cores make of pairs: a decay per head of any kind, on weights or on
 * logits, and windows; and around rows besides SR_CUDA_ROWS. */
#define SR_CUDA_FAST_SCORES \
    "score=exp|linear|taylor|power|sigmoid clamp=any score_bias=any cap=any window=any "
#define SR_CUDA_FAST_DECAYS                                                                 \
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any " \
    "decay_bound=any decay_place=weight|logit dt_width=head|none "
#define SR_CUDA_FAST_ROWS SR_CUDA_ROWS "sink=none|zero|learned "

/* Every axis and value: the kernels of axes/. */
#define SR_CUDA_ALL_ROWS                                                                         \
    "share=kv|qk|qk_tiled scale=inverse_sqrt|one value_gate=off|sigmoid|time_step "              \
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth|norm_split|norm_cosine "             \
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on " \
    "epsilon=any sink=none|zero|learned skip=none|head|channel|conv|bonus "                      \
    "output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "             \
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "                      \
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "              \
    "norm_epsilon=any"

#define SR_CUDA_DECAYS                                                                      \
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any " \
    "decay_bound=any decay_width=head|channel decay_place=weight|logit "                    \
    "dt_width=head|channel|none "

#define SR_CUDA_WRITES "write=add|delta write_range=1|2 write_gate=sigmoid|given "

#define SR_CUDA_ALL_SCORES \
    "score=exp|linear|taylor|power|sigmoid clamp=any score_bias=any cap=any window=any "

#define SR_CUDA_EVERYTHING                                                                    \
    SR_CUDA_ALL_SCORES                                                                        \
    "position=rope|none|rope_features|rope_chunks " SR_CUDA_DECAYS "pool=any " SR_CUDA_WRITES \
    "levels=none|fenwick " SR_CUDA_ALL_ROWS

/* Of those, the ones with a state of fixed size (srnn_attention_has_state says which
 * combinations). */
#define SR_CUDA_STATE                                                 \
    SR_CUDA_SERIES                                                    \
    "position=rope|none|rope_features " SR_CUDA_DECAYS SR_CUDA_WRITES \
    "levels=none|fenwick " SR_CUDA_ALL_ROWS

#define SR_CUDA_KV_CACHE        SR_CUDA_SCORES SR_CUDA_DECAY SR_CUDA_ROWS
#define SR_CUDA_RECURRENT_STATE SR_CUDA_SERIES SR_CUDA_DECAY SR_CUDA_ROWS

#endif
