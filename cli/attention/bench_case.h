/* bench_case.h: an attention problem prepared for timing, and the GEMM it is compared with. */
#ifndef SR_CLI_ATTENTION_BENCH_CASE_H
#define SR_CLI_ATTENTION_BENCH_CASE_H

#include "ops/backend.h"
#include "verify/call.h"

typedef struct bench_case {
    attention_call call;
    srnn_plan *plan;
    void *saved;
} bench_case;

/* Chooses form and kernel, and compares them with the float64 oracle on a smaller problem: a wrong
 * kernel is refused. */
srnn_status bench_case_open(bench_case *timed, const srnn_problem *problem);
void bench_case_close(bench_case *timed); /* leaves { 0 } */

/* Seconds of one call. */
srnn_status bench_forward(double *seconds, bench_case *timed);
srnn_status bench_forward_backward(double *seconds, bench_case *timed);

/* Floating-point operations required by the parallel form. */
double bench_forward_flops(const srnn_problem *problem);
double bench_backward_flops(const srnn_problem *problem);

/* Square matrices whose product measures the device's current speed. */
typedef struct bench_product {
    sr_backend *backend;
    void *matrix[3]; /* (size, size) */
    int64_t size;
} bench_product;

/* For the problem's device, number type and threads. */
srnn_status bench_product_create(bench_product *product, const srnn_problem *problem);
void bench_product_free(bench_product *product);

/* GFLOP/s of one product. */
srnn_status bench_product_speed(double *gflops, const bench_product *product);

#endif
