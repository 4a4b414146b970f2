/* model_open.c: opens a model, and warns about its peculiarities. */
#include "cli/line/model_open.h"

#include "cli/line/cautions.h"
#include "cli/line/command.h"
#include "cli/line/progress.h"
#include "equation/facts.h"
#include "model/mixers.h"

#include <stdio.h>

static void show_share(void *bar, double share) {
    progress_show(bar, share, "read");
}

static srnn_status open_shown(sr_model **model, sr_backend *backend, const char *where,
                              const char *attention, bool read_only) {
    progress_bar bar;
    const sr_load_setup setup = {show_share, &bar, read_only};
    progress_begin(&bar);
    const srnn_status status = attention
                                   ? sr_model_open_as(model, backend, where, attention, &setup)
                                   : sr_model_open(model, backend, where, &setup);
    progress_end(&bar);
    SR_TRY(status);
    model_warn(&(*model)->config, where);
    return SRNN_OK;
}

srnn_status model_open(sr_model **model, sr_backend *backend, const char *where,
                       const char *attention) {
    return open_shown(model, backend, where, attention, false);
}

srnn_status model_open_read_only(sr_model **model, sr_backend *backend, const char *where,
                                 const char *attention) {
    return open_shown(model, backend, where, attention, true);
}

srnn_status model_row_length(int *T, const sr_model *model, int requested) {
    const int positions = model->config.positions;
    *T = requested ? requested : positions;
    if (requested > positions)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "--length %d: the model has %d positions", requested,
                       positions);
    return SRNN_OK;
}

void model_warn(const sr_model_config *config, const char *where) {
    if (config->head_kept)
        command_message("%s: tie_word_embeddings is true, but lm_head.weight differs from the "
                        "embedding and is used, as transformers does",
                        where);
    if (!sr_mixer_row_of(config)->is_causal(config))
        model_warn_leak();
    for (int l = 0; l < sr_model_config_attention_layers(config); l++)
        if (l == 0 || !sr_attention_same(&config->attention[l], &config->attention[l - 1]))
            caution_attention(&config->attention[l]);
}

void model_warn_leak(void) {
    fputs("softrnn: avey is not causal: a chunk's later tokens weigh what its earlier ones read, "
          "so that losses and logits over a whole text are not those of a model that predicts; "
          "avey_causal is\n",
          stderr);
}
