/* program.c: the table of commands, and global options. */
#include "cli/program.h"

#include "cli/commands.h"
#include "cli/line/options.h"

#include <stdio.h>
#include <string.h>

/* `softrnn help data prepare` is `softrnn data prepare --help`. */
static int command_help(int argc, char **argv) {
    enum { MOST_WORDS = 4 };
    command_arguments names = {0};
    const command_line line = {
        .usage = "softrnn help [COMMAND...]",
        .purpose = "Lists the commands, or explains one of them.",
        .rest = &names,
        .examples = "  softrnn help train\n"
                    "  softrnn help data prepare\n",
    };
    int exit_code;
    if (!options_parse(&line, argc, argv, &exit_code))
        return exit_code;
    if (names.count >= MOST_WORDS)
        return command_refuse("help takes the words of one command");
    char help[] = "--help", *words[MOST_WORDS];
    for (int i = 0; i < names.count; i++)
        words[i] = names.values[i];
    words[names.count] = help;
    return command_dispatch(&program_table, names.count + 1, words);
}

static const command commands[] = {
    {"attend", "one attention call on tensors from a file", command_attend},
    {"bench", "checks, then times; one JSON line per case", command_bench},
    {"compare", "training runs side by side: a table and a plot", command_compare},
    {"convert", "a model in another format", command_convert},
    {"data", "text to token shards; what a training step sees; synthetic tasks", command_data},
    {"distil", "from a trained model to an RNN: another attention in its layers, taught by it",
     command_distil},
    {"eval", "how well a model predicts: loss, perplexity, accuracy", command_eval},
    {"generate", "continue a text with the variant's own state", command_generate},
    {"help", "this text, or that of a command", command_help},
    {"devices", "where this program can compute", command_devices},
    {"info", "what this build and this machine offer", command_info},
    {"orders", "which orders of exp a model uses; what a finite state would cost", command_orders},
    {"report", "what a study found, as one page", command_report_page},
    {"study", "train variants under identical conditions, and say which of them differ",
     command_study},
    {"tokenizer", "train and use tokenizers", command_tokenizer},
    {"train", "train a Llama with any attention", command_train},
    {"variants", "the variants of attention: names, text forms, states", command_variants},
    {"verify", "every kernel and form against the double oracle", command_verify},
};

const command_table program_table = {
    .program = "softrnn",
    .purpose = "softrnn: softmax attention as an RNN, and every variant of it.",
    .commands = commands,
    .count = sizeof commands / sizeof *commands,
    .examples = "  softrnn train --out runs/norm --data text.txt --attention norm\n"
                "  softrnn help train\n",
};

int program_run(int argc, char **argv) {
    if (argc > 0 && (strcmp(argv[0], "--version") == 0 || strcmp(argv[0], "-V") == 0)) {
        printf("softrnn %s\n", srnn_version());
        return EXIT_OK;
    }
    return command_dispatch(&program_table, argc, argv);
}
