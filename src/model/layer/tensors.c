/* tensors.c: the tensors that an attention layer learns, derived from its descriptor. */
#include "model/layer/tensors.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct builder {
    sr_tensor_table *table;
    const char *prefix;
    const sr_layer_wiring *w;
    const srnn_attention *attention;
    const sr_layer_dims *dims;
    srnn_status status;
} builder;

static void append_named(builder *b, int slot, const char *name, sr_tensor_spec spec) {
    if (b->status != SRNN_OK)
        return;
    const int length = snprintf(spec.name, sizeof spec.name, "%s%s", b->prefix, name);
    spec.slot = slot;
    b->status = length < (int)sizeof spec.name
                    ? sr_tensor_table_add(b->table, &spec)
                    : SR_FAIL(SRNN_ERR_ARGUMENT, "%s%s: name too long", b->prefix, name);
}

static void append(builder *b, int slot, const char *name, const char *part, sr_tensor_spec spec) {
    char text[SR_SPEC_NAME];
    const char *inner = b->w->form->prefix ? b->w->form->prefix : "";
    snprintf(text, sizeof text, "%s%s%s", inner, name, part);
    append_named(b, slot, text, spec);
}

/* Puts a rule into numbers; `inputs` that one output sums. */
static void begin(sr_tensor_spec *spec, const builder *b, sr_start start, int64_t inputs) {
    const double layers = b->dims->layers > 0 ? b->dims->layers : 1, layer = b->dims->layer;
    const double bound = 1.0 / sqrt((double)inputs);
    switch (start.rule) {
    case SR_START_RANGE:
        spec->initialiser = SR_INIT_NORMAL;
        break;
    case SR_START_FAN:
        spec->initialiser = SR_INIT_UNIFORM;
        spec->size = bound;
        break;
    case SR_START_FAN_DEPTH:
        spec->initialiser = SR_INIT_UNIFORM;
        spec->size = bound / sqrt(layers);
        break;
    case SR_START_VALUE:
        spec->initialiser = SR_INIT_CONSTANT;
        spec->size = start.low;
        break;
    case SR_START_LOG_UNIFORM:
        spec->initialiser = SR_INIT_LOG_UNIFORM;
        spec->low = start.low;
        spec->size = start.high;
        break;
    case SR_START_LOG_COUNT:
        spec->initialiser = SR_INIT_LOG_COUNT;
        break;
    case SR_START_TIME_STEP:
        spec->initialiser = SR_INIT_TIME_STEP;
        break;
    case SR_START_FAN_PART:
        spec->initialiser = SR_INIT_UNIFORM;
        spec->size = start.low * bound;
        break;
    case SR_START_ORTHOGONAL:
        spec->initialiser = SR_INIT_ORTHOGONAL;
        spec->size = start.low;
        break;
    case SR_START_SHIFT:
        spec->initialiser = SR_INIT_SHIFT;
        spec->low = start.low * (1 - layer / layers);
        break;
    case SR_START_CURVE:
        spec->initialiser = SR_INIT_CURVE;
        spec->curve = (sr_curve){.from = start.low, .linear = start.high};
        break;
    case SR_START_ZIGZAG:
        spec->initialiser = SR_INIT_CURVE;
        spec->curve = (sr_curve){-0.19, 0.4, 0.3, 0, 1, b->dims->D};
        break;
    case SR_START_DECAY:
        spec->initialiser = SR_INIT_CURVE;
        spec->curve =
            (sr_curve){-5.5,      0, 2.5, 6, 1 + pow(layers > 1 ? layer / (layers - 1) : 0, 0.3),
                       b->dims->D};
        break;
    case SR_START_DEPTH:
        spec->initialiser = SR_INIT_CONSTANT;
        spec->size = pow((layer + 1) / layers, start.low);
        break;
    case SR_START_LOG_POOL:
        spec->initialiser = SR_INIT_LOG_UNIFORM;
        spec->low = 1;
        spec->size = b->attention->pool > 2 ? b->attention->pool - 1 : 1;
        break;
    }
}

