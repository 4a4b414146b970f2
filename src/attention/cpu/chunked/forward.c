/* forward.c: parallel inside a chunk, a recurrent state between chunks; forward.
 *
 * A task is one kv head of one document and walks its chunks in order. The recurrent form is the
 * same walk with chunks of one token; feeding a state starts the same walk from a given state. */
#include "attention/cpu/chunked/chunked.h"

#include "attention/cpu/chunked/chunks.h"
#include "attention/cpu/shared/carried.h"
#include "base/cancel.h"
#include "base/threads.h"

typedef struct workspace {
    chunk_workspace buffers;
    real *numerator; /* (chunk, stride of Dv) */
    real *row_sum;   /* (stride of tokens) */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    feature_basis basis;
    workspace *workers;
    score_rule rule;
    char *states;     /* NULL: every document starts from the zero state */
    int64_t position; /* tokens before the first of this call */
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    chunk_strides ld = chunk_strides_of(p);
    context x = {0};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, false, layout);
    x.basis = feature_basis_place(&p->attention, p->D, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .buffers = chunk_workspace_place(p, &x.basis, layout),
            .numerator = take_reals(layout, round_up(p->chunk, ROWS), ld.dv),
            .row_sum = take_reals(layout, 1, ld.token),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t chunked_forward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

size_t chunked_state_bytes(const srnn_problem *problem) {
    sr_layout layout = {0};
    feature_basis basis = feature_basis_place(&problem->attention, problem->D, &(sr_layout){0});
    running_state_place(problem, &basis, &layout);
    return layout.used;
}

/* True if no token precedes the chunk. */
static bool is_first(const context *x, const chunk *c) {
    return x->position + c->at == 0 && !c->carried;
}

/* Reads the state with the chunk's queries, into numerator and row_sum. */
static void read_state(const context *x, const workspace *w, const chunk *c,
                       const running_state *state) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int64_t padded = round_up(c->count, ROWS);
    memset(w->row_sum, 0, (size_t)ld.token * sizeof(real));
    if (is_first(x, c)) {
        memset(w->numerator, 0, (size_t)(padded * ld.dv) * sizeof(real));
        return;
    }
    transpose_rows(w->buffers.query_columns, ld.token, w->buffers.queries, ld.d, c->count, p->D,
                   c->width);
    const feature_tokens queries =
        chunk_tokens(&w->buffers, &x->basis, w->buffers.query_columns, ld.token, c);
    state_read(w->numerator, sr_needs_row_sum(&p->attention) ? w->row_sum : NULL, state, &queries,
               padded);
    for (int64_t t = 0; c->decay && t < c->count; t++) {
        real factor = (real)exp(c->decay[c->t + t] - *state->reference);
        w->row_sum[t] *= factor;
        for (int64_t d = 0; d < ld.dv; d += LANES)
            vec_store(w->numerator + t * ld.dv + d,
                      factor * vec_load(w->numerator + t * ld.dv + d));
    }
}

/* Adds the pairs inside the chunk. */
static void add_pairs(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int64_t padded = round_up(c->count, ROWS);
    chunk_logits(&w->buffers, p, c);
    for (int64_t r = 0; r < c->count; r++) {
        score_row row = chunk_row(&w->buffers, c, ld.token, r);
        vec sum = {0};
        row_weights(&row, &x->rule, &sum);
        if (sr_needs_row_sum(&p->attention))
            w->row_sum[r] += vec_sum(sum);
    }
    clear_rows_from(w->buffers.s, ld.token, c->count, padded);
    chunk_product((product_target){w->numerator, ld.dv, true},
                  (product_operand){w->buffers.s, ld.token, 1},
                  (product_rows){w->buffers.values, ld.dv}, (product_size){padded, p->Dv, c->count},
                  PRODUCT_A_LOWER, &w->buffers);
}

static void write_outputs(const context *x, const workspace *w, const chunk *c) {
    const chunk_strides ld = chunk_strides_of(&x->call->plan->core);
    const sr_rows rows = {c->b, c->h, c->t, c->count};
    const sr_row_results results = {w->numerator, ld.dv, w->row_sum, NULL, x->position + c->at + 1};
    SR_ISA_REAL(sr_epilogue_rows)(results, &x->row_work, x->call, rows);
    save_rows(x->call, rows, results);
}

