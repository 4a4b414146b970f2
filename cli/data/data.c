/* data.c: `softrnn data`, the table of its commands, and those that describe data. */
#include "cli/data/data.h"

#include "base/text.h"
#include "cli/commands.h"
#include "cli/line/options.h"
#include "data/rows/synthetic.h"
#include "data/shards/dataset.h"
#include "data/shards/manifest.h"
#include "files/json.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_status print_text(const sr_manifest *manifest, const sr_dataset datasets[SR_SPLITS]) {
    char tokenizer[256], kind[64];
    sr_text_escape(tokenizer, sizeof tokenizer, manifest->tokenizer);
    sr_text_escape(kind, sizeof kind, manifest->tokenizer_kind);
    printf("tokenizer     %s (%s), vocabulary %u, hash %016llx\n", tokenizer, kind, manifest->vocab,
           (unsigned long long)manifest->tokenizer_hash);
    if (manifest->end_token >= 0)
        printf("documents     end in token %lld\n", (long long)manifest->end_token);
    else
        printf("documents     end without a token of their own\n");
    printf("%-12s%16s%14s%8s%22s\n", "split", "tokens", "documents", "shards",
           "tokens per document");
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++) {
        const sr_dataset *dataset = &datasets[split];
        double mean = dataset->document_count
                          ? (double)dataset->token_count / (double)dataset->document_count
                          : 0;
        printf("%-12s%16lld%14lld%8lld%22.1f\n", sr_split_name(split),
               (long long)dataset->token_count, (long long)dataset->document_count,
               (long long)dataset->shard_count, mean);
    }
    json_t *settings = json_object_get(manifest->root, "settings");
    char *text = NULL;
    if (settings)
        SR_TRY(sr_json_dump(&text, settings, 0, "the output"));
    printf("prepared with %s\n", text ? text : "{}");
    free(text);
    return SRNN_OK;
}

static srnn_status check_tokens(const sr_dataset datasets[SR_SPLITS]) {
    for (int split = 0; split < SR_SPLITS; split++)
        for (int64_t n = 0; n < datasets[split].shard_count; n++)
            SR_TRY(sr_shard_verify(&datasets[split].shards[n]));
    return SRNN_OK;
}

/* Opening the shards checks them against the manifest. */
static srnn_status describe(const char *folder, bool check, bool json) {
    sr_manifest manifest;
    SR_TRY(sr_manifest_read(&manifest, folder));
    sr_dataset datasets[SR_SPLITS] = {{0}};
    srnn_status status = SRNN_OK;
    for (sr_split split = SR_SPLIT_TRAIN; status == SRNN_OK && split < SR_SPLITS; split++)
        status = sr_dataset_open(&datasets[split], folder, split);
    if (status == SRNN_OK && check)
        status = check_tokens(datasets);
    if (status == SRNN_OK && json) {
        status = sr_json_print(stdout, manifest.root, JSON_INDENT(2));
    } else if (status == SRNN_OK) {
        status = print_text(&manifest, datasets);
        if (status == SRNN_OK && check)
            printf("every token was read and is as it was written\n");
    }
    for (int split = 0; split < SR_SPLITS; split++)
        sr_dataset_free(&datasets[split]);
    sr_manifest_free(&manifest);
    return status;
}

static bool is_bin(const char *name) {
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, ".bin") == 0;
}

/* A .bin file contains only tokens. */
static srnn_status describe_bin(const char *path) {
    sr_shard shard;
    SR_TRY(sr_shard_open_bin(&shard, path, &(sr_bin_settings){0}));
    printf("tokens        %lld of %d bits, without documents or tokenizer\n",
           (long long)shard.token_count, shard.width * 8);
    sr_shard_close(&shard);
    return SRNN_OK;
}

int data_info(int argc, char **argv) {
    bool check = false, json = false;
    const char *folder = NULL;
    const command_option options[] = {
        OPTION_FLAG("--check", &check, "read every token and compare the checksums"),
        OPTION_FLAG("--json", &json, "the description as JSON"),
    };
    const command_argument arguments[] = {
        {"DATA", &folder, "a folder of prepared data, or a .bin file", false}};
    const command_line line = {
        .usage = "softrnn data info [options] DATA",
        .purpose = "What a folder of prepared data holds, and how it was made.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = arguments,
        .argument_count = 1,
        .examples = "  softrnn data info --check wiki\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    return command_report(is_bin(folder) ? describe_bin(folder) : describe(folder, check, json));
}

int data_tasks(int argc, char **argv) {
    const command_line line = {
        .usage = "softrnn data tasks",
        .purpose =
            "The synthetic tasks, which can be named wherever data can. Each is printed with\n"
            "all its settings at their defaults; name only those that should differ. Several make\n"
            "a mixture: 3*parity + parity:length=80 has three rows of the first for one of the\n"
            "second. Chance is the accuracy of guessing.",
        .examples = "  softrnn data tasks\n  softrnn data show recall:pairs=4\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    const sr_synthetic_entry *entry;
    for (size_t i = 0; (entry = sr_synthetic_at(i)); i++) {
        sr_source *source;
        char text[256];
        srnn_status status = sr_synthetic_create(&source, entry->name, 0);
        if (status != SRNN_OK)
            return command_report(status);
        sr_synthetic_print(text, sizeof text, source);
        printf("%s\n    %s; chance %.3g\n", text, entry->summary, sr_synthetic_chance(source));
        sr_source_free(source);
    }
    return EXIT_OK;
}

int command_data(int argc, char **argv) {
    static const command commands[] = {
        {"prepare", "text files to a folder of token shards", data_prepare},
        {"info", "what such a folder holds", data_info},
        {"show", "the rows of a training step", data_show},
        {"tasks", "the synthetic tasks and their settings", data_tasks},
    };
    static const command_table table = {
        .program = "softrnn data",
        .purpose = "softrnn data: text to tokens, and what a training step sees of them.",
        .commands = commands,
        .count = sizeof commands / sizeof *commands,
        .examples = "  softrnn data prepare --tokenizer bytes --out wiki wiki.txt.xz\n"
                    "  softrnn data info wiki\n"
                    "  softrnn data show --step 100 wiki\n",
    };
    return command_dispatch(&table, argc, argv);
}
