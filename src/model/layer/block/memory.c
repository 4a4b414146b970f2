/* memory.c: where a block keeps what backward reads, and its scratch. */
#include "model/layer/block/shape.h"

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t numbers, size_t size) {
    const size_t start = *bytes;
    *bytes += (numbers * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static void *at(char *memory, size_t start) {
    return memory ? memory + start : NULL;
}

/* One walk serves both questions: how many bytes, and where each array stands. */
static sr_block_saved lay_out_saved(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    const size_t mixer = take(bytes, sr_mixer_saved_bytes(b->mixer), 1);
    sr_block_saved s = {
        .mixer = at(memory, mixer),
        .normed = at(memory, take(bytes, rows * C, number)),
        .rstd = at(memory, take(bytes, rows, sizeof(float))),
        .middle = at(memory, take(bytes, rows * C, sizeof(float))),
        .mlp_normed = at(memory, take(bytes, rows * C, number)),
        .mlp_rstd = at(memory, take(bytes, rows, sizeof(float))),
        .up = at(memory, take(bytes, rows * (size_t)inner(b), number)),
        .activated = at(memory, take(bytes, rows * F, number)),
    };
    if (has_branches(b)) {
        s.mixed = at(memory, take(bytes, rows * C, sizeof(float)));
        s.transformed = at(memory, take(bytes, rows * C, sizeof(float)));
        s.post_normed = at(memory, take(bytes, rows * C, number));
    }
    return s;
}

static sr_block_scratch lay_out_scratch(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    const size_t mixer = take(bytes, sr_mixer_scratch_bytes(b->mixer), 1);
    sr_block_scratch s = {
        .mixer = at(memory, mixer),
        .d_normed = at(memory, take(bytes, rows * C, number)),
        .d_activated = at(memory, take(bytes, rows * F, number)),
        .parts = at(memory, take(bytes, SR_ROW_PARTS * 2 * C, sizeof(float))),
    };
    s.d_up = gated(b) ? at(memory, take(bytes, rows * 2 * F, number)) : s.d_activated;
    if (has_branches(b))
        s.d_branch = at(memory, take(bytes, rows * C, number));
    if (parallel(b))
        s.d_parallel = at(memory, take(bytes, rows * C, number));
    return s;
}

size_t sr_block_saved_bytes(const sr_block *block) {
    size_t bytes = 0;
    lay_out_saved(block, NULL, &bytes);
    return bytes;
}

sr_block_saved sr_block_saved_at(const sr_block *block, void *memory) {
    size_t bytes = 0;
    return lay_out_saved(block, memory, &bytes);
}

size_t sr_block_scratch_bytes(const sr_block *block) {
    size_t bytes = 0;
    lay_out_scratch(block, NULL, &bytes);
    return bytes;
}

sr_block_scratch sr_block_scratch_at(const sr_block *block, void *memory) {
    size_t bytes = 0;
    return lay_out_scratch(block, memory, &bytes);
}