static sr_tensor_spec vector(const builder *b, int64_t length, sr_start start, int64_t inputs) {
    sr_tensor_spec spec = {.rank = 1, .shape = {length}};
    begin(&spec, b, start, inputs);
    return spec;
}

static sr_tensor_spec matrix(const builder *b, int64_t out, int64_t in, sr_start start) {
    sr_tensor_spec spec = {.rank = 2, .shape = {out, in}};
    begin(&spec, b, start, in);
    return spec;
}

/* Weights first, then biases, so that those of one product follow each other in memory. */
static void projections(builder *b, int first, int end) {
    for (int i = first; i < end; i++) {
        const sr_wire_projection *p = &b->w->projections[i];
        sr_tensor_spec spec =
            matrix(b, p->to.count, p->from_input ? b->dims->C : p->from.count, p->start);
        spec.undecayed = p->undecayed;
        append(b, (int)p->weight, p->name, ".weight", spec);
    }
    for (int i = first; i < end; i++) {
        const sr_wire_projection *p = &b->w->projections[i];
        sr_tensor_spec spec =
            vector(b, p->to.count, p->bias_start, p->from_input ? b->dims->C : p->from.count);
        spec.undecayed = p->undecayed;
        if (p->bias)
            append(b, (int)p->weight + 1, p->name, ".bias", spec);
    }
}

static void convolution(builder *b, const sr_wire_conv *conv) {
    sr_tensor_spec weight = {.rank = 3, .shape = {conv->to.count, 1, conv->width}};
    begin(&weight, b, conv->start, conv->width);
    append(b, (int)conv->weight, conv->name, ".weight", weight);
    if (conv->bias)
        append(b, (int)conv->weight + 1, conv->name, ".bias",
               vector(b, conv->to.count, conv->start, conv->width));
}

static void output(builder *b) {
    const sr_form_projection *form = &b->w->form->output;
    const bool bias = form->bias == SR_FORM_BIAS_ALWAYS ||
                      (form->bias == SR_FORM_BIAS_OF_MODEL && b->dims->o_bias);
    append(b, SR_LAYER_OUTPUT, form->name, ".weight",
           matrix(b, b->dims->C, b->w->output, form->start));
    if (bias)
        append(b, SR_LAYER_OUTPUT + 1, form->name, ".bias",
               vector(b, b->dims->C, form->bias_start, b->w->output));
}

static void own_norm(builder *b) {
    sr_tensor_spec spec = vector(b, b->dims->C, (sr_start){SR_START_VALUE, 1, 0}, 1);
    append_named(b, SR_LAYER_OWN_NORM, b->w->form->own_norm, spec);
}

/* Vectors of token shifts, (1, 1, C), and those that make keys. */
static void shifts(builder *b) {
    static const double powers[SR_FORM_SHIFTS] = {0.2, 0.9, 0.7, 0.7, 0.9, 0.2};
    const sr_layer_form *form = b->w->form;
    for (int i = 0; i < b->w->shift_count; i++) {
        sr_tensor_spec spec = vector(b, b->dims->C, (sr_start){SR_START_SHIFT, powers[i], 0}, 1);
        spec.rank = 3;
        spec.shape[2] = spec.shape[0];
        spec.shape[0] = spec.shape[1] = 1;
        spec.undecayed = true;
        append(b, SR_LAYER_SHIFTS + i, form->shifts[i], "", spec);
    }
    if (!form->key_scale)
        return;
    sr_tensor_spec scale =
        vector(b, b->w->raw_key.count, (sr_start){SR_START_CURVE, 0.71, -0.1}, 1);
    sr_tensor_spec gate = vector(b, b->w->raw_key.count, (sr_start){SR_START_VALUE, 1.02, 0}, 1);
    scale.undecayed = gate.undecayed = true;
    append(b, SR_LAYER_KEY_SCALE, form->key_scale, "", scale);
    append(b, SR_LAYER_KEY_GATE, form->key_gate, "", gate);
}

