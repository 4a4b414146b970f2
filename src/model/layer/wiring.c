/* wiring.c: a form with a variant and sizes put into it. */
#include "model/layer/wiring.h"

#include "equation/facts.h"

typedef struct builder {
    sr_layer_wiring *w;
    const srnn_attention *attention;
    const sr_layer_dims *dims;
    srnn_problem problem;
    sr_columns parts[SR_PART_OPERANDS + SR_OPERANDS]; /* of `projected`; count 0: not there */
} builder;

srnn_problem sr_layer_problem(const srnn_attention *attention, const sr_layer_dims *d) {
    return (srnn_problem){.attention = *attention,
                          .B = 1,
                          .H = d->H,
                          .Hkv = d->Hkv,
                          .T = 1,
                          .D = d->D,
                          .Dv = d->Dv ? d->Dv : d->D,
                          .levels = d->levels ? d->levels : SR_LEVELS_USUAL};
}

bool sr_layer_mixes_values(const srnn_attention *attention) {
    return sr_layer_form_of(attention)->key_scale != NULL;
}

/* ---- sizes */

static bool is_used(const builder *b, int part) {
    return part >= SR_PART_OPERANDS &&
           sr_operand_used((sr_operand)(part - SR_PART_OPERANDS), b->attention);
}

static bool is_middle(int part) {
    return part >= SR_PART_RANK && part <= SR_PART_RANK_4;
}

static bool is_wanted(const builder *b, int part) {
    return part == SR_PART_VALUE_MIX ? b->dims->later : is_used(b, part);
}

/* The narrow middle is there for those whose source it is. */
static bool is_read(const builder *b, int part) {
    const sr_form_projection *list = b->w->form->projections;
    if (!is_middle(part))
        return is_wanted(b, part);
    for (int p = 0; p < SR_FORM_PROJECTIONS && list[p].name; p++)
        for (int i = 0; list[p].source == part && i < SR_FORM_PARTS; i++)
            if (is_wanted(b, list[p].parts[i]))
                return true;
    return false;
}

static int64_t operand_numbers(const builder *b, sr_operand which) {
    const sr_shape shape = sr_operand_shape(which, &b->problem);
    return sr_shape_numbers(&shape);
}

static int64_t part_columns(const builder *b, int part) {
    if (!is_read(b, part))
        return 0;
    if (part == SR_PART_VALUE_MIX)
        return operand_numbers(b, SR_OPERAND_V);
    return is_middle(part) ? b->dims->rank
                           : operand_numbers(b, (sr_operand)(part - SR_PART_OPERANDS));
}

static bool has_bias(sr_form_bias bias, bool model) {
    switch (bias) {
    case SR_FORM_BIAS_OF_MODEL:
        return model;
    case SR_FORM_BIAS_NEVER:
        return false;
    case SR_FORM_BIAS_ALWAYS:
        return true;
    }
    return false;
}

/* ---- projections */

static srnn_status too_many(void) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "the layer would need more projections than there is room for");
}

static void place_part(builder *b, int part, sr_columns at) {
    b->parts[part] = at;
    if (part < SR_PART_OPERANDS)
        return;
    const sr_operand which = (sr_operand)(part - SR_PART_OPERANDS);
    const sr_shape shape = sr_operand_shape(which, &b->problem);
    b->w->places[which] =
        (sr_wire_place){.there = true, .at = at, .width = shape.rank == 4 ? shape.sizes[3] : 1};
}

/* The next rows of the projection's weight: with those before it where neither has a bias of its
 * own. */
static srnn_status add_linear(builder *b, int projection, sr_columns to, int bias) {
    sr_layer_wiring *w = b->w;
    const sr_wire_projection *p = &w->projections[projection];
    sr_wire_linear *last = w->linear_count ? &w->linears[w->linear_count - 1] : NULL;
    const int whole = p->bias ? (int)p->weight + 1 : -1;
    if (last && last->projection == projection && last->bias == whole && bias < 0) {
        last->to.count += to.count;
        return SRNN_OK;
    }
    if (w->linear_count == SR_WIRE_LINEARS)
        return too_many();
    w->linears[w->linear_count++] =
        (sr_wire_linear){projection, to.first - p->to.first, to, bias < 0 ? whole : bias};
    return SRNN_OK;
}

/* The slot of the bias that a part has of its own, or -1. */
static int own_bias(const builder *b, int part) {
    if (part < SR_PART_OPERANDS)
        return -1;
    const sr_operand which = (sr_operand)(part - SR_PART_OPERANDS);
    return sr_form_learned_of(b->w->form, which) && sr_operand_is_tensor(which)
               ? (int)sr_layer_operand_slot(which)
               : -1;
}

