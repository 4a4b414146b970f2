/* options.c: parses a command line by its table. */
#include "cli/line/options.h"

#include "base/text.h"
#include "cli/line/command.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMN = 28, MOST_NAMES = 128 };

/* ---- --help */

void options_print_values(FILE *out, const command_option *option) {
    switch (option->kind) {
    case OPTION_KIND_FLAG:
        break;
    case OPTION_KIND_TEXT:
        if (*option->to.text && **option->to.text)
            fprintf(out, " (default %s)", *option->to.text);
        break;
    case OPTION_KIND_INTEGER:
        fprintf(out, " (default %d)", *option->to.integer);
        break;
    case OPTION_KIND_INTEGER64:
        fprintf(out, " (default %lld)", (long long)*option->to.integer64);
        break;
    case OPTION_KIND_NUMBER:
        fprintf(out, " (default %g)", *option->to.number);
        break;
    case OPTION_KIND_CHOICE:
        for (size_t i = 0; option->choices[i]; i++)
            fprintf(out, "%s%s", i ? ", " : ": ", option->choices[i]);
        fprintf(out, " (default %s)", option->choices[*option->to.choice]);
        break;
    }
}

static void print_left_column(const char *name, const char *placeholder) {
    int width = printf("  %s%s%s", name, placeholder ? " " : "", placeholder ? placeholder : "");
    if (width < HELP_COLUMN)
        printf("%*s", HELP_COLUMN - width, "");
    else
        printf("\n%*s", HELP_COLUMN, "");
}

static void print_help(const command_line *line) {
    printf("%s\n\nUsage: %s\n", line->purpose, line->usage);
    if (line->argument_count)
        printf("\nArguments:\n");
    for (size_t i = 0; i < line->argument_count; i++) {
        print_left_column(line->arguments[i].name, NULL);
        printf("%s\n", line->arguments[i].help);
    }
    printf("\nOptions:\n");
    for (size_t i = 0; i < line->option_count; i++) {
        print_left_column(line->options[i].name, line->options[i].argument);
        printf("%s", line->options[i].help);
        options_print_values(stdout, &line->options[i]);
        printf("\n");
    }
    print_left_column("--help", NULL);
    printf("this text\n\nExamples:\n%s", line->examples);
}

/* ---- values */

static int refuse_value(const command_option *option, const char *text, const char *expected) {
    return command_refuse("option '%s': expected %s, got '%s'", option->name, expected, text);
}

static int read_integer(const command_option *option, const char *text, int64_t *value) {
    char expected[96];
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld",
             (long long)option->integer_least, (long long)option->integer_most);
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || *end || errno || number < option->integer_least ||
        number > option->integer_most)
        return refuse_value(option, text, expected);
    *value = number;
    return EXIT_OK;
}

static int read_number(const command_option *option, const char *text, double *value) {
    char expected[96];
    snprintf(expected, sizeof expected, "a number from %g to %g", option->number_least,
             option->number_most);
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number) || number < option->number_least ||
        number > option->number_most)
        return refuse_value(option, text, expected);
    *value = number;
    return EXIT_OK;
}

static int read_choice(const command_option *option, const char *text, int *index) {
    int count = 0;
    for (; option->choices[count]; count++)
        if (strcmp(option->choices[count], text) == 0) {
            *index = count;
            return EXIT_OK;
        }
    const char *nearest = sr_nearest_word(text, option->choices, (size_t)count);
    if (nearest)
        return command_refuse("option '%s': unknown word '%s': did you mean '%s'?", option->name,
                              text, nearest);
    char expected[512] = "one of";
    for (int i = 0; i < count; i++) {
        size_t length = strlen(expected);
        snprintf(expected + length, sizeof expected - length, "%s %s", i ? "," : "",
                 option->choices[i]);
    }
    return refuse_value(option, text, expected);
}

