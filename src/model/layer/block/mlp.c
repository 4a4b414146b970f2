/* mlp.c: the MLP that every token goes through, and the activations of all. */
#include "model/layer/block/mlp.h"

/* ---- activations */

static sr_mlp_activation activation_of(const sr_block *b) {
    return (sr_mlp_activation){.function = b->config->activation,
                               .gated = gated(b),
                               .alpha_p = sr_block_at(b->master, SR_BLOCK_ALPHA),
                               .alpha_n = sr_block_at(b->master, SR_BLOCK_ALPHA + 1),
                               .limit = (float)b->config->activation_limit,
                               .sharpness = (float)b->config->activation_sharpness};
}

/* The gate's columns of x (rows, 2F) times its factor. */
static srnn_status scale_gate(const sr_block *b, sr_matrix x) {
    const float factor = gate_factor(b);
    return factor == 1.0f
               ? SRNN_OK
               : b->backend->scale(b->backend, sr_matrix_columns(x, 0, x.columns / 2), factor);
}

srnn_status sr_block_activate(const sr_block *b, sr_matrix out, sr_matrix x) {
    sr_backend *backend = b->backend;
    const sr_mlp_activation activation = activation_of(b);
    SR_TRY(scale_gate(b, x));
    switch (b->config->mlp) {
    case SR_MLP_SWIGLU:
        return backend->swiglu_forward(backend, out, x);
    case SR_MLP_GELU:
        return backend->gelu_forward(backend, out, x);
    case SR_MLP_GATED:
    case SR_MLP_PLAIN:
        return backend->activation_forward(backend, out, x, &activation);
    case SR_MLP_NONE:
        break;
    }
    return SRNN_OK;
}

static srnn_status activate_back(const sr_block *b, sr_matrix d_x, sr_matrix d_out, sr_matrix x,
                                 const sr_block_pointers *gradient) {
    sr_backend *backend = b->backend;
    const sr_mlp_activation activation = activation_of(b);
    float *const d_alpha[2] = {sr_block_at(gradient, SR_BLOCK_ALPHA),
                               sr_block_at(gradient, SR_BLOCK_ALPHA + 1)};
    switch (b->config->mlp) {
    case SR_MLP_SWIGLU:
        return backend->swiglu_backward(backend, d_x, d_out, x);
    case SR_MLP_GELU:
        return backend->gelu_backward(backend, d_x, d_out, x);
    case SR_MLP_GATED:
    case SR_MLP_PLAIN:
        return backend->activation_backward(backend, d_x, d_alpha, d_out, x, &activation);
    case SR_MLP_NONE:
        break;
    }
    return SRNN_OK;
}

srnn_status sr_block_activate_back(const sr_block *b, sr_matrix d_x, sr_matrix d_out, sr_matrix x,
                                   const sr_block_pointers *gradient) {
    SR_TRY(activate_back(b, d_x, d_out, x, gradient));
    return scale_gate(b, d_x);
}

/* ---- forward */

static sr_linear layer_of(const sr_block *b, sr_block_slot weight, int64_t N) {
    sr_linear layer = linear_of(b, weight, N);
    layer.fp8 = true;
    return layer;
}

