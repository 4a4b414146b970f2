/* main.c: the table of commands. */
#include "commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const command commands[] = {
    {"attend", "one attention call on tensors from a file", command_attend},
    {"bench", "checks, then times; one JSON line a case", command_bench},
    {"compare", "training runs side by side: a table and a plot", command_compare},
    {"convert", "a model in another format", command_convert},
    {"data", "text to token shards; what a training step sees; synthetic tasks", command_data},
    {"eval", "how well a model predicts: loss, perplexity, accuracy", command_eval},
    {"generate", "continue a text with the variant's own state", command_generate},
    {"info", "what this build and this machine offer", command_info},
    {"orders", "which orders of exp a model uses; what a finite state would cost", command_orders},
    {"report", "what a study found, as one page", command_report_page},
    {"study", "train variants alike and say which of them differ", command_study},
    {"tokenizer", "train and use tokenizers", command_tokenizer},
    {"train", "train a Llama with any attention", command_train},
    {"variants", "the variants of attention: names, text forms, states", command_variants},
    {"verify", "every kernel and form against the double oracle", command_verify},
};

static const command_table table = {
    .program = "softrnn",
    .purpose = "softrnn: softmax attention as an RNN, and every variant of it.",
    .commands = commands,
    .count = sizeof commands / sizeof *commands,
    .examples = "  softrnn info\n",
};

static int run(int argc, char **argv) {
    if (argc > 0 && strcmp(argv[0], "--version") == 0) {
        printf("softrnn %s\n", srnn_version());
        return EXIT_OK;
    }
    return command_dispatch(&table, argc, argv);
}

/* Where the caller has closed input, output or messages, the next file to be opened would take their
 * place: so they lead nowhere. What is written to the output then is lost, as command_finish tells. */
static void settle_streams(void) {
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fcntl(descriptor, F_GETFD) < 0 && errno == EBADF)
            (void)open("/dev/null", descriptor == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

int main(int argc, char **argv) {
    settle_streams();
    /* A closed pipe then shows as a failed write, which command_finish reports. */
    signal(SIGPIPE, SIG_IGN);
    /* So does a file that may not grow further (ulimit -f). */
    signal(SIGXFSZ, SIG_IGN);
    return command_finish(run(argc > 0 ? argc - 1 : 0, argv + 1));
}
