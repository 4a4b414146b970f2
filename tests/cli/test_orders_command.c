/* test_orders_command.c: `softrnn orders` and its page as a program, on a model made here. */
#include "analysis/orders.h"
#include "files/file.h"
#include "files/folder.h"
#include "model/files/model_folder.h"
#include "model/pass.h"
#include "small_model.h"
#include "test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ARGUMENTS = 32, T = 16, TRIAL_ROWS = 2, PATH_BYTES = 400 };

static char folder[64], model_folder[80], run[80], text[80], output[80], messages[80];
static sr_backend *backend;

/* The options that every measurement here has. */
#define SMALL                                                                                     \
    "--tokens", "96", "--trial-tokens", "32", "--length", "16", "--orders", "12", "--most-order", \
        "8", "--text-tokens", "4", "--prompt", "a", "--threads", "1"

/* The exit code; results go into `output`, messages into `messages`. */
static int call(const char *const *arguments) {
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
        dup2(open(messages, O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
        char *list[MOST_ARGUMENTS] = {SOFTRNN_PROGRAM};
        for (int i = 0; arguments[i]; i++)
            list[i + 1] = strdup(arguments[i]);
        execv(SOFTRNN_PROGRAM, list);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static bool holds(const char *path, const char *words) {
    sr_mapping file;
    assert_int_equal(sr_mapping_open(&file, path), SRNN_OK);
    const bool found = memmem(file.data, file.bytes, words, strlen(words)) != NULL;
    sr_mapping_close(&file);
    return found;
}

static json_t *read_json(const char *path) {
    json_error_t error;
    json_t *object = json_load_file(path, 0, &error);
    if (!object)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return object;
}

static void save_model(const char *path, const char *attention, double size) {
    sr_model *model = small_byte_model(backend, attention, size);
    assert_int_equal(sr_folders_make(path), SRNN_OK);
    assert_int_equal(sr_model_save(model, path, SR_DTYPE_F32), SRNN_OK);
    sr_model_free(model);
}

/* The record measured by the library, as in a file. */
static json_t *measure(sr_model *model) {
    sr_tokenizer *tokenizer;
    sr_token_rows *rows;
    json_t *record;
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizer), SRNN_OK);
    assert_int_equal(sr_token_rows_open_text(&rows, text, tokenizer, 256, T), SRNN_OK);
    uint32_t ids[] = {256, 'a'};
    const sr_tokens prompt = {.ids = ids, .count = 2};
    const sr_orders_request request = {.model = model,
                                       .rows = rows,
                                       .tokens = 96,
                                       .trial_tokens = 32,
                                       .orders = 12,
                                       .most_order = 8,
                                       .tolerances = {1e-2, 1e-3},
                                       .tokenizer = tokenizer,
                                       .prompt = &prompt,
                                       .text_tokens = 4};
    assert_int_equal(sr_orders_measure(&record, &request), SRNN_OK);
    char *dump = json_dumps(record, JSON_REAL_PRECISION(9));
    json_t *read = json_loads(dump, 0, NULL);
    free(dump);
    json_decref(record);
    sr_token_rows_free(rows);
    sr_tokenizer_free(tokenizer);
    return read;
}

/* The mean loss of the first rows of the text: the begin token, then its bytes. */
static double loss_of(sr_model *model) {
    sr_mapping file;
    sr_pass *pass;
    int32_t ids[TRIAL_ROWS * T + 1] = {256};
    float losses[TRIAL_ROWS * T];
    double sum = 0;
    assert_int_equal(sr_mapping_open(&file, text), SRNN_OK);
    for (int i = 0; i < TRIAL_ROWS * T; i++)
        ids[i + 1] = file.data[i];
    sr_mapping_close(&file);
    const sr_pass_setup setup = {.B = TRIAL_ROWS, .T = T};
    assert_int_equal(sr_pass_create(&pass, model, &setup), SRNN_OK);
    assert_int_equal(sr_pass_losses(pass, losses, ids, ids + 1), SRNN_OK);
    for (int i = 0; i < TRIAL_ROWS * T; i++)
        sum += (double)losses[i] / (TRIAL_ROWS * T);
    sr_pass_free(pass);
    return sum;
}

/* A whole model of order 2, evaluated as any other, has the loss in the record. */
static void check_losses(const json_t *record) {
    const json_t *truncated = json_object_get(json_object_get(record, "all_layers"), "truncated");
    const double whole =
        json_number_value(json_object_get(json_object_get(record, "data"), "trial_loss"));
    sr_model *model = small_byte_model(backend, "softmax", 0.15),
             *two = small_byte_model(backend, "order:2", 0.15);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(record, "cuts"), 1)), 2);
    assert_true(fabs(whole - loss_of(model)) < 1e-5);
    const double cut = json_number_value(json_array_get(json_object_get(truncated, "loss"), 1));
    assert_true(fabs(cut - loss_of(two)) < 1e-5);
    assert_true(fabs(cut - whole) > 1e-4);
    sr_model_free(model);
    sr_model_free(two);
}

