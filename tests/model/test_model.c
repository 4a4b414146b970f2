/* test_model.c: decoding equals prefill, gradients are slopes, documents do not affect each
 * other. */
#include "attention/cuda/shared/computes.h"
#include "base/random.h"
#include "equation/facts.h"
#include "equation/support.h"
#include "model/mixers.h"
#include "model/pass_parts.h"
#include "model/sampler.h"
#include "model/session.h"
#include "small_model.h"

#include <stdio.h>

enum { B = 2, T = 13, ROWS = B * T };

static sr_backend *cpu;

/* Layers with their own wiring, with convolutions that their authors do not use, and RoPE on keys
 * of another width. Where dividing small rows would bend the loss within a step, an epsilon is
 * large. */
static const char *const layers[] = {
    "forget,short_conv=3,skip=conv:2",
    "mamba2,short_conv=3,skip=conv:2,position=rope",
    "gated_softmax_plusplus_mamba,short_conv=3,skip=conv:2",
    "linear_mamba,short_conv=3,skip=conv:2",
    "gla,short_conv=3,skip=conv:2",
    "gated_delta_net,short_conv=3,skip=conv:2,position=rope",
    "rat,short_conv=3,skip=conv:2,pool=3",
    "grela,short_conv=3,skip=conv:2",
    "nala,feature=elu1,short_conv=3,skip=conv:2",
    "kda,short_conv=3,skip=conv:2,position=rope",
    "kda,layer=kda_fla,decay=bounded,decay_bound=5,norm_epsilon=0.1",
    "gdn2,short_conv=3,skip=conv:2",
    "2mamba,short_conv=3,skip=conv:2,epsilon=1",
    "rwkv7,norm_epsilon=1",
    "0:gla,1:rwkv7,norm_epsilon=1",
    "window=4,sink=learned,cap=5",
    "sigmoid,window=3,score_bias=-1,decay=log_sigmoid",
    "0:linear_elu,sink=learned,1:window=5,sink=zero"};

static float *whole_logits(sr_model *model, const int32_t *ids) {
    const sr_pass_setup setup = {.B = B, .T = T};
    sr_pass *pass;
    float *logits = malloc((size_t)(ROWS * model->config.V) * sizeof *logits);
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, logits, ids), SRNN_OK);
    sr_pass_free(pass);
    return logits;
}

/* Feeds the rows in pieces of the given lengths and gathers all logits. Capacity is reserved for
 * more or fewer tokens in between. */
static float *piece_logits(sr_model *model, const int32_t *ids, const int *pieces) {
    const sr_session_setup setup = {.B = B, .T = T};
    const int V = model->config.V;
    sr_session *session;
    float *all = malloc((size_t)(ROWS * V) * sizeof *all);
    assert_int_equal(sr_session_create(&session, model, &setup), SRNN_OK);
    for (int start = 0; start < T; start += *pieces++) {
        const int length = *pieces;
        int32_t part[ROWS];
        float *logits = malloc((size_t)(B * length * V) * sizeof *logits);
        for (int b = 0; b < B; b++)
            memcpy(part + b * length, ids + b * T + start, (size_t)length * sizeof *part);
        assert_int_equal(sr_session_grow(session, start % 2 == 0 ? 3 : 5 * start), SRNN_OK);
        assert_int_equal(sr_session_feed_all(session, logits, part, length), SRNN_OK);
        for (int b = 0; b < B; b++)
            memcpy(all + (b * T + start) * V, logits + b * length * V,
                   (size_t)(length * V) * sizeof *all);
        free(logits);
    }
    sr_session_free(session);
    return all;
}

static void check_decoding(const char *attention) {
    static const int one[T] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const int some[] = {5, 1, 4, 3};
    sr_model *model = small_model(cpu, attention, SR_MLP_SWIGLU, false, false);
    int32_t ids[ROWS];
    small_ids(ids, ROWS, model->config.V, 3);
    float *want = whole_logits(model, ids);
    const int *const cuts[] = {one, some};
    for (int cut = 0; cut < 2; cut++) {
        float *got = piece_logits(model, ids, cuts[cut]);
        const double error = small_error(got, want, (size_t)(ROWS * model->config.V));
        if (!(error <= 1e-4))
            fail_msg("%s: decoding differs from prefill by %.2e", attention, error);
        free(got);
    }
    free(want);
    sr_model_free(model);
}

