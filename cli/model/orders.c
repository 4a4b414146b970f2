/* orders.c: `softrnn orders`. */
#include "analysis/orders.h"
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/numbers.h"
#include "cli/line/options.h"
#include "cli/line/origin.h"
#include "cli/line/progress.h"
#include "cli/model/orders_show.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/origin.h"
#include "train/run/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Default limit of the row length: work grows with its square. */
enum { USUAL_LENGTH = 256 };

typedef struct orders_request {
    sr_backend_settings numbers;
    const char *model, *run, *data, *tokenizer, *prompt, *out;
    char *command; /* as given */
    int T, orders, most_order, text_tokens;
    int64_t tokens, trial_tokens, seed;
    double wide, narrow;
    bool json, reference;
} orders_request;

/* The state of one model's measurement. */
typedef struct measurement {
    sr_backend *backend;
    sr_model *model;
    sr_tokenizer *tokenizer;
    sr_source *source;
    sr_token_rows *rows;
    sr_tokens prompt;
    progress_bar bar;
} measurement;

static bool show_progress(void *context, const char *what, double share) {
    progress_show(context, share, what);
    return progress_interrupted();
}

/* A folder of shards, a .bin of tokens or a task is a source; anything else is a text. */
static bool is_source(const char *where) {
    struct stat facts;
    const size_t length = strlen(where);
    if (stat(where, &facts) == 0 && S_ISDIR(facts.st_mode))
        return true;
    return sr_synthetic_is(where) || (length > 4 && strcmp(where + length - 4, ".bin") == 0);
}

static int32_t begin_token(const measurement *m) {
    const int64_t bos = sr_tokenizer_bos(m->tokenizer);
    return bos >= 0 ? (int32_t)bos : m->model->config.bos;
}

static srnn_status open_data(measurement *m, const orders_request *r) {
    int T;
    SR_TRY(model_row_length(&T, m->model, r->T));
    T = r->T || T < USUAL_LENGTH ? T : USUAL_LENGTH;
    const sr_source_settings settings = {.seed = (uint64_t)r->seed, .T = T};
    if (!is_source(r->data))
        return sr_token_rows_open_text(&m->rows, r->data, m->tokenizer, begin_token(m), T);
    SR_TRY(sr_source_open(&m->source, r->data, &settings));
    return sr_token_rows_open_source(&m->rows, m->source);
}

static srnn_status encode_prompt(measurement *m, const char *prompt) {
    sr_encoder *encoder;
    if (begin_token(m) >= 0)
        SR_TRY(sr_tokens_push(&m->prompt, (uint32_t)begin_token(m)));
    SR_TRY(sr_encoder_create(&encoder, m->tokenizer));
    const srnn_status status = sr_encoder_encode(encoder, &m->prompt, prompt, strlen(prompt));
    sr_encoder_free(encoder);
    return status;
}

/* Token data needs no tokenizer: without one there is no text to show. */
static srnn_status open_all(measurement *m, const orders_request *r, const char *model) {
    SR_TRY(sr_backend_create(&m->backend, &r->numbers));
    SR_TRY(model_open(&m->model, m->backend, model, NULL));
    const srnn_status status =
        sr_model_open_tokenizer(&m->tokenizer, r->tokenizer, model, m->model->config.V);
    if (status != SRNN_OK && (r->tokenizer || !is_source(r->data)))
        return status;
    if (m->tokenizer && r->text_tokens > 0)
        SR_TRY(encode_prompt(m, r->prompt));
    return open_data(m, r);
}

static void close_all(measurement *m) {
    sr_tokens_free(&m->prompt);
    sr_token_rows_free(m->rows);
    sr_source_free(m->source);
    sr_tokenizer_free(m->tokenizer);
    sr_model_free(m->model);
    sr_backend_free(m->backend);
}

