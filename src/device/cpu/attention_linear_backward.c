/* attention_linear_backward.c: linear scores through a state, backward.
 *
 * The states before chunks are kept on a first walk; then, from the last chunk to the first, those before every
 * token of it are made once more, and the gradient R of the state walks back over them. */
#include "base/threads.h"
#include "device/cpu/attention_linear.h"
#include "device/cpu/attention_linear_step.h"

typedef struct workspace {
    linear_room room;
    linear_state state, gradient;      /* gradient: R */
    linear_state *before;              /* (chunks): states before each */
    linear_state *decayed;             /* (LINEAR_CHUNK): states that tokens were written into */
    real *d_keys, *d_plain_keys;       /* (LINEAR_CHUNK, stride of D) */
    real *d_queries, *d_plain_queries; /* (heads of a group, LINEAR_CHUNK, stride of D) */
    real *d_values;                    /* (LINEAR_CHUNK, stride of Dv) */
    real *d_u;                         /* (stride of Dv) */
    real *d_numerator;                 /* (stride of Dv) */
    double *later;                     /* (D): gradient of the logarithm of the next token's gate */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_edges edges;
    workspace *workers;
} context;

static linear_state *take_states(const srnn_problem *p, int64_t count, sr_layout *layout) {
    linear_state *states = sr_layout_take(layout, (size_t)count, sizeof *states);
    for (int64_t n = 0; n < count; n++) {
        const linear_state state = linear_state_place(p, layout);
        if (states)
            states[n] = state;
    }
    return states;
}

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv), group = p->H / p->Hkv;
    const bool turned = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    context x = {0};
    SR_ISA_REAL(sr_edges_place)(&x.edges, plan, true, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .room = linear_room_place(p, layout),
            .state = linear_state_place(p, layout),
            .gradient = linear_state_place(p, layout),
            .before = take_states(p, (p->T + LINEAR_CHUNK - 1) / LINEAR_CHUNK, layout),
            .decayed = take_states(p, LINEAR_CHUNK, layout),
            .d_keys = take_reals(layout, LINEAR_CHUNK, d),
            .d_queries = take_reals(layout, group * LINEAR_CHUNK, d),
            .d_values = take_reals(layout, LINEAR_CHUNK, dv),
            .d_u = take_reals(layout, 1, dv),
            .d_numerator = take_reals(layout, 1, dv),
            .later = sr_layout_take(layout, (size_t)p->D, sizeof(double)),
        };
        w.d_plain_keys = turned ? take_reals(layout, LINEAR_CHUNK, d) : w.d_keys;
        w.d_plain_queries = turned ? take_reals(layout, group * LINEAR_CHUNK, d) : w.d_queries;
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t linear_backward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

static void copy_state(const linear_state *to, const linear_state *from, const srnn_problem *p) {
    const size_t rows = (size_t)(linear_levels(p) * p->D);
    memcpy(to->matrix, from->matrix, rows * (size_t)row_stride(p->Dv) * sizeof(real));
    memcpy(to->column, from->column, rows * sizeof(real));
    if (linear_decays(p))
        memcpy(to->reference, from->reference, (size_t)linear_decays(p) * sizeof(double));
}

/* First walk: the state before every chunk. */
static void keep_states(const workspace *w, linear_chunk *c, const linear_walk *walk) {
    linear_state_clear(&w->state, walk->p);
    for (c->at = 0; c->at < c->span->length; c->at += c->count) {
        copy_state(&w->before[c->at / LINEAR_CHUNK], &w->state, walk->p);
        linear_load_keys(&w->room, c);
        for (int64_t r = 0; r < c->count; r++) {
            const linear_token token = linear_token_at(&w->room, c, r);
            linear_step(walk, &w->state, &token);
        }
    }
}

/* The states that the tokens of a chunk are written into. */
static void make_states(const workspace *w, linear_chunk *c, const linear_walk *walk) {
    copy_state(&w->state, &w->before[c->at / LINEAR_CHUNK], walk->p);
    for (int64_t r = 0; r < c->count; r++) {
        const linear_token token = linear_token_at(&w->room, c, r);
        int list[SR_LEVELS_MAX];
        const int active = linear_decay(walk, &w->state, &token, list);
        copy_state(&w->decayed[r], &w->state, walk->p);
        linear_write(walk, &w->state, &token, list, active);
    }
}

