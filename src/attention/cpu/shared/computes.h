/* computes.h (private): capability declarations shared by the CPU kernels (equation/support.h). */
#ifndef SR_ATTENTION_CPU_SHARED_COMPUTES_H
#define SR_ATTENTION_CPU_SHARED_COMPUTES_H

/* Prologue and epilogue are shared by all kernels and compute every value of these axes. */
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

/* In addition, for kernels that compute pairs, one by one or in tiles. */
#define SR_CPU_BAND "cap=any window=any "

/* In tiles of pairs: at most one decay per head, on weights or logits, and no axis that applies to
 * some pairs only. */
#define SR_CPU_TILES                                                                             \
    SR_CPU_SCORES SR_CPU_BAND                                                                    \
        "position=rope|none decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given " \
        "decay_divisor=any decay_bound=any decay_place=weight|logit "                            \
        "dt_width=head|none " SR_CPU_ROWS

/* Plain pairs: at most one decay per head, on the weights. */
#define SR_CPU_PLAIN_PAIRS \
    "position=rope|none decay=none|learned|log_sigmoid|neg_softplus|given decay_divisor=any "

/* Every decay, of either width. */
#define SR_CPU_DECAYS                                                                       \
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any " \
    "decay_bound=any decay_width=head|channel decay_place=weight|logit "                    \
    "dt_width=head|channel|none "

#define SR_CPU_WRITES \
    "write=add|delta|removal write_range=1|2 write_width=head|channel write_gate=sigmoid|given "

/* Writes that a KV cache supports. Channel gates and removal have a recurrent state instead. */
#define SR_CPU_CACHED_WRITES "write=add|delta write_range=1|2 write_gate=sigmoid|given "

/* Linear scores through a state, where decay on the logits equals decay on the weights. */
#define SR_CPU_LINEAR                                                            \
    "score=linear position=rope|none|rope_features " SR_CPU_DECAYS SR_CPU_WRITES \
    "levels=none|fenwick " SR_CPU_ROWS

/* The generic kernel computes everything; its KV cache all but some writes. */
#define SR_CPU_GENERIC(writes)                                                              \
    SR_CPU_SCORES SR_CPU_BAND "position=rope|none|rope_features|rope_chunks " SR_CPU_DECAYS \
                              "pool=any " writes "levels=none|fenwick " SR_CPU_ROWS
#define SR_CPU_EVERYTHING SR_CPU_GENERIC(SR_CPU_WRITES)
#define SR_CPU_CACHED     SR_CPU_GENERIC(SR_CPU_CACHED_WRITES)

#endif
