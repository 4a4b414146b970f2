/* variant.c: the table of named variants. */
#include "equation/axes.h"
#include "equation/facts.h"

#include <string.h>

#define ROW_LENGTH SRNN_NORMALISER_ROW_LENGTH
#define ROW_MIN1   SRNN_NORMALISER_ROW_SUM_MIN1
#define UNDIVIDED  SRNN_NORMALISER_NONE
#define SIGMOID    SRNN_GATE_SIGMOID

/* Fields shared by the rows of a family. */
#define MAMBA_DECAY                                                                                \
    .position = SRNN_POSITION_NONE, .share = SRNN_SHARE_QK, .scale = SRNN_SCALE_ONE,               \
    .decay = SRNN_DECAY_SOFTPLUS, .value_gate = SRNN_VALUE_GATE_TIME_STEP, .output_gate = SIGMOID, \
    .gate_width = SRNN_WIDTH_CHANNEL, .norm = SRNN_NORM_RMS, .norm_width = SRNN_NORM_WIDTH_ROW,    \
    .norm_epsilon = 1e-5
#define MAMBA MAMBA_DECAY, .gate_shape = SRNN_GATE_SHAPE_SILU
#define TWICE_GATED_MAMBA                                \
    MAMBA_DECAY, .wiring.layer = SRNN_LAYER_MAMBA_LAYER, \
                 .gate_shape = SRNN_GATE_SHAPE_SILU_SQUARE, .skip = SRNN_SKIP_CHANNEL
#define GATED_RMS                                                                            \
    .post_gate = true, .gate_width = SRNN_WIDTH_CHANNEL, .gate_shape = SRNN_GATE_SHAPE_SILU, \
    .norm = SRNN_NORM_RMS, .norm_epsilon = 1e-5
#define DELTA_RULE                                                                               \
    .position = SRNN_POSITION_NONE, .wiring.short_conv = 4, .feature = SRNN_FEATURE_UNIT_SMOOTH, \
    .score = SRNN_SCORE_LINEAR, .write = SRNN_WRITE_DELTA, .normaliser = UNDIVIDED
#define DELTA DELTA_RULE, .wiring.layer = SRNN_LAYER_DELTA_NET
#define KDA                                                                \
    DELTA_RULE, .share = SRNN_SHARE_QK, .decay_width = SRNN_WIDTH_CHANNEL, \
                .dt_width = SRNN_DT_WIDTH_CHANNEL, .post_gate = true,      \
                .gate_width = SRNN_WIDTH_CHANNEL, .norm = SRNN_NORM_RMS, .norm_epsilon = 1e-5
#define TWO_MAMBA                                                                              \
    .position = SRNN_POSITION_NONE, .wiring.short_conv = 2, .wiring.layer = SRNN_LAYER_2MAMBA, \
    .wiring.conv_activation = SRNN_CONV_ACTIVATION_NONE, .decay = SRNN_DECAY_NEG_SOFTPLUS
#define ROTATED                                                                                   \
    .position = SRNN_POSITION_ROPE_FEATURES, .scale = SRNN_SCALE_ONE, .score = SRNN_SCORE_LINEAR, \
    .epsilon = 1e-6
#define GATED_LAYER_ROW                                                                      \
    .post_gate = true, .gate_width = SRNN_WIDTH_CHANNEL, .gate_shape = SRNN_GATE_SHAPE_SILU, \
    .norm = SRNN_NORM_LAYER, .norm_width = SRNN_NORM_WIDTH_ROW

/* The reference's names first, each followed by the variant that its name or README promised where
 * the published code computes something else; then short names. A row says how the variant differs
 * from softmax. */
