/* backward.c: the chunked form, backward; O(T) memory, no stored states.
 *
 * Two passes over a document. The first runs forward with the state H_t = sum features(k_j) v_j^T
 * and computes gradients of queries and everything inside chunks. The second runs backward with the
 * mirror state R_t = sum_{i later} features(q_i) d_numerator_i^T and computes gradients of keys and
 * values. */
#include "attention/cpu/chunked/chunked.h"
#include "attention/cpu/chunked/chunks.h"
#include "base/cancel.h"
#include "base/threads.h"

typedef struct workspace {
    chunk_workspace buffers;
    real *d_numerator;       /* (chunk, stride of Dv) */
    real *value_columns;     /* (Dv, stride of tokens): values or d_numerator transposed */
    real *d;                 /* (chunk, stride of tokens) */
    real *d_queries;         /* (chunk, stride of D) */
    real *from_state;        /* (chunk, stride of Dv) */
    real *d_columns;         /* (D, stride of tokens) */
    real *d_low;             /* (orders below the highest, stride of tokens) */
    real *d_top;             /* (FEATURE_BLOCK, stride of tokens) */
    real *row;               /* (stride of tokens) */
    real *d_keys, *d_values; /* (T, strides of D and Dv) */
    double *d_decay; /* (T, padded by a vector): of C; each pair of different tokens contributes to
                      * two of them */
    real *d_weights; /* (stride of tokens): gradients of a row's weights */
    double *along;   /* (stride of tokens) */
} workspace;

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    feature_basis basis;
    workspace *workers;
    score_rule rule;
} context;

static context place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int64_t rows = round_up(p->chunk, ROWS), T = p->T + rows;
    context x = {0};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, true, layout);
    x.basis = feature_basis_place(&p->attention, p->D, layout);
    x.workers = sr_layout_take(layout, (size_t)p->threads, sizeof *x.workers);
    for (int n = 0; n < p->threads; n++) {
        workspace w = {
            .buffers = chunk_workspace_place(p, &x.basis, layout),
            .d_numerator = take_reals(layout, rows, ld.dv),
            .value_columns = take_reals(layout, p->Dv, ld.token),
            .d = take_reals(layout, rows, ld.token),
            .d_queries = take_reals(layout, rows, ld.d),
            .from_state = take_reals(layout, rows, ld.dv),
            .d_columns = take_reals(layout, p->D, ld.token),
            .d_low = take_reals(layout, x.basis.top + ROWS, ld.token),
            .d_top = take_reals(layout, FEATURE_BLOCK, ld.token),
            .row = take_reals(layout, 1, ld.token),
            .d_keys = take_reals(layout, T, ld.d),
            .d_values = take_reals(layout, T, ld.dv),
            .d_decay = sr_layout_take(layout, (size_t)(T + LANES), sizeof(double)),
            .d_weights = take_reals(layout, 1, ld.token),
            .along = sr_layout_take(layout, (size_t)ld.token, sizeof(double)),
        };
        if (x.workers)
            x.workers[n] = w;
    }
    return x;
}

size_t chunked_backward_scratch(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

static void load_queries(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    chunk_load_queries(&w->buffers, &x->row_work, x->call, c);
    const real *from = x->row_work.d_numerator + sr_row_index(p, p->H, c->b, c->h, c->t) * p->Dv;
    for (int64_t r = 0; r < c->count; r++)
        memcpy(w->d_numerator + r * ld.dv, from + r * p->Dv, (size_t)p->Dv * sizeof(real));
    clear_rows_from(w->d_numerator, ld.dv, c->count, round_up(c->count, ROWS));
}

/* factor[t] = exp(sign (C_t - reference)), zero past the chunk. */
static void decay_factors(const workspace *w, const chunk *c, double sign, double reference) {
    for (int64_t t = 0; t < c->width; t++)
        w->buffers.factor[t] =
            t < c->count ? (real)(c->decay ? exp(sign * (c->decay[c->t + t] - reference)) : 1.0)
                         : 0;
}

/* rows (count, ld) *= factor, row by row. */
static void scale_rows(real *rows, int64_t ld, const real *factor, int64_t count, int64_t n) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t d = 0; d < n; d++)
            rows[r * ld + d] *= factor[r];
}

