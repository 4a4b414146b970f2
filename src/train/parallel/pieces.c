/* pieces.c: cuts a model's parameters into the pieces that ranks exchange. */
#include "train/parallel/pieces.h"

#include "base/memory.h"

#include <limits.h>
#include <stdlib.h>

enum {
    PIECE_NUMBERS = 1 << 22, /* at most, a multiple of SR_SQUARES_UNIT */
    PIECES_MAX = INT_MAX / 2,
};

static int64_t up_to_unit(int64_t number) {
    return sr_units(number) * SR_SQUARES_UNIT;
}

/* starts (L + 1): the first element of each layer, at its input norm, and of the tensors after the
 * last layer, whose gradients are ready first. If the table is in another order, starts are the end
 * of the arena, so that every piece counts as ready only after the embedding. */
static void find_layers(int64_t *starts, const sr_model *model) {
    const int L = model->config.L;
    int layer = 0;
    for (int i = 0; i <= L; i++)
        starts[i] = (int64_t)model->table.numbers;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        if (spec->slot == SR_BLOCK_INPUT_NORM && layer < L)
            starts[layer++] = (int64_t)spec->start;
        else if (layer == L && spec->slot >= SR_BLOCK_SLOTS && starts[L] > (int64_t)spec->start)
            starts[L] = (int64_t)spec->start;
    }
}

/* Fills `pieces` unless it is NULL; returns their number. */
static size_t cut(sr_piece *pieces, const int64_t *starts, const sr_model *model) {
    size_t count = 0;
    int64_t end = (int64_t)model->table.numbers;
    for (int layer = model->config.L; layer >= -1; layer--) {
        const int64_t first = layer < 0 ? 0 : up_to_unit(starts[layer]);
        while (end > first) {
            const int64_t begin =
                end - first > PIECE_NUMBERS ? up_to_unit(end) - PIECE_NUMBERS : first;
            if (pieces)
                pieces[count] = (sr_piece){begin, end - begin, layer};
            count++;
            end = begin;
        }
    }
    return count;
}

srnn_status sr_pieces_cut(sr_piece **pieces, size_t *count, const sr_model *model) {
    void *starts, *memory = NULL;
    *pieces = NULL;
    SR_TRY(sr_alloc(&starts, (size_t)model->config.L + 1, sizeof(int64_t)));
    find_layers(starts, model);
    *count = cut(NULL, starts, model);
    srnn_status status = SRNN_OK;
    if (*count > PIECES_MAX)
        status = SR_FAIL(SRNN_ERR_LIMIT, "a model of %zu numbers is too large for ranks",
                         model->table.numbers);
    if (status == SRNN_OK)
        status = sr_alloc(&memory, *count, sizeof **pieces);
    if (status == SRNN_OK)
        (void)cut(memory, starts, model);
    free(starts);
    *pieces = memory;
    return status;
}
