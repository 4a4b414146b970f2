/* test_model_cuda.c: a model loaded from files to a GPU, real or emulated, computes with the loaded
 * weights. */
#include "base/bf16.h"
#include "files/folder.h"
#include "model/files/model_folder.h"
#include "model/session.h"
#include "small_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sr_backend *gpu, *cpu;
static char folder[] = "/tmp/test_model_cuda_XXXXXX";
static char saved[64], exported[64];

static int write_models(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(saved, sizeof saved, "%s/model", folder);
    snprintf(exported, sizeof exported, "%s/model.bin", folder);
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, true);
    model->config.rope_theta = 10000; /* the only value in llama2.c */
    assert_int_equal(sr_folder_make(saved), SRNN_OK);
    assert_int_equal(sr_model_save(model, saved, SR_DTYPE_F32), SRNN_OK);
    assert_int_equal(sr_model_save_llama2c(model, exported), SRNN_OK);
    sr_model_free(model);
    return 0;
}

/* The working copy is the rounded master weights. */
static void check_working(const sr_model *model) {
    const size_t count = model->table.numbers;
    float *weights = malloc(count * sizeof *weights);
    uint16_t *working = malloc(count * sizeof *working);
    assert_true(weights && working);
    assert_int_equal(sr_device_copy_out(gpu->device, weights, model->weights,
                                        count * sizeof *weights),
                     SRNN_OK);
    assert_int_equal(sr_device_copy_out(gpu->device, working, model->working,
                                        count * sizeof *working),
                     SRNN_OK);
    double size = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(working[i], sr_bf16_of(weights[i]));
        size += fabs((double)weights[i]);
    }
    assert_true(size > 0);
    free(weights);
    free(working);
}

static void folders(void **state) {
    (void)state;
    sr_model *model, *other;
    size_t shared;
    assert_int_equal(sr_model_load(&model, gpu, saved), SRNN_OK);
    check_working(model);
    assert_int_equal(sr_model_create(&other, gpu, &model->config), SRNN_OK);
    assert_int_equal(sr_model_load_shared(other, &shared, saved), SRNN_OK);
    check_working(other);
    sr_model_free(other);
    sr_model_free(model);
}

static void llama2c_files(void **state) {
    (void)state;
    sr_model *model;
    assert_int_equal(sr_model_load_llama2c(&model, gpu, exported), SRNN_OK);
    check_working(model);
    sr_model_free(model);
}

/* ---- feeding one token at a time ---- */

enum { BEFORE = 140, STEPS = 4, LONGEST = BEFORE + STEPS, TEXTS = 9, MANY = 33 };

static sr_model *model_of(sr_backend *backend, const char *attention, int D) {
    sr_model_config config = {.V = 71,
                              .C = 128,
                              .F = 192,
                              .L = 2,
                              .H = 4,
                              .Hkv = 2,
                              .D = D,
                              .positions = LONGEST,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 100,
                              .bos = 1,
                              .eos = 2};
    sr_model *model;
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, backend, &config), SRNN_OK);
    sr_model_config_free(&config);
    return model;
}

/* Wide enough for every kernel of generation; the heads of a layer are not as wide as a warp's
 * vectors. */
static sr_model *wide_model(sr_backend *backend, const char *attention) {
    return model_of(backend, attention, 32);
}

/* The session has chosen the first largest logit of each row of (B, V). */
static void check_chosen(sr_session *session, const float *logits, int B) {
    int32_t chosen[MANY];
    assert_int_equal(sr_session_chosen(session, chosen), SRNN_OK);
    for (int b = 0; b < B; b++) {
        int32_t largest = 0;
        for (int32_t v = 1; v < 71; v++)
            if (logits[b * 71 + v] > logits[b * 71 + largest])
                largest = v;
        assert_int_equal(chosen[b], largest);
    }
}

/* logits (STEPS, B, V) of tokens fed one by one after `before` at once, all from the same ids (B,
 * LONGEST). */
