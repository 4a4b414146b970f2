/* operands.c: the table of operands. */
#include "equation/operands.h"

#include "equation/facts.h"
#include "equation/norm.h"

#include <stdio.h>
#include <string.h>

#define MEMBER(name) #name, offsetof(srnn_operands, name)

/* clang-format off */
static const sr_operand_row rows[SR_OPERANDS] = {
    [SR_OPERAND_Q] = {MEMBER(q), SR_EXTENT_HQ, SR_EXTENT_D, SR_ORIGIN_INPUTS, NULL, 0, 0},
    [SR_OPERAND_K] = {MEMBER(k), SR_EXTENT_HKV, SR_EXTENT_D, SR_ORIGIN_INPUTS, NULL, 0, 0},
    [SR_OPERAND_V] = {MEMBER(v), SR_EXTENT_HV, SR_EXTENT_DV, SR_ORIGIN_INPUTS, NULL, 0, 0},
    [SR_OPERAND_VALUE_GATE] = {MEMBER(value_gate), SR_EXTENT_HV, SR_EXTENT_ONE,
                               SR_ORIGIN_PROJECTION, "in_gate_proj", 0, 0},
    [SR_OPERAND_OUTPUT_GATE] = {MEMBER(output_gate), SR_EXTENT_H, SR_EXTENT_GATE,
                                SR_ORIGIN_PROJECTION, "out_gate_proj", 0, 0},
    [SR_OPERAND_DECAY] = {MEMBER(decay), SR_EXTENT_DECAY_HEADS, SR_EXTENT_DECAY,
                          SR_ORIGIN_PROJECTION, "decay_gate_proj", 0, 0},
    [SR_OPERAND_WRITE_GATE] = {MEMBER(write_gate), SR_EXTENT_HV, SR_EXTENT_WRITE,
                               SR_ORIGIN_PROJECTION, "b_proj", 0, 0},
    [SR_OPERAND_ERASE_GATE] = {MEMBER(erase_gate), SR_EXTENT_HKV, SR_EXTENT_D,
                               SR_ORIGIN_PROJECTION, "erase_gate_proj", 0, 0},
    [SR_OPERAND_REMOVAL_KEY] = {MEMBER(removal_key), SR_EXTENT_HKV, SR_EXTENT_D,
                                SR_ORIGIN_PROJECTION, "removal_key_proj", 0, 0},
    [SR_OPERAND_REMOVAL_GATE] = {MEMBER(removal_gate), SR_EXTENT_HKV, SR_EXTENT_D,
                                 SR_ORIGIN_PROJECTION, "removal_gate_proj", 0, 0},
    [SR_OPERAND_LEVEL_GATE] = {MEMBER(level_gate), SR_EXTENT_H, SR_EXTENT_LEVELS,
                               SR_ORIGIN_PROJECTION, "l_proj", 0, 0},
    [SR_OPERAND_POOL_GATE] = {MEMBER(pool_gate), SR_EXTENT_HV, SR_EXTENT_WIDER,
                              SR_ORIGIN_PROJECTION, "pool_gate_proj", 0, 0},
    [SR_OPERAND_SKIP] = {MEMBER(skip), SR_EXTENT_HV, SR_EXTENT_DV, SR_ORIGIN_INPUTS, NULL, 0, 0},
    [SR_OPERAND_NORM_WEIGHT] = {MEMBER(norm_weight), SR_EXTENT_NORM, SR_EXTENT_DV,
                                SR_ORIGIN_LEARNED, "out_norm.weight", 1, 1},
    [SR_OPERAND_NORM_BIAS] = {MEMBER(norm_bias), SR_EXTENT_NORM, SR_EXTENT_DV,
                              SR_ORIGIN_LEARNED, "out_norm.bias", 0, 1},
    [SR_OPERAND_VALUE_POWER] = {MEMBER(value_power), SR_EXTENT_ONE, SR_EXTENT_HV,
                                SR_ORIGIN_LEARNED, "norm_const", 0.5, 4},
    [SR_OPERAND_A_LOG] = {MEMBER(a_log), SR_EXTENT_DECAY_HEADS, SR_EXTENT_ONE,
                          SR_ORIGIN_LEARNED, "A_log", 0, 1},
    [SR_OPERAND_DT_BIAS] = {MEMBER(dt_bias), SR_EXTENT_DECAY_HEADS, SR_EXTENT_DT,
                            SR_ORIGIN_LEARNED, "dt_bias", 0, 1},
    [SR_OPERAND_SKIP_WEIGHT] = {MEMBER(skip_weight), SR_EXTENT_H, SR_EXTENT_SKIP,
                                SR_ORIGIN_LEARNED, "D", 1, 1},
    [SR_OPERAND_LEVEL_SCALE] = {MEMBER(level_scale), SR_EXTENT_H, SR_EXTENT_LEVELS,
                                SR_ORIGIN_LEARNED, "L", 1, 2},
    [SR_OPERAND_SINKS] = {MEMBER(sinks), SR_EXTENT_H, SR_EXTENT_ONE,
                          SR_ORIGIN_LEARNED, "sinks", 0, 1},
};
/* clang-format on */

