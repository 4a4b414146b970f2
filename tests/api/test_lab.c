/* test_lab.c: softrnn_lab.h through its shared library alone: trains a run, loads its model,
 * evaluates and continues it. */
#include "test.h"

#include <softrnn_lab.h>

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { T = 24, STEPS = 4, V = 257 };

static char folder[] = "/tmp/softrnn-lab-XXXXXX";
static char text_file[64], run_folder[64];

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *where) {
    (void)status, (void)kind, (void)where;
    return remove(path);
}

static void ok(srnn_status status) {
    if (status != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
}

static int train(void **state) {
    (void)state;
    static const char *const values[][2] = {{"data", text_file},      {"tokenizer", "bytes"},
                                            {"attention", "order:2"}, {"steps", "4"},
                                            {"batch", "2"},           {"length", "24"},
                                            {"hidden", "16"},         {"mlp-hidden", "32"},
                                            {"layers", "2"},          {"heads", "2"},
                                            {"kv-heads", "2"},        {"head-size", "8"},
                                            {"validate-every", "2"},  {"threads", "1"}};
    srnl_settings *settings;
    srnl_run *run;
    srnl_step step = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(text_file, sizeof text_file, "%s/text.txt", folder);
    snprintf(run_folder, sizeof run_folder, "%s/run", folder);
    FILE *file = fopen(text_file, "w");
    for (int i = 0; i < 400; i++)
        fprintf(file, "line %d of a text that is long enough\n", i);
    fclose(file);
    ok(srnl_settings_create(&settings));
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        ok(srnl_settings_set(settings, values[i][0], values[i][1]));
    ok(srnl_run_start(&run, run_folder, settings));
    for (int i = 1; i <= STEPS; i++) {
        assert_false(srnl_run_done(run));
        ok(srnl_run_step(run, &step));
        assert_int_equal(step.step, i);
        assert_int_equal(step.tokens, i * 2 * T);
        assert_true(step.applied && isfinite(step.loss) && step.gradient_norm > 0);
        assert_true(isnan(step.validation) == (i % 2 != 0));
    }
    assert_true(srnl_run_done(run));
    assert_int_equal(srnl_run_step(run, &step), SRNN_ERR_ARGUMENT);
    ok(srnl_run_save(run));
    srnl_run_free(run);
    srnl_settings_free(settings);
    return 0;
}

static int clean(void **state) {
    (void)state;
    return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Mamba-2's layer: one projection, one convolution, and every operand from columns of them or
 * learned. */
static void layers_are_described(void **state) {
    (void)state;
    srnn_attention attention;
    srnl_layer_sizes sizes = {.dim = 32, .heads = 4, .kv_heads = 4, .key_size = 8};
    srnl_layer *layer;
    srnl_layer_tensor tensor;
    srnl_layer_projection projection;
    srnl_layer_convolution convolution;
    srnl_layer_operand operand;
    float values[512];
    size_t count = 0;
    ok(srnn_attention_parse(&attention, "mamba2"));
    srnl_layer_usual(&sizes, &attention);
    assert_int_equal(sizes.heads, 8);
    assert_int_equal(sizes.key_size, 128);
    assert_int_equal(sizes.value_size, 8);
    ok(srnl_layer_create(&layer, &attention, &sizes));
    assert_true(srnl_layer_projection_at(layer, &projection, 0));
    assert_string_equal(projection.weight, "in_proj.weight");
    assert_true(!projection.bias && projection.source == -1 && projection.inputs == 32);
    assert_false(srnl_layer_projection_at(layer, &projection, 1));
    assert_true(srnl_layer_convolution_at(layer, &convolution, 0));
    assert_string_equal(convolution.bias, "conv1d.bias");
    assert_int_equal(convolution.taps, 4);
    assert_false(convolution.plain);
    assert_false(srnl_layer_convolution_at(layer, &convolution, 1));
    for (; srnl_layer_operand_at(layer, &operand, count); count++)
        assert_true(operand.over_tokens ? operand.columns > 0 : operand.learned != NULL);
    assert_int_equal(count, 9);
    for (size_t i = 0; srnl_layer_tensor_at(layer, &tensor, i); i++)
        if (strcmp(tensor.name, "A_log") == 0) {
            assert_int_equal(tensor.sizes[0], 8);
            ok(srnl_layer_start(layer, i, values, 0, 1));
        }
    for (int head = 0; head < 8; head++)
        assert_true(values[head] >= 0 && values[head] <= logf(16));
    assert_int_equal(srnl_layer_start(layer, 99, values, 0, 1), SRNN_ERR_ARGUMENT);
    assert_string_equal(srnl_layer_ends_of(layer).weight, "out_proj.weight");
    srnl_layer_free(layer);
    srnl_layer_free(NULL);
    ok(srnn_attention_parse(&attention, "2mamba"));
    ok(srnl_layer_create(&layer, &attention, &sizes));
    assert_true(srnl_layer_convolution_at(layer, &convolution, 0));
    assert_true(convolution.plain);
    srnl_layer_free(layer);
    srnn_attention parted = {.wiring.qk_norm = SRNN_QK_NORM_HEAD};
    assert_int_equal(srnl_layer_create(&layer, &parted, &sizes), SRNN_ERR_UNSUPPORTED);
    sizes.kv_heads = 3;
    assert_int_equal(srnl_layer_create(&layer, &attention, &sizes), SRNN_ERR_ARGUMENT);
    assert_null(layer);
}

static void settings_are_named(void **state) {
    (void)state;
    srnl_settings *settings;
    bool found = false;
    for (size_t i = 0; srnl_setting_name(i); i++)
        found = found || strcmp(srnl_setting_name(i), "learning-rate") == 0;
    assert_true(found);
    ok(srnl_settings_create(&settings));
    assert_int_not_equal(srnl_settings_set(settings, "learning-rat", "1"), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), "learning-rate"));
    assert_int_not_equal(srnl_settings_set(settings, "steps", "many"), SRNN_OK);
    srnl_settings_free(settings);
    srnl_settings_free(NULL);
}