/* The token that a session continues with is the one chosen by the last feed, of whatever kind. */
static void chosen_follows_the_last_feed(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false);
    const int V = model->config.V;
    int32_t ids[ROWS], next[B], fed[B];
    float logits[ROWS * 64];
    sr_session *session;
    assert_true(V <= 64);
    small_ids(ids, ROWS, V, 3);
    assert_int_equal(sr_session_create(&session, model, &(sr_session_setup){.B = B, .T = T}),
                     SRNN_OK);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(sr_session_feed_chosen(session, fed), SRNN_ERR_ARGUMENT);
        assert_non_null(strstr(srnn_error_detail(), "nothing was fed"));
        assert_int_equal(sr_session_chosen(session, next), SRNN_ERR_ARGUMENT);
        assert_int_equal(sr_session_feed_greedy(session, next, ids, 3), SRNN_OK);
        assert_int_equal(sr_session_feed_all(session, logits, ids, T), SRNN_OK);
        assert_int_equal(sr_session_chosen(session, next), SRNN_OK);
        for (int b = 0; b < B; b++)
            for (int v = 0; v < V; v++)
                assert_true(logits[(b * T + T - 1) * V + v] <=
                            logits[(b * T + T - 1) * V + next[b]]);
        assert_int_equal(sr_session_feed_chosen(session, fed), SRNN_OK);
        assert_memory_equal(fed, next, sizeof fed);
        assert_int_equal(sr_session_reset(session), SRNN_OK);
    }
    sr_session_free(session);
    sr_model_free(model);
}

static void decoding_is_prefill(void **state) {
    (void)state;
    for (size_t i = 0;
         srnn_variant_at(i) && sr_computes(SR_CUDA_KV_CACHE, &srnn_variant_at(i)->attention, NULL);
         i++)
        check_decoding(srnn_variant_at(i)->name);
    check_decoding("order:2");
    check_decoding("elu:2");
    check_decoding("power:2");
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_decoding(layers[i]);
    check_decoding("0:norm,1-:order:2");
    check_decoding("0:gated_softmax_plusplus,1:linear_elu");
}

/* gpt-oss initialises sinks like its matrices. */
static void sinks_start_like_matrices(void **state) {
    (void)state;
    sr_model *model = small_byte_model(cpu, "sink=learned", 0.02);
    const sr_tensor_spec *spec =
        sr_tensor_table_find(&model->table, "model.layers.1.self_attn.sinks");
    assert_non_null(spec);
    assert_int_equal(spec->count, model->config.H);
    for (size_t h = 0; h < spec->count; h++) {
        const float sink = model->weights[spec->start + h];
        assert_true(sink != 0 && fabsf(sink) < 0.1f);
    }
    sr_model_free(model);
}

/* Along the gradient the loss must rise by its squared norm. */
static void check_slope(const char *attention, sr_mlp mlp, bool bias, bool tied) {
    const double length = strstr(attention, "rwkv7") ? 1e-3 : 3e-3; /* its removal keys bend more */
    sr_model *model = small_model(cpu, attention, mlp, bias, tied);
    small_check_slopes(model, attention, length);
    sr_model_free(model);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    check_slope("softmax", SR_MLP_SWIGLU, true, true);
    check_slope("softmax", SR_MLP_GELU, false, false);
    check_slope("gated_softmax_plusplus", SR_MLP_GELU, true, false);
    check_slope("0:gated_softmax_decay,1:linear_cosine", SR_MLP_SWIGLU, false, true);
    check_slope("order:2", SR_MLP_SWIGLU, false, false);
    check_slope("gated_softmax_plusplus", SR_MLP_NONE, true, true);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        check_slope(layers[i], SR_MLP_SWIGLU, i % 2 == 0, false);
}

/* The weights of all input projections of an attention layer are adjacent, so that a backend can
 * treat them as one matrix. */
static void check_projections(const char *attention, bool bias, int want) {
    sr_model *model = small_model(cpu, attention, SR_MLP_SWIGLU, bias, false);
    size_t end = 0;
    int found = 0;
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        const bool projects = strstr(spec->name, "layers.1.self_attn") &&
                              strstr(spec->name, "_proj.weight") && !strstr(spec->name, "o_proj");
        if (!projects)
            continue;
        if (found++ > 0)
            assert_int_equal(spec->start, end);
        end = spec->start + spec->count;
    }
    assert_int_equal(found, want);
    sr_model_free(model);
}

