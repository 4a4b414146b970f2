/* block.c: one decoder layer, forward and backward. */
#include "model/block.h"

enum { ALIGNMENT = 64 };

static size_t take(size_t *bytes, size_t numbers, size_t size) {
    const size_t start = *bytes;
    *bytes += (numbers * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return start;
}

static float *numbers_at(char *memory, size_t start) {
    return memory ? (float *)(void *)(memory + start) : NULL;
}

/* One walk serves both questions: how many bytes, and where each array stands. */
static sr_block_saved lay_out_saved(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)b->config->F;
    const size_t gated = b->config->mlp == SR_MLP_SWIGLU ? rows * F : 0;
    const size_t attention = take(bytes, sr_attention_layer_saved_bytes(b->attention), 1);
    return (sr_block_saved){
        .attention = memory ? memory + attention : NULL,
        .normed = numbers_at(memory, take(bytes, rows * C, sizeof(float))),
        .rstd = numbers_at(memory, take(bytes, rows, sizeof(float))),
        .middle = numbers_at(memory, take(bytes, rows * C, sizeof(float))),
        .mlp_normed = numbers_at(memory, take(bytes, rows * C, sizeof(float))),
        .mlp_rstd = numbers_at(memory, take(bytes, rows, sizeof(float))),
        .gate = numbers_at(memory, take(bytes, gated, sizeof(float))),
        .up = numbers_at(memory, take(bytes, rows * F, sizeof(float))),
        .activated = numbers_at(memory, take(bytes, rows * F, sizeof(float))),
    };
}