/* Prints how much text is used: a small part unless more is requested. */
static void print_size(const orders_request *r, int T) {
    fprintf(stderr,
            "softrnn: reads %lld tokens in rows of %d, and tries orders up to %d on the first "
            "%lld; --tokens, --length, --most-order and --trial-tokens raise these\n",
            (long long)r->tokens, T, r->most_order,
            (long long)(r->trial_tokens > T ? r->trial_tokens / T * T : T));
}

static srnn_status measure(json_t **record, const orders_request *r, const char *model) {
    measurement m = {0};
    *record = NULL;
    srnn_status status = open_all(&m, r, model);
    if (status == SRNN_OK) {
        const sr_orders_request request = {.model = m.model,
                                           .rows = m.rows,
                                           .tokens = r->tokens,
                                           .trial_tokens = r->trial_tokens,
                                           .orders = r->orders,
                                           .most_order = r->most_order,
                                           .tolerances = {r->wide, r->narrow},
                                           .tokenizer = m.prompt.count > 0 ? m.tokenizer : NULL,
                                           .prompt = &m.prompt,
                                           .text_tokens = r->text_tokens,
                                           .progress = show_progress,
                                           .progress_context = &m.bar};
        if (!r->run)
            print_size(r, sr_token_rows_length(m.rows));
        progress_begin(&m.bar);
        status = sr_orders_measure(record, &request);
        progress_end(&m.bar);
    }
    close_all(&m);
    return status;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Steps are written with leading zeros: the order of names is the order of steps. */
static srnn_status measure_steps(json_t *list, const orders_request *r, sr_names *names) {
    if (names->count > 1)
        qsort(names->names, names->count, sizeof *names->names, by_name);
    for (size_t i = 0; i < names->count; i++) {
        char path[SR_PATH_BYTES];
        json_t *record;
        long long step;
        if (sscanf(names->names[i], "step-%lld", &step) != 1)
            continue;
        SR_TRY(sr_path_print(path, "%s/checkpoints/%s", r->run, names->names[i]));
        SR_TRY(measure(&record, r, path));
        sr_json_append(list, json_pack("{sI, so}", "step", (json_int_t)step, "orders", record));
    }
    if (json_array_size(list) == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: no checkpoints in this run", r->run);
    return SRNN_OK;
}

static srnn_status measure_run(json_t **record, const orders_request *r) {
    char path[SR_PATH_BYTES];
    sr_names names;
    SR_TRY(sr_path_join(path, r->run, "checkpoints"));
    SR_TRY(sr_folder_list(&names, path));
    json_t *list = json_array();
    const srnn_status status = measure_steps(list, r, &names);
    sr_names_free(&names);
    *record = json_pack("{ss, si, so}", "format", "softrnn-orders-run", "version", 1, "checkpoints",
                        list);
    return status;
}

/* Adds the provenance: model, data, command and machine. */
static srnn_status add_origin(json_t *record, const orders_request *r) {
    json_t *origin = sr_origin_json(r->command);
    sr_json_set(record, "origin", origin);
    sr_json_set(origin, r->run ? "run" : "model", sr_json_plain_text(r->run ? r->run : r->model));
    sr_json_set(origin, "data", sr_json_plain_text(r->data));
    if (r->tokenizer)
        sr_json_set(origin, "tokenizer", sr_json_plain_text(r->tokenizer));
    return sr_json_complete(record, "the record of orders");
}

static srnn_status show(const json_t *record, const orders_request *r) {
    if (r->json)
        return sr_json_print(stdout, record, JSON_REAL_PRECISION(9));
    if (r->run)
        orders_show_checkpoints(record);
    else
        orders_show(record, r->reference);
    return SRNN_OK;
}

static srnn_status run_request(const orders_request *r) {
    json_t *record = NULL;
    const char *folder = r->out ? r->out : r->run;
    if (r->out)
        SR_TRY(sr_folders_make(r->out)); /* first, so that a wrong name fails before the work */
    srnn_status status = r->run ? measure_run(&record, r) : measure(&record, r, r->model);
    if (status == SRNN_OK)
        status = add_origin(record, r);
    if (status == SRNN_OK && folder)
        status =
            sr_json_replace(json_incref(record), folder, "orders.json", JSON_REAL_PRECISION(9));
    if (status == SRNN_OK)
        status = show(record, r);
    json_decref(record);
    return status;
}

static int start(const orders_request *r) {
    if (!r->data || !r->model == !r->run)
        return command_refuse("orders needs --model DIR or --run DIR, and --data WHERE");
    if (r->narrow > r->wide)
        return command_refuse("--narrow %g is wider than --tolerance %g", r->narrow, r->wide);
    progress_catch_interrupt();
    return command_report(run_request(r));
}

int command_orders(int argc, char **argv) {
    orders_request r = {.prompt = "",
                        .tokens = 2048,
                        .trial_tokens = USUAL_LENGTH,
                        .orders = 64,
                        .most_order = 32,
                        .text_tokens = 48,
                        .seed = 1,
                        .wide = 1e-2,
                        .narrow = 1e-3};
    const command_option options[] = {
        OPTION_TEXT("--model", &r.model, "DIR", "a model's folder, a run, or a llama2.c .bin"),
        OPTION_TEXT("--run", &r.run, "DIR", "every checkpoint of a run, instead of --model"),
        OPTION_TEXT("--data", &r.data, "WHERE", "a text, shards, tokens in .bin, or a task"),
        OPTION_TEXT("--tokenizer", &r.tokenizer, "NAME", "if it is not in the model's folder"),
        OPTION_INTEGER64("--tokens", &r.tokens, 1, INT64_MAX / 2, "N",
                         "read at most N for logits and sizes of orders"),
        OPTION_INTEGER64("--trial-tokens", &r.trial_tokens, 1, 1 << 24, "N",
                         "the first of them, to try truncation on"),
        OPTION_INTEGER("--length", &r.T, 0, 1 << 24, "N",
                       "tokens in a row; 0: the model's, at most 256"),
        OPTION_INTEGER("--orders", &r.orders, 1, 170, "N",
                       "number of orders whose size is measured"),
        OPTION_INTEGER("--most-order", &r.most_order, 2, 170, "N", "try truncation up to it"),
        OPTION_NUMBER("--tolerance", &r.wide, 1e-12, 1, "X", "relative, the wider one"),
        OPTION_NUMBER("--narrow", &r.narrow, 1e-12, 1, "X", "relative, the narrower one"),
        OPTION_TEXT("--prompt", &r.prompt, "TEXT", "for texts by truncated models"),
        OPTION_INTEGER("--text-tokens", &r.text_tokens, 0, 1 << 20, "N", "their length; 0: none"),
        OPTION_FLAG("--reference", &r.reference, "show sizes as the reference defines them"),
        OPTION_TEXT("--out", &r.out, "DIR", "write orders.json there; with --run: into the run"),
        OPTION_INTEGER64("--seed", &r.seed, 0, INT64_MAX, "N", "of a synthetic task"),
        OPTIONS_NUMBERS(&r.numbers),
        OPTION_FLAG("--json", &r.json, "the record instead of tables"),
    };
    const command_line line = {
        .usage = "softrnn orders (--model|--run) DIR --data WHERE [options]",
        .purpose = "Which orders of the series of exp a model uses, and what running it with a "
                   "finite state would cost.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn orders --model stories --data tinystories.txt\n"
                    "  softrnn orders --model stories --data tinystories.txt --tokens 20000 "
                    "--length 512 --trial-tokens 1024 --most-order 64\n"
                    "  softrnn orders --run runs/softmax --data shards --json\n",
    };
    int exit_code = command_report(origin_command(&r.command, "softrnn orders", argc, argv));
    if (exit_code == EXIT_OK && options_parse(&line, argc, argv, &exit_code))
        exit_code = start(&r);
    free(r.command);
    return exit_code;
}
