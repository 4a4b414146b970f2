/* test_train.c: schedules, given batches, skipped steps, and runs that stop and resume. */
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "golden.h"
#include "model/files/model_folder.h"
#include "train/run/log_file.h"
#include "train/run/run.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64], text[80], golden_model[80], golden_batches[96], run_folder[80];

/* As in transformers.get_linear_schedule_with_warmup, by completed steps. */
static double hugging_face_linear(int64_t step, int64_t warmup, int64_t steps) {
    if (step < warmup)
        return (double)step / (double)warmup;
    return fmax(0.0, (double)(steps - step) / (double)(steps - warmup));
}

static void schedules(void **state) {
    (void)state;
    sr_schedule s = {SR_SCHEDULE_LINEAR, 100, 10, 20, 0};
    for (int64_t step = 1; step <= 103; step++)
        assert_true(fabs(sr_schedule_rate(&s, step) - hugging_face_linear(step - 1, 10, 100)) <
                    1e-12);
    assert_true(sr_schedule_rate(&s, 1) == 0 && sr_schedule_rate(&s, 11) == 1);
    assert_true(fabs(sr_schedule_rate(&s, 100) - 1.0 / 90) < 1e-12);
    s.kind = SR_SCHEDULE_COSINE;
    s.floor = 0.1;
    assert_true(fabs(sr_schedule_rate(&s, 56) - 0.55) < 1e-12);
    assert_true(fabs(sr_schedule_rate(&s, 101) - 0.1) < 1e-12);
    s.kind = SR_SCHEDULE_STABLE;
    s.floor = 0;
    assert_true(sr_schedule_rate(&s, 80) == 1 && fabs(sr_schedule_rate(&s, 91) - 0.5) < 1e-12);
    s.decay = 1000; /* begins after the warm-up, without a jump */
    assert_true(sr_schedule_rate(&s, 11) == 1 && fabs(sr_schedule_rate(&s, 56) - 0.5) < 1e-12);
    s.kind = SR_SCHEDULE_CONSTANT;
    assert_true(sr_schedule_rate(&s, 100) == 1 && sr_schedule_rate(&s, 2) == 0.1);
}

/* The golden model of a variant as a folder, and its batches as a file. */
static void write_golden(const sr_safetensors *file, const char *variant) {
    sr_model_config config = {.V = GOLDEN_V,
                              .C = GOLDEN_C,
                              .F = GOLDEN_F,
                              .L = 1,
                              .H = GOLDEN_H,
                              .Hkv = GOLDEN_H,
                              .D = GOLDEN_D,
                              .positions = GOLDEN_T,
                              .norm_epsilon = 1e-5,
                              .rope_theta = 10000};
    sr_backend *cpu;
    sr_model *model;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    assert_int_equal(sr_model_config_attention(&config, variant), SRNN_OK);
    assert_int_equal(sr_model_create(&model, cpu, &config), SRNN_OK);
    for (size_t i = 0; i < model->table.count; i++) {
        const sr_tensor_spec *spec = &model->table.specs[i];
        float *numbers = golden_numbers(file, variant, "", spec->name, spec->count);
        memcpy(model->weights + spec->start, numbers, spec->count * sizeof *numbers);
        free(numbers);
    }
    assert_int_equal(sr_folder_make(golden_model), SRNN_OK);
    assert_int_equal(sr_model_save(model, golden_model, SR_DTYPE_F32), SRNN_OK);
    sr_model_free(model);
    sr_model_config_free(&config);
    sr_backend_free(cpu);
    char key[128];
    sr_safetensors_writer *writer;
    snprintf(key, sizeof key, "%s/check.ids", variant);
    sr_tensor ids = *sr_safetensors_find(file, key);
    ids.name = "ids";
    assert_int_equal(sr_safetensors_writer_create(&writer), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_add(writer, &ids), SRNN_OK);
    assert_int_equal(sr_safetensors_writer_write(writer, golden_batches), SRNN_OK);
    sr_safetensors_writer_free(writer);
}

