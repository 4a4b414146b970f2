/* test_layers_cuda.c: layers of every wiring on a GPU, real or emulated: losses, gradients and
 * decoding agree with the CPU. */
#include "base/bf16.h"
#include "model/files/tensor_stream.h"
#include "model/session.h"
#include "small_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sr_backend *cpu, *gpu; /* the GPU in float or in bf16: the tests run once in each */

static bool is_bf16(void) {
    return gpu->number == SRNN_BF16;
}

enum { V = 23, B = 2, T = 18, ROWS = B * T, DOCUMENTS = 4 };
static const int64_t offsets[DOCUMENTS + 1] = {0, 7, 18, 31, ROWS};

/* A model: its attention, and what else is not as usual. */
typedef struct described {
    const char *attention;
    sr_mlp mlp;
    sr_activation activation;
    bool bias, layer_norm, minus_one;
    double embedding, residual, logits, cap;
    double limit, sharpness; /* of the activation */
    sr_experts experts;
    double factors[SR_FACTORS];
} described;

static described plain(const char *attention) {
    return (described){.attention = attention};
}

static sr_model *model_of(sr_backend *backend, const described *d) {
    sr_model_config config = {.V = V,
                              .C = 24,
                              .F = 20,
                              .L = 2,
                              .H = 4,
                              .Hkv = 2,
                              .D = 8,
                              .positions = 2 * T,
                              .mlp = d->mlp,
                              .activation = d->activation,
                              .layer_norm = d->layer_norm,
                              .norm_is_minus_one = d->minus_one,
                              .embedding_multiplier = d->embedding,
                              .residual_multiplier = d->residual,
                              .logit_multiplier = d->logits,
                              .logit_cap = d->cap,
                              .activation_limit = d->limit,
                              .activation_sharpness = d->sharpness,
                              .experts = d->experts,
                              .qkv_bias = d->bias,
                              .o_bias = d->bias,
                              .mlp_bias = d->bias,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .tied = true,
                              .bos = 1,
                              .eos = 2,
                              .given = {.D = 8, .rank = 3}};
    memcpy(config.factors, d->factors, sizeof config.factors);
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, d->attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, 0.1, 3), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

/* ---- a training step */

typedef struct step {
    float losses[ROWS];
    float *gradients; /* of all weights, host memory */
} step;

static step step_of(sr_model *model, bool packed, sr_recompute recompute) {
    const size_t bytes = model->table.numbers * sizeof(float);
    const sr_pass_setup setup = {.B = B,
                                 .T = T,
                                 .train = true,
                                 .recompute = recompute,
                                 .offsets = packed ? offsets : NULL,
                                 .documents = packed ? DOCUMENTS : 0};
    step s = {.gradients = malloc(bytes)};
    int32_t ids[ROWS], targets[ROWS];
    sr_pass *pass;
    assert_non_null(s.gradients);
    small_ids(ids, ROWS, V, 5);
    small_ids(targets, ROWS, V, 6);
    ids[0] = -1; /* an empty token */
    targets[0] = -1;
    if (sr_pass_create(&pass, model, &setup) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_pass_zero_gradient(pass), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, s.losses, ids, targets, 1.0 / ROWS), SRNN_OK);
    assert_int_equal(sr_device_copy_out(model->backend->device, s.gradients, sr_pass_gradient(pass),
                                        bytes),
                     SRNN_OK);
    sr_pass_free(pass);
    return s;
}

/* The change of a gradient when only the weights are rounded to bf16 measures its conditioning. */
static double tolerance(const float *rounded, const float *want, size_t count) {
    return is_bf16() ? 0.05 + 4 * small_error(rounded, want, count) : 1e-4;
}

static void compare_steps(const char *attention, const sr_model *model, const step *got,
                          const step *want, const step *rounded) {
    const double error = small_error(got->losses, want->losses, ROWS);
    if (!(error < tolerance(rounded->losses, want->losses, ROWS)))
        fail_msg("%s, losses: off by %g", attention, error);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const float *right = want->gradients + spec->start;
        const double off = small_error(got->gradients + spec->start, right, spec->count);
        if (!(off < tolerance(rounded->gradients + spec->start, right, spec->count)))
            fail_msg("%s, gradient of %s: off by %g", attention, spec->name, off);
    }
}

static sr_model *rounded_model(const described *d) {
    sr_model *model = model_of(cpu, d);
    for (size_t i = 0; i < model->table.numbers; i++)
        model->weights[i] = sr_bf16_float(sr_bf16_of(model->weights[i]));
    return model;
}

