/* mlp.h (private): the kinds of MLP of a block. */
#ifndef SR_MODEL_LAYER_BLOCK_MLP_H
#define SR_MODEL_LAYER_BLOCK_MLP_H

#include "model/layer/block/shape.h"

typedef struct sr_block_mlp {
    /* What backward reads of what the MLP reads; and the same given the norm before it, where that
     * is plain: mlp_normed is written as well. */
    srnn_status (*activate)(const sr_block *block, const sr_block_saved *saved);
    srnn_status (*activate_norm)(const sr_block *block, const sr_block_saved *saved,
                                 const sr_rmsnorm *norm);
    /* to (rows, C) = from + the MLP's output; from may be `to`; NULL: zero. */
    srnn_status (*add)(const sr_block *block, float *to, float *from, const sr_block_saved *saved);
    /* d_normed = the gradient of what the MLP reads, from that of its output (rows, C), number
     * type; adds to the gradients. */
    srnn_status (*back)(const sr_block *block, sr_matrix d_output,
                        const sr_block_pointers *gradient, const sr_block_saved *saved,
                        const sr_block_scratch *scratch);
    /* Whether it reads its input as SR_HANDED_CODES. */
    bool (*takes_codes)(const sr_block *block);
    /* Whether the gradient of its output may be SR_HANDED_CODES. */
    bool (*takes_gradient_codes)(const sr_block *block);
} sr_block_mlp;

extern const sr_block_mlp sr_block_mlp_plain, sr_block_mlp_experts;

static inline const sr_block_mlp *sr_block_mlp_of(const sr_block *b) {
    return has_experts(b) ? &sr_block_mlp_experts : &sr_block_mlp_plain;
}

/* out (rows, F) = the activation of x (rows, F or 2F), after the gate in x was multiplied by its
 * factor; and backward. */
srnn_status sr_block_activate(const sr_block *block, sr_matrix out, sr_matrix x);
srnn_status sr_block_activate_back(const sr_block *block, sr_matrix d_x, sr_matrix d_out,
                                   sr_matrix x, const sr_block_pointers *gradient);

/* What enters a product; the residual stream; what the MLP reads. */
static inline sr_matrix numbers(const sr_block *b, void *data, int64_t columns) {
    return sr_matrix_of(data, b->rows, columns, b->backend->number);
}

static inline sr_matrix residual(const sr_block *b, float *data) {
    return sr_matrix_of(data, b->rows, b->config->C, SRNN_F32);
}

/* What enters a product, in 8 bits or not. */
static inline sr_matrix handed(const sr_block *b, void *data, int64_t columns, bool codes,
                               sr_matrix_note *note) {
    return sr_matrix_handed(numbers(b, data, columns), codes ? SR_HANDED_CODES : SR_HANDED_NUMBERS,
                            note);
}

static inline bool mlp_takes_codes(const sr_block *b, const sr_block_saved *s) {
    return s->codes && plain_norms(b) && sr_block_mlp_of(b)->takes_codes(b);
}

static inline sr_matrix mlp_input(const sr_block *b, const sr_block_saved *s) {
    return parallel(b)
               ? numbers(b, s->normed, b->config->C)
               : handed(b, s->mlp_normed, b->config->C, mlp_takes_codes(b, s), s->mlp_normed_note);
}

static inline sr_linear linear_of(const sr_block *b, sr_block_slot weight, int64_t N) {
    return (sr_linear){.weight = sr_block_at(b->worker, weight),
                       .bias = sr_block_at(b->master, weight + 1),
                       .N = N,
                       .narrow = b->narrow};
}

static inline sr_linear_gradient gradient_of(const sr_block_pointers *gradient,
                                             sr_block_slot weight, int64_t N) {
    return (sr_linear_gradient){sr_block_at(gradient, weight), sr_block_at(gradient, weight + 1),
                                N};
}

#endif