static int read_value(const command_option *option, const char *text) {
    int64_t wide = 0;
    int exit_code = EXIT_OK;
    switch (option->kind) {
    case OPTION_KIND_FLAG:
        *option->to.flag = true;
        break;
    case OPTION_KIND_TEXT:
        *option->to.text = text;
        break;
    case OPTION_KIND_INTEGER:
        exit_code = read_integer(option, text, &wide);
        if (exit_code == EXIT_OK)
            *option->to.integer = (int)wide;
        break;
    case OPTION_KIND_INTEGER64:
        exit_code = read_integer(option, text, option->to.integer64);
        break;
    case OPTION_KIND_NUMBER:
        exit_code = read_number(option, text, option->to.number);
        break;
    case OPTION_KIND_CHOICE:
        exit_code = read_choice(option, text, option->to.choice);
        break;
    }
    return exit_code;
}

/* ---- the command line */

static int refuse_unknown(const command_line *line, const char *name, size_t length) {
    const char *names[MOST_NAMES] = {"help"};
    size_t count = 1;
    for (size_t i = 0; i < line->option_count && count < MOST_NAMES; i++)
        names[count++] = line->options[i].name + strspn(line->options[i].name, "-");
    char word[128];
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    const char *nearest = sr_nearest_word(word + strspn(word, "-"), names, count);
    if (nearest)
        return command_refuse("unknown option '%s': did you mean '--%s'?", word, nearest);
    return command_refuse("unknown option '%s': --help lists the options", word);
}

/* Reads the option argv[*at], and its value if that is the next argument; *at is left at the last
 * argument used. */
static int read_option(const command_line *line, int argc, char **argv, int *at) {
    const char *name = argv[*at];
    size_t length = strcspn(name, "=");
    const command_option *found = NULL;
    for (size_t i = 0; i < line->option_count; i++)
        if (strlen(line->options[i].name) == length &&
            strncmp(line->options[i].name, name, length) == 0)
            found = &line->options[i];
    if (!found)
        return refuse_unknown(line, name, length);
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    if (found->kind == OPTION_KIND_FLAG) {
        if (value)
            return command_refuse("option '%s' takes no value, got '%s'", found->name, value);
        return read_value(found, NULL);
    }
    /* A value that looks like an option probably means that the value was forgotten; '=' still
     * allows it. */
    if (!value && *at + 1 < argc && strncmp(argv[*at + 1], "--", 2) != 0)
        value = argv[++*at];
    if (!value)
        return command_refuse("option '%s' needs a value: %s %s", found->name, found->name,
                              found->argument);
    return read_value(found, value);
}

static int take_arguments(const command_line *line, int count, char **values) {
    int named = (int)line->argument_count;
    for (int i = 0; i < named; i++) {
        if (i < count)
            *line->arguments[i].value = values[i];
        else if (!line->arguments[i].optional)
            return command_refuse("missing %s\nUsage: %s", line->arguments[i].name, line->usage);
    }
    if (count > named && !line->rest)
        return command_refuse("unexpected argument '%s'\nUsage: %s", values[named], line->usage);
    if (line->rest) {
        line->rest->count = count > named ? count - named : 0;
        line->rest->values = count > named ? values + named : NULL;
    }
    return EXIT_OK;
}

bool options_parse(const command_line *line, int argc, char **argv, int *exit_code) {
    const command_observer *observer = command_observed();
    if (observer) {
        observer->line(observer->context, line);
        *exit_code = EXIT_OK;
        return false;
    }
    int positional = 0; /* arguments that are not options, moved to the front of argv */
    bool only_arguments = false;
    for (int i = 0; i < argc; i++) {
        if (only_arguments || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[positional++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            only_arguments = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(line);
            *exit_code = EXIT_OK;
            return false;
        } else {
            *exit_code = read_option(line, argc, argv, &i);
            if (*exit_code != EXIT_OK)
                return false;
        }
    }
    *exit_code = take_arguments(line, positional, argv);
    return *exit_code == EXIT_OK;
}

bool options_given(int argc, char *const *argv, const char *name) {
    const size_t length = strlen(name);
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strncmp(argv[i], name, length) == 0 &&
            (argv[i][length] == '\0' || argv[i][length] == '='))
            return true;
    return false;
}