static srnn_status add_parts(builder *b, int projection, const int *parts) {
    sr_layer_wiring *w = b->w;
    sr_wire_projection *p = &w->projections[projection];
    for (int i = 0; i < SR_FORM_PARTS && parts[i]; i++) {
        const sr_columns at = {w->projected, part_columns(b, parts[i])};
        const int bias = own_bias(b, parts[i]);
        if (at.count == 0)
            continue;
        place_part(b, parts[i], at);
        w->projected += at.count;
        p->to.count += at.count;
        if (bias >= 0)
            w->part_bias[bias - SR_LAYER_OPERANDS] = true;
        SR_TRY(add_linear(b, projection, at, bias));
    }
    return SRNN_OK;
}

static srnn_status add_projection(builder *b, const sr_form_projection *form) {
    sr_layer_wiring *w = b->w;
    bool any = false;
    for (int i = 0; i < SR_FORM_PARTS && form->parts[i]; i++)
        any = any || part_columns(b, form->parts[i]) > 0;
    if (!any)
        return SRNN_OK;
    if (w->projection_count == SR_WIRE_PROJECTIONS)
        return too_many();
    const int index = w->projection_count++;
    w->projections[index] = (sr_wire_projection){
        .name = form->name,
        .weight = (sr_layer_slot)(SR_LAYER_PROJECTIONS + 2 * index),
        .bias = has_bias(form->bias, b->dims->qkv_bias),
        .start = form->start,
        .bias_start = form->bias_start,
        .to = {w->projected, 0},
        .from_input = form->source == SR_PART_NONE,
        .from = b->parts[form->source],
        .shared = !is_middle(form->source),
        .shift = form->shift,
        .activation = form->activation,
        .undecayed = form->undecayed,
    };
    return add_parts(b, index, form->parts);
}

static bool in_form(const sr_layer_form *form, int part) {
    if (form->key_scale && part == SR_PART(REMOVAL_KEY))
        return true;
    for (int p = 0; p < SR_FORM_PROJECTIONS && form->projections[p].name; p++)
        for (int i = 0; i < SR_FORM_PARTS; i++)
            if (form->projections[p].parts[i] == part)
                return true;
    return false;
}

/* What the form leaves to the table of operands. */
static srnn_status add_others(builder *b) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        const sr_form_projection gate = {.name = row->file,
                                         .parts = {SR_PART_OPERANDS + n},
                                         .bias = SR_FORM_BIAS_ALWAYS,
                                         .start = {.rule = SR_START_FAN},
                                         .bias_start = {.rule = SR_START_FAN}};
        if (row->origin == SR_ORIGIN_PROJECTION && sr_operand_used(which, b->attention) &&
            !in_form(b->w->form, SR_PART_OPERANDS + n))
            SR_TRY(add_projection(b, &gate));
    }
    return SRNN_OK;
}

static srnn_status add_projections(builder *b, bool of_input) {
    const sr_form_projection *list = b->w->form->projections;
    for (int p = 0; p < SR_FORM_PROJECTIONS && list[p].name; p++)
        if ((list[p].source == SR_PART_NONE) == of_input)
            SR_TRY(add_projection(b, &list[p]));
    return SRNN_OK;
}

/* ---- factors */

static void add_factors(builder *b) {
    static const int parts[SR_PART_FACTORS] = {SR_PART(OUTPUT_GATE), SR_PART(V), SR_PART(K),
                                               SR_PART(Q), SR_PART(DECAY)};
    sr_layer_wiring *w = b->w;
    for (int i = 0; i < SR_PART_FACTORS; i++) {
        const double factor = b->dims->part_factors[i];
        if (factor != 0 && factor != 1 && b->parts[parts[i]].count)
            w->factors[w->factor_count++] = (sr_wire_factor){b->parts[parts[i]], (float)factor};
    }
}

/* ---- convolutions */

static void move_parts(builder *b, const sr_form_conv *form, const sr_wire_conv *conv) {
    for (int i = 0; i < SR_FORM_PARTS && form->parts[i]; i++) {
        sr_wire_place *place = &b->w->places[form->parts[i] - SR_PART_OPERANDS];
        place->convolved = true;
        place->at.first += conv->to.first - conv->from.first;
    }
}

static void place_target(builder *b, int target, sr_columns to) {
    place_part(b, target, to);
    b->w->places[target - SR_PART_OPERANDS].convolved = true;
}

