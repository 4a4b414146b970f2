/* attention_linear.c: linear scores through a state, token by token, forward: decay per channel, the delta
 * rule, levels, turned features.
 *
 *     S <- e^a S;   u = beta (v - S^T k), or v;   S <- S + k u^T;   y = q S
 *
 * With levels there is a state for each of them; all but the lowest take in what the lower ones hold when
 * their block is full. */
#include "device/cpu/attention_linear.h"

#include "base/threads.h"
#include "device/cpu/attention_linear_step.h"

typedef struct workspace {
    linear_room room;
    linear_state state;
    real *numerators; /* (heads of a group, LINEAR_CHUNK, stride of Dv) */
    real *row_sums;   /* (heads of a group, LINEAR_CHUNK) */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_edges edges;
    workspace *workers;
    char *states;     /* NULL: every document starts from nothing */
    int64_t position; /* tokens before the first of this call */
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const int64_t group = p->H / p->Hkv;
    context x = {0};
    SR_ISA_REAL(sr_edges_place)(&x.edges, plan, false, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .room = linear_room_place(p, layout),
            .state = linear_state_place(p, layout),
            .numerators = take_reals(layout, group * LINEAR_CHUNK, row_stride(p->Dv)),
            .row_sums = take_reals(layout, group, LINEAR_CHUNK),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t linear_forward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

/* y and the row sum of one query from the state. */
static void read_state(const linear_walk *x, const linear_state *state, const linear_query *q,
                       real *numerator, real *row_sum) {
    int list[SR_LEVELS_MAX];
    const int active = linear_active(x, q->position, list), D = x->p->D;
    memset(numerator, 0, (size_t)x->ld * sizeof *numerator);
    *row_sum = 0;
    for (int n = 0; n < active; n++) {
        const int64_t level = list[n];
        const real weight = q->levels ? (real)q->levels[level] : (real)1;
        const real *matrix = state->matrix + level * D * x->ld;
        for (int c = 0; c < D; c++)
            linear_add(numerator, weight * q->query[c], matrix + c * x->ld, x->ld);
        for (int c = 0; x->sums && c < D; c++)
            *row_sum += weight * q->plain[c] * state->column[level * D + c];
    }
}

static void write_outputs(const context *x, const workspace *w, const linear_chunk *c) {
    const sr_attention_call *call = x->call;
    const srnn_problem *p = &call->plan->core;
    const int64_t ld = row_stride(p->Dv);
    const int group = p->H / p->Hkv;
    for (int g = 0; g < group; g++) {
        const int h = c->kv * group + g;
        const real *numerators = w->numerators + g * LINEAR_CHUNK * ld;
        const real *sums = w->row_sums + g * LINEAR_CHUNK;
        SR_ISA_REAL(sr_edges_output_rows)
        ((sr_row_results){numerators, ld, sums, x->position + c->at + 1}, &x->edges, call,
         (sr_rows){c->span->b, h, c->span->start + c->at, c->count});
        if (!call->saved.numerator)
            continue;
        const int64_t at = sr_row_index(p, p->H, c->span->b, h, c->span->start + c->at);
        for (int64_t r = 0; r < c->count; r++)
            memcpy((real *)call->saved.numerator + (at + r) * p->Dv, numerators + r * ld,
                   (size_t)p->Dv * sizeof(real));
        memcpy((real *)call->saved.row_sum + at, sums, (size_t)c->count * sizeof(real));
        memset((real *)call->saved.maximum + at, 0, (size_t)c->count * sizeof(real));
    }
}

static void walk_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    const workspace *w = &x->workers[worker];
    linear_chunk c = {.edges = &x->edges,
                      .call = x->call,
                      .span = &x->call->plan->spans[task / p->Hkv],
                      .kv = (int)(task % p->Hkv),
                      .position = x->position};
    const linear_walk walk = linear_walk_of(&c);
    const int group = p->H / p->Hkv;
    linear_state state = w->state;
    if (x->states) {
        sr_layout layout = {.base = x->states +
                                    (size_t)(c.span->b * p->Hkv + c.kv) * linear_state_bytes(p)};
        state = linear_state_place(p, &layout);
    } else {
        linear_state_clear(&state, p);
    }
    for (c.at = 0; c.at < c.span->length; c.at += c.count) {
        linear_load_keys(&w->room, &c);
        for (int g = 0; g < group; g++)
            linear_load_queries(&w->room, &c, g);
        for (int64_t r = 0; r < c.count; r++) {
            const linear_token token = linear_token_at(&w->room, &c, r);
            linear_step(&walk, &state, &token);
            for (int g = 0; g < group; g++) {
                const linear_query q = linear_query_at(&w->room, &c, g, r);
                read_state(&walk, &state, &q, w->numerators + (g * LINEAR_CHUNK + r) * walk.ld,
                           w->row_sums + g * LINEAR_CHUNK + r);
            }
        }
        write_outputs(x, w, &c);
    }
}

static void walk(context *x, sr_carry *carry) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    SR_ISA_REAL(sr_edges_prepare)(&x->edges, plan, x->call->in, carry);
    const double work = 4.0 * (double)p->B * p->H * p->T * p->D * p->Dv;
    sr_parallel(walk_task, x, plan->span_count * p->Hkv, sr_workers_worth(work, p->threads));
    SR_ISA_REAL(sr_edges_finish)(&x->edges, x->call);
}

srnn_status linear_forward(const sr_attention_call *call) {
    sr_layout layout = {.base = call->plan->scratch, .apart = true};
    context x = place(call->plan, &layout);
    x.call = call;
    walk(&x, NULL);
    return SRNN_OK;
}

srnn_status linear_feed(const sr_attention_call *call, char *states, int64_t capacity,
                        sr_carry *carry) {
    (void)capacity;
    sr_layout layout = {.base = call->plan->scratch, .apart = true};
    context x = place(call->plan, &layout);
    x.call = call;
    x.states = states;
    x.position = *carry->position;
    walk(&x, carry);
    *carry->position += call->plan->core.T;
    return SRNN_OK;
}
