/* test_study_command.c: `softrnn study` and `softrnn compare` as programs: interrupted, killed,
 * with a run that fails. */
#include "base/random.h"
#include "files/file.h"
#include "files/folder.h"
#include "study/results/record.h"
#include "test.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 16, RUNS = 6 };

static char folder[64], text[80], yaml[80], whole[80], broken[80], output[80];

static const char study_text[] =
    "seeds: [1, 2]\n"
    "variants: {softmax: softmax, norm: norm, elu: linear_elu}\n"
    "settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, steps: 40, batch: 4, warmup: 4,\n"
    "           length: 16, validate-every: 15, validate-batches: 3, save-every: 4, keep: 1}\n"
    "tasks: {text: {settings: {data: '@text'}}}\n";
static const char *const ids[RUNS] = {"text.softmax.1", "text.norm.1", "text.elu.1",
                                      "text.softmax.2", "text.norm.2", "text.elu.2"};

static void write_file(const char *path, const char *content) {
    assert_int_equal(sr_file_replace(path, content, strlen(content)), SRNN_OK);
}

/* Starts the program; its output goes into `output`. */
static pid_t start(const char *const *arguments) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0)
        return child;
    const int out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    char *list[MOST_ARGUMENTS] = {SOFTRNN_PROGRAM};
    for (int i = 0; arguments[i]; i++)
        list[i + 1] = strdup(arguments[i]);
    execv(SOFTRNN_PROGRAM, list);
    _exit(127);
}

static int finish(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static pid_t start_study(const char *out) {
    const char *const arguments[] = {"study", yaml,     "--out", out, "--text",
                                     text,    "--jobs", "2",     NULL};
    return start(arguments);
}

static bool said(const char *words) {
    sr_mapping file;
    assert_int_equal(sr_mapping_open(&file, output), SRNN_OK);
    const bool found = memmem(file.data, file.bytes, words, strlen(words)) != NULL;
    sr_mapping_close(&file);
    return found;
}

/* A file of a study without values that depend on time. */
static json_t *read_json(const char *study, const char *name) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", study, name);
    json_t *object = json_load_file(path, 0, NULL);
    assert_non_null(object);
    return object;
}

static json_t *timeless_summary(const char *study) {
    json_t *summary = read_json(study, "summary.json");
    json_t *cell, *variant;
    size_t c, v;
    json_array_foreach(json_object_get(summary, "cells"), c, cell) {
        json_array_foreach(json_object_get(cell, "variants"), v, variant) {
            assert_int_equal(json_object_del(variant, "tokens_per_second"), 0);
            assert_int_equal(json_object_del(variant, "apart"), 0);
        }
    }
    return summary;
}

