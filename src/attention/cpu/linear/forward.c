/* forward.c: linear scores through a state, chunk by chunk, forward: decay per channel, the delta
 * rule, levels, rotated features. The recurrent form and feeding a state are the same walk. */
#include "attention/cpu/linear/linear.h"

#include "attention/cpu/linear/chunk.h"
#include "base/cancel.h"
#include "base/threads.h"

typedef struct workspace {
    linear_rows rows;
    linear_buffers buffers;
    linear_state state;
    real *weights;    /* (rows, stride of tokens) */
    real *queries;    /* (rows, stride of D): those of a level */
    real *numerators; /* (heads of a group, block, stride of Dv) */
    real *row_sums;   /* (heads of a group, block) */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    workspace *workers;
    char *states;     /* NULL: every document starts from the zero state */
    int64_t position; /* tokens before the first of this call */
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    const int64_t group = p->H / p->Hkv;
    context x = {0};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, false, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .rows = linear_rows_place(p, layout),
            .buffers = linear_buffers_place(p, layout),
            .state = linear_state_place(p, layout),
            .weights = take_rows(layout, row_stride(tile_width(LINEAR_BLOCK))),
            .queries = take_rows(layout, row_stride(p->D)),
            .numerators = take_reals(layout, group * BLOCK_ROWS, row_stride(p->Dv)),
            .row_sums = take_reals(layout, group, BLOCK_ROWS),
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

/* The queries that read a level: times its weights and the factors of its rows. */
static void level_queries(const workspace *w, const real *queries, const double *levels, int level,
                          const linear_walk *x, const linear_chunk *c) {
    const real *scale = linear_scale_at(&w->state, x, level);
    for (int64_t r = 0; r < c->count; r++) {
        const vec weight = vec_all((real)levels[r * x->p->levels + level]);
        for (int64_t e = 0; e < x->d; e += LANES)
            vec_store(w->queries + r * x->d + e, weight *
                                                     (scale ? vec_load(scale + e) : vec_all(1)) *
                                                     vec_load(queries + r * x->d + e));
    }
}

/* Reads the states with the chunk's queries, into result. */
static void read_states(const workspace *w, real *result, const real *queries, const double *levels,
                        const linear_walk *x, const linear_chunk *c) {
    bool begun = false;
    for (int n = 0; n < c->parts; n++) {
        const int level = c->part[n].level;
        if (!c->part[n].read)
            continue;
        if (levels)
            level_queries(w, queries, levels, level, x, c);
        rows_product((product_target){result, x->dv, begun},
                     (product_operand){levels ? w->queries : queries, x->d, 1},
                     (product_rows){linear_matrix_at(&w->state, x, level), x->dv},
                     (product_size){c->count, value_columns(x), x->p->D}, PRODUCT_FULL);
        begun = true;
    }
    if (!begun)
        memset(result, 0, (size_t)(c->count * x->dv) * sizeof(real));
}

/* The row sums: from the states, and the weights of the pairs. */
static void sum_rows(const workspace *w, real *sums, const real *queries, const double *levels,
                     const linear_walk *x, const linear_chunk *c) {
    for (int64_t r = 0; r < c->count; r++) {
        double sum = 0.0;
        for (int64_t j = 0; j <= r; j++)
            sum += (double)w->buffers.plain_s[r * x->token + j];
        for (int n = 0; n < c->parts; n++)
            if (c->part[n].read)
                sum += row_dot(queries + r * x->d, linear_column_at(&w->state, x, c->part[n].level),
                               x->p->D) *
                       (levels ? levels[r * x->p->levels + c->part[n].level] : 1.0);
        sums[r] = (real)sum;
    }
}

/* result += weights (count, tokens), lower triangular, times the written rows. */
static void add_pairs(real *result, const real *weights, const real *written, const linear_walk *x,
                      const linear_chunk *c) {
    rows_product((product_target){result, x->dv, true}, (product_operand){weights, x->token, 1},
                 (product_rows){written, x->dv},
                 (product_size){c->count, value_columns(x), c->count}, PRODUCT_A_LOWER);
}

/* Numerators and row sums of the chunk's queries of head g. */
static void read_chunk(const workspace *w, const linear_keys *k, const linear_walk *x,
                       const linear_chunk *c, int g) {
    const linear_buffers *buffers = &w->buffers;
    real *result = w->numerators + (g * BLOCK_ROWS + c->row) * x->dv;
    const real *queries = w->rows.queries + (g * BLOCK_ROWS + c->row) * x->d;
    const real *plain = w->rows.plain_queries + (g * BLOCK_ROWS + c->row) * x->d;
    const double *levels = chunk_levels(x, c, g);
    const real *between = pair_decays(buffers, x);
    const real *near = scaled_rows(buffers->near_queries, queries, k->near_rise, x, c);
    const real *risen = scaled_rows(buffers->risen_queries, queries, k->rise, x, c);
    const linear_pairs pairs = {near, k->near, buffers->key_columns, between, 1};
    read_states(w, result, risen, levels, x, c);
    if (x->removal) {
        const linear_pairs removed = {near, k->near_removed, buffers->removed_columns, between, 1};
        pair_products(buffers->s, &removed, x, c);
        add_pairs(result, buffers->s, part_u(buffers, k, x, 0), x, c);
        pair_products(buffers->s, &pairs, x, c);
        add_pairs(result, buffers->s, k->values, x, c);
    } else {
        pair_products(buffers->s, &pairs, x, c);
    }
    for (int n = 0; n < c->parts; n++) {
        if (!is_written(x, &c->part[n]) || x->removal)
            continue;
        if (levels)
            weigh_levels(w->weights, buffers->s, levels, &c->part[n], x, c);
        add_pairs(result, levels ? w->weights : buffers->s, part_u(buffers, k, x, n), x, c);
    }
    real *sums = w->row_sums + g * BLOCK_ROWS + c->row;
    if (!x->sums) {
        memset(sums, 0, (size_t)c->count * sizeof(real));
        return;
    }
    if (x->rotated) {
        const linear_pairs plain_pairs = {scaled_rows(buffers->near_queries, plain, k->near_rise, x,
                                                      c),
                                          k->plain_near, buffers->plain_columns, between, 1};
        pair_products(buffers->plain_s, &plain_pairs, x, c);
        risen = scaled_rows(buffers->risen_queries, plain, k->rise, x, c);
    }
    if (levels)
        weigh_levels(buffers->plain_s, buffers->plain_s, levels, &c->part[c->parts - 1], x, c);
    sum_rows(w, sums, risen, levels, x, c);
}

static void write_outputs(const context *x, const workspace *w, const linear_walk *walk,
                          const linear_block *b) {
    for (int g = 0; g < walk->group; g++) {
        const sr_rows rows = linear_query_rows(walk, b, g);
        const sr_row_results results = {w->numerators + g * BLOCK_ROWS * walk->dv, walk->dv,
                                        w->row_sums + g * BLOCK_ROWS, NULL,
                                        x->position + b->at + 1};
        SR_ISA_REAL(sr_epilogue_rows)(results, &x->row_work, x->call, rows);
        save_rows(x->call, rows, results);
    }
}

static void walk_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    workspace w = x->workers[worker];
    const linear_walk walk = linear_walk_of(&x->row_work, x->call, task, x->position);
    if (x->states) {
        const int64_t head = walk.document->b * walk.p->Hkv + walk.kv;
        sr_layout layout = {.base = x->states + (size_t)head * linear_state_bytes(walk.p)};
        w.state = linear_state_place(walk.p, &layout);
    } else {
        linear_state_begin(&w.state, &walk);
    }
    void *final = x->call->plan->states.final;
    const bool leaves = carried_out(final, walk.p, walk.document);
    for (int64_t at = 0; at < walk.document->length && !sr_cancelled();) {
        linear_block b = linear_block_at(&walk, at);
        linear_load_keys(&w.rows, &walk, &b);
        for (int g = 0; g < walk.group; g++)
            linear_load_queries(&w.rows, &walk, &b, g);
        for (int64_t row = 0; row < b.count;) {
            const linear_chunk c = linear_chunk_at(&walk, &b, row);
            linear_merge(&w.state, &walk, &c);
            const linear_keys k = linear_keys_of(&w.buffers, &w.rows, &walk, &c, &w.state, true);
            linear_write(&w.buffers, &k, &walk, &c, &w.state);
            for (int g = 0; g < walk.group; g++)
                read_chunk(&w, &k, &walk, &c, g);
            row += c.count;
            if (x->states || leaves || at + row < walk.document->length)
                linear_move(&w.state, &w.buffers, &k, &walk, &c);
        }
        write_outputs(x, &w, &walk, &b);
        at += b.count;
    }
    const carried_matrix carried = linear_carried(&w.state, &walk);
    if (leaves)
        carried_store(final, &carried, walk.p, walk.document->b, walk.kv, (real)linear_end(&walk));
}

static void walk(context *x, sr_carry *carry) {
    const srnn_plan *plan = x->call->plan;
    const srnn_problem *p = &plan->core;
    SR_ISA_REAL(sr_prologue_prepare)(&x->row_work, plan, x->call->in, carry);
    const double work = 4.0 * (double)p->B * p->H * p->T * p->D * p->Dv;
    sr_parallel(walk_task, x, plan->document_count * p->Hkv, sr_workers_worth(work, p->threads));
    SR_ISA_REAL(sr_epilogue_finish)(&x->row_work, x->call);
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