/* Updates the state with the chunk; its decay reference becomes that of the last token. */
static void update_state(const context *x, const workspace *w, const chunk *c,
                         const running_state *state) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    double next = c->decay ? c->decay[c->t + c->count - 1] : 0.0;
    for (int64_t t = 0; t < c->width; t++)
        w->buffers.factor[t] =
            t < c->count ? (real)(c->decay ? exp(next - c->decay[c->t + t]) : 1.0) : 0;
    if (c->decay) {
        if (!is_first(x, c))
            state_scale(state, &x->basis, (real)exp(next - *state->reference));
        *state->reference = next;
        for (int64_t t = 0; t < c->count; t++)
            for (int64_t d = 0; d < p->Dv; d++)
                w->buffers.values[t * ld.dv + d] *= w->buffers.factor[t];
    }
    const feature_tokens keys =
        chunk_tokens(&w->buffers, &x->basis, w->buffers.key_columns, ld.token, c);
    state_add(state, &keys, w->buffers.values,
              sr_needs_row_sum(&p->attention) ? w->buffers.factor : NULL, c->count);
}

static void walk_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    workspace *w = &x->workers[worker];
    const sr_document_range *document = &x->call->plan->documents[task / p->Hkv];
    chunk c = chunk_of(p, &x->row_work, document, (int)(task % p->Hkv));
    const int first_head = c.h, heads = p->H / p->Hkv;
    running_state state = w->buffers.state;
    size_t bytes = chunked_state_bytes(p);
    if (x->states) {
        sr_layout layout = {.base = x->states + (size_t)(c.b * p->Hkv + c.kv) * bytes};
        state = running_state_place(p, &x->basis, &layout);
    } else {
        memset(state.matrix, 0, bytes); /* matrix, column and reference are contiguous */
    }
    const srnn_states *given = &x->call->plan->states;
    const carried_matrix carried = chunk_carried(&state, &x->basis);
    const bool leaves = carried_out(given->final, p, document);
    c.carried = carried_into(given, document);
    if (c.carried)
        carried_load(&carried, given->initial, p, c.b, c.kv, 1);
    for (int64_t at = 0; at < document->length && !sr_cancelled(); at += c.count) {
        chunk_move(&c, p, document, at);
        chunk_load_keys(&w->buffers, &x->row_work, x->call, &c);
        for (c.h = first_head; c.h < first_head + heads; c.h++) {
            chunk_load_queries(&w->buffers, &x->row_work, x->call, &c);
            read_state(x, w, &c, &state);
            add_pairs(x, w, &c);
            write_outputs(x, w, &c);
        }
        if (at + c.count < document->length || x->states || leaves)
            update_state(x, w, &c, &state);
    }
    if (leaves)
        carried_store(given->final, &carried, p, c.b, c.kv,
                      (real)exp(chunk_end(x->call, &c, document) - *state.reference));
}

static void walk(context *x, sr_carry *carry) {
    const srnn_plan *plan = x->call->plan;
    feature_basis_fill(&x->basis, &plan->core.attention, plan->core.D);
    x->rule = score_rule_of(&plan->core.attention);
    SR_ISA_REAL(sr_prologue_prepare)(&x->row_work, plan, x->call->in, carry);
    const srnn_problem *p = &plan->core;
    double rows = (double)(p->chunk + 4 * state_rows(&x->basis)) * p->Dv;
    int workers = sr_workers_worth((double)p->B * p->H * p->T * rows, p->threads);
    sr_parallel(walk_task, x, plan->document_count * p->Hkv, workers);
    SR_ISA_REAL(sr_epilogue_finish)(&x->row_work, x->call);
}

srnn_status chunked_forward(const sr_attention_call *call) {
    sr_layout layout = {.base = call->plan->scratch, .apart = true};
    context x = place(call->plan, &layout);
    x.call = call;
    walk(&x, NULL);
    return SRNN_OK;
}

srnn_status chunked_feed(const sr_attention_call *call, char *states, int64_t capacity,
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