/* along (tokens) += features from .. from + count - 1 times their gradients (count, ld), summed per
 * token. */
static void add_along(double *along, const real *d, const feature_tokens *tokens, int64_t from,
                      int64_t count) {
    const feature_basis *basis = tokens->basis;
    const int64_t ld = tokens->ld;
    for (int64_t t = 0; t < tokens->width; t += LANES) {
        vec sum = {0};
        for (int64_t m = from; m < from + count; m++) {
            const vec own = vec_load(d + (m - from) * ld + t);
            if (m < basis->top)
                sum += own * vec_load(tokens->low + m * ld + t);
            else
                sum += own * (basis->ratio[m] * vec_load(tokens->x + basis->variable[m] * ld + t) *
                              vec_load(tokens->low + basis->parent[m] * ld + t));
        }
        for (int64_t lane = 0; lane < LANES; lane++)
            along[t + lane] += (double)sum[lane];
    }
}

/* d_columns (D, tokens) = gradient of the tokens through their features, whose gradient is
 * state.matrix times value_columns plus, with `sums`, state.column times row. Unless `along`
 * (tokens) is NULL, adds to it the inner product of all features with their gradients. */
static void features_backward(const workspace *w, const feature_tokens *tokens,
                              const srnn_problem *p, double *along) {
    const running_state *state = &w->buffers.state;
    const feature_basis *basis = tokens->basis;
    const int64_t ld = tokens->ld;
    const bool sums = sr_needs_row_sum(&p->attention);
    memset(w->d_columns, 0, (size_t)(p->D * ld) * sizeof(real));
    memset(w->d_low, 0, (size_t)((basis->top + ROWS) * ld) * sizeof(real));
    for (int64_t from = basis->first, count; from < basis->count; from += count) {
        const bool low = from < basis->top;
        const int64_t left = low ? basis->top - from : basis->count - from;
        const int64_t row = from - basis->first;
        count = low || left < FEATURE_BLOCK ? left : FEATURE_BLOCK;
        real *d = low ? w->d_low + from * ld : w->d_top;
        product((product_target){d, ld, false},
                (product_operand){state->matrix + row * state->ld, state->ld, 1},
                (product_rows){w->value_columns, ld},
                (product_size){round_up(count, ROWS), tokens->width, p->Dv}, PRODUCT_FULL);
        for (int64_t m = 0; sums && m < count; m++) {
            vec weight = vec_all(state->column[row + m]);
            for (int64_t t = 0; t < tokens->width; t += LANES)
                vec_store(d + m * ld + t, vec_load(d + m * ld + t) + weight * vec_load(w->row + t));
        }
        if (along)
            add_along(along, d, tokens, from, count);
        if (!low)
            feature_rows_backward(w->d_columns, w->d_low, d, tokens, from, from + count);
    }
    feature_rows_backward(w->d_columns, w->d_low, w->d_low, tokens, 0, basis->top);
}

/* rows (count, ld) += columns (n, tokens) transposed. */
static void add_transposed(real *rows, int64_t ld, const real *columns, int64_t ld_columns,
                           int64_t count, int64_t n) {
    for (int64_t t = 0; t < count; t++)
        for (int64_t d = 0; d < n; d++)
            rows[t * ld + d] += columns[d * ld_columns + t];
}

/* The gradients inside a chunk, from weights (s) and their gradients (d). Each GEMM is called
 * separately so that the compiler knows the orientation of its operands. */
static void add_gradients(const workspace *w, const srnn_problem *p, const chunk *c) {
    const chunk_strides ld = chunk_strides_of(p);
    const int64_t padded = round_up(c->count, ROWS);
    chunk_product((product_target){w->d_values + c->at * ld.dv, ld.dv, true},
                  (product_operand){w->buffers.s, 1, ld.token},
                  (product_rows){w->d_numerator, ld.dv}, (product_size){padded, p->Dv, c->count},
                  PRODUCT_A_UPPER, &w->buffers);
    chunk_product((product_target){w->d_keys + c->at * ld.d, ld.d, true},
                  (product_operand){w->d, 1, ld.token}, (product_rows){w->buffers.queries, ld.d},
                  (product_size){padded, p->D, c->count}, PRODUCT_A_UPPER, &w->buffers);
    chunk_product((product_target){w->d_queries, ld.d, false}, (product_operand){w->d, ld.token, 1},
                  (product_rows){w->buffers.keys, ld.d}, (product_size){padded, p->D, c->count},
                  PRODUCT_A_LOWER, &w->buffers);
}