static void feed_steps(float *logits, sr_session *session, const int32_t *ids, int B, int before) {
    int32_t piece[MANY * BEFORE];
    for (int b = 0; b < B; b++)
        for (int t = 0; t < before; t++)
            piece[b * before + t] = ids[b * LONGEST + t];
    if (before > 0)
        assert_int_equal(sr_session_feed(session, logits, piece, before), SRNN_OK);
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < B; b++)
            piece[b] = ids[b * LONGEST + before + step];
        assert_int_equal(sr_session_feed(session, logits + (size_t)(step * B) * 71, piece, 1),
                         SRNN_OK);
        check_chosen(session, logits + (size_t)(step * B) * 71, B);
    }
}

/* Feeding on a GPU gives the results of the CPU, and the same bits a second time: first by
 * launching kernels, then by replaying the captured graph. */
static void check_feeding(const char *attention, srnn_form form, int B, int before) {
    const size_t numbers = (size_t)(STEPS * B) * 71;
    const sr_session_setup setup = {.B = B, .T = BEFORE, .form = form};
    float *want = malloc(numbers * sizeof *want), *got = malloc(numbers * sizeof *got);
    float *again = malloc(numbers * sizeof *again);
    int32_t ids[MANY * LONGEST];
    sr_session *session;
    sr_model *model = wide_model(cpu, attention), *moved;
    assert_true(want && got && again);
    assert_int_equal(sr_model_initialise(model, 0.1, 1), SRNN_OK);
    small_ids(ids, B * LONGEST, 71, 5);
    assert_int_equal(sr_session_create(&session, model, &setup), SRNN_OK);
    feed_steps(want, session, ids, B, before);
    sr_session_free(session);
    moved = wide_model(gpu, attention);
    assert_int_equal(sr_model_initialise(moved, 0.1, 1), SRNN_OK);
    assert_int_equal(sr_session_create(&session, moved, &setup), SRNN_OK);
    feed_steps(got, session, ids, B, before);
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    feed_steps(again, session, ids, B, before);
    sr_session_free(session);
    if (!(small_error(got, want, numbers) < 0.02))
        fail_msg("%s, %d texts behind %d tokens: off by %g", attention, B, before,
                 small_error(got, want, numbers));
    assert_memory_equal(got, again, numbers * sizeof *got);
    sr_model_free(model);
    sr_model_free(moved);
    free(want), free(got), free(again);
}

static void feeding(void **state) {
    (void)state;
    check_feeding("softmax", SRNN_FORM_AUTO, 1, 0);
    check_feeding("softmax", SRNN_FORM_AUTO, 1, BEFORE); /* keys shared by several blocks */
    check_feeding("norm", SRNN_FORM_AUTO, 3, 2);
    check_feeding("gated_softmax", SRNN_FORM_AUTO, 4,
                  1); /* other kernels between those that are coalesced */
    check_feeding("gated_softmax_decay", SRNN_FORM_AUTO, 2, 1);
    check_feeding("softmax", SRNN_FORM_AUTO, TEXTS, 2); /* too many for one kernel */
    check_feeding("gated_softmax", SRNN_FORM_AUTO, 5, 1);
    check_feeding("linear_elu", SRNN_FORM_PARALLEL, 3, 1);
    check_feeding("linear_elu", SRNN_FORM_RECURRENT, 1, 2); /* a requested state */
    check_feeding("linear_elu", SRNN_FORM_RECURRENT, 5, 0);
    check_feeding("softmax", SRNN_FORM_AUTO, MANY,
                  2); /* GEMMs of the library, and attention that applies RoPE */
    check_feeding("gated_softmax_plusplus", SRNN_FORM_AUTO, TEXTS,
                  2); /* RoPE there after convolutions too */
}

/* chosen (STEPS, B): the tokens after ids (B, 3), each fed before the next is chosen. */
static void choose_steps(int32_t *chosen, sr_session *session, const int32_t *ids, int B) {
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    assert_int_equal(sr_session_feed_greedy(session, chosen, ids, 3), SRNN_OK);
    for (int step = 1; step < STEPS; step++)
        assert_int_equal(sr_session_feed_greedy(session, chosen + (size_t)(step * B),
                                                chosen + (size_t)((step - 1) * B), 1),
                         SRNN_OK);
}