static void check_step(described d, bool packed) {
    sr_model *model = model_of(cpu, &d), *moved = model_of(gpu, &d);
    sr_model *other = rounded_model(&d);
    const sr_recompute what = packed ? SR_RECOMPUTE_BLOCK : SR_RECOMPUTE_ATTENTION;
    step want = step_of(model, packed, SR_RECOMPUTE_NONE), got = step_of(moved, packed, what);
    step rounded = step_of(other, packed, SR_RECOMPUTE_NONE);
    compare_steps(d.attention, model, &got, &want, &rounded);
    free(want.gradients), free(got.gradients), free(rounded.gradients);
    sr_model_free(model);
    sr_model_free(moved);
    sr_model_free(other);
}

/* Every wiring, with scores and gates that each of its projections and convolutions feed. */
static const char *const wirings[] = {
    "softmax,short_conv=4",
    "gated_softmax_plusplus_extratoks",
    "gate,layer=power,short_conv=3",
    "gate,decay=learned,layer=mamba2,short_conv=4",
    "norm,layer=mamba_layer,short_conv=2",
    "gate,decay=learned,layer=mamba_block,short_conv=4",
    "gate,decay=learned,layer=gla",
    "gate,value_gate=sigmoid,layer=delta_net,short_conv=4",
    "linear_elu,layer=rat",
    "gate,layer=2mamba,short_conv=2,conv_activation=none",
    "gate,decay=learned,layer=kda,short_conv=4",
    "gate,layer=grela",
    "gate,layer=grela,short_conv=2",
    "gated_softmax_no_gate_rmsnorm,layer=nala",
    "0:layer=conv,position=none,short_conv=3,conv_activation=none,1:softmax",
    "layer=conv,position=none,short_conv=4,block_norm=both",
};
enum { WIRINGS = sizeof wirings / sizeof *wirings };

static void steps(void **state) {
    (void)state;
    for (int i = 0; i < WIRINGS; i++)
        check_step(plain(wirings[i]), (i + is_bf16()) % 2 == 0);
}

/* Systems with a layer of their own, as they are named. */
static const char *const named[] = {
    "power",
    "forget",
    "mamba2",
    "linear_mamba",
    "gated_softmax_plusplus_mamba",
    "gla",
    "delta_net",
    "log_linear",
    "log_linear_mamba2",
    "log_linear_gated_delta_net",
    "rat",
    "gated_delta_net",
    "grela",
    "nala",
    "nala_cosine",
    "2mamba",
    "2mamba_e",
    "kda",
};

static void systems(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        check_step(plain(named[i]), (i + (size_t)is_bf16()) % 2 == 0);
}

/* What published families have of their own: norms of q, k and branches, parts of RoPE,
 * activations, multipliers, capped logits. */
static const described families[] = {
    {.attention = "softmax,qk_norm=head"},
    {.attention = "softmax,qk_norm=row,block_norm=after", .bias = true},
    {.attention = "softmax,qk_norm=head_rotated,rope_part=0.5"},
    {.attention = "softmax,qk_norm=layer,block_norm=parallel", .layer_norm = true},
    {.attention = "softmax,rope_part=0.5,rope_pairs=neighbours,block_norm=both"},
    {.attention = "softmax,softmax_scale=0.2",
     .mlp = SR_MLP_GATED,
     .activation = SR_ACTIVATION_GELU_TANH,
     .embedding = 3,
     .residual = 0.4,
     .logits = 0.5,
     .cap = 4},
    {.attention = "softmax", .mlp = SR_MLP_PLAIN, .activation = SR_ACTIVATION_XIELU},
    {.attention = "softmax",
     .mlp = SR_MLP_PLAIN,
     .activation = SR_ACTIVATION_RELU_SQUARE,
     .layer_norm = true,
     .minus_one = true,
     .bias = true},
    {.attention = "softmax", .mlp = SR_MLP_GATED, .activation = SR_ACTIVATION_SILU},
    {.attention = "softmax,softmax_scale=0.3+mamba2,norm=none,short_conv=3",
     .factors = {0.7, 1.3, 1.25, 0.6, 0.35, 0.25, 1.2, 0.5, 0.3, 0.9, 0.4}},
    {.attention = "linear_elu+mamba2,output_gate=none,post_gate,block_norm=before",
     .bias = true,
     .factors = {[SR_FACTOR_IN] = 0.7, [SR_FACTOR_PARALLEL_OUT] = 0.5}},
    {.attention = "softmax", .experts = {.count = 40, .chosen = 33, .width = 8}},
    {.attention = "softmax,block_norm=both",
     .experts = {.count = 4, .chosen = 4, .width = 9, .shared_width = 13, .plain = {1}}},
    {.attention = "softmax,sink=learned",
     .mlp = SR_MLP_GATED,
     .activation = SR_ACTIVATION_SILU_CLAMPED,
     .bias = true,
     .limit = 0.05,
     .sharpness = 1.7,
     .experts = {.count = 3, .chosen = 3, .width = 8, .renormalised = true, .router_bias = true}},
};
enum { FAMILIES = sizeof families / sizeof *families };