/* Pairs inside the chunk: gradients of its queries (set), keys and values (added). */
static void inside_chunk(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int64_t padded = round_up(c->count, ROWS);
    int64_t base = sr_row_index(p, p->H, c->b, c->h, c->t);
    transpose_rows(w->value_columns, ld.token, w->buffers.values, ld.dv, c->count, p->Dv, c->width);
    chunk_logits(&w->buffers, p, c);
    product((product_target){w->d, ld.token, false}, (product_operand){w->d_numerator, ld.dv, 1},
            (product_rows){w->value_columns, ld.token}, (product_size){padded, c->width, p->Dv},
            PRODUCT_C_LOWER);
    for (int64_t r = 0; r < c->count; r++) {
        score_row row = chunk_row(&w->buffers, c, ld.token, r);
        real d_row_sum = x->row_work.d_row_sum[base + r];
        for (int64_t j = 0; c->decay && j < r; j += LANES)
            vec_store(w->d_weights + j, vec_load(w->d + r * ld.token + j) + d_row_sum);
        row_weights_backward(&row, &x->rule, w->d + r * ld.token, d_row_sum);
        if (c->decay)
            w->d_decay[c->at + r] += gates_between(w->d_decay + c->at, row.s, w->d_weights, r);
    }
    clear_rows_from(w->buffers.s, ld.token, c->count, padded);
    clear_rows_from(w->d, ld.token, c->count, padded);
    add_gradients(w, p, c);
}

/* Gradients of the chunk's queries through the state before it, added to d_queries. */
static void queries_through_state(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int64_t base = sr_row_index(p, p->H, c->b, c->h, c->t);
    decay_factors(w, c, 1.0, *w->buffers.state.reference);
    for (int64_t t = 0; t < c->width; t++)
        w->row[t] = t < c->count ? w->buffers.factor[t] * x->row_work.d_row_sum[base + t] : 0;
    scale_rows(w->d_numerator, ld.dv, w->buffers.factor, c->count, p->Dv);
    transpose_rows(w->value_columns, ld.token, w->d_numerator, ld.dv, c->count, p->Dv, c->width);
    transpose_rows(w->buffers.query_columns, ld.token, w->buffers.queries, ld.d, c->count, p->D,
                   c->width);
    const feature_tokens queries =
        chunk_tokens(&w->buffers, &x->basis, w->buffers.query_columns, ld.token, c);
    memset(w->along, 0, (size_t)ld.token * sizeof *w->along);
    features_backward(w, &queries, p, c->decay ? w->along : NULL);
    for (int64_t r = 0; c->decay && r < c->count; r++)
        w->d_decay[c->at + r] += w->along[r];
    add_transposed(w->d_queries, ld.d, w->d_columns, ld.token, c->count, p->D);
}

/* The update of the state by a chunk: its features times its rows. */
typedef struct state_move {
    const real *columns; /* (D, tokens) */
    real *rows;          /* (chunk, stride of Dv) */
    const real *ones;    /* (chunk): summed into the state's column; NULL: 1 */
    bool backwards;      /* the pass runs backward */
    bool empty;          /* the state is still zero */
} state_move;

/* state = exp(C - reference) state + features times rows. The new reference C is that of the
 * chunk's last token in the order of the pass. */