static void same_records(void) {
    for (int i = 0; i < RUNS; i++) {
        char path[200];
        sr_mapping want, got;
        snprintf(path, sizeof path, "%s/runs/%s/metrics.jsonl", whole, ids[i]);
        assert_int_equal(sr_mapping_open(&want, path), SRNN_OK);
        snprintf(path, sizeof path, "%s/runs/%s/metrics.jsonl", broken, ids[i]);
        assert_int_equal(sr_mapping_open(&got, path), SRNN_OK);
        assert_int_equal(got.bytes, want.bytes);
        assert_memory_equal(got.data, want.data, got.bytes);
        sr_mapping_close(&want);
        sr_mapping_close(&got);
    }
    json_t *want = timeless_summary(whole), *got = timeless_summary(broken);
    assert_true(json_equal(want, got));
    json_decref(want);
    json_decref(got);
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* Signals at random moments until the study finishes once undisturbed. */
static void disturb(int signal_number, uint64_t stream, int most) {
    for (uint64_t attempt = 0;; attempt++) {
        const pid_t child = start_study(broken);
        if (attempt < (uint64_t)most) {
            usleep((useconds_t)(5000 + sr_random_below(5, stream, attempt, 250000)));
            kill(child, signal_number);
        }
        const int code = finish(child);
        if (code == 0)
            break;
        assert_true(code == (signal_number == SIGKILL ? -SIGKILL : 128 + signal_number) ||
                    code == -signal_number);
    }
    same_records();
}

static void interrupted_studies_go_on(void **state) {
    (void)state;
    disturb(SIGINT, 1, 6);
    disturb(SIGTERM, 2, 3);
}

static void killed_studies_go_on(void **state) {
    (void)state;
    disturb(SIGKILL, 3, 6);
}

static void ended_runs_are_not_run_again(void **state) {
    (void)state;
    char path[200];
    json_t *before, *after;
    assert_int_equal(finish(start_study(broken)), 0);
    snprintf(path, sizeof path, "runs/%s/result.json", ids[0]);
    before = read_json(broken, path);
    assert_int_equal(finish(start_study(broken)), 0);
    after = read_json(broken, path);
    assert_true(json_equal(before, after)); /* seconds included */
    json_decref(before);
    json_decref(after);
    same_records();
}

/* The numbers of the summary, recomputed from the records. */
static void summaries_agree_with_the_records(void **state) {
    (void)state;
    double losses[RUNS], best[RUNS];
    for (int i = 0; i < RUNS; i++) {
        char path[200];
        sr_record record;
        snprintf(path, sizeof path, "%s/runs/%s", whole, ids[i]);
        assert_int_equal(sr_record_read(&record, path), SRNN_OK);
        assert_int_equal(record.count, 40);
        assert_int_equal(record.batches, 3);
        losses[i] = record.points[39].validation; /* the last step always validates */
        best[i] = fmin(fmin(record.points[14].validation, record.points[29].validation), losses[i]);
        assert_true(isfinite(losses[i]) && isnan(record.points[38].validation));
        const double *b = record.batch_losses;
        assert_true(fabs((b[0] + b[1] + b[2]) / 3 - losses[i]) < 1e-6);
        sr_record_free(&record);
    }
    json_t *summary = read_json(whole, "summary.json");
    json_t *cell = json_array_get(json_object_get(summary, "cells"), 0);
    for (size_t v = 0; v < 3; v++) {
        json_t *variant = json_array_get(json_object_get(cell, "variants"), v);
        double mean, best_mean, difference;
        assert_int_equal(json_unpack(variant, "{s:{s:f}, s:{s:f}}", "loss", "mean", &mean,
                                     "best_loss", "mean", &best_mean),
                         0);
        assert_true(fabs(mean - (losses[v] + losses[v + 3]) / 2) < 1e-9);
        assert_true(fabs(best_mean - (best[v] + best[v + 3]) / 2) < 1e-9);
        if (v == 0)
            continue;
        assert_int_equal(json_unpack(variant, "{s:{s:f}}", "difference", "mean", &difference), 0);
        assert_true(fabs(difference - (losses[v] - losses[0] + losses[v + 3] - losses[3]) / 2) <
                    1e-9);
        const char *of, *verdict;
        int seed;
        json_t *pairs;
        assert_int_equal(json_unpack(variant, "{s:{s:s, s:s, s:o}}", "difference", "of", &of,
                                     "verdict", &verdict, "pairs", &pairs),
                         0);
        assert_string_equal(of, "loss");
        assert_int_equal(json_array_size(pairs), 2);
        assert_int_equal(json_unpack(json_array_get(pairs, 1), "{s:i, s:f}", "seed", &seed,
                                     "difference", &difference),
                         0);
        assert_int_equal(seed, 2);
        assert_true(fabs(difference - (losses[v + 3] - losses[3])) < 1e-9);
        assert_string_not_equal(verdict, "unstable");
    }
    json_decref(summary);
}

static void dry_runs_leave_nothing(void **state) {
    (void)state;
    const char *const arguments[] = {"study",     yaml,     "--out", broken,
                                     "--dry-run", "--only", "norm",  NULL};
    assert_int_equal(finish(start(arguments)), 0);
    assert_true(said("text.norm.2"));
    assert_false(said("text.softmax"));
    assert_true(said("2 runs, 5.12e+03 tokens")); /* 2 runs of 40 steps of 4 x 16 tokens */
    assert_int_not_equal(access(broken, F_OK), 0);
}

static void failures_do_not_end_a_study(void **state) {
    (void)state;
    char other[100], content[1024];
    snprintf(other, sizeof other, "%s/failing.yaml", folder);
    snprintf(content, sizeof content, "%.*s  gone: {settings: {data: '@text', device: 'cuda:7'}}\n",
             (int)(strstr(study_text, "tasks:") - study_text), study_text);
    char *at = strstr(content, "  gone:");
    memmove(at + 7, at, strlen(at) + 1);
    memcpy(at, "tasks:\n", 7);
    strcat(content, "  text: {settings: {data: '@text'}}\n");
    write_file(other, content);
    const char *const arguments[] = {"study", other, "--out", broken, "--text", text, NULL};
    assert_int_equal(finish(start(arguments)), 1);
    assert_true(said("run gone.norm.1 failed: cuda:7"));
    assert_true(said("12 runs: 6 finished, 0 diverged, 6 failed"));
    char page[120];
    snprintf(page, sizeof page, "%s/report.html", broken);
    assert_true(said(page) && said("the results as a page"));
    assert_int_equal(access(page, R_OK), 0);
    assert_int_equal(remove(page), 0);
    const char *const without[] = {"study",  other, "--out",       broken,
                                   "--text", text,  "--no-report", NULL};
    assert_int_equal(finish(start(without)), 1);
    assert_true(said("softrnn report ") && said("writes the results as a page"));
    assert_int_not_equal(access(page, F_OK), 0);
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* `softrnn study --out STUDY --status`, with its output in a separate file. */
static int ask_status(const char *study) {
    const char *const arguments[] = {"study", "--out", study, "--status", NULL};
    snprintf(output, sizeof output, "%s/status", folder);
    return finish(start(arguments));
}

/* Long enough to be inspected while it runs. Its data is relative to its file, and the copy in the
 * folder is elsewhere. */
static pid_t start_long_study(void) {
    char path[100], place[200], record[200];
    snprintf(path, sizeof path, "%s/long.yaml", folder);
    write_file(path, "seeds: [1]\n"
                     "variants: {softmax: softmax, norm: norm}\n"
                     "settings: {layers: 1, heads: 2, hidden: 16, mlp-hidden: 16, batch: 1,\n"
                     "           length: 16, steps: 10000000, data: text.txt}\n"
                     "tasks: {long: {}}\n");
    const char *const arguments[] = {"study", path, "--out", broken, "--jobs", "1", NULL};
    const pid_t child = start(arguments);
    snprintf(place, sizeof place, "%s/runs/long.softmax.1/place", broken);
    snprintf(record, sizeof record, "%s/runs/long.softmax.1/metrics.jsonl", broken);
    struct stat facts = {0};
    for (int i = 0;
         i < 1000 && (access(place, F_OK) != 0 || stat(record, &facts) != 0 || facts.st_size == 0);
         i++)
        usleep(20000);
    return child;
}

static void status_says_what_runs_here(void **state) {
    (void)state;
    char host[64] = "", line[120], place[200];
    gethostname(host, sizeof host - 1);
    const pid_t child = start_long_study();
    const int status_code = ask_status(broken);
    kill(child, SIGINT); /* before anything can fail here */
    assert_int_equal(finish(child), 130);
    assert_int_equal(status_code, 0);
    assert_true(said("long.softmax.1                   running   step "));
    snprintf(line, sizeof line, "  on %s, process ", host);
    assert_true(said(line) && said("last record "));
    assert_true(said("long.norm.1                      waiting   step 0 of 10000000\n"));
    assert_int_equal(ask_status(broken), 0);
    assert_true(said("long.softmax.1                   stopped   step ") && !said("process"));
    /* The file that a killed process leaves; this process has just ended. */
    snprintf(place, sizeof place, "%s/runs/long.softmax.1/place", broken);
    snprintf(line, sizeof line, "%s, process %ld", host, (long)child);
    write_file(place, line);
    assert_int_equal(ask_status(broken), 0);
    assert_true(said("long.softmax.1                   stopped   step "));
    write_file(place, "another machine, process 1");
    assert_int_equal(ask_status(broken), 0);
    assert_true(said("running") && said("  on another machine, process 1, last record "));
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* A running run is left alone by a study with the same run, and continues. */
static void a_living_run_is_left_alone(void **state) {
    (void)state;
    char path[100], place[200], result[200];
    sr_mapping before, after;
    snprintf(path, sizeof path, "%s/long.yaml", folder);
    snprintf(place, sizeof place, "%s/runs/long.softmax.1/place", broken);
    snprintf(result, sizeof result, "%s/runs/long.softmax.1/result.json", broken);
    const pid_t child = start_long_study();
    const bool found = sr_mapping_open(&before, place) == SRNN_OK;
    const char *const arguments[] = {"study",          path, "--out", broken, "--run",
                                     "long.softmax.1", NULL};
    snprintf(output, sizeof output, "%s/second", folder);
    const int second = finish(start(arguments));
    const bool refused = said("another process is at work in this folder");
    const bool left = sr_mapping_open(&after, place) == SRNN_OK && access(result, F_OK) != 0;
    const char *const only[] = {"study", "--out", broken, "--status", "--only", "norm", NULL};
    const int status_code = finish(start(only));
    const bool one = said("long.norm.1") && !said("long.softmax.1");
    kill(child, SIGINT); /* before anything can fail here */
    assert_int_equal(finish(child), 130);
    assert_int_equal(second, 1);
    assert_true(found && refused && left);
    assert_int_equal(after.bytes, before.bytes);
    assert_memory_equal(after.data, before.data, after.bytes);
    sr_mapping_close(&before);
    sr_mapping_close(&after);
    assert_true(status_code == 0 && one); /* only of the requested runs */
    assert_int_not_equal(access(place, F_OK), 0);
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

static void status_makes_nothing(void **state) {
    (void)state;
    const char *const named[] = {"study", yaml, "--out", broken, "--status", NULL};
    assert_int_equal(finish(start(named)), 1);
    assert_true(said("there is no such folder"));
    assert_int_equal(ask_status(broken), 1);
    assert_true(said("there is no such folder"));
    assert_int_not_equal(access(broken, F_OK), 0);
    assert_int_equal(sr_folder_make(broken), SRNN_OK);
    assert_int_equal(ask_status(broken), 1);
    assert_true(said("no study was run in this folder"));
    assert_int_equal(finish(start(named)), 0);
    assert_true(said("text.elu.2                       waiting"));
    assert_int_equal(rmdir(broken), 0); /* still empty */
    const char *const both[] = {"study", yaml, "--dry-run", "--status", NULL};
    assert_int_equal(finish(start(both)), 2);
    /* Without a file it is the study of the folder, not the default one. */
    assert_int_equal(ask_status(whole), 0);
    assert_true(said("text.elu.2                       finished  step 40 of 40\n"));
    assert_false(said("waiting"));
}

/* Without a normaliser and with an absurd learning rate no step stays finite. */
static void divergence_is_a_result(void **state) {
    (void)state;
    char other[100];
    snprintf(other, sizeof other, "%s/diverging.yaml", folder);
    write_file(other, "seeds: [1]\n"
                      "variants: {softmax: softmax, none: 'score=exp,normaliser=none'}\n"
                      "settings: {layers: 2, heads: 2, hidden: 16, mlp-hidden: 16, steps: 20,\n"
                      "           batch: 4, warmup: 1, clip: 0, learning-rate: 100, bad-steps: 2,\n"
                      "           data: 'recall:pairs=2,vocab=8,length=12'}\n"
                      "tasks: {recall: {}}\n");
    const char *const arguments[] = {"study", other, "--out", broken, NULL};
    assert_int_equal(finish(start(arguments)), 0);
    assert_true(said("2 runs: 1 finished, 1 diverged, 0 failed"));
    assert_true(said("no pair of runs               unstable"));
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* A file of a study's folder, to be compared byte by byte. */
static sr_mapping open_file(const char *study, const char *name) {
    char path[400];
    sr_mapping file;
    snprintf(path, sizeof path, "%s/%s", study, name);
    assert_int_equal(sr_mapping_open(&file, path), SRNN_OK);
    return file;
}

static const char *const plan_files[] = {"study.yaml", "study.json", "summary.json",
                                         "data/text.txt"};
enum { PLAN_FILES = sizeof plan_files / sizeof *plan_files };

/* Files are replaced, never rewritten: a mapping keeps what was there. */
static void open_plan(sr_mapping files[PLAN_FILES], const char *study) {
    for (int i = 0; i < PLAN_FILES; i++)
        files[i] = open_file(study, plan_files[i]);
}

static void plan_is_as_it_was(sr_mapping before[PLAN_FILES], const char *study) {
    for (int i = 0; i < PLAN_FILES; i++) {
        sr_mapping now = open_file(study, plan_files[i]);
        assert_int_equal(now.bytes, before[i].bytes);
        assert_memory_equal(now.data, before[i].data, now.bytes);
        sr_mapping_close(&now);
        sr_mapping_close(&before[i]);
    }
}

/* The test's study with one word in place of another. */
static void write_changed(char path[100], const char *name, const char *word, const char *by) {
    char content[1024];
    const char *at = strstr(study_text, word);
    snprintf(path, 100, "%s/%s.yaml", folder, name);
    snprintf(content, sizeof content, "%.*s%s%s", (int)(at - study_text), study_text, by,
             at + strlen(word));
    write_file(path, content);
}

static void other_studies_are_refused(void **state) {
    (void)state;
    char other[100];
    sr_mapping before[PLAN_FILES];
    open_plan(before, whole);
    write_changed(other, "other", "steps: 40", "steps: 41");
    const char *const arguments[] = {"study", other, "--out", whole, "--text", text, NULL};
    assert_int_equal(finish(start(arguments)), 2);
    assert_true(said("another steps"));
    const char *const other_text[] = {"study", yaml, "--out", whole, "--text", yaml, NULL};
    assert_int_equal(finish(start(other_text)), 2);
    assert_true(said("another text"));
    /* A plan that lacks existing runs. */
    write_changed(other, "other", "norm: norm", "gate: gate");
    assert_int_equal(finish(start(arguments)), 2);
    assert_true(said("text.norm.") && said("not one of the study"));
    plan_is_as_it_was(before, whole);
    /* A study's folder is no run's, and a run's no study's. */
    char run[2 * sizeof other];
    const char *const train[] = {"train", "--out", whole, "--data", "recall", NULL};
    assert_int_equal(finish(start(train)), 2);
    assert_true(said("there is a study in this folder"));
    snprintf(run, sizeof run, "%s/runs/text.softmax.1", whole);
    const char *const in_run[] = {"study", yaml, "--out", run, "--text", text, NULL};
    assert_int_equal(finish(start(in_run)), 2);
    assert_true(said("there is a training run in this folder"));
}

/* While one study runs, another in its folder changes nothing. */
static void running_studies_are_left_alone(void **state) {
    (void)state;
    char other[100], path[200];
    sr_mapping before[PLAN_FILES];
    assert_int_equal(finish(start_study(broken)), 0);
    open_plan(before, broken);
    snprintf(path, sizeof path, "%s/lock", broken);
    const int lock = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(lock, LOCK_EX | LOCK_NB), 0);
    write_changed(other, "more", "seeds: [1, 2]", "seeds: [1, 2, 3]");
    const char *const arguments[] = {"study", other, "--out", broken, "--text", text, NULL};
    assert_int_equal(finish(start(arguments)), 1);
    assert_true(said("another process is at work"));
    plan_is_as_it_was(before, broken);
    close(lock);
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

/* Moved in the middle, its first runs ended, others begun. */
static void moved_studies_go_on(void **state) {
    (void)state;
    char elsewhere[100];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", folder);
    const pid_t child = start_study(elsewhere);
    usleep(150000);
    kill(child, SIGINT);
    finish(child);
    assert_int_equal(rename(elsewhere, broken), 0);
    assert_int_equal(finish(start_study(broken)), 0);
    assert_int_equal(rename(broken, elsewhere), 0);
    assert_int_equal(finish(start_study(elsewhere)), 0); /* all had ended */
    assert_int_equal(rename(elsewhere, broken), 0);
    same_records();
}

/* A text that is too short for one row is refused, and another may take its place. */
static void short_texts_are_refused(void **state) {
    (void)state;
    char tiny[100];
    snprintf(tiny, sizeof tiny, "%s/tiny.txt", folder);
    write_file(tiny, "short");
    const char *const arguments[] = {"study", yaml, "--out", broken, "--text", tiny, NULL};
    assert_int_equal(finish(start(arguments)), 2);
    assert_int_equal(finish(start_study(broken)), 0);
    same_records();
}

static void wrong_selections_are_refused(void **state) {
    (void)state;
    const char *const only[] = {"study", yaml, "--out", broken, "--only", "nrom", NULL};
    assert_int_equal(finish(start(only)), 2);
    assert_true(said("--only: ") && said("did you mean \"norm\"?"));
    const char *const skip[] = {"study", yaml, "--dry-run", "--skip", "norm,text.elu.3", NULL};
    assert_int_equal(finish(start(skip)), 2);
    assert_true(said("--skip: ") && said("text.elu.3"));
    const char *const all[] = {"study", yaml, "--dry-run", "--skip", "text", NULL};
    assert_int_equal(finish(start(all)), 2);
    assert_true(said("nothing to run"));
    assert_int_equal(sr_folder_remove(broken), SRNN_OK);
}

static void runs_are_compared(void **state) {
    (void)state;
    char first[200], second[200];
    snprintf(first, sizeof first, "%s/runs/%s", whole, ids[0]);
    snprintf(second, sizeof second, "%s/runs/%s/", whole, ids[2]);
    const char *const arguments[] = {"compare", first, second, NULL};
    assert_int_equal(finish(start(arguments)), 0);
    assert_true(said("a text.softmax.1 ") && said("b text.elu.1 ") && said("linear_elu"));
    assert_true(said("validation loss against steps"));
    const char *const nothing[] = {"compare", NULL}, *const nowhere[] = {"compare", folder, NULL};
    assert_int_equal(finish(start(nothing)), 2);
    assert_int_equal(finish(start(nowhere)), 1);
}

static int enter(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/softrnn-study-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(yaml, sizeof yaml, "%s/study.yaml", folder);
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(broken, sizeof broken, "%s/broken", folder);
    snprintf(output, sizeof output, "%s/output", folder);
    write_file(yaml, study_text);
    FILE *out = fopen(text, "w");
    for (int i = 0; out && i < 400; i++)
        fprintf(out, "line %d says %d times %d\n", i, i * 7 % 31, i * i % 17);
    return out && fclose(out) == 0 && finish(start_study(whole)) == 0 ? 0 : -1;
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(summaries_agree_with_the_records),
        cmocka_unit_test(interrupted_studies_go_on),
        cmocka_unit_test(killed_studies_go_on),
        cmocka_unit_test(ended_runs_are_not_run_again),
        cmocka_unit_test(dry_runs_leave_nothing),
        cmocka_unit_test(failures_do_not_end_a_study),
        cmocka_unit_test(status_says_what_runs_here),
        cmocka_unit_test(a_living_run_is_left_alone),
        cmocka_unit_test(status_makes_nothing),
        cmocka_unit_test(divergence_is_a_result),
        cmocka_unit_test(other_studies_are_refused),
        cmocka_unit_test(running_studies_are_left_alone),
        cmocka_unit_test(moved_studies_go_on),
        cmocka_unit_test(short_texts_are_refused),
        cmocka_unit_test(wrong_selections_are_refused),
        cmocka_unit_test(runs_are_compared),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
