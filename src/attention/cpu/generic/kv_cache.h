/* kv_cache.h (private): the KV cache of the generic kernel: any equation, one token at a time. */
#ifndef SR_ATTENTION_CPU_GENERIC_KV_CACHE_H
#define SR_ATTENTION_CPU_GENERIC_KV_CACHE_H

#include "attention/cpu/shared/prologue.h"

#define kv_cache_feed         SR_ISA_REAL(sr_kv_cache_feed)
#define kv_cache_feed_scratch SR_ISA_REAL(sr_kv_cache_feed_scratch)

/* The entries of one kv head: one per token, or with pool one per chunk (its last token). With a
 * window they form a ring: token t is entry t mod capacity. */
typedef struct kv_cache_rows {
    real *keys, *rotated; /* (entries, D): the same array if nothing is rotated */
    real *values;         /* (entries, Dv) */
    double *decay;        /* (entries, decay values per token) */
    real *beta;           /* (entries): delta rule only */
    double *u;            /* (entries, Dv): what the delta rule writes */
    double *weights;      /* (entries): scratch for the weights of a row */
} kv_cache_rows;

/* Number of entries after `tokens` tokens; with a window, those that the next token can see. */
int64_t SR_ISA_REAL(sr_kv_cache_entries)(const srnn_problem *core, int64_t tokens);

/* Lays out entries for `capacity` tokens, and one for a token that is not stored. */
kv_cache_rows SR_ISA_REAL(sr_kv_cache_place)(const srnn_problem *core, int64_t capacity,
                                             sr_layout *layout);

/* Like flash_feed. */
size_t kv_cache_feed_scratch(const srnn_plan *plan);
srnn_status kv_cache_feed(const sr_attention_call *call, char *cache, int64_t capacity,
                          sr_carry *carry);

#endif
