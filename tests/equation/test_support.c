/* test_support.c: kernels compute what they declare, and refuse what they do not declare. */
#include "test.h"

#include "attention/cpu/shared/computes.h"
#include "attention/cuda/shared/computes.h"
#include "attention/kernel.h"
#include "equation/support.h"

#include <string.h>

static const char DECLARED[] = "score=exp|linear clamp=any decay=none|learned";

static bool computes(const char *text) {
    srnn_attention attention;
    assert_int_equal(srnn_attention_parse(&attention, text), SRNN_OK);
    return sr_computes(DECLARED, &attention, NULL);
}

static void values_that_are_listed(void **state) {
    (void)state;
    assert_true(computes("score=exp"));
    assert_true(computes("score=linear"));
    assert_true(computes("score=exp,clamp=5"));
    assert_true(computes("score=exp,decay=learned"));
}

static void values_that_are_not(void **state) {
    (void)state;
    assert_false(computes("score=taylor:2"));
    assert_false(computes("score=exp,decay=softplus"));
    assert_false(computes("score=exp,decay,decay_place=logit"));
    assert_false(computes("score=exp,norm=rms"));
}

/* Kernels do not see the layer, nor the width of a decay that is off. */
static void axes_without_effect(void **state) {
    (void)state;
    assert_true(computes("score=exp,short_conv=4"));
    assert_true(computes("score=exp,decay_width=channel"));
}

static void the_missing_axis_is_named(void **state) {
    (void)state;
    srnn_attention attention = {.norm = SRNN_NORM_RMS};
    const sr_axis *missing = NULL;
    assert_false(sr_computes(DECLARED, &attention, &missing));
    assert_string_equal(missing->name, "norm");
}

static void words_that_do_not_exist(void **state) {
    (void)state;
    char wrong[64];
    assert_true(sr_declaration_is_valid(DECLARED, wrong));
    assert_false(sr_declaration_is_valid("score=exp|logarithm", wrong));
    assert_string_equal(wrong, "score=logarithm");
    assert_false(sr_declaration_is_valid("score=exp windows=any", wrong));
    assert_string_equal(wrong, "windows");
    assert_false(sr_declaration_is_valid("score", wrong));
}

static void check_valid(const char *name, const char *declaration) {
    char wrong[64];
    if (!sr_declaration_is_valid(declaration, wrong))
        fail_msg("%s declares '%s', which does not exist", name, wrong);
}

static void declarations_of_kernels(void **state) {
    (void)state;
    const srnn_attention softmax = {0};
    const sr_attention_kernels *kernels = sr_device_cpu()->attention;
    for (const sr_attention_kernel *const *k = kernels->list(); *k; k++)
        check_valid((*k)->name, (*k)->computes);
    const srnn_problem problem = {.B = 1, .H = 1, .T = 1, .D = 1, .attention = softmax};
    check_valid("state", kernels->state(&problem, false)->computes);
    check_valid("linear state", SR_CPU_LINEAR);
    check_valid("generic", SR_CPU_EVERYTHING);
    check_valid("KV cache of GPUs", SR_CUDA_KV_CACHE);
    check_valid("recurrent state of GPUs", SR_CUDA_RECURRENT_STATE);
}

/* An axis that was added to the equation, and to no kernel. */
typedef struct newer_attention {
    srnn_attention attention;
    int dilation;
} newer_attention;

static void an_axis_that_nobody_declares(void **state) {
    (void)state;
    enum { ROOM = 64 };
    sr_axis axes[ROOM] = {{0}};
    size_t count = 0;
    for (; sr_axis_at(count); count++)
        axes[count] = *sr_axis_at(count);
    assert_true(count + 2 <= ROOM);
    axes[count] = (sr_axis){.name = "dilation",
                            .kind = SR_AXIS_COUNT,
                            .offset = offsetof(newer_attention, dilation),
                            .words = (const char *const[]){"none", NULL}};
    newer_attention newer = {.dilation = 0};
    const srnn_attention *attention = &newer.attention;
    for (const sr_attention_kernel *const *k = sr_device_cpu()->attention->list(); *k; k++) {
        newer.attention.score =
            strncmp((*k)->computes, "score=exp", 9) == 0 ? SRNN_SCORE_EXP : SRNN_SCORE_LINEAR;
        newer.dilation = 0;
        assert_true(sr_computes_axes((*k)->computes, axes, attention, NULL));
        newer.dilation = 128;
        assert_false(sr_computes_axes((*k)->computes, axes, attention, NULL));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_listed),       cmocka_unit_test(values_that_are_not),
        cmocka_unit_test(axes_without_effect),          cmocka_unit_test(the_missing_axis_is_named),
        cmocka_unit_test(words_that_do_not_exist),      cmocka_unit_test(declarations_of_kernels),
        cmocka_unit_test(an_axis_that_nobody_declares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
