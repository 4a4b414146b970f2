/* family.c: the kinds of model that config.json may name. */
#include "model/config/family.h"

#include "model/config/published.h"
#include "model/config/system.h"

#include <stdio.h>
#include <string.h>

enum { LLAMA, QWEN2, SOFTRNN, MAMBA2, GLA, DELTA_NET, GATED_DELTA_NET, FAMILIES };

#define TRANSFORMERS .loader = "transformers"
#define FLA          .loader = "flash-linear-attention"

static const sr_family families[FAMILIES] = {
    [LLAMA] = {.model_type = "llama",
               .architecture = "LlamaForCausalLM",
               TRANSFORMERS,
               .positions = 2048,
               .ends = "2"},
    [QWEN2] = {.model_type = "qwen2",
               .architecture = "Qwen2ForCausalLM",
               TRANSFORMERS,
               .key_heads = 32,
               .positions = 32768,
               .bias = SR_FAMILY_BIAS_QKV,
               .published = &sr_published_qwen2},
    [SOFTRNN] = {.model_type = "softrnn", .architecture = "SoftrnnForCausalLM", .positions = 2048},
    [MAMBA2] = {.model_type = "mamba2",
                .architecture = "Mamba2ForCausalLM",
                TRANSFORMERS,
                .ends = "2",
                .system = &sr_system_mamba2},
    [GLA] = {.model_type = "gla", .architecture = "GLAForCausalLM", FLA, .system = &sr_system_gla},
    [DELTA_NET] = {.model_type = "delta_net",
                   .architecture = "DeltaNetForCausalLM",
                   FLA,
                   .system = &sr_system_delta_net},
    [GATED_DELTA_NET] = {.model_type = "gated_deltanet",
                         .architecture = "GatedDeltaNetForCausalLM",
                         FLA,
                         .system = &sr_system_gated_delta_net},
};

const sr_family *sr_family_at(size_t index) {
    if (index < FAMILIES)
        return &families[index];
    return index - FAMILIES < sr_published_count ? &sr_published_families[index - FAMILIES] : NULL;
}

const sr_family *sr_family_named(const json_t *model_type) {
    const sr_family *family;
    if (!model_type || json_is_null(model_type))
        return &families[LLAMA];
    for (size_t i = 0; json_is_string(model_type) && (family = sr_family_at(i)); i++)
        if (strcmp(json_string_value(model_type), family->model_type) == 0)
            return family;
    return NULL;
}

const sr_family *sr_family_of(const sr_model_config *config) {
    if (!sr_model_config_is_softmax(config) || config->mlp != SR_MLP_SWIGLU ||
        !sr_model_config_is_plain(config))
        return &families[SOFTRNN];
    if (config->qkv_bias == config->o_bias)
        return &families[LLAMA];
    return &families[config->qkv_bias && !config->mlp_bias ? QWEN2 : SOFTRNN];
}

const sr_tensor_names *sr_family_tensor_names(const sr_family *family) {
    if (family->published)
        return &family->published->names;
    return family->system ? sr_config_system_names(family->system) : NULL;
}

void sr_family_names(char *text, size_t bytes) {
    const sr_family *family;
    size_t length = 0;
    for (size_t i = 0; length < bytes && (family = sr_family_at(i)); i++)
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", i ? ", " : "",
                                   family->model_type);
}
