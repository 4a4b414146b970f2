/* test_facts.c: what follows from a descriptor. */
#include "test.h"

#include "equation/facts.h"

#include <math.h>
#include <string.h>

static srnn_attention parsed(const char *text) {
    srnn_attention a;
    if (srnn_attention_parse(&a, text) != SRNN_OK)
        fail_msg("%s: %s", text, srnn_error_detail());
    return a;
}

/* Bytes of the float state of a truncated softmax, D = Dv. */
static double state_bytes(int order, int D) {
    srnn_attention a = {.score = SRNN_SCORE_TAYLOR, .order = order};
    return 4.0 * (double)srnn_attention_state_numbers(&a, D, D);
}

static void assert_near(double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance))
        fail_msg("%g is not %g", value, expected);
}

static void state_sizes_of_the_series(void **state) {
    (void)state;
    const double KB = 1024, MB = 1024 * 1024;
    assert_near(state_bytes(1, 64) / KB, 16.5, 0.05);
    assert_near(state_bytes(2, 64) / KB, 545, 0.5);
    assert_near(state_bytes(3, 64) / MB, 11.9, 0.05);
    assert_near(state_bytes(4, 64) / MB, 202, 0.5);
    assert_near(state_bytes(3, 32) / KB, 844, 0.5);
    assert_near(state_bytes(4, 32) / MB, 7.4, 0.05);
    assert_near(state_bytes(2, 16) / KB, 10, 0.5);
    assert_near(state_bytes(4, 16) / KB, 322, 0.5);
    assert_near(state_bytes(6, 16) / MB, 4.8, 0.05);
    assert_near(state_bytes(8, 16) / MB, 48, 0.5);
}

static void state_sizes_of_single_orders(void **state) {
    (void)state;
    srnn_attention a = parsed("linear_elu");
    assert_int_equal(srnn_attention_state_numbers(&a, 64, 32), 64 * 33);
    a = parsed("linear_cosine");
    assert_int_equal(srnn_attention_state_numbers(&a, 64, 32), 64 * 32);
    a = parsed("power:2,normaliser=none");
    assert_int_equal(srnn_attention_state_numbers(&a, 3, 5), 6 * 5);
    a = parsed("order:0");
    assert_int_equal(srnn_attention_state_numbers(&a, 64, 64), 65);
    a = parsed("order:170");
    assert_true(srnn_attention_state_numbers(&a, 256, 256) == SIZE_MAX);
    assert_int_equal(srnn_attention_state_numbers(&a, 1, 1), 171 * 2);
    a = parsed("softmax");
    assert_int_equal(srnn_attention_state_numbers(&a, 64, 64), 0);
}

static void who_has_a_state(void **state) {
    (void)state;
    static const char *const with[] = {"linear_elu",
                                       "linear_relu",
                                       "linear_cosine",
                                       "order:4",
                                       "power:3",
                                       "softmax_taylor_80terms",
                                       "gated_ReLU_no_gate_L2norm_nodivS_noclamp",
                                       "power",
                                       "gla",
                                       "gated_delta_net",
                                       "kda",
                                       "gdn2",
                                       "rwkv7",
                                       "linear_elu,write=removal",
                                       "2mamba",
                                       "log_linear",
                                       "power:2,sink=learned",
                                       "linear_elu,decay=given"};
    static const char *const without[] = {"softmax",
                                          "norm",
                                          "gate",
                                          "order:4,clamp=5",
                                          "gated_relu_no_in_gate_no_norm",
                                          "rat",
                                          "2mamba_e",
                                          "power:2,write=delta,feature=unit_smooth",
                                          "order:2,levels=fenwick",
                                          "linear_elu,window=4",
                                          "linear_elu,cap=5",
                                          "sigmoid",
                                          "power:2,decay=log_sigmoid,decay_place=logit"};
    srnn_attention a;
    for (size_t i = 0; i < sizeof with / sizeof *with; i++) {
        a = parsed(with[i]);
        assert_true(srnn_attention_has_state(&a));
    }
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        a = parsed(without[i]);
        assert_false(srnn_attention_has_state(&a));
    }
}

