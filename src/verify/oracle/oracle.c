/* oracle.c: the equation of docs/VARIANTS.md in double, term by term: documents in, numbers out. */
#include "verify/oracle/oracle.h"

#include "base/memory.h"
#include "equation/support.h"
#include "verify/oracle/document.h"

#include <stdlib.h>
#include <string.h>

/* All that is computed here, in the words of equation/support.h: a new axis or value is refused
 * until it is written below and added to this list. */
static const char COMPUTES[] =
    "score=exp|linear|taylor|power|sigmoid position=rope|none|rope_features|rope_chunks "
    "share=kv|qk|qk_tiled scale=inverse_sqrt|one "
    "feature=identity|relu|elu1|unit|unit_heads|unit_smooth|norm_split|norm_cosine "
    "cap=any clamp=any score_bias=any "
    "decay=none|learned|log_sigmoid|softplus|bounded|neg_softplus|given decay_divisor=any "
    "decay_bound=any decay_width=head|channel decay_place=weight|logit "
    "dt_width=head|channel|none pool=any window=any value_gate=off|sigmoid|time_step "
    "write=add|delta|removal write_range=1|2 write_width=head|channel write_gate=sigmoid|given "
    "levels=none|fenwick "
    "normaliser=row_sum|row_sum_min1|row_length|none|cumulative_gate|value_power detach=off|on "
    "epsilon=any sink=none|zero|learned skip=none|head|channel|conv|bonus "
    "output_gate=none|sigmoid|inverse_exp|inverse_cumulative post_gate=off|sigmoid "
    "gate_width=head|channel gate_shape=sigmoid|silu|silu_square|identity "
    "norm=none|layer|rms|l2|l2_scaled norm_width=head|row norm_weight=shared|head "
    "norm_epsilon=any";

/* One operand: its data, and its width per head and token. */
typedef struct source {
    const void *data;
    void *gradient;
    int64_t heads, width; /* heads 0: one row of `width` numbers for all tokens */
} source;

static bool norm_has_weight(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_NONE:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        break;
    case SRNN_NORM_LAYER:
    case SRNN_NORM_RMS:
        return true;
    }
    return false;
}

static bool norm_has_bias(srnn_norm norm) {
    switch (norm) {
    case SRNN_NORM_NONE:
    case SRNN_NORM_RMS:
    case SRNN_NORM_L2:
    case SRNN_NORM_L2_SCALED:
        break;
    case SRNN_NORM_LAYER:
        return true;
    }
    return false;
}

static srnn_status add_target(sr_document *x, sr_target target) {
    if (x->target_count == x->target_workspace) {
        const int64_t capacity = x->target_workspace ? 2 * x->target_workspace : 1024;
        sr_target *larger = realloc(x->targets, (size_t)capacity * sizeof *larger);
        if (!larger)
            return SR_FAIL(SRNN_ERR_MEMORY, "the oracle: no memory for %lld gradients",
                           (long long)capacity);
        x->targets = larger;
        x->target_workspace = capacity;
    }
    x->targets[x->target_count++] = target;
    return SRNN_OK;
}

/* One document's part of an operand, as terms. */
static srnn_status load(sr_document *x, sr_term **terms, source from) {
    const int64_t T = x->problem->T, heads = from.heads ? from.heads : 1;
    const int64_t tokens = from.heads ? x->length : 1;
    SR_TRY(sr_alloc((void **)terms, (size_t)(heads * tokens * from.width), sizeof **terms));
    for (int64_t n = 0; n < heads * tokens * from.width; n++) {
        const int64_t h = n / (tokens * from.width), rest = n % (tokens * from.width);
        const int64_t at =
            from.heads ? ((x->b * heads + h) * T + x->start) * from.width + rest : rest;
        const sr_term number = sr_tape_number(x->tape, ((const double *)from.data)[at]);
        (*terms)[n] = from.heads ? sr_tape_round(x->tape, number) : number;
        if (from.gradient)
            SR_TRY(add_target(x, (sr_target){number, (double *)from.gradient + at}));
    }
    return SRNN_OK;
}

/* Every operand that the variant reads: its array in the document and in the call. */
typedef struct reading {
    bool used;
    sr_term **terms;
    source from;
} reading;

enum { READINGS = 21 };

