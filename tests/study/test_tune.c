/* test_tune.c: a study tunes the learning rate of each variant before it compares them. */
#include "base/clock.h"
#include "data/rows/shuffle.h"
#include "files/folder.h"
#include "files/json.h"
#include "study/execute/execute.h"
#include "study/execute/tune.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char folder[] = "tuned_study";
static const char file[] = "tuned_study.yaml";

/* No model learns at the smallest rate, and none survives the largest. */
static const char text[] =
    "seeds: [1, 5]\n"
    "variants: {softmax: softmax, norm: norm}\n"
    "tune: {learning-rate: [1.0e-7, 0.01, 1000], per: variant}\n"
    "settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, batch: 16, steps: 40, warmup: 2,\n"
    "  validate-every: 20, validate-batches: 2, bad-steps: 2, threads: 1}\n"
    "tasks: {recall: {measure: accuracy, settings: {data: 'recall:pairs=1,vocab=8,length=8'}}}\n";

static void write_file(const char *content) {
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    assert_true(fputs(content, out) >= 0 && fclose(out) == 0);
}

static srnn_status execute_until(sr_study *study, sr_summary *summary, const char *only,
                                 double deadline) {
    const sr_study_request request = {.file = file, .out = folder, .only = only};
    sr_study_options options = {.jobs = 2, .deadline = deadline};
    sr_run_view views[16];
    *study = (sr_study){0};
    *summary = (sr_summary){0};
    srnn_status status = sr_study_prepare(study, &options, &request);
    if (status == SRNN_OK)
        status = sr_study_execute_file(study, &options, &request, "again", views, summary);
    sr_study_options_free(&options);
    return status;
}

static srnn_status execute(sr_study *study, sr_summary *summary, const char *only) {
    return execute_until(study, summary, only, 0);
}

static size_t count_runs(const char *where) {
    sr_names names;
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, where);
    assert_int_equal(sr_folder_list(&names, path), SRNN_OK);
    const size_t count = names.count;
    sr_names_free(&names);
    return count;
}

/* Of norm's runs in the last round, which have 20 steps. */
static double slowest_step(void) {
    static const char *const runs[] = {"lr0.01.1000000000", "lr0.01.1000000001",
                                       "lr1e-07.1000000000", "lr1e-07.1000000001"};
    double most = 0;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char path[200];
        sr_result result;
        snprintf(path, sizeof path, "%s/tuning/round-2/runs/recall.norm.%s", folder, runs[i]);
        assert_int_equal(sr_result_read(&result, path), SRNN_OK);
        assert_int_equal(result.step, 20);
        most = fmax(most, (result.ended - result.started) / 20);
    }
    return most;
}

static void every_variant_has_a_rate_of_its_own(void **state) {
    (void)state;
    sr_study study;
    sr_summary summary;
    json_t *tuning;
    write_file(text);
    if (execute(&study, &summary, NULL) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_json_read(&tuning, folder, "tuning.json", "softrnn-tuning"), SRNN_OK);
    assert_int_equal(sr_json_count_of(tuning, "rates"), 2);
    const json_t *norm = sr_json_element_of(tuning, "rates", 1);
    assert_string_equal(sr_json_text_of(norm, "variant"), "norm");
    assert_true(sr_json_number_of(norm, "learning_rate") == 0.01);
    assert_true(json_is_false(json_object_get(norm, "edge")));
    /* Three rates with one seed, then two with two. */
    assert_int_equal(sr_json_count_of(norm, "trials"), 5);
    assert_true(sr_json_number_of(tuning, "runs") == 2 * (3 + 2 * 2));
    assert_int_equal(count_runs("tuning/round-1/runs"), 6);
    assert_int_equal(count_runs("tuning/round-2/runs"), 8);
    /* A run of the comparison may take as long for each step as the slowest of the last round. */
    const double step_seconds = sr_json_number_of(norm, "step_seconds");
    assert_true(fabs(step_seconds / slowest_step() - 1) < 1e-6);
    assert_true(fabs(study.runs[1].expected_seconds / (40 * step_seconds) - 1) < 1e-6);
    json_decref(tuning);
    for (size_t i = 0; i < study.run_count; i++) {
        assert_true(study.runs[i].settings.learning_rate == 0.01);
        assert_int_equal(study.runs[i].settings.validation_half, SR_HALF_FIRST);
    }
    assert_int_equal(summary.count, 1);
    assert_true(isnan(summary.cells[0].learning_rate));
    assert_int_equal(summary.cells[0].count, 2);
    assert_int_equal(summary.finished, 4);
    assert_true(summary.cells[0].variants[1].learning_rate == 0.01);
    assert_int_equal(summary.cells[0].variants[1].difference.pairs, 2);
    sr_summary_free(&summary);
    sr_study_free(&study);
}

