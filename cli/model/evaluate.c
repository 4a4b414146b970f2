/* evaluate.c: `softrnn eval`. */
#include "train/evaluate.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/line/model_open.h"
#include "cli/line/numbers.h"
#include "cli/line/options.h"
#include "cli/line/whole_file.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "data/text/input.h"
#include "files/file.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "train/parallel/evaluation_parts.h"
#include "train/run/data.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SYNTHETIC_BATCHES = 64 };

typedef struct evaluation_request {
    sr_backend_settings numbers;
    const char *model, *attention, *tokenizer, *data, *text, *tokens, *last_words, *logits;
    int B, T, stream, split, layout, longer, context_ranks;
    int64_t batches, seed;
    double validation_share, rank_patience;
    bool json;
} evaluation_request;

static srnn_status open_tokenizer(sr_tokenizer **tokenizer, const evaluation_request *r, int V) {
    return sr_model_open_tokenizer(tokenizer, r->tokenizer, r->model, V);
}

static int64_t batches_of(const evaluation_request *r, int64_t rows) {
    const int64_t all = rows / r->B + (rows % r->B > 0);
    const int64_t wanted = r->batches ? r->batches : rows == INT64_MAX ? SYNTHETIC_BATCHES : all;
    return wanted < all ? wanted : all;
}

/* *tokenizer = the one that the data was encoded with, NULL if unknown. Tokens of a synthetic task
 * have no text. */
static srnn_status find_tokenizer(sr_tokenizer **tokenizer, const evaluation_request *r) {
    sr_run_settings names = {0};
    *tokenizer = NULL;
    if (sr_synthetic_is(r->data))
        return SRNN_OK;
    srnn_status status = sr_run_settings_create(&names);
    if (status == SRNN_OK)
        status = sr_run_settings_text(&names.data, r->data);
    if (status == SRNN_OK && r->tokenizer)
        status = sr_run_settings_text(&names.tokenizer, r->tokenizer);
    if (status == SRNN_OK)
        status = sr_run_settings_text(&names.model, r->model);
    if (status == SRNN_OK)
        status = sr_run_data_tokenizer(&names);
    if (status == SRNN_OK && *names.tokenizer)
        status = sr_tokenizer_load(tokenizer, names.tokenizer);
    sr_run_settings_free(&names);
    return status;
}

static srnn_status evaluate_source(sr_evaluation *result, sr_model *model, const sr_source *source,
                                   const sr_tokenizer *tokenizer, const evaluation_request *r) {
    const sr_split split = (sr_split)r->split;
    const int64_t rows = source->rows[split];
    if (rows == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: nothing in its %s split; try --split %s", r->data,
                       sr_split_name(split),
                       sr_split_name(split == SR_SPLIT_TRAIN ? SR_SPLIT_VALIDATION
                                                             : SR_SPLIT_TRAIN));
    const sr_evaluation_rows what = {.source = source,
                                     .split = split,
                                     .B = r->B,
                                     .batches = batches_of(r, rows),
                                     .tokenizer = tokenizer};
    return sr_evaluate_source(result, model, &what);
}

static srnn_status evaluate_data(sr_evaluation *result, sr_model *model,
                                 const evaluation_request *r) {
    int T;
    SR_TRY(model_row_length(&T, model, r->T));
    const sr_source_settings settings = {.seed = (uint64_t)r->seed,
                                         .T = T,
                                         .layout = (sr_token_layout)r->layout,
                                         .whole = true,
                                         .validation_share = r->validation_share};
    sr_source *source = NULL;
    sr_tokenizer *tokenizer;
    SR_TRY(find_tokenizer(&tokenizer, r));
    srnn_status status = sr_source_open(&source, r->data, &settings);
    if (status == SRNN_OK)
        status = evaluate_source(result, model, source, tokenizer, r);
    sr_source_free(source);
    sr_tokenizer_free(tokenizer);
    return status;
}

/* Extends the last error by its line, and by advice on texts that are too long. */
static srnn_status fail_in_line(srnn_status status, const char *path, size_t line) {
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s: line %zu: %s%s", path, line, why,
                   status == SRNN_ERR_LIMIT ? "; --longer cut or skip continues" : "");
}

