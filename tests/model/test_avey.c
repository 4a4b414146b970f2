/* test_avey.c: Avey's ranker and block give the golden numbers, their gradients match differences,
 * and the documented effect of later tokens is real. */
#include "golden.h"
#include "model/avey/avey.h"
#include "model/pass.h"
#include "model/session.h"

enum { E = GOLDEN_C, ROWS = 12, N = 4, CHUNK = 4 };

static const sr_avey avey = {
    .chunk = CHUNK, .chunks = 3, .expansion = 4, .share = 0.5, .causal = true};
static const double tolerance = 1e-5;
static golden_files files;
static sr_backend *cpu;

static float *numbers(const char *prefix, const char *name, size_t count) {
    return golden_numbers(files.systems, "avey_causal", prefix, name, count);
}

static void expect(const char *name, const float *got, const float *want, size_t count) {
    const double error = golden_error(got, want, count);
    if (!(error <= tolerance))
        fail_msg("%s is off by %.2e", name, error);
}

/* The ranking of e, with its saved buffer, which the caller frees. */
static sr_ranking ranking_of(const sr_avey *kind, const float *e) {
    sr_ranking ranking = sr_avey_ranking(kind, GOLDEN_B, N, E);
    ranking.e = e;
    ranking.saved = malloc(cpu->rank_bytes(cpu, &ranking));
    assert_non_null(ranking.saved);
    return ranking;
}

static void ranker(void **state) {
    (void)state;
    static float y[GOLDEN_B * N * ROWS * E];
    float *e = numbers("context.", "e", GOLDEN_B * N * CHUNK * E);
    float *want = numbers("context.", "y", GOLDEN_B * N * ROWS * E);
    const sr_ranking ranking = ranking_of(&avey, e);
    assert_int_equal(cpu->rank_forward(cpu, y, &ranking), SRNN_OK);
    expect("the contexts", y, want, GOLDEN_B * N * ROWS * E);
    free(ranking.saved);
    free(e);
    free(want);
}

/* Half of the mixed channels, as in the authors' code: floor(share width), rounded up to an even
 * number. */
static void odd_shares_are_rounded_up(void **state) {
    (void)state;
    static const struct {
        int C, expansion;
        double share;
        int64_t mixed, joined;
    } cases[] = {
        {768, 4, 0.5, 768, 2304}, /* 1536 of 3072, as published */
        {5, 3, 0.5, 4, 11},       /* 7 of 15, so 8 */
        {6, 3, 0.3, 3, 15},       /* 5 of 18, so 6 */
        {10, 1, 0.75, 4, 6},      /* 7 of 10, so 8 */
        {5, 1, 1, 2, 3},          /* 5 of 5: there is no sixth */
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const sr_avey a = {.chunk = 4,
                           .chunks = 2,
                           .expansion = cases[n].expansion,
                           .share = cases[n].share};
        assert_int_equal(sr_avey_mixed(&a, cases[n].C), cases[n].mixed);
        assert_int_equal(sr_avey_joined(&a, cases[n].C), cases[n].joined);
    }
}

/* sum of contexts times fixed numbers */
static double value(const sr_ranking *ranking, const float *d) {
    static float y[GOLDEN_B * N * ROWS * E];
    double sum = 0;
    assert_int_equal(cpu->rank_forward(cpu, y, ranking), SRNN_OK);
    for (int i = 0; i < GOLDEN_B * N * ROWS * E; i++)
        sum += (double)y[i] * (double)d[i];
    return sum;
}

static void ranker_gradients(void **state) {
    (void)state;
    static float d_y[GOLDEN_B * N * ROWS * E], d_e[GOLDEN_B * N * CHUNK * E];
    for (int causal = 0; causal < 2; causal++) {
        sr_avey kind = avey;
        kind.causal = causal;
        float *e = numbers("context.", "e", GOLDEN_B * N * CHUNK * E);
        const sr_ranking ranking = ranking_of(&kind, e);
        assert_int_equal(cpu->rank_forward(cpu, d_y, &ranking), SRNN_OK);
        for (int i = 0; i < GOLDEN_B * N * ROWS * E; i++)
            d_y[i] = (float)sin(0.7 * i);
        assert_int_equal(cpu->rank_backward(cpu, d_e, d_y, &ranking), SRNN_OK);
        for (int i = 0; i < GOLDEN_B * N * CHUNK * E; i += 13) {
            const float here = e[i], step = 2e-3f;
            e[i] = here + step;
            const double above = value(&ranking, d_y);
            e[i] = here - step;
            const double below = value(&ranking, d_y);
            e[i] = here;
            const double want = (above - below) / (2 * (double)step);
            if (!(fabs((double)d_e[i] - want) <= 2e-2 * (1 + fabs(want))))
                fail_msg("d_e[%d] is %g, not %g", i, (double)d_e[i], want);
        }
        free(ranking.saved);
        free(e);
    }
}