static void add_conv(builder *b, const sr_form_conv *form) {
    sr_layer_wiring *w = b->w;
    const int width = form->target ? b->attention->skip_conv : b->attention->wiring.short_conv;
    sr_columns from = b->parts[form->parts[0]];
    if (width == 0)
        return;
    for (int i = 1; i < SR_FORM_PARTS && form->parts[i]; i++)
        from.count += b->parts[form->parts[i]].count;
    sr_wire_conv *conv = &w->convs[w->conv_count];
    *conv = (sr_wire_conv){.name = form->name,
                           .weight = (sr_layer_slot)(SR_LAYER_CONVS + 2 * w->conv_count),
                           .bias = has_bias(form->bias, b->dims->qkv_bias) &&
                                   !(b->dims->conv_unbiased && !form->target),
                           .start = form->start,
                           .width = width,
                           .plain = !form->target && b->attention->wiring.conv_activation ==
                                                         SRNN_CONV_ACTIVATION_NONE,
                           .from = from,
                           .to = {w->convolved, from.count},
                           .shared = form->target != SR_PART_NONE};
    w->conv_count++;
    w->convolved += from.count;
    if (form->target)
        place_target(b, form->target, conv->to);
    else
        move_parts(b, form, conv);
}

/* ---- norms of q and k */

int sr_layer_rope_width(const srnn_attention *attention, int D) {
    const double part = attention->wiring.rope_part;
    return part > 0 ? (int)(D * part) : D;
}

static void add_qk_norm(builder *b, int n) {
    sr_layer_wiring *w = b->w;
    sr_wire_place *place = &w->places[n == 0 ? SR_OPERAND_Q : SR_OPERAND_K];
    w->norms[n] = (sr_wire_norm){.name = n == 0 ? "q_norm.weight" : "k_norm.weight",
                                 .weight = (sr_layer_slot)(SR_LAYER_QK_NORM + n),
                                 .from = place->at,
                                 .to = {w->convolved, place->at.count},
                                 .groups = b->attention->wiring.qk_norm == SRNN_QK_NORM_ROW
                                               ? 1
                                               : place->at.count / b->dims->D};
    w->convolved += place->at.count;
    place->convolved = true;
    place->at = w->norms[n].to;
}

/* ---- keys and values that are made of what is projected */

static void place_made(builder *b, sr_operand which, int64_t count, int64_t width) {
    b->w->places[which] = (sr_wire_place){.there = true,
                                          .convolved = true,
                                          .at = {b->w->convolved, count},
                                          .width = width};
    b->w->convolved += count;
}

static srnn_status make_keys(builder *b) {
    sr_layer_wiring *w = b->w;
    if (!w->form->key_scale)
        return SRNN_OK;
    if (b->attention->wiring.short_conv || b->attention->wiring.qk_norm ||
        !is_used(b, SR_PART(REMOVAL_KEY)))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "layer=rwkv7 makes removal keys and has token shifts: it needs "
                       "write=removal, no short_conv and no qk_norm; use layer=plain for others");
    w->raw_key = b->parts[SR_PART(K)];
    w->raw_value = b->parts[SR_PART(V)];
    w->removal_gate = b->parts[SR_PART(REMOVAL_GATE)];
    w->value_mix = b->parts[SR_PART_VALUE_MIX];
    place_made(b, SR_OPERAND_K, w->raw_key.count, b->problem.D);
    place_made(b, SR_OPERAND_REMOVAL_KEY, w->raw_key.count, b->problem.D);
    place_made(b, SR_OPERAND_V, w->raw_value.count, b->problem.Dv);
    return SRNN_OK;
}

/* ---- the whole */

static void add_learned(builder *b) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        if (!sr_operand_is_tensor(which) && sr_operand_used(which, b->attention))
            b->w->learned[n] = operand_numbers(b, which);
    }
}

srnn_status sr_layer_wire(sr_layer_wiring *wiring, const srnn_attention *attention,
                          const sr_layer_dims *dims) {
    if (!sr_has_equation(attention))
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "layer=conv has no q, k and v: only models have such "
                                             "layers");
    builder b = {.w = wiring,
                 .attention = attention,
                 .dims = dims,
                 .problem = sr_layer_problem(attention, dims)};
    *wiring = (sr_layer_wiring){.form = sr_layer_form_of(attention),
                                .output = (int64_t)dims->H * b.problem.Dv};
    for (int part = SR_PART_RANK; part <= SR_PART_RANK_4; part++)
        if (is_read(&b, part) && dims->rank < 1)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "this layer needs a rank of at least 1");
    SR_TRY(add_projections(&b, true));
    SR_TRY(add_others(&b));
    wiring->input_count = wiring->projection_count;
    wiring->input_linears = wiring->linear_count;
    SR_TRY(add_projections(&b, false));
    add_factors(&b);
    for (int c = 0; c < SR_FORM_CONVS && wiring->form->convs[c].name; c++)
        add_conv(&b, &wiring->form->convs[c]);
    for (int n = 0; attention->wiring.qk_norm && n < 2; n++)
        add_qk_norm(&b, n);
    add_learned(&b);
    while (wiring->shift_count < SR_FORM_SHIFTS && wiring->form->shifts[wiring->shift_count])
        wiring->shift_count++;
    return make_keys(&b);
}
