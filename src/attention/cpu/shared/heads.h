/* heads.h (private): the map from heads of the core to heads of the operands, and constants shared
 * by prologue and epilogue. */
#ifndef SR_ATTENTION_CPU_SHARED_HEADS_H
#define SR_ATTENTION_CPU_SHARED_HEADS_H

#include "base/threads.h"
#include "equation/facts.h"

enum { DECAY_DIVISOR = 1024, TOKENS = 64 };
static const double NORM_FLOOR = 1e-12;

/* Number of heads of q, and the head of q and k that head h of the core reads. */
static inline int sr_query_heads(const srnn_problem *p) {
    return sr_shares_queries(&p->attention) ? p->Hkv : p->H;
}

static inline int sr_shared_head(const srnn_problem *p, int h) {
    switch (p->attention.share) {
    case SRNN_SHARE_KV:
        break;
    case SRNN_SHARE_QK:
        return h / (p->H / p->Hkv);
    case SRNN_SHARE_QK_TILED:
        return h % p->Hkv;
    }
    return h;
}

/* The head of the decay operands that head h of the core reads. */
static inline int sr_decay_head(const srnn_problem *p, int h) {
    return sr_writes_channels(&p->attention) ? sr_shared_head(p, h) : h;
}

/* The kv head that query head h reads. */
static inline int sr_value_head(const srnn_problem *p, int h) {
    return sr_shares_queries(&p->attention) ? h : h / (p->H / p->Hkv);
}

/* Size per head of the partial sums for the gradient of the skip's weights. */
static inline int sr_skip_partials(const srnn_problem *p) {
    return p->attention.skip == SRNN_SKIP_BONUS ? p->D : p->Dv;
}

/* Runs one task per TOKENS tokens of the batch. */
static inline void sr_for_tokens(sr_task *run, void *context, const srnn_problem *p) {
    const double work = (double)p->B * p->T * p->D * (p->H + p->Hkv);
    sr_parallel(run, context, (p->B * p->T + TOKENS - 1) / TOKENS,
                sr_workers_worth(work, p->threads));
}

#endif
