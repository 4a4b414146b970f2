/* test_spec.c: the table of variants is right, and its text form round-trips. */
#include "test.h"

#include "equation/facts.h"

#include <stdio.h>
#include <string.h>

/* Written from the description of the variants, independently of the table. */
static const struct {
    const char *name, *text;
} expected[] = {
    {"softmax", "score=exp"},
    {"softmax_clamp_denom", "score=exp,clamp=5,normaliser=row_sum_min1"},
    {"softmax_detach_denom", "score=exp,clamp=5,normaliser=row_sum_min1,detach"},
    {"softmax_detach_denom_gate", "score=exp,clamp=5,detach,epsilon=0.0001,output_gate"},
    {"softmax_divs", "score=exp,clamp=5,normaliser=row_length"},
    {"softmax_gate", "score=exp,clamp=5,normaliser=none,output_gate"},
    {"softmax_divS_gate", "score=exp,clamp=5,normaliser=row_length,output_gate"},
    {"softmax_divS_gatev2", "score=exp,clamp=5,normaliser=row_length,output_gate"},
    {"softmax_divS_norm", "score=exp,clamp=5,normaliser=row_length,norm=rms"},
    {"softmax_taylor_80terms", "score=taylor:79,normaliser=none"},
    {"softmax_taylor_80terms_intended", "score=taylor:79"},
    {"gated_softmax", "score=exp,clamp=5,value_gate,normaliser=row_length,output_gate,norm=layer"},
    {"gated_softmax_no_norm", "score=exp,clamp=5,value_gate,normaliser=row_length,output_gate"},
    {"gated_softmax_no_in_gate", "score=exp,clamp=5,normaliser=row_length,output_gate,norm=layer"},
    {"gated_softmax_no_out_gate", "score=exp,clamp=5,value_gate,normaliser=row_length,norm=layer"},
    {"gated_softmax_no_out_gate_no_norm", "score=exp,clamp=5,value_gate,normaliser=row_length"},
    {"gated_softmax_no_in_gate_no_norm", "score=exp,clamp=5,normaliser=row_length,output_gate"},
    {"gated_relu_no_in_gate_no_norm",
     "score=linear,feature=relu,clamp=5,normaliser=row_length,output_gate"},
    {"gated_softmax_no_gate", "score=exp,clamp=5,normaliser=row_length,norm=layer"},
    {"gated_softmax_no_gate_rmsnorm", "score=exp,clamp=5,normaliser=row_length,norm=rms"},
    {"gated_softmax_no_gate_rmsnorm_nodivS", "score=exp,clamp=5,normaliser=none,norm=rms"},
    {"gated_softmax_no_gate_L2norm_nodivS", "score=exp,clamp=5,normaliser=none,norm=l2"},
    {"gated_softmax_no_gate_L2norm_nodivS_noclamp", "score=exp,normaliser=none,norm=l2"},
    {"gated_ReLU_no_gate_L2norm_nodivS_noclamp",
     "score=linear,feature=relu,normaliser=none,norm=l2"},
    {"gated_softmax_out_gate_L2norm_nodivS_noclamp",
     "score=exp,normaliser=row_length,output_gate,norm=l2"},
    {"gated_softmax_out_gate_L2norm_nodivS_noclamp_intended",
     "score=exp,normaliser=none,output_gate,norm=l2"},
    {"gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
     "score=exp,normaliser=row_length,output_gate,post_gate,norm=l2"},
    {"gated_softmax_post_out_gate_L2norm_nodivS_noclamp_intended",
     "score=exp,normaliser=none,output_gate,post_gate,norm=l2"},
    {"gated_softmax_no_gate_no_norm", "score=exp,clamp=5,normaliser=row_length"},
    {"gated_softmax_no_gate_customnorm", "score=exp,clamp=5,normaliser=row_length,norm=l2_scaled"},
    {"gated_softmax_cumgate", "score=exp,clamp=5,normaliser=cumulative_gate"},
    {"cumulative_gated_softmax", "score=exp,clamp=5,normaliser=row_length,output_gate=inverse_exp"},
    {"cumulative_gated_softmax_intended",
     "score=exp,clamp=5,normaliser=row_length,output_gate=inverse_cumulative"},
    {"gated_softmax_plusplus",
     "score=exp,short_conv=4,clamp=5,value_gate,normaliser=row_length,output_gate,norm=layer"},
    {"gated_softmax_plusplus_extratoks",
     "score=exp,short_conv=4,prefix_tokens=3,clamp=5,value_gate,normaliser=row_length,output_gate,"
     "norm=layer"},
    {"gated_softmax_decay",
     "score=exp,position=none,clamp=5,decay,value_gate,normaliser=row_length,output_gate,"
     "norm=layer"},
    {"linear_elu", "score=linear,scale=one,feature=elu1"},
    {"linear_relu", "score=linear,scale=one,feature=relu,epsilon=1e-08"},
    {"linear_cosine", "score=linear,scale=one,feature=unit_heads,normaliser=value_power"},
    {"linear_cosine_intended", "score=linear,scale=one,feature=unit,normaliser=value_power"},
    {"norm", "score=exp,normaliser=none,norm=l2"},
    {"gate", "score=exp,clamp=5,normaliser=row_length,output_gate"},
    {"power", "score=power:2,layer=power,decay=log_sigmoid"},
    {"forget", "score=exp,layer=power,decay=log_sigmoid"},
    {"2mamba",
     "score=power:2,position=none,short_conv=2,conv_activation=none,layer=2mamba,decay=neg_so"
     "ftplus"},
    {"2mamba_e",
     "score=exp,position=none,short_conv=2,conv_activation=none,layer=2mamba,decay=neg_softplus"},
    {"mamba2", "score=linear,position=none,short_conv=4,layer=mamba2,share=qk,scale=one,decay=so"
               "ftplus,value_gate=time_step,normaliser=none,skip=head,output_gate,gate_width=cha"
               "nnel,gate_shape=silu,norm=rms,norm_width=row,norm_epsilon=1e-05"},
    {"linear_mamba",
     "score=linear,position=none,short_conv=2,layer=mamba_layer,share=qk,scale=one,dec"
     "ay=softplus,value_gate=time_step,normaliser=none,skip=channel,output_gate,gate_w"
     "idth=channel,gate_shape=silu,norm=rms,norm_width=row,norm_epsilon=1e-05"},
    {"gated_softmax_plusplus_mamba",
     "score=exp,position=none,short_conv=4,layer=mamba_block,share=qk,scale=one,decay="
     "softplus,decay_place=logit,value_gate=time_step,skip=head,output_gate,gate_width"
     "=channel,gate_shape=silu,norm=rms,norm_width=row,norm_epsilon=1e-05"},
    {"gated_softmax_plusplus_mamba2",
     "score=linear,position=none,layer=mamba_layer,share=qk,scale=one,decay=softplus,v"
     "alue_gate=time_step,normaliser=none,skip=channel,output_gate,gate_width=channel,"
     "gate_shape=silu_square,norm=rms,norm_width=row,norm_epsilon=1e-05"},
    {"gated_softmax_plusplus_mamba2_intended",
     "score=exp,position=none,layer=mamba_layer,share=qk,scale=one,decay=softplus,deca"
     "y_place=logit,value_gate=time_step,normaliser=row_length,skip=channel,output_gat"
     "e,gate_width=channel,gate_shape=silu_square,norm=rms,norm_width=row,norm_epsilon"
     "=1e-05"},
    {"gla", "score=linear,position=none,layer=gla,decay=log_sigmoid,decay_divisor=16,decay_wi"
            "dth=channel,normaliser=none,post_gate,gate_width=channel,gate_shape=silu,norm=rm"
            "s,norm_epsilon=1e-05"},
    {"delta_net", "score=linear,position=none,short_conv=4,layer=delta_net,feature=unit_smooth,writ"
                  "e=delta,normaliser=none,norm=rms,norm_epsilon=1e-05"},
    {"gated_delta_net",
     "score=linear,position=none,short_conv=4,layer=delta_net,feature=unit_smooth,deca"
     "y=softplus,write=delta,normaliser=none,post_gate,gate_width=channel,gate_shape=s"
     "ilu,norm=rms,norm_epsilon=1e-05"},
    {"kda", "score=linear,position=none,short_conv=4,layer=kda,share=qk,feature=unit_smooth,decay="
            "softplus,"
            "decay_width=channel,dt_width=channel,write=delta,normaliser=none,post_gate,gate_width="
            "channel,"
            "norm=rms,norm_epsilon=1e-05"},
    {"gdn2", "score=linear,position=none,short_conv=4,layer=gdn2,share=qk,feature=unit_smooth,"
             "decay=softplus,"
             "decay_width=channel,dt_width=channel,write=delta,write_width=channel,normaliser=none,"
             "post_gate,"
             "gate_width=channel,norm=rms,norm_epsilon=1e-05"},
    {"rwkv7",
     "score=linear,position=none,layer=rwkv7,scale=one,decay=bounded,decay_bound=0."
     "6065306597126334,"
     "decay_width=channel,dt_width=none,write=removal,normaliser=none,skip=bonus,post_gate,"
     "gate_width=channel,gate_shape=identity,norm=layer,norm_weight=head"},
    {"log_linear",
     "score=linear,position=none,layer=delta_net,levels=fenwick,normaliser=none,norm=r"
     "ms,norm_epsilon=1e-05"},
    {"log_linear_mamba2",
     "score=linear,position=none,short_conv=4,layer=mamba2,share=qk,scale=one,decay=so"
     "ftplus,value_gate=time_step,levels=fenwick,normaliser=none,skip=head,output_gate"
     ",gate_width=channel,gate_shape=silu,norm=rms,norm_width=row,norm_epsilon=1e-05"},
    {"log_linear_gated_delta_net",
     "score=linear,position=none,short_conv=4,layer=delta_net,scale=one,feature=unit_s"
     "mooth,decay=softplus,write=delta,levels=fenwick,normaliser=none,post_gate,gate_w"
     "idth=channel,gate_shape=silu,norm=rms,norm_epsilon=1e-05"},
    {"rat", "score=exp,position=rope_chunks,layer=rat,share=qk_tiled,pool=16,output_gate,gate"
            "_width=channel"},
    {"grela", "score=linear,position=rope_features,layer=grela,scale=one,feature=elu1,epsilon=1"
              "e-06,skip=conv:4,output_gate,gate_width=channel,gate_shape=silu"},
    {"nala", "score=linear,position=rope_features,layer=nala,scale=one,feature=norm_split,epsi"
             "lon=1e-06,post_gate,gate_width=channel,gate_shape=silu,norm=layer,norm_width=row"},
    {"nala_cosine",
     "score=linear,position=rope_features,layer=nala,scale=one,feature=norm_cosine,eps"
     "ilon=1e-06,post_gate,gate_width=channel,gate_shape=silu,norm=layer,norm_width=ro"
     "w"},
    {"sigmoid", "score=sigmoid,normaliser=none"},
};

