/* test_golden_writes.c: attention with other state updates, without its layer, against a
 * computation in double: every form, both number types. */
#include "equation/operands.h"
#include "golden.h"
#include "verify/call.h"

typedef struct written {
    const char *name, *attention;
    int H, Hkv; /* of the equation: with share=qk, heads of values and of keys */
} written;

/* Like the named variants, but without the norm and the gate after it. */
#define CORE ",norm=none,post_gate=off"
static const written cases[] = {
    {"kda", "kda" CORE, 4, 2},
    {"kda_bounded", "kda,decay=bounded,decay_bound=5,write_range=2" CORE, 4, 2},
    {"gdn2", "gdn2" CORE, 4, 2},
    {"gdn2_neg", "gdn2,write_range=2" CORE, 4, 2},
    {"rwkv7",
     "score=linear,position=none,scale=one,write=removal,normaliser=none,decay=bounded,"
     "decay_bound=0.6065306597126334,decay_width=channel,dt_width=none",
     4, 4},
};

static const srnn_form forms[] = {SRNN_FORM_PARALLEL, SRNN_FORM_CHUNKED, SRNN_FORM_RECURRENT};

static sr_safetensors *file;

static void *place(attention_call *call, int which) {
    return which < SR_OPERANDS ? call->host.operand[which] : call->host.d_o;
}

static void put(void *to, srnn_dtype dtype, const float *from, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (dtype == SRNN_F64)
            ((double *)to)[i] = (double)from[i];
        else
            ((float *)to)[i] = from[i];
}

static void load(attention_call *call, const written *w) {
    const srnn_problem *p = &call->problem;
    for (int which = 0; which <= SR_OPERANDS; which++) {
        const bool operand = which < SR_OPERANDS;
        const sr_shape shape =
            operand ? sr_operand_shape((sr_operand)which, p) : sr_output_shape(p);
        const size_t count = (size_t)sr_shape_numbers(&shape);
        if (!place(call, which))
            continue;
        float *numbers =
            golden_numbers(file, w->name, "core.",
                           operand ? sr_operand_at((sr_operand)which)->name : "do", count);
        put(place(call, which), p->dtype, numbers, count);
        free(numbers);
    }
}

static void expect(const char *text, const char *name, const void *got, srnn_dtype dtype,
                   const float *want, size_t count) {
    float *numbers = malloc(count * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++)
        numbers[i] = dtype == SRNN_F64 ? (float)((const double *)got)[i] : ((const float *)got)[i];
    const double error = golden_error(numbers, want, count);
    if (!(error <= 1e-5))
        fail_msg("%s: %s is off by %.2e", text, name, error);
    free(numbers);
}

static void check_gradients(const attention_call *call, const written *w) {
    for (int which = 0; which < SR_OPERANDS; which++) {
        char name[64];
        const sr_shape shape = sr_operand_shape((sr_operand)which, &call->problem);
        const size_t count = (size_t)sr_shape_numbers(&shape);
        if (!call->host.gradient[which])
            continue;
        snprintf(name, sizeof name, "d%s", sr_operand_at((sr_operand)which)->name);
        float *want = golden_numbers(file, w->name, "core.", name, count);
        expect(w->attention, name, call->host.gradient[which], call->problem.dtype, want, count);
        free(want);
    }
}

static void check_form(const written *w, srnn_form form, srnn_dtype dtype) {
    attention_call call;
    srnn_problem problem = {
        .B = 2, .H = w->H, .Hkv = w->Hkv, .T = 13, .D = 6, .Dv = 5, .form = form, .dtype = dtype};
    assert_int_equal(srnn_attention_parse(&problem.attention, w->attention), SRNN_OK);
    assert_int_equal(call_create(&call, &problem), SRNN_OK);
    load(&call, w);
    assert_int_equal(form == SRNN_FORM_RECURRENT ? call_forward(&call)
                                                 : call_forward_backward(&call),
                     SRNN_OK);
    const sr_shape shape = sr_output_shape(&call.problem);
    const size_t count = (size_t)sr_shape_numbers(&shape);
    float *want = golden_numbers(file, w->name, "core.", "o", count);
    expect(w->attention, "o", call.host.o, dtype, want, count);
    if (form != SRNN_FORM_RECURRENT)
        check_gradients(&call, w);
    free(want);
    call_free(&call);
}

static void numbers_of_double(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
            for (int dtype = SRNN_F32; dtype <= SRNN_F64; dtype++)
                check_form(&cases[n], forms[f], (srnn_dtype)dtype);
}

static int open_file(void **state) {
    (void)state;
    return sr_safetensors_open(&file, SOFTRNN_TEST_INPUTS "/writes.safetensors") == SRNN_OK ? 0
                                                                                            : -1;
}

static int close_file(void **state) {
    (void)state;
    sr_safetensors_free(file);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_of_double)};
    return cmocka_run_group_tests(tests, open_file, close_file);
}
