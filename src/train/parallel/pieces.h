/* pieces.h (private): cuts a model's parameters into the pieces that ranks exchange.
 *
 * The end of the arena comes first, because the last layer's gradient is ready first. */
#ifndef SR_TRAIN_PARALLEL_PIECES_H
#define SR_TRAIN_PARALLEL_PIECES_H

#include "model/model.h"

typedef struct sr_piece {
    int64_t first, count; /* elements of the arena; `first` is a multiple of SR_SQUARES_UNIT */
    int layer;            /* its gradient is ready when backward has passed this layer */
} sr_piece;

/* Number of units of SR_SQUARES_UNIT elements, rounded up. */
static inline int64_t sr_units(int64_t numbers) {
    return (numbers + SR_SQUARES_UNIT - 1) / SR_SQUARES_UNIT;
}

/* *pieces (count) = all of the model's parameters; free() them. */
srnn_status sr_pieces_cut(sr_piece **pieces, size_t *count, const sr_model *model);

#endif