enum { EXPECTED = sizeof expected / sizeof *expected };

/* The canonical text of what `text` parses to. */
static const char *canonical(const char *text) {
    static char printed[512];
    srnn_attention attention;
    if (srnn_attention_parse(&attention, text) != SRNN_OK)
        fail_msg("%s: %s", text, srnn_error_detail());
    assert_true(srnn_attention_print(printed, sizeof printed, &attention) < sizeof printed);
    return printed;
}

static void every_name_is_its_composition(void **state) {
    (void)state;
    for (size_t i = 0; i < EXPECTED; i++)
        assert_string_equal(canonical(expected[i].name), expected[i].text);
    assert_null(srnn_variant_at(EXPECTED));
    assert_non_null(srnn_variant_at(EXPECTED - 1));
}

static void every_row_reads_back(void **state) {
    (void)state;
    const srnn_variant *variant;
    for (size_t i = 0; (variant = srnn_variant_at(i)); i++) {
        char text[512];
        srnn_attention back = {0};
        srnn_attention_print(text, sizeof text, &variant->attention);
        assert_int_equal(srnn_attention_parse(&back, text), SRNN_OK);
        const char *name = srnn_attention_name(&back);
        assert_non_null(name);
        assert_string_equal(name, srnn_attention_name(&variant->attention));
        assert_string_equal(canonical(name), text);
        assert_non_null(variant->note);
    }
}