static void list_readings(reading readings[READINGS], sr_document *x, const srnn_operands *in,
                          const srnn_operands *g) {
    const srnn_problem *p = x->problem;
    const srnn_attention *a = x->a;
    const int64_t values = x->heads.value, wide = p->D > p->Dv ? p->D : p->Dv;
    const bool gated = a->output_gate != SRNN_GATE_NONE || a->post_gate ||
                       a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE;
    const bool weighted =
        a->skip == SRNN_SKIP_HEAD || a->skip == SRNN_SKIP_CHANNEL || a->skip == SRNN_SKIP_BONUS;
    const bool channels = a->write_width == SRNN_WIDTH_CHANNEL;
    const bool removal = a->write == SRNN_WRITE_REMOVAL;
    const int64_t keys = x->heads.key, decayed = channels ? keys : values;
    const bool rated = (a->decay == SRNN_DECAY_SOFTPLUS || a->decay == SRNN_DECAY_BOUNDED) &&
                       a->dt_width != SRNN_DT_WIDTH_NONE;
    const int64_t biases = a->dt_width == SRNN_DT_WIDTH_CHANNEL ? decayed * p->D : decayed;
    const bool levels = a->levels == SRNN_LEVELS_FENWICK;
    const int64_t gate = a->gate_width == SRNN_WIDTH_CHANNEL ? p->Dv : 1;
    const int64_t decay = a->decay_width == SRNN_WIDTH_CHANNEL ? p->D : 1;
    const bool apart =
        a->norm_width == SRNN_NORM_WIDTH_ROW || a->norm_weight == SRNN_NORM_WEIGHT_HEAD;
    const int64_t norm = apart ? p->H * p->Dv : p->Dv;
    const int64_t skip = p->H * (a->skip == SRNN_SKIP_CHANNEL ? p->Dv
                                 : a->skip == SRNN_SKIP_BONUS ? p->D
                                                              : 1);
    const reading all[READINGS] = {
        {true, &x->q, {in->q.data, g->q.data, x->heads.query, p->D}},
        {true, &x->k, {in->k.data, g->k.data, x->heads.key, p->D}},
        {true, &x->v, {in->v.data, g->v.data, values, p->Dv}},
        {a->value_gate == SRNN_VALUE_GATE_SIGMOID,
         &x->value_gate,
         {in->value_gate.data, g->value_gate.data, values, 1}},
        {gated, &x->output_gate, {in->output_gate.data, g->output_gate.data, p->H, gate}},
        {a->decay != SRNN_DECAY_NONE, &x->decay, {in->decay.data, g->decay.data, decayed, decay}},
        {a->write == SRNN_WRITE_DELTA,
         &x->write_gate,
         {in->write_gate.data, g->write_gate.data, values, channels ? p->Dv : 1}},
        {channels, &x->erase_gate, {in->erase_gate.data, g->erase_gate.data, keys, p->D}},
        {removal, &x->removal_key, {in->removal_key.data, g->removal_key.data, keys, p->D}},
        {removal, &x->removal_gate, {in->removal_gate.data, g->removal_gate.data, keys, p->D}},
        {levels, &x->level_gate, {in->level_gate.data, g->level_gate.data, p->H, x->levels}},
        {a->pool > 0, &x->pool_gate, {in->pool_gate.data, g->pool_gate.data, values, wide}},
        {a->skip == SRNN_SKIP_CONV, &x->skip, {in->skip.data, g->skip.data, values, p->Dv}},
        {norm_has_weight(a->norm), &x->norm_weight, {in->norm_weight, g->norm_weight, 0, norm}},
        {norm_has_bias(a->norm), &x->norm_bias, {in->norm_bias, g->norm_bias, 0, norm}},
        {a->normaliser == SRNN_NORMALISER_VALUE_POWER,
         &x->value_power,
         {in->value_power, g->value_power, 0, values}},
        {rated, &x->a_log, {in->a_log, g->a_log, 0, decayed}},
        {rated, &x->dt_bias, {in->dt_bias, g->dt_bias, 0, biases}},
        {weighted, &x->skip_weight, {in->skip_weight, g->skip_weight, 0, skip}},
        {levels, &x->level_scale, {in->level_scale, g->level_scale, 0, p->H * x->levels}},
        {a->sink == SRNN_SINK_LEARNED, &x->sinks, {in->sinks, g->sinks, 0, p->H}},
    };
    memcpy(readings, all, sizeof all);
}