/* No run of the comparison has ended, but those of the tuning have. */
static void tuning_says_how_long_runs_take(void **state) {
    (void)state;
    sr_study study;
    sr_summary summary;
    char kept[] = "tuned_study/kept", runs[] = "tuned_study/runs";
    assert_int_equal(rename(runs, kept), 0);
    assert_int_equal(execute_until(&study, &summary, NULL, sr_clock_seconds() + 1e-3),
                     SRNN_ERR_INTERRUPTED);
    if (!strstr(srnn_error_detail(), "runs left: 4, which may take "))
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_folder_remove(runs), SRNN_OK);
    assert_int_equal(rename(kept, runs), 0);
    sr_summary_free(&summary);
    sr_study_free(&study);
}

/* The runs of rounds have other seeds, fewer steps, and the other half of the rows. */
static void rounds_are_not_the_comparison(void **state) {
    (void)state;
    static const struct {
        const char *run;
        int64_t steps, seed;
    } cases[] = {{"round-1/runs/recall.norm.lr0.01.1000000000", 10, 1000000000},
                 {"round-2/runs/recall.norm.lr0.01.1000000001", 20, 1000000001}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_run_settings s;
        char path[200];
        snprintf(path, sizeof path, "%s/tuning/%s/run.yaml", folder, cases[i].run);
        assert_int_equal(sr_run_settings_create(&s), SRNN_OK);
        assert_int_equal(sr_run_settings_read(&s, path), SRNN_OK);
        assert_int_equal(s.steps, cases[i].steps);
        assert_int_equal(s.seed, cases[i].seed);
        assert_int_equal(s.validation_half, SR_HALF_SECOND);
        sr_run_settings_free(&s);
    }
}

static char *tuning_text(void) {
    char path[200], *content = calloc(1, 1 << 16);
    snprintf(path, sizeof path, "%s/tuning.json", folder);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_true(fread(content, 1, (1 << 16) - 1, in) > 0);
    fclose(in);
    return content;
}

/* Results are kept; a variant added later is tuned alone. */
static void later_variants_are_tuned_alone(void **state) {
    (void)state;
    sr_study study;
    sr_summary summary;
    char *before = tuning_text();
    assert_int_equal(execute(&study, &summary, NULL), SRNN_OK);
    sr_summary_free(&summary);
    sr_study_free(&study);
    char *again = tuning_text();
    assert_string_equal(before, again);
    free(before);
    free(again);
    static char more[1024];
    snprintf(more, sizeof more, "%s", text);
    char *at = strstr(more, "norm: norm}");
    assert_non_null(at);
    memmove(at + 24, at + 11, strlen(at + 11) + 1);
    memcpy(at, "norm: norm, rms: gate  }", 24);
    write_file(more);
    if (execute(&study, &summary, NULL) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    json_t *tuning;
    assert_int_equal(sr_json_read(&tuning, folder, "tuning.json", "softrnn-tuning"), SRNN_OK);
    assert_int_equal(sr_json_count_of(tuning, "rates"), 3);
    assert_true(sr_json_number_of(tuning, "runs") == 3 * (3 + 2 * 2));
    json_decref(tuning);
    assert_int_equal(summary.finished, 6);
    sr_summary_free(&summary);
    sr_study_free(&study);
    assert_int_equal(sr_folder_remove(folder), SRNN_OK);
    assert_int_equal(unlink(file), 0);
}

static void write_changed(const char *from, const char *to) {
    char changed[1024];
    const char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_file(changed);
}

static void discard(void) {
    assert_int_equal(sr_folder_remove(folder), SRNN_OK);
    assert_int_equal(unlink(file), 0);
}

static void no_run_starts_before_its_rate_is_tuned(void **state) {
    (void)state;
    const sr_study_request request = {.file = file, .out = folder};
    sr_study study = {0};
    sr_study_options options = {0};
    write_file(text);
    assert_int_equal(sr_study_prepare(&study, &options, &request), SRNN_OK);
    assert_int_equal(sr_study_member(&study, &request, "recall.norm.1"), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "no tuned learning rate"));
    assert_int_not_equal(access("tuned_study/runs/recall.norm.1", F_OK), 0);
    sr_study_options_free(&options);
    sr_study_free(&study);
    discard();
}

