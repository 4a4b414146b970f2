/* published_table.c: the table of families of published models, as transformers defines them. */
#include "model/config/published.h"

#include "files/json.h"

#define JSON(...)    #__VA_ARGS__
#define TRANSFORMERS .loader = "transformers"

/* Biases as attention_bias says, on q, k, v and o. */
#define ATTENTION_BIAS .qkv_bias = "attention_bias", .o_bias = "attention_bias"
#define MLP_BIAS       .mlp_bias = "mlp_bias"

/* Norms after mixer and MLP only (OLMo 2, EXAONE 4); before and after (Gemma). */
#define AFTER_NAMES                                               \
    {"post_self_attn_layernorm.", "post_attention_layernorm."}, { \
        "post_mlp_layernorm.", "post_feedforward_layernorm."      \
    }
#define SANDWICH_NAMES {"post_attention_layernorm.", "pre_feedforward_layernorm."}, AFTER_NAMES
#define JOINED_GATE_UP                                                            \
    {                                                                             \
        .there = {"mlp.gate_up_proj"}, .here = { "mlp.gate_proj", "mlp.up_proj" } \
    }

/* q_proj has the rows of q and then those of the output gate, head by head. */
#define GATED_Q                                                                          \
    {                                                                                    \
        .there = {"self_attn.q_proj"}, .here = {"self_attn.q_proj", "self_attn.g_proj"}, \
        .groups = SR_JOINED_HEADS                                                        \
    }
#define GATED_LAYER ",layer=nala,output_gate=sigmoid,gate_width=channel,qk_norm=head"
#define JOINED_CONV                              \
    {                                            \
        .there = {"linear_attn.conv1d"}, .here = \
        { "self_attn.q_conv1d",                  \
          "self_attn.k_conv1d",                  \
          "self_attn.v_conv1d" }                 \
    }

/* Experts as Qwen's files have them: one by one. */
#define EXPERT(name)                                                       \
    {                                                                      \
        .there = {"mlp.experts.%d." name}, .here = { "mlp.experts." name } \
    }
#define EXPERTS EXPERT("gate_proj"), EXPERT("up_proj"), EXPERT("down_proj")
#define ROUTER_NAME \
    { "mlp.router.", "mlp.gate." }
#define SHARED_NAME \
    { "mlp.shared_router.", "mlp.shared_expert_gate." }
#define QWEN_EXPERTS \
    .count = "num_experts", .chosen = "num_experts_per_tok", .width = "moe_intermediate_size"
#define SHARED_EXPERT .shared_width = "shared_expert_intermediate_size"
#define MIXTRAL_EXPERT(theirs, ours)                                                      \
    {                                                                                     \
        .there = {"block_sparse_moe.experts.%d." theirs}, .here = { "mlp.experts." ours } \
    }

#define LFM2_NAMES                                                                      \
    {"input_layernorm.", "operator_norm."}, {"post_attention_layernorm.", "ffn_norm."}, \
        {"mlp.gate_proj.", "feed_forward.w1."}, {"mlp.up_proj.", "feed_forward.w3."}, { \
        "mlp.down_proj.", "feed_forward.w2."                                            \
    }

#define TRANSPOSED(theirs, ...) \
    { .there = {theirs}, .here = {__VA_ARGS__}, .transposed = true }

/* What a Llama has, and every family below: sizes, norm, activation. */
#define SIZES(V, C, F, L, H, Hkv, positions)                                                     \
    "\"vocab_size\":" #V ",\"hidden_size\":" #C ",\"intermediate_size\":" #F                     \
    ",\"num_hidden_layers\":" #L ",\"num_attention_heads\":" #H ",\"num_key_value_heads\":" #Hkv \
    ",\"max_position_embeddings\":" #positions ",\"hidden_act\":\"silu\",\"head_dim\":null,"

/* Kimi's own files have an object for the linear layers, whose lists count layers from 1, and the
 * number of layers before the first with experts. transformers reads both. */
static void kimi_mark(sr_config_reader *r, json_t *types, const json_t *linear, const char *list,
                      const char *type) {
    const json_t *layers = json_object_get(linear, list), *value;
    size_t i;
    json_array_foreach(layers, i, value) {
        const json_int_t layer = json_integer_value(value);
        if (layer >= 1 && layer <= (json_int_t)json_array_size(types))
            json_array_set_new(types, (size_t)layer - 1, json_string(type));
        else
            sr_config_refuse(r, list, "must list layers by their number, from 1");
    }
}

