/* document.h (private): one document of a problem as terms on a tape, step by step through the
 * equation. */
#ifndef SR_VERIFY_ORACLE_DOCUMENT_H
#define SR_VERIFY_ORACLE_DOCUMENT_H

#include "verify/oracle/tape.h"

#include <math.h>

/* Where the derivative with respect to a term is added. */
typedef struct sr_target {
    sr_term term;
    double *gradient;
} sr_target;

/* Numbers of heads, and which of them head h reads. */
typedef struct sr_heads {
    int64_t query, key, value; /* of the operands; after pooling as many keys as values */
} sr_heads;

/* One document: its operands as terms, and the results of each step. */
typedef struct sr_document {
    const srnn_problem *problem;
    const srnn_attention *a;
    sr_tape *tape;
    int64_t b, start, length;
    int64_t width;       /* of a feature: D or 2 D */
    int64_t levels;      /* width of a level gate */
    uint64_t state_seed; /* 0: the state is not rounded */
    double scale;        /* of numbers that are rounded */
    sr_heads heads;
    /* the smallest distance from a kink so far, relative to the kink's position; 0 does not
     * count */
    double clearance;
    sr_target *targets;
    int64_t target_count, target_workspace;

    /* Operands. q and k become features; v is multiplied by its factors. */
    sr_term *q;                          /* (heads.query, length, width) */
    sr_term *k;                          /* (heads.key, length, width) */
    sr_term *v;                          /* (heads.value, length, Dv) */
    sr_term *value_gate;                 /* (heads.value, length) */
    sr_term *write_gate;                 /* the same, or (heads.value, length, Dv) */
    sr_term *erase_gate;                 /* (heads.key, length, D) */
    sr_term *removal_key, *removal_gate; /* the same; n and b once normalised */
    sr_term *output_gate;                /* (H, length) or (H, length, Dv) */
    /* (heads.value, length) or (.., D): z, of heads of k with channel gates, then C */
    sr_term *decay;
    sr_term *level_gate;                /* (H, length, levels): z, then lambda */
    sr_term *pool_gate;                 /* (heads.value, length, max(D, Dv)) */
    sr_term *skip;                      /* (heads.value, length, Dv) */
    sr_term *norm_weight, *norm_bias;   /* (Dv) or (H, Dv) */
    sr_term *value_power;               /* (heads.value) */
    sr_term *a_log, *dt_bias;           /* (heads of the decay); the same or (.., D) */
    sr_term *skip_weight, *level_scale; /* (H), (H, Dv) or (H, D); (H, levels) */
    sr_term *sinks;                     /* (H) */

    /* Results of the steps. */
    sr_term *plain_v;               /* v as it came */
    sr_term *plain_q, *plain_k;     /* q and k before the features; for a bonus */
    sr_term *rotated_q, *rotated_k; /* rotated features, or q and k themselves */
    sr_term *signed_k;  /* k with one sign per channel, for the error of a rounded state; or NULL */
    sr_term *u;         /* (heads.value, length, Dv): the summed values; without levels */
    sr_term *removed;   /* (heads.value, length, Dv): e, with write=removal */
    sr_term *kappa;     /* (length, length) of one head: beta_j kappa_jm; with levels */
    int64_t kappa_head; /* whose */
    sr_term *gate_sum;  /* (H, length): sum_{m<=i} exp(output gate_m) */
    sr_term *weights, *sum_weights; /* (length) of one row: of the numerator, of the row sum */
    sr_term *row_sums;              /* (H, length) */
    double reduction; /* the logarithm of the number that the weights of a row were divided by */
    sr_term *scratch; /* (H Dv) */
    sr_term *o;       /* (H, length, Dv) */
} sr_document;

/* One query: row i of head h, and the heads of queries, keys and values that it reads. */
typedef struct sr_query {
    int64_t h, i, query, key, value;
} sr_query;

/* The head of keys that belongs to a head of values. */
int64_t sr_document_key_head(const sr_document *x, int64_t value);

sr_query sr_document_query(const sr_document *x, int64_t h, int64_t i);

/* ---- helpers of all parts */

static inline sr_terms sr_each(const sr_term *terms) {
    return (sr_terms){terms, 1};
}

static inline double sr_value_of(const sr_document *x, sr_term a) {
    return sr_tape_value(x->tape, a);
}

static inline sr_term sr_number(const sr_document *x, double value) {
    return sr_tape_number(x->tape, value);
}

sr_term sr_exponential(const sr_document *x, sr_term a);
sr_term sr_sigmoid_term(const sr_document *x, sr_term a);
sr_term sr_softplus_term(const sr_document *x, sr_term a);
sr_term sr_square_root(const sr_document *x, sr_term a);

/* ---- the parts, in execution order */

/* Pools, rotates and makes features, decays and value factors of the operands. */
srnn_status sr_document_prepare(sr_document *x);

/* u of the delta rule, where it is the same for all rows. */
void sr_document_write(sr_document *x, int64_t value_head);

/* x->weights and x->sum_weights (j <= i) of a query, rescaled by one number where that cancels. */
void sr_document_weigh(sr_document *x, sr_query at);

/* o from the weights, then the norm and the output gate. */
void sr_document_attend(sr_document *x, sr_query at);
void sr_document_finish(sr_document *x);

#endif
