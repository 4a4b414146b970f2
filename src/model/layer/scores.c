/* scores.c: which weights make the scores of a layer, and how large these are. */
#include "model/layer/attention_parts.h"

#include <math.h>

static bool find_rows(sr_head_rows *rows, const sr_attention_layer *layer, sr_operand which) {
    const sr_layer_wiring *w = &layer->wiring;
    const sr_wire_place *place = &w->places[which];
    if (!place->there || place->convolved || w->part_bias[which])
        return false;
    for (int i = 0; i < w->input_count; i++) {
        const sr_wire_projection *p = &w->projections[i];
        if (place->at.first < p->to.first ||
            place->at.first + place->at.count > p->to.first + p->to.count)
            continue;
        *rows = (sr_head_rows){.weight = p->weight,
                               .row = place->at.first - p->to.first,
                               .heads = place->at.count / place->width,
                               .width = place->width};
        return p->activation == SR_PATH_NONE && p->shift == 0;
    }
    return false;
}

bool sr_attention_layer_heads(const sr_attention_layer *layer, sr_head_rows *q, sr_head_rows *k) {
    const srnn_attention *a = &layer->attention;
    return a->score == SRNN_SCORE_EXP && a->feature == SRNN_FEATURE_IDENTITY &&
           a->share == SRNN_SHARE_KV && a->pool == 0 && a->write == SRNN_WRITE_ADD &&
           !layer->wiring.norms[0].name && find_rows(q, layer, SR_OPERAND_Q) &&
           find_rows(k, layer, SR_OPERAND_K);
}

srnn_status sr_attention_layer_largest(const sr_attention_layer *layer, float *largest,
                                       const sr_layer_weights *weights, void *saved) {
    srnn_tensor o;
    const srnn_operands in = sr_attention_layer_operands(layer, &o, weights, saved);
    const sr_layer_dims *d = &layer->dims;
    const bool scaled = layer->attention.scale == SRNN_SCALE_INVERSE_SQRT;
    const sr_scores scores = {.q = in.q,
                              .k = in.k,
                              .positions = layer->positions,
                              .B = layer->B,
                              .H = d->H,
                              .Hkv = d->Hkv,
                              .T = layer->T,
                              .D = d->D,
                              .window = layer->attention.window,
                              .scale = scaled ? (float)(1 / sqrt((double)d->D)) : 1.0f};
    return layer->backend->largest_scores(layer->backend, largest, &scores);
}