static void a_task_without_any_finite_loss_is_named(void **state) {
    (void)state;
    sr_study study;
    sr_summary summary;
    write_changed("[1.0e-7, 0.01, 1000], per: variant}\nsettings: {",
                  "[1000, 500], per: variant}\nsettings: {weight-decay: 10, ");
    assert_int_equal(execute(&study, &summary, "norm"), SRNN_ERR_ARGUMENT);
    if (!strstr(srnn_error_detail(), "task recall, variant norm: no learning rate"))
        fail_msg("%s", srnn_error_detail());
    assert_int_not_equal(access("tuned_study/tuning.json", F_OK), 0);
    sr_summary_free(&summary);
    sr_study_free(&study);
    discard();
}

/* Returns whether tuning.json gives the run of the study in the file a rate. */
static bool has_rate(void) {
    const sr_study_request request = {.file = file, .out = folder};
    sr_study study = {0};
    sr_study_options options = {0};
    bool missing;
    assert_int_equal(sr_study_prepare(&study, &options, &request), SRNN_OK);
    assert_int_equal(sr_study_take_rates(&study, folder, &options, &missing), SRNN_OK);
    sr_study_options_free(&options);
    sr_study_free(&study);
    return !missing;
}

/* With other rates or settings a rate is tuned again, not reused. */
static void rates_belong_to_their_settings(void **state) {
    (void)state;
    static const char *const changes[][2] = {{"0.01, 1000", "0.02, 0.01"},
                                             {"steps: 40", "steps: 80"},
                                             {"norm: norm", "norm: gate"},
                                             {"length=8", "length=10"},
                                             {"per: variant", "per: variant, share: 0.25"}};
    sr_study study;
    sr_summary summary;
    write_file(text);
    assert_int_equal(execute(&study, &summary, NULL), SRNN_OK);
    sr_summary_free(&summary);
    sr_study_free(&study);
    assert_true(has_rate());
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        write_changed(changes[i][0], changes[i][1]);
        assert_false(has_rate());
    }
    /* The runs of the comparison are removed, those of the tuning are replaced. */
    assert_int_equal(sr_folder_remove("tuned_study/runs"), SRNN_OK);
    write_changed("steps: 40", "steps: 20");
    if (execute(&study, &summary, NULL) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_true(has_rate());
    json_t *tuning;
    assert_int_equal(sr_json_read(&tuning, folder, "tuning.json", "softrnn-tuning"), SRNN_OK);
    assert_int_equal(sr_json_count_of(tuning, "rates"), 2);
    json_decref(tuning);
    sr_summary_free(&summary);
    sr_study_free(&study);
    discard();
}

static void the_cost_is_known_before(void **state) {
    (void)state;
    sr_study study;
    const sr_study_options options = {0};
    assert_int_equal(sr_study_read(&study, "test", text, strlen(text)), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, NULL), SRNN_OK);
    const sr_tuning_cost cost = sr_study_tuning_cost(&study, &options);
    assert_true(cost.runs == 14);
    assert_true(cost.tokens == 2 * (3 * 10 + 4 * 20) * 16.0 * 8);
    sr_study_free(&study);
}

/* With a share of 0.3, the rounds have 12 and 6 of 40 steps. */
static void the_last_round_has_the_share(void **state) {
    (void)state;
    sr_study study;
    sr_summary summary;
    write_changed("per: variant", "per: variant, share: 0.3");
    const sr_study_options options = {0};
    const sr_study_request request = {.file = file, .plan_only = true};
    sr_study_options planned = {0};
    study = (sr_study){0};
    assert_int_equal(sr_study_prepare(&study, &planned, &request), SRNN_OK);
    assert_true(sr_study_tuning_cost(&study, &options).tokens == 2 * (3 * 6 + 4 * 12) * 16.0 * 8);
    sr_study_free(&study);
    assert_int_equal(execute(&study, &summary, "norm"), SRNN_OK);
    sr_summary_free(&summary);
    sr_study_free(&study);
    static const char *const runs[] = {"round-1/runs/recall.norm.lr0.01.1000000000",
                                       "round-2/runs/recall.norm.lr0.01.1000000001"};
    for (int round = 0; round < 2; round++) {
        sr_run_settings s;
        char path[200];
        snprintf(path, sizeof path, "%s/tuning/%s/run.yaml", folder, runs[round]);
        assert_int_equal(sr_run_settings_create(&s), SRNN_OK);
        assert_int_equal(sr_run_settings_read(&s, path), SRNN_OK);
        assert_int_equal(s.steps, round ? 12 : 6);
        assert_int_equal(s.warmup, 0);
        sr_run_settings_free(&s);
    }
    discard();
}

