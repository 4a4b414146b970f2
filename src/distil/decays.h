/* decays.h (private): decays of a student that start from the distances at which its teacher
 * looks. */
#ifndef SR_DISTIL_DECAYS_H
#define SR_DISTIL_DECAYS_H

#include "model/model.h"
#include "train/run/settings.h"

/* Starts the decay of every head of the layers `replaced` (L) so that weights which fall by it
 * alone have the mean distance between query and key of the teacher's head: d / (1 + d) per token.
 * The distances are measured on the first tokens of the first training rows of the settings. *set:
 * numbers that were set; layers without a decay, or without a part of it that does not depend on
 * the token, stay as they are. */
srnn_status sr_student_start_decays(sr_model *student, size_t *set, const sr_run_settings *settings,
                                    const bool *replaced);

#endif
