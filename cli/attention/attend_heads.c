/* attend_heads.c: attention on q, k, v and gates from a file. */
#include "base/bf16.h"
#include "base/memory.h"
#include "cli/attention/attend.h"
#include "cli/line/cautions.h"
#include "equation/facts.h"
#include "verify/call.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_status narrow(uint16_t *to, const sr_tensor *tensor) {
    float *numbers;
    SR_TRY(sr_alloc((void **)&numbers, tensor->count, sizeof *numbers));
    sr_tensor_to_float(numbers, tensor);
    for (size_t i = 0; i < tensor->count; i++)
        to[i] = sr_bf16_of(numbers[i]);
    free(numbers);
    return SRNN_OK;
}

static srnn_status convert(void *to, srnn_dtype dtype, const sr_tensor *tensor) {
    switch (dtype) {
    case SRNN_F32:
        sr_tensor_to_float(to, tensor);
        break;
    case SRNN_F64:
        sr_tensor_to_double(to, tensor);
        break;
    case SRNN_BF16:
        return narrow(to, tensor);
    }
    return SRNN_OK;
}

static sr_dtype dtype_in_files(srnn_dtype dtype) {
    switch (dtype) {
    case SRNN_F32:
        break;
    case SRNN_F64:
        return SR_DTYPE_F64;
    case SRNN_BF16:
        return SR_DTYPE_BF16;
    }
    return SR_DTYPE_F32;
}

/* Sizes from the shapes of q, k and v, which must be consistent before anything is allocated. */
static srnn_status read_sizes(srnn_problem *problem, const attend_request *request,
                              const sr_safetensors *in) {
    const sr_tensor *q, *k, *v;
    SR_TRY(attend_require_rank(&q, request, in, "q", 4));
    SR_TRY(attend_require_rank(&k, request, in, "k", 4));
    SR_TRY(attend_require_rank(&v, request, in, "v", 4));
    int64_t B = q->shape[0], H = q->shape[1], T = q->shape[2], D = q->shape[3];
    int64_t Hkv = k->shape[1], Dv = v->shape[3];
    SR_TRY(attend_require(&k, request, in, "k", 4, (const int64_t[]){B, Hkv, T, D}));
    SR_TRY(attend_require(&v, request, in, "v", 4, (const int64_t[]){B, Hkv, T, Dv}));
    if (q->count < 1 || k->count < 1 || v->count < 1 || B > INT_MAX || H > INT_MAX ||
        Hkv > INT_MAX || T > INT_MAX || D > SR_HEAD_SIZE_MAX || Dv > SR_VALUE_SIZE_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT,
                       "%s: q, k and v need at least one number each, heads of q and k up to %d "
                       "and of v up to %d wide",
                       request->in_path, SR_HEAD_SIZE_MAX, SR_VALUE_SIZE_MAX);
    problem->B = (int)B;
    problem->H = (int)H;
    problem->T = (int)T;
    problem->D = (int)D;
    problem->Hkv = (int)Hkv;
    problem->Dv = (int)Dv;
    return SRNN_OK;
}

static srnn_status read_operands(attention_call *call, const attend_request *request,
                                 const sr_safetensors *in) {
    const sr_tensor *tensor;
    for (int which = 0; which < SR_OPERANDS; which++) {
        if (!call->host.operand[which])
            continue;
        sr_shape shape = sr_operand_shape((sr_operand)which, &call->problem);
        SR_TRY(attend_require(&tensor, request, in, sr_operand_at((sr_operand)which)->name,
                              shape.rank, shape.sizes));
        SR_TRY(convert(call->host.operand[which],
                       sr_operand_dtype((sr_operand)which, &call->problem), tensor));
    }
    if (!request->backward)
        return SRNN_OK;
    sr_shape shape = sr_output_shape(&call->problem);
    const char *name = sr_safetensors_find(in, "do") ? "do" : "dy";
    SR_TRY(attend_require(&tensor, request, in, name, shape.rank, shape.sizes));
    return convert(call->host.d_o, call->problem.dtype, tensor);
}

static srnn_status add_array(sr_safetensors_writer *writer, const char *name, const void *data,
                             srnn_dtype dtype, const sr_shape *shape) {
    sr_tensor tensor = {.name = name,
                        .dtype = dtype_in_files(dtype),
                        .rank = shape->rank,
                        .data = data};
    memcpy(tensor.shape, shape->sizes, (size_t)shape->rank * sizeof *tensor.shape);
    return sr_safetensors_writer_add(writer, &tensor);
}

static srnn_status add_results(sr_safetensors_writer *writer, const attention_call *call,
                               bool backward) {
    const srnn_problem *p = &call->problem;
    sr_shape shape = sr_output_shape(p);
    SR_TRY(attend_describe(writer, &p->attention));
    SR_TRY(sr_safetensors_writer_metadata(writer, "kernel", call->kernel));
    SR_TRY(add_array(writer, "y", call->host.o, p->dtype, &shape));
    for (int which = 0; backward && which < SR_OPERANDS; which++) {
        if (!call->host.gradient[which])
            continue;
        char name[64];
        snprintf(name, sizeof name, which <= SR_OPERAND_V ? "d%s" : "d.%s",
                 sr_operand_at((sr_operand)which)->name);
        shape = sr_operand_shape((sr_operand)which, p);
        SR_TRY(add_array(writer, name, call->host.gradient[which],
                         sr_operand_dtype((sr_operand)which, p), &shape));
    }
    return SRNN_OK;
}

static srnn_status write_results(const attend_request *request, const attention_call *call) {
    sr_safetensors_writer *writer;
    SR_TRY(sr_safetensors_writer_create(&writer));
    srnn_status status = add_results(writer, call, request->backward);
    if (status == SRNN_OK)
        status = sr_safetensors_writer_write(writer, request->out_path);
    sr_safetensors_writer_free(writer);
    return status;
}

static srnn_status run(attention_call *call, const attend_request *request,
                       const sr_safetensors *in) {
    SR_TRY(read_operands(call, request, in));
    SR_TRY(request->backward ? call_forward_backward(call) : call_forward(call));
    return write_results(request, call);
}

srnn_status attend_heads(const attend_request *request, const sr_safetensors *in) {
    srnn_problem problem = request->problem;
    attention_call call = {0};
    int64_t *offsets;
    SR_TRY(read_sizes(&problem, request, in));
    SR_TRY(attend_offsets(&offsets, &problem.documents, request, in));
    problem.offsets = offsets;
    caution_problem(&problem);
    srnn_status status = call_create(&call, &problem);
    if (status == SRNN_OK)
        status = run(&call, request, in);
    call_free(&call);
    free(offsets);
    return status;
}
