/* attention.c: one call of attention, for any variant.
 *
 *     attention [VARIANT]        softmax, norm, gate, order:2, "order:4,norm=l2", ...
 */
#include <softrnn.h>

#include <stdio.h>
#include <stdlib.h>

enum { T = 6, D = 4 };

static int fail(void) {
    fprintf(stderr, "%s\n", srnn_error_detail());
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    float q[T * D], k[T * D], v[T * D], gate[T] = {0}, weight[D], bias[D] = {0}, o[T * D];
    for (int i = 0; i < T * D; i++) {
        q[i] = (float)((i * 7 + 1) % 5 - 2) / 2;
        k[i] = (float)((i * 3 + 2) % 7 - 3) / 3;
        v[i] = (float)((i * 5 + 3) % 11) / 11;
    }
    for (int c = 0; c < D; c++)
        weight[c] = 1;

    /* B rows, H heads, T positions, D numbers in a head. */
    srnn_problem problem = {.B = 1, .H = 1, .T = T, .D = D};
    if (srnn_attention_parse(&problem.attention, argc > 1 ? argv[1] : "norm") != SRNN_OK)
        return fail();
    srnn_plan *plan;
    if (srnn_plan_create(&plan, &problem) != SRNN_OK)
        return fail();

    /* What the variant does not use is ignored. */
    const srnn_operands in = {.q = {.data = q},
                              .k = {.data = k},
                              .v = {.data = v},
                              .value_gate = {.data = gate},
                              .output_gate = {.data = gate},
                              .decay = {.data = gate},
                              .norm_weight = weight,
                              .norm_bias = bias,
                              .value_power = gate};
    if (srnn_attention_forward(plan, (srnn_tensor){.data = o}, &in, NULL) != SRNN_OK)
        return fail();

    printf("kernel %s\n", srnn_plan_kernel(plan));
    for (int t = 0; t < T; t++)
        for (int c = 0; c < D; c++)
            printf("%9.5f%s", o[t * D + c], c + 1 < D ? " " : "\n");
    srnn_plan_free(plan);
    return EXIT_SUCCESS;
}