static srnn_status load_all(sr_document *x, const srnn_operands *in, const srnn_operands *g) {
    const srnn_problem *p = x->problem;
    const srnn_attention *a = x->a;
    reading readings[READINGS];
    list_readings(readings, x, in, g);
    for (int n = 0; n < READINGS; n++)
        if (readings[n].used)
            SR_TRY(load(x, readings[n].terms, readings[n].from));
    const size_t T = (size_t)x->length, rows = (size_t)p->H * T, Dv = (size_t)p->Dv;
    const bool summed = a->normaliser == SRNN_NORMALISER_CUMULATIVE_GATE ||
                        a->output_gate == SRNN_GATE_INVERSE_CUMULATIVE;
    if (summed)
        SR_TRY(sr_alloc((void **)&x->gate_sum, rows, sizeof *x->gate_sum));
    if (a->write == SRNN_WRITE_DELTA && a->levels == SRNN_LEVELS_FENWICK)
        SR_TRY(sr_alloc((void **)&x->kappa, T * T, sizeof *x->kappa));
    if (a->write == SRNN_WRITE_REMOVAL)
        SR_TRY(sr_alloc((void **)&x->removed, (size_t)x->heads.value * T * Dv, sizeof *x->removed));
    SR_TRY(sr_alloc((void **)&x->weights, T, sizeof *x->weights));
    SR_TRY(sr_alloc((void **)&x->sum_weights, T, sizeof *x->sum_weights));
    SR_TRY(sr_alloc((void **)&x->row_sums, rows, sizeof *x->row_sums));
    SR_TRY(sr_alloc((void **)&x->scratch, (size_t)p->H * Dv, sizeof *x->scratch));
    SR_TRY(sr_alloc((void **)&x->u, (size_t)x->heads.value * T * Dv, sizeof *x->u));
    return sr_alloc((void **)&x->o, rows * Dv, sizeof *x->o);
}

static void clear(sr_document *x) {
    sr_term *const arrays[] = {x->q,           x->k,           x->v,           x->value_gate,
                               x->write_gate,  x->output_gate, x->decay,       x->level_gate,
                               x->pool_gate,   x->skip,        x->norm_weight, x->norm_bias,
                               x->value_power, x->a_log,       x->dt_bias,     x->skip_weight,
                               x->level_scale, x->plain_v,     x->rotated_q,   x->rotated_k,
                               x->u,           x->kappa,       x->gate_sum,    x->weights,
                               x->sum_weights, x->row_sums,    x->scratch,     x->o,
                               x->signed_k,    x->erase_gate,  x->removal_key, x->removal_gate,
                               x->removed,     x->plain_q,     x->plain_k,     x->sinks};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; n++)
        free(arrays[n]);
    free(x->targets);
    sr_tape_clear(x->tape);
}

/* The index of a document's output number n in o and d_o. */
static int64_t place_of(const sr_document *x, int64_t n) {
    const srnn_problem *p = x->problem;
    const int64_t h = n / (x->length * p->Dv), rest = n % (x->length * p->Dv);
    return ((x->b * p->H + h) * p->T + x->start) * p->Dv + rest;
}

static srnn_status differentiate(const sr_document *x, const double *d_o) {
    const int64_t count = x->problem->H * x->length * x->problem->Dv;
    double *weights;
    SR_TRY(sr_alloc((void **)&weights, (size_t)count, sizeof *weights));
    for (int64_t n = 0; n < count; n++)
        weights[n] = d_o ? d_o[place_of(x, n)] : 0;
    const srnn_status status = sr_tape_backward(x->tape, x->o, weights, count);
    for (int64_t n = 0; status == SRNN_OK && n < x->target_count; n++)
        *x->targets[n].gradient += sr_tape_derivative(x->tape, x->targets[n].term);
    free(weights);
    return status;
}

static srnn_status compute(sr_document *x) {
    const srnn_problem *p = x->problem;
    SR_TRY(sr_document_prepare(x));
    memcpy(x->u, x->v, (size_t)(x->heads.value * x->length * p->Dv) * sizeof *x->u); /* write=add */
    for (int64_t h = 0, written = -1; h < p->H; h++) {
        const int64_t value = sr_document_query(x, h, 0).value;
        if (x->a->write != SRNN_WRITE_ADD && value != written)
            sr_document_write(x, written = value);
        for (int64_t i = 0; i < x->length; i++)
            sr_document_attend(x, sr_document_query(x, h, i));
    }
    sr_document_finish(x);
    return SRNN_OK;
}

