/* kernel.c: the kernels with products of bf16 numbers: of float problems, and of bf16 problems, whose
 * operands are widened before and whose results are rounded after. */
#include "attention/cpu/rounded/rounded.h"
#include "attention/cpu/shared/computes.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/threads.h"
#include "equation/operands.h"

/* Narrower heads would be padded, and lose more to rounding than products gain. */
static bool is_wide(const srnn_problem *p) {
    enum { WIDTH_MIN = 16 };
    return p->D >= WIDTH_MIN && p->Dv >= WIDTH_MIN;
}

static size_t float_scratch(const srnn_plan *plan) {
    const size_t forward = rounded_forward_scratch(plan), backward = rounded_backward_scratch(plan);
    return forward > backward ? forward : backward;
}

const sr_attention_kernel SR_LEVEL(sr_attention_rounded) = {
    .name = "flash",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SRNN_F32,
    .computes = SR_CPU_TILES,
    .fits = is_wide,
    .scratch = float_scratch,
    .forward = rounded_forward,
    .backward = rounded_backward,
};

/* ---- bf16 problems */

extern const sr_attention_kernel SR_ISA_REAL(sr_attention_flash);

static const sr_attention_kernel *of_float(const srnn_problem *p) {
    return is_wide(p) ? &SR_LEVEL(sr_attention_rounded) : &SR_ISA_REAL(sr_attention_flash);
}

/* The same problem in float. */
typedef struct widened {
    srnn_plan plan;
    srnn_operands in, gradients;
    srnn_tensor o; /* or its gradient */
} widened;

static srnn_tensor take_tensor(const srnn_problem *p, int64_t heads, int64_t width,
                               sr_layout *layout) {
    const size_t count = (size_t)p->B * (size_t)(heads * p->T * width);
    return (srnn_tensor){.data = sr_layout_take(layout, count, sizeof(float)),
                         .batch = heads * p->T * width,
                         .head = p->T * width,
                         .time = width};
}

/* Float arrays for every operand over positions, its gradient, and the output; learned vectors are
 * float in any case. */
static widened place(const srnn_plan *plan, sr_layout *layout) {
    widened wide = {.plan = *plan};
    const srnn_problem *p = &plan->problem;
    wide.plan.problem.dtype = wide.plan.core.dtype = SRNN_F32;
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (!sr_operand_is_tensor(which) || !sr_operand_used(which, &p->attention))
            continue;
        const int64_t heads = sr_extent_in(row->heads, p), width = sr_extent_in(row->width, p);
        sr_operand_set_tensor(which, &wide.in, take_tensor(p, heads, width, layout));
        sr_operand_set_tensor(which, &wide.gradients, take_tensor(p, heads, width, layout));
    }
    wide.o = take_tensor(p, p->H, p->Dv, layout);
    wide.plan.scratch_bytes = of_float(p)->scratch(&wide.plan);
    wide.plan.scratch = sr_layout_take(layout, wide.plan.scratch_bytes, 1);
    return wide;
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {.apart = true};
    place(plan, &layout);
    return layout.used;
}

/* One array in both types: `narrow` is bf16, with strides; `wide` float. */
typedef struct conversion {
    srnn_tensor narrow, wide;
    int64_t heads, T, width;
} conversion;

static uint16_t *narrow_row(const conversion *c, int64_t head, int64_t t) {
    return (uint16_t *)c->narrow.data + head / c->heads * c->narrow.batch +
           head % c->heads * c->narrow.head + t * c->narrow.time;
}

static float *wide_row(const conversion *c, int64_t head, int64_t t) {
    return (float *)c->wide.data + (head * c->T + t) * c->width;
}

static void widen_head(void *untyped, int64_t head, int worker) {
    const conversion *c = untyped;
    (void)worker;
    for (int64_t t = 0; t < c->T; t++) {
        const uint16_t *from = narrow_row(c, head, t);
        float *to = wide_row(c, head, t);
        for (int64_t d = 0; d < c->width; d++)
            to[d] = sr_bf16_float(from[d]);
    }
}

static void narrow_head(void *untyped, int64_t head, int worker) {
    const conversion *c = untyped;
    (void)worker;
    for (int64_t t = 0; t < c->T; t++) {
        const float *from = wide_row(c, head, t);
        uint16_t *to = narrow_row(c, head, t);
        for (int64_t d = 0; d < c->width; d++)
            to[d] = sr_bf16_of(from[d]);
    }
}

static void convert(sr_task *run, srnn_tensor narrow, srnn_tensor wide, int64_t heads,
                    int64_t width, const srnn_problem *p) {
    conversion c = {narrow, wide, heads, p->T, width};
    if (narrow.data)
        sr_parallel(run, &c, p->B * heads,
                    sr_workers_worth((double)p->B * (double)(heads * p->T * width), p->threads));
}

/* Runs over all operands over positions; sets learned vectors to those of the call. */
static void convert_operands(sr_task *run, const srnn_operands *narrow, srnn_operands *wide,
                             const srnn_problem *p) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (!sr_operand_used(which, &p->attention))
            continue;
        if (!sr_operand_is_tensor(which))
            sr_operand_place(which, wide, sr_operand_data(which, narrow));
        else
            convert(run, sr_operand_tensor(which, narrow), sr_operand_tensor(which, wide),
                    sr_extent_in(row->heads, p), sr_extent_in(row->width, p), p);
    }
}

static srnn_status forward(const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    sr_layout layout = {.base = call->plan->scratch, .apart = true};
    widened wide = place(call->plan, &layout);
    convert_operands(widen_head, call->in, &wide.in, p);
    const sr_attention_call own = {.plan = &wide.plan,
                                   .in = &wide.in,
                                   .o = wide.o,
                                   .saved = call->saved};
    const srnn_status status = of_float(p)->forward(&own);
    convert(narrow_head, call->o, wide.o, p->H, p->Dv, p);
    return status;
}

/* Learned vectors receive their gradients where they are wanted, and what is not wanted is not
 * computed. */
static void place_gradients(srnn_operands *wide, const srnn_operands *wanted) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        void *const data = sr_operand_data((sr_operand)n, wanted);
        if (!data || !sr_operand_is_tensor((sr_operand)n))
            sr_operand_place((sr_operand)n, wide, data);
    }
}

static srnn_status backward(const sr_attention_call *call) {
    const srnn_problem *p = &call->plan->problem;
    sr_layout layout = {.base = call->plan->scratch, .apart = true};
    widened wide = place(call->plan, &layout);
    convert_operands(widen_head, call->in, &wide.in, p);
    convert(widen_head, call->o, wide.o, p->H, p->Dv, p);
    place_gradients(&wide.gradients, call->gradients);
    const sr_attention_call own = {.plan = &wide.plan,
                                   .in = &wide.in,
                                   .o = wide.o,
                                   .gradients = &wide.gradients,
                                   .saved = call->saved};
    const srnn_status status = of_float(p)->backward(&own);
    convert_operands(narrow_head, call->gradients, &wide.gradients, p);
    return status;
}

const sr_attention_kernel SR_LEVEL(sr_attention_bf16) = {
    .name = "flash",
    .form = SRNN_FORM_PARALLEL,
    .dtype = SRNN_BF16,
    .computes = SR_CPU_TILES,
    .scratch = scratch_bytes,
    .forward = forward,
    .backward = backward,
    .saves_wide = true,
};