static void projections_are_one_matrix(void **state) {
    (void)state;
    check_projections("softmax", true, 3);
    check_projections("gated_softmax", false, 5);
    check_projections("linear_elu,decay,value_gate,output_gate", true, 6);
    check_projections("gated_softmax_plusplus", true, 3);
}

/* Bytes that were requested of the device since the count began. */
static size_t counted;
static srnn_status (*counted_allocate)(srnn_device *device, void **out, size_t bytes);

static srnn_status count_allocate(srnn_device *device, void **out, size_t bytes) {
    counted += bytes;
    return counted_allocate(device, out, bytes);
}

/* A pass whose bytes, as it reports them, are those that it took. */
static sr_pass *counted_pass(sr_model *model, const sr_pass_setup *setup) {
    srnn_device *device = model->backend->device;
    sr_pass *pass;
    counted = 0;
    counted_allocate = device->allocate;
    device->allocate = count_allocate;
    const srnn_status status = sr_pass_create(&pass, model, setup);
    device->allocate = counted_allocate;
    if (status != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(counted, sr_pass_bytes(pass));
    return pass;
}

/* The gradients of two batches together, packed and not, host memory; and the bytes of the pass. */
static float *two_batches(size_t *numbers, size_t *bytes, const char *attention,
                          const sr_backend_settings *settings, sr_recompute recompute) {
    static const int64_t offsets[] = {0, 5, 13, ROWS};
    sr_backend *backend;
    int32_t ids[ROWS], targets[ROWS];
    float losses[ROWS];
    assert_int_equal(sr_backend_create(&backend, settings), SRNN_OK);
    sr_model_config config = small_config(SR_MLP_SWIGLU, false, false);
    config.L = 3;
    sr_model *model = small_model_of(backend, attention, &config);
    const sr_pass_setup setup = {.B = B, .T = T, .train = true, .recompute = recompute};
    sr_pass *pass = counted_pass(model, &setup);
    for (uint64_t batch = 0; batch < 2; batch++) {
        small_ids(ids, ROWS, model->config.V, 5 + 2 * batch);
        small_ids(targets, ROWS, model->config.V, 6 + 2 * batch);
        assert_int_equal(sr_pass_gradients(pass, losses, ids, targets, 1.0), SRNN_OK);
        if (sr_mixer_row_of(&model->config)->attends)
            assert_int_equal(sr_pass_documents(pass, offsets, 3), SRNN_OK);
    }
    *bytes = sr_pass_bytes(pass);
    *numbers = model->table.numbers;
    float *copy = malloc(*numbers * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, sr_pass_gradient(pass), *numbers * sizeof *copy);
    sr_pass_free(pass);
    sr_model_free(model);
    sr_backend_free(backend);
    return copy;
}

/* Whatever is recomputed, and with other thread counts: the same bits, in less and less memory. */
static void check_bits(const char *attention, bool mlp) {
    size_t numbers, bytes, last;
    float *first = two_batches(&numbers, &last, attention, &(sr_backend_settings){.threads = 1},
                               SR_RECOMPUTE_NONE);
    for (sr_recompute what = SR_RECOMPUTE_NONE; what <= SR_RECOMPUTE_BLOCK; what++) {
        float *again =
            two_batches(&numbers, &bytes, attention, &(sr_backend_settings){.threads = 3}, what);
        /* gaps between tensors hold zeros in all of them */
        if (memcmp(first, again, numbers * sizeof *first) != 0)
            fail_msg("%s: other gradients with recompute %d", attention, (int)what);
        /* other threads have other scratch: bytes are compared from the second pass on */
        assert_true(what == SR_RECOMPUTE_NONE || bytes < last ||
                    (!mlp && what == SR_RECOMPUTE_BLOCK && bytes == last));
        last = bytes;
        free(again);
    }
    free(first);
}

static void bits_stay(void **state) {
    (void)state;
    for (size_t i = 0; srnn_variant_at(i); i++)
        check_bits(srnn_variant_at(i)->name, true);
    check_bits("0:gla,1:softmax,block_norm=both,2:mamba2", true); /* a hybrid */
    check_bits("softmax,block_norm=parallel", true);
    check_bits("softmax,block_norm=after,qk_norm=row", true);
    check_bits("avey_causal,chunk=4,chunks=3", false); /* which has no MLP */
}

/* Numbers that a token of a row takes where blocks are recomputed: inputs of all layers, one
 * layer's arrays, the gradient of the residual, and as scratch the gradient of a norm and the
 * widest of: the mixer's gradients; those inside the MLP; what lies between the last layer and the
 * head. Logits, per-row statistics and tokens come on top, fewer than C; kernels have their own. */
static void memory_of_a_token(void **state) {
    (void)state;
    enum { LENGTH = 512, C = 64, F = 2 * C, L = 3 };
    sr_model_config config = small_config(SR_MLP_SWIGLU, false, true);
    config.C = C, config.F = F, config.L = L;
    config.H = config.Hkv = 4, config.D = C / 4;
    config.positions = 2 * LENGTH;
    sr_model *model = small_model_of(cpu, "linear_elu", &config);
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const sr_pass_setup setup = {.B = 1,
                                     .T = (i + 1) * LENGTH,
                                     .train = true,
                                     .recompute = SR_RECOMPUTE_BLOCK,
                                     .form = SRNN_FORM_CHUNKED};
        sr_pass *pass = counted_pass(model, &setup);
        bytes[i] = sr_pass_bytes(pass) - sr_layer_kinds_bytes(&pass->kinds);
        sr_pass_free(pass);
    }
    const int mixer = 6 * C, mlp = 2 * C + 3 * F, scratch = C + 4 * C;
    const size_t numbers = (bytes[1] - bytes[0]) / LENGTH / sizeof(float);
    assert_in_range(numbers, 1, (uintmax_t)(L * C + C + mixer + mlp + scratch + C - 1));
    sr_model_free(model);
}

