/* test_team.c: runs of a study as threads of one process, and a limit on its time. */
#include "base/clock.h"
#include "files/folder.h"
#include "ops/backend.h"
#include "study/execute/execute.h"
#include "test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS = 6 };
static const char file[] = "team.yaml";

static void write_study(const char *device, int steps) {
    FILE *out = fopen(file, "w");
    assert_non_null(out);
    fprintf(out,
            "seeds: [1, 2, 3]\nvariants: {softmax: softmax, delta: delta_net}\n"
            "settings: {device: %s, layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, batch: 2,\n"
            "  steps: %d, warmup: 2, validate-every: 4, validate-batches: 1, save-every: 0}\n"
            "tasks: {recall: {measure: loss, settings: {data: 'recall:pairs=1,vocab=8,length=8'}}}"
            "\n",
            device, steps);
    assert_int_equal(fclose(out), 0);
}

static srnn_status execute_with(const char *folder, sr_study_options options, sr_run_view *views) {
    const sr_study_request request = {.file = file, .out = folder};
    sr_study study = {0};
    sr_summary summary = {0};
    srnn_status status = sr_study_prepare(&study, &options, &request);
    if (status == SRNN_OK)
        status = sr_study_execute_file(&study, &options, &request, "again", views, &summary);
    sr_summary_free(&summary);
    sr_study_options_free(&options);
    sr_study_free(&study);
    return status;
}

static srnn_status execute(const char *folder, int jobs, int together, double seconds,
                           sr_run_view *views) {
    const sr_study_options options = {.jobs = jobs,
                                      .together = together,
                                      .deadline = seconds > 0 ? sr_clock_seconds() + seconds : 0};
    return execute_with(folder, options, views);
}

static char *read_records(const char *folder, const char *run) {
    char path[200];
    char *text = calloc(1, 1 << 16);
    snprintf(path, sizeof path, "%s/runs/%s/metrics.jsonl", folder, run);
    FILE *in = fopen(path, "r");
    if (!in)
        fail_msg("%s is missing", path);
    assert_true(fread(text, 1, (1 << 16) - 1, in) > 100);
    fclose(in);
    return text;
}

static void expect_same_bits(const char *device) {
    static const char *const runs[RUNS] = {"recall.softmax.1", "recall.softmax.2",
                                           "recall.softmax.3", "recall.delta.1",
                                           "recall.delta.2",   "recall.delta.3"};
    static const char *const folders[] = {"team_alone", "team_of_three", "team_of_all"};
    static const struct { int jobs, together; } cases[] = {{2, 1}, {6, 3}, {6, 8}};
    sr_run_view views[RUNS];
    write_study(device, 8);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(execute(folders[i], cases[i].jobs, cases[i].together, 0, views), SRNN_OK);
        for (int run = 0; run < RUNS; run++) {
            if (views[run].ending != SR_ENDING_FINISHED)
                fail_msg("%s", views[run].message);
            char *want = read_records(folders[0], runs[run]);
            char *got = read_records(folders[i], runs[run]);
            assert_string_equal(want, got);
            free(want), free(got);
        }
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(sr_folder_remove(folders[i]), SRNN_OK);
}

static void runs_of_a_process_have_the_same_bits(void **state) {
    (void)state;
    expect_same_bits("cpu");
}

/* In another process: one that has used a GPU must not fork. */
static bool has_gpu(void) {
    int result = 1;
    const pid_t process = fork();
    if (process == 0) {
        sr_backend *gpu;
        _exit(sr_backend_create(&gpu, &(sr_backend_settings){.device = "cuda"}) != SRNN_OK);
    }
    assert_int_equal(waitpid(process, &result, 0), process);
    return result == 0;
}

static void and_on_a_gpu(void **state) {
    (void)state;
    if (!has_gpu())
        skip();
    expect_same_bits("cuda");
}

/* What does not end in time is stopped with a checkpoint, the rest is not begun; nor is a run that
 * may take longer, by the records of those before. */
