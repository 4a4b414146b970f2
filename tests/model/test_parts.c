/* test_parts.c: features of published families: gradients, decoding in pieces, and files. */
#include "model/files/model_folder.h"
#include "model/mixers.h"
#include "model/session.h"
#include "small_model.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { B = 2, T = 13, ROWS = B * T };

static sr_backend *cpu;
static char folder[] = "/tmp/softrnn_parts_XXXXXX";

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    return sr_backend_create(&cpu, &(sr_backend_settings){.threads = 2}) == SRNN_OK ? 0 : -1;
}

static int clean_up(void **state) {
    (void)state;
    char path[256];
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        unlink(path);
    }
    sr_backend_free(cpu);
    return rmdir(folder);
}

/* A model with some of the features. */
typedef struct parted {
    const char *attention;
    sr_mlp mlp;
    sr_activation activation;
    bool bias, conv_unbiased, conv_layer_bias, layer_norm, minus_one;
    double embedding, residual, logits, cap;
    double limit, sharpness; /* of the activation */
    sr_experts experts;
    double factors[SR_FACTORS];
    bool parallel_bias, parallel_o_bias;
} parted;

static const parted models[] = {
    {.attention = "softmax,qk_norm=head"},
    {.attention = "softmax,qk_norm=row,block_norm=after", .bias = true},
    {.attention = "softmax,qk_norm=head_rotated,rope_part=0.7"},
    {.attention = "softmax,qk_norm=layer,block_norm=parallel", .layer_norm = true},
    {.attention = "softmax,rope_part=0.34,rope_pairs=neighbours,block_norm=both"},
    {.attention = "0:softmax,rope_theta=7,1:softmax,position=none", .minus_one = true},
    {.attention = "softmax,softmax_scale=0.2",
     .embedding = 3,
     .residual = 0.4,
     .logits = 0.5,
     .cap = 4},
    {.attention = "softmax,qk_norm=head,block_norm=both",
     .mlp = SR_MLP_GATED,
     .activation = SR_ACTIVATION_GELU_TANH,
     .minus_one = true,
     .embedding = 4.9,
     .cap = 3},
    {.attention = "softmax,layer=nala,output_gate=sigmoid,gate_width=channel,qk_norm=head"},
    {.attention = "0:gated_delta_net,1:softmax,qk_norm=row,block_norm=after"},
    {.attention = "softmax", .mlp = SR_MLP_PLAIN, .activation = SR_ACTIVATION_XIELU},
    {.attention = "softmax",
     .mlp = SR_MLP_PLAIN,
     .activation = SR_ACTIVATION_RELU_SQUARE,
     .layer_norm = true,
     .minus_one = true,
     .bias = true},
    {.attention = "softmax", .mlp = SR_MLP_GATED, .activation = SR_ACTIVATION_GELU},
    {.attention = "softmax", .mlp = SR_MLP_PLAIN, .activation = SR_ACTIVATION_SILU},
    {.attention = "linear_elu,qk_norm=head,rope_part=0.34,block_norm=after", .residual = 0.5},
    {.attention = "0:mamba2,block_norm=both,1:order:2,qk_norm=head", .residual = 2},
    {.attention = "mamba2,short_conv=3", .conv_unbiased = true},
    {.attention = "0:layer=conv,position=none,short_conv=3,conv_activation=none,1:softmax",
     .bias = true},
    {.attention = "layer=conv,position=none,short_conv=4,block_norm=both",
     .conv_layer_bias = true,
     .residual = 0.5},
    {.attention = "0:layer=conv,position=none,short_conv=1,block_norm=parallel,1:mamba2",
     .mlp = SR_MLP_GATED,
     .activation = SR_ACTIVATION_IDENTITY},
    {.attention = "softmax+mamba2"},
    {.attention = "softmax,softmax_scale=0.3+mamba2,norm=none,short_conv=3",
     .bias = true,
     .factors = {0.7, 1.3, 1.25, 0.6, 0.35, 0.25, 1.2, 0.5, 0.3, 0.9, 0.4},
     .parallel_o_bias = true},
    {.attention = "0:gla+linear_elu,position=none,qk_norm=head,1:order:2,block_norm=both+"
                  "mamba2,output_gate=none,post_gate,norm_width=row",
     .residual = 0.5,
     .factors = {[SR_FACTOR_PARALLEL_OUT] = 0.5, [SR_FACTOR_GATE] = 2},
     .parallel_bias = true},
    {.attention = "layer=conv,position=none,short_conv=3+position=none,block_norm=before",
     .mlp = SR_MLP_NONE,
     .factors = {[SR_FACTOR_IN] = 0.5}},
    {.attention = "softmax", .experts = {.count = 5, .chosen = 2, .width = 11}},
    {.attention = "softmax,block_norm=parallel",
     .experts = {.count = 3, .chosen = 3, .width = 20, .renormalised = true}},
    {.attention = "softmax,block_norm=both",
     .residual = 0.5,
     .experts = {.count = 4, .chosen = 3, .width = 9, .shared_width = 13, .plain = {1}}},
    {.attention = "softmax,sink=learned",
     .mlp = SR_MLP_GATED,
     .activation = SR_ACTIVATION_SILU_CLAMPED,
     .bias = true,
     .limit = 0.3,
     .sharpness = 1.7,
     .experts = {.count = 4, .chosen = 2, .width = 7, .renormalised = true, .router_bias = true}},
};
enum { MODELS = sizeof models / sizeof *models };

