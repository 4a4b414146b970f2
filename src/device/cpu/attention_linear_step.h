/* attention_linear_step.h (private): what both halves of the linear kernel share: the rows of a chunk, and one
 * step of the state. */
#ifndef SR_CPU_ATTENTION_LINEAR_STEP_H
#define SR_CPU_ATTENTION_LINEAR_STEP_H

#include "device/cpu/attention_linear.h"

#include <math.h>
#include <string.h>

/* Rows of one chunk. Where nothing is turned, both kinds of keys and queries are the same. */
typedef struct linear_room {
    real *keys, *plain_keys;       /* (LINEAR_CHUNK, stride of D) */
    real *queries, *plain_queries; /* (heads of a group, LINEAR_CHUNK, stride of D) */
    real *values;                  /* (LINEAR_CHUNK, stride of Dv) */
    real *factor;                  /* (LINEAR_CHUNK, stride of D) */
    real *error, *u;               /* (LINEAR_CHUNK, levels, stride of Dv) */
} linear_room;

static inline linear_room linear_room_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t group = p->H / p->Hkv, d = row_stride(p->D), dv = row_stride(p->Dv);
    const bool turned = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    linear_room room = {
        .keys = take_reals(layout, LINEAR_CHUNK, d),
        .queries = take_reals(layout, group * LINEAR_CHUNK, d),
        .values = take_reals(layout, LINEAR_CHUNK, dv),
        .factor = take_reals(layout, LINEAR_CHUNK, d),
        .error = take_reals(layout, LINEAR_CHUNK * linear_levels(p), dv),
        .u = take_reals(layout, LINEAR_CHUNK * linear_levels(p), dv),
    };
    room.plain_keys = turned ? take_reals(layout, LINEAR_CHUNK, d) : room.keys;
    room.plain_queries = turned ? take_reals(layout, group * LINEAR_CHUNK, d) : room.queries;
    return room;
}

/* Tokens at .. at+count-1 of a document, of one head of keys and values. */
typedef struct linear_chunk {
    const sr_edges *edges;
    const sr_attention_call *call;
    const sr_span *span;
    int kv;
    int64_t position; /* tokens before the document's part in this call */
    int64_t at, count;
} linear_chunk;

static inline const srnn_problem *linear_problem(const linear_chunk *c) {
    return &c->call->plan->core;
}

static inline linear_walk linear_walk_of(const linear_chunk *c) {
    const srnn_problem *p = linear_problem(c);
    const int64_t first = sr_row_index(p, p->Hkv, c->span->b, c->kv, c->span->start);
    return (linear_walk){
        .p = p,
        .ld = row_stride(p->Dv),
        .levels = linear_levels(p),
        .decay = c->edges->decay ? c->edges->decay + first * linear_decays(p) : NULL,
        .sums = sr_needs_row_sum(&p->attention),
        .delta = p->attention.write == SRNN_WRITE_DELTA,
        .first = c->position == 0,
    };
}

static inline void linear_state_clear(const linear_state *state, const srnn_problem *p) {
    const size_t rows = (size_t)(linear_levels(p) * p->D);
    memset(state->matrix, 0, rows * (size_t)row_stride(p->Dv) * sizeof(real));
    memset(state->column, 0, rows * sizeof(real));
}

/* Sets the count, and loads keys and values. */
static inline void linear_load_keys(const linear_room *room, linear_chunk *c) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv), left = c->span->length - c->at;
    c->count = left < LINEAR_CHUNK ? left : LINEAR_CHUNK;
    const sr_rows rows = {c->span->b, c->kv, c->span->start + c->at, c->count};
    SR_ISA_REAL(sr_edges_key_rows)(room->plain_keys, d, c->edges, c->call, rows);
    memset(room->values, 0, (size_t)(c->count * dv) * sizeof(real));
    SR_ISA_REAL(sr_edges_value_rows)(room->values, dv, c->edges, c->call, rows);
    if (room->keys == room->plain_keys)
        return;
    memcpy(room->keys, room->plain_keys, (size_t)(c->count * d) * sizeof(real));
    SR_ISA_REAL(sr_edges_turn)(room->keys, d, c->edges, c->call, rows, false);
}

/* Loads the queries of head g of the group. */
static inline void linear_load_queries(const linear_room *room, const linear_chunk *c, int g) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D), from = g * LINEAR_CHUNK * d;
    const sr_rows rows = {c->span->b, c->kv * (p->H / p->Hkv) + g, c->span->start + c->at,
                          c->count};
    SR_ISA_REAL(sr_edges_query_rows)(room->plain_queries + from, d, c->edges, c->call, rows);
    if (room->queries == room->plain_queries)
        return;
    memcpy(room->queries + from, room->plain_queries + from, (size_t)(c->count * d) * sizeof(real));
    SR_ISA_REAL(sr_edges_turn)(room->queries + from, d, c->edges, c->call, rows, false);
}