/* A document gives the same logits alone and packed after another. */
static void documents_are_apart(void **state) {
    (void)state;
    const int64_t offsets[] = {0, 5, 13, 26};
    const char *const variants[] = {"softmax",
                                    "gated_softmax_plusplus",
                                    "linear_elu",
                                    "gated_softmax_decay",
                                    "gla,short_conv=3",
                                    "rat,pool=3,skip=conv:2",
                                    "log_linear_mamba2",
                                    "log_linear_gated_delta_net",
                                    "kda",
                                    "gdn2",
                                    "2mamba",
                                    "rwkv7"};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        sr_model *model = small_model(cpu, variants[v], SR_MLP_SWIGLU, false, false);
        const sr_pass_setup packed = {.B = B, .T = T, .offsets = offsets, .documents = 3};
        const sr_pass_setup alone = {.B = 1, .T = 8};
        const size_t V = (size_t)model->config.V;
        sr_pass *pass;
        int32_t ids[ROWS];
        float *all = malloc(ROWS * V * sizeof *all), *one = malloc(8 * V * sizeof *one);
        small_ids(ids, ROWS, model->config.V, 9);
        assert_int_equal(sr_pass_create(&pass, model, &packed), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, all, ids), SRNN_OK);
        sr_pass_free(pass);
        assert_int_equal(sr_pass_create(&pass, model, &alone), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, one, ids + 5), SRNN_OK);
        sr_pass_free(pass);
        assert_true(small_error(all + 5 * V, one, 8 * V) < 1e-5);
        free(all), free(one);
        sr_model_free(model);
    }
}

