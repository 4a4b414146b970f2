/* ring_steps.h (private): which part computes what in each step of a ring, and in which columns
 * what visits travels. */
#ifndef SR_MODEL_LAYER_CONTEXT_RING_STEPS_H
#define SR_MODEL_LAYER_CONTEXT_RING_STEPS_H

#include "equation/operands.h"
#include "model/layer/context/part.h"

/* How many parts of `tokens` tokens back a token sees at most. */
static inline int reach_of(const srnn_attention *a, int tokens, int parts) {
    const int64_t window = a->window, seen = window < 2 ? 0 : (window - 2) / tokens + 1;
    return window && seen < parts - 1 ? (int)seen : parts - 1;
}

/* Some parts of a row: their number and the reach. */
typedef struct circle {
    int parts, reach;
} circle;

static inline bool meets(circle c, int part, int distance) {
    return part >= 0 && part < c.parts && distance <= c.reach;
}

/* In step s: the part whose keys `part` computes; whose queries; who computes its keys; who its
 * queries; -1: none. */
static inline int keys_in(circle c, int part, int s) {
    return meets(c, part - s, s) ? part - s : -1;
}
static inline int queries_in(circle c, int part, int s) {
    return meets(c, part + c.parts - s, c.parts - s) ? part + c.parts - s : -1;
}
static inline int reader_in(circle c, int part, int s) {
    return meets(c, part + s, s) ? part + s : -1;
}
static inline int helper_in(circle c, int part, int s) {
    return meets(c, part - c.parts + s, c.parts - s) ? part - c.parts + s : -1;
}

/* Whether the queries of a pair of parts are divided in step s. */
static inline bool is_halved(circle c, int s) {
    return 2 * s == c.parts;
}

/* Tokens of a part of a row. */
typedef struct extent {
    int64_t start, tokens;
} extent;

static inline extent extent_of(int T, int index, int parts) {
    const int64_t start = sr_row_part_start(T, index, parts);
    return (extent){start, sr_row_part_start(T, index + 1, parts) - start};
}

/* Of a part's queries, those that its helper of a step computes. */
static inline extent visiting(extent queries, bool halved) {
    const int64_t kept = halved ? queries.tokens / 2 : 0;
    return (extent){queries.start + kept, queries.tokens - kept};
}

/* Columns of the decays of one token: a double for each head of keys. */
static inline int64_t decay_columns(const srnn_problem *p) {
    return sr_operand_used(SR_OPERAND_DECAY, &p->attention)
               ? p->Hkv * (int64_t)(sizeof(double) / sizeof(float))
               : 0;
}

/* The same of running sums of output gates, for each query head; at cuts alone. */
static inline int64_t sum_columns(const srnn_problem *p) {
    const bool sums = p->attention.normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
                      p->attention.output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
    return sums ? p->H * (int64_t)(sizeof(double) / sizeof(float)) : 0;
}

static inline int shortest_part(int T, int parts) {
    return T / parts;
}

/* Whether this part helps others, or is helped, in any step. */
static inline bool in_any_step(circle c, int part, int (*other)(circle c, int part, int s)) {
    for (int s = 1; 2 * s <= c.parts; s++)
        if (other(c, part, s) >= 0)
            return true;
    return false;
}

#endif
