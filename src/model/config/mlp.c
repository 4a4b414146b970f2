/* mlp.c: activations in config.json. */
#include "model/config/mlp.h"

#include <string.h>

/* The first word of each is the one that is written. */
static const struct {
    const char *word;
    sr_activation activation;
} words[] = {
    {"silu", SR_ACTIVATION_SILU},
    {"swish", SR_ACTIVATION_SILU},
    {"gelu", SR_ACTIVATION_GELU},
    {"gelu_python", SR_ACTIVATION_GELU},
    {"gelu_pytorch_tanh", SR_ACTIVATION_GELU_TANH},
    {"gelu_new", SR_ACTIVATION_GELU_TANH},
    {"gelu_fast", SR_ACTIVATION_GELU_TANH},
    {"gelu_python_tanh", SR_ACTIVATION_GELU_TANH},
    {"gelu_accurate", SR_ACTIVATION_GELU_TANH},
    {"relu", SR_ACTIVATION_RELU},
    {"relu2", SR_ACTIVATION_RELU_SQUARE},
    {"xielu", SR_ACTIVATION_XIELU},
    {"silu_clamped", SR_ACTIVATION_SILU_CLAMPED},
    {"linear", SR_ACTIVATION_IDENTITY},
};
enum { WORDS = sizeof words / sizeof *words };

void sr_config_mlp_set(sr_config_reader *r, sr_model_config *config, const char *key,
                       const char *word, bool gated) {
    config->mlp = gated ? SR_MLP_GATED : SR_MLP_PLAIN;
    for (int i = 0; i < WORDS; i++)
        if (strcmp(word, words[i].word) == 0) {
            config->activation = words[i].activation;
            if (gated && config->activation == SR_ACTIVATION_SILU)
                config->mlp = SR_MLP_SWIGLU;
            if (!gated && config->activation == SR_ACTIVATION_GELU)
                config->mlp = SR_MLP_GELU;
            return;
        }
    if (r->status == SRNN_OK)
        r->status =
            SR_FAIL(SRNN_ERR_UNSUPPORTED,
                    "%s: %s is %s; supported are silu, gelu, gelu_pytorch_tanh, relu, relu2, "
                    "xielu and linear",
                    r->path, key, word);
}

const char *sr_config_activation_word(sr_activation activation) {
    for (int i = 0; i < WORDS; i++)
        if (words[i].activation == activation)
            return words[i].word;
    return "";
}
