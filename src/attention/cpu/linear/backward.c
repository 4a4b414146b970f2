/* backward.c: linear scores through a state, backward: documents.
 *
 * A first pass stores the state before each block. Then, from the last block to the first, the
 * states before its chunks are recomputed and the gradient of the state is propagated back through
 * them. */
#include "attention/cpu/linear/backward.h"
#include "base/cancel.h"
#include "base/threads.h"

typedef struct context {
    const sr_attention_call *call;
    sr_row_workspace row_work;
    linear_workspace *workers;
} context;

/* A state whose matrices are complete without factors. */
static linear_state take_state(const srnn_problem *p, sr_layout *layout) {
    linear_state state = linear_state_place(p, layout);
    state.scale = NULL;
    return state;
}

static linear_state *take_states(const srnn_problem *p, int64_t count, sr_layout *layout) {
    linear_state *states = sr_layout_take(layout, (size_t)count, sizeof *states);
    for (int64_t n = 0; n < count; n++) {
        const linear_state state = take_state(p, layout);
        if (states)
            states[n] = state;
    }
    return states;
}

static linear_workspace workspace_place(const srnn_problem *p, sr_layout *layout) {
    const int64_t d = row_stride(p->D), dv = row_stride(p->Dv), group = p->H / p->Hkv;
    const int64_t token = row_stride(tile_width(LINEAR_BLOCK));
    const int64_t length = linear_block_tokens(&p->attention);
    const size_t decays = (size_t)linear_decays(p);
    const bool rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    const bool errors =
        p->attention.write != SRNN_WRITE_ADD && p->attention.levels != SRNN_LEVELS_FENWICK;
    linear_workspace w = {
        .rows = linear_rows_place(p, layout),
        .buffers = linear_buffers_place(p, layout),
        .state = take_state(p, layout),
        .gradient = take_state(p, layout),
        .before = take_states(p, (p->T + length - 1) / length, layout),
        .errors = errors ? take_reals(layout, p->T + ROWS, dv) : NULL,
        .inside = take_states(p, length, layout),
        .d_numerators = take_reals(layout, group * BLOCK_ROWS, dv),
        .weights = take_rows(layout, token),
        .d_weights = take_rows(layout, token),
        .u_columns = take_reals(layout, p->Dv, token),
        .transposed = take_reals(layout, p->Dv, d),
        .product_d = take_rows(layout, d),
        .product_dv = take_rows(layout, dv),
        .d_u = take_reals(layout, linear_u_rows(p) + BLOCK_ROWS, dv),
        .d_late = take_rows(layout, d),
        .d_keys = take_rows(layout, d),
        .d_queries = take_reals(layout, group * BLOCK_ROWS, d),
        .d_values = take_rows(layout, dv),
        .change = sr_layout_take(layout, LINEAR_BLOCK * decays, sizeof(double)),
        .onward = sr_layout_take(layout, decays, sizeof(double)),
        .across = decays > 1 && sr_decay_has_rate(&p->attention)
                      ? sr_layout_take(layout, decays, sizeof(double))
                      : NULL,
        .later = sr_layout_take(layout, decays, sizeof(double)),
    };
    if (sr_erases_apart(&p->attention))
        w.d_erase = take_rows(layout, d);
    if (p->attention.write == SRNN_WRITE_REMOVAL) {
        w.d_removed = take_rows(layout, d);
        w.d_own_values = take_rows(layout, dv);
    }
    w.d_plain_keys = rotated ? take_rows(layout, d) : w.d_keys;
    w.d_plain_queries = rotated ? take_reals(layout, group * BLOCK_ROWS, d) : w.d_queries;
    return w;
}