static void runs_go_on(void **state) {
    (void)state;
    srnl_run *run;
    ok(srnl_run_resume(&run, run_folder));
    assert_true(srnl_run_done(run));
    srnl_run_free(run);
    assert_int_not_equal(srnl_run_resume(&run, folder), SRNN_OK);
    assert_null(run);
}

static void a_model_says_what_it_is(void **state) {
    (void)state;
    srnl_model *model;
    char text[64], copy[80];
    ok(srnl_model_load(&model, run_folder, NULL, 1, false));
    assert_int_equal(srnl_model_vocabulary(model), V);
    assert_int_equal(srnl_model_layers(model), 2);
    assert_int_equal(srnl_model_prefix_tokens(model), 0);
    assert_true(srnl_model_positions(model) >= T);
    assert_true(srnl_model_parameters(model) > 0);
    srnn_attention attention, expected;
    assert_true(srnl_model_attention(model, 1, text, sizeof text) < sizeof text);
    ok(srnn_attention_parse(&attention, text));
    ok(srnn_attention_parse(&expected, "order:2"));
    assert_int_equal(attention.order, expected.order);
    assert_int_equal(srnl_model_attention(model, 2, text, sizeof text), 0);
    snprintf(copy, sizeof copy, "%s/run/checkpoints", folder);
    assert_int_equal(srnl_model_save(model, copy, "float8"), SRNN_ERR_ARGUMENT);
    ok(srnl_model_save(model, copy, "float32"));
    srnl_model_free(model);
    ok(srnl_model_load(&model, copy, "cpu", 1, false));
    srnl_model_free(model);
    srnl_model_free(NULL);
}

static void what_is_not_there_is_refused(void **state) {
    (void)state;
    srnl_model *model;
    srnl_tokenizer *tokenizer;
    assert_int_not_equal(srnl_model_load(&model, "/nowhere", NULL, 1, false), SRNN_OK);
    assert_null(model);
    assert_non_null(strstr(srnn_error_detail(), "/nowhere"));
    assert_int_not_equal(srnl_model_load(&model, run_folder, "abacus", 1, false), SRNN_OK);
    assert_non_null(strstr(srnn_error_detail(), "abacus"));
    assert_int_not_equal(srnl_tokenizer_load(&tokenizer, "/nowhere"), SRNN_OK);
    assert_null(tokenizer);
}