/* Every line is a JSON object whose member `text` ends in the word to predict. */
static srnn_status evaluate_lines(sr_evaluation_parts *parts, sr_model *model,
                                  const sr_tokenizer *tokenizer, const sr_bytes *lines,
                                  const evaluation_request *r) {
    size_t number = 0;
    for (size_t at = 0; at < lines->count; number++) {
        const char *line = lines->data + at;
        const char *end = memchr(line, '\n', lines->count - at);
        const size_t length = end ? (size_t)(end - line) : lines->count - at;
        json_error_t error;
        at += length + 1;
        if (length == 0)
            continue;
        json_t *root;
        sr_evaluation *result;
        SR_TRY(sr_evaluation_parts_next(parts, &result));
        if (!result)
            continue;
        if (!sr_json_scan(&root, &error, line, length, 0))
            return SR_FAIL(SRNN_ERR_MEMORY, "no memory to read a line");
        const json_t *text = json_object_get(root, "text");
        srnn_status status =
            json_is_string(text)
                ? sr_evaluate_last_word(result, model, tokenizer, json_string_value(text),
                                        json_string_length(text), (sr_long_text)r->longer)
                : SR_FAIL(SRNN_ERR_FORMAT, "there is no text");
        json_decref(root);
        if (status != SRNN_OK)
            return fail_in_line(status, r->last_words, number + 1);
    }
    return SRNN_OK;
}

static srnn_status evaluate_last_words(sr_evaluation *result, sr_model *model,
                                       const sr_tokenizer *tokenizer, const sr_bytes *lines,
                                       const evaluation_request *r) {
    sr_evaluation_parts parts = {.ranks = result->ranks};
    srnn_status status = evaluate_lines(&parts, model, tokenizer, lines, r);
    if (status == SRNN_OK)
        status = sr_evaluation_parts_end(&parts, result);
    sr_evaluation_parts_free(&parts);
    return status;
}

static srnn_status read_input(void *input, void *bytes, size_t size, size_t *got) {
    return sr_input_read(input, bytes, size, got);
}

static srnn_status evaluate_stream(sr_evaluation *result, sr_model *model,
                                   const evaluation_request *r) {
    sr_tokenizer *tokenizer;
    sr_input *input = NULL;
    SR_TRY(open_tokenizer(&tokenizer, r, model->config.V));
    srnn_status status = sr_input_open(&input, r->text);
    if (status == SRNN_OK)
        status = sr_evaluate_stream(result, model, tokenizer, &(sr_text_source){read_input, input},
                                    r->stream);
    sr_input_free(input);
    sr_tokenizer_free(tokenizer);
    return status;
}

static srnn_status evaluate_texts(sr_evaluation *result, sr_model *model,
                                  const evaluation_request *r) {
    sr_tokenizer *tokenizer;
    sr_bytes bytes = {0};
    int T;
    SR_TRY(model_row_length(&T, model, r->T));
    SR_TRY(open_tokenizer(&tokenizer, r, model->config.V));
    const char *path = r->text ? r->text : r->last_words;
    srnn_status status = whole_file_read(&bytes, path);
    if (status == SRNN_OK)
        status = r->text ? sr_evaluate_text(result, model, tokenizer, &bytes, r->B, T)
                         : evaluate_last_words(result, model, tokenizer, &bytes, r);
    sr_bytes_free(&bytes);
    sr_tokenizer_free(tokenizer);
    return status;
}

static srnn_status write_logits(const char *path, const float *logits, int B, int T, int V) {
    const sr_tensor tensor = {.name = "logits", .rank = 3, .shape = {B, T, V}, .data = logits};
    sr_safetensors_writer *writer;
    SR_TRY(sr_safetensors_writer_create(&writer));
    srnn_status status = sr_safetensors_writer_add(writer, &tensor);
    if (status == SRNN_OK)
        status = sr_safetensors_writer_write(writer, path);
    sr_safetensors_writer_free(writer);
    return status;
}

static bool is_token(double number) {
    return number >= -1 && number < INT_MAX && number == floor(number);
}