static sr_run_settings settings_for(const char *data) {
    sr_run_settings s;
    assert_int_equal(sr_run_settings_create(&s), SRNN_OK);
    if (data)
        assert_int_equal(sr_run_settings_text(&s.data, data), SRNN_OK);
    s.C = 16;
    s.F = 24;
    s.L = 2;
    s.H = 2;
    s.B = 2;
    s.T = 12;
    s.steps = 12;
    s.warmup = 3;
    s.accumulate = 2;
    s.save_every = 3;
    s.validate_every = 4;
    s.validate_batches = 2;
    return s;
}

static void given_batches(void **state) {
    static const char *const variants[] = {"softmax", "gated_softmax_plusplus", "linear_cosine"};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        sr_run_settings s = settings_for(NULL);
        s.C = s.F = s.L = s.H = 0; /* the model's */
        write_golden(*state, variants[v]);
        assert_int_equal(sr_run_settings_text(&s.model, golden_model), SRNN_OK);
        assert_int_equal(sr_run_settings_text(&s.batches, golden_batches), SRNN_OK);
        s.accumulate = 1;
        s.schedule = SR_SCHEDULE_CONSTANT;
        s.warmup = 0;
        s.clip = 0;
        s.steps = GOLDEN_STEPS;
        sr_run *run;
        float *want = golden_numbers(*state, variants[v], "check.", "losses", GOLDEN_STEPS);
        assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
        for (int step = 0; step < GOLDEN_STEPS; step++) {
            sr_run_report report;
            assert_int_equal(sr_run_step(run, &report), SRNN_OK);
            assert_true(fabs(report.step.loss - (double)want[step]) < 1e-4);
        }
        assert_true(sr_run_done(run));
        sr_run_free(run);
        free(want);
        sr_run_settings_free(&s);
        assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
    }
}

/* Runs until `stop` (0: the end) and ends like a killed process: without saving, unless the run is
 * done. */
static void run_until(int64_t stop, bool resume, const sr_run_settings *s) {
    sr_run *run;
    const sr_run_ends ends = {.threads = (int)(1 + stop % 3)};
    if (resume)
        assert_int_equal(sr_run_resume(&run, run_folder, &ends), SRNN_OK);
    else
        assert_int_equal(sr_run_start(&run, run_folder, s), SRNN_OK);
    while (!sr_run_done(run) && (stop == 0 || sr_run_progress(run)->step < stop)) {
        sr_run_report report;
        assert_int_equal(sr_run_step(run, &report), SRNN_OK);
        assert_true(report.step.applied && !*report.save_failure);
    }
    if (sr_run_done(run))
        assert_int_equal(sr_run_save(run), SRNN_OK);
    sr_run_free(run);
}

/* The bytes of a file of the run, in *mapping. */
static void open_file(sr_mapping *mapping, const char *name) {
    char path[200];
    snprintf(path, sizeof path, "%s/%s", run_folder, name);
    assert_int_equal(sr_mapping_open(mapping, path), SRNN_OK);
}

static const char *const files[] = {"metrics.jsonl", "checkpoints/step-000000012/model.safetensors",
                                    "checkpoints/step-000000012/optimizer.safetensors",
                                    "checkpoints/step-000000012/config.json"};
enum { FILES = sizeof files / sizeof *files };

static void expect_same_after_stops(sr_optimizer optimizer, size_t patterns) {
    static const int64_t stops[][4] = {{1, 2, 0}, {5, 0}, {4, 7, 11, 0}, {3, 10, 0}};
    sr_run_settings s = settings_for(text);
    sr_mapping want[FILES];
    s.optimizer = (int)optimizer;
    assert_int_equal(sr_run_settings_text(&s.attention, "0:gated_softmax,1-:order:2"), SRNN_OK);
    run_until(0, false, &s);
    for (size_t i = 0; i < FILES; i++)
        open_file(&want[i], files[i]);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
    for (size_t n = 0; n < patterns; n++) {
        run_until(stops[n][0], false, &s);
        for (size_t i = 1; i < 4; i++) {
            run_until(stops[n][i], true, &s);
            if (stops[n][i] == 0)
                break;
        }
        for (size_t i = 0; i < FILES; i++) {
            sr_mapping got;
            open_file(&got, files[i]);
            assert_int_equal(got.bytes, want[i].bytes);
            assert_memory_equal(got.data, want[i].data, got.bytes);
            sr_mapping_close(&got);
        }
        assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
    }
    for (size_t i = 0; i < FILES; i++)
        sr_mapping_close(&want[i]);
    sr_run_settings_free(&s);
}

