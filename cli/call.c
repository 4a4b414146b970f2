/* call.c: the arrays of one attention call, and the call itself. */
#include "call.h"

#include "base/memory.h"
#include "device/attention_kernel.h"

#include <stdlib.h>

const char *const form_words[] = {"auto", "parallel", "chunked", "recurrent", NULL};

static srnn_status create_arrays(attention_call *call) {
    const srnn_problem *p = &call->problem;
    size_t bytes = sr_number_bytes(p->dtype);
    for (int which = 0; which < OPERANDS; which++) {
        if (!operand_used(&p->attention, (operand)which))
            continue;
        operand_shape shape = operand_shape_in(p, (operand)which);
        size_t elements = (size_t)shape_elements(&shape);
        SR_TRY(sr_alloc_zero(&call->operand[which], elements, bytes));
        SR_TRY(sr_alloc_zero(&call->gradient[which], elements, bytes));
    }
    operand_shape shape = output_shape_in(p);
    SR_TRY(sr_alloc_zero(&call->o, (size_t)shape_elements(&shape), bytes));
    return sr_alloc_zero(&call->d_o, (size_t)shape_elements(&shape), bytes);
}

srnn_status call_create(attention_call *call, const srnn_problem *problem) {
    *call = (attention_call){.problem = *problem};
    if (!call->problem.Hkv)
        call->problem.Hkv = call->problem.H;
    if (!call->problem.Dv)
        call->problem.Dv = call->problem.D;
    srnn_status status = create_arrays(call);
    if (status != SRNN_OK)
        call_free(call);
    return status;
}

void call_free(attention_call *call) {
    for (int which = 0; which < OPERANDS; which++) {
        free(call->operand[which]);
        free(call->gradient[which]);
    }
    free(call->o);
    free(call->d_o);
    *call = (attention_call){0};
}

static srnn_operands placed(void *const *arrays) {
    srnn_operands operands = {0};
    for (int which = 0; which < OPERANDS; which++)
        operand_place(&operands, (operand)which, arrays[which]);
    return operands;
}

srnn_operands call_operands(const attention_call *call) {
    return placed(call->operand);
}

srnn_operands call_gradients(const attention_call *call) {
    return placed(call->gradient);
}

static srnn_status create_plan(srnn_plan **plan, attention_call *call) {
    SR_TRY(srnn_plan_create(plan, &call->problem));
    call->kernel = srnn_plan_kernel(*plan);
    call->form = srnn_plan_form(*plan);
    return SRNN_OK;
}

srnn_status call_forward(attention_call *call) {
    srnn_plan *plan;
    SR_TRY(create_plan(&plan, call));
    srnn_operands in = call_operands(call);
    srnn_status status = srnn_attention_forward(plan, (srnn_tensor){.data = call->o}, &in, NULL);
    srnn_plan_free(plan);
    return status;
}

srnn_status call_forward_backward(attention_call *call) {
    srnn_plan *plan;
    SR_TRY(create_plan(&plan, call));
    srnn_operands in = call_operands(call), gradients = call_gradients(call);
    void *saved = NULL;
    srnn_status status = sr_alloc(&saved, srnn_plan_saved_bytes(plan), 1);
    if (status == SRNN_OK)
        status = srnn_attention_forward(plan, (srnn_tensor){.data = call->o}, &in, saved);
    if (status == SRNN_OK)
        status =
            srnn_attention_backward(plan, &gradients, (srnn_tensor){.data = call->d_o}, &in, saved);
    free(saved);
    srnn_plan_free(plan);
    return status;
}