/* rows (B, T+1) to ids and targets (B, T) each. */
static srnn_status split_rows(int32_t **ids, const double *rows, int B, int T) {
    const size_t count = (size_t)B * (size_t)T;
    void *memory;
    SR_TRY(sr_alloc(&memory, 2 * count, sizeof **ids));
    *ids = memory;
    for (size_t i = 0; i < count; i++) {
        const size_t at = i / (size_t)T * ((size_t)T + 1) + i % (size_t)T;
        if (!is_token(rows[at]) || !is_token(rows[at + 1])) {
            free(memory);
            *ids = NULL;
            return SR_FAIL(SRNN_ERR_FORMAT, "ids holds %g, which is not a token",
                           is_token(rows[at]) ? rows[at + 1] : rows[at]);
        }
        (*ids)[i] = (int32_t)rows[at];
        (*ids)[count + i] = (int32_t)rows[at + 1];
    }
    return SRNN_OK;
}

static srnn_status evaluate_tensor(sr_evaluation *result, sr_model *model, const sr_tensor *tensor,
                                   const evaluation_request *r) {
    if (tensor->rank != 2 || tensor->count == 0 || tensor->shape[1] < 2 ||
        tensor->shape[0] > INT_MAX || tensor->shape[1] > INT_MAX)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: ids must have the shape (B, T+1)", r->tokens);
    const int B = (int)tensor->shape[0], T = (int)tensor->shape[1] - 1;
    const size_t count = (size_t)B * (size_t)T;
    void *rows, *logits = NULL;
    int32_t *ids = NULL;
    SR_TRY(sr_alloc(&rows, tensor->count, sizeof(double)));
    sr_tensor_to_double(rows, tensor);
    srnn_status status = split_rows(&ids, rows, B, T);
    free(rows);
    if (status == SRNN_OK && r->logits)
        status = sr_alloc(&logits, count * (size_t)model->config.V, sizeof(float));
    if (status == SRNN_OK)
        status =
            sr_evaluate_batch(result, model,
                              &(sr_batch){.B = B, .ids = ids, .targets = ids + count}, T, logits);
    if (status == SRNN_OK && r->logits)
        status = write_logits(r->logits, logits, B, T, model->config.V);
    free(ids);
    free(logits);
    return status;
}

static srnn_status evaluate_tokens(sr_evaluation *result, sr_model *model,
                                   const evaluation_request *r) {
    sr_safetensors *file;
    const sr_tensor *tensor;
    SR_TRY(sr_safetensors_open(&file, r->tokens));
    srnn_status status = sr_safetensors_require(&tensor, file, "ids");
    if (status == SRNN_OK)
        status = evaluate_tensor(result, model, tensor, r);
    sr_safetensors_free(file);
    return status;
}

/* JSON has no NaN and no infinity. */
static void print_member(const char *before, const char *name, double value) {
    if (isfinite(value))
        printf("%s\"%s\": %.9g", before, name, value);
    else
        printf("%s\"%s\": null", before, name);
}

static void print_longer(const sr_evaluation *e, const evaluation_request *r) {
    if (e->cut + e->skipped == 0)
        return;
    if (r->json)
        printf(", \"cut\": %lld, \"skipped\": %lld", (long long)e->cut, (long long)e->skipped);
    else
        printf("longer than the model: %lld cut, %lld skipped\n", (long long)e->cut,
               (long long)e->skipped);
}

static void print_states(const sr_evaluation *e, const evaluation_request *r) {
    if (!r->stream)
        return;
    if (r->json)
        printf(", \"state_bytes\": %zu, \"state_grows\": %s", e->state_bytes,
               e->state_grows ? "true" : "false");
    else
        printf("states %.3f MB, which %s with the text\n", (double)e->state_bytes / 1e6,
               e->state_grows ? "grow" : "do not grow");
}

