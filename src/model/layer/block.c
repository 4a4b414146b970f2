/* block.c: one decoder layer, forward and backward. */
#include "model/layer/block.h"

#include "model/layer/observe.h"

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t numbers, size_t size) {
    const size_t start = *bytes;
    *bytes += (numbers * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static void *at(char *memory, size_t start) {
    return memory ? memory + start : NULL;
}

static bool has_mlp(const sr_block *b) {
    return sr_model_config_has_mlp(b->config);
}

static bool gated(const sr_block *b) {
    return has_mlp(b) && b->config->mlp == SR_MLP_SWIGLU;
}

static int64_t mlp_width(const sr_block *b) {
    return has_mlp(b) ? b->config->F : 0;
}

/* Columns of what the MLP multiplies its input with first. */
static int64_t inner(const sr_block *b) {
    return (gated(b) ? 2 : 1) * mlp_width(b);
}

/* One walk serves both questions: how many bytes, and where each array stands. */
static sr_block_saved lay_out_saved(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    const size_t mixer = take(bytes, sr_mixer_saved_bytes(b->mixer), 1);
    return (sr_block_saved){
        .mixer = at(memory, mixer),
        .normed = at(memory, take(bytes, rows * C, number)),
        .rstd = at(memory, take(bytes, rows, sizeof(float))),
        .middle = at(memory, take(bytes, rows * C, sizeof(float))),
        .mlp_normed = at(memory, take(bytes, rows * C, number)),
        .mlp_rstd = at(memory, take(bytes, rows, sizeof(float))),
        .up = at(memory, take(bytes, rows * (size_t)inner(b), number)),
        .activated = at(memory, take(bytes, rows * F, number)),
    };
}

static sr_block_scratch lay_out_scratch(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)mlp_width(b);
    const size_t number = sr_element_bytes(b->backend->number);
    const size_t mixer = take(bytes, sr_mixer_scratch_bytes(b->mixer), 1);
    sr_block_scratch s = {
        .mixer = at(memory, mixer),
        .d_normed = at(memory, take(bytes, rows * C, number)),
        .d_activated = at(memory, take(bytes, rows * F, number)),
        .parts = at(memory, take(bytes, SR_ROW_PARTS * C, sizeof(float))),
    };
    s.d_up = gated(b) ? at(memory, take(bytes, rows * 2 * F, number)) : s.d_activated;
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

/* What enters a product; the residual stream. */
static sr_matrix numbers(const sr_block *b, void *data, int64_t columns) {
    return sr_matrix_of(data, b->rows, columns, b->backend->number);
}

static sr_matrix residual(const sr_block *b, float *data) {
    return sr_matrix_of(data, b->rows, b->config->C, SRNN_F32);
}

static sr_rmsnorm norm_of(const sr_block *b, const float *x, sr_block_slot weight, float *rstd) {
    return (sr_rmsnorm){.x = x,
                        .weight = sr_block_at(b->master, weight),
                        .rstd = rstd,
                        .epsilon = (float)b->config->norm_epsilon,
                        .rows = b->rows,
                        .C = b->config->C};
}

static sr_linear linear_of(const sr_block *b, sr_block_slot weight, int64_t N) {
    return (sr_linear){sr_block_at(b->worker, weight), sr_block_at(b->master, weight + 1), N};
}

static sr_linear_gradient gradient_of(const sr_block_pointers *gradient, sr_block_slot weight,
                                      int64_t N) {
    return (sr_linear_gradient){sr_block_at(gradient, weight), sr_block_at(gradient, weight + 1),
                                N};
}

static sr_layer_weights attention_weights(const sr_block *b) {
    return (sr_layer_weights){&b->master->attention, &b->worker->attention};
}

/* activated = the MLP's inner activation of mlp_normed. */
static srnn_status activate(const sr_block *b, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const int64_t F = b->config->F;
    const sr_linear layers[] = {linear_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                linear_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_matrix up = numbers(b, s->up, inner(b)), activated = numbers(b, s->activated, F);
    const int skipped = gated(b) ? 0 : 1;
    SR_TRY(backend->linear_forward(backend, up, (sr_matrix){0},
                                   numbers(b, s->mlp_normed, b->config->C), layers + skipped,
                                   2 - skipped));
    return gated(b) ? backend->swiglu_forward(backend, activated, up)
                    : backend->gelu_forward(backend, activated, up);
}

/* The same of the norm itself, with mlp_normed as room for it. */
static srnn_status activate_norm(const sr_block *b, const sr_block_saved *s,
                                 const sr_rmsnorm *norm) {
    sr_backend *backend = b->backend;
    const int64_t F = b->config->F;
    const sr_linear layers[] = {linear_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                linear_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_norm_linear of = {
        .norm = *norm, .normed = s->mlp_normed, .layers = layers, .count = 2};
    if (gated(b))
        return backend->norm_swiglu_forward(backend, numbers(b, s->activated, F),
                                            numbers(b, s->up, inner(b)), &of);
    SR_TRY(backend->rmsnorm_forward(backend, s->mlp_normed, norm));
    return activate(b, s);
}

/* to = from + the MLP's output for what is activated. */
static srnn_status mlp_finish(const sr_block *b, float *to, float *from, const sr_block_saved *s) {
    const sr_linear down = linear_of(b, SR_BLOCK_DOWN_WEIGHT, b->config->C);
    return b->backend->linear_forward(b->backend, residual(b, to), residual(b, from),
                                      numbers(b, s->activated, b->config->F), &down, 1);
}

/* to = x + the mixer's output for normed; NULL: only what it saves. */
static srnn_status attend(const sr_block *b, float *to, const sr_block_saved *s) {
    const sr_layer_weights weights = attention_weights(b);
    const sr_matrix normed = numbers(b, s->normed, b->config->C);
    SR_TRY(sr_mixer_attend(b->mixer, normed, &weights, s->mixer));
    if (b->observer.see && b->mixer->attention)
        SR_TRY(sr_block_observe(b, &weights, s->mixer));
    return to ? sr_mixer_finish(b->mixer, residual(b, to), residual(b, s->x), normed, &weights,
                                s->mixer)
              : SRNN_OK;
}

srnn_status sr_block_forward(const sr_block *b, float *out, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const sr_rmsnorm input = norm_of(b, s->x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    SR_TRY(backend->rmsnorm_forward(backend, s->normed, &input));
    if (!has_mlp(b))
        return attend(b, out, s);
    SR_TRY(attend(b, s->middle, s));
    SR_TRY(backend->rmsnorm_forward(backend, s->mlp_normed, &middle));
    SR_TRY(activate(b, s));
    return out ? mlp_finish(b, out, s->middle, s) : SRNN_OK;
}

/* From the gradient of the output to d_normed, the gradient of mlp_normed. */
static srnn_status mlp_back(const sr_block *b, sr_block_gradient d,
                            const sr_block_pointers *gradient, const sr_block_saved *s,
                            const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C, F = b->config->F;
    const int skipped = gated(b) ? 0 : 1, count = 2 - skipped;
    const sr_linear layers[] = {linear_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                linear_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_linear_gradient d_layers[] = {gradient_of(gradient, SR_BLOCK_GATE_WEIGHT, F),
                                           gradient_of(gradient, SR_BLOCK_UP_WEIGHT, F)};
    const sr_linear down = linear_of(b, SR_BLOCK_DOWN_WEIGHT, C);
    const sr_linear_gradient d_down = gradient_of(gradient, SR_BLOCK_DOWN_WEIGHT, C);
    const sr_matrix d_out = numbers(b, d.narrow, C);
    const sr_matrix up = numbers(b, s->up, inner(b)), d_up = numbers(b, scratch->d_up, inner(b));
    const sr_matrix d_activated = numbers(b, scratch->d_activated, F);
    SR_TRY(backend->linear_backward_input(backend, d_activated, d_out, &down, 1));
    SR_TRY(
        backend->linear_backward_weight(backend, &d_down, 1, d_out, numbers(b, s->activated, F)));
    SR_TRY(gated(b) ? backend->swiglu_backward(backend, d_up, d_activated, up)
                    : backend->gelu_backward(backend, d_up, d_activated, up));
    SR_TRY(backend->linear_backward_input(backend, numbers(b, scratch->d_normed, C), d_up,
                                          layers + skipped, count));
    return backend->linear_backward_weight(backend, d_layers + skipped, count, d_up,
                                           numbers(b, s->mlp_normed, C));
}

static srnn_status norm_back(const sr_block *b, sr_block_gradient d,
                             const sr_block_pointers *gradient, const sr_block_scratch *scratch,
                             const sr_rmsnorm *norm, sr_block_slot weight) {
    const sr_rmsnorm_gradient out = {d.wide, d.narrow, sr_block_at(gradient, weight),
                                     scratch->parts};
    return b->backend->rmsnorm_backward(b->backend, &out, scratch->d_normed, norm);
}

srnn_status sr_block_backward(const sr_block *b, sr_block_gradient d,
                              const sr_block_pointers *gradient, const sr_block_saved *s,
                              const sr_block_scratch *scratch) {
    const int64_t C = b->config->C;
    const sr_layer_weights weights = attention_weights(b);
    const sr_rmsnorm input = norm_of(b, s->x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    if (has_mlp(b)) {
        SR_TRY(mlp_back(b, d, gradient, s, scratch));
        SR_TRY(norm_back(b, d, gradient, scratch, &middle, SR_BLOCK_MLP_NORM));
    }
    SR_TRY(sr_mixer_backward(b->mixer, numbers(b, scratch->d_normed, C), &gradient->attention,
                             numbers(b, d.narrow, C), numbers(b, s->normed, C), &weights, s->mixer,
                             scratch->mixer));
    return norm_back(b, d, gradient, scratch, &input, SR_BLOCK_INPUT_NORM);
}

srnn_status sr_block_feed(const sr_block *b, float *x, sr_layer_state *state,
                          const sr_block_saved *s, const sr_layer_piece_place *place) {
    const sr_layer_weights weights = attention_weights(b);
    const sr_rmsnorm input = norm_of(b, x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, x, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    const sr_layer_piece_place here = {place->T, place->positions, s->mixer, &input};
    SR_TRY(sr_layer_state_run(state, residual(b, x), numbers(b, s->normed, b->config->C), &weights,
                              &here));
    if (!has_mlp(b))
        return SRNN_OK;
    SR_TRY(activate_norm(b, s, &middle));
    return mlp_finish(b, x, x, s);
}
