/* form.c: the table of forms. */
#include "model/layer/form.h"

#define Q      SR_PART(Q)
#define K      SR_PART(K)
#define V      SR_PART(V)
#define GATE   SR_PART(OUTPUT_GATE)
#define DECAY  SR_PART(DECAY)
#define WRITE  SR_PART(WRITE_GATE)
#define ERASE  SR_PART(ERASE_GATE)
#define LEVEL  SR_PART(LEVEL_GATE)
#define POOL   SR_PART(POOL_GATE)
#define SKIP   SR_PART(SKIP)
#define RANK   SR_PART_RANK
#define RANK_2 SR_PART_RANK_2
#define RANK_3 SR_PART_RANK_3
#define RANK_4 SR_PART_RANK_4
#define BARE   .undecayed = true
#define NEVER  .bias = SR_FORM_BIAS_NEVER
#define ALWAYS .bias = SR_FORM_BIAS_ALWAYS
#define FAN \
    { .rule = SR_START_FAN }
#define RANGE \
    { .rule = SR_START_RANGE }
#define VALUE(number) \
    { .rule = SR_START_VALUE, .low = (number) }
#define ZERO .bias_start = VALUE(0)
#define OUT \
    { "o_proj", ZERO }
#define QKV_PROJECTIONS                             \
    {"q_proj", {Q}, ZERO}, {"k_proj", {K}, ZERO}, { \
        "v_proj", {V}, ZERO                         \
    }
#define SKIP_CONV \
    { "skip_conv1d", {V}, .target = SKIP, ALWAYS, .start = FAN }
#define QKV_CONVS                                         \
    {"q_conv1d", {Q}, NEVER}, {"k_conv1d", {K}, NEVER}, { \
        "v_conv1d", {V}, NEVER                            \
    }

/* Mamba-2's layer: one projection of everything, one convolution of x, B and C, which are v, k and
 * q. */
#define MAMBA                                                                        \
    .projections = {{"in_proj", {GATE, V, K, Q, DECAY, LEVEL}, .start = FAN, ZERO}}, \
    .convs = {{"conv1d", {V, K, Q}, ALWAYS, .start = FAN}, SKIP_CONV},               \
    .output = {"out_proj", .start = {.rule = SR_START_FAN_DEPTH}, ZERO}
#define MAMBA_NORM \
    { "norm.weight", SR_OPERAND_NORM_WEIGHT, .start = VALUE(1) }

/* Kimi Delta Attention: Kimi's files and those of flash-linear-attention have other names. */
#define KDA \
    .convs = {QKV_CONVS, SKIP_CONV}, .output = OUT, .sizes = {.value_rank = true, .unshared = true}
#define O_NORM \
    { "o_norm.weight", SR_OPERAND_NORM_WEIGHT, .start = VALUE(1) }

/* A low-rank path of RWKV-7: its first step begins at 0, its second at right angles. */
#define PATH_IN(path, middle, number) \
    path "_lora.lora.0", {middle}, NEVER, .start = VALUE(0), .shift = number, BARE
#define PATH_OUT(path, part, middle) \
    path "_lora.lora.2", {part}, .source = middle, .start = {SR_START_ORTHOGONAL, 0.1, 0}, BARE

/* clang-format off */
#define KDA_RULES(decay, middle)                                                             \
    .rules = {{SR_SIZE_HEADS, "b_proj.weight", 0}, {SR_SIZE_RANK, middle, 0},                \
              {SR_SIZE_KEY, decay, 0}, {SR_SIZE_GROUPS, "q_proj.weight", 0},                 \
              {SR_SIZE_VALUE, "v_proj.weight", 0}, CONV_RULE}
#define MAMBA_RULES                                                                          \
    .rules = {{SR_SIZE_HEADS, "A_log", 0}, {SR_SIZE_LEVELS, "L", 1},                         \
              {SR_SIZE_VALUE, "norm.weight", 0}, {SR_SIZE_KEY, "in_proj.weight", 0},         \
              {SR_SIZE_CONV, "conv1d.weight", 2}}
#define CONV_RULE {SR_SIZE_CONV, "q_conv1d.weight", 2}
#define QKV_RULES {SR_SIZE_KEY, "q_proj.weight", 0}, {SR_SIZE_VALUE, "v_proj.weight", 0}

static const sr_layer_form plain = {
    .projections = {QKV_PROJECTIONS},
    .convs = {SKIP_CONV},
    .output = OUT,
};

/* The reference projects to q, k and v in one where a convolution follows. */
static const sr_layer_form plain_conv = {
    .projections = {{"qkv_proj", {Q, K, V}, ZERO}},
    .convs = {{"conv1d", {Q, K, V}, .start = FAN}, SKIP_CONV},
    .output = OUT,
};

