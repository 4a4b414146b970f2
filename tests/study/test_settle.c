/* test_settle.c: comparisons end once they are settled. */
#include "base/random.h"
#include "files/folder.h"
#include "study/execute/execute.h"
#include "study/execute/settle.h"
#include "study/results/summary.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char folder[] = "settled_study";

static const char text[] =
    "seeds: [1, 2, 3, 4, 5, 6]\n"
    "settle: 0.05\n"
    "variants: {softmax: softmax, worse: norm, same: gate, noisy: order:2, odd: linear_elu}\n"
    "settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16}\n"
    "tasks: {copy: {settings: {data: 'copy:tokens=2,vocab=6,length=8'}}}\n";

/* Counts the runs of each variant that were requested. */
static size_t ran[5];

static double loss_of(const sr_study_run *run) {
    static const double means[] = {2, 4, 2, 2.02, 2.01}, scatters[] = {0, 0.01, 0.001, 0.1, 0.1};
    return means[run->variant] +
           scatters[run->variant] * sr_random_normal(3, run->variant, (uint64_t)run->settings.seed);
}

static void write_file(const char *id, const char *name, const char *content) {
    char path[300];
    snprintf(path, sizeof path, "%s/runs/%s", folder, id);
    assert_int_equal(sr_folders_make(path), SRNN_OK);
    snprintf(path, sizeof path, "%s/runs/%s/%s", folder, id, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(content, out) >= 0 && fclose(out) == 0);
}

/* Replaces the processes of a study. */
static srnn_status pretend(const sr_study *study, const char *where,
                           const sr_study_options *options, sr_run_view *views) {
    assert_string_equal(where, folder);
    (void)views;
    for (size_t i = 0; i < study->run_count; i++) {
        const sr_study_run *run = &study->runs[i];
        char path[300], metrics[200];
        snprintf(path, sizeof path, "%s/runs/%s/result.json", folder, run->id);
        if (!sr_study_selects(study, options, run) || access(path, F_OK) == 0)
            continue;
        ran[run->variant]++;
        snprintf(metrics, sizeof metrics,
                 "{\"step\": 1, \"tokens\": 8, \"loss\": 1, \"skipped\": 0, \"validation_loss\": "
                 "%.9f, \"validation_accuracy\": 0.5}\n",
                 loss_of(run));
        write_file(run->id, "metrics.jsonl", metrics);
        write_file(run->id, "result.json", "{\"status\": \"finished\", \"message\": \"\"}");
    }
    return SRNN_OK;
}

static void execute(sr_study *study, sr_study_options *options) {
    assert_int_equal(sr_study_read(study, "test", text, strlen(text)), SRNN_OK);
    assert_int_equal(sr_study_list_runs(study, NULL), SRNN_OK);
    assert_int_equal(sr_study_execute_settling(study, folder, options, NULL, pretend), SRNN_OK);
}

static void settled_comparisons_end(void **state) {
    (void)state;
    sr_study study;
    sr_study_options options = {0};
    assert_int_equal(sr_folders_make(folder), SRNN_OK);
    execute(&study, &options);
    assert_in_range(ran[1], 2, 4); /* worse by 200 standard deviations */
    assert_in_range(ran[2], 2, 4); /* no difference that matters */
    assert_int_equal(ran[3], 6);   /* open to the end */
    assert_int_equal(ran[0], 6);   /* the baseline of the open comparison */
    for (size_t i = 0; i < study.run_count; i++) {
        char path[300];
        snprintf(path, sizeof path, "%s/runs/%s", folder, study.runs[i].id);
        assert_int_equal(sr_study_selects(&study, &options, &study.runs[i]),
                         access(path, F_OK) == 0);
    }
    sr_study_options_free(&options);
    sr_study_free(&study);
}

/* The same command again has nothing to do: every decision is reproduced from the same records. */
static void decisions_are_repeated(void **state) {
    (void)state;
    sr_study study;
    sr_study_options options = {0};
    memset(ran, 0, sizeof ran);
    execute(&study, &options);
    for (size_t v = 0; v < 5; v++)
        assert_int_equal(ran[v], 0);
    sr_study_options_free(&options);
    sr_study_free(&study);
    assert_int_equal(sr_folder_remove(folder), SRNN_OK);
}

/* A run that failed will be tried again: nothing that depends on it is run before. */
static void a_failure_comes_first(void **state) {
    (void)state;
    sr_study study;
    sr_study_options options = {0};
    memset(ran, 0, sizeof ran);
    assert_int_equal(sr_folders_make(folder), SRNN_OK);
    write_file("copy.softmax.2", "result.json", "{\"status\": \"failed\", \"message\": \"x\"}");
    execute(&study, &options);
    assert_int_equal(ran[0], 1);
    for (size_t v = 1; v < 5; v++)
        assert_int_equal(ran[v], 2);
    sr_study_options_free(&options);
    sr_study_free(&study);
    assert_int_equal(sr_folder_remove(folder), SRNN_OK);
}

static void what_settles(void **state) {
    (void)state;
    const sr_interval around = {0, -0.01, 0.01, 3}, above = {1, 0.5, 1.5, 3};
    assert_false(sr_difference_settled(&(sr_difference){.interval = around}, 1));
    assert_true(
        sr_difference_settled(&(sr_difference){.interval = around, .verdict = SR_VERDICT_UNCLEAR},
                              0.02));
    assert_false(
        sr_difference_settled(&(sr_difference){.interval = around, .verdict = SR_VERDICT_UNCLEAR},
                              0.005));
    assert_true(
        sr_difference_settled(&(sr_difference){.interval = above, .verdict = SR_VERDICT_WORSE},
                              0.01));
    assert_true(sr_difference_settled(&(sr_difference){.verdict = SR_VERDICT_UNSTABLE}, 0.01));
}

static void wrong_settings_are_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"seeds: [1, 2]\nsettle: 0.1\n", "three seeds or more"},
                                           {"seeds: [1, 2, 3]\nsettle: 0\n", "above 0"},
                                           {"seeds: [1, 2, 3]\nsettle: x\n", "above 0"},
                                           {"seeds: [1, 2, 3]\nsettle: 1\nlearning-rates: [1, 2]\n",
                                            "several learning-rates"}};
    for (size_t i = 0; i < 3; i++) {
        char whole[200];
        sr_study study;
        snprintf(whole, sizeof whole, "variants: {a: softmax}\ntasks: {t: {}}\n%s", cases[i][0]);
        assert_int_equal(sr_study_read(&study, "test", whole, strlen(whole)), SRNN_ERR_FORMAT);
        assert_non_null(strstr(srnn_error_detail(), cases[i][1]));
        sr_study_free(&study);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settled_comparisons_end),    cmocka_unit_test(decisions_are_repeated),
        cmocka_unit_test(a_failure_comes_first),      cmocka_unit_test(what_settles),
        cmocka_unit_test(wrong_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
