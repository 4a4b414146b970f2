/* bench_case.c: attention problems and GEMMs prepared for timing. */
#include "cli/attention/bench_case.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "verify/probe.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { CHECK_LENGTH = 193, CHECK_HEADS = 2, PRODUCT_SIZE = 2048 };

/* ---- Attention */

/* The same kernel and form on a problem that the oracle can compute quickly. */
static srnn_problem smaller(const bench_case *timed) {
    srnn_problem small = timed->call.problem;
    small.kernel = srnn_plan_kernel(timed->plan);
    small.form = srnn_plan_form(timed->plan);
    small.B = 1;
    small.Hkv = small.Hkv < small.H ? 1 : CHECK_HEADS;
    small.H = CHECK_HEADS;
    if (small.T > CHECK_LENGTH)
        small.T = CHECK_LENGTH;
    return small;
}

static srnn_device *device_of(const bench_case *timed) {
    return timed->call.problem.device ? timed->call.problem.device : sr_device_cpu();
}

static srnn_status compare(attention_call *run, const attention_call *oracle) {
    bool backward = run->problem.form != SRNN_FORM_RECURRENT;
    double limit = probe_limit(&run->problem, run->problem.form);
    SR_TRY(backward ? call_forward_backward(run) : call_forward(run));
    double output = probe_output_error(run, oracle);
    double gradient = backward ? probe_gradient_error(run, oracle) : 0;
    if (output <= limit && gradient <= limit)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "kernel '%s' is wrong and will not be timed: relative error %.2g of the output, "
                   "%.2g of the gradients; see softrnn verify",
                   run->problem.kernel, output, gradient);
}

static srnn_status check(const bench_case *timed) {
    srnn_problem small = smaller(timed);
    attention_call run, oracle;
    SR_TRY(probe_oracle(&oracle, &small, 1));
    srnn_status status = probe_copy(&run, &small, &oracle);
    if (status == SRNN_OK) {
        status = compare(&run, &oracle);
        call_free(&run);
    }
    call_free(&oracle);
    return status;
}

static srnn_status prepare(bench_case *timed, const srnn_problem *problem) {
    SR_TRY(probe_create(&timed->call, problem, 1));
    SR_TRY(srnn_plan_create(&timed->plan, &timed->call.problem));
    SR_TRY(check(timed));
    SR_TRY(call_send(&timed->call));
    return sr_device_allocate(device_of(timed), &timed->saved, srnn_plan_saved_bytes(timed->plan));
}

srnn_status bench_case_open(bench_case *timed, const srnn_problem *problem) {
    *timed = (bench_case){0};
    srnn_status status = prepare(timed, problem);
    if (status != SRNN_OK)
        bench_case_close(timed);
    return status;
}

void bench_case_close(bench_case *timed) {
    sr_device_release(device_of(timed), timed->saved);
    call_free(&timed->call);
    srnn_plan_free(timed->plan);
    *timed = (bench_case){0};
}

/* On an asynchronous device several calls are one measurement. */
static int calls_of(bench_case *timed) {
    enum { CALLS = 10 };
    return sr_device_is_host(device_of(timed)) ? 1 : CALLS;
}

srnn_status bench_forward(double *seconds, bench_case *timed) {
    const srnn_operands in = call_operands(&timed->call);
    const srnn_tensor o = {.data = timed->call.device.o};
    const int calls = calls_of(timed);
    SR_TRY(srnn_device_wait(device_of(timed)));
    const double start = sr_clock_seconds();
    for (int i = 0; i < calls; i++)
        SR_TRY(srnn_attention_forward(timed->plan, o, &in, NULL));
    SR_TRY(srnn_device_wait(device_of(timed)));
    *seconds = (sr_clock_seconds() - start) / calls;
    return SRNN_OK;
}

srnn_status bench_forward_backward(double *seconds, bench_case *timed) {
    srnn_operands in = call_operands(&timed->call), gradients = call_gradients(&timed->call);
    srnn_tensor o = {.data = timed->call.device.o}, d_o = {.data = timed->call.device.d_o};
    const int calls = calls_of(timed);
    SR_TRY(srnn_device_wait(device_of(timed)));
    const double start = sr_clock_seconds();
    for (int i = 0; i < calls; i++) {
        SR_TRY(srnn_attention_forward(timed->plan, o, &in, timed->saved));
        SR_TRY(srnn_attention_backward(timed->plan, &gradients, d_o, &in, timed->saved));
    }
    SR_TRY(srnn_device_wait(device_of(timed)));
    *seconds = (sr_clock_seconds() - start) / calls;
    return SRNN_OK;
}

