/* test_qk_clip.c: QK-clip against scores computed in double from what the layers read. */
#include "base/random.h"
#include "small_model.h"
#include "train/qk_clip.h"

enum { B = 2, T = 70, ROWS = B * T, L = 2, H = 4, D = 6, MOST_V = 23 };

static int32_t ids[ROWS], targets[ROWS];
/* The second row is two documents. */
static const int64_t offsets[] = {0, T, T + 33, ROWS};
enum { DOCUMENTS = 3 };

typedef struct scores {
    int heads_of_keys, window;
    double largest[L][H];
} scores;

static const float *at(srnn_tensor x, int heads, int64_t row, int head) {
    const int64_t b = row / T, t = row % T;
    const bool strided = x.batch || x.head || x.time;
    const int64_t batch = strided ? x.batch : (int64_t)heads * T * D;
    const int64_t of_head = strided ? x.head : (int64_t)T * D, time = strided ? x.time : D;
    return (const float *)x.data + b * batch + head * of_head + t * time;
}

static srnn_status see(void *context, int layer, const srnn_operands *in, srnn_tensor o) {
    scores *s = context;
    (void)o;
    for (int document = 0; document < DOCUMENTS; document++)
        for (int h = 0; h < H; h++)
            for (int64_t i = offsets[document]; i < offsets[document + 1]; i++)
                for (int64_t j = offsets[document]; j <= i; j++) {
                    const float *q = at(in->q, H, i, h);
                    const float *k = at(in->k, s->heads_of_keys, j, h / (H / s->heads_of_keys));
                    double sum = 0;
                    for (int d = 0; d < D; d++)
                        sum += (double)q[d] * (double)k[d] / sqrt(D);
                    if (!s->window || i - j < s->window)
                        s->largest[layer][h] = fmax(s->largest[layer][h], sum);
                }
    return SRNN_OK;
}

static sr_model *model_on(sr_backend *backend, const char *attention, int heads_of_keys) {
    sr_backend *cpu;
    sr_model *model;
    sr_model_config config = small_config(SR_MLP_SWIGLU, true, false);
    config.Hkv = heads_of_keys;
    config.positions = T;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    sr_model *from = small_model_of(cpu, attention, &config);
    assert_int_equal(sr_model_create(&model, backend, &from->config), SRNN_OK);
    assert_int_equal(sr_device_copy_in(backend->device, model->weights, from->weights,
                                       from->table.numbers * sizeof(float)),
                     SRNN_OK);
    assert_int_equal(sr_model_narrow(model), SRNN_OK);
    sr_model_free(from);
    sr_backend_free(cpu);
    return model;
}

/* A forward pass; with `found` an observer computes the largest scores, on any device. */
static sr_pass *look(sr_model *model, scores *found) {
    const sr_pass_setup setup = {.B = B,
                                 .T = T,
                                 .train = true,
                                 .offsets = offsets,
                                 .documents = DOCUMENTS,
                                 .observer = {found ? see : NULL, found}};
    sr_pass *pass;
    float losses[ROWS];
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    if (found)
        assert_int_equal(sr_pass_losses(pass, losses, ids, targets), SRNN_OK);
    return pass;
}

static float *weights_of(const sr_model *model) {
    float *weights = malloc(model->table.numbers * sizeof *weights);
    assert_int_equal(sr_device_copy_out(model->backend->device, weights, model->weights,
                                        model->table.numbers * sizeof *weights),
                     SRNN_OK);
    return weights;
}

/* What a weight should be multiplied by. */
static double factor_of(const sr_tensor_spec *spec, size_t n, const scores *s, double limit) {
    const bool q = strstr(spec->name, "q_proj"), k = strstr(spec->name, "k_proj");
    const bool shared = s->heads_of_keys < H;
    if (!q && (!k || shared))
        return 1;
    const int head = (int)(n / (spec->count / (size_t)H));
    const double largest = s->largest[spec->layer][head];
    const double factor = largest > limit ? limit / largest : 1;
    return shared ? factor : sqrt(factor);
}

/* The update of two ranks, each with half of the numbers, and with scores of its own: the first has
 * seen nothing. */
