/* logit_rows.c: the logits of every query of an attention layer, in double, row by row. */
#include "analysis/logit_rows.h"

#include "base/memory.h"
#include "base/threads.h"
#include "equation/score.h"

#include <stdlib.h>

/* Memory of one thread. */
typedef struct workspace {
    double *keys;   /* (D, T): transposed, so that a row of logits is computed from contiguous
                     * memory */
    double *values; /* (T, D) */
    double *s;      /* (T) */
    double *scratch;
} workspace;

struct sr_logit_rows {
    sr_logit_rows_setup setup;
    int workers;
    workspace *workspaces; /* (workers) */
    void *memory;
};

/* One call, for sr_parallel. */
typedef struct round_of_visits {
    sr_logit_rows *rows;
    const srnn_attention *attention;
    double scale;
    const srnn_operands *in;
    sr_logit_visit *visit;
    void *context;
} round_of_visits;

static workspace lay_out(sr_layout *layout, const sr_logit_rows_setup *s) {
    const size_t T = (size_t)s->T, D = (size_t)s->D;
    return (workspace){.keys = sr_layout_take(layout, D * T, sizeof(double)),
                       .values = sr_layout_take(layout, D * T, sizeof(double)),
                       .s = sr_layout_take(layout, T, sizeof(double)),
                       .scratch = sr_layout_take(layout, s->scratch, sizeof(double))};
}

static srnn_status fill(sr_logit_rows *rows) {
    void *memory;
    sr_layout layout = {0};
    rows->workers = sr_thread_count(rows->setup.threads);
    SR_TRY(sr_alloc_zero(&memory, (size_t)rows->workers, sizeof *rows->workspaces));
    rows->workspaces = memory;
    for (int worker = 0; worker < rows->workers; worker++)
        lay_out(&layout, &rows->setup);
    SR_TRY(sr_alloc(&rows->memory, layout.used, 1));
    layout = (sr_layout){.base = rows->memory};
    for (int worker = 0; worker < rows->workers; worker++)
        rows->workspaces[worker] = lay_out(&layout, &rows->setup);
    return SRNN_OK;
}

srnn_status sr_logit_rows_create(sr_logit_rows **rows, const sr_logit_rows_setup *setup) {
    void *memory;
    *rows = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **rows));
    sr_logit_rows *created = memory;
    created->setup = *setup;
    const srnn_status status = fill(created);
    if (status != SRNN_OK) {
        sr_logit_rows_free(created);
        return status;
    }
    *rows = created;
    return SRNN_OK;
}

void sr_logit_rows_free(sr_logit_rows *rows) {
    if (!rows)
        return;
    free(rows->memory);
    free(rows->workspaces);
    free(rows);
}

static const float *numbers_at(const srnn_tensor *tensor, int b, int head, int t) {
    const float *data = tensor->data;
    return data + b * tensor->batch + head * tensor->head + t * tensor->time;
}

/* The factor on the value of position t. */
static double value_factor(const round_of_visits *round, int b, int head, int t) {
    const srnn_attention *a = round->attention;
    double factor = 1;
    if (a->value_gate == SRNN_VALUE_GATE_SIGMOID)
        factor = sr_sigmoid((double)*numbers_at(&round->in->value_gate, b, head, t));
    if (a->normaliser == SRNN_NORMALISER_VALUE_POWER)
        factor *= pow(t + 1, -sr_sigmoid((double)((const float *)round->in->value_power)[head]));
    return factor;
}

static void load_keys(workspace *own, const round_of_visits *round, int b, int head) {
    const sr_logit_rows_setup *s = &round->rows->setup;
    for (int t = 0; t < s->T; t++) {
        const float *k = numbers_at(&round->in->k, b, head, t);
        const float *v = numbers_at(&round->in->v, b, head, t);
        const double factor = value_factor(round, b, head, t);
        for (int d = 0; d < s->D; d++) {
            own->keys[(size_t)d * (size_t)s->T + (size_t)t] = (double)k[d];
            own->values[(size_t)t * (size_t)s->D + (size_t)d] = factor * (double)v[d];
        }
    }
}

/* own->s = the logits of one query over the first `count` keys. */
static void multiply(workspace *own, const float *q, int count, const round_of_visits *round) {
    const sr_logit_rows_setup *s = &round->rows->setup;
    for (int j = 0; j < count; j++)
        own->s[j] = 0;
    for (int d = 0; d < s->D; d++) {
        const double *keys = own->keys + (size_t)d * (size_t)s->T;
        const double scaled = round->scale * (double)q[d];
        for (int j = 0; j < count; j++)
            own->s[j] += scaled * keys[j];
    }
}

static void visit_head(void *context, int64_t head, int worker) {
    const round_of_visits *round = context;
    const srnn_operands *in = round->in;
    const sr_logit_rows_setup *s = &round->rows->setup;
    const bool gated = sr_uses_output_gate(round->attention);
    const bool by_channel = gated && round->attention->gate_width == SRNN_WIDTH_CHANNEL;
    workspace *own = &round->rows->workspaces[worker];
    for (int b = 0; b < s->B; b++) {
        sr_logit_row row = {.b = b,
                            .head = (int)head,
                            .facts = {.attention = round->attention,
                                      .D = s->D,
                                      .norm_weight = in->norm_weight,
                                      .norm_bias = in->norm_bias},
                            .s = own->s,
                            .v = own->values,
                            .scratch = own->scratch};
        load_keys(own, round, b, (int)head / (s->H / s->Hkv));
        for (int t = 0; t < s->T; t++) {
            multiply(own, numbers_at(&in->q, b, (int)head, t), t + 1, round);
            row.t = t;
            row.facts.count = t + 1;
            if (by_channel)
                row.facts.gates = numbers_at(&in->output_gate, b, (int)head, t);
            else if (gated)
                row.facts.gate = (double)*numbers_at(&in->output_gate, b, (int)head, t);
            row.facts.gate_sum += exp(row.facts.gate);
            round->visit(round->context, &row);
        }
    }
}

void sr_logit_rows_visit(sr_logit_rows *rows, const srnn_attention *attention,
                         const srnn_operands *in, sr_logit_visit *visit, void *context) {
    round_of_visits round = {.rows = rows,
                             .attention = attention,
                             .scale = sr_scale_factor(attention, rows->setup.D),
                             .in = in,
                             .visit = visit,
                             .context = context};
    sr_parallel(visit_head, &round, rows->setup.H, rows->workers);
}