static void print_result(const sr_evaluation *e, const evaluation_request *r) {
    const double loss = e->loss_sum / (double)e->targets;
    const double accuracy = (double)e->correct / (double)e->targets;
    const double bits = e->bytes > 0 ? e->loss_sum / log(2) / (double)e->bytes : NAN;
    if (!isfinite(loss))
        fprintf(stderr, "softrnn: the loss is not finite: the model has weights or logits that are "
                        "not\n");
    if (r->json) {
        print_member("{", "loss", loss);
        print_member(", ", "perplexity", exp(loss));
        print_member(", ", "accuracy", accuracy);
        printf(", \"targets\": %lld", (long long)e->targets);
        if (e->bytes > 0)
            print_member(", ", "bits_per_byte", bits);
        print_longer(e, r);
        print_states(e, r);
        printf("}\n");
        return;
    }
    printf("loss %.6f\nperplexity %.4f\n%s %.4f (%lld of %lld)\n", loss, exp(loss),
           r->last_words ? "last-word accuracy" : "accuracy", accuracy, (long long)e->correct,
           (long long)e->targets);
    if (e->bytes > 0)
        printf("bits per byte %.4f\n", bits);
    print_longer(e, r);
    print_states(e, r);
}

static srnn_status evaluate(const evaluation_request *r, sr_ranks *ranks) {
    sr_evaluation result = {.ranks = ranks, .context_ranks = r->context_ranks};
    sr_backend_settings numbers = r->numbers;
    sr_backend *backend;
    sr_model *model;
    numbers.threads = sr_ranks_threads(ranks, numbers.threads);
    if (r->context_ranks > 1) /* all are at the same batch */
        ranks->patience = r->rank_patience;
    SR_TRY(sr_backend_create(&backend, &numbers));
    srnn_status status = model_open_read_only(&model, backend, r->model, r->attention);
    if (status == SRNN_OK) {
        status = r->tokens   ? evaluate_tokens(&result, model, r)
                 : r->data   ? evaluate_data(&result, model, r)
                 : r->stream ? evaluate_stream(&result, model, r)
                             : evaluate_texts(&result, model, r);
        sr_model_free(model);
    }
    sr_backend_free(backend);
    if (status == SRNN_OK && result.targets == 0)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "there is nothing to predict: no token has a target");
    if (status == SRNN_OK && ranks->rank == 0)
        print_result(&result, r);
    return status;
}

/* Ranks share the batches or lines; given rows and a stream are evaluated by the first rank
 * alone. */
static int evaluate_together(const evaluation_request *r) {
    sr_ranks ranks;
    int exit_code = command_report(sr_ranks_open(&ranks));
    if (exit_code != EXIT_OK)
        return exit_code;
    if ((!r->tokens && !r->stream) || ranks.rank == 0)
        exit_code = command_report_rank(evaluate(r, &ranks), &ranks);
    sr_ranks_close(&ranks);
    return exit_code;
}

