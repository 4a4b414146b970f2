/* tokenizer_train.c: `softrnn tokenizer train`. */
#include "cli/data/tokenizer_train.h"

#include "base/clock.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "data/text/input.h"
#include "data/tokenizer/bpe/train.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct meter {
    bool terminal;
    double start, shown; /* seconds */
} meter;

/* A self-updating line on a terminal, an occasional plain line elsewhere. */
static void show(void *context, const char *phase, int64_t done, int64_t total) {
    meter *to = context;
    double now = sr_clock_seconds();
    if (now - to->shown < (to->terminal ? 0.1 : 5))
        return;
    to->shown = now;
    fprintf(stderr, "%s%s: %3.0f%% after %.0f s%s", to->terminal ? "\r" : "", phase,
            100 * (double)done / (double)total, now - to->start, to->terminal ? "\033[K" : "\n");
}

/* Cuts a list at its commas, in place; `parts` has one more element than there are commas. */
static size_t cut_list(const char **parts, char *list) {
    size_t count = 0;
    for (char *part = strtok(list, ","); part; part = strtok(NULL, ","))
        parts[count++] = part;
    return count;
}

/* A text file: mapped, or decompressed into memory. */
typedef struct corpus_file {
    sr_mapping mapping;
    sr_bytes inflated;
} corpus_file;

static srnn_status inflate_all(sr_bytes *text, sr_input *input) {
    size_t got = 1;
    while (got > 0) {
        SR_TRY(sr_bytes_reserve(text, 1 << 20));
        SR_TRY(sr_input_read(input, text->data + text->count, text->capacity - text->count, &got));
        text->count += got;
    }
    return SRNN_OK;
}

static srnn_status open_corpus(corpus_file *file, const char *path) {
    sr_input *input;
    SR_TRY(sr_input_open(&input, path));
    srnn_status status = sr_input_is_plain(input) ? sr_mapping_open(&file->mapping, path)
                                                  : inflate_all(&file->inflated, input);
    sr_input_free(input);
    return status;
}

/* A text without enough pairs gives fewer tokens than requested. */
static srnn_status report_size(const sr_bytes *json, uint32_t vocab) {
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_read_json(&tokenizer, json->data, json->count, "the trained tokenizer"));
    if (sr_tokenizer_vocab_size(tokenizer) < vocab)
        fprintf(stderr, "softrnn: only %u of %u tokens: the text has no more pairs to merge\n",
                sr_tokenizer_vocab_size(tokenizer), vocab);
    sr_tokenizer_free(tokenizer);
    return SRNN_OK;
}

static srnn_status train_on(const char *out, sr_bpe_training *training, const corpus_file *files,
                            size_t file_count) {
    sr_text *texts;
    SR_TRY(sr_alloc((void **)&texts, file_count, sizeof *texts));
    for (size_t i = 0; i < file_count; i++)
        texts[i] = files[i].inflated.count
                       ? (sr_text){files[i].inflated.data, files[i].inflated.count}
                       : (sr_text){(const char *)files[i].mapping.data, files[i].mapping.bytes};
    training->text.texts = texts;
    training->text.text_count = file_count;
    sr_bytes json = {0};
    srnn_status status = sr_bpe_train(&json, training);
    free(texts);
    if (status == SRNN_OK)
        status = sr_file_replace(out, json.data, json.count);
    if (status == SRNN_OK)
        status = report_size(&json, training->vocab);
    sr_bytes_free(&json);
    return status;
}

static srnn_status train(const char *out, sr_bpe_training *training,
                         const command_arguments *paths) {
    corpus_file *files;
    SR_TRY(sr_alloc_zero((void **)&files, (size_t)paths->count, sizeof *files));
    srnn_status status = SRNN_OK;
    for (int i = 0; status == SRNN_OK && i < paths->count; i++)
        status = open_corpus(&files[i], paths->values[i]);
    if (status == SRNN_OK)
        status = train_on(out, training, files, (size_t)paths->count);
    for (int i = 0; i < paths->count; i++) {
        sr_mapping_close(&files[i].mapping);
        sr_bytes_free(&files[i].inflated);
    }
    free(files);
    return status;
}

static srnn_status train_with(const char *out, sr_bpe_training *training, const char *special,
                              const command_arguments *paths) {
    char *list = strdup(special);
    const char **parts = calloc(strlen(special) + 1, sizeof *parts);
    srnn_status status = SRNN_OK;
    if (!list || !parts) {
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the list of special tokens");
    } else {
        training->text.special = parts;
        training->text.special_count = cut_list(parts, list);
        status = train(out, training, paths);
    }
    free(parts);
    free(list);
    return status;
}

/* In the order of sr_ties. */
static const char *const ties_words[] = {"ids", "text", NULL};

int command_tokenizer_train(int argc, char **argv) {
    const char *out = NULL, *special = "<|endoftext|>";
    int vocab = 0, ties = SR_TIES_IDS, threads = 0;
    command_arguments paths = {0};
    const command_option options[] = {
        OPTION_INTEGER("--vocab", &vocab, 256, 1 << 24, "N", "tokens in all, 256 bytes included"),
        OPTION_TEXT("--out", &out, "FILE", "write the tokenizer.json here"),
        OPTION_TEXT("--special", &special, "LIST", "special tokens, parted by commas"),
        OPTION_CHOICE("--ties", &ties, ties_words, "WORD",
                      "of pairs equally often: lower ids first, as Hugging Face's trainer, or the "
                      "text that sorts last"),
        OPTION_INTEGER("--threads", &threads, 0, 1024, "N", "threads to use; 0: all cores"),
    };
    const command_line line = {
        .usage = "softrnn tokenizer train FILE... --vocab N --out tokenizer.json",
        .purpose = "Learns a byte-level BPE with GPT-2's splitting from text files, plain or\n"
                   "compressed with gzip, zstd or xz, and writes it as a tokenizer.json. The same "
                   "text gives the same file on any machine and\n"
                   "with any number of threads.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &paths,
        .examples = "  softrnn tokenizer train corpus.txt --vocab 4096 --out tokenizer.json\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (paths.count == 0 || vocab == 0 || !out)
        return command_refuse("train needs files, --vocab N and --out FILE");
    meter to = {.terminal = isatty(STDERR_FILENO), .start = sr_clock_seconds()};
    to.shown = to.start;
    sr_bpe_training training = {
        .vocab = (uint32_t)vocab,
        .ties = (sr_ties)ties,
        .text = {.threads = threads, .progress = show, .context = &to},
    };
    srnn_status status = train_with(out, &training, special, &paths);
    if (to.terminal)
        fprintf(stderr, "\r\033[K");
    return command_report(status);
}