static void family_steps(void **state) {
    (void)state;
    for (int i = 0; i < FAMILIES; i++)
        check_step(families[i], (i + is_bf16()) % 2 == 0);
}

/* Rows that end in the middle of a chunk; blocks that mix all channels, an odd number, or few. */
static const char *const aveys[] = {
    "avey_causal,chunk=4,chunks=3",
    "avey,chunk=4,chunks=3,expansion=3,share=0.3",
    "avey_causal,chunk=5,chunks=2,expansion=2,share=1",
    "avey_causal,chunk=6,chunks=1",
};
enum { AVEYS = sizeof aveys / sizeof *aveys };

static void avey_steps(void **state) {
    (void)state;
    for (int i = 0; i < AVEYS; i++)
        check_step(plain(aveys[i]), false);
}

/* ---- steps that are captured */

static float *gradients_of(sr_pass *pass, const sr_model *model) {
    const size_t bytes = model->table.numbers * sizeof(float);
    float *gradients = malloc(bytes);
    assert_non_null(gradients);
    assert_int_equal(sr_device_copy_out(gpu->device, gradients, sr_pass_gradient(pass), bytes),
                     SRNN_OK);
    return gradients;
}

/* Launched, captured, replayed with activations recomputed: the same bits as launched without for
 * each of three batches. */
