/* test_golden_scores.c: window, sink, cap and sigmoid, and given decays, against another
 * implementation in double (inputs/scores.safetensors). */
#include "golden.h"
#include "verify/probe.h"

enum { B = 2, T = 13 };

typedef struct scores_case {
    const char *name, *attention;
    bool packed;    /* each row holds the documents 0..4 and 5..12 */
    bool logarithm; /* the file's decay is z of -softplus(z), which is passed as given */
} scores_case;

static const scores_case cases[] = {
    {"window", "window=4", false, false},
    {"window_documents", "window=4", true, false},
    {"sink", "sink=learned", false, false},
    {"off_by_one", "sink=zero", false, false},
    {"cap", "cap=1.5", false, false},
    {"sigmoid", "sigmoid,score_bias=-2", false, false},
    {"sigmoid_row_length", "sigmoid,score_bias=-0.5,normaliser=row_length,window=5", false, false},
    {"window_sink_cap", "window=5,sink=learned,cap=2", false, false},
    {"window_forget", "window=6,decay=log_sigmoid", false, false},
    {"power_sink", "power:2,sink=learned,decay=given", false, true},
};

static const int64_t offsets[] = {0, 5, 13, 18, 26};

/* Float agrees to 2e-6 in outputs and 1e-5 in gradients. */
static const double LIMIT = 1e-5;

/* The name of an operand in the file. */
static const char *file_name(sr_operand which) {
    return which == SR_OPERAND_SINKS ? "sink" : sr_operand_at(which)->name;
}

static float *numbers_of(const sr_safetensors *file, const scores_case *c, const char *prefix,
                         const char *name, const sr_shape *shape) {
    return golden_numbers(file, c->name, prefix, name, (size_t)sr_shape_numbers(shape));
}

static void load(attention_call *call, const sr_safetensors *file, const scores_case *c) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_shape shape = sr_operand_shape(which, &call->problem);
        if (!call->host.operand[n])
            continue;
        float *numbers = numbers_of(file, c, "core.", file_name(which), &shape);
        for (int64_t i = 0; i < sr_shape_numbers(&shape); i++)
            ((float *)call->host.operand[n])[i] =
                c->logarithm && which == SR_OPERAND_DECAY ? -log1pf(expf(numbers[i])) : numbers[i];
        free(numbers);
    }
    const sr_shape output = sr_output_shape(&call->problem);
    float *d_o = numbers_of(file, c, "core.", "do", &output);
    memcpy(call->host.d_o, d_o, (size_t)sr_shape_numbers(&output) * sizeof *d_o);
    free(d_o);
}

/* A tensor of the file: <case>/<prefix><name>. */
typedef struct tensor_name {
    const scores_case *c;
    const char *prefix, *name;
} tensor_name;

static void compare(const float *got, const sr_safetensors *file, tensor_name of,
                    const sr_shape *shape, const char *kernel) {
    float *want = numbers_of(file, of.c, of.prefix, of.name, shape);
    const double error = golden_error(got, want, (size_t)sr_shape_numbers(shape));
    if (!(error <= LIMIT))
        fail_msg("%s, %s: %s%s is off by %g", of.c->name, kernel, of.prefix, of.name, error);
    free(want);
}

static void compare_output(const attention_call *call, const sr_safetensors *file,
                           const scores_case *c, const char *kernel) {
    const sr_shape output = sr_output_shape(&call->problem);
    compare(call->host.o, file, (tensor_name){c, "core.", "o"}, &output, kernel);
}

static void compare_gradients(const attention_call *call, const sr_safetensors *file,
                              const scores_case *c, const char *kernel) {
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_shape shape = sr_operand_shape(which, &call->problem);
        float *gradient = call->host.gradient[n];
        if (!gradient)
            continue;
        if (c->logarithm && which == SR_OPERAND_DECAY) { /* of z: the slope is e^a - 1 */
            const float *a = call->host.operand[n];
            for (int64_t i = 0; i < sr_shape_numbers(&shape); i++)
                gradient[i] *= expm1f(a[i]);
        }
        compare(gradient, file, (tensor_name){c, "core.d", file_name(which)}, &shape, kernel);
    }
}

static srnn_problem problem_of(const scores_case *c) {
    srnn_problem problem = {.B = B, .H = 4, .Hkv = 2, .T = T, .D = 6, .Dv = 5};
    assert_int_equal(srnn_attention_parse(&problem.attention, c->attention), SRNN_OK);
    if (c->packed) {
        problem.offsets = offsets;
        problem.documents = 4;
    }
    return problem;
}

static void every_kernel_agrees(void **state) {
    (void)state;
    sr_safetensors *file;
    int compared = 0;
    assert_int_equal(sr_safetensors_open(&file, SOFTRNN_TEST_INPUTS "/scores.safetensors"),
                     SRNN_OK);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const char *kernel;
        for (size_t k = 0; (kernel = srnn_kernel_name(NULL, k)); k++)
            for (int form = SRNN_FORM_PARALLEL; form <= SRNN_FORM_CHUNKED; form++) {
                attention_call call;
                srnn_problem problem = problem_of(&cases[n]);
                problem.kernel = kernel;
                problem.form = (srnn_form)form;
                problem.chunk = 4;
                assert_int_equal(call_create(&call, &problem), SRNN_OK);
                load(&call, file, &cases[n]);
                const srnn_status status = call_forward_backward(&call);
                if (status == SRNN_OK) {
                    compare_output(&call, file, &cases[n], kernel);
                    compare_gradients(&call, file, &cases[n], kernel);
                    compared++;
                } else {
                    assert_int_equal(status, SRNN_ERR_UNSUPPORTED);
                }
                call_free(&call);
            }
    }
    sr_safetensors_free(file);
    assert_true(compared >= 2 * (int)(sizeof cases / sizeof *cases)); /* flash and generic */
}

static void fed_pieces_agree(void **state) {
    (void)state;
    sr_safetensors *file;
    assert_int_equal(sr_safetensors_open(&file, SOFTRNN_TEST_INPUTS "/scores.safetensors"),
                     SRNN_OK);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        attention_call call;
        const srnn_problem problem = problem_of(&cases[n]);
        if (cases[n].packed)
            continue;
        assert_int_equal(call_create(&call, &problem), SRNN_OK);
        load(&call, file, &cases[n]);
        for (uint64_t seed = 0; seed < 4; seed++) {
            assert_int_equal(probe_feed(&call, seed), SRNN_OK);
            compare_output(&call, file, &cases[n], "fed");
        }
        assert_int_equal(probe_feed_tokens(&call, 0), SRNN_OK);
        compare_output(&call, file, &cases[n], "fed token by token");
        call_free(&call);
    }
    sr_safetensors_free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_agrees),
        cmocka_unit_test(fed_pieces_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