static void sittings_have_an_end(void **state) {
    (void)state;
    sr_run_view views[RUNS];
    write_study("cpu", 2000000);
    assert_int_equal(execute("team_sitting", 1, 1, 2, views), SRNN_ERR_INTERRUPTED);
    assert_non_null(strstr(srnn_error_detail(), "runs left: 6"));
    assert_true(views[0].step > 0 && !views[0].running);
    assert_true(views[1].step == 0 && views[RUNS - 1].step == 0);
    /* The same without the checkpoints, which were left behind: the run begins again. */
    assert_int_equal(sr_folder_remove("team_sitting/runs/recall.softmax.1/checkpoints"), SRNN_OK);
    assert_int_equal(execute("team_sitting", 1, 1, 2, views), SRNN_ERR_INTERRUPTED);
    assert_true(views[0].step > 0 && views[0].ending == SR_ENDING_NONE);
    assert_int_equal(sr_folder_remove("team_sitting"), SRNN_OK);
    write_study("cpu", 300);
    assert_int_equal(execute("team_sitting", 1, 1, 600, views), SRNN_OK);
    for (int run = 0; run < RUNS; run++)
        assert_int_equal(views[run].ending, SR_ENDING_FINISHED);
    /* The record of a finished run without its checkpoints says how long others take. */
    assert_int_equal(sr_folder_remove("team_sitting/runs/recall.delta.3"), SRNN_OK);
    assert_int_equal(sr_folder_remove("team_sitting/runs/recall.softmax.1/checkpoints"), SRNN_OK);
    assert_int_equal(execute("team_sitting", 1, 1, 1e-3, views), SRNN_ERR_INTERRUPTED);
    assert_non_null(strstr(srnn_error_detail(), "runs left: 1, which may take "));
    assert_true(views[RUNS - 1].step == 0);
    assert_int_equal(execute("team_sitting", 1, 1, 600, views), SRNN_OK);
    assert_int_equal(sr_folder_remove("team_sitting"), SRNN_OK);
}

/* The least number of cores that a child of this process has. */
static int least_cores(void) {
    char path[64], line[4096] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    (void)!fgets(line, sizeof line, in);
    fclose(in);
    int least = 0;
    for (char *at = line, *end; *at; at = end) {
        cpu_set_t cores;
        const long process = strtol(at, &end, 10);
        if (end == at)
            break;
        if (sched_getaffinity((pid_t)process, sizeof cores, &cores) == 0 &&
            (!least || CPU_COUNT(&cores) < least))
            least = CPU_COUNT(&cores);
    }
    return least;
}

static bool watch_cores(void *context, const sr_study *study, const sr_run_view *views) {
    int *least = context, running = 0;
    for (size_t i = 0; i < study->run_count; i++)
        running += views[i].running && views[i].step > 0;
    if (running == RUNS)
        *least = least_cores();
    return *least == 0;
}

/* With more runs than cores, no process is confined to some of them. */
static void crowded_processes_have_all_cores(void **state) {
    (void)state;
    sr_run_view views[RUNS];
    cpu_set_t before, two;
    int least = 0, found = 0;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&two);
    for (size_t core = 0; core < CPU_SETSIZE && found < 2; core++)
        if (CPU_ISSET(core, &before)) {
            CPU_SET(core, &two);
            found++;
        }
    if (found < 2)
        skip();
    assert_int_equal(sched_setaffinity(0, sizeof two, &two), 0);
    write_study("cpu", 2000000);
    const sr_study_options options = {.jobs = RUNS,
                                      .together = 1,
                                      .watch = watch_cores,
                                      .context = &least};
    assert_int_equal(execute_with("team_crowd", options, views), SRNN_ERR_INTERRUPTED);
    assert_int_equal(least, 2);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(sr_folder_remove("team_crowd"), SRNN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_of_a_process_have_the_same_bits),
        cmocka_unit_test(and_on_a_gpu),
        cmocka_unit_test(sittings_have_an_end),
        cmocka_unit_test(crowded_processes_have_all_cores),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove(file);
    return failed;
}
