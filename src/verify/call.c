/* call.c: the arrays of one attention call, and the call itself. */
#include "verify/call.h"

#include "attention/kernel.h"
#include "base/memory.h"

#include <stdlib.h>

const char *const form_words[] = {"auto", "parallel", "chunked", "recurrent", NULL};

/* One array of a call: its host and device pointers and its bytes; bytes 0: absent. */
typedef struct call_array {
    void **host, **device;
    size_t bytes;
} call_array;

enum { ARRAYS = 2 * SR_OPERANDS + 2 };

/* Inputs first, ENTERING of them; then outputs. */
enum { ENTERING = SR_OPERANDS + 1 };

static void list_arrays(call_array *arrays, attention_call *call) {
    const srnn_problem *p = &call->problem;
    call_arrays *host = &call->host, *device = &call->device;
    const sr_shape output = sr_output_shape(p);
    const size_t output_bytes = (size_t)sr_shape_numbers(&output) * sr_element_bytes(p->dtype);
    for (int which = 0; which < SR_OPERANDS; which++) {
        const sr_shape shape = sr_operand_shape((sr_operand)which, p);
        const size_t bytes = sr_operand_used((sr_operand)which, &p->attention)
                                 ? (size_t)sr_shape_numbers(&shape) *
                                       sr_element_bytes(sr_operand_dtype((sr_operand)which, p))
                                 : 0;
        arrays[which] = (call_array){&host->operand[which], &device->operand[which], bytes};
        arrays[ENTERING + which] =
            (call_array){&host->gradient[which], &device->gradient[which], bytes};
    }
    arrays[SR_OPERANDS] = (call_array){&host->d_o, &device->d_o, output_bytes};
    arrays[ARRAYS - 1] = (call_array){&host->o, &device->o, output_bytes};
}

/* True if host and device use the same arrays. */
static bool at_home(const attention_call *call) {
    return !call->problem.device || sr_device_is_host(call->problem.device);
}

static srnn_status create_arrays(attention_call *call) {
    call_array arrays[ARRAYS];
    list_arrays(arrays, call);
    for (int i = 0; i < ARRAYS; i++) {
        if (arrays[i].bytes == 0)
            continue;
        SR_TRY(sr_alloc_zero(arrays[i].host, arrays[i].bytes, 1));
        if (at_home(call))
            *arrays[i].device = *arrays[i].host;
        else
            SR_TRY(sr_device_allocate(call->problem.device, arrays[i].device, arrays[i].bytes));
    }
    return SRNN_OK;
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
    call_array arrays[ARRAYS];
    list_arrays(arrays, call);
    for (int i = 0; i < ARRAYS; i++) {
        if (!at_home(call))
            sr_device_release(call->problem.device, *arrays[i].device);
        free(*arrays[i].host);
    }
    *call = (attention_call){0};
}

srnn_status call_send(attention_call *call) {
    call_array arrays[ARRAYS];
    list_arrays(arrays, call);
    for (int i = 0; i < ENTERING && !at_home(call); i++)
        if (arrays[i].bytes)
            SR_TRY(sr_device_copy_in(call->problem.device, *arrays[i].device, *arrays[i].host,
                                     arrays[i].bytes));
    return SRNN_OK;
}

srnn_status call_fetch(attention_call *call) {
    call_array arrays[ARRAYS];
    list_arrays(arrays, call);
    for (int i = ENTERING; i < ARRAYS && !at_home(call); i++)
        if (arrays[i].bytes)
            SR_TRY(sr_device_copy_out(call->problem.device, *arrays[i].host, *arrays[i].device,
                                      arrays[i].bytes));
    return SRNN_OK;
}

static srnn_operands placed(void *const *arrays) {
    srnn_operands operands = {0};
    for (int which = 0; which < SR_OPERANDS; which++)
        sr_operand_place((sr_operand)which, &operands, arrays[which]);
    return operands;
}

srnn_operands call_operands(const attention_call *call) {
    return placed(call->device.operand);
}

srnn_operands call_gradients(const attention_call *call) {
    return placed(call->device.gradient);
}

static srnn_status create_plan(srnn_plan **plan, attention_call *call) {
    SR_TRY(srnn_plan_create(plan, &call->problem));
    call->kernel = srnn_plan_kernel(*plan);
    call->form = srnn_plan_form(*plan);
    return SRNN_OK;
}

static srnn_status forward(attention_call *call, srnn_plan *plan) {
    const srnn_operands in = call_operands(call);
    SR_TRY(call_send(call));
    SR_TRY(srnn_attention_forward(plan, (srnn_tensor){.data = call->device.o}, &in, NULL));
    return call_fetch(call);
}

srnn_status call_forward(attention_call *call) {
    srnn_plan *plan;
    SR_TRY(create_plan(&plan, call));
    const srnn_status status = forward(call, plan);
    srnn_plan_free(plan);
    return status;
}

static srnn_status forward_backward(attention_call *call, srnn_plan *plan, void *saved) {
    const srnn_operands in = call_operands(call), gradients = call_gradients(call);
    SR_TRY(call_send(call));
    SR_TRY(srnn_attention_forward(plan, (srnn_tensor){.data = call->device.o}, &in, saved));
    SR_TRY(srnn_attention_backward(plan, &gradients, (srnn_tensor){.data = call->device.d_o}, &in,
                                   saved));
    return call_fetch(call);
}

srnn_status call_forward_backward(attention_call *call) {
    srnn_device *device = call->problem.device ? call->problem.device : sr_device_cpu();
    srnn_plan *plan;
    void *saved = NULL;
    SR_TRY(create_plan(&plan, call));
    srnn_status status = sr_device_allocate(device, &saved, srnn_plan_saved_bytes(plan));
    if (status == SRNN_OK)
        status = forward_backward(call, plan, saved);
    sr_device_release(device, saved);
    srnn_plan_free(plan);
    return status;
}
