/* mixers.h: what can mix the tokens in a model's blocks, one row each. All that differs between
 * kinds of model is here; nothing else compares them. */
#ifndef SR_MODEL_MIXERS_H
#define SR_MODEL_MIXERS_H

#include "model/layer/mixer.h"
#include "model/model.h"

typedef struct sr_mixer_row {
    const char *title; /* for messages: "an Avey model" */
    bool attends;      /* each layer has a descriptor, sizes and a state; a block may have an MLP */
    bool contexts;     /* blocks see contexts that a ranker composes, not the rows of the batch */

    /* Sets the mixer's part of a config from a text that begins with its name; *known is false for
     * other texts. NULL: attention, which has a text for each layer. */
    srnn_status (*parse)(sr_model_config *config, bool *known, const char *text);
    /* The text of one layer. Like snprintf. */
    size_t (*print)(char *text, size_t size, const sr_model_config *config, int layer);
    /* Whether two configs agree in what is set for all layers at once. */
    bool (*same)(const sr_model_config *a, const sr_model_config *b);
    /* Whether logits depend on earlier tokens only. */
    bool (*is_causal)(const sr_model_config *config);

    /* Appends all tensors of a model. */
    srnn_status (*tensors)(sr_tensor_table *table, const sr_model_config *config);
    srnn_status (*create)(sr_mixer *mixer, const sr_model *model, const sr_layer_setup *setup,
                          int layer);

    /* What decoding keeps of T tokens, as a recurrent state (NAN: there is none) and as a cache. */
    double (*state_bytes)(const sr_model_config *config);
    double (*cache_bytes)(const sr_model_config *config, double T);
    /* FLOPs of mixing in the forward pass, per token of a row of T, without the projections. */
    double (*flops)(const sr_model_config *config, double T);
} sr_mixer_row;

/* FLOPs of a layer's (first) mixer, forward, per token of a row of T: of the pairs that a token
 * sees, and of writing a state and reading it (INFINITY: there is none). */
typedef struct sr_layer_flops {
    double pairs, state;
} sr_layer_flops;
sr_layer_flops sr_attention_layer_flops(const sr_model_config *config, int layer, double T);

const sr_mixer_row *sr_mixer_row_at(sr_mixer_kind kind);
const sr_mixer_row *sr_mixer_row_of(const sr_model_config *config);

/* Sets config->mixer and its part of the config if `text` begins with the name of a mixer other
 * than attention; *known is false for other texts. */
srnn_status sr_mixer_parse(sr_model_config *config, bool *known, const char *text);

/* True if the text names a mixer whose logits depend on later tokens. */
bool sr_mixer_leaks(const char *text);

/* True if the same kind mixes tokens in both, with the same settings. Descriptors of layers are not
 * compared. */
bool sr_mixer_same(const sr_model_config *a, const sr_model_config *b);

#endif