/* The same, chosen by the device. */
static void follow_steps(int32_t *chosen, sr_session *session, const int32_t *ids, int B) {
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    assert_int_equal(sr_session_feed_greedy(session, chosen, ids, 3), SRNN_OK);
    for (int step = 0; step < STEPS - 1; step++)
        assert_int_equal(sr_session_feed_chosen(session, chosen + (size_t)(step * B)), SRNN_OK);
    assert_int_equal(sr_session_chosen(session, chosen + (size_t)((STEPS - 1) * B)), SRNN_OK);
}

static void check_following(sr_backend *backend, int B) {
    const sr_session_setup setup = {.B = B, .T = BEFORE};
    int32_t ids[TEXTS * 3], want[STEPS * TEXTS], got[STEPS * TEXTS];
    sr_model *model = wide_model(backend, "softmax");
    sr_session *session;
    assert_int_equal(sr_model_initialise(model, 0.1, 1), SRNN_OK);
    assert_int_equal(sr_session_create(&session, model, &setup), SRNN_OK);
    small_ids(ids, B * 3, 71, 5);
    choose_steps(want, session, ids, B);
    for (int again = 0; again < 2; again++) {
        memset(got, -1, sizeof got);
        follow_steps(got, session, ids, B);
        assert_memory_equal(got, want, (size_t)(STEPS * B) * sizeof *got);
        assert_int_equal(sr_session_position(session), 3 + STEPS - 1);
    }
    sr_session_free(session);
    sr_model_free(model);
}

static void following(void **state) {
    (void)state;
    check_following(cpu, 2);
    check_following(gpu, 1);
    check_following(gpu, 4);
    check_following(gpu, TEXTS);
}

/* ---- a step that is captured before the text begins ---- */

static srnn_status (*record)(srnn_device *, void **, srnn_status (*)(void *), void *);
static int recordings;

static srnn_status count_recording(srnn_device *device, void **recording,
                                   srnn_status (*work)(void *), void *context) {
    recordings++;
    return record(device, recording, work, context);
}

/* Prepares the session, which captures `expected` times, and checks that feeding gives the same. */
static void check_ready(sr_session *session, const float *want, const int32_t *ids, int B,
                        int expected) {
    const size_t numbers = (size_t)(STEPS * B) * 71;
    float *got = malloc(numbers * sizeof *got);
    int32_t chosen[MANY];
    assert_non_null(got);
    recordings = 0;
    assert_int_equal(sr_session_prepare(session), SRNN_OK);
    assert_int_equal(recordings, expected);
    assert_int_equal(sr_session_position(session), 0);
    assert_int_equal(sr_session_chosen(session, chosen), SRNN_ERR_ARGUMENT);
    feed_steps(got, session, ids, B, 3);
    assert_int_equal(sr_session_prepare(session), SRNN_OK); /* too late: no effect */
    assert_int_equal(sr_session_position(session), 3 + STEPS);
    assert_int_equal(recordings, expected);
    assert_memory_equal(got, want, numbers * sizeof *got);
    free(got);
}

static void check_preparing(const char *attention, srnn_form form, int B) {
    const sr_session_setup setup = {.B = B, .T = BEFORE, .form = form};
    float *want = malloc((size_t)(STEPS * B) * 71 * sizeof *want);
    int32_t ids[TEXTS * LONGEST];
    sr_session *plain, *session;
    sr_model *model = wide_model(gpu, attention);
    assert_non_null(want);
    assert_int_equal(sr_model_initialise(model, 0.1, 1), SRNN_OK);
    small_ids(ids, B * LONGEST, 71, 5);
    assert_int_equal(sr_session_create(&plain, model, &setup), SRNN_OK);
    feed_steps(want, plain, ids, B, 3);
    assert_int_equal(sr_session_create(&session, model, &setup), SRNN_OK);
    check_ready(session, want, ids, B, 1);
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    check_ready(session, want, ids, B, 0); /* still captured */
    assert_int_equal(sr_session_reset(session), SRNN_OK);
    assert_int_equal(sr_session_grow(session, 5000), SRNN_OK);
    check_ready(session, want, ids, B,
                sr_session_is_recurrent(session) ? 0 : 1); /* the KV cache was reallocated */
    sr_session_free(plain);
    sr_session_free(session);
    sr_model_free(model);
    free(want);
}