/* A pass that is given other documents behaves like one created with them, including gradients. */
static void documents_change(void **state) {
    (void)state;
    const int64_t offsets[] = {0, 5, 13, 26};
    const char *const variants[] = {"softmax", "gated_softmax_plusplus", "order:2",
                                    "0:gated_softmax_decay,1:norm"};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        sr_model *model = small_model(cpu, variants[v], SR_MLP_SWIGLU, false, false);
        const sr_pass_setup fixed = {
            .B = B, .T = T, .train = true, .offsets = offsets, .documents = 3};
        const sr_pass_setup plain = {.B = B, .T = T, .train = true};
        const size_t bytes = model->table.numbers * sizeof(float);
        sr_pass *want, *got;
        int32_t ids[ROWS], targets[ROWS];
        float want_losses[ROWS], losses[ROWS];
        small_ids(ids, ROWS, model->config.V, 11);
        small_ids(targets, ROWS, model->config.V, 12);
        assert_int_equal(sr_pass_create(&want, model, &fixed), SRNN_OK);
        assert_int_equal(sr_pass_create(&got, model, &plain), SRNN_OK);
        assert_int_equal(sr_pass_gradients(want, want_losses, ids, targets, 1), SRNN_OK);
        assert_int_equal(sr_pass_gradients(got, losses, ids, targets, 1), SRNN_OK);
        assert_memory_not_equal(sr_pass_gradient(got), sr_pass_gradient(want), bytes);
        assert_int_equal(sr_pass_documents(got, offsets, 3), SRNN_OK);
        assert_int_equal(sr_pass_zero_gradient(got), SRNN_OK);
        assert_int_equal(sr_pass_gradients(got, losses, ids, targets, 1), SRNN_OK);
        assert_memory_equal(losses, want_losses, sizeof losses);
        assert_memory_equal(sr_pass_gradient(got), sr_pass_gradient(want), bytes);
        assert_int_equal(sr_pass_documents(got, offsets, 2), SRNN_ERR_ARGUMENT);
        sr_pass_free(want), sr_pass_free(got);
        sr_model_free(model);
    }
}

static void sampling(void **state) {
    (void)state;
    const float logits[5] = {0.0f, 2.0f, 1.0f, 2.0f, -1.0f};
    sr_sampler_settings settings = {.temperature = 0};
    sr_sampler *sampler;
    assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_OK);
    assert_int_equal(sr_sampler_choose(sampler, logits, 0, 0), 1);
    sr_sampler_free(sampler);
    settings = (sr_sampler_settings){.temperature = 1, .top_k = 2, .seed = 4};
    assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_OK);
    int seen[5] = {0};
    for (uint64_t i = 0; i < 1000; i++)
        seen[sr_sampler_choose(sampler, logits, 0, i)]++;
    assert_true(seen[1] > 400 && seen[3] > 400 && seen[1] + seen[3] == 1000);
    sr_sampler_free(sampler);
    settings = (sr_sampler_settings){.temperature = 1, .top_p = 0.5, .seed = 4};
    assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_OK);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_not_equal(sr_sampler_choose(sampler, logits, 0, i), 4);
    sr_sampler_free(sampler);
    /* The two best have more than 0.8 of the mass of the three best, one alone has not. Of the mass
     * of all five they would have less than 0.8. */
    settings = (sr_sampler_settings){.temperature = 1, .top_k = 3, .top_p = 0.8, .seed = 4};
    assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_OK);
    for (uint64_t i = 0; i < 200; i++)
        assert_int_equal(sr_sampler_choose(sampler, logits, 0, i) % 2, 1);
    sr_sampler_free(sampler);
    /* NaN is not chosen. */
    const float holes[5] = {NAN, 0.0f, NAN, 1.0f, NAN};
    for (int greedy = 0; greedy < 2; greedy++) {
        settings = (sr_sampler_settings){.temperature = greedy ? 0 : 1, .seed = 4};
        assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_OK);
        for (uint64_t i = 0; i < 100; i++)
            assert_int_equal(sr_sampler_choose(sampler, holes, 0, i) % 2, 1);
        sr_sampler_free(sampler);
    }
    settings.temperature = -1;
    assert_int_equal(sr_sampler_create(&sampler, &settings, 5), SRNN_ERR_ARGUMENT);
}

typedef struct ranked {
    int token;
    double weight;
} ranked;

static int more_weight_first(const void *left, const void *right) {
    const ranked *a = left, *b = right;
    if (a->weight != b->weight)
        return a->weight > b->weight ? -1 : 1;
    return a->token - b->token;
}

static double mass_of(const ranked *all, int count) {
    double mass = 0;
    for (int i = 0; i < count; i++)
        mass += all[i].weight;
    return mass;
}

/* The draw lies between the start and the end of the chosen token's mass, with all tokens
 * sorted. */
static void check_choice(const sr_sampler_settings *s, const ranked *all, int V, int32_t token,
                         double share) {
    int count = s->top_k > 0 ? s->top_k : V, at = 0;
    const double most = mass_of(all, count), near = 1e-5 * most;
    for (int i = 1; s->top_p > 0 && i <= count; i++)
        if (mass_of(all, i) >= s->top_p * most)
            count = i;
    while (all[at].token != token)
        at++;
    const double point = share * mass_of(all, count), before = mass_of(all, at);
    assert_true(at < count + 1);
    assert_true(point >= before - near && point <= before + all[at].weight + near);
}

