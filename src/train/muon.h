/* muon.h (private): Muon for the matrices of a model's layers: Jordan et al., "Muon: an optimizer
 * for hidden layers", 2024, with the step size and weight decay of Liu et al., "Muon is scalable
 * for LLM training", 2025, so that AdamW's learning rates can be used.
 *
 *     M = momentum M + (1 - momentum) G,   U = momentum M + (1 - momentum) G
 *     O = NewtonSchulz5(U),   W = (1 - lr wd) W - 0.2 sqrt(max(rows, columns)) lr O */
#ifndef SR_TRAIN_MUON_H
#define SR_TRAIN_MUON_H

#include "model/model.h"

typedef struct sr_muon sr_muon;

typedef struct sr_muon_settings {
    double momentum, weight_decay;
    bool decay_all; /* weight decay for all tensors, also those that are usually exempt */
} sr_muon_settings;

/* Allocates all memory. The model must outlive it, and be in host memory. */
srnn_status sr_muon_create(sr_muon **muon, const sr_model *model, const sr_muon_settings *settings);
void sr_muon_free(sr_muon *muon);
size_t sr_muon_bytes(const sr_muon *muon);

/* The other parameters, which AdamW updates, as ranges of the arena in order. */
const sr_number_range *sr_muon_others(const sr_muon *muon, size_t *count);

/* Updates all matrices. `mean` and `gradient` (numbers) are laid out like the arena; the gradient
 * is multiplied by `scale`. */
srnn_status sr_muon_update(sr_muon *muon, sr_model *model, float *mean, const float *gradient,
                           double scale, double learning_rate);

#endif