static void clip_in_halves(sr_model *model, double limit, bool applied) {
    const int64_t numbers = (int64_t)model->table.numbers, half = numbers / 2 / 16 * 16;
    const sr_step_stats stats = {.applied = applied};
    float losses[ROWS];
    sr_pass *pass = look(model, NULL);
    sr_qk_clip *clip;
    void *memory;
    srnn_device *device = model->backend->device;
    assert_int_equal(sr_device_allocate(device, &memory, sizeof stats), SRNN_OK);
    assert_int_equal(sr_device_copy_in(device, memory, &stats, sizeof stats), SRNN_OK);
    assert_int_equal(sr_qk_clip_create(&clip, model, pass, limit, 1, 2), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, losses, ids, targets), SRNN_OK);
    for (int rank = 0; rank < 2; rank++) {
        const sr_share share = {rank ? half : 0, rank ? half : 0, rank ? numbers - half : half};
        assert_int_equal(sr_qk_clip_update(clip, memory, NULL, &share, 1), SRNN_OK);
    }
    sr_pass_free(pass);
    sr_qk_clip_free(clip);
    sr_device_release(device, memory);
}

/* Weights of heads above the limit are scaled, no others, and the scores of the same batch are then
 * at the limit. */
static void check(const sr_backend_settings *settings, const char *attention, int heads_of_keys,
                  double error) {
    sr_backend *backend;
    assert_int_equal(sr_backend_create(&backend, settings), SRNN_OK);
    sr_model *model = model_on(backend, attention, heads_of_keys);
    scores before = {.heads_of_keys = heads_of_keys, .window = strstr(attention, "window") ? 9 : 0};
    scores after = before;
    sr_pass_free(look(model, &before));
    double limit = 0; /* between the heads */
    for (int h = 0; h < H; h++)
        limit += before.largest[0][h] / H;
    float *old = weights_of(model);
    clip_in_halves(model, limit, false);
    float *same = weights_of(model);
    assert_memory_equal(old, same, model->table.numbers * sizeof *old);
    clip_in_halves(model, limit, true);
    float *new = weights_of(model);
    int scaled = 0;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        for (size_t n = 0; n < spec->count; n++) {
            const double factor = factor_of(spec, n, &before, limit);
            const double was = (double)old[spec->start + n], is = (double)new[spec->start + n];
            scaled += factor < 1;
            if (factor < 1 ? fabs(is - factor * was) > error * fabs(was) : is != was)
                fail_msg("%s[%zu]: %g became %g, not %g", spec->name, n, was, is, factor * was);
        }
    }
    assert_true(scaled > 0);
    sr_pass_free(look(model, &after));
    for (int h = 0; h < H; h++) /* the second layer reads what the first makes of it */
        if (fabs(after.largest[0][h] - fmin(before.largest[0][h], limit)) > 4 * error * limit)
            fail_msg("head %d: %g became %g, the limit is %g", h, before.largest[0][h],
                     after.largest[0][h], limit);
    free(old), free(same), free(new);
    sr_model_free(model);
    sr_backend_free(backend);
}

static void check_all(const sr_backend_settings *settings, double error) {
    check(settings, "softmax", 4, error);
    check(settings, "softmax", 2, error);
    check(settings, "gate,window=9", 4, error);
}

static void on_cpus(void **state) {
    (void)state;
    check_all(&(sr_backend_settings){.threads = 2}, 1e-5);
}

static void on_gpus(void **state) {
    (void)state;
    sr_backend *gpu;
    if (sr_backend_create(&gpu, &(sr_backend_settings){.device = "cuda"}) != SRNN_OK)
        skip();
    sr_backend_free(gpu);
    check_all(&(sr_backend_settings){.device = "cuda"}, 1e-5);
    check_all(&(sr_backend_settings){.device = "cuda", .bf16 = true}, 0.01);
}

/* Scores behind norms, features or convolutions are not in proportion to the weights. */
static void layers_without_such_scores(void **state) {
    (void)state;
    static const char *const attentions[] = {"linear_elu", "order:2", "gla", "softmax,qk_norm=head",
                                             "mamba2"};
    sr_backend *cpu;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    for (size_t i = 0; i < sizeof attentions / sizeof *attentions; i++) {
        sr_model *model = small_model(cpu, attentions[i], SR_MLP_SWIGLU, false, false);
        const sr_pass_setup setup = {.B = 1, .T = 8, .train = true};
        sr_pass *pass;
        sr_qk_clip *clip;
        assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
        assert_int_equal(sr_qk_clip_create(&clip, model, pass, 1, 0, 1), SRNN_ERR_UNSUPPORTED);
        sr_pass_free(pass);
        sr_model_free(model);
    }
    sr_backend_free(cpu);
}

int main(void) {
    small_ids(ids, ROWS, MOST_V, 5);
    small_ids(targets, ROWS, MOST_V, 6);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_cpus),
        cmocka_unit_test(on_gpus),
        cmocka_unit_test(layers_without_such_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