/* A layer in both lists is linear, as in transformers, which fills them in this order. */
static json_t *kimi_layer_types(sr_config_reader *r, const json_t *linear, size_t L) {
    const bool listed =
        json_object_get(linear, "full_attn_layers") && json_object_get(linear, "kda_layers");
    json_t *types = json_array();
    for (size_t i = 0; i < L; i++)
        sr_json_append(types, listed            ? json_null()
                              : i && i % 4 == 0 ? json_string("full_attention")
                                                : json_string("linear_attention"));
    if (!listed)
        return types;
    kimi_mark(r, types, linear, "full_attn_layers", "full_attention");
    kimi_mark(r, types, linear, "kda_layers", "linear_attention");
    for (size_t i = 0; i < L; i++)
        if (json_is_null(json_array_get(types, i)))
            sr_config_refuse(r, "linear_attn_config",
                             "has a layer that is neither in full_attn_layers nor in kda_layers");
    return types;
}

static json_t *kimi_mlp_types(const json_t *file, size_t L) {
    const json_t *dense = json_object_get(file, "first_k_dense_replace");
    const json_int_t count = dense ? json_integer_value(dense) : 1;
    json_t *types = json_array();
    for (size_t i = 0; i < L; i++)
        sr_json_append(types, json_string((json_int_t)i < count ? "dense" : "sparse"));
    return types;
}

/* Qwen2-MoE's windowed layers: every other one below max_window_layers. */
static void translate_qwen2_moe(sr_config_reader *r, json_t *merged, const json_t *file) {
    const json_int_t L = json_integer_value(json_object_get(merged, "num_hidden_layers"));
    const json_int_t end = json_integer_value(json_object_get(merged, "max_window_layers"));
    const bool windows = json_is_true(json_object_get(merged, "use_sliding_window"));
    (void)r;
    (void)file;
    if (sr_config_value(merged, "layer_types") || L < 1 || L > SR_LAYERS_MAX)
        return;
    json_t *types = json_array();
    for (json_int_t i = 0; i < L; i++)
        sr_json_append(types, json_string(windows && i % 2 == 0 && i < end ? "sliding_attention"
                                                                           : "full_attention"));
    sr_json_set(merged, "layer_types", types);
}

static void translate_kimi(sr_config_reader *r, json_t *merged, const json_t *file) {
    static const char *const members[][2] = {{"head_dim", "linear_head_dim"},
                                             {"num_heads", "linear_num_heads"},
                                             {"short_conv_kernel_size", "linear_conv_kernel_dim"}};
    const json_t *linear = json_object_get(file, "linear_attn_config");
    const json_int_t L = json_integer_value(json_object_get(merged, "num_hidden_layers"));
    const size_t layers = L > 0 && L <= SR_LAYERS_MAX ? (size_t)L : 0;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (json_object_get(linear, members[i][0]))
            sr_json_set(merged, members[i][1], json_incref(json_object_get(linear, members[i][0])));
    if (!sr_config_value(merged, "layer_types"))
        sr_json_set(merged, "layer_types", kimi_layer_types(r, linear, layers));
    if (!sr_config_value(merged, "mlp_layer_types"))
        sr_json_set(merged, "mlp_layer_types", kimi_mlp_types(file, layers));
}

/* LFM2: the MLP is made narrower, then as wide as a multiple of a number; layers with attention may
 * be listed by number; members have other names in older files. */
static json_t *lfm2_layer_types(const json_t *full, json_int_t L) {
    json_t *types = json_array();
    for (json_int_t layer = 0; layer < L; layer++) {
        bool attends = !full || json_is_null(full);
        const json_t *value;
        size_t i;
        json_array_foreach(full, i, value) attends = attends || json_integer_value(value) == layer;
        sr_json_append(types, json_string(attends ? "full_attention" : "conv"));
    }
    return types;
}

static json_int_t lfm2_width(const json_t *merged) {
    const json_int_t given = json_integer_value(json_object_get(merged, "intermediate_size"));
    const json_int_t unit = json_integer_value(json_object_get(merged, "block_multiple_of"));
    const json_t *factor = json_object_get(merged, "block_ffn_dim_multiplier");
    const json_int_t width = given > 0 && given <= SR_WIDTH_MAX ? 2 * given / 3 : given;
    if (!json_is_true(json_object_get(merged, "block_auto_adjust_ff_dim")))
        return given;
    const double wide = json_number_value(factor) * (double)width;
    if (unit < 1 || unit > SR_WIDTH_MAX || !(wide >= 0 && wide <= SR_WIDTH_MAX))
        return 0; /* which is refused */
    return ((json_int_t)wide + unit - 1) / unit * unit;
}