static void preparing(void **state) {
    (void)state;
    record = gpu->device->capture;
    gpu->device->capture = count_recording;
    check_preparing("softmax", SRNN_FORM_AUTO, 1);
    check_preparing("gated_softmax_decay", SRNN_FORM_AUTO, 2);
    check_preparing("gated_softmax_plusplus", SRNN_FORM_PARALLEL, 2); /* convolutions */
    check_preparing("linear_elu", SRNN_FORM_AUTO, TEXTS);             /* a state of fixed size */
    check_preparing("linear_elu", SRNN_FORM_PARALLEL, TEXTS);
    gpu->device->capture = record;
}

/* The CPU captures nothing. */
static void preparing_a_cpu(void **state) {
    (void)state;
    sr_model *model = wide_model(cpu, "softmax");
    sr_session *session;
    assert_int_equal(sr_session_create(&session, model, &(sr_session_setup){.B = 1, .T = 1}),
                     SRNN_OK);
    assert_int_equal(sr_session_prepare(session), SRNN_OK);
    assert_int_equal(sr_session_position(session), 0);
    sr_session_free(session);
    sr_model_free(model);
}

/* ---- gradients ---- */

/* Of all weights, in host memory. */
enum { GRADIENT_B = 2, GRADIENT_T = 136 };

static float *gradients_of(sr_model *model, int T, const int32_t *ids, const int32_t *targets,
                           sr_recompute recompute) {
    enum { B = GRADIENT_B };
    const size_t bytes = model->table.numbers * sizeof(float);
    float losses[B * GRADIENT_T], *gradients = malloc(bytes);
    sr_pass *pass;
    assert_non_null(gradients);
    assert_int_equal(sr_model_initialise(model, 0.1, 1), SRNN_OK);
    const sr_pass_setup setup = {.B = B, .T = T, .train = true, .recompute = recompute};
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_zero_gradient(pass), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0 / (B * T)), SRNN_OK);
    assert_int_equal(sr_device_copy_out(model->backend->device, gradients, sr_pass_gradient(pass),
                                        bytes),
                     SRNN_OK);
    sr_pass_free(pass);
    return gradients;
}

/* Heads of the kernels for Hopper (64, 128) and of others: the inverse RoPE is applied once, in
 * whichever kernel. */
static void gradients(void **state) {
    (void)state;
    static const int heads[] = {32, 64, 128};
    int32_t ids[2 * 130], targets[2 * 130];
    small_ids(ids, 2 * 130, 71, 5);
    small_ids(targets, 2 * 130, 71, 6);
    for (size_t n = 0; n < sizeof heads / sizeof *heads; n++) {
        sr_model *model = model_of(cpu, "softmax", heads[n]),
                 *moved = model_of(gpu, "softmax", heads[n]);
        float *want = gradients_of(model, 130, ids, targets, SR_RECOMPUTE_NONE),
              *got = gradients_of(moved, 130, ids, targets, SR_RECOMPUTE_NONE);
        for (size_t i = 0; i < model->table.count; i++) {
            const sr_tensor_spec *spec = &model->table.specs[i];
            const double error = small_error(got + spec->start, want + spec->start, spec->count);
            if (!(error < 0.05))
                fail_msg("heads of %d, %s: off by %g", heads[n], spec->name, error);
        }
        sr_model_free(model);
        sr_model_free(moved);
        free(want), free(got);
    }
}

/* A backend whose products of operands in 8 bits are cuBLASLt's or, if `rounded`, those of the same
 * operands in bf16; NULL: the GPU has no FP8. */
static sr_backend *narrow_backend(bool rounded) {
    const sr_backend_settings settings = {.device = "cuda", .fp8 = true, .fp8_head = true};
    const char *named = getenv("SOFTRNN_CUBLASLT");
    char *before = named ? strdup(named) : NULL;
    sr_backend *backend;
    if (rounded)
        assert_int_equal(setenv("SOFTRNN_CUBLASLT", "none", 1), 0);
    if (sr_backend_create(&backend, &settings) != SRNN_OK)
        assert_non_null(strstr(srnn_error_detail(), "fp8 needs 8.9"));
    if (before)
        assert_int_equal(setenv("SOFTRNN_CUBLASLT", before, 1), 0);
    else
        assert_int_equal(unsetenv("SOFTRNN_CUBLASLT"), 0);
    free(before);
    return backend;
}

