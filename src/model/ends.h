/* ends.h (private): the parts of a model before its first block and after its last: embedding,
 * norm, head. */
#ifndef SR_MODEL_ENDS_H
#define SR_MODEL_ENDS_H

#include "model/model.h"

/* x (rows, C), float = the embeddings of ids. */
srnn_status sr_ends_embed(const sr_model *model, sr_matrix x, const int32_t *ids);

/* Adds to the embedding's gradient (V, C), given d_x (rows, C), float, which is overwritten. */
srnn_status sr_ends_embed_back(const sr_model *model, float *d_embedding, sr_matrix d_x,
                               const int32_t *ids);

/* True if the last norm is RMS norm with its weight as it is, and logits are the head's product:
 * backends have both in one. */
bool sr_ends_are_plain(const sr_model_config *config);

/* The last norm as backends fuse it; x (rows, C), rstd (rows). */
sr_rmsnorm sr_ends_rmsnorm(const sr_model *model, const float *x, float *rstd, int64_t rows);

/* normed (rows, C), number type = the last norm of norm->x. */
srnn_status sr_ends_norm(const sr_model *model, void *normed, const sr_rmsnorm *norm);

/* Adds the gradient of norm->x to out->d_x, and writes a copy to out->narrow; gradients of
 * the weight and of d_bias are added to. out->scratch: (SR_ROW_PARTS, 2C). */
srnn_status sr_ends_norm_back(const sr_model *model, const sr_rmsnorm_gradient *out, float *d_bias,
                              const void *d_normed, const sr_rmsnorm *norm);

/* Applies multiplier and cap to the head's product, in place. */
srnn_status sr_ends_logits(const sr_model *model, sr_matrix logits);

/* The gradient of the head's product from that of `logits`, in place. */
srnn_status sr_ends_logits_back(const sr_model *model, sr_matrix d_logits, sr_matrix logits);

#endif
