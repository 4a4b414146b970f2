/* kinds.c: the different mixers of a model, each made once. */
#include "model/layer/kinds.h"

#include "base/memory.h"
#include "model/mixers.h"

#include <stdlib.h>
#include <string.h>

static bool same_parallel(const sr_model_config *c, int a, int b) {
    return !c->parallel ||
           (sr_attention_same(&c->parallel[a], &c->parallel[b]) &&
            memcmp(&c->parallel_sizes[a], &c->parallel_sizes[b], sizeof *c->parallel_sizes) == 0);
}

/* The earlier layer with the same mixers, or -1. */
static int find_same(const sr_model_config *config, int layer) {
    for (int earlier = 0; earlier < layer; earlier++)
        if (sr_attention_same(&config->attention[earlier], &config->attention[layer]) &&
            memcmp(&config->sizes[earlier], &config->sizes[layer], sizeof *config->sizes) == 0 &&
            same_parallel(config, earlier, layer) &&
            sr_model_config_dims(config, earlier).later ==
                sr_model_config_dims(config, layer).later)
            return earlier;
    return -1;
}

static srnn_status fill(sr_layer_kinds *kinds, const sr_model *model, const sr_layer_setup *setup) {
    const sr_model_config *config = &model->config;
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *kinds->of_layer));
    kinds->of_layer = memory;
    SR_TRY(sr_alloc_zero(&memory, (size_t)config->L, sizeof *kinds->kinds));
    kinds->kinds = memory;
    for (int layer = 0; layer < config->L; layer++) {
        const int same = find_same(config, layer);
        if (same < 0) {
            sr_mixer *made = &kinds->kinds[kinds->count];
            SR_TRY(sr_mixer_row_of(config)->create(made, model, setup, layer));
            kinds->of_layer[layer] = made;
            kinds->count++;
        } else {
            kinds->of_layer[layer] = kinds->of_layer[same];
        }
    }
    return SRNN_OK;
}

srnn_status sr_layer_kinds_create(sr_layer_kinds *kinds, const sr_model *model,
                                  const sr_layer_setup *setup) {
    *kinds = (sr_layer_kinds){0};
    const srnn_status status = fill(kinds, model, setup);
    if (status != SRNN_OK)
        sr_layer_kinds_free(kinds);
    return status;
}

int64_t sr_layer_kinds_first_values(const sr_model_config *config) {
    for (int layer = 0; layer < sr_model_config_attention_layers(config); layer++)
        if (sr_layer_mixes_values(&config->attention[layer])) {
            const sr_layer_sizes *sizes = &config->sizes[layer];
            const bool every = sr_shares_queries(&config->attention[layer]);
            return (int64_t)(every ? sizes->H : sizes->Hkv) * sizes->Dv;
        }
    return 0;
}

void sr_layer_kinds_free(sr_layer_kinds *kinds) {
    for (int i = 0; i < kinds->count; i++)
        sr_mixer_free(&kinds->kinds[i]);
    free(kinds->kinds);
    free(kinds->of_layer);
    *kinds = (sr_layer_kinds){0};
}

size_t sr_layer_kinds_bytes(const sr_layer_kinds *kinds) {
    size_t bytes = 0;
    for (int i = 0; i < kinds->count; i++)
        bytes += sr_mixer_own_bytes(&kinds->kinds[i]);
    return bytes;
}