/* With operands of 8 bits in all linear layers, as they are multiplied on this GPU and as the same
 * operands are in bf16.
 *
 * Rounding errs by 5 % of a number in E5M2 and by 2.6 % in E4M3 on average (a step is a quarter to
 * an eighth of a number, or half of that; errors are uniform in it, so by a step / sqrt(12)): 5.8 %
 * of a gradient's product. What tensor cores lose of its sum (test_ops_cuda.c) is (K + K / 32)
 * 2^-12 of the largest sum so far at most: 6 % for the longest sums here, of 272 rows, half of that
 * on average. Independent errors add in squares, 1.1 times those of rounding alone; what follows
 * are differences of operands, which rounding to 8 bits can turn into a step, so that gradients of
 * the two ways differ by much more than sums do. Hence both are compared with float: a tensor's
 * error may be 1.25 times that of the same operands in bf16, and neither may be a half, which a
 * scale that is off by one power of two would cause. */
static void check_gradients_in_8_bits(int T) {
    int32_t ids[GRADIENT_B * GRADIENT_T], targets[GRADIENT_B * GRADIENT_T];
    small_ids(ids, GRADIENT_B * T, 71, 5);
    small_ids(targets, GRADIENT_B * T, 71, 6);
    sr_backend *fp8 = narrow_backend(false), *rounding = narrow_backend(true);
    if (!fp8)
        return;
    sr_model *model = model_of(cpu, "softmax", 32), *moved = model_of(fp8, "softmax", 32),
             *rounded = model_of(rounding, "softmax", 32);
    float *want = gradients_of(model, T, ids, targets, SR_RECOMPUTE_NONE),
          *got = gradients_of(moved, T, ids, targets, SR_RECOMPUTE_NONE),
          *in_bf16 = gradients_of(rounded, T, ids, targets, SR_RECOMPUTE_NONE),
          *again = gradients_of(moved, T, ids, targets, SR_RECOMPUTE_BLOCK);
    double largest = 0;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const size_t start = spec->start;
        const double error = small_error(got + start, want + start, spec->count),
                     of_rounding = small_error(in_bf16 + start, want + start, spec->count);
        largest = fmax(largest, error);
        if (!(error < 0.5) || !(error <= 1.25 * of_rounding))
            fail_msg("%s: off by %g, the same operands in bf16 by %g", spec->name, error,
                     of_rounding);
    }
    assert_true(largest > 0.02); /* bf16 is closer: the layers were multiplied in 8 bits */
    assert_memory_equal(got, again, model->table.numbers * sizeof *got);
    sr_model_free(model), sr_model_free(moved), sr_model_free(rounded);
    free(want), free(got), free(in_bf16), free(again);
    sr_backend_free(fp8), sr_backend_free(rounding);
}

/* As many rows as kernels write in 8 bits, a multiple of 16, and others. */
static void gradients_in_8_bits(void **state) {
    (void)state;
    check_gradients_in_8_bits(GRADIENT_T);
    check_gradients_in_8_bits(130);
}

int main(void) {
    const sr_backend_settings host = {.threads = 1}, device = {.device = "cuda", .bf16 = true};
    if (sr_backend_create(&gpu, &device) != SRNN_OK) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    assert_int_equal(sr_backend_create(&cpu, &host), SRNN_OK);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders),   cmocka_unit_test(llama2c_files),
        cmocka_unit_test(feeding),   cmocka_unit_test(following),
        cmocka_unit_test(preparing), cmocka_unit_test(preparing_a_cpu),
        cmocka_unit_test(gradients), cmocka_unit_test(gradients_in_8_bits)};
    const int failed = cmocka_run_group_tests(tests, write_models, NULL);
    sr_folder_remove(folder);
    sr_backend_free(cpu);
    sr_backend_free(gpu);
    return failed;
}