static void names_are_first_of_equals(void **state) {
    (void)state;
    srnn_attention a;
    assert_int_equal(srnn_attention_parse(&a, "norm"), SRNN_OK);
    assert_string_equal(srnn_attention_name(&a), "gated_softmax_no_gate_L2norm_nodivS_noclamp");
    assert_int_equal(srnn_attention_parse(&a, "order:3"), SRNN_OK);
    assert_null(srnn_attention_name(&a));
    a = (srnn_attention){0};
    assert_string_equal(srnn_attention_name(&a), "softmax");
}

static void families_and_changes(void **state) {
    (void)state;
    assert_string_equal(canonical("order:4"), "score=taylor:4");
    assert_string_equal(canonical("elu:2"), "score=taylor:2,feature=elu1");
    assert_string_equal(canonical("relu:0"), "score=taylor:0,feature=relu");
    assert_string_equal(canonical("cosine:100"), "score=taylor:100,feature=unit");
    assert_string_equal(canonical("power:2"), "score=power:2");
    assert_string_equal(canonical("gate,clamp=none,norm=l2"),
                        "score=exp,normaliser=row_length,output_gate,norm=l2");
    assert_string_equal(canonical("gated_softmax , value_gate=off, output_gate=none"),
                        "score=exp,clamp=5,normaliser=row_length,norm=layer");
    assert_string_equal(canonical("decay"), "score=exp,decay");
    assert_string_equal(canonical("output_norm=l2,value_gate=none,position=rotary,detach=none"),
                        "score=exp,norm=l2");
    assert_string_equal(canonical("scale=1,score=power:2"), "score=power:2,scale=one");
    assert_string_equal(canonical("clamp=0.1,epsilon=1e-300"),
                        "score=exp,clamp=0.1,epsilon=1e-300");
    assert_string_equal(canonical("clamp=0.30000000000000004"),
                        "score=exp,clamp=0.30000000000000004");
    assert_string_equal(canonical("clamp=100"), "score=exp,clamp=100");
    assert_string_equal(canonical("sink=learned,window=4096,cap=50"),
                        "score=exp,cap=50,window=4096,sink=learned");
    assert_string_equal(canonical("sigmoid,score_bias=-7.62,normaliser=row_length"),
                        "score=sigmoid,score_bias=-7.62,normaliser=row_length");
    assert_string_equal(canonical("gated_delta_net,decay=given,write_gate=given,short_conv=none"),
                        "score=linear,position=none,layer=delta_net,feature=unit_smooth,decay=given"
                        ",write=delta,write_gate=given,normaliser=none,post_gate,gate_width=channel"
                        ",gate_shape=silu,norm=rms,norm_epsilon=1e-05");
}