static sr_model *make(sr_backend *backend, const parted *p) {
    sr_model_config config = small_config(p->mlp, p->bias, false);
    config.activation = p->activation;
    config.conv_unbiased = p->conv_unbiased;
    config.conv_layer_bias = p->conv_layer_bias;
    config.layer_norm = p->layer_norm;
    config.norm_is_minus_one = p->minus_one;
    config.embedding_multiplier = p->embedding;
    config.residual_multiplier = p->residual;
    config.logit_multiplier = p->logits;
    config.logit_cap = p->cap;
    config.activation_limit = p->limit;
    config.activation_sharpness = p->sharpness;
    config.experts = p->experts;
    memcpy(config.factors, p->factors, sizeof config.factors);
    config.parallel_bias = p->parallel_bias;
    config.parallel_o_bias = p->parallel_o_bias;
    return small_model_of(backend, p->attention, &config);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        sr_model *model = make(cpu, &models[m]);
        small_check_slopes(model, models[m].attention, 3e-3);
        sr_model_free(model);
    }
}

/* Gradients of a batch, with activations saved or recomputed, and other thread counts: the same
 * bits. */
static float *gradients_of(sr_backend *backend, const parted *p, sr_recompute recompute,
                           size_t *numbers) {
    sr_model *model = make(backend, p);
    const sr_pass_setup setup = {.B = B, .T = T, .train = true, .recompute = recompute};
    int32_t ids[ROWS], targets[ROWS];
    float losses[ROWS];
    sr_pass *pass;
    small_ids(ids, ROWS, model->config.V, 5);
    small_ids(targets, ROWS, model->config.V, 6);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0), SRNN_OK);
    *numbers = model->table.numbers;
    float *copy = malloc(*numbers * sizeof *copy);
    memcpy(copy, sr_pass_gradient(pass), *numbers * sizeof *copy);
    sr_pass_free(pass);
    sr_model_free(model);
    return copy;
}

static void bits_stay(void **state) {
    (void)state;
    sr_backend *other;
    assert_int_equal(sr_backend_create(&other, &(sr_backend_settings){.threads = 3}), SRNN_OK);
    for (int m = 0; m < MODELS; m++) {
        size_t numbers;
        float *saved = gradients_of(cpu, &models[m], SR_RECOMPUTE_NONE, &numbers);
        for (sr_recompute what = SR_RECOMPUTE_ATTENTION; what <= SR_RECOMPUTE_BLOCK; what++) {
            float *again = gradients_of(other, &models[m], what, &numbers);
            assert_memory_equal(saved, again, numbers * sizeof *saved);
            free(again);
        }
        free(saved);
    }
    sr_backend_free(other);
}

/* A prompt and then single tokens give the logits of the whole text. */
static void check_pieces(sr_model *model, srnn_form form) {
    enum { PROMPT = 5 };
    const size_t V = (size_t)model->config.V;
    const sr_pass_setup setup = {.B = 1, .T = T};
    const sr_session_setup fed = {.B = 1, .T = PROMPT, .form = form};
    float *want = malloc(T * V * sizeof *want), *got = malloc(V * sizeof *got);
    int32_t ids[T];
    sr_pass *pass;
    sr_session *session;
    small_ids(ids, T, model->config.V, 8);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, want, ids), SRNN_OK);
    assert_int_equal(sr_session_create(&session, model, &fed), SRNN_OK);
    for (int t = 0; t < T; t += t ? 1 : PROMPT) {
        const int count = t ? 1 : PROMPT;
        assert_int_equal(sr_session_feed(session, got, ids + t, count), SRNN_OK);
        assert_true(small_error(got, want + (size_t)(t + count - 1) * V, V) < 1e-5);
    }
    sr_session_free(session);
    sr_pass_free(pass);
    free(want);
    free(got);
}