static void json_agrees(void **state) {
    (void)state;
    const char *const arguments[] = {"orders", "--model", model_folder, "--data",
                                     text,     "--json",  SMALL,        NULL};
    assert_int_equal(call(arguments), 0);
    json_t *got = read_json(output);
    sr_model *model = small_byte_model(backend, "softmax", 0.15);
    json_t *want = measure(model);
    sr_model_free(model);
    check_losses(got);
    const json_t *origin = json_object_get(got, "origin");
    assert_string_equal(json_string_value(json_object_get(origin, "model")), model_folder);
    assert_string_equal(json_string_value(json_object_get(origin, "data")), text);
    assert_string_equal(json_string_value(json_object_get(origin, "softrnn")), srnn_version());
    assert_true(json_is_string(json_object_get(origin, "revision")));
    assert_true(json_is_object(json_object_get(origin, "machine")));
    assert_non_null(strstr(json_string_value(json_object_get(origin, "command")),
                           "softrnn orders --model /tmp/softrnn-orders-"));
    json_object_del(got, "origin");
    assert_true(json_equal(got, want));
    json_decref(got);
    json_decref(want);
}

static void tables_are_shown(void **state) {
    (void)state;
    const char *const plain[] = {"orders", "--model", model_folder, "--data", text, SMALL, NULL};
    const char *const reference[] = {"orders", "--model",     model_folder, "--data",
                                     text,     "--reference", SMALL,        NULL};
    assert_int_equal(call(plain), 0);
    assert_true(holds(output, "log10 of the mean of |x|^n / n!"));
    assert_true(holds(output, "Could this model run with a finite state"));
    assert_true(holds(output, "run together: logits off by"));
    assert_int_equal(call(reference), 0);
    assert_true(holds(output, "log10 of the reference's mean over T x T pairs"));
    assert_false(holds(output, "log10 of the mean of |x|^n / n!"));
}

/* Elements that are opened are closed, in order; `void` ones have no end. */
static void check_elements(const char *page) {
    static const char *const empty[] = {"meta", "!DOCTYPE", "br", "img", "input", "link"};
    char open[64][16];
    size_t depth = 0;
    for (const char *at = strchr(page, '<'); at; at = strchr(at + 1, '<')) {
        char name[16];
        const bool closes = at[1] == '/';
        const char *end = strchr(at, '>');
        const size_t length = strcspn(at + 1 + closes, " >/\n");
        assert_non_null(end);
        snprintf(name, sizeof name, "%.*s", (int)length, at + 1 + closes);
        bool leaf = end[-1] == '/' || strncmp(at, "<!--", 4) == 0;
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            leaf = leaf || strcmp(name, empty[i]) == 0;
        if (leaf)
            continue;
        if (closes) {
            assert_true(depth > 0);
            assert_string_equal(name, open[--depth]);
            continue;
        }
        assert_true(depth < 64);
        memcpy(open[depth++], name, sizeof name);
        if (strcmp(name, "script") == 0) /* its text is not markup */
            at = strstr(end, "</script>") - 1;
    }
    assert_int_equal(depth, 0);
}

static void check_page(const char *path) {
    sr_mapping file;
    assert_int_equal(sr_mapping_open(&file, path), SRNN_OK);
    char *page = strndup((const char *)file.data, file.bytes);
    sr_mapping_close(&file);
    assert_non_null(page);
    check_elements(page);
    assert_non_null(strstr(page, "<p class=\"kicker\">softrnn orders</p>"));
    assert_non_null(strstr(page, "class=\"skip\" href=\"#content\""));
    assert_non_null(strstr(page, "<main id=\"content\">"));
    assert_non_null(strstr(page, "role=\"img\" aria-label=\"Largest logit: 2 by 4 squares"));
    assert_non_null(strstr(page, "<table id=\"table-heads-max\">"));
    assert_non_null(strstr(page, text));
    assert_null(strstr(page, "role=\"img\">"));
    assert_null(strstr(page, "logits_centred"));
    free(page);
}