static void who_may_subtract_the_maximum(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool invariant, row_sum, output_gate;
    } facts[] = {
        {"softmax", true, true, false},
        {"norm", true, false, false},
        {"softmax,norm=l2_scaled,normaliser=row_length", true, false, false},
        {"gate", false, false, true},
        {"softmax_detach_denom_gate", false, true, true},
        {"softmax_clamp_denom", false, true, false},
        {"gated_softmax_no_gate_rmsnorm_nodivS", false, false, false},
        {"gated_ReLU_no_gate_L2norm_nodivS_noclamp", true, false, false},
        {"order:2", true, true, false},
        {"order:2,epsilon=0.1", false, true, false},
        {"gated_softmax_cumgate", false, false, true},
        {"softmax,post_gate", true, true, true},
        {"softmax,sink=learned", true, true, false},
        {"sigmoid", false, false, false},
    };
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        srnn_attention a = parsed(facts[i].text);
        assert_int_equal(sr_row_scale_invariant(&a), facts[i].invariant);
        assert_int_equal(sr_needs_row_sum(&a), facts[i].row_sum);
        assert_int_equal(sr_uses_output_gate(&a), facts[i].output_gate);
    }
}

static void wrong_descriptors(void **state) {
    (void)state;
    const struct {
        srnn_attention attention;
        const char *word;
    } wrong[] = {
        {{.score = (srnn_score)99}, "score"},
        {{.norm = (srnn_norm)-1}, "norm"},
        {{.order = 1}, "order"},
        {{.score = SRNN_SCORE_TAYLOR, .order = 171}, "taylor"},
        {{.score = SRNN_SCORE_POWER}, "power"},
        {{.clamp = (double)NAN}, "clamp"},
        {{.clamp = -5}, "clamp"},
        {{.epsilon = (double)INFINITY}, "epsilon"},
        {{.wiring.short_conv = -1}, "short_conv"},
        {{.wiring.prefix_tokens = 100000}, "prefix_tokens"},
        {{.pool = -1}, "pool"},
        {{.window = -1}, "window"},
        {{.cap = -50}, "cap"},
        {{.cap = 1e7}, "1e-06 to 1e+06"},
        {{.cap = 1e-7}, "1e-06 to 1e+06"},
        {{.score = SRNN_SCORE_SIGMOID, .score_bias = (double)NAN}, "score_bias"},
        {{.score_bias = -2}, "score=sigmoid"},
        {{.window = 4, .pool = 4}, "pool"},
        {{.window = 4, .levels = SRNN_LEVELS_FENWICK}, "levels"},
        {{.window = 4, .write = SRNN_WRITE_DELTA}, "write=add"},
        {{.sink = SRNN_SINK_ZERO, .normaliser = SRNN_NORMALISER_NONE}, "normaliser=row_sum"},
        {{.write_gate = SRNN_WRITE_GATE_GIVEN}, "write=delta"},
        {{.skip = SRNN_SKIP_CONV}, "taps"},
        {{.skip_conv = 3}, "taps"},
        {{.norm_epsilon = -1}, "norm_epsilon"},
        {{.decay = SRNN_DECAY_SOFTPLUS, .decay_divisor = 2}, "log_sigmoid"},
        {{.decay_divisor = 16}, "decay_divisor=1"}, /* what gla,decay=none must add */
        {{.decay = SRNN_DECAY_LOG_SIGMOID, .decay_width = SRNN_WIDTH_CHANNEL}, "decay_place=logit"},
        {{.decay = SRNN_DECAY_BOUNDED}, "decay_bound"},
        {{.decay = SRNN_DECAY_SOFTPLUS, .decay_bound = 5}, "decay_bound"},
        {{.decay = SRNN_DECAY_LOG_SIGMOID, .dt_width = SRNN_DT_WIDTH_NONE}, "dt_bias"},
        {{.decay = SRNN_DECAY_SOFTPLUS, .dt_width = SRNN_DT_WIDTH_NONE}, "decay=neg_softplus"},
        {{.decay = SRNN_DECAY_SOFTPLUS, .dt_width = SRNN_DT_WIDTH_CHANNEL}, "decay_width=channel"},
        {{.write_range = SRNN_WRITE_RANGE_2}, "write=delta"},
        {{.write_width = SRNN_WIDTH_CHANNEL}, "write=delta"},
        {{.score = SRNN_SCORE_LINEAR,
          .decay = SRNN_DECAY_SOFTPLUS,
          .value_gate = SRNN_VALUE_GATE_TIME_STEP,
          .write = SRNN_WRITE_DELTA,
          .write_width = SRNN_WIDTH_CHANNEL},
         "write_width=head"},
        {{.write = SRNN_WRITE_REMOVAL}, "score=linear"},
        {{.score = SRNN_SCORE_LINEAR, .write = SRNN_WRITE_REMOVAL, .levels = SRNN_LEVELS_FENWICK},
         "levels"},
        {{.skip = SRNN_SKIP_BONUS, .norm_width = SRNN_NORM_WIDTH_ROW}, "norm_width=head"},
        {{.value_gate = SRNN_VALUE_GATE_TIME_STEP}, "decay=softplus"},
        {{.position = SRNN_POSITION_ROPE_CHUNKS}, "pool=L"},
        {{.pool = 4, .write = SRNN_WRITE_DELTA}, "write=delta"},
        {{.pool = 4, .feature = SRNN_FEATURE_UNIT_HEADS}, "unit_heads"},
        {{.position = SRNN_POSITION_ROPE_FEATURES, .feature = SRNN_FEATURE_UNIT_HEADS},
         "unit_heads"},
        {{.gate_width = SRNN_WIDTH_CHANNEL, .output_gate = SRNN_GATE_INVERSE_EXP}, "gate_width"},
        {{.gate_shape = SRNN_GATE_SHAPE_SILU, .normaliser = SRNN_NORMALISER_CUMULATIVE_GATE},
         "gate_shape"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(srnn_attention_check(&wrong[i].attention), SRNN_ERR_ARGUMENT);
        assert_non_null(strstr(srnn_error_detail(), wrong[i].word));
    }
    for (size_t i = 0; srnn_variant_at(i); i++)
        assert_int_equal(srnn_attention_check(&srnn_variant_at(i)->attention), SRNN_OK);
}

static void learned_tensors(void **state) {
    (void)state;
    sr_learned learned[SR_LEARNED_MAX];
    srnn_attention a = parsed("gated_softmax_decay,short_conv=4,normaliser=value_power");
    size_t count = sr_attention_learned(learned, &a);
    assert_int_equal(count, 6);
    assert_string_equal(learned[0].name, "conv1d");
    assert_string_equal(learned[5].name, "norm_const");
    assert_int_equal(sr_attention_learned(learned, &(srnn_attention){0}), 0);
}

/* Operands by name, for other languages. */
static void operands_by_name(void **state) {
    (void)state;
    srnn_problem problem = {.B = 2, .H = 6, .Hkv = 3, .T = 5, .D = 4};
    srnn_operand operand;
    problem.attention = parsed("gated_softmax,normaliser=value_power");
    assert_true(srnn_operand_at(&operand, &problem, 0));
    assert_string_equal(operand.name, "q");
    assert_true(operand.tensor && operand.rank == 4 && !operand.learned);
    assert_int_equal(operand.sizes[1], 6);
    assert_int_equal(operand.sizes[3], 4);
    size_t count = 0;
    for (; srnn_operand_at(&operand, &problem, count); count++)
        if (strcmp(operand.name, "value_gate") == 0) {
            assert_true(operand.tensor && operand.rank == 3 && operand.sizes[1] == 3);
            assert_string_equal(operand.learned, "in_gate_proj");
        }
    assert_int_equal(count, 8);
    assert_true(srnn_operand_at(&operand, &problem, 7));
    assert_string_equal(operand.name, "value_power");
    assert_true(!operand.tensor && operand.rank == 1 && operand.sizes[0] == 3);
    assert_int_equal(operand.file_rank, 4);
    problem.attention = (srnn_attention){0};
    assert_true(!srnn_operand_at(&operand, &problem, 3));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_sizes_of_the_series),
        cmocka_unit_test(who_has_a_state),
        cmocka_unit_test(state_sizes_of_single_orders),
        cmocka_unit_test(wrong_descriptors),
        cmocka_unit_test(who_may_subtract_the_maximum),
        cmocka_unit_test(learned_tensors),
        cmocka_unit_test(operands_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