static void check_captured(described d, sr_recompute recompute) {
    sr_model *model = model_of(gpu, &d);
    const sr_pass_setup setup = {.B = B, .T = T, .train = true};
    const sr_pass_setup again = {.B = B, .T = T, .train = true, .recompute = recompute};
    sr_pass *plain, *repeated;
    float losses[ROWS];
    void *stats;
    assert_int_equal(sr_pass_create(&plain, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_create(&repeated, model, &again), SRNN_OK);
    assert_int_equal(sr_device_allocate(gpu->device, &stats, sizeof(sr_step_stats)), SRNN_OK);
    assert_int_equal(sr_device_zero(gpu->device, stats, sizeof(sr_step_stats)), SRNN_OK);
    for (uint64_t round = 0; round < 3; round++) {
        int32_t ids[ROWS], targets[ROWS];
        small_ids(ids, ROWS, V, 2 * round);
        small_ids(targets, ROWS, V, 2 * round + 1);
        assert_int_equal(sr_pass_zero_gradient(plain), SRNN_OK);
        assert_int_equal(sr_pass_zero_gradient(repeated), SRNN_OK);
        assert_int_equal(sr_pass_gradients(plain, losses, ids, targets, 0.01), SRNN_OK);
        assert_int_equal(sr_pass_step(repeated, stats, ids, targets, 0.01), SRNN_OK);
        float *want = gradients_of(plain, model), *got = gradients_of(repeated, model);
        assert_memory_equal(got, want, model->table.numbers * sizeof *got);
        free(want), free(got);
    }
    sr_device_release(gpu->device, stats);
    sr_pass_free(plain);
    sr_pass_free(repeated);
    sr_model_free(model);
}

static void captured_steps(void **state) {
    (void)state;
    check_captured(plain("gate,decay=learned,layer=mamba_block,short_conv=4"), SR_RECOMPUTE_NONE);
    check_captured(plain("gate,layer=grela"), SR_RECOMPUTE_ATTENTION);
    check_captured(plain(wirings[WIRINGS - 2]), SR_RECOMPUTE_ATTENTION);
    check_captured(plain("gated_delta_net"), SR_RECOMPUTE_BLOCK);
    check_captured(plain(aveys[0]), SR_RECOMPUTE_BLOCK);
    check_captured(families[FAMILIES - 2], SR_RECOMPUTE_BLOCK);
    check_captured(families[9], SR_RECOMPUTE_ATTENTION); /* two mixers side by side */
}

/* ---- feeding */

enum { BEFORE = 5, STEPS = 4, FED = BEFORE + STEPS };

/* logits (STEPS, B, V) of tokens fed one by one after BEFORE at once. */
static void feed(float *logits, sr_session *session, const int32_t *ids) {
    int32_t piece[B * BEFORE];
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    for (int i = 0; i < B * BEFORE; i++)
        piece[i] = ids[i / BEFORE * FED + i % BEFORE];
    assert_int_equal(sr_session_feed(session, logits, piece, BEFORE), SRNN_OK);
    for (int t = 0; t < STEPS; t++) {
        for (int b = 0; b < B; b++)
            piece[b] = ids[b * FED + BEFORE + t];
        assert_int_equal(sr_session_feed(session, logits + (size_t)t * B * V, piece, 1), SRNN_OK);
    }
}

static sr_session *session_of(sr_model *model) {
    sr_session *session;
    const sr_session_setup setup = {.B = B, .T = BEFORE};
    if (sr_session_create(&session, model, &setup) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    return session;
}

/* The second time the GPU replays what it captured. */
static void check_feeding(described d) {
    enum { NUMBERS = STEPS * B * V };
    float want[NUMBERS], got[NUMBERS], again[NUMBERS];
    int32_t ids[B * FED];
    sr_model *model = model_of(cpu, &d), *moved = model_of(gpu, &d);
    sr_session *session = session_of(model), *other = session_of(moved);
    small_ids(ids, B * FED, V, 8);
    feed(want, session, ids);
    feed(got, other, ids);
    feed(again, other, ids);
    if (!(small_error(got, want, NUMBERS) < (is_bf16() ? 0.05 : 1e-4)))
        fail_msg("%s: off by %g", d.attention, small_error(got, want, NUMBERS));
    assert_memory_equal(again, got, sizeof got);
    sr_session_free(session);
    sr_session_free(other);
    sr_model_free(model);
    sr_model_free(moved);
}

static void feeding(void **state) {
    (void)state;
    for (int i = 0; i < WIRINGS;
         i += is_bf16() ? 3 : 1) /* the fused kernels of bf16 are slow here */
        check_feeding(plain(wirings[i]));
}

static void system_feeding(void **state) {
    (void)state;
    for (size_t i = (size_t)is_bf16(); i < sizeof named / sizeof *named; i += 2)
        check_feeding(plain(named[i]));
}

static void family_feeding(void **state) {
    (void)state;
    for (int i = is_bf16(); i < FAMILIES; i += 2)
        check_feeding(families[i]);
}

/* Without masters: what products and embeddings read is bf16, the rest float; the same bits. */
static void check_read_only(described d) {
    enum { NUMBERS = STEPS * B * V };
    float want[NUMBERS], got[NUMBERS];
    int32_t ids[B * FED];
    sr_model *model = model_of(gpu, &d), *read;
    assert_int_equal(sr_model_create_read_only(&read, gpu, &model->config), SRNN_OK);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const sr_matrix to = sr_model_place(read, spec);
        float *numbers = malloc(spec->count * sizeof *numbers);
        assert_int_equal(sr_device_copy_out(gpu->device, numbers, model->weights + spec->start,
                                            spec->count * sizeof *numbers),
                         SRNN_OK);
        for (size_t n = 0; n < spec->count; n++)
            numbers[n] = sr_bf16_float(sr_bf16_of(numbers[n]));
        assert_int_equal(sr_stream_floats(gpu, to, numbers), SRNN_OK);
        assert_int_equal(sr_device_copy_in(gpu->device, model->weights + spec->start, numbers,
                                           spec->count * sizeof *numbers),
                         SRNN_OK);
        free(numbers);
    }
    assert_int_equal(sr_model_narrow(model), SRNN_OK);
    sr_session *session = session_of(model), *other = session_of(read);
    small_ids(ids, B * FED, V, 8);
    feed(want, session, ids);
    feed(got, other, ids);
    assert_memory_equal(got, want, sizeof want);
    sr_session_free(session);
    sr_session_free(other);
    sr_model_free(model);
    sr_model_free(read);
}

static void read_only_feeding(void **state) {
    (void)state;
    if (!is_bf16())
        skip();
    check_read_only(plain("gated_delta_net"));
    for (int i = 0; i < FAMILIES; i += 3)
        check_read_only(families[i]);
}

static void avey_feeding(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++)
        check_feeding(plain(aveys[i]));
}

static int open_gpu(bool bf16) {
    const sr_backend_settings settings = {.device = "cuda", .bf16 = bf16};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int open_float(void **state) {
    (void)state;
    return open_gpu(false);
}

static int open_bf16(void **state) {
    (void)state;
    return open_gpu(true);
}

static int close_gpu(void **state) {
    (void)state;
    sr_backend_free(gpu);
    return 0;
}

int main(void) {
    const sr_backend_settings host = {.threads = 1};
    if (open_gpu(false) != 0) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    sr_backend_free(gpu);
    assert_int_equal(sr_backend_create(&cpu, &host), SRNN_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps),          cmocka_unit_test(systems),
        cmocka_unit_test(family_steps),   cmocka_unit_test(avey_steps),
        cmocka_unit_test(captured_steps), cmocka_unit_test(feeding),
        cmocka_unit_test(system_feeding), cmocka_unit_test(family_feeding),
        cmocka_unit_test(avey_feeding),   cmocka_unit_test(read_only_feeding)};
    const int failed = cmocka_run_group_tests_name("float", tests, open_float, close_gpu) +
                       cmocka_run_group_tests_name("bf16", tests, open_bf16, close_gpu);
    sr_backend_free(cpu);
    return failed;
}
