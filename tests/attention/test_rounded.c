/* test_rounded.c: attention with products of bf16 numbers on the CPU, at every level. */
#include "attention/kernel.h"
#include "base/bf16.h"
#include "base/cpu_level.h"
#include "test.h"
#include "verify/probe.h"

#include <math.h>

/* Axes that the tiles compute, and shapes about their edges: 96 tokens in a tile, 32 numbers in a
 * block, a scale that is not a power of two, one token, heads too narrow to be rounded. */
static const char *const specs[] = {
    "softmax",
    "softmax,value_gate,output_gate,norm=rms",
    "score=exp,normaliser=none,norm=l2",
    "score=exp,clamp=5,normaliser=row_sum_min1",
    "score=taylor:2,norm=rms",
    "score=linear,feature=elu1",
    "score=linear,normaliser=none,decay,norm=rms",
    "softmax,decay=log_sigmoid",
    "softmax,decay=log_sigmoid,decay_place=logit,cap=4",
    "score=sigmoid,score_bias=-2,normaliser=none,window=40",
    "softmax,window=40,sink=learned,cap=3",
    "score=power:2,share=qk,position=none",
};

static const int64_t packed[] = {0, 1, 18, 130, 260};

static const srnn_problem shapes[] = {
    {.B = 1, .H = 2, .Hkv = 2, .T = 1, .D = 16, .Dv = 16},
    {.B = 2, .H = 4, .Hkv = 2, .T = 37, .D = 20, .Dv = 33},
    {.B = 1, .H = 2, .Hkv = 1, .T = 97, .D = 64, .Dv = 64},
    {.B = 2, .H = 2, .Hkv = 2, .T = 130, .D = 40, .Dv = 72, .offsets = packed, .documents = 4},
    {.B = 1, .H = 2, .Hkv = 2, .T = 193, .D = 128, .Dv = 16},
    {.B = 1, .H = 2, .Hkv = 2, .T = 40, .D = 6, .Dv = 5},
};

enum { SPECS = sizeof specs / sizeof *specs, SHAPES = sizeof shapes / sizeof *shapes };

static srnn_problem problem_of(const char *spec, const srnn_problem *shape, srnn_dtype dtype) {
    srnn_problem problem = *shape;
    problem.dtype = dtype;
    problem.form = SRNN_FORM_PARALLEL;
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    return problem;
}

static double error_of(const srnn_problem *problem, const attention_call *oracle) {
    attention_call run;
    assert_int_equal(probe_copy(&run, problem, oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const probe_errors errors = probe_errors_of(&run, oracle, true);
    call_free(&run);
    return probe_worst(&errors);
}

/* Outputs and gradients, next to a plain computation in bf16. */
static void every_level(void **state) {
    (void)state;
    for (size_t n = 0; n < SPECS * SHAPES; n++) {
        const char *spec = specs[n / SHAPES];
        const srnn_problem problem = problem_of(spec, &shapes[n % SHAPES], SRNN_BF16);
        attention_call oracle;
        probe_errors plain;
        assert_int_equal(probe_oracle(&oracle, &problem, 3), SRNN_OK);
        assert_int_equal(probe_plain_errors(&plain, &problem, &oracle), SRNN_OK);
        for (int level = SR_CPU_BASE; level <= (int)sr_cpu_level_machine(); level++) {
            sr_cpu_level_use((sr_cpu_level)level);
            const double error = error_of(&problem, &oracle);
            if (!(error <= probe_plain_limit(probe_worst(&plain))))
                fail_msg("%s, T=%d D=%d Dv=%d, %s: off by %g, a plain computation by %g", spec,
                         problem.T, problem.D, problem.Dv, sr_cpu_level_name((sr_cpu_level)level),
                         error, probe_worst(&plain));
        }
        call_free(&oracle);
    }
}

/* The weight of a single key is 1 whatever its logit: what rounding loses of the gradient of a
 * numerator must not reach queries and keys. */
static void one_key(void **state) {
    (void)state;
    const srnn_problem shape = {.B = 2, .H = 8, .Hkv = 8, .T = 1, .D = 32, .Dv = 32};
    const srnn_problem problem = problem_of("softmax", &shape, SRNN_BF16);
    attention_call oracle, run;
    assert_int_equal(probe_oracle(&oracle, &problem, 3), SRNN_OK);
    assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
    assert_int_equal(call_forward_backward(&run), SRNN_OK);
    const uint16_t *gradient = run.host.gradient[SR_OPERAND_Q];
    for (int n = 0; n < shape.B * shape.H * shape.D; n++)
        if (!(fabsf(sr_bf16_float(gradient[n])) < 1e-5f))
            fail_msg("gradient %d of the queries is %g", n, (double)sr_bf16_float(gradient[n]));
    call_free(&run);
    call_free(&oracle);
}

/* A float problem whose products are rounded is off by what bf16 loses, and by no more; one that is
 * too narrow stays as exact as float. */
static void float_problems(void **state) {
    (void)state;
    for (size_t shape = 1; shape < SHAPES; shape++) {
        const srnn_problem problem = problem_of("softmax", &shapes[shape], SRNN_F32);
        attention_call call;
        srnn_plan *plan;
        assert_int_equal(probe_create(&call, &problem, 3), SRNN_OK);
        assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
        assert_int_equal(sr_plan_round(plan), SRNN_OK);
        const srnn_operands in = call_operands(&call);
        const sr_shape size = sr_output_shape(&call.problem);
        const int64_t count = sr_shape_numbers(&size);
        float *rounded = call.host.o, *exact = call.host.d_o;
        assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = rounded}, &in, NULL),
                         SRNN_OK);
        srnn_plan_free(plan);
        assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
        assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = exact}, &in, NULL),
                         SRNN_OK);
        srnn_plan_free(plan);
        double difference = 0, total = 0;
        for (int64_t n = 0; n < count; n++) {
            difference += pow((double)rounded[n] - (double)exact[n], 2);
            total += pow((double)exact[n], 2);
        }
        const double error = sqrt(difference / total);
        if (problem.D < 16 ? error != 0 : !(error > 1e-4 && error < 1e-2))
            fail_msg("T=%d D=%d: off by %g", problem.T, problem.D, error);
        call_free(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_level),
        cmocka_unit_test(one_key),
        cmocka_unit_test(float_problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