static srnn_status run_document(sr_document *x, double *o, const srnn_operands *in,
                                const srnn_operands *gradients, const double *d_o) {
    SR_TRY(load_all(x, in, gradients));
    SR_TRY(compute(x));
    SR_TRY(differentiate(x, d_o));
    for (int64_t n = 0; n < x->problem->H * x->length * x->problem->Dv; n++)
        o[place_of(x, n)] = sr_value_of(x, x->o[n]);
    return SRNN_OK;
}

/* The sizes of a document, from the variant and the problem. */
static void measure(sr_document *x) {
    const srnn_problem *p = x->problem;
    const srnn_attention *a = x->a;
    const bool split =
        a->feature == SRNN_FEATURE_NORM_SPLIT || a->feature == SRNN_FEATURE_NORM_COSINE;
    const bool queries = a->share != SRNN_SHARE_KV;
    x->width = split ? 2 * p->D : p->D;
    x->levels = p->levels ? p->levels : 15;
    x->heads = (sr_heads){queries ? p->Hkv : p->H, p->Hkv, queries ? p->H : p->Hkv};
}

static void zero_gradients(const srnn_operands *g, const srnn_problem *p) {
    sr_document sizes = {.problem = p, .a = &p->attention};
    reading readings[READINGS];
    measure(&sizes);
    list_readings(readings, &sizes, g, g);
    for (int n = 0; n < READINGS; n++) {
        const source *from = &readings[n].from;
        const int64_t rows = from->heads ? from->heads * p->B * p->T : 1;
        if (readings[n].used && from->gradient)
            memset(from->gradient, 0, (size_t)(rows * from->width) * sizeof(double));
    }
}

/* Runs every document of the problem; `common` has the settings they share, and collects their
 * clearance. */
static srnn_status run(sr_document *common, double *o, const srnn_operands *gradients,
                       const double *d_o, const srnn_operands *in) {
    const srnn_problem *p = common->problem;
    const srnn_operands none = {0};
    const int64_t documents = p->offsets ? p->documents : p->B;
    const sr_axis *missing;
    if (!sr_computes(COMPUTES, common->a, &missing))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "the oracle does not compute this %s", missing->name);
    SR_TRY(sr_tape_create(&common->tape));
    sr_tape_use_bits(common->tape,
                     p->dtype == SRNN_BF16  ? 8
                     : p->dtype == SRNN_F32 ? 24
                                            : 0,
                     common->scale);
    if (gradients)
        zero_gradients(gradients, p);
    srnn_status status = SRNN_OK;
    for (int64_t n = 0; n < documents && status == SRNN_OK; n++) {
        const int64_t first = p->offsets ? p->offsets[n] : n * p->T;
        const int64_t past = p->offsets ? p->offsets[n + 1] : first + p->T;
        sr_document x = *common;
        x.b = first / p->T;
        x.start = first % p->T;
        x.length = past - first;
        measure(&x);
        status = run_document(&x, o, in, gradients ? gradients : &none, d_o);
        common->clearance = x.clearance;
        clear(&x);
    }
    sr_tape_free(common->tape);
    return status;
}

srnn_status sr_oracle_run(double *o, const srnn_operands *gradients, const double *d_o,
                          const srnn_problem *p, const srnn_operands *in) {
    double clearance;
    return sr_oracle_run_clear(o, gradients, d_o, p, in, &clearance);
}

srnn_status sr_oracle_run_clear(double *o, const srnn_operands *gradients, const double *d_o,
                                const srnn_problem *p, const srnn_operands *in, double *clearance) {
    sr_document common = {.problem = p, .a = &p->attention, .scale = 1, .clearance = INFINITY};
    const srnn_status status = run(&common, o, gradients, d_o, in);
    *clearance = common.clearance;
    return status;
}

/* Seven parameters: those of every run, and the two that make it another one. */
srnn_status sr_oracle_run_rounded(double *o, const srnn_operands *gradients, const double *d_o,
                                  const srnn_problem *p, const srnn_operands *in, double scale,
                                  uint64_t state_seed) {
    sr_document common = {.problem = p,
                          .a = &p->attention,
                          .state_seed = state_seed,
                          .scale = scale,
                          .clearance = INFINITY};
    return run(&common, o, gradients, d_o, in);
}