/* clang-format off */
static const srnn_variant variants[] = {
    {"softmax", {0}, ""},
    {"softmax_clamp_denom", {.clamp = 5, .normaliser = ROW_MIN1}, ""},
    {"softmax_detach_denom", {.clamp = 5, .normaliser = ROW_MIN1, .detach = true}, ""},
    {"softmax_detach_denom_gate",
     {.clamp = 5, .detach = true, .epsilon = 1e-4, .output_gate = SIGMOID}, ""},
    {"softmax_divs", {.clamp = 5, .normaliser = ROW_LENGTH}, ""},
    {"softmax_gate", {.clamp = 5, .normaliser = UNDIVIDED, .output_gate = SIGMOID}, ""},
    {"softmax_divS_gate", {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SIGMOID},
     "the paper's Gate"},
    {"softmax_divS_gatev2", {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SIGMOID},
     "gates the weights instead of the output: the same numbers as softmax_divS_gate"},
    {"softmax_divS_norm", {.clamp = 5, .normaliser = ROW_LENGTH, .norm = SRNN_NORM_RMS}, ""},
    {"softmax_taylor_80terms",
     {.score = SRNN_SCORE_TAYLOR, .order = 79, .normaliser = UNDIVIDED},
     "as published: the code normalises a copy of the weights and then uses the other one"},
    {"softmax_taylor_80terms_intended", {.score = SRNN_SCORE_TAYLOR, .order = 79},
     "divided by the row sum, as the name says"},
    {"gated_softmax",
     {.clamp = 5, .value_gate = true, .normaliser = ROW_LENGTH, .output_gate = SIGMOID,
      .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_no_norm",
     {.clamp = 5, .value_gate = true, .normaliser = ROW_LENGTH, .output_gate = SIGMOID}, ""},
    {"gated_softmax_no_in_gate",
     {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SIGMOID, .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_no_out_gate",
     {.clamp = 5, .value_gate = true, .normaliser = ROW_LENGTH, .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_no_out_gate_no_norm",
     {.clamp = 5, .value_gate = true, .normaliser = ROW_LENGTH}, ""},
    {"gated_softmax_no_in_gate_no_norm",
     {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SIGMOID},
     "the same as softmax_divS_gate"},
    {"gated_relu_no_in_gate_no_norm",
     {.feature = SRNN_FEATURE_RELU, .score = SRNN_SCORE_LINEAR, .clamp = 5,
      .normaliser = ROW_LENGTH, .output_gate = SIGMOID}, ""},
    {"gated_softmax_no_gate", {.clamp = 5, .normaliser = ROW_LENGTH, .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_no_gate_rmsnorm",
     {.clamp = 5, .normaliser = ROW_LENGTH, .norm = SRNN_NORM_RMS},
     "the same as softmax_divS_norm"},
    {"gated_softmax_no_gate_rmsnorm_nodivS",
     {.clamp = 5, .normaliser = UNDIVIDED, .norm = SRNN_NORM_RMS}, ""},
    {"gated_softmax_no_gate_L2norm_nodivS",
     {.clamp = 5, .normaliser = UNDIVIDED, .norm = SRNN_NORM_L2}, ""},
    {"gated_softmax_no_gate_L2norm_nodivS_noclamp",
     {.normaliser = UNDIVIDED, .norm = SRNN_NORM_L2}, "the paper's Norm: its headline result"},
    {"gated_ReLU_no_gate_L2norm_nodivS_noclamp",
     {.feature = SRNN_FEATURE_RELU, .score = SRNN_SCORE_LINEAR, .normaliser = UNDIVIDED,
      .norm = SRNN_NORM_L2}, ""},
    {"gated_softmax_out_gate_L2norm_nodivS_noclamp",
     {.normaliser = ROW_LENGTH, .output_gate = SIGMOID, .norm = SRNN_NORM_L2},
     "as published: divides by the row length in spite of its name; the l2 norm cancels the gate"},
    {"gated_softmax_out_gate_L2norm_nodivS_noclamp_intended",
     {.normaliser = UNDIVIDED, .output_gate = SIGMOID, .norm = SRNN_NORM_L2},
     "no division, as the name says; the l2 norm cancels the gate"},
    {"gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
     {.normaliser = ROW_LENGTH, .output_gate = SIGMOID, .post_gate = true, .norm = SRNN_NORM_L2},
     "as published: divides by the row length in spite of its name, and gates before the l2 norm, "
     "which cancels, and after it"},
    {"gated_softmax_post_out_gate_L2norm_nodivS_noclamp_intended",
     {.normaliser = UNDIVIDED, .output_gate = SIGMOID, .post_gate = true, .norm = SRNN_NORM_L2},
     "no division, as the name says; the first of the two gates cancels in the l2 norm"},
    {"gated_softmax_no_gate_no_norm", {.clamp = 5, .normaliser = ROW_LENGTH},
     "the same as softmax_divs"},
    {"gated_softmax_no_gate_customnorm",
     {.clamp = 5, .normaliser = ROW_LENGTH, .norm = SRNN_NORM_L2_SCALED}, ""},
    {"gated_softmax_cumgate", {.clamp = 5, .normaliser = SRNN_NORMALISER_CUMULATIVE_GATE}, ""},
    {"cumulative_gated_softmax",
     {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SRNN_GATE_INVERSE_EXP},
     "as published: the running sum of the gate is over an axis of size one, so nothing adds up"},
    {"cumulative_gated_softmax_intended",
     {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SRNN_GATE_INVERSE_CUMULATIVE},
     "the running sum of the gate is over positions; all else as published"},
    {"gated_softmax_plusplus",
     {.wiring.short_conv = 4, .clamp = 5, .value_gate = true, .normaliser = ROW_LENGTH,
      .output_gate = SIGMOID, .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_plusplus_extratoks",
     {.wiring.short_conv = 4, .wiring.prefix_tokens = 3, .clamp = 5, .value_gate = true,
      .normaliser = ROW_LENGTH, .output_gate = SIGMOID, .norm = SRNN_NORM_LAYER}, ""},
    {"gated_softmax_decay",
     {.position = SRNN_POSITION_NONE, .clamp = 5, .decay = SRNN_DECAY_LEARNED, .value_gate = true,
      .normaliser = ROW_LENGTH, .output_gate = SIGMOID, .norm = SRNN_NORM_LAYER}, ""},
    {"linear_elu",
     {.scale = SRNN_SCALE_ONE, .feature = SRNN_FEATURE_ELU1, .score = SRNN_SCORE_LINEAR}, ""},
    {"linear_relu",
     {.scale = SRNN_SCALE_ONE, .feature = SRNN_FEATURE_RELU, .score = SRNN_SCORE_LINEAR,
      .epsilon = 1e-8}, ""},
    {"linear_cosine",
     {.scale = SRNN_SCALE_ONE, .feature = SRNN_FEATURE_UNIT_HEADS, .score = SRNN_SCORE_LINEAR,
      .normaliser = SRNN_NORMALISER_VALUE_POWER},
     "as published: q and k are divided by their norm across the heads, so s is not a cosine"},
    {"linear_cosine_intended",
     {.scale = SRNN_SCALE_ONE, .feature = SRNN_FEATURE_UNIT, .score = SRNN_SCORE_LINEAR,
      .normaliser = SRNN_NORMALISER_VALUE_POWER},
     "q and k have unit length within a head: s is a cosine"},

    {"norm", {.normaliser = UNDIVIDED, .norm = SRNN_NORM_L2},
     "short for gated_softmax_no_gate_L2norm_nodivS_noclamp"},
    {"gate", {.clamp = 5, .normaliser = ROW_LENGTH, .output_gate = SIGMOID},
     "short for softmax_divS_gate"},

    {"power",
     {.wiring.layer = SRNN_LAYER_POWER, .score = SRNN_SCORE_POWER, .order = 2,
      .decay = SRNN_DECAY_LOG_SIGMOID},
     "power attention with its gate (2507.04239); power:p is it without"},
    {"forget", {.wiring.layer = SRNN_LAYER_POWER, .decay = SRNN_DECAY_LOG_SIGMOID},
     "forgetting attention; RoPE stays here, its published layer has none"},
    {"2mamba", {TWO_MAMBA, .score = SRNN_SCORE_POWER, .order = 2},
     "2Mamba (2602.17363): power attention with a convolution, without position"},
    {"2mamba_e", {TWO_MAMBA}, "2Mamba with exp: forgetting attention with a convolution"},
    {"mamba2",
     {MAMBA, .wiring.layer = SRNN_LAYER_MAMBA2, .wiring.short_conv = 4, .score = SRNN_SCORE_LINEAR,
      .normaliser = UNDIVIDED, .skip = SRNN_SKIP_HEAD}, "Mamba-2 (2405.21060)"},
    {"linear_mamba",
     {MAMBA, .wiring.layer = SRNN_LAYER_MAMBA_LAYER, .wiring.short_conv = 2,
      .score = SRNN_SCORE_LINEAR, .normaliser = UNDIVIDED, .skip = SRNN_SKIP_CHANNEL},
     "Mamba-2 as the reference has it"},
    {"gated_softmax_plusplus_mamba",
     {MAMBA, .wiring.layer = SRNN_LAYER_MAMBA_BLOCK, .wiring.short_conv = 4,
      .decay_place = SRNN_DECAY_PLACE_LOGIT, .skip = SRNN_SKIP_HEAD},
     "as published: the decay is on the logit, so an old key weighs as much as any other old key"},
    {"gated_softmax_plusplus_mamba2",
     {TWICE_GATED_MAMBA, .score = SRNN_SCORE_LINEAR, .normaliser = UNDIVIDED},
     "as published: the softmax is commented out, and the gate is applied twice"},
    {"gated_softmax_plusplus_mamba2_intended",
     {TWICE_GATED_MAMBA, .decay_place = SRNN_DECAY_PLACE_LOGIT, .normaliser = ROW_LENGTH},
     "what the comments left in the code say; what was intended is not certain"},
    {"gla",
     {.position = SRNN_POSITION_NONE, .wiring.layer = SRNN_LAYER_GLA, .score = SRNN_SCORE_LINEAR,
      .decay = SRNN_DECAY_LOG_SIGMOID,
      .decay_divisor = 16, .decay_width = SRNN_WIDTH_CHANNEL, .normaliser = UNDIVIDED, GATED_RMS},
     "gated linear attention (2312.06635)"},
    {"delta_net", {DELTA, .norm = SRNN_NORM_RMS, .norm_epsilon = 1e-5},
     "the delta rule (2406.06484)"},
    {"gated_delta_net", {DELTA, .decay = SRNN_DECAY_SOFTPLUS, GATED_RMS},
     "the delta rule with a decay (2412.06464)"},
    {"kda", {KDA, .wiring.layer = SRNN_LAYER_KDA, .decay = SRNN_DECAY_SOFTPLUS},
     "Kimi Delta Attention (2510.26692): gated_delta_net with a decay per channel"},
    {"gdn2",
     {KDA, .wiring.layer = SRNN_LAYER_GDN2, .decay = SRNN_DECAY_SOFTPLUS,
      .write_width = SRNN_WIDTH_CHANNEL},
     "Gated DeltaNet-2 (2605.22791): kda that erases and writes with a gate per channel"},
    {"rwkv7",
     {.position = SRNN_POSITION_NONE, .wiring.layer = SRNN_LAYER_RWKV7, .scale = SRNN_SCALE_ONE,
      .score = SRNN_SCORE_LINEAR, .decay = SRNN_DECAY_BOUNDED, .decay_bound = 0.6065306597126334,
      .decay_width = SRNN_WIDTH_CHANNEL, .dt_width = SRNN_DT_WIDTH_NONE,
      .write = SRNN_WRITE_REMOVAL, .normaliser = UNDIVIDED, .skip = SRNN_SKIP_BONUS,
      .post_gate = true,
      .gate_width = SRNN_WIDTH_CHANNEL, .gate_shape = SRNN_GATE_SHAPE_IDENTITY,
      .norm = SRNN_NORM_LAYER, .norm_weight = SRNN_NORM_WEIGHT_HEAD},
     "RWKV-7 (2503.14456); the decay of a token is at most e^(-1/sqrt(e))"},
    {"log_linear",
     {.position = SRNN_POSITION_NONE, .wiring.layer = SRNN_LAYER_DELTA_NET,
      .score = SRNN_SCORE_LINEAR, .levels = SRNN_LEVELS_FENWICK, .normaliser = UNDIVIDED,
      .norm = SRNN_NORM_RMS, .norm_epsilon = 1e-5},
     "the operation of log-linear attention (2506.04761) in a layer of our choice"},
    {"log_linear_mamba2",
     {MAMBA, .wiring.layer = SRNN_LAYER_MAMBA2, .wiring.short_conv = 4, .score = SRNN_SCORE_LINEAR,
      .levels = SRNN_LEVELS_FENWICK, .normaliser = UNDIVIDED, .skip = SRNN_SKIP_HEAD},
     "mamba2 with levels"},
    {"log_linear_gated_delta_net",
     {DELTA, .scale = SRNN_SCALE_ONE, .decay = SRNN_DECAY_SOFTPLUS, .levels = SRNN_LEVELS_FENWICK,
      GATED_RMS}, "gated_delta_net with levels"},
    {"rat",
     {.position = SRNN_POSITION_ROPE_CHUNKS, .wiring.layer = SRNN_LAYER_RAT,
      .share = SRNN_SHARE_QK_TILED, .pool = 16, .output_gate = SIGMOID,
      .gate_width = SRNN_WIDTH_CHANNEL},
     "RAT (2507.04416): attention over running averages of chunks"},
    {"grela",
     {ROTATED, .wiring.layer = SRNN_LAYER_GRELA, .feature = SRNN_FEATURE_ELU1,
      .skip = SRNN_SKIP_CONV, .skip_conv = 4, .output_gate = SIGMOID,
      .gate_width = SRNN_WIDTH_CHANNEL, .gate_shape = SRNN_GATE_SHAPE_SILU},
     "RecGRELA (2506.13315) made causal"},
    {"nala",
     {ROTATED, .wiring.layer = SRNN_LAYER_NALA, .feature = SRNN_FEATURE_NORM_SPLIT,
      GATED_LAYER_ROW},
     "NaLaFormer (2506.21137) as its code has it, made causal"},
    {"nala_cosine",
     {ROTATED, .wiring.layer = SRNN_LAYER_NALA, .feature = SRNN_FEATURE_NORM_COSINE,
      GATED_LAYER_ROW},
     "NaLaFormer as its paper is described: weights can be negative"},
    {"sigmoid", {.score = SRNN_SCORE_SIGMOID, .normaliser = UNDIVIDED},
     "sigmoid attention (2409.04431); its authors set score_bias to minus the logarithm of the "
     "length"},
};
/* clang-format on */

const srnn_variant *srnn_variant_at(size_t index) {
    return index < sizeof variants / sizeof *variants ? &variants[index] : NULL;
}

const srnn_variant *sr_variant_find(const char *name) {
    for (size_t i = 0; srnn_variant_at(i); i++)
        if (strcmp(variants[i].name, name) == 0)
            return &variants[i];
    return NULL;
}

const char *srnn_attention_name(const srnn_attention *attention) {
    for (size_t i = 0; srnn_variant_at(i); i++)
        if (sr_attention_same(&variants[i].attention, attention))
            return variants[i].name;
    return NULL;
}
