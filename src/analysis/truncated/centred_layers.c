/* centred_layers.c: layers that truncate the series of exp about a centre, in double. */
#include "analysis/truncated/centred_layers.h"

#include "base/memory.h"

#include <stdlib.h>

struct sr_centred_layers {
    const sr_model *model;
    const sr_survey *survey;
    const sr_cut *cuts; /* (L) */
    sr_logit_rows *rows;
    int layer; /* the layer being replaced, and its output */
    srnn_tensor o;
};

bool sr_is_centred(const srnn_attention *attention, sr_cut cut) {
    return cut.order > 0 && cut.centre != SR_CENTRE_ZERO && sr_attention_has_orders(attention) &&
           (int)cut.centre < sr_centre_count(attention);
}

srnn_status sr_centred_layers_create(sr_centred_layers **layers, const sr_model *model,
                                     const sr_survey *survey, const sr_cut *cuts, int B, int T) {
    const sr_model_config *c = &model->config;
    int most = 1;
    void *memory;
    *layers = NULL;
    for (int layer = 0; layer < c->L; layer++)
        most = cuts[layer].order > most ? cuts[layer].order : most;
    const sr_logit_rows_setup setup = {.B = B,
                                       .T = T,
                                       .H = c->H,
                                       .Hkv = c->Hkv,
                                       .D = c->D,
                                       .threads = model->backend->threads,
                                       .scratch =
                                           (size_t)c->D + sr_truncation_scratch(T, c->D, most)};
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **layers));
    sr_centred_layers *created = memory;
    *created = (sr_centred_layers){.model = model, .survey = survey, .cuts = cuts};
    const srnn_status status = sr_logit_rows_create(&created->rows, &setup);
    if (status != SRNN_OK) {
        free(created);
        return status;
    }
    *layers = created;
    return SRNN_OK;
}

void sr_centred_layers_free(sr_centred_layers *layers) {
    if (!layers)
        return;
    sr_logit_rows_free(layers->rows);
    free(layers);
}

static void replace_row(void *context, const sr_logit_row *row) {
    const sr_centred_layers *layers = context;
    const sr_cut cut = layers->cuts[layers->layer];
    const int D = row->facts.D;
    const sr_truncation_row truncated = sr_survey_row(layers->survey, layers->layer, row);
    const srnn_tensor *to = &layers->o;
    double *out = row->scratch;
    sr_truncation_output(out, &truncated, cut.centre, cut.order, row->scratch + D);
    float *o = (float *)to->data + row->b * to->batch + row->head * to->head + row->t * to->time;
    for (int d = 0; d < D; d++)
        o[d] = (float)out[d];
}

static srnn_status replace_layer(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    sr_centred_layers *layers = context;
    const srnn_attention *attention = &layers->model->config.attention[layer];
    if (!sr_is_centred(attention, layers->cuts[layer]))
        return SRNN_OK;
    layers->layer = layer;
    layers->o = o;
    sr_logit_rows_visit(layers->rows, attention, in, replace_row, layers);
    return SRNN_OK;
}

sr_observer sr_centred_layers_observer(sr_centred_layers *layers) {
    return (sr_observer){replace_layer, layers};
}
