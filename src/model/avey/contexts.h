/* contexts.h (private): the rows that the blocks of an Avey model see in place of a batch's:
 * contexts are gathered from the embedded tokens, and each token's row is read back. */
#ifndef SR_MODEL_AVEY_CONTEXTS_H
#define SR_MODEL_AVEY_CONTEXTS_H

#include "model/avey/avey.h"
#include "model/model.h"

typedef struct sr_contexts sr_contexts;

/* For batches of B sequences of up to T tokens. *contexts stays NULL for models whose blocks
 * see the rows of the batch. The model must outlive it. */
srnn_status sr_contexts_create(sr_contexts **contexts, sr_model *model, int B, int T);
void sr_contexts_free(sr_contexts *contexts); /* accepts NULL */

/* SRNN_OK if every document is a whole row, as a context needs it. */
srnn_status sr_contexts_check_documents(const sr_contexts *contexts, const int64_t *offsets,
                                        int64_t documents);

/* Rows of all contexts, and bytes held. */
int64_t sr_contexts_rows(const sr_contexts *contexts);
size_t sr_contexts_bytes(const sr_contexts *contexts);

/* x (rows, C) = the contexts of ids (B, T); all in device memory, as below. */
srnn_status sr_contexts_make(sr_contexts *contexts, float *x, const int32_t *ids);

/* out (B * T, C) = each token's row in the context of its own chunk; sr_contexts_read_back
 * adds the gradient to d_x (rows, C). */
srnn_status sr_contexts_read(const sr_contexts *contexts, float *out, const float *x);
srnn_status sr_contexts_read_back(const sr_contexts *contexts, float *d_x, const float *d_out);

/* Adds to d_embedding (V, C), given the gradient of the contexts last made. */
srnn_status sr_contexts_make_back(sr_contexts *contexts, float *d_embedding, const float *d_x);

#endif