static context place(const srnn_plan *plan, sr_layout *layout) {
    context x = {0};
    SR_ISA_REAL(sr_workspace_place)(&x.row_work, plan, true, layout);
    x.workers = sr_layout_take(layout, (size_t)plan->core.threads, sizeof *x.workers);
    for (int n = 0; n < plan->core.threads; n++) {
        const linear_workspace w = workspace_place(&plan->core, layout);
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

/* ---- states before chunks */

static void copy_state(const linear_state *to, const linear_state *from, const srnn_problem *p) {
    const size_t levels = (size_t)linear_levels(p);
    memcpy(to->matrix, from->matrix, levels * (size_t)linear_matrix(p) * sizeof(real));
    memcpy(to->column, from->column, levels * (size_t)row_stride(p->D) * sizeof(real));
    if (linear_decays(p))
        memcpy(to->reference, from->reference, (size_t)linear_decays(p) * sizeof(double));
}

/* Advances the state over a block and returns its number of chunks. Stores the state before each
 * chunk in `inside` unless that is NULL. */
static int64_t walk_block(const linear_workspace *w, const linear_walk *x, const linear_block *b,
                          const linear_state *inside, linear_chunk *chunks) {
    int64_t count = 0;
    for (int64_t row = 0; row < b->count; count++) {
        const linear_chunk c = linear_chunk_at(x, b, row);
        linear_merge(&w->state, x, &c);
        row += c.count;
        if (inside) {
            copy_state(&inside[count], &w->state, x->p);
            chunks[count] = c;
            if (row == b->count)
                continue;
        }
        linear_buffers buffers = w->buffers;
        if (w->errors && !inside)
            buffers.error = w->errors + c.at * x->dv;
        const linear_keys k = linear_keys_of(&buffers, &w->rows, x, &c, &w->state, false);
        linear_write(&buffers, &k, x, &c, &w->state);
        linear_move(&w->state, &buffers, &k, x, &c);
    }
    return count;
}

/* First pass: stores the state before every block, and the errors of its tokens; with `ends` the
 * state after the last one too. */
static void keep_states(const linear_workspace *w, const linear_walk *x, bool ends) {
    linear_state_begin(&w->state, x);
    for (int64_t at = 0; at < x->document->length && !sr_cancelled();) {
        linear_block b = linear_block_at(x, at);
        copy_state(&w->before[at / linear_block_length(x)], &w->state, x->p);
        at += b.count;
        if (at == x->document->length && !w->errors && !ends)
            return;
        linear_load_keys(&w->rows, x, &b);
        walk_block(w, x, &b, NULL, NULL);
    }
}

static void load_gradients(const linear_workspace *w, const linear_walk *x, linear_block *b,
                           int g) {
    const srnn_problem *p = x->p;
    const sr_rows at = linear_query_rows(x, b, g);
    const real *from = x->row_work->d_numerator + sr_row_index(p, p->H, at.b, at.h, at.t) * p->Dv;
    real *to = w->d_numerators + g * BLOCK_ROWS * x->dv;
    clear_columns(to, x, b->count);
    for (int64_t r = 0; r < b->count; r++)
        memcpy(to + r * x->dv, from + r * p->Dv, (size_t)p->Dv * sizeof(real));
    b->finite = b->finite && rows_are_finite(to, x->dv, b->count, p->Dv);
}

/* ---- a document */

/* rows = rows with the inverse RoPE applied, plus plain; nothing to do if both are the same. */
static void join_rows(const linear_walk *x, real *rows, const real *plain, sr_rows at) {
    if (rows == plain)
        return;
    SR_ISA_REAL(sr_prologue_rope)(rows, x->d, x->row_work, x->call, at, true);
    for (int64_t r = 0; r < at.count; r++)
        for (int64_t e = 0; e < x->p->D; e++)
            rows[r * x->d + e] += plain[r * x->d + e];
}

static void write_block(const linear_workspace *w, const linear_walk *x, const linear_block *b) {
    for (int g = 0; g < x->group; g++) {
        const sr_rows at = linear_query_rows(x, b, g);
        const int64_t from = g * BLOCK_ROWS * x->d;
        join_rows(x, w->d_queries + from, w->d_plain_queries + from, at);
        SR_ISA_REAL(sr_prologue_query_rows_backward)
        (w->d_queries + from, x->d, x->row_work, x->call, at);
    }
    const sr_rows at = linear_key_rows(x, b);
    join_rows(x, w->d_keys, w->d_plain_keys, at);
    if (x->apart)
        SR_ISA_REAL(sr_prologue_erase_rows_backward)
    (w->d_keys, (sr_erase_rows){w->d_erase, w->d_removed}, w->rows.keys, x->d, x->row_work, x->call,
     at);
    SR_ISA_REAL(sr_prologue_key_rows_backward)(w->d_keys, x->d, x->row_work, x->call, at);
    SR_ISA_REAL(sr_prologue_value_rows_backward)
    (w->d_values, w->rows.values, x->dv, x->row_work, x->call, at);
}

/* Clears the gradients that the chunks of a block accumulate. */
static void clear_gradients(const linear_workspace *w, const linear_walk *x,
                            const linear_block *b) {
    const size_t rows = (size_t)(b->count * x->d) * sizeof(real);
    const sr_rows keys = linear_key_rows(x, b);
    memset(w->d_keys, 0, rows);
    memset(w->d_plain_keys, 0, rows);
    for (int g = 0; g < x->group; g++) {
        const sr_rows at = linear_query_rows(x, b, g);
        memset(w->d_queries + g * BLOCK_ROWS * x->d, 0, rows);
        memset(w->d_plain_queries + g * BLOCK_ROWS * x->d, 0, rows);
        if (x->leveled)
            memset(x->row_work->d_level +
                       sr_row_index(x->p, x->p->H, at.b, at.h, at.t) * x->p->levels,
                   0, (size_t)(b->count * x->p->levels) * sizeof(double));
    }
    if (x->apart)
        memset(w->d_erase, 0, rows);
    if (x->removal)
        memset(w->d_removed, 0, rows);
    if (x->row_work->d_beta)
        memset(x->row_work->d_beta + sr_row_index(x->p, x->p->Hkv, keys.b, keys.h, keys.t), 0,
               (size_t)b->count * sizeof(double));
}

static void block_backward(const linear_workspace *w, const linear_walk *x, int64_t at) {
    linear_block b = linear_block_at(x, at);
    linear_chunk chunks[LINEAR_BLOCK];
    linear_load_keys(&w->rows, x, &b);
    for (int g = 0; g < x->group; g++) {
        linear_load_queries(&w->rows, x, &b, g);
        load_gradients(w, x, &b, g);
    }
    clear_gradients(w, x, &b);
    const linear_state *before = &w->before[at / linear_block_length(x)], *inside = before;
    int64_t count = 1;
    chunks[0] = linear_chunk_at(x, &b, 0);
    if (x->leveled || chunks[0].count < b.count) {
        copy_state(&w->state, before, x->p);
        count = walk_block(w, x, &b, w->inside, chunks);
        inside = w->inside;
    }
    while (count-- > 0) {
        const linear_keys k =
            linear_keys_of(&w->buffers, &w->rows, x, &chunks[count], &inside[count], true);
        linear_chunk_backward(&(linear_chunk_place){w, x, &chunks[count], &k, &inside[count]});
    }
    write_block(w, x, &b);
}

/* R from the gradient of the final state; of a learned decay, that of the gate after the last
 * token. */
static void end_backward(const linear_workspace *w, const linear_walk *x) {
    const void *d_final = x->call->plan->states.d_final;
    const int64_t b = x->document->b;
    const double end = linear_end(x);
    const carried_matrix state = linear_carried(&w->state, x), to = linear_carried(&w->gradient, x);
    if (x->row_work->d_end) {
        *w->later = carried_dot(&state, d_final, x->p, b, x->kv, end);
        x->row_work->d_end[b * x->p->Hkv + x->kv] = *w->later;
    }
    carried_load(&to, d_final, x->p, b, x->kv, (real)end);
}

static void document_task(void *untyped, int64_t task, int worker) {
    const context *x = untyped;
    const linear_workspace *w = &x->workers[worker];
    const linear_walk walk = linear_walk_of(&x->row_work, x->call, task, 0);
    const int64_t length = linear_block_length(&walk);
    const srnn_states *given = &x->call->plan->states;
    const bool leaves = carried_out(given->d_final, walk.p, walk.document);
    keep_states(w, &walk, leaves && x->row_work.d_end);
    linear_state_clear(&w->gradient, walk.p);
    memset(w->later, 0, (size_t)walk.decays * sizeof *w->later);
    if (leaves)
        end_backward(w, &walk);
    for (int64_t at = (walk.document->length - 1) / length * length; at >= 0 && !sr_cancelled();
         at -= length)
        block_backward(w, &walk, at);
    const carried_matrix carried = linear_carried(&w->gradient, &walk);
    if (walk.carried && given->d_initial)
        carried_store(given->d_initial, &carried, walk.p, walk.document->b, walk.kv, 1);
}

srnn_status linear_backward(const sr_attention_call *call) {
    const srnn_plan *plan = call->plan;
    sr_layout layout = {.base = plan->scratch, .apart = true};
    context x = place(plan, &layout);
    x.call = call;
    SR_ISA_REAL(sr_prologue_prepare)(&x.row_work, plan, call->in, NULL);
    SR_ISA_REAL(sr_epilogue_backward)(&x.row_work, call);
    sr_parallel(document_task, &x, plan->document_count * plan->core.Hkv, plan->core.threads);
    SR_ISA_REAL(sr_prologue_backward)(&x.row_work, call);
    return SRNN_OK;
}
