/* experts.c: the MLP that is a mixture of experts. A router gives each token weights of a few of
 * them; a shared expert, if there is one, comes last and sees every token. Experts are computed one
 * after the other, over the tokens that have a weight; backward computes what is inside of them
 * again, so that only weights are kept. */
#include "model/layer/block/mlp.h"

/* One expert's matrices, and their gradients. */
typedef struct expert {
    sr_expert_rows rows;
    int64_t F;
    sr_linear layers[2], down; /* gate and up */
    sr_linear_gradient d_layers[2], d_down;
} expert;

static sr_routing routing_of(const sr_block *b) {
    const sr_experts *e = &b->config->experts;
    return (sr_routing){e->count, e->chosen, e->renormalised, e->shared_width > 0};
}

/* Expert number e of matrices that lie one after the other, (N, K) each. */
static sr_linear linear_at(const sr_block *b, sr_block_slot slot, int64_t e, int64_t N, int64_t K) {
    sr_linear layer = linear_of(b, slot, N);
    layer.weight =
        sr_number_at((void *)layer.weight, e * N * K, b->narrow ? SRNN_BF16 : b->backend->number);
    layer.bias = layer.bias ? layer.bias + e * N : NULL;
    return layer;
}

static sr_linear_gradient gradient_at(const sr_block_pointers *gradient, sr_block_slot slot,
                                      int64_t e, int64_t N, int64_t K) {
    sr_linear_gradient layer = gradient_of(gradient, slot, N);
    layer.weight += e * N * K;
    layer.bias = layer.bias ? layer.bias + e * N : NULL;
    return layer;
}

/* `gradient` may be NULL. */
static expert expert_of(const sr_block *b, const sr_block_saved *s,
                        const sr_block_pointers *gradient, int number) {
    const sr_experts *all = &b->config->experts;
    const bool shared = number == all->count;
    const int64_t C = b->config->C, F = shared ? all->shared_width : all->width;
    const int64_t e = shared ? 0 : number;
    const sr_block_slot slots[] = {shared ? SR_BLOCK_SHARED_GATE_WEIGHT : SR_BLOCK_GATE_WEIGHT,
                                   shared ? SR_BLOCK_SHARED_UP_WEIGHT : SR_BLOCK_UP_WEIGHT,
                                   shared ? SR_BLOCK_SHARED_DOWN_WEIGHT : SR_BLOCK_DOWN_WEIGHT};
    expert x = {.rows = {.weights = s->weights,
                         .columns = expert_columns(b),
                         .expert = number,
                         .places = s->places},
                .F = F};
    for (int i = 0; i < 2; i++)
        x.layers[i] = linear_at(b, slots[i], e, F, C);
    x.down = linear_at(b, slots[2], e, C, F);
    if (!gradient)
        return x;
    for (int i = 0; i < 2; i++)
        x.d_layers[i] = gradient_at(gradient, slots[i], e, F, C);
    x.d_down = gradient_at(gradient, slots[2], e, C, F);
    return x;
}

/* The router's layers: one row of logits for each expert, and one for the shared expert. */
static int routers_of(const sr_block *b, sr_linear routers[2]) {
    routers[0] = linear_of(b, SR_BLOCK_ROUTER_WEIGHT, b->config->experts.count);
    routers[1] = linear_of(b, SR_BLOCK_SHARED_ROUTER_WEIGHT, 1);
    return routing_of(b).shared ? 2 : 1;
}

static srnn_status route(const sr_block *b, const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    const sr_routing routing = routing_of(b);
    const sr_matrix logits = numbers(b, s->router, expert_columns(b));
    sr_linear routers[2];
    const int count = routers_of(b, routers);
    const sr_matrix x = mlp_input(b, s);
    SR_TRY(backend->linear_forward(backend, logits, (sr_matrix){0}, x, routers, count));
    return backend->route_forward(backend, s->weights, logits, &routing);
}

static srnn_status route_norm(const sr_block *b, const sr_block_saved *s, const sr_rmsnorm *norm) {
    SR_TRY(b->backend->rmsnorm_forward(b->backend, s->mlp_normed, norm));
    return route(b, s);
}

/* Some rows of an array that has room for all. */
static sr_matrix some(const sr_block *b, void *data, int64_t rows, int64_t columns) {
    return sr_matrix_of(data, rows, columns, b->backend->number);
}

static srnn_status inside(const sr_block *b, const expert *x, const sr_block_saved *s,
                          int64_t rows) {
    sr_backend *backend = b->backend;
    const sr_matrix up = some(b, s->up, rows, 2 * x->F);
    SR_TRY(backend->linear_forward(backend, up, (sr_matrix){0},
                                   some(b, s->expert_in, rows, b->config->C), x->layers, 2));
    return sr_block_activate(b, some(b, s->activated, rows, x->F), up);
}