const sr_operand_row *sr_operand_at(sr_operand which) {
    return &rows[which];
}

/* ---- which axes read which operands: no switch has a default, so a new value must be handled
 * here */

static bool gate_is_read(srnn_gate gate) {
    switch (gate) {
    case SRNN_GATE_NONE:
        return false;
    case SRNN_GATE_SIGMOID:
    case SRNN_GATE_INVERSE_EXP:
    case SRNN_GATE_INVERSE_CUMULATIVE:
        return true;
    }
    return false;
}

static bool decay_is_read(srnn_decay decay) {
    switch (decay) {
    case SRNN_DECAY_NONE:
        return false;
    case SRNN_DECAY_LEARNED:
    case SRNN_DECAY_LOG_SIGMOID:
    case SRNN_DECAY_SOFTPLUS:
    case SRNN_DECAY_BOUNDED:
    case SRNN_DECAY_NEG_SOFTPLUS:
    case SRNN_DECAY_GIVEN:
        return true;
    }
    return false;
}

/* The operand of the skip in addition to v; SR_OPERAND_V: none. */
static sr_operand skip_reads(srnn_skip skip) {
    switch (skip) {
    case SRNN_SKIP_NONE:
        break;
    case SRNN_SKIP_HEAD:
    case SRNN_SKIP_CHANNEL:
    case SRNN_SKIP_BONUS:
        return SR_OPERAND_SKIP_WEIGHT;
    case SRNN_SKIP_CONV:
        return SR_OPERAND_SKIP;
    }
    return SR_OPERAND_V;
}

/* The operand of the normaliser in addition to the weights; SR_OPERAND_V, which always exists:
 * none. */
static sr_operand normaliser_reads(srnn_normaliser normaliser) {
    switch (normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
    case SRNN_NORMALISER_ROW_SUM_MIN1:
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        return SR_OPERAND_OUTPUT_GATE;
    case SRNN_NORMALISER_VALUE_POWER:
        return SR_OPERAND_VALUE_POWER;
    }
    return SR_OPERAND_V;
}

bool sr_operand_used(sr_operand which, const srnn_attention *a) {
    switch (which) {
    case SR_OPERAND_Q:
    case SR_OPERAND_K:
    case SR_OPERAND_V:
        return true;
    case SR_OPERAND_VALUE_GATE:
        return a->value_gate == SRNN_VALUE_GATE_SIGMOID;
    case SR_OPERAND_OUTPUT_GATE:
        return gate_is_read(a->output_gate) || a->post_gate ||
               normaliser_reads(a->normaliser) == which;
    case SR_OPERAND_DECAY:
        return decay_is_read(a->decay);
    case SR_OPERAND_A_LOG:
    case SR_OPERAND_DT_BIAS:
        return sr_decay_has_rate(a);
    case SR_OPERAND_WRITE_GATE:
        return a->write == SRNN_WRITE_DELTA;
    case SR_OPERAND_ERASE_GATE:
        return sr_writes_channels(a);
    case SR_OPERAND_REMOVAL_KEY:
    case SR_OPERAND_REMOVAL_GATE:
        return a->write == SRNN_WRITE_REMOVAL;
    case SR_OPERAND_LEVEL_GATE:
    case SR_OPERAND_LEVEL_SCALE:
        return a->levels == SRNN_LEVELS_FENWICK;
    case SR_OPERAND_POOL_GATE:
        return a->pool > 0;
    case SR_OPERAND_SKIP:
    case SR_OPERAND_SKIP_WEIGHT:
        return skip_reads(a->skip) == which;
    case SR_OPERAND_NORM_WEIGHT:
        return sr_norm_has_weight(a->norm);
    case SR_OPERAND_NORM_BIAS:
        return sr_norm_is_centred(a->norm);
    case SR_OPERAND_VALUE_POWER:
        return normaliser_reads(a->normaliser) == which;
    case SR_OPERAND_SINKS:
        return a->sink == SRNN_SINK_LEARNED;
    }
    return false;
}