static void pages_are_written(void **state) {
    (void)state;
    char out[PATH_BYTES], path[PATH_BYTES + 16];
    snprintf(out, sizeof out, "%s/found/in/here", folder);
    const char *const arguments[] = {"orders", "--model", model_folder, "--data", text,
                                     "--out",  out,       SMALL,        NULL};
    assert_int_equal(call(arguments), 0);
    snprintf(path, sizeof path, "%s/orders.json", out);
    json_decref(read_json(path));
    const char *const report[] = {"report", out, NULL};
    assert_int_equal(call(report), 0);
    snprintf(path, sizeof path, "%s/report.html", out);
    check_page(path);
    assert_true(holds(path, "<h1>Orders of exp in model</h1>"));
    assert_true(holds(path, "softrnn orders --model "));
}

/* Defaults limit the work for a model with long rows, and what was left out is reported. */
static void defaults_are_short_work(void **state) {
    (void)state;
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/long", folder);
    sr_model *model = small_byte_model(backend, "softmax", 0.15);
    model->config.positions = 4096;
    assert_int_equal(sr_folders_make(path), SRNN_OK);
    assert_int_equal(sr_model_save(model, path, SR_DTYPE_F32), SRNN_OK);
    sr_model_free(model);
    const char *const arguments[] = {"orders", "--model", path, "--data", text, "--json", NULL};
    assert_int_equal(call(arguments), 0);
    json_t *record = read_json(output);
    const json_t *data = json_object_get(record, "data");
    assert_int_equal(json_integer_value(json_object_get(data, "row_length")), 256);
    assert_int_equal(json_integer_value(json_object_get(data, "trial_tokens")), 256);
    assert_int_equal(json_integer_value(json_object_get(record, "most_order")), 32);
    json_decref(record);
    assert_true(holds(messages, "reads 2048 tokens in rows of 256"));
    assert_true(holds(messages, "--trial-tokens raise these"));
}

static void runs_are_followed(void **state) {
    (void)state;
    char path[PATH_BYTES];
    const char *const arguments[] = {"orders", "--run", run, "--data", text, SMALL, NULL};
    assert_int_equal(call(arguments), 0);
    snprintf(path, sizeof path, "%s/orders.json", run);
    json_t *record = read_json(path);
    const json_t *checkpoints = json_object_get(record, "checkpoints");
    assert_int_equal(json_array_size(checkpoints), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *checkpoint = json_array_get(checkpoints, i);
        assert_int_equal(json_integer_value(json_object_get(checkpoint, "step")), 10 * (i + 1));
        sr_model *model = small_byte_model(backend, "softmax", i == 0 ? 0.02 : 0.15);
        json_t *want = measure(model);
        assert_true(json_equal(json_object_get(checkpoint, "orders"), want));
        json_decref(want);
        sr_model_free(model);
    }
    json_decref(record);
    const char *const report[] = {"report", run, NULL};
    assert_int_equal(call(report), 0);
    snprintf(path, sizeof path, "%s/report.html", run);
    check_page(path);
    assert_true(holds(path, "Orders along training"));
}

/* A study's report shows the orders of those of its runs that have a record, and nothing
 * otherwise. */
static void studies_show_orders(void **state) {
    (void)state;
    static const char yaml[] = "seeds: [1]\nvariants: {softmax: softmax, norm: norm}\n"
                               "settings: {layers: 2, heads: 4, hidden: 16, mlp-hidden: 16, steps: "
                               "4, batch: 2, warmup: 1,\n"
                               "           length: 16, validate-every: 4, validate-batches: 1}\n"
                               "tasks: {text: {settings: {data: '@text'}}}\n";
    char file[PATH_BYTES], study[PATH_BYTES], path[2 * PATH_BYTES];
    snprintf(file, sizeof file, "%s/study.yaml", folder);
    snprintf(study, sizeof study, "%s/study", folder);
    assert_int_equal(sr_file_replace(file, yaml, sizeof yaml - 1), SRNN_OK);
    const char *const make[] = {"study", file, "--out", study, "--text", text, NULL};
    const char *const report[] = {"report", study, NULL};
    assert_int_equal(call(make), 0);
    assert_int_equal(call(report), 0);
    snprintf(path, sizeof path, "%s/report.html", study);
    assert_false(holds(path, "Which orders of exp the runs use"));
    snprintf(path, sizeof path, "%s/runs/text.norm.1", study);
    const char *const orders[] = {"orders", "--run", path, "--data", text, SMALL, NULL};
    assert_int_equal(call(orders), 0);
    assert_int_equal(call(report), 0);
    snprintf(path, sizeof path, "%s/report.html", study);
    assert_true(holds(path, "Which orders of exp the runs use"));
    assert_true(holds(path, "<a href=\"orders/1-text-norm-1/report.html\">Orders of text.norm.1"));
    assert_false(holds(path, "Orders of text.softmax.1"));
    snprintf(path, sizeof path, "%s/orders/1-text-norm-1/report.html", study);
    check_page(path);
}

