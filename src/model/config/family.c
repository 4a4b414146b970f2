/* family.c: the kinds of model that config.json may name. */
#include "model/config/family.h"

#include "model/config/system.h"

#include <stdio.h>
#include <string.h>

enum { LLAMA, MISTRAL, QWEN2, SOFTRNN, MAMBA2, GLA, DELTA_NET, GATED_DELTA_NET, FAMILIES };

#define TRANSFORMERS .loader = "transformers"
#define FLA          .loader = "flash-linear-attention"

static const sr_family families[FAMILIES] = {
    [LLAMA] = {.model_type = "llama",
               .architecture = "LlamaForCausalLM",
               TRANSFORMERS,
               .positions = 2048},
    [MISTRAL] = {.model_type = "mistral",
                 .architecture = "MistralForCausalLM",
                 TRANSFORMERS,
                 .key_heads = 8,
                 .positions = 131072,
                 .window = 4096,
                 .window_use = SR_FAMILY_WINDOW_ALWAYS,
                 .bias = SR_FAMILY_BIAS_NONE},
    [QWEN2] = {.model_type = "qwen2",
               .architecture = "Qwen2ForCausalLM",
               TRANSFORMERS,
               .key_heads = 32,
               .positions = 32768,
               .window = 4096,
               .window_use = SR_FAMILY_WINDOW_ASKED,
               .bias = SR_FAMILY_BIAS_QKV},
    [SOFTRNN] = {.model_type = "softrnn", .architecture = "SoftrnnForCausalLM", .positions = 2048},
    [MAMBA2] = {.model_type = "mamba2",
                .architecture = "Mamba2ForCausalLM",
                TRANSFORMERS,
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
    return index < FAMILIES ? &families[index] : NULL;
}

const sr_family *sr_family_named(const json_t *model_type) {
    if (!model_type || json_is_null(model_type))
        return &families[LLAMA];
    for (int i = 0; i < FAMILIES && json_is_string(model_type); i++)
        if (strcmp(json_string_value(model_type), families[i].model_type) == 0)
            return &families[i];
    return NULL;
}

const sr_family *sr_family_of(const sr_model_config *config) {
    if (!sr_model_config_is_softmax(config) || config->mlp != SR_MLP_SWIGLU)
        return &families[SOFTRNN];
    if (config->qkv_bias == config->o_bias)
        return &families[LLAMA];
    return &families[config->qkv_bias && !config->mlp_bias ? QWEN2 : SOFTRNN];
}

void sr_family_names(char *text, size_t bytes) {
    size_t length = 0;
    for (int i = 0; i < FAMILIES && length < bytes; i++)
        length += (size_t)snprintf(text + length, bytes - length, "%s%s", i ? ", " : "",
                                   families[i].model_type);
}
