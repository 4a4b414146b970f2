/* foreign.c: members of config.json that would change a model's numbers and are not supported. */
#include "model/config/foreign.h"

#include <string.h>

/* A member, and the number at which it does nothing; null, false and 0 never do anything. */
typedef struct foreign {
    const char *name;
    double neutral;
} foreign;

static const foreign members[] = {
    {"partial_rotary_factor", 1},
    {"rotary_pct", 1},
    {"rope_interleave", 0},
    {"rope_interleaved", 0},
    {"no_rope_layers", 0},
    {"alibi", 0},
    {"attention_chunk_size", 0},
    {"attention_multiplier", 0},
    {"query_pre_attn_scalar", 0},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"scale_embedding", 0},
    {"clip_qkv", 0},
    {"qk_norm", 0},
    {"use_qk_norm", 0},
    {"qk_layernorm", 0},
    {"parallel_residual", 0},
    {"use_parallel_residual", 0},
    {"num_experts", 1},
    {"num_local_experts", 1},
    {"n_routed_experts", 1},
    {"quantization_config", 0},
    {"per_layer_config", 0},
};

static bool does_nothing(const json_t *value, double neutral) {
    if (json_is_number(value))
        return json_number_value(value) == 0 || json_number_value(value) == neutral;
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static srnn_status refuse(const char *path, const char *name) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "%s: %s changes what the model computes and is not supported", path, name);
}

static srnn_status check_members(const json_t *object, const char *path) {
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!does_nothing(json_object_get(object, members[i].name), members[i].neutral))
            return refuse(path, members[i].name);
    return SRNN_OK;
}

/* A window as wide as the longest text is none. */
static bool window_matters(const json_t *root, int positions) {
    const json_t *window = json_object_get(root, "sliding_window");
    return !json_is_false(json_object_get(root, "use_sliding_window")) &&
           !does_nothing(window, 0) &&
           (!json_is_number(window) || json_number_value(window) < positions);
}

static bool is_text(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

static srnn_status check_layer_types(const json_t *root, const char *path) {
    const json_t *types = json_object_get(root, "layer_types"), *type;
    size_t layer;
    json_array_foreach(types, layer, type) {
        if (!is_text(type, "full_attention") && !is_text(type, "attention"))
            return refuse(path, "layer_types");
    }
    return SRNN_OK;
}

srnn_status sr_config_foreign(const json_t *root, int positions, const char *path) {
    if (window_matters(root, positions))
        return refuse(path, "sliding_window");
    SR_TRY(check_members(root, path));
    SR_TRY(check_members(json_object_get(root, "rope_parameters"), path));
    SR_TRY(check_members(json_object_get(root, "rope_scaling"), path));
    return check_layer_types(root, path);
}