static void stopping_changes_nothing(void **state) {
    (void)state;
    expect_same_after_stops(SR_OPTIMIZER_ADAMW, 4);
    expect_same_after_stops(SR_OPTIMIZER_MUON, 2);
}

/* A learning rate that blows the weights up: steps are skipped, and then the run ends. */
static void bad_steps_are_skipped(void **state) {
    (void)state;
    sr_run_settings s = settings_for(text);
    s.learning_rate = 1e30;
    s.warmup = 0;
    s.clip = 0;
    s.bad_steps = 2;
    s.save_every = 0;
    s.schedule = SR_SCHEDULE_CONSTANT;
    sr_run *run;
    sr_run_report report;
    srnn_status status = SRNN_OK;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
    for (int i = 0; i < 12 && status == SRNN_OK; i++)
        status = sr_run_step(run, &report);
    assert_int_equal(status, SRNN_ERR_LIMIT);
    assert_false(report.step.applied);
    assert_int_equal(sr_run_progress(run)->skipped_in_row, 2);
    /* The last good state is saved, although no checkpoint was due. */
    char checkpoint[SR_PATH_BYTES];
    assert_int_equal(sr_checkpoint_latest(checkpoint, run_folder), SRNN_OK);
    assert_non_null(strstr(checkpoint, "step-"));
    assert_non_null(strstr(srnn_error_detail(), "checkpoints"));
    sr_run_free(run);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

static void settings_survive(void **state) {
    (void)state;
    char path[128];
    sr_run_settings s = settings_for("a \"quoted\" \\ name: # and more"), again;
    snprintf(path, sizeof path, "%s/settings.yaml", folder);
    s.learning_rate = 0.1 + 0.2;
    s.tied = true;
    s.schedule = SR_SCHEDULE_STABLE;
    s.seed = 1234567890123;
    assert_int_equal(sr_run_settings_write(&s, path), SRNN_OK);
    assert_int_equal(sr_run_settings_create(&again), SRNN_OK);
    assert_int_equal(sr_run_settings_read(&again, path), SRNN_OK);
    assert_string_equal(again.data, s.data);
    assert_true(again.learning_rate == s.learning_rate && again.tied && again.seed == s.seed);
    assert_int_equal(again.schedule, SR_SCHEDULE_STABLE);
    assert_int_equal(sr_run_settings_set(&again, "recompute", "true"), SRNN_OK); /* once a flag */
    assert_int_equal(again.recompute, SR_RECOMPUTE_BLOCK);
    assert_null(sr_run_settings_difference(&again, &s)); /* which changes no bits */
    static const char *const bad[] = {"batch: many\n",
                                      "batch: -1\n",
                                      "tied: perhaps\n",
                                      "batch: [1, 2]\n",
                                      "schedule: never\n",
                                      "a: {b: c}\n",
                                      "\t:",
                                      "sed: 2\n",
                                      "a: &x b\nbatch: *x\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(sr_file_replace(path, bad[i], strlen(bad[i])), SRNN_OK);
        assert_int_equal(sr_run_settings_read(&again, path), SRNN_ERR_FORMAT);
    }
    sr_run_settings_free(&s);
    sr_run_settings_free(&again);
}

/* ---- runs that begin with a model */

static float *weights_of(const char *where, const char *name, size_t *count) {
    char path[SR_PATH_BYTES];
    sr_backend *cpu;
    sr_model *model;
    assert_int_equal(sr_backend_create(&cpu, &(sr_backend_settings){.threads = 1}), SRNN_OK);
    assert_int_equal(sr_checkpoint_model(path, where), SRNN_OK);
    assert_int_equal(sr_model_load(&model, cpu, path), SRNN_OK);
    const sr_tensor_spec *spec = sr_tensor_table_find(&model->table, name);
    float *copy = spec ? malloc(spec->count * sizeof *copy) : NULL;
    *count = spec ? spec->count : 0;
    if (copy)
        memcpy(copy, model->weights + spec->start, spec->count * sizeof *copy);
    sr_model_free(model);
    sr_backend_free(cpu);
    return copy;
}

static void same_weights(const char *a, const char *b, const char *name) {
    size_t left, right;
    float *x = weights_of(a, name, &left), *y = weights_of(b, name, &right);
    assert_int_equal(left, right);
    assert_memory_equal(x, y, left * sizeof *x);
    free(x);
    free(y);
}

/* Another attention keeps the common tensors; run.yaml names it, and another shape is refused. */
static void models_continue_with_another_attention(void **state) {
    (void)state;
    char first[96];
    sr_run *run;
    sr_run_report report;
    snprintf(first, sizeof first, "%s/first", folder);
    sr_run_settings s = settings_for(text);
    assert_int_equal(sr_run_start(&run, first, &s), SRNN_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sr_run_step(run, &report), SRNN_OK);
    sr_run_free(run);
    assert_int_equal(sr_run_settings_text(&s.model, first), SRNN_OK);
    assert_int_equal(sr_run_settings_text(&s.attention, "gated_softmax"), SRNN_OK);
    s.L = 3;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_ERR_ARGUMENT);
    s.L = 0;
    s.rope_theta = 77;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_ERR_ARGUMENT);
    s.rope_theta = 10000;
    s.learning_rate = 0;
    s.weight_decay = 0;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
    assert_true(sr_run_fresh(run) > 0 && sr_run_fresh(run) < sr_run_model(run)->table.count);
    assert_string_equal(sr_run_settings_of(run)->attention, "gated_softmax");
    assert_int_equal(sr_run_settings_of(run)->L, 2);
    for (int i = 0; i < 3; i++)
        assert_int_equal(sr_run_step(run, &report), SRNN_OK);
    sr_run_free(run);
    same_weights(first, run_folder, "model.embed_tokens.weight");
    same_weights(first, run_folder, "model.layers.1.self_attn.k_proj.weight");
    /* The initial model may be removed: the checkpoint is complete. */
    assert_int_equal(sr_folder_remove(first), SRNN_OK);
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){0}), SRNN_OK);
    assert_int_equal(sr_run_progress(run)->step, 3);
    sr_run_free(run);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