static void wrong_tuning_is_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"tune: {learning-rate: [0.1]}\n", "two learning rates or more"},
        {"tune: {learning-rate: [0.1, 0.1]}\n", "twice"},
        {"tune: {learning-rate: [0.1, 0]}\n", "above 0"},
        {"tune: {learning-rate: [0.1, 1001]}\n", "at most 1000"},
        {"learning-rates: [0.1, 1001]\n", "at most 1000"},
        {"tune: {learning-rate: [0.1, 1], per: seed}\n", "per: variant"},
        {"tune: {per: variant}\n", "needs learning-rate"},
        {"tune: {learning-rate: [0.1, 1], share: 0}\n", "above 0, at most 1"},
        {"tune: {learning-rate: [0.1, 1], share: 1.5}\n", "above 0, at most 1"},
        {"tune: {learning-rate: [0.1, 1], share: half}\n", "above 0, at most 1"},
        {"tune: {rate: [0.1]}\n", "means nothing here"},
        {"tune: {learning-rate: [0.1, 1]}\nlearning-rates: [1, 2]\n", "one of the two"},
        {"optimizers: [adam]\n", "adamw and muon"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char whole[512];
        sr_study study;
        snprintf(whole, sizeof whole, "variants: {a: softmax}\nseeds: [1]\ntasks: {t: {}}\n%s",
                 cases[i][0]);
        assert_int_equal(sr_study_read(&study, "test", whole, strlen(whole)), SRNN_ERR_FORMAT);
        if (!strstr(srnn_error_detail(), cases[i][1]))
            fail_msg("%s gives: %s", cases[i][0], srnn_error_detail());
        sr_study_free(&study);
    }
}

/* Those of the tuning stay apart from any that a comparison gets later. */
static void seeds_of_the_tuning_are_refused(void **state) {
    (void)state;
    static const char seeds[] = "variants: {a: softmax}\nseeds: [1000000000]\ntasks: {t: {}}\n"
                                "tune: {learning-rate: [0.1, 1]}\n";
    sr_study study;
    assert_int_equal(sr_study_read(&study, "test", seeds, strlen(seeds)), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "below 1000000000"));
    sr_study_free(&study);
}

/* Every variant is run with each optimizer; the first keeps the names, and tasks list both. */
static void optimizers_are_an_axis(void **state) {
    (void)state;
    static const char both[] =
        "variants: {softmax: softmax, norm: {attention: norm, settings: {layers: 3}}}\n"
        "baseline: norm\nseeds: [1]\noptimizers: [adamw, muon]\n"
        "tasks: {t: {settings: {data: copy}}, one: {variants: [norm], settings: {data: copy}}}\n";
    sr_study study;
    assert_int_equal(sr_study_read(&study, "test", both, strlen(both)), SRNN_OK);
    assert_int_equal(sr_study_expand(&study, NULL), SRNN_OK);
    assert_int_equal(study.run_count, 6);
    assert_string_equal(study.variants[study.baseline].name, "norm");
    for (size_t i = 0; i < study.run_count; i++) {
        const bool muon = strstr(study.runs[i].id, "_muon") != NULL;
        assert_int_equal(study.runs[i].settings.optimizer, muon);
        assert_true(!strstr(study.runs[i].id, "norm") || study.runs[i].settings.L == 3);
    }
    sr_study_free(&study);
    static const char clash[] = "variants: {a: softmax, a muon: norm}\nseeds: [1]\n"
                                "optimizers: [adamw, muon]\ntasks: {t: {}}\n";
    assert_int_equal(sr_study_read(&study, "test", clash, strlen(clash)), SRNN_ERR_FORMAT);
    assert_non_null(strstr(srnn_error_detail(), "\"a muon\""));
    sr_study_free(&study);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_has_a_rate_of_its_own),
        cmocka_unit_test(tuning_says_how_long_runs_take),
        cmocka_unit_test(rounds_are_not_the_comparison),
        cmocka_unit_test(later_variants_are_tuned_alone),
        cmocka_unit_test(no_run_starts_before_its_rate_is_tuned),
        cmocka_unit_test(a_task_without_any_finite_loss_is_named),
        cmocka_unit_test(rates_belong_to_their_settings),
        cmocka_unit_test(the_cost_is_known_before),
        cmocka_unit_test(the_last_round_has_the_share),
        cmocka_unit_test(wrong_tuning_is_refused),
        cmocka_unit_test(seeds_of_the_tuning_are_refused),
        cmocka_unit_test(optimizers_are_an_axis),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