static srnn_status add_expert(const sr_block *b, sr_matrix y, const expert *x,
                              const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    sr_matrix in = numbers(b, s->expert_in, b->config->C);
    SR_TRY(backend->expert_gather(backend, &in, mlp_input(b, s), &x->rows));
    if (in.rows == 0)
        return SRNN_OK;
    const sr_matrix out = sr_matrix_of(s->expert_out, in.rows, b->config->C, SRNN_F32);
    SR_TRY(inside(b, x, s, in.rows));
    SR_TRY(backend->linear_forward(backend, out, (sr_matrix){0},
                                   some(b, s->activated, in.rows, x->F), &x->down, 1));
    return backend->expert_add(backend, y, out, &x->rows, true);
}

static srnn_status add(const sr_block *b, float *to, float *from, const sr_block_saved *s) {
    const size_t bytes = (size_t)(b->rows * b->config->C) * sizeof *to;
    if (!to)
        return SRNN_OK;
    if (!from)
        SR_TRY(sr_device_zero(b->backend->device, to, bytes));
    else if (from != to)
        SR_TRY(sr_device_copy(b->backend->device, to, from, bytes));
    for (int e = 0; e < expert_columns(b); e++) {
        const expert x = expert_of(b, s, NULL, e);
        SR_TRY(add_expert(b, residual(b, to), &x, s));
    }
    return SRNN_OK;
}

/* ---- backward */

/* Adds what one expert gives to d_wide and to the gradient of the weights; its rows of the input
 * and of what they are multiplied to are overwritten by their gradients. */
static srnn_status expert_back(const sr_block *b, sr_matrix d_output, const expert *x,
                               const sr_block_pointers *gradient, const sr_block_saved *s,
                               const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C;
    sr_matrix in = numbers(b, s->expert_in, C), d_out = numbers(b, scratch->d_expert, C);
    SR_TRY(backend->expert_gather(backend, &in, mlp_input(b, s), &x->rows));
    if (in.rows == 0)
        return SRNN_OK;
    SR_TRY(backend->expert_gather(backend, &d_out, d_output, &x->rows));
    SR_TRY(inside(b, x, s, in.rows));
    const sr_matrix up = some(b, s->up, in.rows, 2 * x->F);
    const sr_matrix activated = some(b, s->activated, in.rows, x->F);
    const sr_matrix d_activated = some(b, scratch->d_activated, in.rows, x->F);
    SR_TRY(backend->linear_backward_input(backend, d_activated, d_out, &x->down, 1));
    SR_TRY(backend->expert_weigh_backward(backend, d_out, d_activated, activated, x->down.bias,
                                          &x->rows));
    SR_TRY(backend->linear_backward_weight(backend, &x->d_down, 1, d_out, activated));
    SR_TRY(sr_block_activate_back(b, up, d_activated, up, gradient));
    SR_TRY(backend->linear_backward_weight(backend, x->d_layers, 2, up, in));
    SR_TRY(backend->linear_backward_input(backend, in, up, x->layers, 2));
    return backend->expert_add(backend, residual(b, scratch->d_wide), in, &x->rows, false);
}

/* From the gradient of the weights to that of the router's input, added to d_wide. */
static srnn_status router_back(const sr_block *b, const sr_block_pointers *gradient,
                               const sr_block_saved *s, const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C, columns = expert_columns(b);
    const sr_routing routing = routing_of(b);
    const sr_matrix logits = numbers(b, s->router, columns);
    const sr_matrix d_logits = numbers(b, scratch->d_router, columns);
    const sr_matrix d_in = numbers(b, scratch->d_normed, C), wide = residual(b, scratch->d_wide);
    const sr_linear_gradient d_routers[] = {gradient_of(gradient, SR_BLOCK_ROUTER_WEIGHT,
                                                        routing.count),
                                            gradient_of(gradient, SR_BLOCK_SHARED_ROUTER_WEIGHT,
                                                        1)};
    sr_linear routers[2];
    const int count = routers_of(b, routers);
    SR_TRY(backend->route_backward(backend, d_logits, scratch->d_weights, s->weights, logits,
                                   &routing));
    SR_TRY(backend->linear_backward_weight(backend, d_routers, count, d_logits, mlp_input(b, s)));
    SR_TRY(backend->linear_backward_input(backend, d_in, d_logits, routers, count));
    return backend->add_scaled(backend, wide, wide, d_in, 1.0f);
}

static srnn_status back(const sr_block *b, sr_matrix d_output, const sr_block_pointers *gradient,
                        const sr_block_saved *s, const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C;
    SR_TRY(sr_device_zero(backend->device, scratch->d_wide,
                          (size_t)(b->rows * C) * sizeof *scratch->d_wide));
    for (int e = 0; e < expert_columns(b); e++) {
        expert x = expert_of(b, s, gradient, e);
        x.rows.d_weights = scratch->d_weights;
        SR_TRY(expert_back(b, d_output, &x, gradient, s, scratch));
    }
    SR_TRY(router_back(b, gradient, s, scratch));
    return backend->narrow(backend, scratch->d_normed, scratch->d_wide, b->rows * C);
}

/* Routers read the input as well. */
static bool takes_codes(const sr_block *b) {
    (void)b;
    return false;
}

const sr_block_mlp sr_block_mlp_experts = {route, route_norm, add, back, takes_codes, takes_codes};