static void text_becomes_ids_and_text(void **state) {
    (void)state;
    static const char text[] = "caf\xc3\xa9";
    int32_t ids[8] = {0};
    char back[8] = {0};
    size_t count, bytes;
    srnl_model *model;
    srnl_tokenizer *tokenizer;
    ok(srnl_model_load(&model, run_folder, NULL, 1, false));
    ok(srnl_model_tokenizer(&tokenizer, model));
    assert_int_equal(srnl_tokenizer_vocabulary(tokenizer), V);
    assert_int_equal(srnl_tokenizer_begin(tokenizer), 256);
    assert_int_equal(srnl_tokenizer_end(tokenizer), 256);
    ok(srnl_tokenizer_encode(tokenizer, text, 5, ids, 8, &count));
    assert_int_equal(count, 5);
    assert_int_equal(ids[0], 'c');
    ok(srnl_tokenizer_encode(tokenizer, text, 5, ids + 6, 2, &count));
    assert_int_equal(count, 5); /* of which two were written */
    assert_int_equal(ids[7], 'a');
    ok(srnl_tokenizer_decode(tokenizer, ids, 5, back, sizeof back, &bytes));
    assert_int_equal(bytes, 5);
    assert_string_equal(back, text);
    ok(srnl_tokenizer_decode(tokenizer, ids, 5, back, 0, &bytes));
    assert_int_equal(bytes, 5);
    ids[0] = -1;
    assert_int_equal(srnl_tokenizer_decode(tokenizer, ids, 5, back, 8, &bytes), SRNN_ERR_ARGUMENT);
    srnl_tokenizer_free(tokenizer);
    srnl_tokenizer_free(NULL);
    srnl_model_free(model);
}

/* Losses are those of the logits; a session gives the logits of the whole sequence, however it is
 * cut. */
static void logits_losses_and_sessions_agree(void **state) {
    (void)state;
    static float logits[2][T][V], losses[2][T], last[2][V];
    int32_t ids[2][T], targets[2][T], piece[2][T];
    srnl_model *model;
    srnl_session *session;
    for (int i = 0; i < 2 * T; i++) {
        ids[i / T][i % T] = (7 * i) % 256;
        targets[i / T][i % T] = i % 5 ? (7 * i + 7) % 256 : -1;
    }
    ok(srnl_model_load(&model, run_folder, NULL, 1, false));
    ok(srnl_model_logits(model, &logits[0][0][0], ids[0], 2, T));
    ok(srnl_model_losses(model, losses[0], ids[0], targets[0], 2, T));
    for (int i = 0; i < 2 * T; i++) {
        const float *row = logits[i / T][i % T];
        double sum = 0;
        for (int v = 0; v < V; v++)
            sum += exp((double)row[v]);
        const int32_t target = targets[i / T][i % T];
        const double expected = target < 0 ? 0 : log(sum) - (double)row[target];
        assert_true(fabs((double)losses[i / T][i % T] - expected) < 1e-4);
    }
    ok(srnl_session_create(&session, model, 2));
    assert_true(srnl_session_is_recurrent(session)); /* order:2 is an RNN */
    for (int at = 0; at < T; at += 7) {
        const int count = T - at < 7 ? T - at : 7;
        for (int b = 0; b < 2; b++)
            memcpy((int32_t *)piece + b * count, &ids[b][at], (size_t)count * sizeof(int32_t));
        ok(srnl_session_feed(session, piece[0], count, last[0]));
    }
    assert_int_equal(srnl_session_position(session), T);
    assert_true(srnl_session_state_bytes(session) > 0);
    for (int b = 0; b < 2; b++)
        for (int v = 0; v < V; v++)
            assert_true(fabsf(last[b][v] - logits[b][T - 1][v]) < 1e-3f);
    srnl_session_free(session);
    srnl_session_free(NULL);
    srnl_model_free(model);
}