static void translate_lfm2(sr_config_reader *r, json_t *merged, const json_t *file) {
    static const char *const members[][2] = {{"tie_embedding", "tie_word_embeddings"},
                                             {"block_ff_dim", "intermediate_size"}};
    const json_int_t L = json_integer_value(json_object_get(merged, "num_hidden_layers"));
    (void)r;
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (json_object_get(file, members[i][0]))
            sr_json_set(merged, members[i][1], json_incref(json_object_get(file, members[i][0])));
    if (!sr_config_value(merged, "layer_types") && L > 0 && L <= SR_LAYERS_MAX)
        sr_json_set(merged, "layer_types",
                    lfm2_layer_types(json_object_get(merged, "full_attn_idxs"), L));
    sr_json_set(merged, "intermediate_size", json_integer(lfm2_width(merged)));
    sr_json_set(merged, "hidden_act", json_string("silu")); /* whatever the file says */
}

/* clang-format off */
/* q, k and v always have a bias, which no member of transformers' says. */
const sr_published sr_published_qwen2 = {
    .defaults = "{" SIZES(151936, 4096, 22016, 32, 32, 32, 32768)
        JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "softrnn_qkv_bias": true,
             "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
             "layer_types": null, "tie_word_embeddings": false) "}",
    .qkv_bias = "softrnn_qkv_bias",
    .window_by_flag = true,
    .names = {.root = "model."}};

