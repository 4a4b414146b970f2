/* centred_layers.h (private): layers that truncate the series of exp about a centre, in double, in
 * the place of what a model made. */
#ifndef SR_ANALYSIS_TRUNCATED_CENTRED_LAYERS_H
#define SR_ANALYSIS_TRUNCATED_CENTRED_LAYERS_H

#include "analysis/truncated/model.h"

/* True if such a layer is cut about a centre other than zero, one that its attention leaves
 * free. */
bool sr_is_centred(const srnn_attention *attention, sr_cut cut);

typedef struct sr_centred_layers sr_centred_layers;

/* For passes of the model over (B, T); cuts (L). All that is given must outlive it. */
srnn_status sr_centred_layers_create(sr_centred_layers **layers, const sr_model *model,
                                     const sr_survey *survey, const sr_cut *cuts, int B, int T);
void sr_centred_layers_free(sr_centred_layers *layers);

/* Replaces what the layers that are cut about a centre made. */
sr_observer sr_centred_layers_observer(sr_centred_layers *layers);

#endif