static sr_block_scratch lay_out_scratch(const sr_block *b, char *memory, size_t *bytes) {
    const size_t rows = (size_t)b->rows, C = (size_t)b->config->C, F = (size_t)b->config->F;
    const size_t gated = b->config->mlp == SR_MLP_SWIGLU ? rows * F : 0;
    const size_t attention = take(bytes, sr_attention_layer_scratch_bytes(b->attention), 1);
    return (sr_block_scratch){
        .attention = memory ? memory + attention : NULL,
        .d_normed = numbers_at(memory, take(bytes, rows * C, sizeof(float))),
        .d_activated = numbers_at(memory, take(bytes, rows * F, sizeof(float))),
        .d_gate = numbers_at(memory, take(bytes, gated, sizeof(float))),
        .parts = numbers_at(memory, take(bytes, SR_ROW_PARTS * C, sizeof(float))),
    };
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

static sr_matrix width_C(const sr_block *b, float *data) {
    return sr_matrix_of(data, b->rows, b->config->C);
}

static sr_matrix width_F(const sr_block *b, float *data) {
    return sr_matrix_of(data, b->rows, b->config->F);
}

static sr_rmsnorm norm_of(const sr_block *b, const float *x, sr_block_slot weight, float *rstd) {
    return (sr_rmsnorm){.x = x,
                        .weight = sr_block_at(b->weight, weight),
                        .rstd = rstd,
                        .epsilon = (float)b->config->norm_epsilon,
                        .rows = b->rows,
                        .C = b->config->C};
}

static srnn_status linear(const sr_block *b, sr_matrix y, sr_matrix x, sr_block_slot weight,
                          bool add) {
    return b->backend->linear_forward(b->backend, y, x, sr_block_at(b->weight, weight),
                                      sr_block_at(b->weight, weight + 1), add);
}

/* activated = the MLP's inner activation of mlp_normed. */
static srnn_status activate(const sr_block *b, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const int64_t n = b->rows * b->config->F;
    const sr_matrix x = width_C(b, s->mlp_normed);
    SR_TRY(linear(b, width_F(b, s->up), x, SR_BLOCK_UP_WEIGHT, false));
    if (b->config->mlp == SR_MLP_GELU)
        return backend->gelu_forward(backend, s->activated, s->up, n);
    SR_TRY(linear(b, width_F(b, s->gate), x, SR_BLOCK_GATE_WEIGHT, false));
    return backend->swiglu_forward(backend, s->activated, s->gate, s->up, n);
}

/* middle += the attention layer's output for normed. */
static srnn_status attend(const sr_block *b, const sr_block_saved *s) {
    const sr_layer_pointers *weights = &b->weight->attention;
    SR_TRY(sr_attention_layer_attend(b->attention, width_C(b, s->normed), weights, s->attention));
    if (b->observer.see) {
        srnn_tensor o;
        const srnn_operands in =
            sr_attention_layer_operands(b->attention, &o, weights, s->attention);
        SR_TRY(b->observer.see(b->observer.context, b->layer, &in, o));
    }
    return sr_attention_layer_finish(b->attention, width_C(b, s->middle), weights, s->attention,
                                     true);
}

srnn_status sr_block_forward(const sr_block *b, float *out, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const size_t bytes = (size_t)b->rows * (size_t)b->config->C * sizeof(float);
    const sr_rmsnorm input = norm_of(b, s->x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    SR_TRY(backend->rmsnorm_forward(backend, s->normed, &input));
    SR_TRY(sr_device_copy(backend->device, s->middle, s->x, bytes));
    SR_TRY(attend(b, s));
    SR_TRY(backend->rmsnorm_forward(backend, s->mlp_normed, &middle));
    SR_TRY(activate(b, s));
    if (!out)
        return SRNN_OK;
    SR_TRY(sr_device_copy(backend->device, out, s->middle, bytes));
    return linear(b, width_C(b, out), width_F(b, s->activated), SR_BLOCK_DOWN_WEIGHT, true);
}

static srnn_status linear_back(const sr_block *b, sr_matrix d_x, bool add, sr_matrix d_y,
                               sr_matrix x, const sr_block_pointers *gradient,
                               sr_block_slot weight) {
    sr_backend *backend = b->backend;
    SR_TRY(backend->linear_backward_input(backend, d_x, d_y, sr_block_at(b->weight, weight), add));
    return backend->linear_backward_weight(backend, sr_block_at(gradient, weight),
                                           sr_block_at(gradient, weight + 1), d_y, x);
}

/* From the gradient of the output to d_normed, the gradient of mlp_normed. */
static srnn_status mlp_back(const sr_block *b, float *d, const sr_block_pointers *gradient,
                            const sr_block_saved *s, const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t n = b->rows * b->config->F;
    const sr_matrix x = width_C(b, s->mlp_normed), d_x = width_C(b, scratch->d_normed);
    const sr_matrix d_up = width_F(b, scratch->d_activated);
    SR_TRY(linear_back(b, d_up, false, width_C(b, d), width_F(b, s->activated), gradient,
                       SR_BLOCK_DOWN_WEIGHT));
    if (b->config->mlp == SR_MLP_GELU) {
        SR_TRY(backend->gelu_backward(backend, d_up.data, d_up.data, s->up, n));
        return linear_back(b, d_x, false, d_up, x, gradient, SR_BLOCK_UP_WEIGHT);
    }
    SR_TRY(backend->swiglu_backward(backend, scratch->d_gate, d_up.data, d_up.data, s->gate, s->up,
                                    n));
    SR_TRY(
        linear_back(b, d_x, false, width_F(b, scratch->d_gate), x, gradient, SR_BLOCK_GATE_WEIGHT));
    return linear_back(b, d_x, true, d_up, x, gradient, SR_BLOCK_UP_WEIGHT);
}

srnn_status sr_block_backward(const sr_block *b, float *d, const sr_block_pointers *gradient,
                              const sr_block_saved *s, const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const sr_rmsnorm input = norm_of(b, s->x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    SR_TRY(mlp_back(b, d, gradient, s, scratch));
    SR_TRY(backend->rmsnorm_backward(backend, d, sr_block_at(gradient, SR_BLOCK_MLP_NORM),
                                     scratch->d_normed, &middle, scratch->parts));
    SR_TRY(sr_attention_layer_backward(b->attention, width_C(b, scratch->d_normed),
                                       &gradient->attention, width_C(b, d), width_C(b, s->normed),
                                       &b->weight->attention, s->attention, scratch->attention));
    return backend->rmsnorm_backward(backend, d, sr_block_at(gradient, SR_BLOCK_INPUT_NORM),
                                     scratch->d_normed, &input, scratch->parts);
}

srnn_status sr_block_feed(const sr_block *b, float *x, sr_layer_state *state,
                          const sr_block_saved *s, int T) {
    sr_backend *backend = b->backend;
    const sr_rmsnorm input = norm_of(b, x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_rmsnorm middle = norm_of(b, x, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    SR_TRY(backend->rmsnorm_forward(backend, s->normed, &input));
    SR_TRY(sr_attention_layer_feed(b->attention, state, width_C(b, x), width_C(b, s->normed),
                                   &b->weight->attention, s->attention, T));
    SR_TRY(backend->rmsnorm_forward(backend, s->mlp_normed, &middle));
    SR_TRY(activate(b, s));
    return linear(b, width_C(b, x), width_F(b, s->activated), SR_BLOCK_DOWN_WEIGHT, true);
}
