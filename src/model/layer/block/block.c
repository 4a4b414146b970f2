/* block.c: one decoder layer, forward and backward. */
#include "model/layer/block/mlp.h"
#include "model/layer/block/observe.h"

static sr_rmsnorm norm_of(const sr_block *b, const float *x, sr_block_slot weight, float *rstd) {
    return (sr_rmsnorm){.x = x,
                        .weight = sr_block_at(b->master, weight),
                        .rstd = rstd,
                        .epsilon = (float)b->config->norm_epsilon,
                        .rows = b->rows,
                        .C = b->config->C};
}

static sr_layer_weights mixer_weights(const sr_block *b) {
    return (sr_layer_weights){b->master->mixers, b->worker->mixers, b->narrow};
}

bool sr_block_takes_codes(const sr_block *b) {
    const sr_layer_weights weights = mixer_weights(b);
    return plain_norms(b) && sr_mixer_takes_codes(b->mixer, &weights, b->rows);
}

bool sr_block_takes_gradient_codes(const sr_block *b) {
    const sr_layer_weights weights = mixer_weights(b);
    return sr_block_takes_codes(b) && !has_branches(b) &&
           sr_mixer_takes_gradient_codes(b->mixer, &weights, b->rows) &&
           (!has_mlp(b) || sr_block_mlp_of(b)->takes_gradient_codes(b));
}

/* ---- norms */

/* A norm of any kind; x float. */
static sr_norm norm_at(const sr_block *b, float *x, sr_block_slot weight) {
    return (sr_norm){.x = residual(b, x),
                     .weight = sr_block_at(b->master, weight),
                     .bias = sr_block_at(b->master, weight + 1),
                     .groups = 1,
                     .C = b->config->C,
                     .subtract_mean = b->config->layer_norm,
                     .offset = b->config->norm_is_minus_one ? 1.0f : 0.0f,
                     .epsilon = (float)b->config->norm_epsilon};
}

/* out (rows, C) = what mixer or MLP read of x. */
static srnn_status read_norm(const sr_block *b, sr_matrix out, float *x, sr_block_slot weight,
                             float *rstd) {
    sr_backend *backend = b->backend;
    if (!norm_before(b))
        return backend->narrow(backend, out.data, x, b->rows * b->config->C);
    if (plain_norms(b)) {
        sr_rmsnorm norm = norm_of(b, x, weight, rstd);
        norm.codes = out.handed == SR_HANDED_CODES ? out.note : NULL;
        return backend->rmsnorm_forward(backend, out.data, &norm);
    }
    const sr_norm norm = norm_at(b, x, weight);
    return backend->norm_forward(backend, out, &norm);
}

/* Adds to d the gradient of what came of it, d_normed. */
static srnn_status read_norm_back(const sr_block *b, sr_block_gradient d,
                                  const sr_block_pointers *gradient,
                                  const sr_block_scratch *scratch, const sr_rmsnorm *plain,
                                  sr_block_slot weight) {
    sr_backend *backend = b->backend;
    const sr_matrix d_normed = numbers(b, scratch->d_normed, b->config->C);
    const sr_matrix wide = residual(b, d.wide);
    if (plain_norms(b)) {
        const sr_rmsnorm_gradient out = {d.wide,         d.narrow,   sr_block_at(gradient, weight),
                                         scratch->parts, d.measured, d.codes};
        return backend->rmsnorm_backward(backend, &out, scratch->d_normed, plain);
    }
    if (norm_before(b)) {
        const sr_norm norm = norm_at(b, (float *)plain->x, weight);
        const sr_norm_gradient out = {wide, sr_block_at(gradient, weight),
                                      sr_block_at(gradient, weight + 1), scratch->parts, true};
        SR_TRY(backend->norm_backward(backend, &out, d_normed, &norm));
    } else {
        SR_TRY(backend->add_scaled(backend, wide, wide, d_normed, 1.0f));
    }
    return backend->narrow(backend, d.narrow, d.wide, b->rows * b->config->C);
}

/* What the mixer reads. */
static sr_matrix mixer_input(const sr_block *b, const sr_block_saved *s) {
    return handed(b, s->normed, b->config->C, s->codes && sr_block_takes_codes(b), s->normed_note);
}

/* ---- what mixer and MLP add to the residual */

/* What mixer or MLP made, the norm after it, and what that is multiplied by. */
typedef struct branch {
    float *made;
    sr_block_slot norm;
    float multiplier;
} branch;

static branch mixer_branch(const sr_block *b, const sr_block_saved *s) {
    return (branch){s->mixed, SR_BLOCK_MIXER_POST_NORM, mixer_multiplier(b)};
}

static branch mlp_branch(const sr_block *b, const sr_block_saved *s) {
    return (branch){s->transformed, SR_BLOCK_MLP_POST_NORM, mlp_multiplier(b)};
}