static bool takes_codes(const sr_block *b) {
    const int64_t F = b->config->F;
    const sr_linear layers[] = {layer_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                layer_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const int skipped = gated(b) ? 0 : 1;
    return gate_factor(b) == 1.0f && b->backend->takes_codes(b->backend, layers + skipped,
                                                             2 - skipped, b->rows, b->config->C);
}

static bool takes_gradient_codes(const sr_block *b) {
    const sr_linear down = layer_of(b, SR_BLOCK_DOWN_WEIGHT, b->config->C);
    return !down.bias && b->backend->takes_codes(b->backend, &down, 1, b->rows, b->config->F);
}

/* What the layers after the activation read. */
static sr_matrix activated_of(const sr_block *b, const sr_block_saved *s) {
    const sr_linear down = layer_of(b, SR_BLOCK_DOWN_WEIGHT, b->config->C);
    const int64_t F = b->config->F;
    return handed(b, s->activated, F,
                  s->codes && b->config->mlp == SR_MLP_SWIGLU &&
                      b->backend->takes_codes(b->backend, &down, 1, b->rows, F),
                  b->activated_note);
}

/* With the note that the activation, or its gradient, reads. */
static sr_matrix up_of(const sr_block *b, const sr_block_saved *s, sr_matrix_note *note) {
    return handed(b, s->up, inner(b), false, note);
}

static srnn_status activate(const sr_block *b, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const int64_t F = b->config->F;
    const sr_linear layers[] = {layer_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                layer_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_matrix up = up_of(b, s, b->activated_before);
    const int skipped = gated(b) ? 0 : 1;
    SR_TRY(backend->linear_forward(backend, up, (sr_matrix){0}, mlp_input(b, s), layers + skipped,
                                   2 - skipped));
    return sr_block_activate(b, activated_of(b, s), up);
}

static srnn_status activate_norm(const sr_block *b, const sr_block_saved *s,
                                 const sr_rmsnorm *norm) {
    sr_backend *backend = b->backend;
    const int64_t F = b->config->F;
    const sr_linear layers[] = {layer_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                layer_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_norm_linear of = {.norm = *norm,
                               .normed = s->mlp_normed,
                               .layers = layers,
                               .count = 2};
    if (b->config->mlp == SR_MLP_SWIGLU && gate_factor(b) == 1.0f)
        return backend->norm_swiglu_forward(backend, numbers(b, s->activated, F),
                                            numbers(b, s->up, inner(b)), &of);
    SR_TRY(backend->rmsnorm_forward(backend, s->mlp_normed, norm));
    return activate(b, s);
}

static srnn_status add(const sr_block *b, float *to, float *from, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const sr_linear down = layer_of(b, SR_BLOCK_DOWN_WEIGHT, b->config->C);
    const sr_matrix addend = from ? residual(b, from) : (sr_matrix){0};
    return backend->linear_forward(backend, residual(b, to), addend, activated_of(b, s), &down, 1);
}

/* ---- backward */

/* The gradient of gate and up, from codes to codes. */
static bool makes_codes(const sr_block *b, const sr_block_saved *s, const sr_linear *layers) {
    return mlp_takes_codes(b, s) && activated_of(b, s).handed == SR_HANDED_CODES &&
           !layers[0].bias && !layers[1].bias;
}

static srnn_status back(const sr_block *b, sr_matrix d_out, const sr_block_pointers *gradient,
                        const sr_block_saved *s, const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C, F = b->config->F;
    const int skipped = gated(b) ? 0 : 1, count = 2 - skipped;
    const sr_linear layers[] = {layer_of(b, SR_BLOCK_GATE_WEIGHT, F),
                                layer_of(b, SR_BLOCK_UP_WEIGHT, F)};
    const sr_linear_gradient d_layers[] = {gradient_of(gradient, SR_BLOCK_GATE_WEIGHT, F),
                                           gradient_of(gradient, SR_BLOCK_UP_WEIGHT, F)};
    const sr_linear down = layer_of(b, SR_BLOCK_DOWN_WEIGHT, C);
    const sr_linear_gradient d_down = gradient_of(gradient, SR_BLOCK_DOWN_WEIGHT, C);
    const bool codes = makes_codes(b, s, layers);
    void *d_up_at = gated(b) ? s->up : scratch->d_activated;
    const sr_matrix d_up =
        handed(b, codes ? scratch->d_up : d_up_at, inner(b), codes, scratch->d_up_note);
    const sr_matrix d_activated =
        sr_matrix_handed(numbers(b, scratch->d_activated, F),
                         codes ? SR_HANDED_MEASURED : SR_HANDED_NUMBERS, scratch->d_activated_note);
    SR_TRY(backend->linear_backward(backend,
                                    &(sr_linear_backward){d_activated, d_out, activated_of(b, s),
                                                          &down, &d_down, 1}));
    SR_TRY(sr_block_activate_back(b, d_up, d_activated, up_of(b, s, b->activated_note), gradient));
    return backend->linear_backward(backend,
                                    &(sr_linear_backward){numbers(b, scratch->d_normed, C), d_up,
                                                          mlp_input(b, s), layers + skipped,
                                                          d_layers + skipped, count});
}

const sr_block_mlp sr_block_mlp_plain = {activate, activate_norm, add,
                                         back,     takes_codes,   takes_gradient_codes};