static const sr_layer_form forms[] = {
    [SRNN_LAYER_POWER] = {
        .projections = {QKV_PROJECTIONS,
                        /* sigmoid: 0.999 */
                        {"g_proj", {DECAY}, ALWAYS, .bias_start = VALUE(6.906768)}},
        .convs = {QKV_CONVS, SKIP_CONV},
        .output = OUT},
    [SRNN_LAYER_MAMBA2] = {
        MAMBA, MAMBA_RULES, .learned = {MAMBA_NORM},
        .sizes = {.heads = 2, .key = 128}},
    [SRNN_LAYER_MAMBA_LAYER] = {
        MAMBA, MAMBA_RULES, .learned = {MAMBA_NORM}, .prefix = "mamba_layer.",
        .sizes = {.key = 64}},
    [SRNN_LAYER_MAMBA_BLOCK] = {
        MAMBA, MAMBA_RULES, .prefix = "mamba_layer.mixer.",
        .learned = {MAMBA_NORM,
                    {"A_log", SR_OPERAND_A_LOG, .start = {.rule = SR_START_LOG_COUNT}},
                    {"dt_bias", SR_OPERAND_DT_BIAS, .start = VALUE(1)}},
        .own_norm = "mamba_layer.norm.weight",
        .sizes = {.heads = 2, .key_numerator = 2}},
    [SRNN_LAYER_GLA] = {
        .projections = {QKV_PROJECTIONS, {"g_proj", {GATE}, ZERO}, {"gk_proj.0", {RANK}, NEVER},
                        {"gk_proj.1", {DECAY}, .source = RANK, ALWAYS, ZERO}},
        .convs = {QKV_CONVS, SKIP_CONV},
        .learned = {{"g_norm_swish_gate.weight", SR_OPERAND_NORM_WEIGHT, .start = VALUE(1)}},
        .output = OUT,
        .sizes = {.key_denominator = 2, .rank = 16},
        .rules = {QKV_RULES, {SR_SIZE_RANK, "gk_proj.0.weight", 0}, CONV_RULE}},
    [SRNN_LAYER_DELTA_NET] = {
        .projections = {QKV_PROJECTIONS, {"b_proj", {WRITE}, NEVER}, {"a_proj", {DECAY}, NEVER},
                        {"g_proj", {GATE}, NEVER}, {"l_proj", {LEVEL}, NEVER}},
        .convs = {QKV_CONVS, SKIP_CONV},
        .learned = {O_NORM, {"A_log", SR_OPERAND_A_LOG, .start = {SR_START_LOG_UNIFORM, 0, 16}}},
        .output = OUT,
        .rules = {{SR_SIZE_HEADS, "b_proj.weight", 0}, {SR_SIZE_HEADS, "L", 0},
                  {SR_SIZE_LEVELS, "L", 1}, QKV_RULES, CONV_RULE}},
    [SRNN_LAYER_RAT] = {
        .projections = {{"in_proj", {GATE, V, POOL, Q, K}, NEVER}},
        .convs = {QKV_CONVS, SKIP_CONV},
        .learned = {{"gate_bias", SR_OPERAND_POOL_GATE, .start = {.rule = SR_START_LOG_POOL}}},
        .output = {"out_proj", ZERO},
        .rules = {{SR_SIZE_GROUPS, "in_proj.weight", 0}}},
    [SRNN_LAYER_GRELA] = {
        .projections = {{"in_proj", {V}, ALWAYS, ZERO}, {"act_proj", {GATE}, ALWAYS, ZERO},
                        {"attn.qk", {Q, K}, .source = V, ALWAYS, ZERO}},
        .convs = {QKV_CONVS, {"attn.conv1d", {V}, .target = SKIP, ALWAYS, .start = FAN}},
        .output = {"out_proj", ALWAYS, ZERO},
        .rules = {{SR_SIZE_SKIP_CONV, "attn.conv1d.weight", 2}}},
    [SRNN_LAYER_NALA] = {
        .projections = {QKV_PROJECTIONS, {"g_proj", {GATE}, ZERO}},
        .convs = {QKV_CONVS, SKIP_CONV},
        .output = OUT},
    [SRNN_LAYER_KDA] = {
        KDA, KDA_RULES("f_b_proj.weight", "f_a_proj.weight"),
        .projections = {QKV_PROJECTIONS, {"b_proj", {WRITE}, NEVER}, {"f_a_proj", {RANK}, NEVER},
                        {"g_a_proj", {RANK_2}, NEVER},
                        {"f_b_proj", {DECAY}, .source = RANK, NEVER},
                        {"g_b_proj", {GATE}, .source = RANK_2, NEVER}},
        .learned = {O_NORM, {"A_log", SR_OPERAND_A_LOG, {SR_START_LOG_UNIFORM, 1, 16}, 4, 2}}},
    [SRNN_LAYER_KDA_FLA] = {
        KDA, KDA_RULES("f_proj.1.weight", "f_proj.0.weight"),
        .projections = {QKV_PROJECTIONS, {"b_proj", {WRITE}, NEVER}, {"f_proj.0", {RANK}, NEVER},
                        {"g_proj.0", {RANK_2}, NEVER},
                        {"f_proj.1", {DECAY}, .source = RANK, NEVER},
                        {"g_proj.1", {GATE}, .source = RANK_2, ALWAYS, ZERO}},
        .learned = {O_NORM}},
    [SRNN_LAYER_GDN2] = {
        KDA,
        .projections = {QKV_PROJECTIONS, {"b_proj", {ERASE}, NEVER}, {"w_proj", {WRITE}, NEVER},
                        {"f_proj.0", {RANK}, NEVER}, {"g_proj.0", {RANK_2}, NEVER},
                        {"f_proj.1", {DECAY}, .source = RANK, NEVER},
                        {"g_proj.1", {GATE}, .source = RANK_2, ALWAYS, ZERO}},
        .learned = {O_NORM},
        .rules = {{SR_SIZE_VALUE, "o_norm.weight", 0}, {SR_SIZE_HEADS, "v_proj.weight", 0},
                  {SR_SIZE_GROUPS, "A_log", 0}, {SR_SIZE_KEY, "q_proj.weight", 0},
                  {SR_SIZE_RANK, "f_proj.0.weight", 0}, CONV_RULE}},
    [SRNN_LAYER_RWKV7] = {
        .shifts = {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g"},
        .key_scale = "k_k", .key_gate = "k_a",
        .projections = {
            {"r_proj", {Q}, NEVER, .start = {SR_START_FAN_PART, 0.5, 0}, .shift = 1},
            {"k_proj", {K}, NEVER, .start = {SR_START_FAN_PART, 0.05, 0}, .shift = 3},
            {"v_proj", {V}, NEVER, .start = {SR_START_FAN_PART, 0.5, 0}, .shift = 4},
            {PATH_IN("w", RANK, 2), .activation = SR_PATH_TANH},
            {PATH_IN("a", RANK_2, 5)},
            {PATH_IN("g", RANK_3, 6), .activation = SR_PATH_SIGMOID},
            {PATH_IN("v", RANK_4, 4)},
            {PATH_OUT("w", DECAY, RANK), ALWAYS, .bias_start = {.rule = SR_START_DECAY}},
            {PATH_OUT("a", SR_PART(REMOVAL_GATE), RANK_2), ALWAYS,
             .bias_start = {.rule = SR_START_ZIGZAG}},
            {PATH_OUT("g", GATE, RANK_3), NEVER},
            {PATH_OUT("v", SR_PART_VALUE_MIX, RANK_4), ALWAYS,
             .bias_start = {SR_START_CURVE, 0.73, -0.4}}},
        .learned = {{"g_norm.weight", SR_OPERAND_NORM_WEIGHT, {SR_START_DEPTH, 0.7, 0}, 1, 0},
                    {"g_norm.bias", SR_OPERAND_NORM_BIAS, VALUE(0), 1, 0},
                    {"r_k", SR_OPERAND_SKIP_WEIGHT, VALUE(-0.04), 2, -1}},
        .output = {"o_proj", .start = VALUE(0), ZERO},
        .sizes = {.rank = 64},
        .rules = {{SR_SIZE_HEADS, "r_k", 0}, {SR_SIZE_KEY, "r_k", 1},
                  {SR_SIZE_VALUE, "v_proj.weight", 0}, {SR_SIZE_RANK, "w_lora.lora.0.weight", 0}}},
    [SRNN_LAYER_2MAMBA] = {
        .projections = {{"qkv_proj", {Q, K, V}, .start = FAN, ZERO},
                        {"A_mask_proj", {DECAY}, NEVER, .start = FAN}},
        .convs = {{"conv1d", {Q, K, V}, ALWAYS, .start = FAN}, SKIP_CONV},
        .output = {"o_proj", .start = FAN, ZERO},
        .rules = {{SR_SIZE_HEADS, "A_mask_proj.weight", 0}, {SR_SIZE_CONV, "conv1d.weight", 2}}},
    [SRNN_LAYER_CONV] = {.output = OUT}, /* refused by sr_layer_wire: see model/conv */
};
/* clang-format on */

/* How learned operands start in forms that do not say it. */
static const sr_form_learned common[] = {
    {"A_log", SR_OPERAND_A_LOG, {SR_START_LOG_UNIFORM, 1, 16}, 0, 0},
    {"dt_bias", SR_OPERAND_DT_BIAS, {.rule = SR_START_TIME_STEP}, 0, 0},
};

const sr_layer_form *sr_layer_form_of(const srnn_attention *attention) {
    if (attention->wiring.layer == SRNN_LAYER_PLAIN)
        return attention->wiring.short_conv ? &plain_conv : &plain;
    return &forms[attention->wiring.layer];
}

const sr_form_learned *sr_form_learned_of(const sr_layer_form *form, sr_operand which) {
    for (int i = 0; i < SR_FORM_LEARNED && form->learned[i].name; i++)
        if (form->learned[i].which == which)
            return &form->learned[i];
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (common[i].which == which)
            return &common[i];
    return NULL;
}