/* Two products (q k and w v), a multiplication and an addition each, over half of the T x T
 * matrix. */
double bench_forward_flops(const srnn_problem *p) {
    int Dv = p->Dv ? p->Dv : p->D;
    return (double)p->B * p->H * p->T * p->T * (p->D + Dv);
}

/* Five products: q k again, d_o v, and those for dq, dk and dv. */
double bench_backward_flops(const srnn_problem *p) {
    return 2.5 * bench_forward_flops(p);
}

/* ---- Matrix product */

/* Square matrices: large enough for the device, small enough to be fast. */
enum { HOST_SIZE = 1024, DEVICE_SIZE = 8192 };

static srnn_status product_fill(bench_product *product, const srnn_problem *problem) {
    const sr_backend_settings numbers = {.device = problem->device
                                                       ? srnn_device_name(problem->device)
                                                       : NULL,
                                         .threads = problem->threads,
                                         .bf16 = problem->dtype == SRNN_BF16};
    SR_TRY(sr_backend_create(&product->backend, &numbers));
    srnn_device *device = product->backend->device;
    product->size = sr_device_is_host(device) ? HOST_SIZE : DEVICE_SIZE;
    const size_t count = (size_t)(product->size * product->size);
    const size_t size = sr_element_bytes(product->backend->number);
    for (int i = 0; i < 3; i++)
        SR_TRY(sr_device_allocate(device, &product->matrix[i], count * size));
    float *numbers_of_one;
    SR_TRY(sr_alloc((void **)&numbers_of_one, count, sizeof *numbers_of_one));
    for (size_t n = 0; n < count; n++)
        numbers_of_one[n] = (float)((n * 2654435761u >> 16) % 1009) / 504.5f - 1.0f;
    srnn_status status = SRNN_OK;
    void *wide = NULL;
    if (size == sizeof(float)) {
        for (int i = 0; i < 2 && status == SRNN_OK; i++)
            status = sr_device_copy_in(device, product->matrix[i], numbers_of_one, count * size);
    } else {
        status = sr_device_allocate(device, &wide, count * sizeof(float));
        if (status == SRNN_OK)
            status = sr_device_copy_in(device, wide, numbers_of_one, count * sizeof(float));
        for (int i = 0; i < 2 && status == SRNN_OK; i++)
            status = product->backend->narrow(product->backend, product->matrix[i], wide,
                                              (int64_t)count);
    }
    sr_device_release(device, wide);
    free(numbers_of_one);
    return status;
}

srnn_status bench_product_create(bench_product *product, const srnn_problem *problem) {
    *product = (bench_product){0};
    const srnn_status status = product_fill(product, problem);
    if (status != SRNN_OK)
        bench_product_free(product);
    return status;
}

void bench_product_free(bench_product *product) {
    for (int i = 0; product->backend && i < 3; i++)
        sr_device_release(product->backend->device, product->matrix[i]);
    sr_backend_free(product->backend);
    *product = (bench_product){0};
}

srnn_status bench_product_speed(double *gflops, const bench_product *product) {
    sr_backend *backend = product->backend;
    const int64_t size = product->size;
    const sr_matrix y = sr_matrix_of(product->matrix[2], size, size, backend->number);
    const sr_matrix x = sr_matrix_of(product->matrix[0], size, size, backend->number);
    const sr_linear layer = {product->matrix[1], NULL, .N = size};
    SR_TRY(srnn_device_wait(backend->device));
    const double start = sr_clock_seconds();
    SR_TRY(backend->linear_forward(backend, y, (sr_matrix){0}, x, &layer, 1));
    SR_TRY(srnn_device_wait(backend->device));
    const double sum = (double)size * (double)size * (double)size;
    *gflops = 2e-9 * sum / (sr_clock_seconds() - start);
    return SRNN_OK;
}
