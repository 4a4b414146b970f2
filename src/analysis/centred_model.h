/* centred_model.h: a model whose layers truncate the series of exp about a centre, in double. */
#ifndef SR_ANALYSIS_CENTRED_MODEL_H
#define SR_ANALYSIS_CENTRED_MODEL_H

#include "analysis/survey.h"
#include "analysis/truncated_model.h"

/* True if every layer that has orders is plain softmax: others are not truncated about a centre. */
bool sr_model_has_centres(const sr_model_config *config);

/* As sr_trial_run with all layers, each truncated about this centre, for models that have centres.
 * `order` is one of sr_cut_order's; the survey knows the heads' centres. */
srnn_status sr_trial_run_centred(double *loss, double *error, const sr_trial *trial,
                                 sr_model *model, const sr_survey *survey, sr_centre centre,
                                 int order);

#endif