static void move_state(const context *x, const workspace *w, const chunk *c,
                       const state_move *move) {
    const srnn_problem *p = &x->call->plan->core;
    const running_state *state = &w->buffers.state;
    chunk_strides ld = chunk_strides_of(p);
    const double sign = move->backwards ? -1.0 : 1.0;
    const double next = c->decay ? c->decay[move->backwards ? c->t : c->t + c->count - 1] : 0.0;
    if (c->decay && !move->empty)
        state_scale(state, &x->basis, (real)exp(sign * (next - *state->reference)));
    *state->reference = next;
    decay_factors(w, c, -sign, next);
    if (c->decay)
        scale_rows(move->rows, ld.dv, w->buffers.factor, c->count, p->Dv);
    for (int64_t t = 0; t < c->width; t++)
        w->row[t] = w->buffers.factor[t] * (move->ones && t < c->count ? move->ones[t] : (real)1);
    const feature_tokens tokens = chunk_tokens(&w->buffers, &x->basis, move->columns, ld.token, c);
    state_add(state, &tokens, move->rows, sr_needs_row_sum(&p->attention) ? w->row : NULL,
              c->count);
}

/* The final state by C of the token after it, which is the last's or, if learned, one of its
 * own. */
static void end_backward(const context *x, const workspace *w, const sr_document_range *document,
                         const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    const running_state *state = &w->buffers.state;
    const carried_matrix carried = chunk_carried(state, &x->basis);
    const double factor = exp(chunk_end(x->call, c, document) - *state->reference);
    const double d = carried_dot(&carried, x->call->plan->states.d_final, p, c->b, c->kv, factor);
    if (x->row_work.d_end)
        x->row_work.d_end[c->b * p->Hkv + c->kv] = d;
    else
        w->d_decay[document->length - 1] += d;
}

/* First pass, forward: state of keys and values. */
static void walk_queries(const context *x, const workspace *w, const sr_document_range *document,
                         chunk c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int heads = p->H / p->Hkv;
    const srnn_states *given = &x->call->plan->states;
    const carried_matrix carried = chunk_carried(&w->buffers.state, &x->basis);
    const bool leaves = c.decay && carried_out(given->d_final, p, document);
    memset(w->buffers.state.matrix, 0, chunked_state_bytes(p));
    if (c.carried)
        carried_load(&carried, given->initial, p, c.b, c.kv, 1);
    for (int64_t at = 0; at < document->length && !sr_cancelled(); at += c.count) {
        chunk_move(&c, p, document, at);
        chunk_load_keys(&w->buffers, &x->row_work, x->call, &c);
        for (c.h = c.kv * heads; c.h < (c.kv + 1) * heads; c.h++) {
            load_queries(x, w, &c);
            inside_chunk(x, w, &c);
            if (c.at > 0 || c.carried)
                queries_through_state(x, w, &c);
            SR_ISA_REAL(sr_prologue_query_rows_backward)
            (w->d_queries, ld.d, &x->row_work, x->call, (sr_rows){c.b, c.h, c.t, c.count});
        }
        if (c.at + c.count < document->length || leaves)
            move_state(x, w, &c,
                       &(state_move){.columns = w->buffers.key_columns,
                                     .rows = w->buffers.values,
                                     .empty = c.at == 0 && !c.carried});
    }
    if (leaves)
        end_backward(x, w, document, &c);
}

/* Gradients of the chunk's keys and values through the mirror state after it. */
static void keys_through_state(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    bool sums = sr_needs_row_sum(&p->attention);
    const feature_tokens keys =
        chunk_tokens(&w->buffers, &x->basis, w->buffers.key_columns, ld.token, c);
    decay_factors(w, c, -1.0, *w->buffers.state.reference);
    state_read(w->from_state, sums ? w->row : NULL, &w->buffers.state, &keys,
               round_up(c->count, ROWS));
    for (int64_t r = 0; r < c->count; r++) {
        const real *later = w->from_state + r * ld.dv;
        for (int64_t d = 0; d < p->Dv; d++)
            w->d_values[(c->at + r) * ld.dv + d] += w->buffers.factor[r] * later[d];
        if (c->decay)
            w->d_decay[c->at + r] -= (double)w->buffers.factor[r] *
                                     (row_dot(later, w->buffers.values + r * ld.dv, p->Dv) +
                                      (sums ? (double)w->row[r] : 0.0));
    }
    memcpy(w->row, w->buffers.factor, (size_t)ld.token * sizeof(real));
    memcpy(w->from_state, w->buffers.values, (size_t)(c->count * ld.dv) * sizeof(real));
    scale_rows(w->from_state, ld.dv, w->buffers.factor, c->count, p->Dv);
    transpose_rows(w->value_columns, ld.token, w->from_state, ld.dv, c->count, p->Dv, c->width);
    features_backward(w, &keys, p, NULL);
    add_transposed(w->d_keys + c->at * ld.d, ld.d, w->d_columns, ld.token, c->count, p->D);
}