/* Refuses options that have no effect for this kind of evaluation. */
static int refuse_idle(const evaluation_request *r, int argc, char *const *argv) {
    const bool task = r->data && sr_synthetic_is(r->data), rows = r->data || r->text;
    const struct {
        const char *name;
        bool works;
        const char *with;
    } options[] = {
        {"--longer", r->last_words, "--last-words"},
        {"--dump-logits", r->tokens, "--tokens"},
        {"--batches", r->data, "--data"},
        {"--split", r->data, "--data"},
        {"--seed", r->data, "--data"},
        {"--layout", r->data && !task, "--data that is not a task"},
        {"--validation-share", r->data && !task, "--data that is not a task"},
        {"--stream", r->text, "--text"},
        {"--batch", rows, "--text or --data"},
        {"--context-ranks", rows && !r->stream, "--data, or --text in rows (without --stream)"},
        {"--rank-patience", r->context_ranks > 1, "--context-ranks"},
        {"--batch", !r->stream, "a text in rows (without --stream)"},
        {"--length", !r->stream, "a text in rows (without --stream)"},
        {"--length", rows && !task, "--text, or --data that is not a task (recall:length=48)"},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (!options[i].works && options_given(argc, argv, options[i].name))
            return command_refuse("%s goes with %s only", options[i].name, options[i].with);
    return EXIT_OK;
}

int command_eval(int argc, char **argv) {
    static const char *const layouts[] = {"stream", "packed", "document", NULL};
    static const char *const longer[] = {"stop", "cut", "skip", NULL}; /* as sr_long_text */
    static const char *const splits[] = {"train", "validation", NULL};
    evaluation_request r = {.B = 8,
                            .context_ranks = 1,
                            .split = SR_SPLIT_VALIDATION,
                            .seed = 1,
                            .validation_share = 0.1,
                            .rank_patience = 600};
    const command_option options[] = {
        OPTION_TEXT("--model", &r.model, "DIR", "a model's folder, a run, or a llama2.c .bin"),
        OPTION_TEXT("--attention", &r.attention, "TEXT",
                    "another attention, as train takes it, that needs no other tensors: order:4"),
        OPTION_TEXT("--tokenizer", &r.tokenizer, "NAME", "if it is not in the model's folder"),
        OPTION_TEXT("--text", &r.text, "FILE", "loss, perplexity and bits per byte of a text"),
        OPTION_TEXT("--data", &r.data, "WHERE",
                    "shards, a file or a synthetic task, as train takes it"),
        OPTION_TEXT("--tokens", &r.tokens, "FILE",
                    "safetensors with ids (B, T+1): exactly these rows"),
        OPTION_TEXT("--last-words", &r.last_words, "FILE",
                    "JSON lines whose text ends in a word to be guessed (LAMBADA)"),
        OPTION_CHOICE("--longer", &r.longer, longer, "WORD",
                      "a text longer than the model, with --last-words: ends it, loses its "
                      "beginning, or does not count"),
        OPTION_TEXT("--dump-logits", &r.logits, "FILE", "with --tokens: the logits (B, T, V)"),
        OPTION_INTEGER("--batch", &r.B, 1, 1 << 20, "N", "rows in a batch"),
        OPTION_INTEGER("--length", &r.T, 0, 1 << 24, "N", "tokens in a row; 0: the model's"),
        OPTION_INTEGER("--stream", &r.stream, 1, 1 << 24, "N",
                       "with --text: all of it as one sequence, N tokens at a time, with the "
                       "states carried on"),
        OPTION_INTEGER64("--batches", &r.batches, 0, INT64_MAX, "N",
                         "at most N; 0: the whole split, or 64 of a synthetic task"),
        OPTION_CHOICE("--layout", &r.layout, layouts, "WORD",
                      "rows of shards: stream, packed or document"),
        OPTION_CHOICE("--split", &r.split, splits, "SPLIT", "train or validation"),
        OPTION_NUMBER("--validation-share", &r.validation_share, 0, 0.9, "X",
                      "the last share of a text file is its validation split"),
        OPTION_INTEGER64("--seed", &r.seed, 0, INT64_MAX, "N", "of a synthetic task"),
        OPTION_INTEGER("--context-ranks", &r.context_ranks, 1, 1 << 20, "N",
                       "ranks that share the tokens of each row, as train has them"),
        OPTION_NUMBER("--rank-patience", &r.rank_patience, 0, 1e9, "SECONDS",
                      "that they wait for each other before they give up; 0: for ever"),
        OPTIONS_NUMBERS(&r.numbers),
        OPTION_FLAG("--json", &r.json, "one object instead of lines"),
    };
    const command_line line = {
        .usage = "softrnn eval --model DIR (--text|--data|--tokens|--last-words) WHAT [options]",
        .purpose = "How well a model predicts: loss, perplexity, bits per byte, accuracy.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .examples = "  softrnn eval --model runs/norm --text wikitext2_valid.txt\n"
                    "  softrnn eval --model stories --attention order:8 --text tinystories.txt\n"
                    "  softrnn eval --model runs/gla --text book.txt --stream 4096\n"
                    "  softrnn eval --model runs/recall --data recall:pairs=8 --batches 16\n"
                    "  softrnn eval --model stories --tokens rows.safetensors --dump-logits "
                    "logits.safetensors\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    const int given = !!r.text + !!r.data + !!r.tokens + !!r.last_words;
    if (!r.model || given != 1)
        return command_refuse("eval needs --model DIR and one of --text, --data, --tokens, "
                              "--last-words");
    exit_code = refuse_idle(&r, argc, argv);
    return exit_code == EXIT_OK ? evaluate_together(&r) : exit_code;
}
