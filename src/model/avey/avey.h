/* avey.h: Avey (2506.11305), a mixer that is not attention: chunks of a sequence that a ranker
 * finds stand before each chunk, and blocks mix the rows of each such context. */
#ifndef SR_MODEL_AVEY_AVEY_H
#define SR_MODEL_AVEY_AVEY_H

#include "model/layer/tensors.h"
#include "ops/backend.h"

/* What a model of this kind is made of. */
typedef struct sr_avey {
    int chunk;     /* tokens that are looked for and mixed together */
    int chunks;    /* of a context, the last of which is the asking one */
    int expansion; /* rows are so many times wider inside a block */
    double share;  /* of that width which is mixed between rows */
    /* the previous chunk asks. As published the whole current one does, and so later tokens reach
                      earlier ones */
    bool causal;
} sr_avey;

#define SR_AVEY_EPSILON 1e-10 /* of its norms */

/* Reads "avey" or "avey_causal" and changes after it
 * ("avey,chunk=4,chunks=3,expansion=4,share=0.5"); *known is false if the text begins with another
 * name. */
srnn_status sr_avey_parse(sr_avey *avey, bool *known, const char *text);

/* What sr_avey_parse reads back. Like snprintf. */
int sr_avey_print(char *text, size_t size, const sr_avey *avey);

/* Rows of one context; channels of x0, of x1, and of all that a block joins again. */
int64_t sr_avey_rows(const sr_avey *avey);
int64_t sr_avey_mixed(const sr_avey *avey, int C);
int64_t sr_avey_joined(const sr_avey *avey, int C);

/* Appends a block's tensors after its norm. */
srnn_status sr_avey_tensors(sr_tensor_table *table, const char *prefix, const sr_avey *avey, int C);

/* The ranker's part of B sequences of N chunks, without its pointers; sequences follow each
 * other. */
sr_ranking sr_avey_ranking(const sr_avey *avey, int64_t B, int64_t N, int C);

/* ---- a block's mixer, over any number of contexts */

typedef struct sr_avey_layer sr_avey_layer;

srnn_status sr_avey_layer_create(sr_avey_layer **layer, sr_backend *backend, const sr_avey *avey,
                                 int C, int64_t rows);
void sr_avey_layer_free(sr_avey_layer *layer);
size_t sr_avey_layer_saved_bytes(const sr_avey_layer *layer);
size_t sr_avey_layer_scratch_bytes(const sr_avey_layer *layer);

/* As in layer/attention.h. */
srnn_status sr_avey_layer_attend(sr_avey_layer *layer, sr_matrix x, const sr_layer_weights *weights,
                                 void *saved);
srnn_status sr_avey_layer_finish(sr_avey_layer *layer, sr_matrix y, sr_matrix addend,
                                 const sr_layer_weights *weights, void *saved);
/* Its parameters are forward's, and a gradient for each. */
srnn_status sr_avey_layer_backward(sr_avey_layer *layer, sr_matrix d_x,
                                   const sr_layer_pointers *gradients, sr_matrix d_y, sr_matrix x,
                                   const sr_layer_weights *weights, void *saved, void *scratch);

#endif