/* The block of the golden file: norm, mixer, residual. */
static void block(void **state) {
    (void)state;
    const sr_model_config config = {.C = E,
                                    .mixer = SR_MIXER_AVEY,
                                    .avey = avey,
                                    .norm_epsilon = SR_AVEY_EPSILON};
    sr_tensor_table table = {0};
    sr_mixer mixer = {0};
    sr_block_pointers master = {0}, gradient = {0};
    assert_int_equal(sr_avey_tensors(&table, "ctxt.", &avey, E), SRNN_OK);
    assert_int_equal(sr_mixer_of_avey(&mixer, cpu, &avey, E, GOLDEN_B * ROWS), SRNN_OK);
    float *weights = calloc(table.numbers, sizeof *weights),
          *sums = calloc(table.numbers, sizeof *sums);
    for (size_t i = 0; i < table.count; i++) {
        const sr_tensor_spec *spec = &table.specs[i];
        float *from = numbers("model.blocks.0.", spec->name, spec->count);
        memcpy(weights + spec->start, from, spec->count * sizeof *from);
        master.mixers[0].slot[spec->slot] = weights + spec->start;
        gradient.mixers[0].slot[spec->slot] = sums + spec->start;
        free(from);
    }
    float *norm = numbers("model.blocks.0.", "rms_norm.weight", E), d_norm[E] = {0};
    master.slot[0] = norm;
    gradient.slot[0] = d_norm;
    const sr_block b = {.backend = cpu,
                        .config = &config,
                        .mixer = &mixer,
                        .master = &master,
                        .worker = &master,
                        .rows = GOLDEN_B * ROWS};
    void *saved_memory = aligned_alloc(64, sr_block_saved_bytes(&b)),
         *scratch_memory = aligned_alloc(64, sr_block_scratch_bytes(&b));
    sr_block_saved saved = sr_block_saved_at(&b, saved_memory);
    const sr_block_scratch scratch = sr_block_scratch_at(&b, scratch_memory);
    float y[GOLDEN_B * ROWS * E];
    saved.x = numbers("block.", "x", GOLDEN_B * ROWS * E);
    float *want_y = numbers("block.", "y", GOLDEN_B * ROWS * E),
          *d = numbers("block.", "dy", GOLDEN_B * ROWS * E);
    float *want_x = numbers("block.", "dx", GOLDEN_B * ROWS * E),
          *want_norm = numbers("block.grad.", "rms_norm.weight", E);
    assert_int_equal(sr_block_forward(&b, y, &saved), SRNN_OK);
    expect("y", y, want_y, GOLDEN_B * ROWS * E);
    const sr_block_gradient d_block = {.wide = d, .narrow = d};
    assert_int_equal(sr_block_backward(&b, d_block, &gradient, &saved, &scratch), SRNN_OK);
    expect("d_x", d, want_x, GOLDEN_B * ROWS * E);
    expect("d_norm", d_norm, want_norm, E);
    for (size_t i = 0; i < table.count; i++) {
        const sr_tensor_spec *spec = &table.specs[i];
        float *want = numbers("block.grad.", spec->name, spec->count);
        expect(spec->name, sums + spec->start, want, spec->count);
        free(want);
    }
    void *all[] = {weights, sums,   norm, saved_memory, scratch_memory,
                   saved.x, want_y, d,    want_x,       want_norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    sr_mixer_free(&mixer);
    sr_tensor_table_free(&table);
}

/* Fed token by token, a causal model gives the logits of the whole sequence, any model those of
 * each prefix. */
static void generation(void **state) {
    enum { B = 2, T = 14, V = 32 };
    static const char *const kinds[] = {"avey_causal,chunk=4,chunks=3", "avey,chunk=4,chunks=3"};
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        sr_model_config config = {.V = V,
                                  .C = 16,
                                  .F = 8,
                                  .L = 2,
                                  .H = 2,
                                  .Hkv = 2,
                                  .D = 8,
                                  .positions = T,
                                  .rope_theta = 10000};
        static float whole[B * T * V], pieces[B * T * V], prefix[B * T * V];
        sr_model *model;
        sr_session *session;
        sr_pass *pass;
        int32_t ids[B * T], part[B * T];
        for (int i = 0; i < B * T; i++)
            ids[i] = (i * 11 + 5) % V;
        assert_int_equal(sr_model_config_attention(&config, kinds[kind]), SRNN_OK);
        assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
        assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
        assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = B, .T = T}), SRNN_OK);
        assert_int_equal(sr_pass_logits(pass, whole, ids), SRNN_OK);
        sr_pass_free(pass);
        assert_int_equal(sr_session_create(&session, model, &(sr_session_setup){.B = B, .T = T}),
                         SRNN_OK);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(sr_session_reset(session), SRNN_OK);
            assert_int_equal(sr_session_feed_all(session, pieces, ids, T), SRNN_OK);
        }
        assert_int_equal(sr_session_position(session), T);
        assert_false(sr_session_is_recurrent(session));
        assert_int_equal(sr_session_state_bytes(session), B * T * 16 * sizeof(float));
        if (kind == 0)
            expect("logits by tokens", pieces, whole, B * T * V);
        for (int t = 1; t <= T; t += 4) { /* the last token of a prefix */
            for (int i = 0; i < B * t; i++)
                part[i] = ids[i / t * T + i % t];
            assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = B, .T = t}),
                             SRNN_OK);
            assert_int_equal(sr_pass_logits(pass, prefix, part), SRNN_OK);
            sr_pass_free(pass);
            for (int b = 0; b < B; b++)
                expect("a prefix's logits", pieces + (b * T + t - 1) * V,
                       prefix + (b * t + t - 1) * V, V);
        }
        sr_session_free(session);
        sr_model_free(model);
        sr_model_config_free(&config);
    }
}