bool sr_uses_output_gate(const srnn_attention *a) {
    return sr_operand_used(SR_OPERAND_OUTPUT_GATE, a);
}

/* ---- shapes */

bool sr_operand_is_tensor(sr_operand which) {
    return rows[which].origin != SR_ORIGIN_LEARNED;
}

/* The size of an extent that the variant determines; others are returned unchanged. */
static sr_extent extent_of(sr_extent extent, const srnn_attention *a) {
    const bool queries = sr_shares_queries(a);
    switch (extent) {
    case SR_EXTENT_ONE:
    case SR_EXTENT_H:
    case SR_EXTENT_HKV:
    case SR_EXTENT_D:
    case SR_EXTENT_DV:
    case SR_EXTENT_LEVELS:
    case SR_EXTENT_WIDER:
        break;
    case SR_EXTENT_HQ:
        return queries ? SR_EXTENT_HKV : SR_EXTENT_H;
    case SR_EXTENT_HV:
        return queries ? SR_EXTENT_H : SR_EXTENT_HKV;
    case SR_EXTENT_GATE:
        return a->gate_width == SRNN_WIDTH_CHANNEL ? SR_EXTENT_DV : SR_EXTENT_ONE;
    case SR_EXTENT_DECAY:
        return a->decay_width == SRNN_WIDTH_CHANNEL ? SR_EXTENT_D : SR_EXTENT_ONE;
    case SR_EXTENT_DECAY_HEADS:
        return queries && !sr_writes_channels(a) ? SR_EXTENT_H : SR_EXTENT_HKV;
    case SR_EXTENT_WRITE:
        return sr_writes_channels(a) ? SR_EXTENT_DV : SR_EXTENT_ONE;
    case SR_EXTENT_DT:
        return a->dt_width == SRNN_DT_WIDTH_CHANNEL ? SR_EXTENT_D : SR_EXTENT_ONE;
    case SR_EXTENT_SKIP:
        return a->skip == SRNN_SKIP_BONUS     ? SR_EXTENT_D
               : a->skip == SRNN_SKIP_CHANNEL ? SR_EXTENT_DV
                                              : SR_EXTENT_ONE;
    case SR_EXTENT_NORM:
        return sr_norm_weighs_heads(a) ? SR_EXTENT_H : SR_EXTENT_ONE;
    }
    return extent;
}

int64_t sr_extent_in(sr_extent extent, const srnn_problem *p) {
    switch (extent_of(extent, &p->attention)) {
    case SR_EXTENT_H:
        return p->H;
    case SR_EXTENT_HKV:
        return p->Hkv;
    case SR_EXTENT_D:
        return p->D;
    case SR_EXTENT_DV:
        return p->Dv;
    case SR_EXTENT_LEVELS:
        return p->levels ? p->levels : SR_LEVELS_USUAL;
    case SR_EXTENT_WIDER:
        return p->D > p->Dv ? p->D : p->Dv;
    case SR_EXTENT_ONE:
    case SR_EXTENT_HQ:
    case SR_EXTENT_HV:
    case SR_EXTENT_GATE:
    case SR_EXTENT_DECAY:
    case SR_EXTENT_DECAY_HEADS:
    case SR_EXTENT_WRITE:
    case SR_EXTENT_DT:
    case SR_EXTENT_SKIP:
    case SR_EXTENT_NORM:
        break;
    }
    return 1;
}

sr_shape sr_operand_shape(sr_operand which, const srnn_problem *p) {
    const sr_operand_row *row = &rows[which];
    const int64_t heads = sr_extent_in(row->heads, p), width = sr_extent_in(row->width, p);
    const bool one_head = extent_of(row->heads, &p->attention) == SR_EXTENT_ONE;
    const bool one_number = extent_of(row->width, &p->attention) == SR_EXTENT_ONE;
    if (sr_operand_is_tensor(which))
        return (sr_shape){one_number ? 3 : 4, {p->B, heads, p->T, width}};
    if (one_head || one_number)
        return (sr_shape){1, {heads * width}};
    return (sr_shape){2, {heads, width}};
}

sr_shape sr_output_shape(const srnn_problem *p) {
    return (sr_shape){4, {p->B, p->H, p->T, p->Dv}};
}

int64_t sr_shape_numbers(const sr_shape *shape) {
    int64_t numbers = 1;
    for (int i = 0; i < shape->rank; i++)
        numbers *= shape->sizes[i];
    return numbers;
}