/* The run.yaml of the run, with one line replaced. */
static void edit_settings(const char *from, const char *to) {
    char path[200], line[512];
    snprintf(path, sizeof path, "%s/run.yaml", run_folder);
    FILE *in = fopen(path, "r");
    char *all = NULL;
    size_t length;
    FILE *out = open_memstream(&all, &length);
    assert_true(in && out);
    while (fgets(line, sizeof line, in))
        fputs(strncmp(line, from, strlen(from)) == 0 ? to : line, out);
    fclose(in);
    fclose(out);
    assert_int_equal(sr_file_replace(path, all, length), SRNN_OK);
    free(all);
}

/* Paths are absolute, a folder belongs to one process, and a changed attention or changed data is
 * detected. */
static void runs_are_what_they_were(void **state) {
    (void)state;
    sr_run *run, *second;
    sr_run_report report;
    char here[SR_PATH_BYTES];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(folder), 0);
    sr_run_settings s = settings_for("text.txt");
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
    assert_int_equal(chdir(here), 0);
    assert_string_equal(sr_run_settings_of(run)->data, text);
    assert_string_equal(sr_run_settings_of(run)->tokenizer, "bytes");
    assert_int_equal(sr_run_resume(&second, run_folder, &(sr_run_ends){0}), SRNN_ERR_IO);
    assert_non_null(strstr(srnn_error_detail(), "another process"));
    for (int i = 0; i < 3; i++)
        assert_int_equal(sr_run_step(run, &report), SRNN_OK);
    sr_run_free(run);
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){0}), SRNN_OK);
    assert_int_equal(sr_run_progress(run)->step, 3);
    sr_run_free(run);
    edit_settings("attention:", "attention: \"norm\"\n");
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){0}), SRNN_ERR_FORMAT);
    edit_settings("attention:", "attention: softmax\n");
    edit_settings("data:", "data: \"" SOFTRNN_TEST_INPUTS "/golden.safetensors\"\n");
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){0}), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "other rows"));
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

