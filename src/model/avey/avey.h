/* avey.h: Avey (2506.11305), a mixer that is not attention: a ranker retrieves similar earlier
 * chunks, which precede each chunk as its context, and blocks mix the rows of each context. */
#ifndef SR_MODEL_AVEY_AVEY_H
#define SR_MODEL_AVEY_AVEY_H

#include "model/layer/tensors.h"
#include "ops/backend.h"

/* The settings of a model of this kind. */
typedef struct sr_avey {
    int chunk;     /* tokens of a chunk, the unit of retrieval */
    int chunks;    /* chunks of a context: the retrieved ones, then the current one */
    int expansion; /* width inside a block over the model's width */
    double share;  /* share of that width that is mixed between rows */
    /* The previous chunk is the query. As published it is the whole current one, so that earlier
     * tokens depend on later ones. */
    bool causal;
} sr_avey;

#define SR_AVEY_EPSILON 1e-10 /* of the norms */

/* Reads "avey" or "avey_causal" and changes after it
 * ("avey,chunk=4,chunks=3,expansion=4,share=0.5"); *known is false if the text begins with another
 * name. */
srnn_status sr_avey_parse(sr_avey *avey, bool *known, const char *text);

/* What sr_avey_parse reads back. Like snprintf. */
int sr_avey_print(char *text, size_t size, const sr_avey *avey);

/* Rows of one context; channels of x0, which are those of x1; channels that the fuser reads. */
int64_t sr_avey_rows(const sr_avey *avey);
int64_t sr_avey_mixed(const sr_avey *avey, int C);
int64_t sr_avey_joined(const sr_avey *avey, int C);

/* Appends a block's tensors after its norm. */
srnn_status sr_avey_tensors(sr_tensor_table *table, const char *prefix, const sr_avey *avey, int C);

/* The ranker's part of B sequences of N chunks, without its pointers; sequences follow each
 * other. */
sr_ranking sr_avey_ranking(const sr_avey *avey, int64_t B, int64_t N, int C);

/* *mixer = that of a block, over any number of contexts of `rows` rows in all. */
struct sr_mixer;
srnn_status sr_mixer_of_avey(struct sr_mixer *mixer, sr_backend *backend, const sr_avey *avey,
                             int C, int64_t rows);

#endif