static void refuse(const char *const *arguments, int code, const char *words) {
    const int got = call(arguments);
    if (got != code || !holds(messages, words))
        fail_msg("exit code %d, not %d with \"%s\"", got, code, words);
}

static void wrong_input_is_refused(void **state) {
    (void)state;
    char series[PATH_BYTES], avey[PATH_BYTES], wide[PATH_BYTES], below_file[PATH_BYTES];
    snprintf(series, sizeof series, "%s/series", folder);
    snprintf(below_file, sizeof below_file, "%s/below", text);
    snprintf(avey, sizeof avey, "%s/avey", folder);
    snprintf(wide, sizeof wide, "%s/wide", folder);
    save_model(series, "order:2", 0.15);
    save_model(avey, "avey_causal,chunk=4,chunks=2", 0.15);
    save_model(wide, "softmax,layer=mamba_block,position=none", 0.15);
    const char *const none[] = {"orders", "--model", model_folder, NULL};
    const char *const both[] = {"orders", "--model", model_folder, "--run",
                                run,      "--data",  text,         NULL};
    const char *const narrow[] = {"orders", "--model",  model_folder, "--data",
                                  text,     "--narrow", "0.1",        NULL};
    const char *const no_model[] = {"orders", "--model", "/nonexistent/model",
                                    "--data", text,      NULL};
    const char *const no_data[] = {"orders", "--model",          model_folder,
                                   "--data", "/nonexistent.txt", NULL};
    const char *const no_run[] = {"orders", "--run", model_folder, "--data", text, NULL};
    const char *const few[] = {"orders", "--model",  model_folder, "--data",
                               text,     "--tokens", "8",          NULL};
    const char *const finite[] = {"orders", "--model", series, "--data", text, NULL};
    const char *const other_heads[] = {"orders", "--model", wide, "--data", text, SMALL, NULL};
    const char *const no_attention[] = {"orders", "--model", avey, "--data", text, SMALL, NULL};
    /* Reported before anything is read. */
    const char *const nowhere[] = {"orders", "--model", "/nonexistent/model", "--data",
                                   text,     "--out",   below_file,           NULL};
    refuse(none, 2, "orders needs --model DIR or --run DIR, and --data WHERE");
    refuse(both, 2, "orders needs --model DIR or --run DIR");
    refuse(narrow, 2, "--narrow 0.1 is wider than --tolerance 0.01");
    refuse(no_model, 1, "/nonexistent/model");
    refuse(no_data, 1, "/nonexistent.txt");
    refuse(no_run, 2, "no checkpoints in this run");
    refuse(few, 2, "less than one row of 32 tokens");
    refuse(finite, 1, "no layer of the model takes exp of q.k");
    refuse(other_heads, 1, "the model's own heads");
    refuse(no_attention, 1, "an Avey model has no attention");
    refuse(nowhere, 1, "text.txt");
}

static int enter(void **state) {
    char path[PATH_BYTES];
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/softrnn-orders-XXXXXX");
    if (!mkdtemp(folder) ||
        sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        return -1;
    snprintf(model_folder, sizeof model_folder, "%s/model", folder);
    snprintf(run, sizeof run, "%s/run", folder);
    snprintf(text, sizeof text, "%s/text.txt", folder);
    snprintf(output, sizeof output, "%s/output", folder);
    snprintf(messages, sizeof messages, "%s/messages", folder);
    save_model(model_folder, "softmax", 0.15);
    snprintf(path, sizeof path, "%s/checkpoints/step-000000010", run);
    save_model(path, "softmax", 0.02);
    snprintf(path, sizeof path, "%s/checkpoints/step-000000020", run);
    save_model(path, "softmax", 0.15);
    FILE *out = fopen(text, "w");
    for (int i = 0; out && i < 20; i++)
        fprintf(out, "line %d says %d times %d\n", i, i * 7 % 31, i * i % 17);
    return out && fclose(out) == 0 ? 0 : -1;
}

static int leave(void **state) {
    (void)state;
    sr_backend_free(backend);
    return sr_folder_remove(folder) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_agrees),
        cmocka_unit_test(tables_are_shown),
        cmocka_unit_test(pages_are_written),
        cmocka_unit_test(runs_are_followed),
        cmocka_unit_test(defaults_are_short_work),
        cmocka_unit_test(studies_show_orders),
        cmocka_unit_test(wrong_input_is_refused),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