/* One query of head h: adds to R and to the gradients of the levels, and gives d_queries. */
static void query_backward(const context *x, const workspace *w, const linear_chunk *c,
                           const linear_walk *walk, int g, int64_t r) {
    const srnn_problem *p = walk->p;
    const int64_t D = p->D, d = row_stride(D);
    const linear_query q = linear_query_at(&w->room, c, g, r);
    const linear_token t = linear_token_at(&w->room, c, r);
    const int h = c->kv * (p->H / p->Hkv) + g;
    const int64_t at = sr_row_index(p, p->H, c->span->b, h, c->span->start + t.at);
    const real d_row_sum = walk->sums ? x->edges.d_row_sum[at] : 0;
    real *d_query = w->d_queries + (g * LINEAR_CHUNK + r) * d;
    real *d_plain = w->d_plain_queries + (g * LINEAR_CHUNK + r) * d;
    int list[SR_LEVELS_MAX];
    const int active = linear_active(walk, t.position, list);
    for (int n = 0; x->edges.d_level && n < p->levels; n++)
        x->edges.d_level[at * p->levels + n] = 0.0;
    memset(w->d_numerator, 0, (size_t)walk->ld * sizeof(real));
    memcpy(w->d_numerator, x->edges.d_numerator + at * p->Dv, (size_t)p->Dv * sizeof(real));
    memset(d_plain, 0, (size_t)D * sizeof(real));
    memset(d_query, 0, (size_t)D * sizeof(real));
    for (int n = 0; n < active; n++) {
        const int64_t level = list[n];
        const real weight = q.levels ? (real)q.levels[level] : (real)1;
        const bool written = level == 0 || walk->delta;
        const real along =
            written ? linear_dot(w->d_numerator, t.u + level * walk->ld, walk->ld) : 0;
        double d_level = 0.0;
        for (int64_t e = 0; e < D; e++) {
            const int64_t row = level * D + e;
            /* S after the write is what was decayed and k u^T */
            const real dot =
                linear_dot(w->decayed[r].matrix + row * walk->ld, w->d_numerator, walk->ld) +
                (written ? t.key[e] * along : 0);
            d_query[e] += weight * dot;
            d_level += (double)(q.query[e] * dot);
            linear_add(w->gradient.matrix + row * walk->ld, weight * q.query[e], w->d_numerator,
                       walk->ld);
            if (!walk->sums)
                continue;
            const real column = w->decayed[r].column[row] + (level == 0 ? t.plain_key[e] : 0);
            d_plain[e] += weight * d_row_sum * column;
            d_level += (double)(q.plain[e] * d_row_sum * column);
            w->gradient.column[row] += weight * q.plain[e] * d_row_sum;
        }
        if (x->edges.d_level)
            x->edges.d_level[at * p->levels + level] = d_level;
    }
}

/* Gradients of a token's key, value, beta and gate from R, which goes on to the state before it. */
static void token_backward(const context *x, const workspace *w, const linear_chunk *c,
                           const linear_walk *walk, int64_t r) {
    const srnn_problem *p = walk->p;
    const int64_t D = p->D, ld = walk->ld, d = row_stride(D), numbers = linear_decays(p);
    const linear_token t = linear_token_at(&w->room, c, r);
    real *d_key = w->d_keys + r * d, *d_plain = w->d_plain_keys + r * d;
    double gate[SR_HEAD_SIZE_MAX] = {0}, d_beta = 0.0;
    int list[SR_LEVELS_MAX];
    const int active = linear_active(walk, t.position, list);
    memset(d_key, 0, (size_t)D * sizeof(real));
    memset(d_plain, 0, (size_t)D * sizeof(real));
    for (int n = 0; n < active; n++) {
        const int64_t level = list[n];
        const real *decayed = w->decayed[r].matrix + level * D * ld;
        real *R = w->gradient.matrix + level * D * ld;
        if (level == 0 || walk->delta) {
            memset(w->d_u, 0, (size_t)ld * sizeof(real));
            for (int64_t e = 0; e < D; e++) {
                linear_add(w->d_u, t.key[e], R + e * ld, ld);
                d_key[e] += linear_dot(R + e * ld, t.u + level * ld, ld);
            }
            if (walk->delta) {
                d_beta += (double)linear_dot(w->d_u, t.error + level * ld, ld);
                for (int64_t k = 0; k < ld; k += LANES)
                    vec_store(w->d_u + k, t.beta * vec_load(w->d_u + k));
                for (int64_t e = 0; e < D; e++) {
                    d_key[e] -= linear_dot(decayed + e * ld, w->d_u, ld);
                    linear_add(R + e * ld, -t.key[e], w->d_u, ld);
                }
            }
            if (level == 0)
                memcpy(w->d_values + r * ld, w->d_u, (size_t)ld * sizeof(real));
        }
        for (int64_t e = 0; e < D; e++) {
            const int64_t row = level * D + e;
            if (walk->sums && level == 0)
                d_plain[e] += w->gradient.column[row];
            if (!walk->decay)
                continue;
            gate[e] += (double)linear_dot(R + e * ld, decayed + e * ld, ld);
            for (int64_t k = 0; k < ld; k += LANES)
                vec_store(R + e * ld + k, t.factor[e] * vec_load(R + e * ld + k));
            if (walk->sums) {
                gate[e] += (double)w->gradient.column[row] * (double)w->decayed[r].column[row];
                w->gradient.column[row] *= t.factor[e];
            }
        }
    }
    const int64_t at = sr_row_index(p, p->Hkv, c->span->b, c->kv, c->span->start + t.at);
    if (x->edges.d_beta)
        x->edges.d_beta[at] = d_beta;
    for (int64_t e = 1; numbers == 1 && e < D; e++)
        gate[0] += gate[e];
    for (int64_t e = 0; e < numbers;
         e++) { /* edges want the gradient of C, whose sum from here on this is */
        x->edges.d_decay[at * numbers + e] = gate[e] - w->later[e];
        w->later[e] = gate[e];
    }
    const int merged = linear_merged(walk, t.position);
    for (int level = 0; level < merged; level++) {
        memcpy(w->gradient.matrix + level * D * ld, w->gradient.matrix + merged * D * ld,
               (size_t)(D * ld) * sizeof(real));
        memcpy(w->gradient.column + level * D, w->gradient.column + merged * D,
               (size_t)D * sizeof(real));
    }
    if (merged) {
        memset(w->gradient.matrix + merged * D * ld, 0, (size_t)(D * ld) * sizeof(real));
        memset(w->gradient.column + merged * D, 0, (size_t)D * sizeof(real));
    }
}

