/* computes.h (private): what the kernels of the CPU have in common to declare
 * (equation/support.h). */
#ifndef SR_ATTENTION_CPU_SHARED_COMPUTES_H
#define SR_ATTENTION_CPU_SHARED_COMPUTES_H

/* Prologue and epilogue, which all kernels share, compute every value of these. */
#define SR_CPU_PROLOGUE                                                             \
    "share=kv|qk|qk_tiled scale=inverse_sqrt|one value_gate=off|sigmoid|time_step " \
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth|norm_split|norm_cosine "

#define SR_CPU_EPILOGUE                                                                          \
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on " \
    "epsilon=any sink=none|zero|learned skip=none|head|channel|conv|bonus "                      \
    "output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "             \
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "                      \
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "              \
    "norm_epsilon=any"

#define SR_CPU_ROWS SR_CPU_PROLOGUE SR_CPU_EPILOGUE

#define SR_CPU_SCORES "score=exp|linear|taylor|power|sigmoid clamp=any score_bias=any "
#define SR_CPU_SERIES "score=linear|taylor|power "

/* What kernels that look at pairs one by one, or in tiles, do with them besides. */
#define SR_CPU_BAND "cap=any window=any "

/* What every pair of positions has alike: one decay per head on the weights. */
#define SR_CPU_PLAIN_PAIRS \
    "position=rope|none decay=none|learned|log_sigmoid|neg_softplus|given decay_divisor=any "

/* Every decay, of any width. */
#define SR_CPU_DECAYS                                                                       \
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any " \
    "decay_bound=any decay_width=head|channel decay_place=weight|logit "                    \
    "dt_width=head|channel|none "

#define SR_CPU_WRITES \
    "write=add|delta|removal write_range=1|2 write_width=head|channel write_gate=sigmoid|given "

/* What a cache of keys and values is kept for. Channel gates and removal have a state of fixed
 * size. */
#define SR_CPU_CACHED_WRITES "write=add|delta write_range=1|2 write_gate=sigmoid|given "

/* Linear scores through a state. A decay in the logits is that of the weights there. */
#define SR_CPU_LINEAR                                                            \
    "score=linear position=rope|none|rope_features " SR_CPU_DECAYS SR_CPU_WRITES \
    "levels=none|fenwick " SR_CPU_ROWS

/* The generic kernel: everything; and its cache. */
#define SR_CPU_GENERIC(writes)                                                              \
    SR_CPU_SCORES SR_CPU_BAND "position=rope|none|rope_features|rope_chunks " SR_CPU_DECAYS \
                              "pool=any " writes "levels=none|fenwick " SR_CPU_ROWS
#define SR_CPU_EVERYTHING SR_CPU_GENERIC(SR_CPU_WRITES)
#define SR_CPU_CACHED     SR_CPU_GENERIC(SR_CPU_CACHED_WRITES)

#endif