/* to = from + what becomes of the branch: its norm, times the multiplier. */
static srnn_status add_branch(const sr_block *b, float *to, float *from, branch of,
                              const sr_block_saved *s) {
    sr_backend *backend = b->backend;
    sr_matrix y = residual(b, of.made);
    if (norm_after(b)) {
        const sr_norm post = norm_at(b, of.made, of.norm);
        y = numbers(b, s->post_normed, b->config->C);
        SR_TRY(backend->norm_forward(backend, y, &post));
    }
    return backend->add_scaled(backend, residual(b, to), residual(b, from), y, of.multiplier);
}

/* *d_out = the gradient of the branch, from that of the residual. */
static srnn_status branch_back(const sr_block *b, sr_matrix *d_out, sr_block_gradient d,
                               const sr_block_pointers *gradient, const sr_block_scratch *scratch,
                               branch of) {
    sr_backend *backend = b->backend;
    const int64_t C = b->config->C;
    const sr_matrix d_branch = numbers(b, scratch->d_branch, C);
    *d_out = sr_matrix_handed(numbers(b, d.narrow, C),
                              d.codes      ? SR_HANDED_CODES
                              : d.measured ? SR_HANDED_MEASURED
                                           : SR_HANDED_NUMBERS,
                              d.measured);
    if (!has_branches(b))
        return SRNN_OK;
    *d_out = d_branch;
    SR_TRY(sr_device_copy(backend->device, scratch->d_branch, d.narrow,
                          (size_t)(b->rows * C) * sr_element_bytes(backend->number)));
    if (of.multiplier != 1.0f)
        SR_TRY(backend->scale(backend, d_branch, of.multiplier));
    if (!norm_after(b))
        return SRNN_OK;
    const sr_norm post = norm_at(b, of.made, of.norm);
    const sr_norm_gradient out = {d_branch, sr_block_at(gradient, of.norm),
                                  sr_block_at(gradient, of.norm + 1), scratch->parts, false};
    return backend->norm_backward(backend, &out, d_branch, &post);
}

/* to = from + the MLP's output for what is activated; NULL: only what is saved. */
static srnn_status mlp_finish(const sr_block *b, float *to, float *from, const sr_block_saved *s) {
    const sr_block_mlp *mlp = sr_block_mlp_of(b);
    if (!has_branches(b))
        return mlp->add(b, to, from, s);
    SR_TRY(mlp->add(b, s->transformed, NULL, s));
    return to ? add_branch(b, to, from, mlp_branch(b, s), s) : SRNN_OK;
}

/* to = x + the mixer's output for normed; NULL: only what it saves. */
static srnn_status attend(const sr_block *b, float *to, const sr_block_saved *s) {
    const sr_layer_weights weights = mixer_weights(b);
    const sr_matrix normed = mixer_input(b, s);
    SR_TRY(sr_mixer_attend(b->mixer, normed, &weights, s->mixer, &s->crossing));
    SR_TRY(sr_block_observe(b, &weights, s->mixer));
    if (!has_branches(b))
        return to ? sr_mixer_finish(b->mixer, residual(b, to), residual(b, s->x), normed, &weights,
                                    s->mixer)
                  : SRNN_OK;
    SR_TRY(sr_mixer_finish(b->mixer, residual(b, s->mixed), (sr_matrix){0}, normed, &weights,
                           s->mixer));
    return to ? add_branch(b, to, s->x, mixer_branch(b, s), s) : SRNN_OK;
}

srnn_status sr_block_mix(const sr_block *b, float *out, const sr_block_saved *s) {
    SR_TRY(read_norm(b, mixer_input(b, s), s->x, SR_BLOCK_INPUT_NORM, s->rstd));
    return attend(b, out, s);
}

srnn_status sr_block_forward(const sr_block *b, float *out, const sr_block_saved *s) {
    SR_TRY(read_norm(b, mixer_input(b, s), s->x, SR_BLOCK_INPUT_NORM, s->rstd));
    if (!has_mlp(b))
        return attend(b, out, s);
    SR_TRY(attend(b, s->middle, s));
    if (!parallel(b))
        SR_TRY(read_norm(b, mlp_input(b, s), s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd));
    SR_TRY(sr_block_mlp_of(b)->activate(b, s));
    return out || has_branches(b) ? mlp_finish(b, out, s->middle, s) : SRNN_OK;
}

srnn_status sr_block_recompute(const sr_block *b, const sr_block_saved *s, sr_recompute what) {
    sr_block_saved again = *s;
    again.crossing.known = true;
    if (what != SR_RECOMPUTE_ATTENTION)
        return what == SR_RECOMPUTE_BLOCK ? sr_block_forward(b, NULL, &again) : SRNN_OK;
    return sr_block_mix(b, NULL, &again);
}

/* ---- backward */

/* The MLP: d becomes the gradient of its input, but for what it gives to the mixer's
 * input. */