static void pieces_give_the_same(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        sr_model *model = make(cpu, &models[m]);
        check_pieces(model, SRNN_FORM_PARALLEL);
        if (isfinite(sr_mixer_row_of(&model->config)->state_bytes(&model->config)))
            check_pieces(model, SRNN_FORM_RECURRENT);
        sr_model_free(model);
    }
}

/* softrnn's own files store all of them. */
static void files_hold_everything(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        sr_model *model = make(cpu, &models[m]), *loaded;
        float want[T * 23], got[T * 23];
        int32_t ids[T];
        small_ids(ids, T, model->config.V, 8);
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        const srnn_status status = sr_model_load(&loaded, cpu, folder);
        if (status != SRNN_OK)
            fail_msg("%s: %s", models[m].attention, srnn_error_detail());
        sr_model *const both[] = {model, loaded};
        for (int i = 0; i < 2; i++) {
            sr_pass *pass;
            assert_int_equal(sr_pass_create(&pass, both[i], &(sr_pass_setup){.B = 1, .T = T}),
                             SRNN_OK);
            assert_int_equal(sr_pass_logits(pass, i ? got : want, ids), SRNN_OK);
            sr_pass_free(pass);
        }
        assert_memory_equal(want, got, sizeof want);
        sr_model_free(model);
        sr_model_free(loaded);
    }
}

/* Logits of a whole text, then of the same fed in pieces; both (T, V). */
static void check_same_logits(sr_model *model, sr_model *other) {
    const size_t numbers = T * (size_t)model->config.V;
    sr_model *const both[] = {model, other};
    float *logits[2], *last[2];
    int32_t ids[T];
    small_ids(ids, T, model->config.V, 8);
    for (int i = 0; i < 2; i++) {
        sr_pass *pass;
        sr_session *session;
        logits[i] = malloc(numbers * sizeof **logits);
        last[i] = malloc(numbers * sizeof **last);
        assert_int_equal(sr_pass_create(&pass, both[i], &(sr_pass_setup){.B = 1, .T = T}), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, logits[i], ids), SRNN_OK);
        assert_int_equal(sr_session_create(&session, both[i], &(sr_session_setup){.B = 1, .T = T}),
                         SRNN_OK);
        assert_int_equal(sr_session_feed(session, last[i], ids, T - 1), SRNN_OK);
        assert_int_equal(sr_session_feed(session, last[i], ids + T - 1, 1), SRNN_OK);
        sr_session_free(session);
        sr_pass_free(pass);
    }
    assert_memory_equal(logits[0], logits[1], numbers * sizeof **logits);
    assert_memory_equal(last[0], last[1], (size_t)model->config.V * sizeof **last);
    for (int i = 0; i < 2; i++)
        free(logits[i]), free(last[i]);
}

/* Files in bf16, read for inference: no float copy, and the same bits. */
static void read_only_models(void **state) {
    (void)state;
    const sr_backend_settings settings = {.threads = 2, .bf16 = true};
    sr_backend *narrow;
    assert_int_equal(sr_backend_create(&narrow, &settings), SRNN_OK);
    for (int m = 0; m < MODELS; m++) {
        sr_model *model = make(cpu, &models[m]), *whole, *read;
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_F32), SRNN_OK);
        assert_int_equal(sr_model_load_as(&read, narrow, folder,
                                          &(sr_load_setup){.read_only = true}),
                         SRNN_OK);
        assert_non_null(read->weights); /* floats stay floats */
        sr_model_free(read);
        assert_int_equal(sr_model_save(model, folder, SR_DTYPE_BF16), SRNN_OK);
        assert_int_equal(sr_model_load(&whole, narrow, folder), SRNN_OK);
        assert_int_equal(sr_model_load_as(&read, narrow, folder,
                                          &(sr_load_setup){.read_only = true}),
                         SRNN_OK);
        assert_null(read->weights);
        assert_true(read->wide_numbers < read->table.numbers / 2);
        check_same_logits(whole, read);
        sr_model_free(model);
        sr_model_free(whole);
        sr_model_free(read);
    }
    sr_backend_free(narrow);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_slopes), cmocka_unit_test(bits_stay),
        cmocka_unit_test(pieces_give_the_same), cmocka_unit_test(files_hold_everything),
        cmocka_unit_test(read_only_models),
    };
    return cmocka_run_group_tests(tests, set_up, clean_up);
}
