/* gradients.c: forward and backward, and one gradient held against a difference quotient. */
#include <softrnn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 5, D = 3, COUNT = T * D };

static int fail(void) {
    fprintf(stderr, "%s\n", srnn_error_detail());
    return EXIT_FAILURE;
}

/* The sum of all outputs, which is what is differentiated. */
static double loss(srnn_plan *plan, const srnn_operands *in, double *o, void *saved) {
    double sum = 0;
    if (srnn_attention_forward(plan, (srnn_tensor){.data = o}, in, saved) != SRNN_OK)
        return NAN;
    for (int i = 0; i < COUNT; i++)
        sum += o[i];
    return sum;
}

int main(void) {
    double q[COUNT], k[COUNT], v[COUNT], o[COUNT], ones[COUNT], d_q[COUNT], d_k[COUNT], d_v[COUNT];
    for (int i = 0; i < COUNT; i++) {
        q[i] = sin(i);
        k[i] = cos(2 * i);
        v[i] = sin(3 * i);
        ones[i] = 1;
    }
    srnn_problem problem = {.dtype = SRNN_F64, .B = 1, .H = 1, .T = T, .D = D};
    srnn_plan *plan;
    if (srnn_attention_parse(&problem.attention, "order:2") != SRNN_OK ||
        srnn_plan_create(&plan, &problem) != SRNN_OK)
        return fail();

    /* What forward leaves for backward belongs to the caller. */
    const size_t bytes = (srnn_plan_saved_bytes(plan) + 63) / 64 * 64;
    void *saved = aligned_alloc(64, bytes);
    if (!saved)
        return EXIT_FAILURE;
    srnn_operands in = {.q = {.data = q}, .k = {.data = k}, .v = {.data = v}};
    const srnn_operands gradients = {.q = {.data = d_q}, .k = {.data = d_k}, .v = {.data = d_v}};
    if (isnan(loss(plan, &in, o, saved)) ||
        srnn_attention_backward(plan, &gradients, (srnn_tensor){.data = ones}, &in, saved) !=
            SRNN_OK)
        return fail();

    const double step = 1e-5, at = k[4];
    k[4] = at + step;
    const double above = loss(plan, &in, o, NULL);
    k[4] = at - step;
    const double below = loss(plan, &in, o, NULL);
    const double quotient = (above - below) / (2 * step);
    printf("gradient %.8f, difference quotient %.8f\n", d_k[4], quotient);
    free(saved);
    srnn_plan_free(plan);
    return fabs(d_k[4] - quotient) < 1e-6 ? EXIT_SUCCESS : EXIT_FAILURE;
}
