/* attention.c: a program that uses only the attention library. */
#include <softrnn.h>

#include <stdio.h>

int main(void) {
    enum { T = 4, D = 2 };
    float numbers[3][T * D], o[T * D];
    srnn_problem problem = {.B = 1, .H = 1, .T = T, .D = D};
    srnn_plan *plan;
    for (int i = 0; i < 3 * T * D; i++)
        numbers[i / (T * D)][i % (T * D)] = (float)i;
    const srnn_operands in = {.q = {.data = numbers[0]},
                              .k = {.data = numbers[1]},
                              .v = {.data = numbers[2]}};
    if (srnn_attention_parse(&problem.attention, "norm") != SRNN_OK ||
        srnn_plan_create(&plan, &problem) != SRNN_OK ||
        srnn_attention_forward(plan, (srnn_tensor){.data = o}, &in, NULL) != SRNN_OK) {
        fprintf(stderr, "%s\n", srnn_error_detail());
        return 1;
    }
    srnn_plan_free(plan);
    printf("softrnn %s\n", srnn_version());
    return 0;
}