static inline linear_token linear_token_at(const linear_room *room, const linear_chunk *c,
                                           int64_t r) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv), levels = linear_levels(p);
    const int64_t row = sr_row_index(p, p->Hkv, c->span->b, c->kv, c->span->start + c->at + r);
    return (linear_token){
        .key = room->keys + r * d,
        .plain_key = room->plain_keys + r * d,
        .value = room->values + r * dv,
        .beta = c->edges->beta ? c->edges->beta[row] : (real)1,
        .position = c->position + c->at + r,
        .at = c->at + r,
        .factor = room->factor + r * d,
        .error = room->error + r * levels * dv,
        .u = room->u + r * levels * dv,
    };
}

typedef struct linear_query {
    const real *query, *plain; /* (D) */
    const double *levels;      /* or NULL */
    int64_t position;
} linear_query;

static inline linear_query linear_query_at(const linear_room *room, const linear_chunk *c, int g,
                                           int64_t r) {
    const srnn_problem *p = linear_problem(c);
    const int64_t from = (g * LINEAR_CHUNK + r) * row_stride(p->D);
    const int64_t row =
        sr_row_index(p, p->H, c->span->b, c->kv * (p->H / p->Hkv) + g, c->span->start + c->at + r);
    return (linear_query){.query = room->queries + from,
                          .plain = room->plain_queries + from,
                          .levels = c->edges->level ? c->edges->level + row * p->levels : NULL,
                          .position = c->position + c->at + r};
}

/* What the state is multiplied by before the token: exp(C_t - C of the token before), per channel. */
static inline void linear_factors(const linear_walk *x, const linear_state *state,
                                  const linear_token *t) {
    const int64_t numbers = linear_decays(x->p), D = x->p->D;
    for (int64_t c = 0; c < numbers; c++) {
        const double own = x->decay[t->at * numbers + c];
        t->factor[c] = t->position == 0 ? (real)1 : (real)exp(own - state->reference[c]);
        state->reference[c] = own;
    }
    for (int64_t c = numbers; c < D; c++)
        t->factor[c] = numbers ? t->factor[0] : (real)1;
}

/* The lower levels go into `merged`. */
static inline void linear_merge(const linear_walk *x, const linear_state *state, int merged) {
    const int64_t numbers = x->p->D * x->ld, D = x->p->D;
    real *matrix = state->matrix + merged * numbers, *column = state->column + merged * D;
    memset(matrix, 0, (size_t)numbers * sizeof *matrix);
    memset(column, 0, (size_t)D * sizeof *column);
    for (int level = 0; level < merged; level++) {
        linear_add(matrix, 1, state->matrix + level * numbers, numbers);
        for (int64_t c = 0; c < D; c++)
            column[c] += state->column[level * D + c];
        memset(state->matrix + level * numbers, 0, (size_t)numbers * sizeof *matrix);
        memset(state->column + level * D, 0, (size_t)D * sizeof *column);
    }
}

/* error and u of a level, whose state has decayed: e = v - S^T k, u = beta e; v is that of level 0. */
static inline void linear_correct(const linear_walk *x, const real *matrix, const linear_token *t,
                                  int64_t level) {
    real *error = t->error + level * x->ld, *u = t->u + level * x->ld;
    if (level == 0)
        memcpy(error, t->value, (size_t)x->ld * sizeof *error);
    else
        memset(error, 0, (size_t)x->ld * sizeof *error);
    for (int64_t c = 0; x->delta && c < x->p->D; c++)
        linear_add(error, -t->key[c], matrix + c * x->ld, x->ld);
    for (int64_t d = 0; d < x->ld; d += LANES)
        vec_store(u + d, t->beta * vec_load(error + d));
}

/* Decays the states of the active levels; with levels, merges first. */
static inline int linear_decay(const linear_walk *x, const linear_state *state,
                               const linear_token *t, int list[SR_LEVELS_MAX]) {
    const int64_t D = x->p->D;
    const int merged = linear_merged(x, t->position), active = linear_active(x, t->position, list);
    if (merged)
        linear_merge(x, state, merged);
    linear_factors(x, state, t);
    for (int n = 0; x->decay && n < active; n++)
        for (int64_t c = 0; c < D; c++) {
            real *row = state->matrix + (list[n] * D + c) * x->ld;
            for (int64_t d = 0; d < x->ld; d += LANES)
                vec_store(row + d, t->factor[c] * vec_load(row + d));
            state->column[list[n] * D + c] *= t->factor[c];
        }
    return active;
}

/* Writes the token into states that have decayed. */
static inline void linear_write(const linear_walk *x, const linear_state *state,
                                const linear_token *t, const int *list, int active) {
    const int64_t D = x->p->D;
    for (int n = 0; n < active && (n == 0 || x->delta); n++) {
        real *matrix = state->matrix + list[n] * D * x->ld;
        linear_correct(x, matrix, t, list[n]);
        for (int64_t c = 0; c < D; c++)
            linear_add(matrix + c * x->ld, t->key[c], t->u + list[n] * x->ld, x->ld);
    }
    for (int64_t c = 0; x->sums && c < D; c++)
        state->column[c] += t->plain_key[c];
}

static inline void linear_step(const linear_walk *x, const linear_state *state,
                               const linear_token *t) {
    int list[SR_LEVELS_MAX];
    const int active = linear_decay(x, state, t, list);
    linear_write(x, state, t, list, active);
}

#endif
