/* kv_cache.h (private): keys and values kept for whatever the equation may be, one token at a
 * time. */
#ifndef SR_ATTENTION_CPU_GENERIC_KV_CACHE_H
#define SR_ATTENTION_CPU_GENERIC_KV_CACHE_H

#include "attention/cpu/shared/prologue.h"

#define kv_cache_feed         SR_ISA_REAL(sr_kv_cache_feed)
#define kv_cache_feed_scratch SR_ISA_REAL(sr_kept_feed_scratch)

/* The entries of one head of keys and values: tokens, or with pool the last ones of chunks. With a
 * window they are a ring: token t is entry t mod capacity. */
typedef struct kv_cache_rows {
    real *keys, *rotated; /* (entries, D): one array where nothing is rotated */
    real *values;         /* (entries, Dv) */
    double *decay;        /* (entries, numbers of a decay) */
    real *beta;           /* (entries), the delta rule only */
    double *u;            /* (entries, Dv): what it writes */
    double *weights;      /* (entries): room for a row */
} kv_cache_rows;

/* Number of entries after `tokens` tokens; with a window those that the next token could see. */
int64_t SR_ISA_REAL(sr_kv_cache_entries)(const srnn_problem *core, int64_t tokens);

/* Room for a capacity of tokens, and one entry that does not stay. */
kv_cache_rows SR_ISA_REAL(sr_kv_cache_place)(const srnn_problem *core, int64_t capacity,
                                             sr_layout *layout);

/* As flash_feed. */
size_t kv_cache_feed_scratch(const srnn_plan *plan);
srnn_status kv_cache_feed(const sr_attention_call *call, char *cache, int64_t capacity,
                          sr_carry *carry);

#endif