/* Row by row where each head has its own. */
static void qk_norm(builder *b, const sr_wire_norm *norm) {
    const bool own = b->attention->wiring.qk_norm == SRNN_QK_NORM_LAYER;
    const int64_t C = norm->from.count / norm->groups;
    sr_tensor_spec spec = {.rank = own ? 2 : 1, .shape = {own ? norm->groups : C, C}};
    begin(&spec, b, (sr_start){SR_START_VALUE, b->dims->norm_is_minus_one ? 0 : 1, 0}, 1);
    append_named(b, (int)norm->weight, norm->name, spec);
}

/* The small tensors that their authors keep out of weight decay. */
static bool is_undecayed(sr_operand which) {
    return which == SR_OPERAND_A_LOG || which == SR_OPERAND_DT_BIAS ||
           which == SR_OPERAND_SKIP_WEIGHT || which == SR_OPERAND_LEVEL_SCALE;
}

/* Sinks start as their authors have them, like matrices. */
static sr_start usual_start(sr_operand which) {
    if (which == SR_OPERAND_SINKS)
        return (sr_start){.rule = SR_START_RANGE};
    return (sr_start){SR_START_VALUE, sr_operand_at(which)->initial, 0};
}

/* What is learned itself, as the form or else the table of operands has it. */
static void learned(builder *b, sr_operand which) {
    const sr_operand_row *row = sr_operand_at(which);
    const sr_form_learned *form = sr_form_learned_of(b->w->form, which);
    sr_start start = form ? form->start : usual_start(which);
    if (which == SR_OPERAND_A_LOG && b->attention->decay == SRNN_DECAY_BOUNDED)
        start = (sr_start){SR_START_VALUE, 0, 0}; /* a bounded decay begins with a rate of 1 */
    const srnn_problem problem = sr_layer_problem(b->attention, b->dims);
    const sr_shape shape = sr_operand_shape(which, &problem);
    const int64_t numbers =
        b->w->part_bias[which] ? b->w->places[which].at.count : b->w->learned[which];
    sr_tensor_spec spec = vector(b, numbers, start, 1);
    if (row->file_rank == 4)
        spec = (sr_tensor_spec){.rank = 4, .shape = {1, numbers, 1, 1}, .size = row->initial};
    if (row->file_rank == 2) {
        spec.rank = 2;
        spec.shape[0] = shape.sizes[0];
        spec.shape[1] = numbers / shape.sizes[0];
    }
    if (form && form->rank && form->axis >= 0) {
        spec.rank = form->rank;
        for (int axis = 0; axis < spec.rank; axis++)
            spec.shape[axis] = axis == form->axis ? numbers : 1;
    }
    if (form && form->axis < 0) {
        spec.rank = shape.rank;
        memcpy(spec.shape, shape.sizes, sizeof shape.sizes);
    }
    spec.undecayed = is_undecayed(which) || b->w->form->key_scale;
    append(b, (int)sr_layer_operand_slot(which), form ? form->name : row->file, "", spec);
}

srnn_status sr_layer_tensors(sr_tensor_table *table, const char *prefix,
                             const srnn_attention *attention, const sr_layer_dims *dims) {
    sr_layer_wiring wiring;
    SR_TRY(sr_layer_wire(&wiring, attention, dims));
    builder b = {
        .table = table, .prefix = prefix, .w = &wiring, .attention = attention, .dims = dims};
    projections(&b, 0, wiring.input_count);
    projections(&b, wiring.input_count, wiring.projection_count);
    for (int c = 0; c < wiring.conv_count; c++)
        convolution(&b, &wiring.convs[c]);
    output(&b);
    if (wiring.form->own_norm)
        own_norm(&b);
    shifts(&b);
    for (int n = 0; n < 2 && wiring.norms[n].name; n++)
        qk_norm(&b, &wiring.norms[n]);
    for (int which = 0; which < SR_OPERANDS; which++)
        if (wiring.learned[which] || wiring.part_bias[which])
            learned(&b, (sr_operand)which);
    return b.status;
}