/* A stop can be removed, and an end that is not given is unchanged. */
static void ends_can_be_lifted(void **state) {
    (void)state;
    sr_run *run;
    sr_run_settings s = settings_for(text);
    s.stop_step = 2;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
    sr_run_free(run);
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){0}), SRNN_OK);
    assert_int_equal(sr_run_settings_of(run)->stop_step, 2);
    sr_run_free(run);
    assert_int_equal(sr_run_resume(&run, run_folder, &(sr_run_ends){.stop_step = -1}), SRNN_OK);
    assert_int_equal(sr_run_settings_of(run)->stop_step, 0);
    sr_run_free(run);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

/* No more steps than batches; there is no validation. */
static void batches_are_counted(void **state) {
    sr_run *run;
    sr_run_settings s = settings_for(NULL);
    write_golden(*state, "softmax");
    s.C = s.F = s.L = s.H = 0;
    s.accumulate = 1;
    assert_int_equal(sr_run_settings_text(&s.model, golden_model), SRNN_OK);
    assert_int_equal(sr_run_settings_text(&s.batches, golden_batches), SRNN_OK);
    s.steps = GOLDEN_STEPS + 1;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_ERR_ARGUMENT);
    s.steps = 0;
    s.validate_every = 1;
    sr_run_report report;
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_OK);
    assert_int_equal(sr_run_settings_of(run)->steps, GOLDEN_STEPS);
    assert_int_equal(sr_run_step(run, &report), SRNN_OK);
    assert_true(isnan(report.validation));
    sr_run_free(run);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Records that cannot be written are retained completely. */
static void records_wait(void **state) {
    (void)state;
    char path[128];
    sr_log_file *file;
    sr_mapping all;
    int64_t length;
    snprintf(path, sizeof path, "%s/log", folder);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(sr_log_file_open(&file, path, 0), SRNN_OK);
    limit_files(10);
    assert_int_equal(sr_log_file_append(file, "first\n", 6), SRNN_OK);
    assert_int_equal(sr_log_file_append(file, "second\n", 7), SRNN_ERR_IO);
    assert_int_equal(sr_log_file_append(file, "third\n", 6), SRNN_ERR_IO);
    assert_int_equal(sr_log_file_sync(file, &length), SRNN_ERR_IO);
    limit_files(RLIM_INFINITY);
    assert_int_equal(sr_log_file_append(file, "fourth\n", 7), SRNN_OK);
    assert_int_equal(sr_log_file_sync(file, &length), SRNN_OK);
    sr_log_file_free(file);
    assert_int_equal(sr_mapping_open(&all, path), SRNN_OK);
    assert_int_equal(all.bytes, length);
    assert_int_equal(all.bytes, 26);
    assert_memory_equal(all.data, "first\nsecond\nthird\nfourth\n", 26);
    sr_mapping_close(&all);
}