static void wrong_ids_are_refused(void **state) {
    (void)state;
    static float logits[V];
    srnl_model *model;
    srnl_session *session;
    int32_t id = V, target = V, next;
    const srnl_sampling greedy = {0};
    ok(srnl_model_load(&model, run_folder, NULL, 1, false));
    assert_int_equal(srnl_model_logits(model, logits, &id, 1, 1), SRNN_ERR_ARGUMENT);
    assert_int_equal(srnl_model_logits(model, logits, &id, 0, 1), SRNN_ERR_ARGUMENT);
    ok(srnl_session_create(&session, model, 1));
    assert_int_equal(srnl_session_feed(session, &id, 1, NULL), SRNN_ERR_ARGUMENT);
    assert_int_equal(srnl_session_feed(session, &id, 0, NULL), SRNN_ERR_ARGUMENT);
    assert_int_equal(srnl_session_next(session, &next, &greedy), SRNN_ERR_ARGUMENT);
    id = 1;
    assert_int_equal(srnl_model_losses(model, logits, &id, &target, 1, 1), SRNN_ERR_ARGUMENT);
    srnl_session_free(session);
    assert_int_equal(srnl_session_create(&session, model, 0), SRNN_ERR_ARGUMENT);
    srnl_model_free(model);
}

/* The most probable token is that of the largest logit; a seed repeats its choices. */
static void sessions_go_on(void **state) {
    (void)state;
    static float logits[V];
    const srnl_sampling greedy = {0}, hot = {.temperature = 5, .seed = 3};
    const int32_t prompt[] = {'l', 'i', 'n'};
    int32_t next, chosen[2][8];
    srnl_model *model;
    srnl_session *session;
    ok(srnl_model_load(&model, run_folder, NULL, 1, false));
    ok(srnl_session_create(&session, model, 1));
    ok(srnl_session_feed(session, prompt, 3, logits));
    ok(srnl_session_next(session, &next, &greedy));
    for (int v = 0; v < V; v++)
        assert_true(logits[v] <= logits[next]);
    assert_int_equal(srnl_session_position(session), 4);
    for (int again = 0; again < 2; again++) {
        ok(srnl_session_reset(session));
        ok(srnl_session_feed(session, prompt, 3, NULL));
        for (int i = 0; i < 8; i++)
            ok(srnl_session_next(session, &chosen[again][i], &hot));
    }
    assert_memory_equal(chosen[0], chosen[1], sizeof chosen[0]);
    bool differ = false;
    for (int i = 1; i < 8; i++)
        differ = differ || chosen[0][i] != chosen[0][0];
    assert_true(differ);
    srnl_session_free(session);
    srnl_model_free(model);
}

static bool count_looks(void *context, size_t ended, size_t runs) {
    assert_true(ended <= runs);
    assert_int_equal(runs, 2);
    ++*(int *)context;
    return true;
}

static bool stop(void *context, size_t ended, size_t runs) {
    (void)context, (void)ended, (void)runs;
    return false;
}

static void studies_are_run(void **state) {
    (void)state;
    static const char yaml[] =
        "variants: {softmax: softmax, norm: norm}\n"
        "seeds: [1]\n"
        "settings: {steps: 2, batch: 2, hidden: 16, mlp-hidden: 16, layers: 1, heads: 1}\n"
        "tasks: {recall: {settings: {data: 'recall:pairs=2'}}}\n";
    char file[64], out[64], summary[80];
    int looks = 0;
    size_t failed = 1;
    snprintf(file, sizeof file, "%s/study.yaml", folder);
    snprintf(out, sizeof out, "%s/study", folder);
    snprintf(summary, sizeof summary, "%s/summary.json", out);
    FILE *written = fopen(file, "w");
    fputs(yaml, written);
    fclose(written);
    srnl_study study = {.file = file, .out = out, .watch = stop};
    assert_int_equal(srnl_study_run(&study, NULL), SRNN_ERR_INTERRUPTED);
    study.watch = count_looks;
    study.context = &looks;
    ok(srnl_study_run(&study, &failed));
    assert_int_equal(failed, 0);
    assert_true(looks > 0);
    assert_int_equal(access(summary, F_OK), 0);
    study.only = "nothing";
    assert_int_not_equal(srnl_study_run(&study, &failed), SRNN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_are_described),
        cmocka_unit_test(settings_are_named),
        cmocka_unit_test(runs_go_on),
        cmocka_unit_test(a_model_says_what_it_is),
        cmocka_unit_test(what_is_not_there_is_refused),
        cmocka_unit_test(text_becomes_ids_and_text),
        cmocka_unit_test(logits_losses_and_sessions_agree),
        cmocka_unit_test(wrong_ids_are_refused),
        cmocka_unit_test(sessions_go_on),
        cmocka_unit_test(studies_are_run),
    };
    return cmocka_run_group_tests(tests, train, clean);
}
