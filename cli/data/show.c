/* show.c: `softrnn data show`: the rows of a training step, as the model would see them. */
#include "base/memory.h"
#include "base/text.h"
#include "cli/data/data.h"
#include "cli/line/command.h"
#include "cli/line/options.h"
#include "data/rows/source_open.h"
#include "data/rows/synthetic.h"
#include "data/shards/manifest.h"
#include "data/tokenizer/tokenizer.h"
#include "files/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct show_request {
    const char *where, *tokenizer;
    sr_source_settings settings;
    int split, rows;
    int64_t step;
    bool ids; /* print numbers only */
} show_request;

/* The tokenizer of a prepared folder. */
static srnn_status load_folder_tokenizer(sr_tokenizer **tokenizer, const char *folder) {
    sr_manifest manifest;
    SR_TRY(sr_manifest_read(&manifest, folder));
    char path[SR_PATH_BYTES];
    srnn_status status = manifest.tokenizer_is_built_in
                             ? sr_path_print(path, "%s", manifest.tokenizer)
                             : sr_path_join(path, folder, manifest.tokenizer);
    if (status == SRNN_OK)
        status = sr_tokenizer_load(tokenizer, path);
    if (status == SRNN_OK && sr_tokenizer_hash(*tokenizer) != manifest.tokenizer_hash) {
        status =
            SR_FAIL(SRNN_ERR_FORMAT, "%s: is not the tokenizer that the data was made with", path);
        sr_tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    sr_manifest_free(&manifest);
    return status;
}

/* NULL if only ids can be shown: synthetic tasks, and .bin files without --tokenizer. */
static srnn_status find_tokenizer(sr_tokenizer **tokenizer, const show_request *request) {
    struct stat facts;
    size_t length = strlen(request->where);
    *tokenizer = NULL;
    if (request->ids || sr_synthetic_is(request->where))
        return SRNN_OK;
    if (request->tokenizer)
        return sr_tokenizer_load(tokenizer, request->tokenizer);
    if (stat(request->where, &facts) == 0 && S_ISDIR(facts.st_mode))
        return load_folder_tokenizer(tokenizer, request->where);
    if (length > 4 && strcmp(request->where + length - 4, ".bin") == 0)
        return SRNN_OK;
    return sr_tokenizer_create_bytes(tokenizer);
}

static void print_numbers(const int32_t *ids, const int32_t *targets, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        printf("%s%d", t ? " " : "", ids[t]);
        if (targets[t] >= 0)
            printf(">%d", targets[t]);
    }
    printf("\n");
}

/* Prints a text that ends in a zero so that it cannot steer the terminal; lines and tabs stay. */
static srnn_status print_lines(char *text, size_t count) {
    void *memory;
    SR_TRY(sr_alloc(&memory, 4 * count + 1, 1));
    for (size_t at = 0; at < count;) {
        const size_t length = strcspn(text + at, "\n\t");
        const char next = text[at + length];
        text[at + length] = '\0';
        sr_text_escape(memory, 4 * count + 1, text + at);
        fputs(memory, stdout);
        if (at + length < count)
            fputs(next == '\0' ? "\\x00" : (char[]){next, '\0'}, stdout);
        at += length + 1;
    }
    free(memory);
    return SRNN_OK;
}

static srnn_status print_text(const sr_tokenizer *tokenizer, const int32_t *ids, int64_t count) {
    sr_bytes text = {0};
    srnn_status status =
        sr_tokenizer_decode(tokenizer, &text, (const uint32_t *)ids, (size_t)count);
    if (status == SRNN_OK)
        status = sr_bytes_append(&text, "", 1);
    if (status == SRNN_OK)
        status = print_lines(text.data, text.count - 1);
    printf("\n");
    sr_bytes_free(&text);
    return status;
}