srnn_dtype sr_operand_dtype(sr_operand which, const srnn_problem *p) {
    const bool narrow = p->dtype == SRNN_BF16 && !sr_operand_is_tensor(which);
    return narrow ? SRNN_F32 : p->dtype;
}

bool srnn_operand_at(srnn_operand *operand, const srnn_problem *problem, size_t index) {
    srnn_problem filled = *problem;
    filled.Hkv = problem->Hkv ? problem->Hkv : problem->H;
    filled.Dv = problem->Dv ? problem->Dv : problem->D;
    int which = 0;
    for (; which < SR_OPERANDS; which++)
        if (sr_operand_used((sr_operand)which, &problem->attention) && index-- == 0)
            break;
    if (which == SR_OPERANDS)
        return false;
    const sr_operand_row *row = &rows[which];
    const sr_shape shape = sr_operand_shape((sr_operand)which, &filled);
    *operand = (srnn_operand){.name = row->name,
                              .tensor = sr_operand_is_tensor((sr_operand)which),
                              .rank = shape.rank,
                              .learned = row->file,
                              .initial = row->initial,
                              .file_rank = row->file_rank};
    memcpy(operand->sizes, shape.sizes, sizeof operand->sizes);
    return true;
}

/* ---- members of srnn_operands; a tensor begins with its data */

_Static_assert(offsetof(srnn_tensor, data) == 0, "a tensor begins with its data");

void *sr_operand_data(sr_operand which, const srnn_operands *operands) {
    void *data;
    memcpy(&data, (const char *)operands + rows[which].offset, sizeof data);
    return data;
}

void sr_operand_place(sr_operand which, srnn_operands *operands, void *data) {
    memcpy((char *)operands + rows[which].offset, &data, sizeof data);
}

srnn_tensor sr_operand_tensor(sr_operand which, const srnn_operands *operands) {
    srnn_tensor tensor;
    memcpy(&tensor, (const char *)operands + rows[which].offset, sizeof tensor);
    return tensor;
}

void sr_operand_set_tensor(sr_operand which, srnn_operands *operands, srnn_tensor tensor) {
    memcpy((char *)operands + rows[which].offset, &tensor, sizeof tensor);
}

/* ---- learned tensors */

static const char *extent_name(sr_extent extent, const srnn_attention *a) {
    static const char *const names[] = {"1", "H", "Hkv", "D", "Dv", "levels", "D"};
    return names[extent_of(extent, a)];
}

/* "H", "Dv" or "H Dv": the rows of a projection. */
static void product_name(char *text, size_t size, const sr_operand_row *row,
                         const srnn_attention *a) {
    const char *heads = extent_name(row->heads, a), *width = extent_name(row->width, a);
    const bool one_head = *heads == '1', one_number = *width == '1';
    snprintf(text, size, "%s%s%s", one_head ? "" : heads, one_head || one_number ? "" : " ",
             one_number ? "" : width);
}

/* The module name of a tensor: "out_norm" for out_norm.weight. */
static void add_learned(sr_learned *learned, size_t *count, const sr_operand_row *row,
                        const srnn_attention *a) {
    char numbers[16];
    product_name(numbers, sizeof numbers, row, a);
    const size_t length = strcspn(row->file, ".");
    const char *part = row->file[length] ? row->file + length + 1 : "";
    sr_learned *last = *count ? &learned[*count - 1] : NULL;
    const bool same = last && strncmp(last->name, row->file, length) == 0 && !last->name[length];
    if (!same) {
        last = &learned[(*count)++];
        snprintf(last->name, sizeof last->name, "%.*s", (int)length, row->file);
        last->tensors[0] = '\0';
    }
    char *end = last->tensors + strlen(last->tensors);
    const size_t left = sizeof last->tensors - strlen(last->tensors);
    if (row->origin == SR_ORIGIN_PROJECTION)
        snprintf(end, left, "weight (%s, C), bias (%s)", numbers, numbers);
    else
        snprintf(end, left, "%s%s%s(%s)", same ? ", " : "", part, *part ? " " : "", numbers);
}

size_t sr_attention_learned(sr_learned *learned, const srnn_attention *a) {
    size_t count = 0;
    if (a->wiring.short_conv)
        learned[count++] = (sr_learned){"conv1d", "weight ((H + 2 Hkv) D, 1, width)"};
    for (int which = 0; which < SR_OPERANDS; which++)
        if (rows[which].origin != SR_ORIGIN_INPUTS && sr_operand_used((sr_operand)which, a))
            add_learned(learned, &count, &rows[which], a);
    return count;
}
