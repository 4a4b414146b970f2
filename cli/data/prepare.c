/* prepare.c: `softrnn data prepare`. */
#include "data/shards/prepare.h"
#include "cli/data/data.h"
#include "cli/line/command.h"
#include "cli/line/options.h"
#include "cli/line/progress.h"
#include "data/rows/source.h"

#include <signal.h>
#include <stdio.h>

static bool show(void *context, const sr_prepare_progress *state) {
    progress_bar *bar = context;
    double share = (double)state->read_bytes / (double)(state->input_bytes + 1);
    double seconds = progress_seconds(bar);
    char text[120];
    snprintf(text, sizeof text, "%.1f MB/s of text  %.2f M tokens",
             seconds > 0 ? (double)state->text_bytes / seconds / 1e6 : 0,
             (double)(state->tokens[0] + state->tokens[1]) / 1e6);
    progress_show(bar, share, text);
    return !progress_interrupted();
}

/* Advice if the validation split is empty: a single document cannot be split; of several a larger
 * fraction can be used. */
static void advise_validation(const sr_prepare_settings *settings, int64_t documents) {
    if (documents > 1)
        fprintf(stderr,
                "softrnn: none of the %lld documents fell into the validation split: raise "
                "--validation (%g), or prepare another text, for train --validation\n",
                (long long)documents, settings->validation);
    else
        fprintf(stderr, "softrnn: there is no validation split: the text is one document, and "
                        "documents are not split; separate documents by lines <|endoftext|>, or "
                        "prepare another text, for train --validation\n");
}

static void print_result(const sr_prepare_settings *settings, const sr_prepare_progress *done,
                         double seconds) {
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++)
        printf("%-12s%lld tokens in %lld documents\n", sr_split_name(split),
               (long long)done->tokens[split], (long long)done->documents[split]);
    fprintf(stderr, "softrnn: %s is ready: %.1f MB of text in %.1f s", settings->folder,
            (double)done->text_bytes / 1e6, seconds);
    if (done->empty_documents > 0)
        fprintf(stderr, "; %lld documents were empty and left out",
                (long long)done->empty_documents);
    fprintf(stderr, "\n");
    if (settings->validation > 0 && done->documents[SR_SPLIT_VALIDATION] == 0)
        advise_validation(settings, done->documents[SR_SPLIT_TRAIN]);
}

int data_prepare(int argc, char **argv) {
    static const char *const invalid_words[] = {"stop", "replace", NULL};
    sr_prepare_settings settings = {.validation = 0.01,
                                    .field = "text",
                                    .shard_tokens = 100000000,
                                    .document_bytes = (int64_t)256 << 20};
    int64_t seed = 0;
    int invalid = 0;
    command_arguments inputs = {0};
    const command_option options[] = {
        OPTION_TEXT("--tokenizer", &settings.tokenizer, "NAME",
                    "bytes, a tokenizer's file, or the folder of a model"),
        OPTION_TEXT("--out", &settings.folder, "DIR", "the folder to make"),
        OPTION_TEXT("--field", &settings.field, "NAME", "member of a JSON line with the text"),
        OPTION_NUMBER("--validation", &settings.validation, 0, 1, "SHARE",
                      "share of the documents that only validate"),
        OPTION_INTEGER64("--seed", &seed, 0, INT64_MAX, "N", "which documents those are"),
        OPTION_INTEGER64("--shard-tokens", &settings.shard_tokens, 1, INT64_MAX / 8, "N",
                         "most tokens in one file"),
        OPTION_INTEGER64("--document-bytes", &settings.document_bytes, 1, INT64_MAX / 8, "N",
                         "refuse longer documents; memory grows with it"),
        OPTION_CHOICE("--invalid", &invalid, invalid_words, "stop|replace",
                      "what to do at bytes that are not UTF-8"),
        OPTION_FLAG("--no-end", &settings.without_end, "no end-of-text token after documents"),
        OPTION_FLAG("--overwrite", &settings.overwrite, "replace the data in DIR"),
        OPTION_INTEGER("--threads", &settings.threads, 0, 1024, "N", "threads; 0: all cores"),
    };
    const command_line line = {
        .usage = "softrnn data prepare --tokenizer NAME --out DIR [options] FILE..",
        .purpose =
            "Text files to a folder of token shards. A file *.jsonl or *.ndjson has one document\n"
            "per line; in others a line <|endoftext|> separates documents. Files may be\n"
            "compressed with gzip, zstd or xz. The result does not depend on --threads.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .rest = &inputs,
        .examples = "  softrnn data prepare --tokenizer bytes --out shakespeare shakespeare.txt\n"
                    "  softrnn data prepare --tokenizer gpt2/tokenizer.json --out wiki a.txt.xz "
                    "b.jsonl.zst\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (!settings.tokenizer || !settings.folder || inputs.count == 0)
        return command_refuse("data prepare needs %s", !settings.tokenizer ? "--tokenizer NAME"
                                                       : !settings.folder  ? "--out DIR"
                                                                           : "a file of text");
    progress_bar bar;
    progress_begin(&bar);
    progress_catch_interrupt();
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is then reported as an error */
    settings.inputs = (const char *const *)inputs.values;
    settings.input_count = inputs.count;
    settings.seed = (uint64_t)seed;
    settings.replace_invalid = invalid == 1;
    settings.progress = show;
    settings.context = &bar;
    sr_prepare_progress done;
    srnn_status status = sr_prepare(&settings, &done);
    progress_end(&bar);
    if (status == SRNN_OK)
        print_result(&settings, &done, progress_seconds(&bar));
    return command_report(status);
}
