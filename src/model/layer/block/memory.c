/* memory.c: where a block keeps what backward reads, and its scratch. */
#include "model/layer/block/mlp.h"

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t numbers, size_t size) {
    const size_t start = *bytes;
    *bytes += (numbers * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static void *at(char *memory, size_t start) {
    return memory ? memory + start : NULL;
}

/* One walk serves both questions: how many bytes, and where each array stands. The mixer's half:
 * what forward makes between x and middle. */
static void lay_out_mixer_half(sr_block_saved *s, const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C;
    const size_t number = sr_element_bytes(b->backend->number);
    s->mixer = at(memory, take(bytes, sr_mixer_saved_bytes(b->mixer), 1));
    s->normed = at(memory, take(bytes, rows * C, number));
    s->rstd = at(memory, take(bytes, rows, sizeof(float)));
    s->normed_note = at(memory, take(bytes, 1, sizeof *s->normed_note));
    if (!has_branches(b))
        return;
    s->mixed = at(memory, take(bytes, rows * C, sizeof(float)));
    s->post_normed = at(memory, take(bytes, rows * C, number));
}

/* middle, and what follows it. */
static void lay_out_mlp_half(sr_block_saved *s, const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    if (!has_mlp(b))
        return;
    s->middle = at(memory, take(bytes, rows * C, sizeof(float)));
    s->mlp_normed = at(memory, take(bytes, rows * C, number));
    s->mlp_rstd = at(memory, take(bytes, rows, sizeof(float)));
    s->mlp_normed_note = at(memory, take(bytes, 1, sizeof *s->mlp_normed_note));
    s->up = at(memory, take(bytes, rows * (size_t)inner(b), number));
    s->activated = at(memory, take(bytes, rows * F, number));
    if (has_branches(b))
        s->transformed = at(memory, take(bytes, rows * C, sizeof(float)));
    if (!has_experts(b))
        return;
    s->router = at(memory, take(bytes, rows * (size_t)expert_columns(b), number));
    s->weights = at(memory, take(bytes, rows * (size_t)expert_columns(b), sizeof(float)));
    s->expert_in = at(memory, take(bytes, rows * C, number));
    s->expert_out = at(memory, take(bytes, rows * C, sizeof(float)));
    s->places = at(memory, take(bytes, rows, sizeof(int32_t)));
}

size_t sr_block_parts_bytes(const sr_block *block) {
    size_t bytes = 0;
    take(&bytes, SR_ROW_PARTS * 2 * (size_t)block->config->C, sizeof(float));
    return bytes;
}

/* The MLP's arrays and the mixer's scratch share memory: backward is done with the MLP before it
 * begins with the mixer. */
static sr_block_scratch lay_out_scratch(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    sr_block_scratch s = {
        .parts = at(memory, take(bytes, sr_block_parts_bytes(b), 1)),
        .d_normed = at(memory, take(bytes, rows * C, number)),
    };
    if (has_branches(b))
        s.d_branch = at(memory, take(bytes, rows * C, number));
    if (parallel(b))
        s.d_parallel = at(memory, take(bytes, rows * C, number));
    size_t mixer_end = *bytes;
    s.mixer = at(memory, take(&mixer_end, sr_mixer_scratch_bytes(b->mixer), 1));
    s.d_activated = at(memory, take(bytes, rows * F, number));
    s.d_activated_note = at(memory, take(bytes, 1, sizeof *s.d_activated_note));
    s.d_up_note = at(memory, take(bytes, 1, sizeof *s.d_up_note));
    if (gated(b) && plain_norms(b) && sr_block_mlp_of(b)->takes_codes(b))
        s.d_up = at(memory, take(bytes, rows * 2 * F, number));
    if (has_experts(b)) {
        s.d_expert = at(memory, take(bytes, rows * C, number));
        s.d_wide = at(memory, take(bytes, rows * C, sizeof(float)));
        s.d_weights = at(memory, take(bytes, rows * (size_t)expert_columns(b), sizeof(float)));
        s.d_router = at(memory, take(bytes, rows * (size_t)expert_columns(b), number));
    }
    *bytes = *bytes > mixer_end ? *bytes : mixer_end;
    return s;
}

size_t sr_block_mixer_half_bytes(const sr_block *block) {
    sr_block_saved s = {0};
    size_t bytes = 0;
    lay_out_mixer_half(&s, block, NULL, &bytes);
    return bytes;
}

size_t sr_block_mlp_half_bytes(const sr_block *block) {
    sr_block_saved s = {0};
    size_t bytes = 0;
    lay_out_mlp_half(&s, block, NULL, &bytes);
    return bytes;
}

size_t sr_block_saved_bytes(const sr_block *block) {
    return sr_block_mixer_half_bytes(block) + sr_block_mlp_half_bytes(block);
}

sr_block_saved sr_block_saved_split(const sr_block *block, void *mixer_half, void *mlp_half) {
    sr_block_saved s = {0};
    size_t mixer_bytes = 0, mlp_bytes = 0;
    lay_out_mixer_half(&s, block, mixer_half, &mixer_bytes);
    lay_out_mlp_half(&s, block, mlp_half, &mlp_bytes);
    return s;
}

sr_block_saved sr_block_saved_at(const sr_block *block, void *memory) {
    return sr_block_saved_split(block, memory, at(memory, sr_block_mixer_half_bytes(block)));
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
