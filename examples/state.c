/* state.c: attention as a recurrent network: token by token, in pieces, saved and gone on with; the
 * outputs are those of the whole sequence. */
#include <softrnn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { T = 64, D = 8, SAVED_AT = 40 };

static int fail(void) {
    fprintf(stderr, "%s\n", srnn_error_detail());
    return EXIT_FAILURE;
}

static srnn_operands from(float *q, float *k, float *v, int t) {
    return (srnn_operands){.q = {.data = q + t * D},
                           .k = {.data = k + t * D},
                           .v = {.data = v + t * D}};
}

static double largest_difference(const float *a, const float *b) {
    double largest = 0;
    for (int i = 0; i < T * D; i++)
        largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
    return largest;
}

int main(void) {
    static float q[T * D], k[T * D], v[T * D], whole[T * D], pieces[T * D];
    for (int i = 0; i < T * D; i++) {
        q[i] = (float)sin(0.7 * i);
        k[i] = (float)cos(0.3 * i);
        v[i] = (float)sin(0.1 * i);
    }
    srnn_problem problem = {.B = 1, .H = 1, .T = T, .D = D};
    srnn_plan *plan;
    srnn_state *state, *other;
    if (srnn_attention_parse(&problem.attention, "order:2") != SRNN_OK ||
        srnn_plan_create(&plan, &problem) != SRNN_OK)
        return fail();
    const srnn_operands all = from(q, k, v, 0);
    if (srnn_attention_forward(plan, (srnn_tensor){.data = whole}, &all, NULL) != SRNN_OK)
        return fail();
    srnn_plan_free(plan);

    /* The state of order 2 has a fixed size: T is only the largest piece. */
    problem.T = T - SAVED_AT;
    if (srnn_state_create(&state, &problem) != SRNN_OK ||
        srnn_state_create(&other, &problem) != SRNN_OK)
        return fail();
    for (int t = 0; t < SAVED_AT; t++) {
        const srnn_operands one = from(q, k, v, t);
        if (srnn_state_feed(state, (srnn_tensor){.data = pieces + t * D}, &one, 1) != SRNN_OK)
            return fail();
    }
    const size_t bytes = srnn_state_saved_bytes(state);
    void *saved = malloc(bytes);
    const srnn_operands rest = from(q, k, v, SAVED_AT);
    if (!saved || srnn_state_save(state, saved, bytes) != SRNN_OK ||
        srnn_state_load(other, saved, bytes) != SRNN_OK ||
        srnn_state_feed(other, (srnn_tensor){.data = pieces + SAVED_AT * D}, &rest, T - SAVED_AT) !=
            SRNN_OK)
        return fail();
    const double difference = largest_difference(whole, pieces);
    printf("%s state of %zu bytes after %lld tokens; largest difference %.1e\n",
           srnn_state_is_recurrent(other) ? "fixed" : "growing", bytes,
           (long long)srnn_state_position(other), difference);
    free(saved);
    srnn_state_free(state);
    srnn_state_free(other);
    return difference < 1e-5 ? EXIT_SUCCESS : EXIT_FAILURE;
}
