/* small_model.h: small models with random weights, and comparisons of their outputs. */
#ifndef SR_TESTS_SMALL_MODEL_H
#define SR_TESTS_SMALL_MODEL_H

#include "base/hash.h"
#include "base/random.h"
#include "model/pass.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Separate random numbers for each name, independent of the order in the table. */
static inline uint64_t small_stream(const char *name) {
    uint64_t hash = SR_HASH_BEGIN;
    for (; *name; name++)
        hash = sr_hash_add(hash, (unsigned char)*name);
    return hash;
}

/* Two layers, two query heads to each key head. */
static inline sr_model_config small_config(sr_mlp mlp, bool bias, bool tied) {
    return (sr_model_config){.V = 23,
                             .C = 24,
                             .F = 20,
                             .L = 2,
                             .H = 4,
                             .Hkv = 2,
                             .D = 6,
                             .positions = 32,
                             .mlp = mlp,
                             .norm_epsilon = 1e-5,
                             .rope_theta = 100,
                             .tied = tied,
                             .qkv_bias = bias,
                             .o_bias = bias,
                             .mlp_bias = bias,
                             .bos = 1,
                             .eos = 2};
}

/* Weights large enough to matter; frees the configuration. */
static inline sr_model *small_model_of(sr_backend *backend, const char *attention,
                                       sr_model_config *config) {
    sr_model *model;
    assert_int_equal(sr_model_config_attention(config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, config), SRNN_OK);
    sr_model_config_free(config);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const uint64_t stream = small_stream(spec->name);
        const bool one = strstr(spec->name, "norm") && !model->config.norm_is_minus_one;
        for (size_t n = 0; n < spec->count; n++)
            model->weights[spec->start + n] =
                (float)(0.3 * sr_random_normal(7, stream, n) + (one ? 1 : 0));
    }
    return model;
}

static inline sr_model *small_model(sr_backend *backend, const char *attention, sr_mlp mlp,
                                    bool bias, bool tied) {
    sr_model_config config = small_config(mlp, bias, tied);
    return small_model_of(backend, attention, &config);
}

/* The same shape for bytes of text, with weights initialised like a new model. */
static inline sr_model *small_byte_model(sr_backend *backend, const char *attention,
                                         double initial_range) {
    sr_model_config config = {.V = 257,
                              .C = 24,
                              .F = 20,
                              .L = 2,
                              .H = 4,
                              .Hkv = 2,
                              .D = 6,
                              .positions = 32,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .bos = 256,
                              .eos = 256};
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, initial_range, 1), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

static inline void small_ids(int32_t *ids, int count, int V, uint64_t seed) {
    for (int i = 0; i < count; i++)
        ids[i] = (int32_t)sr_random_below(seed, 1, (uint64_t)i, (uint64_t)V);
}

static inline double small_error(const float *got, const float *want, size_t count) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
        difference += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

/* The loss of a batch, for slopes. */
static inline double small_loss(sr_pass *pass, const int32_t *ids, const int32_t *targets,
                                int rows) {
    float losses[64];
    double sum = 0;
    assert_int_equal(sr_pass_losses(pass, losses, ids, targets), SRNN_OK);
    for (int i = 0; i < rows; i++)
        sum += (double)losses[i];
    return sum;
}

/* The slope of the loss along the gradient of one tensor; ids (2, rows): tokens, then targets. */
static inline double small_slope(sr_model *model, sr_pass *pass, const sr_tensor_spec *spec,
                                 double step, const int32_t *ids, int rows) {
    const float *gradient = sr_pass_gradient(pass) + spec->start;
    double ends[2];
    float *weight = model->weights + spec->start, *saved = malloc(spec->count * sizeof *saved);
    memcpy(saved, weight, spec->count * sizeof *saved);
    for (int end = 0; end < 2; end++) {
        for (size_t n = 0; n < spec->count; n++)
            weight[n] = saved[n] + (float)((end ? step : -step) * (double)gradient[n]);
        ends[end] = small_loss(pass, ids, ids + rows, rows);
    }
    memcpy(weight, saved, spec->count * sizeof *saved);
    free(saved);
    return (ends[1] - ends[0]) / (2 * step);
}

/* Along the gradient the loss must rise by its squared norm; weights move by `length`. */
static inline void small_check_slopes(sr_model *model, const char *label, double length) {
    enum { B = 2, T = 13, ROWS = B * T };
    const sr_pass_setup setup = {.B = B, .T = T, .train = true};
    sr_pass *pass;
    int32_t ids[2 * ROWS], *targets = ids + ROWS;
    float losses[ROWS];
    small_ids(ids, ROWS, model->config.V, 5);
    small_ids(targets, ROWS, model->config.V, 6);
    targets[3] = targets[20] = -1;
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0), SRNN_OK);
    const float *gradient = sr_pass_gradient(pass);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        double squares = 0;
        for (size_t n = 0; n < spec->count; n++)
            squares += pow((double)gradient[spec->start + n], 2);
        const double step = length / sqrt(squares + 1e-12);
        const double slope = small_slope(model, pass, spec, step, ids, ROWS);
        if (!(fabs(slope - squares) <= 0.02 * squares + 2e-3 * sqrt(squares)))
            fail_msg("%s: the gradient of %s says %.6g, the slope %.6g", label, spec->name, squares,
                     slope);
    }
    sr_pass_free(pass);
}

#endif