static srnn_status print_batch(const sr_batch *batch, int T, const sr_tokenizer *tokenizer) {
    for (int64_t n = 0; n < batch->documents; n++) {
        int64_t begin = batch->offsets[n], count = batch->offsets[n + 1] - begin, counted = 0;
        for (int64_t i = begin; i < begin + count; i++)
            counted += batch->targets[i] >= 0;
        printf("--- row %lld, tokens %lld to %lld, %lld targets\n", (long long)(begin / T),
               (long long)(begin % T), (long long)(begin % T + count - 1), (long long)counted);
        if (tokenizer)
            SR_TRY(print_text(tokenizer, batch->ids + begin, count));
        else
            print_numbers(batch->ids + begin, batch->targets + begin, count);
    }
    return SRNN_OK;
}

static srnn_status show_source(const sr_source *source, const show_request *request,
                               const sr_tokenizer *tokenizer) {
    size_t tokens = (size_t)request->rows * (size_t)source->T;
    sr_batch batch = {.B = request->rows};
    srnn_status status = sr_alloc((void **)&batch.ids, tokens, sizeof *batch.ids);
    if (status == SRNN_OK)
        status = sr_alloc((void **)&batch.targets, tokens, sizeof *batch.targets);
    if (status == SRNN_OK)
        status = sr_alloc((void **)&batch.offsets, tokens + 1, sizeof *batch.offsets);
    if (status == SRNN_OK)
        status = sr_source_batch(source, &batch, (sr_split)request->split, request->step);
    if (status == SRNN_OK)
        status = print_batch(&batch, source->T, tokenizer);
    free(batch.ids);
    free(batch.targets);
    free(batch.offsets);
    return status;
}

static srnn_status show(const show_request *request) {
    sr_source *source;
    SR_TRY(sr_source_open(&source, request->where, &request->settings));
    sr_tokenizer *tokenizer;
    srnn_status status = find_tokenizer(&tokenizer, request);
    if (status == SRNN_OK)
        status = show_source(source, request, tokenizer);
    sr_tokenizer_free(tokenizer);
    sr_source_free(source);
    return status;
}

int data_show(int argc, char **argv) {
    static const char *const layouts[] = {"stream", "packed", "document", NULL};
    static const char *const splits[] = {"train", "validation", NULL};
    static const char *const boundaries[] = {"none", "after", "before", NULL};
    show_request request = {.rows = 4, .settings = {.T = 64, .validation_share = 0.1}};
    int layout = 0, boundary = 0, token = 0;
    int64_t seed = 0;
    const command_option options[] = {
        OPTION_INTEGER64("--step", &request.step, 0, INT64_MAX / 2, "N", "the step, from 0"),
        OPTION_INTEGER("--batch", &request.rows, 1, 1 << 20, "N", "rows in a step"),
        OPTION_INTEGER("--length", &request.settings.T, 1, 1 << 24, "N", "tokens in a row"),
        OPTION_CHOICE("--layout", &layout, layouts, "stream|packed|document",
                      "ignore documents, mark them, or one per row"),
        OPTION_CHOICE("--split", &request.split, splits, "train|validation", "which split"),
        OPTION_INTEGER64("--seed", &seed, 0, INT64_MAX, "N", "of the order"),
        OPTION_TEXT("--tokenizer", &request.tokenizer, "NAME", "for a .bin file"),
        OPTION_CHOICE("--boundary", &boundary, boundaries, "none|after|before",
                      "where a .bin file has --document-token"),
        OPTION_INTEGER("--document-token", &token, 0, 1 << 24, "ID", "that separates documents"),
        OPTION_FLAG("--ids", &request.ids, "numbers, as id>target"),
    };
    const command_argument arguments[] = {
        {"DATA", &request.where, "a prepared folder, a .bin file, a text, or a task", false}};
    const command_line line = {
        .usage = "softrnn data show [options] DATA",
        .purpose = "The rows of a training step, one document after the other.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = arguments,
        .argument_count = 1,
        .examples = "  softrnn data show --step 100 --layout packed wiki\n"
                    "  softrnn data show --boundary after --document-token 50256 --ids train.bin\n"
                    "  softrnn data show --batch 1 recall:pairs=4,length=24\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    request.settings.seed = (uint64_t)seed;
    request.settings.layout = (sr_token_layout)layout;
    request.settings.bin = (sr_bin_settings){(sr_boundary)boundary, (uint32_t)token, 0};
    return command_report(show(&request));
}