static void errors_name_the_place(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int column;
        const char *words[2]; /* the detail must contain these */
    } wrong[] = {
        {"", 1, {"missing"}},
        {"softmx", 1, {"softmx", "softmax"}},
        {"softmax,clmap=5", 9, {"clmap", "clamp"}},
        {"softmax,normaliser=row_lenght", 20, {"row_lenght", "row_length"}},
        {"softmax,clamp=five", 15, {"five", "number"}},
        {"softmax,clamp=-1", 9, {"clamp"}},
        {"softmax,clamp=1e999", 9, {"clamp"}},
        {"softmax,clamp=nan", 15, {"nan"}},
        {"softmax,window=0.5", 16, {"0.5", "whole number"}},
        {"softmax,cap=-50", 9, {"cap"}},
        {"softmax,sink=leaned", 14, {"leaned", "learned"}},
        {"softmax,clamp=0x1p3", 15, {"0x1p3"}},
        {"softmax,clamp=5,clamp=5", 17, {"clamp", "twice"}},
        {"softmax,,clamp=5", 9, {"missing"}},
        {"softmax,clamp=5,", 17, {"missing"}},
        {"softmax,norm", 9, {"norm", "value"}},
        {"softmax,gate", 9, {"gate"}},
        {"score=taylor", 7, {"taylor", "number"}},
        {"score=exp:2", 7, {"exp", "no number"}},
        {"score=taylor:171", 1, {"171", "170"}},
        {"score=taylor:", 14, {"number"}},
        {"score=taylor:99999999999", 14, {"99999999999"}},
        {"power:0", 1, {"power", "1"}},
        {"order", 1, {"order", "order:3"}},
        {"order:x", 7, {"x"}},
        {"short_conv=-1", 12, {"-1"}},
        {"softmax:3", 1, {"softmax"}},
        {"avey_causal,chunk=4", 1, {"avey_causal", "a whole model, not an attention"}},
        {"softmax,avey", 9, {"train --attention avey", "a whole model, not an attention"}},
        {"avey_casual", 1, {"avey_casual", "did you mean 'avey_causal'?"}},
        {"nrom", 1, {"nrom", "did you mean 'norm'?"}},
        {"retentive", 1, {"retentive", "softrnn variants"}},
        {"softmax,value_gate=qqqq", 20, {"off, sigmoid"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        srnn_attention a = {.clamp = 7};
        char column[32];
        snprintf(column, sizeof column, "column %d:", wrong[i].column);
        assert_int_equal(srnn_attention_parse(&a, wrong[i].text), SRNN_ERR_FORMAT);
        if (!strstr(srnn_error_detail(), column))
            fail_msg("%s: expected %s, got: %s", wrong[i].text, column, srnn_error_detail());
        for (size_t w = 0; w < 2 && wrong[i].words[w]; w++)
            if (!strstr(srnn_error_detail(), wrong[i].words[w]))
                fail_msg("%s: expected %s in: %s", wrong[i].text, wrong[i].words[w],
                         srnn_error_detail());
        assert_true(a.clamp == 7);
    }
}

static void long_words_and_short_buffers(void **state) {
    (void)state;
    char text[4096];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    srnn_attention a;
    assert_int_equal(srnn_attention_parse(&a, text), SRNN_ERR_FORMAT);

    char small[6] = "#####";
    assert_int_equal(srnn_attention_print(small, 5, &(srnn_attention){0}), strlen("score=exp"));
    assert_string_equal(small, "scor");
    assert_int_equal(srnn_attention_print(NULL, 0, &(srnn_attention){0}), strlen("score=exp"));
    assert_int_equal(srnn_attention_print(text, sizeof text,
                                          &(srnn_attention){.norm = (srnn_norm)77}),
                     0);
    assert_string_equal(text, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_name_is_its_composition),
        cmocka_unit_test(every_row_reads_back),
        cmocka_unit_test(names_are_first_of_equals),
        cmocka_unit_test(families_and_changes),
        cmocka_unit_test(errors_name_the_place),
        cmocka_unit_test(long_words_and_short_buffers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
