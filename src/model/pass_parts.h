/* pass_parts.h (private): a pass from within: what its files share. */
#ifndef SR_MODEL_PASS_PARTS_H
#define SR_MODEL_PASS_PARTS_H

#include "model/avey/contexts.h"
#include "model/layer/kinds.h"
#include "model/pass.h"

struct sr_pass {
    sr_model *model;
    sr_backend *backend;
    sr_pass_setup setup;
    sr_pass *teacher; /* of the lesson, owned; NULL: none */
    int64_t rows;
    int64_t block_rows;    /* that the blocks see: `rows`, or those of the contexts */
    sr_contexts *contexts; /* what the blocks see instead of the batch's rows; NULL: those */
    sr_layer_kinds kinds;
    sr_block *blocks;      /* (L) */
    sr_block_saved *saved; /* (L); what is not kept for backward shares one memory */
    void *scratch;       /* of backward; each layer's kind lays it out its own way. Before the first
                            * layer goes back: x, normed, d_normed */
    float *first_values; /* (rows, columns of v): of RWKV-7's first layer; or NULL */
    float *d_first_values; /* the same */
    float *gradients;
    sr_model_pointers gradient;
    int32_t *ids, *targets, *positions; /* (rows), device memory */
    int32_t *host_positions;            /* (rows) */
    int64_t *offsets; /* (rows + 1), of parts of rows, as in sr_documents; else NULL */
    int32_t *before;  /* (B): the same */
    int32_t *starts;  /* (rows), device memory: zeros, of sr_pass_isolate; or NULL */
    sr_row_part part;
    float *losses;        /* (rows), device memory */
    float *stream_errors; /* (rows): of sr_lesson_streams_back, not read; or NULL */
    int32_t *hits;        /* (rows), device memory */
    int32_t *host_hits;   /* (rows) */
    float *x;             /* (rows, C): what the last norm reads */
    float *last;          /* (block_rows, C): the last layer's output, often x */
    void *normed;         /* (rows, C), number type: the last norm's */
    float *rstd;          /* (rows) */
    void *d_normed;       /* (rows, C), number type */
    sr_block_gradient d;  /* (block_rows, C) */
    float *d_x;           /* (rows, C): the gradient of x, often d.wide */
    void *logits;         /* (logit_rows, V), number type */
    void *
        d_logits; /* (logit_rows, V): their gradient in SR_HANDED_CODES, where the loss writes it */
    sr_matrix_note *d_logits_note; /* so; both NULL: it takes the place of the logits */
    void *capped;                  /* the same once more, for the gradient of capped ones */
    int64_t logit_rows;
    sr_step_stats *stats; /* of sr_pass_step, or NULL */
    float scale;
    sr_graph step; /* of sr_pass_step */
    void **memory; /* everything from the device, for freeing */
    size_t memories, bytes;
};

/* Checks a batch and copies it to the device, to the teacher too; targets may be NULL. */
srnn_status sr_pass_load(sr_pass *pass, const int32_t *ids, const int32_t *targets);

/* From the loaded ids to what the first block reads; to pass->normed. */
srnn_status sr_pass_embed(sr_pass *pass);
srnn_status sr_pass_forward(sr_pass *pass);

/* pass->logits (rows of the tile from `first` on, V), of pass->normed. */
srnn_status sr_pass_logits_tile(sr_pass *pass, sr_matrix *logits, sr_matrix *normed, int64_t first);

/* ---- the teacher */

/* Fails where student and teacher cannot be compared; makes pass->teacher. Nothing without a
 * teacher. */
srnn_status sr_lesson_begin(sr_pass *pass);

/* True if the pass trains each layer by itself: nothing but one layer's activations is kept. */
static inline bool sr_lesson_is_layerwise(const sr_pass *pass) {
    return pass->setup.lesson.objective == SR_OBJECTIVE_LAYERS;
}

/* Divergence of the rows of a tile of the student's logits from the teacher's, whose forward
 * pass is done; as sr_backend's. */
srnn_status sr_lesson_diverge(sr_pass *pass, sr_matrix logits, int64_t first, float scale);

/* Whether the lesson compares residual streams. Then, after both forward passes: adds how far they
 * are apart to pass->losses; and on the way back, adds the gradient of that after `layer` to
 * pass->d. */
static inline bool sr_lesson_has_streams(const sr_pass *pass) {
    return pass->setup.lesson.hidden_weight > 0;
}
srnn_status sr_lesson_streams(sr_pass *pass);
srnn_status sr_lesson_streams_back(sr_pass *pass, int layer);

/* The errors of all layers in pass->losses, and their gradients, which are then final. */
srnn_status sr_lesson_layers(sr_pass *pass);

#endif