/* rows += plain, after turning rows back; nothing where both are the same. */
static void join_rows(const linear_chunk *c, real *rows, const real *plain, sr_rows at) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D);
    if (rows == plain)
        return;
    SR_ISA_REAL(sr_edges_turn)(rows, d, c->edges, c->call, at, true);
    for (int64_t r = 0; r < at.count; r++)
        for (int64_t e = 0; e < p->D; e++)
            rows[r * d + e] += plain[r * d + e];
}

static void write_keys(const context *x, const workspace *w, const linear_chunk *c) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv);
    const sr_rows at = {c->span->b, c->kv, c->span->start + c->at, c->count};
    join_rows(c, w->d_keys, w->d_plain_keys, at);
    SR_ISA_REAL(sr_edges_key_rows_backward)(w->d_keys, d, &x->edges, x->call, at);
    SR_ISA_REAL(sr_edges_value_rows_backward)
    (w->d_values, w->room.values, dv, &x->edges, x->call, at);
}

static void write_queries(const context *x, const workspace *w, const linear_chunk *c, int g) {
    const srnn_problem *p = linear_problem(c);
    const int64_t d = row_stride(p->D), from = g * LINEAR_CHUNK * d;
    const sr_rows at = {c->span->b, c->kv * (p->H / p->Hkv) + g, c->span->start + c->at, c->count};
    join_rows(c, w->d_queries + from, w->d_plain_queries + from, at);
    SR_ISA_REAL(sr_edges_query_rows_backward)(w->d_queries + from, d, &x->edges, x->call, at);
}

static void document_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const workspace *w = &x->workers[worker];
    const int group = p->H / p->Hkv;
    linear_chunk c = {.edges = &x->edges,
                      .call = x->call,
                      .span = &x->call->plan->spans[task / p->Hkv],
                      .kv = (int)(task % p->Hkv)};
    const linear_walk walk = linear_walk_of(&c);
    keep_states(w, &c, &walk);
    linear_state_clear(&w->gradient, p);
    memset(w->later, 0, (size_t)p->D * sizeof *w->later);
    for (c.at = (c.span->length - 1) / LINEAR_CHUNK * LINEAR_CHUNK; c.at >= 0;
         c.at -= LINEAR_CHUNK) {
        linear_load_keys(&w->room, &c);
        for (int g = 0; g < group; g++)
            linear_load_queries(&w->room, &c, g);
        make_states(w, &c, &walk);
        for (int64_t r = c.count - 1; r >= 0; r--) {
            for (int g = 0; g < group; g++)
                query_backward(x, w, &c, &walk, g, r);
            token_backward(x, w, &c, &walk, r);
        }
        for (int g = 0; g < group; g++)
            write_queries(x, w, &c, g);
        write_keys(x, w, &c);
    }
}

srnn_status linear_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.call = call;
    SR_ISA_REAL(sr_edges_prepare)(&x.edges, plan, call->in, NULL);
    SR_ISA_REAL(sr_edges_backward_outputs)(&x.edges, call);
    sr_parallel(document_task, &x, plan->span_count * p->Hkv, p->threads);
    SR_ISA_REAL(sr_edges_backward_inputs)(&x.edges, call);
    return SRNN_OK;
}