static int enter(void **state) {
    sr_safetensors *file;
    snprintf(folder, sizeof folder, "/tmp/softrnn-train-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_safetensors_open(&file, SOFTRNN_TEST_INPUTS "/golden.safetensors") != SRNN_OK)
        return -1;
    *state = file;
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(golden_model, sizeof golden_model, "%s/golden", folder);
    snprintf(golden_batches, sizeof golden_batches, "%s/batches.safetensors", folder);
    snprintf(run_folder, sizeof run_folder, "%s/run", folder);
    FILE *out = fopen(text, "w");
    for (int i = 0; out && i < 400; i++)
        fprintf(out, "line %d says %d times %d\n", i, i * 7 % 31, i * i % 17);
    return out && fclose(out) == 0 ? 0 : -1;
}

/* A rank that does not see run.json fails to check its share of the files; a model that is not a
 * checkpoint has no list. */
/* A finished run is tested on rows that are longer than those it was trained on. */
static void finished_runs_are_tested(void **state) {
    (void)state;
    sr_run_settings s = settings_for("parity:length=12");
    json_t *root;
    char path[200];
    assert_int_equal(sr_run_settings_text(&s.test,
                                          "parity:length=12; parity:length=90,shortest=90 ;"),
                     SRNN_OK);
    run_until(0, false, &s);
    snprintf(path, sizeof path, "%s/tests.json", run_folder);
    assert_int_equal(sr_json_load(&root, path, 0), SRNN_OK);
    assert_int_equal(sr_json_count_of(root, "tests"), 2);
    const json_t *longer = sr_json_element_of(root, "tests", 1);
    assert_string_equal(sr_json_text_of(longer, "data"), "parity:length=90,shortest=90");
    assert_int_equal(sr_json_integer_of(longer, "length"), 89);
    assert_int_equal(sr_json_integer_of(longer, "targets"), sr_json_integer_of(longer, "rows"));
    assert_true(sr_json_integer_of(longer, "rows") >= s.B * s.validate_batches);
    assert_true(sr_json_number_of(longer, "accuracy") > 0.1); /* chance is 0.5 */
    assert_true(sr_json_number_of(longer, "chance") == 0.5);
    json_decref(root);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
    sr_run *run;
    assert_int_equal(sr_run_settings_text(&s.test, "cyclic"), SRNN_OK);
    assert_int_equal(sr_run_start(&run, run_folder, &s), SRNN_ERR_ARGUMENT);
    assert_non_null(strstr(srnn_error_detail(), "60 tokens, the model only 3"));
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

static size_t read_samples(char texts[2][400]) {
    json_t *root;
    char path[200];
    snprintf(path, sizeof path, "%s/samples.json", run_folder);
    assert_int_equal(sr_json_load(&root, path, 0), SRNN_OK);
    const size_t count = sr_json_count_of(root, "samples");
    for (size_t i = 0; i < count && i < 2; i++) {
        const json_t *sample = sr_json_element_of(root, "samples", i);
        assert_true(strlen(sr_json_text_of(sample, "prompt")) > 0);
        snprintf(texts[i], 400, "%s", sr_json_text_of(sample, "text"));
    }
    json_decref(root);
    return count;
}

/* Two samples of 5 bytes, the same in a run that stopped in between; tasks have no text. */
static void finished_runs_write_samples(void **state) {
    (void)state;
    char first[2][400], again[2][400];
    sr_run_settings s = settings_for(text);
    s.sample = 5;
    assert_int_equal(sr_run_settings_text(&s.tokenizer, "bytes"), SRNN_OK);
    run_until(0, false, &s);
    assert_int_equal(read_samples(first), 2);
    assert_true(strlen(first[0]) >= 5); /* \xNN counts as four */
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
    run_until(3, false, &s);
    run_until(0, true, &s);
    assert_int_equal(read_samples(again), 2);
    assert_string_equal(first[0], again[0]);
    assert_string_equal(first[1], again[1]);
    sr_run_settings_free(&s);
    assert_int_equal(sr_folder_remove(run_folder), SRNN_OK);
}

static void checkpoints_have_a_list(void **state) {
    (void)state;
    char model[SR_PATH_BYTES];
    assert_int_equal(sr_progress_check_files(folder, &(sr_file_sums_part){.index = 1, .count = 2}),
                     SRNN_ERR_IO);
    assert_int_equal(sr_checkpoint_model(model, folder), SRNN_OK);
}

static int leave(void **state) {
    sr_safetensors_free(*state);
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(given_batches),
        cmocka_unit_test(stopping_changes_nothing),
        cmocka_unit_test(bad_steps_are_skipped),
        cmocka_unit_test(settings_survive),
        cmocka_unit_test(models_continue_with_another_attention),
        cmocka_unit_test(runs_are_what_they_were),
        cmocka_unit_test(ends_can_be_lifted),
        cmocka_unit_test(batches_are_counted),
        cmocka_unit_test(records_wait),
        cmocka_unit_test(finished_runs_are_tested),
        cmocka_unit_test(finished_runs_write_samples),
        cmocka_unit_test(checkpoints_have_a_list),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
