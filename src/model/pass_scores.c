/* pass_scores.c: the largest scores of the layers of a pass. */
#include "model/pass_parts.h"

bool sr_pass_heads(const sr_pass *pass, int layer, sr_head_rows *q, sr_head_rows *k) {
    const sr_attention_layer *attention = pass->blocks[layer].mixer->attention;
    return attention && sr_attention_layer_heads(attention, q, k) &&
           q->heads == pass->model->config.H;
}

srnn_status sr_pass_watch_scores(sr_pass *pass, float *largest) {
    const sr_model_config *c = &pass->model->config;
    sr_head_rows q, k;
    int watched = 0;
    if (pass->part.count > 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "qk-clip needs the largest score of whole rows, and a context rank does not "
                       "keep the keys of the parts before: use data-parallel ranks");
    for (int layer = 0; layer < c->L; layer++)
        if (sr_pass_heads(pass, layer, &q, &k)) {
            pass->blocks[layer].largest = largest + (int64_t)layer * c->H;
            watched++;
        }
    return watched ? SRNN_OK
                   : SR_FAIL(SRNN_ERR_UNSUPPORTED,
                             "no layer has scores to clip: they would be exp of products of two "
                             "projections, without norms, features or convolutions between");
}
