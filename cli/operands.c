/* operands.c: the operands of an attention call by number. */
#include "operands.h"

#include "attention/attention.h"
#include "device/attention_kernel.h"

const char *operand_name(operand which) {
    switch (which) {
    case OPERAND_Q:
        return "q";
    case OPERAND_K:
        return "k";
    case OPERAND_V:
        return "v";
    case OPERAND_VALUE_GATE:
        return "value_gate";
    case OPERAND_OUTPUT_GATE:
        return "output_gate";
    case OPERAND_DECAY:
        return "decay";
    case OPERAND_NORM_WEIGHT:
        return "norm_weight";
    case OPERAND_NORM_BIAS:
        return "norm_bias";
    case OPERAND_VALUE_POWER:
        return "value_power";
    }
    return "";
}

bool operand_used(const srnn_attention *a, operand which) {
    switch (which) {
    case OPERAND_Q:
    case OPERAND_K:
    case OPERAND_V:
        return true;
    case OPERAND_VALUE_GATE:
        return a->value_gate;
    case OPERAND_OUTPUT_GATE:
        return sr_uses_output_gate(a);
    case OPERAND_DECAY:
        return a->decay != SRNN_DECAY_NONE;
    case OPERAND_NORM_WEIGHT:
        return a->norm == SRNN_NORM_LAYER || a->norm == SRNN_NORM_RMS;
    case OPERAND_NORM_BIAS:
        return a->norm == SRNN_NORM_LAYER;
    case OPERAND_VALUE_POWER:
        return a->normaliser == SRNN_NORMALISER_VALUE_POWER;
    }
    return false;
}

operand_shape operand_shape_in(const srnn_problem *p, operand which) {
    switch (which) {
    case OPERAND_Q:
        return (operand_shape){4, {p->B, p->H, p->T, p->D}};
    case OPERAND_K:
        return (operand_shape){4, {p->B, p->Hkv, p->T, p->D}};
    case OPERAND_V:
        return (operand_shape){4, {p->B, p->Hkv, p->T, p->Dv}};
    case OPERAND_VALUE_GATE:
    case OPERAND_DECAY:
        return (operand_shape){3, {p->B, p->Hkv, p->T}};
    case OPERAND_OUTPUT_GATE:
        return (operand_shape){3, {p->B, p->H, p->T}};
    case OPERAND_NORM_WEIGHT:
    case OPERAND_NORM_BIAS:
        return (operand_shape){1, {p->Dv}};
    case OPERAND_VALUE_POWER:
        return (operand_shape){1, {p->Hkv}};
    }
    return (operand_shape){0};
}

operand_shape output_shape_in(const srnn_problem *p) {
    return (operand_shape){4, {p->B, p->H, p->T, p->Dv}};
}

int64_t shape_elements(const operand_shape *shape) {
    int64_t elements = 1;
    for (int i = 0; i < shape->rank; i++)
        elements *= shape->sizes[i];
    return elements;
}

void operand_place(srnn_operands *operands, operand which, void *data) {
    switch (which) {
    case OPERAND_Q:
        operands->q.data = data;
        break;
    case OPERAND_K:
        operands->k.data = data;
        break;
    case OPERAND_V:
        operands->v.data = data;
        break;
    case OPERAND_VALUE_GATE:
        operands->value_gate.data = data;
        break;
    case OPERAND_OUTPUT_GATE:
        operands->output_gate.data = data;
        break;
    case OPERAND_DECAY:
        operands->decay.data = data;
        break;
    case OPERAND_NORM_WEIGHT:
        operands->norm_weight = data;
        break;
    case OPERAND_NORM_BIAS:
        operands->norm_bias = data;
        break;
    case OPERAND_VALUE_POWER:
        operands->value_power = data;
        break;
    }
}

srnn_dtype operand_dtype(const srnn_problem *problem, operand which) {
    const bool learned =
        which == OPERAND_NORM_WEIGHT || which == OPERAND_NORM_BIAS || which == OPERAND_VALUE_POWER;
    return learned ? sr_number_sum(problem->dtype) : problem->dtype;
}
