/* bench_case.c: attention problems and matrix products held ready for timing. */
#include "bench_case.h"

#include "backend/cpu/matmul.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/threads.h"
#include "probe.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { CHECK_LENGTH = 193, CHECK_HEADS = 2, PRODUCT_SIZE = 2048 };

/* ---- Attention */

/* The same kernel and form on a problem that the oracle can do in no time. */
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

static srnn_status compare(attention_call *run, const attention_call *oracle) {
    bool backward = run->problem.form != SRNN_FORM_RECURRENT;
    double limit = probe_limit(&run->problem.attention, run->problem.form);
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
    srnn_status status = probe_create(&run, &small, 1);
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
    return sr_alloc(&timed->saved, srnn_plan_saved_bytes(timed->plan), 1);
}

srnn_status bench_case_open(bench_case *timed, const srnn_problem *problem) {
    *timed = (bench_case){0};
    srnn_status status = prepare(timed, problem);
    if (status != SRNN_OK)
        bench_case_close(timed);
    return status;
}

void bench_case_close(bench_case *timed) {
    call_free(&timed->call);
    srnn_plan_free(timed->plan);
    free(timed->saved);
    *timed = (bench_case){0};
}

srnn_status bench_forward(double *seconds, bench_case *timed) {
    srnn_operands in = call_operands(&timed->call);
    double start = sr_clock_seconds();
    SR_TRY(srnn_attention_forward(timed->plan, (srnn_tensor){.data = timed->call.o}, &in, NULL));
    *seconds = sr_clock_seconds() - start;
    return SRNN_OK;
}

srnn_status bench_forward_backward(double *seconds, bench_case *timed) {
    srnn_operands in = call_operands(&timed->call), gradients = call_gradients(&timed->call);
    srnn_tensor o = {.data = timed->call.o}, d_o = {.data = timed->call.d_o};
    double start = sr_clock_seconds();
    SR_TRY(srnn_attention_forward(timed->plan, o, &in, timed->saved));
    SR_TRY(srnn_attention_backward(timed->plan, &gradients, d_o, &in, timed->saved));
    *seconds = sr_clock_seconds() - start;
    return SRNN_OK;
}

/* Two products (q k and w v), a multiplication and an addition each, over half a square. */
double bench_forward_flops(const srnn_problem *p) {
    int Dv = p->Dv ? p->Dv : p->D;
    return (double)p->B * p->H * p->T * p->T * (p->D + Dv);
}

/* Five products: q k again, d_o v, and those that give dq, dk and dv. */
double bench_backward_flops(const srnn_problem *p) {
    return 2.5 * bench_forward_flops(p);
}

/* ---- Matrix product */

srnn_status bench_product_create(bench_product *product, int threads) {
    *product = (bench_product){.size = PRODUCT_SIZE, .threads = sr_thread_count(threads)};
    float **const all[] = {&product->a, &product->b, &product->c};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *memory;
        srnn_status status = sr_alloc(&memory, PRODUCT_SIZE * PRODUCT_SIZE, sizeof(float));
        if (status != SRNN_OK) {
            bench_product_free(product);
            return status;
        }
        *all[i] = memory;
        for (size_t n = 0; n < PRODUCT_SIZE * PRODUCT_SIZE; n++)
            (*all[i])[n] = (float)(n % 7) - 3;
    }
    return SRNN_OK;
}

void bench_product_free(bench_product *product) {
    free(product->a);
    free(product->b);
    free(product->c);
    *product = (bench_product){0};
}

typedef struct product_task {
    const bench_product *product;
    atomic_bool failed;
} product_task;

/* One thread's rows. */
static void multiply_part(void *context, int64_t task, int worker) {
    (void)worker;
    product_task *shared = context;
    const bench_product *p = shared->product;
    int64_t first = p->size * task / p->threads, last = p->size * (task + 1) / p->threads;
    sr_product part = {.a = p->a + first * p->size,
                       .b = p->b,
                       .c = p->c + first * p->size,
                       .a_stride = p->size,
                       .b_stride = p->size,
                       .c_stride = p->size,
                       .M = last - first,
                       .N = p->size,
                       .K = p->size};
    if (!sr_matmul(&part))
        atomic_store(&shared->failed, true);
}

srnn_status bench_product_speed(double *gflops, const bench_product *product) {
    product_task shared = {.product = product};
    double start = sr_clock_seconds(), size = (double)product->size;
    sr_parallel(multiply_part, &shared, product->threads, product->threads);
    *gflops = 2e-9 * size * size * size / (sr_clock_seconds() - start);
    return atomic_load(&shared.failed)
               ? SR_FAIL(SRNN_ERR_MEMORY, "%s refused a matrix product", sr_matmul_library())
               : SRNN_OK;
}
