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

/* Two layers, two query heads to each key head, weights large enough to matter. */
static inline sr_model *small_model(sr_backend *backend, const char *attention, sr_mlp mlp,
                                    bool bias, bool tied) {
    sr_model_config config = {.V = 23,
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
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    sr_model_config_free(&config);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const uint64_t stream = small_stream(spec->name);
        for (size_t n = 0; n < spec->count; n++)
            model->weights[spec->start + n] = (float)(0.3 * sr_random_normal(7, stream, n) +
                                                      (strstr(spec->name, "norm") ? 1 : 0));
    }
    return model;
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

#endif
