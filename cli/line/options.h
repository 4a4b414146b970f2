/* options.h: the options and arguments of a command, declared in one table.
 *
 *     const char *out = NULL;
 *     int threads = 0;
 *     const char *input = NULL;
 *     const command_option options[] = {
 *         OPTION_TEXT("--out", &out, "FILE", "write the result here"),
 *         OPTION_INTEGER("--threads", &threads, 0, 1024, "N", "threads to use; 0: all cores"),
 *     };
 *     const command_argument arguments[] = {{"INPUT", &input, "a safetensors file"}};
 *     const command_line line = {
 *         .usage = "softrnn attend [options] INPUT",
 *         .purpose = "One attention call on tensors from a file.",
 *         .options = options, .option_count = 2,
 *         .arguments = arguments, .argument_count = 1,
 *         .examples = "  softrnn attend --out o.safetensors in.safetensors\n",
 *     };
 *     int exit_code;
 *     if (!options_parse(&line, argc, argv, &exit_code))
 *         return exit_code;
 */
#ifndef SR_CLI_LINE_OPTIONS_H
#define SR_CLI_LINE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_KIND_FLAG = 0,
    OPTION_KIND_TEXT,
    OPTION_KIND_INTEGER,
    OPTION_KIND_INTEGER64,
    OPTION_KIND_NUMBER,
    OPTION_KIND_CHOICE,
} option_kind;

/* One option. The destination keeps its value, the default that --help shows, unless the option is
 * given; if it is given more than once, the last one counts. Written with the macros below. */
typedef struct command_option {
    const char *name; /* with its dashes: "--out" */
    option_kind kind;
    const char *argument; /* placeholder in --help: "FILE" */
    const char *help;     /* one line */
    union {
        bool *flag;
        const char **text;
        int *integer;
        int64_t *integer64;
        double *number;
        int *choice;
    } to;
    int64_t integer_least, integer_most;
    double number_least, number_most;
    const char *const *choices; /* ends in NULL */
} command_option;

/* clang-format off */
#define OPTION_FLAG(option_name, bool_pointer, help_line) \
    {.name = option_name, .kind = OPTION_KIND_FLAG, .help = help_line, .to.flag = bool_pointer}
/* Text points into argv. */
/* The device of a command: the same wording everywhere. */
#define OPTION_DEVICE(target) \
    OPTION_TEXT("--device", target, "NAME", "where to compute: cpu, cuda or cuda:N")
#define OPTION_TEXT(option_name, text_pointer, placeholder, help_line) \
    {.name = option_name, .kind = OPTION_KIND_TEXT, .argument = placeholder, .help = help_line, \
     .to.text = text_pointer}
#define OPTION_INTEGER(option_name, int_pointer, least, most, placeholder, help_line) \
    {.name = option_name, .kind = OPTION_KIND_INTEGER, .argument = placeholder, .help = help_line, \
     .to.integer = int_pointer, .integer_least = least, .integer_most = most}
#define OPTION_INTEGER64(option_name, int64_pointer, least, most, placeholder, help_line) \
    {.name = option_name, .kind = OPTION_KIND_INTEGER64, .argument = placeholder, \
     .help = help_line, .to.integer64 = int64_pointer, .integer_least = least, .integer_most = most}
/* A finite number from least to most. */
#define OPTION_NUMBER(option_name, double_pointer, least, most, placeholder, help_line) \
    {.name = option_name, .kind = OPTION_KIND_NUMBER, .argument = placeholder, .help = help_line, \
     .to.number = double_pointer, .number_least = least, .number_most = most}
/* The destination receives the index of the given word in `words`, a list that ends in NULL. */
#define OPTION_CHOICE(option_name, index_pointer, words, placeholder, help_line) \
    {.name = option_name, .kind = OPTION_KIND_CHOICE, .argument = placeholder, .help = help_line, \
     .to.choice = index_pointer, .choices = words}
/* clang-format on */

/* One argument that is not an option. The value points into argv; the default remains if an
 * optional argument is missing. Optional ones come last. */
typedef struct command_argument {
    const char *name; /* "FILE" */
    const char **value;
    const char *help;
    bool optional;
} command_argument;

/* Any further arguments, in the order given: pointers into argv. */
typedef struct command_arguments {
    char **values;
    int count;
} command_arguments;

typedef struct command_line {
    const char *usage;   /* "softrnn attend [options] FILE" */
    const char *purpose; /* what the command does: one or a few lines, no newline at the end */
    const command_option *options;
    size_t option_count;
    const command_argument *arguments;
    size_t argument_count;
    command_arguments *rest; /* NULL: no further arguments are allowed */
    const char *examples;    /* lines for --help, each ending in a newline */
} command_line;

/* Reads the arguments into the destinations; argv is reordered. False if the command should end
 * with *exit_code: after --help, or after a message about wrong usage. */
bool options_parse(const command_line *line, int argc, char **argv, int *exit_code);

/* Writes the values of an option as in --help: " (default 3)", ": a, b (default a)". */
void options_print_values(FILE *out, const command_option *option);

/* True if the option `name` ("--out") occurs on a command line that was not parsed yet. */
bool options_given(int argc, char *const *argv, const char *name);

#endif
