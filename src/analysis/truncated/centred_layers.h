/* centred_layers.h (private): recomputes layers with the series of exp truncated about a centre, in
 * double. */
#ifndef SR_ANALYSIS_TRUNCATED_CENTRED_LAYERS_H
#define SR_ANALYSIS_TRUNCATED_CENTRED_LAYERS_H

#include "analysis/truncated/model.h"

/* True if the layer is truncated about a centre other than zero and its attention allows that. */
bool sr_is_centred(const srnn_attention *attention, sr_cut cut);

typedef struct sr_centred_layers sr_centred_layers;

/* For passes of the model over (B, T); cuts (L). All arguments must outlive it. */
srnn_status sr_centred_layers_create(sr_centred_layers **layers, const sr_model *model,
                                     const sr_survey *survey, const sr_cut *cuts, int B, int T);
void sr_centred_layers_free(sr_centred_layers *layers);

/* Replaces the outputs of the layers that are truncated about a centre. */
sr_observer sr_centred_layers_observer(sr_centred_layers *layers);

#endif