static srnn_status mlp_half_back(const sr_block *b, sr_block_gradient d,
                                 const sr_block_pointers *gradient, const sr_block_saved *s,
                                 const sr_block_scratch *scratch) {
    sr_backend *backend = b->backend;
    const sr_rmsnorm middle = norm_of(b, s->middle, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    sr_matrix d_out;
    SR_TRY(branch_back(b, &d_out, d, gradient, scratch, mlp_branch(b, s)));
    SR_TRY(sr_block_mlp_of(b)->back(b, d_out, gradient, s, scratch));
    if (parallel(b))
        return sr_device_copy(backend->device, scratch->d_parallel, scratch->d_normed,
                              (size_t)(b->rows * b->config->C) * sr_element_bytes(backend->number));
    return read_norm_back(b, d, gradient, scratch, &middle, SR_BLOCK_MLP_NORM);
}

/* d_normed = the gradient of what the mixer read, from that of the residual behind it. */
static srnn_status mixer_half_back(const sr_block *b, sr_block_gradient d,
                                   const sr_block_pointers *gradient, const sr_block_saved *s,
                                   const sr_block_scratch *scratch) {
    const int64_t C = b->config->C;
    const sr_layer_weights weights = mixer_weights(b);
    sr_matrix d_out;
    SR_TRY(branch_back(b, &d_out, d, gradient, scratch, mixer_branch(b, s)));
    return sr_mixer_backward(b->mixer, numbers(b, scratch->d_normed, C), gradient->mixers, d_out,
                             mixer_input(b, s), &weights, s->mixer, scratch->mixer, &s->crossing);
}

srnn_status sr_block_mix_backward(const sr_block *b, void *d_out, const sr_block_pointers *gradient,
                                  const sr_block_saved *s, const sr_block_scratch *scratch) {
    return mixer_half_back(b, (sr_block_gradient){.narrow = d_out}, gradient, s, scratch);
}

srnn_status sr_block_backward(const sr_block *b, sr_block_gradient d,
                              const sr_block_pointers *gradient, const sr_block_saved *s,
                              const sr_block_scratch *scratch) {
    const int64_t C = b->config->C;
    const sr_rmsnorm input = norm_of(b, s->x, SR_BLOCK_INPUT_NORM, s->rstd);
    if (has_mlp(b))
        SR_TRY(mlp_half_back(b, d, gradient, s, scratch));
    SR_TRY(mixer_half_back(b, d, gradient, s, scratch));
    if (parallel(b))
        SR_TRY(b->backend->add_rows(b->backend, numbers(b, scratch->d_normed, C),
                                    numbers(b, scratch->d_parallel, C)));
    return read_norm_back(b, d, gradient, scratch, &input, SR_BLOCK_INPUT_NORM);
}

/* ---- by pieces */

/* x += the mixer's output for the norm of x. */
static srnn_status feed_mixer(const sr_block *b, float *x, sr_mixer_state *state,
                              const sr_block_saved *s, const sr_layer_piece_place *place) {
    const sr_layer_weights weights = mixer_weights(b);
    const sr_rmsnorm input = norm_of(b, x, SR_BLOCK_INPUT_NORM, s->rstd);
    const sr_layer_piece_place here = {place->T, place->positions, s->mixer,
                                       plain_norms(b) ? &input : NULL};
    const sr_matrix normed = numbers(b, s->normed, b->config->C);
    float *out = has_branches(b) ? s->mixed : x;
    if (!plain_norms(b))
        SR_TRY(read_norm(b, mixer_input(b, s), x, SR_BLOCK_INPUT_NORM, s->rstd));
    if (has_branches(b))
        SR_TRY(sr_device_zero(b->backend->device, out,
                              (size_t)(b->rows * b->config->C) * sizeof *out));
    SR_TRY(sr_mixer_state_run(state, residual(b, out), normed, &weights, &here));
    return has_branches(b) ? add_branch(b, x, x, mixer_branch(b, s), s) : SRNN_OK;
}

srnn_status sr_block_feed(const sr_block *b, float *x, sr_mixer_state *state,
                          const sr_block_saved *s, const sr_layer_piece_place *place) {
    const sr_rmsnorm middle = norm_of(b, x, SR_BLOCK_MLP_NORM, s->mlp_rstd);
    SR_TRY(feed_mixer(b, x, state, s, place));
    if (!has_mlp(b))
        return SRNN_OK;
    if (plain_norms(b)) {
        SR_TRY(sr_block_mlp_of(b)->activate_norm(b, s, &middle));
        return mlp_finish(b, x, x, s);
    }
    if (!parallel(b))
        SR_TRY(read_norm(b, mlp_input(b, s), x, SR_BLOCK_MLP_NORM, s->mlp_rstd));
    SR_TRY(sr_block_mlp_of(b)->activate(b, s));
    return mlp_finish(b, x, x, s);
}
