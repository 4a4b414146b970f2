/* test_support.c: kernels compute what they declare, and refuse what they do not declare. */
#include "test.h"

#include "attention/kernel.h"
#include "device/device.h"
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

/* An axis that was added to the equation, and to no kernel. */
typedef struct newer_attention {
    srnn_attention attention;
    int dilation;
} newer_attention;

enum { AXES = 64 };

/* The axes of newer_attention. */
static void make_newer_axes(sr_axis axes[AXES]) {
    size_t count = 0;
    for (; sr_axis_at(count); count++)
        axes[count] = *sr_axis_at(count);
    assert_true(count + 2 <= AXES);
    axes[count] = (sr_axis){.name = "dilation",
                            .kind = SR_AXIS_COUNT,
                            .offset = offsetof(newer_attention, dilation),
                            .words = (const char *const[]){"none", NULL}};
    axes[count + 1] = (sr_axis){.name = NULL};
}

/* A declaration names what exists, covers some values of these axes, and does not cover them with a
 * value of the newer axis. */
static void check_declaration(const char *name, const char *declaration) {
    char wrong[64];
    sr_axis axes[AXES];
    if (!sr_declaration_is_valid(declaration, wrong))
        fail_msg("%s declares '%s', which does not exist", name, wrong);
    make_newer_axes(axes);
    newer_attention newer = {.dilation = 0};
    const sr_axis *axis;
    while (!sr_computes_axes(declaration, axes, &newer.attention, &axis)) {
        const double next = sr_axis_value(axis, &newer.attention) + 1;
        assert_true(next < (double)sr_axis_words(axis));
        sr_axis_set(axis, &newer.attention, next);
    }
    newer.dilation = 128;
    if (sr_computes_axes(declaration, axes, &newer.attention, NULL))
        fail_msg("%s computes an axis that it does not declare", name);
}

static void check_states(const sr_attention_kernels *kernels, srnn_device *device) {
    const srnn_variant *variant;
    for (size_t i = 0; (variant = srnn_variant_at(i)); i++)
        for (int recurrent = 0; recurrent < 2; recurrent++)
            for (srnn_dtype dtype = SRNN_F32; dtype <= SRNN_BF16; dtype++) {
                const srnn_problem problem = {.B = 1,
                                              .H = 1,
                                              .T = 1,
                                              .D = 2,
                                              .device = device,
                                              .dtype = dtype,
                                              .attention = variant->attention};
                const sr_state_kernel *state = kernels->state(&problem, recurrent);
                if (state)
                    check_declaration("a state", state->computes);
            }
}

/* Of every device of this build: a new axis is refused by all kernels that do not declare it. */
static void an_axis_that_nobody_declares(void **state) {
    (void)state;
    const sr_device_kind *kind;
    for (size_t i = 0; (kind = sr_device_kind_at(i)); i++) {
        srnn_device *device;
        if (kind->open(&device, 0, 1) != SRNN_OK)
            continue;
        const sr_attention_kernels *kernels = device->attention;
        for (const sr_attention_kernel *const *k = kernels->list(); *k; k++)
            check_declaration((*k)->name, (*k)->computes);
        check_states(kernels, device);
        srnn_device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_that_are_listed),  cmocka_unit_test(values_that_are_not),
        cmocka_unit_test(axes_without_effect),     cmocka_unit_test(the_missing_axis_is_named),
        cmocka_unit_test(words_that_do_not_exist), cmocka_unit_test(an_axis_that_nobody_declares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