/* The change of the logits of a chunk's first tokens when its last token changes. */
static double leak(const char *attention) {
    enum { T = 16 };
    sr_model_config config = {.V = 32,
                              .C = 16,
                              .F = 8,
                              .L = 2,
                              .H = 2,
                              .Hkv = 2,
                              .D = 8,
                              .positions = T,
                              .rope_theta = 10000};
    sr_model *model;
    sr_pass *pass;
    int32_t ids[T];
    static float first[T * 32], second[T * 32];
    assert_int_equal(sr_model_config_attention(&config, attention), SRNN_OK);
    assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
    assert_int_equal(sr_model_initialise(model, 0.02, 1), SRNN_OK);
    assert_int_equal(sr_pass_create(&pass, model, &(sr_pass_setup){.B = 1, .T = T}), SRNN_OK);
    for (int t = 0; t < T; t++)
        ids[t] = (t * 7 + 3) % 32;
    assert_int_equal(sr_pass_logits(pass, first, ids), SRNN_OK);
    ids[T - 1] = (ids[T - 1] + 5) % 32;
    assert_int_equal(sr_pass_logits(pass, second, ids), SRNN_OK);
    sr_pass_free(pass);
    sr_model_free(model);
    sr_model_config_free(&config);
    return golden_norm(first, second, (T - 1) * 32);
}

static void later_tokens(void **state) {
    (void)state;
    assert_true(leak("avey,chunk=4,chunks=3") > 1e-6);
    assert_true(leak("avey_causal,chunk=4,chunks=3") == 0);
}

static int enter(void **state) {
    (void)state;
    return sr_backend_create(&cpu, &(sr_backend_settings){.threads = 0}) != SRNN_OK ||
           golden_open(&files);
}

static int leave(void **state) {
    (void)state;
    golden_close(&files);
    sr_backend_free(cpu);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranker),
                                       cmocka_unit_test(ranker_gradients),
                                       cmocka_unit_test(odd_shares_are_rounded_up),
                                       cmocka_unit_test(block),
                                       cmocka_unit_test(generation),
                                       cmocka_unit_test(later_tokens)};
    return cmocka_run_group_tests(tests, enter, leave);
}