const sr_family sr_published_families[] = {
    {.model_type = "mistral", .architecture = "MistralForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32000, 4096, 14336, 32, 32, 8, 131072)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096,
                  "layer_types": null, "tie_word_embeddings": false) "}",
         .window_everywhere = true,
         .names = {.root = "model."}}},
    {.model_type = "ministral", .architecture = "MinistralForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32000, 4096, 14336, 32, 32, 8, 131072)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "sliding_window": 4096,
                  "layer_types": null, "tie_word_embeddings": false) "}",
         .window_everywhere = true,
         .names = {.root = "model."}}},
    {.model_type = "qwen3", .architecture = "Qwen3ForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151936, 4096, 22016, 32, 32, 32, 32768)
             JSON("head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                  "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
                  "max_window_layers": 28, "layer_types": null, "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=head", .window_by_flag = true, ATTENTION_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "qwen3_5_text", .architecture = "Qwen3_5ForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(248320, 4096, 12288, 32, 16, 4, 32768)
             JSON("head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.25, "attention_bias": false,
                  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                  "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                  "linear_num_value_heads": 32, "full_attention_interval": 4, "layer_types": null,
                  "tie_word_embeddings": false) "}",
         .layer = GATED_LAYER, .linear = "gated_delta_net", ATTENTION_BIAS,
         .norm_is_minus_one = true,
         .interval_member = "full_attention_interval", .interval = 4, .between = "linear_attention",
         .names = {.root = "model.",
                   .layers.joined = {GATED_Q},
                   .linear = {.pairs = {{"self_attn.", "linear_attn."},
                                        {"self_attn.g_proj.", "linear_attn.in_proj_z."},
                                        {"self_attn.b_proj.", "linear_attn.in_proj_b."},
                                        {"self_attn.a_proj.", "linear_attn.in_proj_a."},
                                        {"self_attn.o_norm.", "linear_attn.norm."},
                                        {"self_attn.o_proj.", "linear_attn.out_proj."}},
                              .joined = {JOINED_CONV,
                                         {.there = {"linear_attn.in_proj_qkv"},
                                          .here = {"self_attn.q_proj", "self_attn.k_proj",
                                                   "self_attn.v_proj"}}}}}}},
    {.model_type = "qwen3_5_moe_text", .architecture = "Qwen3_5MoeForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(248320, 2048, 512, 40, 16, 2, 32768)
             JSON("head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.25, "attention_bias": false,
                  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                  "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                  "linear_num_value_heads": 32, "full_attention_interval": 4, "layer_types": null,
                  "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
                  "shared_expert_intermediate_size": 512, "tie_word_embeddings": false) "}",
         .layer = GATED_LAYER, .linear = "gated_delta_net", ATTENTION_BIAS,
         .norm_is_minus_one = true,
         .experts = &(const sr_published_experts){QWEN_EXPERTS, SHARED_EXPERT},
         .interval_member = "full_attention_interval", .interval = 4, .between = "linear_attention",
         .names = {.root = "model.",
                   .layers = {.pairs = {ROUTER_NAME, SHARED_NAME}, .joined = {GATED_Q, EXPERTS}},
                   .linear = {.pairs = {{"self_attn.", "linear_attn."},
                                        {"self_attn.g_proj.", "linear_attn.in_proj_z."},
                                        {"self_attn.b_proj.", "linear_attn.in_proj_b."},
                                        {"self_attn.a_proj.", "linear_attn.in_proj_a."},
                                        {"self_attn.o_norm.", "linear_attn.norm."},
                                        {"self_attn.o_proj.", "linear_attn.out_proj."},
                                        ROUTER_NAME, SHARED_NAME},
                              .joined = {JOINED_CONV, EXPERTS,
                                         {.there = {"linear_attn.in_proj_qkv"},
                                          .here = {"self_attn.q_proj", "self_attn.k_proj",
                                                   "self_attn.v_proj"}}}}}}},
    {.model_type = "qwen3_next", .architecture = "Qwen3NextForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151936, 2048, 5632, 48, 16, 2, 32768)
             JSON("head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.25, "attention_bias": false,
                  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
                  "linear_value_head_dim": 128, "linear_num_key_heads": 16,
                  "linear_num_value_heads": 32, "full_attention_interval": 4, "layer_types": null,
                  "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
                  "shared_expert_intermediate_size": 512, "norm_topk_prob": true,
                  "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "tie_word_embeddings": false) "}",
         .layer = GATED_LAYER, .linear = "gated_delta_net", ATTENTION_BIAS,
         .experts = &(const sr_published_experts){QWEN_EXPERTS, SHARED_EXPERT,
                                                  .renormalised = "norm_topk_prob"},
         .norm_is_minus_one = true,
         .interval_member = "full_attention_interval", .interval = 4, .between = "linear_attention",
         .names = {.root = "model.",
                   .layers = {.pairs = {ROUTER_NAME, SHARED_NAME}, .joined = {GATED_Q, EXPERTS}},
                   .linear = {.pairs = {{"self_attn.", "linear_attn."},
                                        {"self_attn.o_norm.", "linear_attn.norm."},
                                        {"self_attn.o_proj.", "linear_attn.out_proj."},
                                        ROUTER_NAME, SHARED_NAME},
                              .joined = {JOINED_CONV, EXPERTS,
                                         {.there = {"linear_attn.in_proj_qkvz"},
                                          .here = {"self_attn.q_proj", "self_attn.k_proj",
                                                   "self_attn.v_proj", "self_attn.g_proj"},
                                          .groups = SR_JOINED_KEY_HEADS},
                                         {.there = {"linear_attn.in_proj_ba"},
                                          .here = {"self_attn.b_proj", "self_attn.a_proj"},
                                          .groups = SR_JOINED_KEY_HEADS}}}}}},
    {.model_type = "mixtral", .architecture = "MixtralForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32000, 4096, 14336, 32, 32, 8, 131072)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": null,
                  "num_local_experts": 8, "num_experts_per_tok": 2,
                  "tie_word_embeddings": false) "}",
         .window_everywhere = true,
         .experts = &(const sr_published_experts){.count = "num_local_experts",
                                                  .other_count = "num_experts",
                                                  .chosen = "num_experts_per_tok",
                                                  .width = "intermediate_size"},
         .names = {.root = "model.",
                   .layers = {.pairs = {{"mlp.router.", "block_sparse_moe.gate."}},
                              .joined = {MIXTRAL_EXPERT("w1", "gate_proj"),
                                         MIXTRAL_EXPERT("w3", "up_proj"),
                                         MIXTRAL_EXPERT("w2", "down_proj")}}}}},
    {.model_type = "qwen2_moe", .architecture = "Qwen2MoeForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151936, 2048, 5632, 24, 16, 16, 32768)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "qkv_bias": true,
                  "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28,
                  "layer_types": null, "num_experts": 60, "num_experts_per_tok": 4,
                  "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
                  "norm_topk_prob": false, "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "tie_word_embeddings": false) "}",
         .qkv_bias = "qkv_bias", .window_by_flag = true, .translate = translate_qwen2_moe,
         .experts = &(const sr_published_experts){QWEN_EXPERTS, SHARED_EXPERT,
                                                  .renormalised = "norm_topk_prob"},
         .names = {.root = "model.",
                   .layers = {.pairs = {ROUTER_NAME, SHARED_NAME}, .joined = {EXPERTS}}}}},
    {.model_type = "qwen3_moe", .architecture = "Qwen3MoeForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151936, 2048, 6144, 24, 32, 4, 32768)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false,
                  "use_sliding_window": false, "sliding_window": 4096, "num_experts": 128,
                  "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": false,
                  "decoder_sparse_step": 1, "mlp_only_layers": [],
                  "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=head", ATTENTION_BIAS,
         .window_everywhere = true, .window_by_flag = true,
         .experts = &(const sr_published_experts){QWEN_EXPERTS, .renormalised = "norm_topk_prob",
                                                  .other_count = "num_local_experts"},
         .names = {.root = "model.",
                   .layers = {.pairs = {ROUTER_NAME}, .joined = {EXPERTS}}}}},
    {.model_type = "olmoe", .architecture = "OlmoeForCausalLM", TRANSFORMERS,
     .ends = "50279",
     .published = &(const sr_published){
         .defaults = "{" SIZES(50304, 2048, 2048, 16, 16, null, 4096)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": false,
                  "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false,
                  "clip_qkv": null, "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=row", ATTENTION_BIAS,
         .experts = &(const sr_published_experts){.count = "num_experts",
                                                  .other_count = "num_local_experts",
                                                  .chosen = "num_experts_per_tok",
                                                  .width = "intermediate_size",
                                                  .renormalised = "norm_topk_prob"},
         .names = {.root = "model.",
                   .layers = {.pairs = {ROUTER_NAME}, .joined = {EXPERTS}}}}},
    {.model_type = "gpt_oss", .architecture = "GptOssForCausalLM", TRANSFORMERS,
     .published = &(const sr_published){
         .defaults = "{" SIZES(201088, 2880, 2880, 36, 64, 8, 131072)
             JSON("head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
                  "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0,
                                      "beta_slow": 1.0, "truncate": false,
                                      "original_max_position_embeddings": 4096},
                  "attention_bias": true, "sliding_window": 128, "layer_types": null,
                  "num_local_experts": 128, "num_experts_per_tok": 4, "swiglu_alpha": 1.702,
                  "swiglu_limit": 7.0, "tie_word_embeddings": false) "}",
         .layer = ",sink=learned", ATTENTION_BIAS,
         .interval = 2, .between = "sliding_attention",
         .experts = &(const sr_published_experts){.count = "num_local_experts",
                                                  .other_count = "num_experts",
                                                  .chosen = "num_experts_per_tok",
                                                  .width = "intermediate_size",
                                                  .biased = true, .clamped = true},
         .names = {.root = "model.",
                   .layers.joined = {TRANSPOSED("mlp.experts.gate_up_proj",
                                                "mlp.experts.gate_proj.weight",
                                                "mlp.experts.up_proj.weight"),
                                     TRANSPOSED("mlp.experts.gate_up_proj_bias",
                                                "mlp.experts.gate_proj.bias",
                                                "mlp.experts.up_proj.bias"),
                                     TRANSPOSED("mlp.experts.down_proj",
                                                "mlp.experts.down_proj.weight"),
                                     TRANSPOSED("mlp.experts.down_proj_bias",
                                                "mlp.experts.down_proj.bias")}}}},
    {.model_type = "olmo2", .architecture = "Olmo2ForCausalLM", TRANSFORMERS,
     .ends = "50279",
     .published = &(const sr_published){
         .defaults = "{" SIZES(50304, 4096, 11008, 32, 32, null, 2048)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": false,
                  "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=row,block_norm=after", ATTENTION_BIAS,
         .names = {.root = "model.", .layers.pairs = {AFTER_NAMES}}}},
    {.model_type = "olmo3", .architecture = "Olmo3ForCausalLM", TRANSFORMERS,
     .ends = "50279",
     .published = &(const sr_published){
         .defaults = "{" SIZES(50304, 4096, 11008, 32, 32, null, 2048)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 500000.0, "attention_bias": false,
                  "sliding_window": 4096, "layer_types": null,
                  "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=row,block_norm=after", ATTENTION_BIAS,
         .interval = 4, .between = "sliding_attention", .rope_by_type = true,
         .window_theta = 500000,
         .names = {.root = "model.", .layers.pairs = {AFTER_NAMES}}}},
    {.model_type = "olmo_hybrid", .architecture = "OlmoHybridForCausalLM", TRANSFORMERS,
     .ends = "100257",
     .published = &(const sr_published){
         .defaults = "{" SIZES(100352, 3840, 11008, 32, 30, null, 65536)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false,
                  "linear_conv_kernel_dim": 4, "linear_key_head_dim": null,
                  "linear_value_head_dim": null, "linear_num_key_heads": null,
                  "linear_num_value_heads": null, "linear_allow_neg_eigval": true,
                  "layer_types": null, "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=row,block_norm=after",
         .linear = "gated_delta_net,norm_epsilon=1e-5", ATTENTION_BIAS,
         .interval = 4, .between = "linear_attention", .some_full = true,
         .names = {.root = "model.",
                   .layers.pairs = {{"post_self_attn_layernorm.", "feedforward_layer_norm."},
                                    {"post_mlp_layernorm.", "post_feedforward_layernorm."}},
                   .aliases = {{"feedforward_layer_norm.", "post_attention_layernorm."},
                               {"attention_layer_norm.", "input_layernorm."}},
                   .linear = {.pairs = {{"self_attn.", "linear_attn."},
                                        {"input_layernorm.", "attention_layer_norm."},
                                        {"post_attention_layernorm.", "feedforward_layer_norm."}},
                              /* transformers cuts the convolution of all three into thirds */
                              .joined = {{.there = {"linear_attn.q_conv1d", "linear_attn.k_conv1d",
                                                    "linear_attn.v_conv1d"},
                                          .here = {"self_attn.q_conv1d", "self_attn.k_conv1d",
                                                   "self_attn.v_conv1d"}}}}}}},
    {.model_type = "kimi_linear", .architecture = "KimiLinearForCausalLM", TRANSFORMERS,
     .ends = "163586",
     .published = &(const sr_published){
         .defaults = "{" SIZES(163840, 2304, 9216, 27, 32, 32, null)
             JSON("model_max_length": 1048576, "rms_norm_eps": 1e-5, "linear_conv_kernel_dim": 4,
                  "linear_head_dim": 128, "linear_num_heads": 32, "kv_lora_rank": 512,
                  "num_experts": 256, "mlp_layer_types": null, "layer_types": null,
                  "tie_word_embeddings": false) "}",
         .linear = "kda", .translate = translate_kimi,
         .names = {.root = "model.",
                   .layers.pairs = {{"mlp.", "block_sparse_moe."}},
                   .aliases = {{"block_sparse_moe.", "mlp."}}}}},
    {.model_type = "lfm2", .architecture = "Lfm2ForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(65536, 2560, 12288, 32, 32, 8, 128000)
             JSON("norm_eps": 1e-5, "rope_theta": 1000000.0, "conv_bias": false, "conv_L_cache": 3,
                  "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
                  "block_auto_adjust_ff_dim": true, "full_attn_idxs": null, "layer_types": null,
                  "tie_word_embeddings": true) "}",
         .layer = ",qk_norm=head", .conv = "conv_L_cache", .conv_bias = "conv_bias",
         .epsilon = "norm_eps", .translate = translate_lfm2,
         .names = {.root = "model.",
                   .whole = {{"norm.", "embedding_norm."}},
                   .layers.pairs = {LFM2_NAMES, {"self_attn.q_norm.", "self_attn.q_layernorm."},
                                    {"self_attn.k_norm.", "self_attn.k_layernorm."},
                                    {"self_attn.o_proj.", "self_attn.out_proj."}},
                   .linear = {.pairs = {LFM2_NAMES, {"self_attn.conv1d.", "conv.conv."},
                                        {"self_attn.out_proj.", "conv.out_proj."}},
                              .joined = {{.there = {"conv.in_proj"},
                                          .here = {"self_attn.b_proj", "self_attn.c_proj",
                                                   "self_attn.x_proj"}}}}}}},
    {.model_type = "falcon_h1", .architecture = "FalconH1ForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(128000, 4096, 14336, 32, 32, 8, 8192)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": false,
                  "mlp_bias": false, "projectors_bias": false, "mamba_d_ssm": 1024,
                  "mamba_n_heads": 128, "mamba_d_head": "auto", "mamba_n_groups": 1,
                  "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2,
                  "mamba_conv_bias": true, "mamba_proj_bias": false,
                  "mamba_norm_before_gate": true, "mamba_rms_norm": false,
                  "time_step_limit": null, "lm_head_multiplier": 1.0,
                  "embedding_multiplier": 1.0, "mlp_multipliers": null, "key_multiplier": 1.0,
                  "attention_out_multiplier": 1.0, "attention_in_multiplier": 1.0,
                  "ssm_multipliers": null, "ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0,
                  "tie_word_embeddings": false) "}",
         .mamba = true, ATTENTION_BIAS, MLP_BIAS,
         .names = {.root = "model.",
                   .whole = {{"norm.", "final_layernorm."}},
                   .layers.pairs = {{"post_attention_layernorm.", "pre_ff_layernorm."},
                                    {"mlp.", "feed_forward."},
                                    {"parallel_attn.", "mamba."}}}}},
    {.model_type = "smollm3", .architecture = "SmolLM3ForCausalLM", TRANSFORMERS,
     .ends = "128001",
     .published = &(const sr_published){
         .defaults = "{" SIZES(128256, 2048, 11008, 36, 16, 4, 32768)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 2000000.0, "attention_bias": false,
                  "mlp_bias": false, "use_sliding_window": false, "sliding_window": null,
                  "no_rope_layers": null, "no_rope_layer_interval": 4, "layer_types": null,
                  "tie_word_embeddings": true) "}",
         ATTENTION_BIAS, MLP_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "gemma", .architecture = "GemmaForCausalLM", TRANSFORMERS,
     .ends = "1",
     .published = &(const sr_published){
         .defaults = "{" SIZES(256000, 3072, 24576, 28, 16, 16, 8192)
             JSON("head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                  "rope_theta": 10000.0, "attention_bias": false,
                  "use_bidirectional_attention": null, "tie_word_embeddings": true) "}",
         .norm_is_minus_one = true, .embedding_root = true, .gelu_is_tanh = true,
         ATTENTION_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "gemma2", .architecture = "Gemma2ForCausalLM", TRANSFORMERS,
     .ends = "1",
     .published = &(const sr_published){
         .defaults = "{" SIZES(256000, 2304, 9216, 26, 8, 4, 8192)
             JSON("head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                  "rope_theta": 10000.0, "attention_bias": false, "query_pre_attn_scalar": 256,
                  "sliding_window": 4096, "layer_types": null, "final_logit_softcapping": 30.0,
                  "attn_logit_softcapping": 50.0, "use_bidirectional_attention": null,
                  "tie_word_embeddings": true) "}",
         .layer = ",block_norm=both", .activation = "hidden_activation",
         .norm_is_minus_one = true, .embedding_root = true, ATTENTION_BIAS,
         .interval = 2, .between = "sliding_attention",
         .names = {.root = "model.", .layers.pairs = {SANDWICH_NAMES}}}},
    {.model_type = "gemma3_text", .architecture = "Gemma3ForCausalLM", TRANSFORMERS,
     .ends = "1",
     .published = &(const sr_published){
         .defaults = "{" SIZES(262208, 2304, 9216, 26, 8, 4, 131072)
             JSON("head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6,
                  "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
                  "attention_bias": false, "query_pre_attn_scalar": 256, "sliding_window": 4096,
                  "sliding_window_pattern": 6, "layer_types": null,
                  "final_logit_softcapping": null, "use_bidirectional_attention": false,
                  "tie_word_embeddings": true) "}",
         .layer = ",qk_norm=head,block_norm=both", .activation = "hidden_activation",
         .rope_by_type = true,
         .norm_is_minus_one = true, .embedding_root = true, ATTENTION_BIAS,
         .interval_member = "sliding_window_pattern", .interval = 6, .between = "sliding_attention",
         .names = {.root = "model.", .layers.pairs = {SANDWICH_NAMES}}}},
    {.model_type = "phi3", .architecture = "Phi3ForCausalLM", TRANSFORMERS,
     .ends = "32000",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32064, 3072, 8192, 32, 32, null, 4096)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 1.0,
                  "original_max_position_embeddings": 4096, "sliding_window": null,
                  "tie_word_embeddings": false) "}",
         .window_everywhere = true, .rope_long = true,
         .names = {.root = "model.",
                   .layers.joined = {JOINED_GATE_UP,
                                     {.there = {"self_attn.qkv_proj"},
                                      .here = {"self_attn.q_proj", "self_attn.k_proj",
                                               "self_attn.v_proj"}}}}}},
    {.model_type = "granite", .architecture = "GraniteForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32000, 4096, 11008, 32, 32, null, 2048)
             JSON("rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false,
                  "mlp_bias": false, "embedding_multiplier": 1.0, "logits_scaling": 1.0,
                  "residual_multiplier": 1.0, "attention_multiplier": 1.0,
                  "tie_word_embeddings": false) "}",
         ATTENTION_BIAS, MLP_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "stablelm", .architecture = "StableLmForCausalLM", TRANSFORMERS,
     .ends = "0",
     .published = &(const sr_published){
         .defaults = "{" SIZES(50304, 2560, 6912, 32, 32, 32, 4096)
             JSON("layer_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                  "use_qkv_bias": false, "qk_layernorm": false, "use_parallel_residual": false,
                  "tie_word_embeddings": false) "}",
         .epsilon = "layer_norm_eps", .qkv_bias = "use_qkv_bias", .layer_norm = true,
         .own_head_size = true,
         .names = {.root = "model.",
                   .layers.joined = {{.there = {"self_attn.q_layernorm.norms.%d"},
                                      .here = {"self_attn.q_norm"}},
                                     {.there = {"self_attn.k_layernorm.norms.%d"},
                                      .here = {"self_attn.k_norm"}}}}}},
    {.model_type = "seed_oss", .architecture = "SeedOssForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(155136, 4096, 27648, 64, 80, 8, 524288)
             JSON("head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                  "attention_bias": true, "attention_out_bias": false, "mlp_bias": false,
                  "tie_word_embeddings": false) "}",
         .qkv_bias = "attention_bias", .o_bias = "attention_out_bias", MLP_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "exaone4", .architecture = "Exaone4ForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(102400, 4096, 16384, 32, 32, 32, 2048)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096,
                  "sliding_window_pattern": 4, "layer_types": null,
                  "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=head,block_norm=after", .nope_if_window = true,
         .interval_member = "sliding_window_pattern", .interval = 4, .between = "sliding_attention",
         .names = {.root = "model.", .layers.pairs = {AFTER_NAMES}}}},
    {.model_type = "glm4", .architecture = "Glm4ForCausalLM", TRANSFORMERS,
     .ends = "[151329, 151336, 151338]", .null_ends = true,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151552, 4096, 13696, 40, 32, 2, 131072)
             JSON("head_dim": 128, "rms_norm_eps": 1.5625e-7, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.5, "attention_bias": true,
                  "tie_word_embeddings": false) "}",
         .layer = ",rope_pairs=neighbours,block_norm=both", .qkv_bias = "attention_bias",
         .names = {.root = "model.", .layers.joined = {JOINED_GATE_UP}}}},
    {.model_type = "glm", .architecture = "GlmForCausalLM", TRANSFORMERS,
     .ends = "[151329, 151336, 151338]", .null_ends = true,
     .published = &(const sr_published){
         .defaults = "{" SIZES(151552, 4096, 13696, 40, 32, 2, 131072)
             JSON("head_dim": 128, "rms_norm_eps": 1.5625e-7, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.5, "attention_bias": true,
                  "tie_word_embeddings": false) "}",
         .layer = ",rope_pairs=neighbours", .qkv_bias = "attention_bias",
         .names = {.root = "model.", .layers.joined = {JOINED_GATE_UP}}}},
    {.model_type = "arcee", .architecture = "ArceeForCausalLM", TRANSFORMERS,
     .ends = "128001",
     .published = &(const sr_published){
         .defaults = "{" SIZES(32000, 2560, 18432, 32, 32, null, 4096)
             JSON("hidden_act": "relu2", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                  "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false) "}",
         .plain_mlp = true, ATTENTION_BIAS, MLP_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "ernie4_5", .architecture = "Ernie4_5ForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(103424, 1024, 3072, 18, 16, 2, 131072)
             JSON("head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "use_bias": false,
                  "tie_word_embeddings": true) "}",
         .layer = ",rope_pairs=neighbours", .qkv_bias = "use_bias", .o_bias = "use_bias",
         .mlp_bias = "use_bias",
         .names = {.root = "model."}}},
    {.model_type = "hunyuan_v1_dense", .architecture = "HunYuanDenseV1ForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(290943, 4096, 11008, 32, 32, null, 2048)
             JSON("rms_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": false,
                  "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=head_rotated", .rope_alpha = true, ATTENTION_BIAS,
         .names = {.root = "model.",
                   .layers.pairs = {{"self_attn.q_norm.", "self_attn.query_layernorm."},
                                    {"self_attn.k_norm.", "self_attn.key_layernorm."}}}}},
    {.model_type = "nemotron", .architecture = "NemotronForCausalLM", TRANSFORMERS,
     .ends = "3",
     .published = &(const sr_published){
         .defaults = "{" SIZES(256000, 6144, 24576, 32, 48, null, 4096)
             JSON("hidden_act": "relu2", "norm_eps": 1e-5, "rope_theta": 10000.0,
                  "partial_rotary_factor": 0.5, "attention_bias": false, "mlp_bias": false,
                  "tie_word_embeddings": false) "}",
         .epsilon = "norm_eps", .plain_mlp = true, .layer_norm = true, .norm_is_minus_one = true,
         ATTENTION_BIAS, MLP_BIAS,
         .names = {.root = "model."}}},
    {.model_type = "apertus", .architecture = "ApertusForCausalLM", TRANSFORMERS,
     .ends = "2",
     .published = &(const sr_published){
         .defaults = "{" SIZES(131072, 4096, 14336, 32, 32, null, 65536)
             JSON("hidden_act": "xielu", "rms_norm_eps": 1e-5, "rope_theta": 12000000.0,
                  "rope_parameters": {"rope_type": "llama3", "rope_theta": 12000000.0,
                                      "factor": 8.0, "original_max_position_embeddings": 8192,
                                      "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                  "attention_bias": false, "tie_word_embeddings": false) "}",
         .layer = ",qk_norm=head", .plain_mlp = true, ATTENTION_BIAS,
         .names = {.root = "model.",
                   .layers.pairs = {{"input_layernorm.", "attention_layernorm."},
                                    {"post_attention_layernorm.", "feedforward_layernorm."}},
                   .constants = {{"mlp.act_fn.beta", 0.5f}, {"mlp.act_fn.eps", -1e-6f}}}}},
};
/* clang-format on */

const size_t sr_published_count = sizeof sr_published_families / sizeof *sr_published_families;