static void write_keys(const context *x, const workspace *w, const chunk *c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    SR_ISA_REAL(sr_prologue_key_rows_backward)
    (w->d_keys + c->at * ld.d, ld.d, &x->row_work, x->call, (sr_rows){c->b, c->kv, c->t, c->count});
    SR_ISA_REAL(sr_prologue_value_rows_backward)
    (w->d_values + c->at * ld.dv, w->buffers.values, ld.dv, &x->row_work, x->call,
     (sr_rows){c->b, c->kv, c->t, c->count});
    if (x->row_work.d_decay)
        memcpy(x->row_work.d_decay + sr_row_index(p, p->Hkv, c->b, c->kv, c->t), w->d_decay + c->at,
               (size_t)c->count * sizeof *w->d_decay);
}

/* Second pass, backward: state of queries and numerator gradients. */
static void walk_keys(const context *x, const workspace *w, const sr_document_range *document,
                      chunk c) {
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    int heads = p->H / p->Hkv;
    const srnn_states *given = &x->call->plan->states;
    const carried_matrix carried = chunk_carried(&w->buffers.state, &x->basis);
    const bool wanted = c.carried && given->d_initial;
    bool empty = !carried_out(given->d_final, p, document);
    memset(w->buffers.state.matrix, 0, chunked_state_bytes(p));
    if (!empty) {
        carried_load(&carried, given->d_final, p, c.b, c.kv, 1);
        *w->buffers.state.reference = chunk_end(x->call, &c, document);
    }
    for (int64_t at = (document->length - 1) / p->chunk * p->chunk; at >= 0 && !sr_cancelled();
         at -= p->chunk) {
        chunk_move(&c, p, document, at);
        chunk_load_keys(&w->buffers, &x->row_work, x->call, &c);
        if (!empty)
            keys_through_state(x, w, &c);
        write_keys(x, w, &c);
        for (c.h = c.kv * heads; (c.at > 0 || wanted) && c.h < (c.kv + 1) * heads;
             c.h++, empty = false) {
            load_queries(x, w, &c);
            transpose_rows(w->buffers.query_columns, ld.token, w->buffers.queries, ld.d, c.count,
                           p->D, c.width);
            move_state(x, w, &c,
                       &(state_move){.columns = w->buffers.query_columns,
                                     .rows = w->d_numerator,
                                     .ones = x->row_work.d_row_sum +
                                             sr_row_index(p, p->H, c.b, c.h, c.t),
                                     .backwards = true,
                                     .empty = empty});
        }
    }
    if (wanted)
        carried_store(given->d_initial, &carried, p, c.b, c.kv,
                      (real)exp(*w->buffers.state.reference));
}

static void document_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const srnn_problem *p = &x->call->plan->core;
    chunk_strides ld = chunk_strides_of(p);
    const workspace *w = &x->workers[worker];
    const sr_document_range *document = &x->call->plan->documents[task / p->Hkv];
    chunk c = chunk_of(p, &x->row_work, document, (int)(task % p->Hkv));
    size_t rows = (size_t)(document->length + round_up(p->chunk, ROWS));
    c.carried = carried_into(&x->call->plan->states, document);
    memset(w->d_keys, 0, rows * (size_t)ld.d * sizeof(real));
    memset(w->d_values, 0, rows * (size_t)ld.dv * sizeof(real));
    memset(w->d_decay, 0, (rows + LANES) * sizeof *w->d_decay);
    walk_queries(x, w, document, c);
    walk_keys(x, w, document, c);
}

srnn_status chunked_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    const srnn_problem *p = &plan->core;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.call = call;
    x.rule = score_rule_of(&p->attention);
    feature_basis_fill(&x.basis, &p->attention, p->D);
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    SR_ISA_REAL(sr_epilogue_backward)(&x.row_work, call);
    sr_parallel(document_task, &x, plan->document_count * p->Hkv, p->threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.row_work, call);
    return SRNN_OK;
}