static void sampling_as_if_sorted(void **state) {
    (void)state;
    enum { V = 700, DRAWS = 60 };
    const sr_sampler_settings settings[] = {
        {.temperature = 1, .seed = 3},
        {.temperature = 0.7, .top_k = 40, .seed = 4},
        {.temperature = 1.5, .top_p = 0.9, .seed = 5},
        {.temperature = 1, .top_k = 200, .top_p = 0.5, .seed = 6},
        {.temperature = 0.05, .top_p = 0.99, .seed = 7},
        {.temperature = 20, .top_k = 699, .seed = 8},
    };
    static float logits[V];
    static ranked all[V];
    for (int token = 0; token < V; token++) /* some of them equal, as in bf16 */
        logits[token] = (float)floor(40 * sr_random_normal(9, 0, (uint64_t)token)) / 16;
    for (size_t n = 0; n < sizeof settings / sizeof *settings; n++) {
        sr_sampler *sampler;
        for (int token = 0; token < V; token++)
            all[token] = (ranked){token, exp((double)logits[token] / settings[n].temperature)};
        qsort(all, V, sizeof *all, more_weight_first);
        assert_int_equal(sr_sampler_create(&sampler, &settings[n], V), SRNN_OK);
        for (uint64_t draw = 0; draw < DRAWS; draw++)
            check_choice(&settings[n], all, V, sr_sampler_choose(sampler, logits, 2, draw),
                         sr_random_uniform(settings[n].seed, 2, draw));
        sr_sampler_free(sampler);
    }
}

/* A NaN is never chosen, however small the others are; a tiny temperature gives the largest. */
static void sampling_at_the_edges(void **state) {
    (void)state;
    const float with_nan[3] = {NAN, -INFINITY, NAN}, plain[3] = {1, 3, 2};
    sr_sampler *sampler;
    assert_int_equal(sr_sampler_create(&sampler, &(sr_sampler_settings){.temperature = 1}, 0),
                     SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_sampler_create(&sampler, &(sr_sampler_settings){.temperature = 1}, 3),
                     SRNN_OK);
    for (uint64_t draw = 0; draw < 20; draw++)
        assert_int_equal(sr_sampler_choose(sampler, with_nan, 0, draw), 1);
    sr_sampler_free(sampler);
    assert_int_equal(sr_sampler_create(&sampler, &(sr_sampler_settings){.temperature = 1e-300}, 3),
                     SRNN_OK);
    assert_int_equal(sr_sampler_choose(sampler, plain, 0, 0), 1);
    sr_sampler_free(sampler);
}

static void wrong_requests(void **state) {
    (void)state;
    sr_model *model = small_model(cpu, "softmax", SR_MLP_SWIGLU, false, false);
    const sr_pass_setup too_long = {.B = 1, .T = 33}, fine = {.B = 1, .T = 2};
    const int32_t ids[2] = {1, 23};
    float logits[2 * 23];
    sr_pass *pass;
    assert_int_equal(sr_pass_create(&pass, model, &too_long), SRNN_ERR_LIMIT);
    assert_int_equal(sr_pass_create(&pass, model, &fine), SRNN_OK);
    assert_int_equal(sr_pass_logits(pass, logits, ids), SRNN_ERR_ARGUMENT);
    assert_int_equal(sr_pass_gradients(pass, logits, ids, ids, 1), SRNN_ERR_ARGUMENT);
    sr_pass_free(pass);
    sr_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_is_prefill),
        cmocka_unit_test(chosen_follows_the_last_feed),
        cmocka_unit_test(sinks_start_like_matrices),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(projections_are_one_matrix),
        cmocka_unit_test(bits_stay),
        cmocka_unit_test(memory_of_a_token),
        cmocka_unit_test(documents_are_apart),
        cmocka_unit_test(documents_change),
        cmocka_unit_test(sampling),
        cmocka_unit_test(sampling_as_if_sorted),
        cmocka_unit_test(sampling_at_the_edges),
        cmocka_unit_test(wrong_requests),
    };
    if (sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK)
        return 1;
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    sr_backend_free(cpu);
    return failures;
}
