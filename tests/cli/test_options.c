/* test_options.c: command lines are parsed by their table, and wrong ones are refused with a
 * reason. */
#include "cli/line/command.h"
#include "cli/line/options.h"
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct parsed {
    bool json;
    const char *out;
    int threads;
    int64_t seed;
    double rate;
    int form;
    const char *input, *second;
    command_arguments rest;
    bool go_on;
    int exit_code;
    char messages[4096]; /* what went to stderr */
} parsed;

/* Parses a command line by the table below; `text` receives the output to the descriptor. */
static void parse(parsed *result, int descriptor, char *text, size_t size, int argc, char **argv) {
    static const char *const forms[] = {"auto", "parallel", "chunked", NULL};
    *result = (parsed){.threads = 3, .rate = 0.5};
    const command_option options[] = {
        OPTION_FLAG("--json", &result->json, "print JSON"),
        OPTION_TEXT("--out", &result->out, "FILE", "where to"),
        OPTION_INTEGER("--threads", &result->threads, 0, 64, "N", "threads"),
        OPTION_INTEGER64("--seed", &result->seed, INT64_MIN, INT64_MAX, "N", "seed"),
        OPTION_NUMBER("--rate", &result->rate, 0, 1, "X", "rate"),
        OPTION_CHOICE("--form", &result->form, forms, "FORM", "how"),
    };
    const command_argument arguments[] = {
        {"INPUT", &result->input, "what to read", false},
        {"SECOND", &result->second, "more to read", true},
    };
    const command_line line = {
        .usage = "softrnn try [options] INPUT [SECOND]",
        .purpose = "Tries the parser.",
        .options = options,
        .option_count = sizeof options / sizeof *options,
        .arguments = arguments,
        .argument_count = 2,
        .rest = &result->rest,
        .examples = "  softrnn try x\n",
    };
    fflush(NULL);
    FILE *caught = tmpfile();
    assert_non_null(caught);
    int saved = dup(descriptor);
    dup2(fileno(caught), descriptor);
    result->go_on = options_parse(&line, argc, argv, &result->exit_code);
    fflush(NULL);
    dup2(saved, descriptor);
    close(saved);
    rewind(caught);
    text[fread(text, 1, size - 1, caught)] = '\0';
    fclose(caught);
}

/* PARSE(p, words...): parses the words as a command line. They live until the end of the enclosing
 * block. */
#define PARSE(p, ...)                                            \
    parse(&(p), STDERR_FILENO, (p).messages, sizeof(p).messages, \
          sizeof((char *[]){__VA_ARGS__}) / sizeof(char *), (char *[]){__VA_ARGS__})

static void values_arrive(void **state) {
    (void)state;
    parsed p;
    PARSE(p, "in", "--json", "--out", "a b", "--threads=7", "--seed", "-9", "--rate=1e-3", "--form",
          "chunked", "two", "three", "--", "--four");
    assert_true(p.go_on);
    assert_string_equal(p.messages, "");
    assert_true(p.json);
    assert_string_equal(p.out, "a b");
    assert_int_equal(p.threads, 7);
    assert_int_equal(p.seed, -9);
    assert_true(p.rate == 1e-3);
    assert_int_equal(p.form, 2);
    assert_string_equal(p.input, "in");
    assert_string_equal(p.second, "two");
    assert_int_equal(p.rest.count, 2);
    assert_string_equal(p.rest.values[0], "three");
    assert_string_equal(p.rest.values[1], "--four");
}

static void defaults_stay(void **state) {
    (void)state;
    parsed p;
    PARSE(p, "-");
    assert_true(p.go_on);
    assert_string_equal(p.input, "-");
    assert_null(p.second);
    assert_null(p.out);
    assert_int_equal(p.threads, 3);
    assert_true(p.rate == 0.5);
    assert_int_equal(p.rest.count, 0);
}

static void wrong_usage_is_refused(void **state) {
    (void)state;
    static const struct {
        char *words[3];
        const char *message;
    } cases[] = {
        {{"in", "--thread", "4"}, "unknown option '--thread': did you mean '--threads'?"},
        {{"in", "--thread=4", "x"}, "unknown option '--thread': did you mean '--threads'?"},
        {{"in", "--quux", "x"}, "unknown option '--quux': --help lists the options"},
        {{"in", "-j", "x"}, "unknown option '-j'"},
        {{"in", "x", "--out"}, "option '--out' needs a value: --out FILE"},
        {{"in", "--out", "--json"}, "option '--out' needs a value: --out FILE"},
        {{"in", "x", "--json=yes"}, "option '--json' takes no value, got 'yes'"},
        {{"in", "--threads", "65"}, "expected a whole number from 0 to 64, got '65'"},
        {{"in", "--threads", "4x"}, "expected a whole number from 0 to 64, got '4x'"},
        {{"in", "--threads", ""}, "expected a whole number from 0 to 64, got ''"},
        {{"in", "--seed", "9223372036854775808"}, "got '9223372036854775808'"},
        {{"in", "--rate", "1.5"}, "expected a number from 0 to 1, got '1.5'"},
        {{"in", "--rate", "nan"}, "expected a number from 0 to 1, got 'nan'"},
        {{"in", "--form", "chunkd"}, "unknown word 'chunkd': did you mean 'chunked'?"},
        {{"in", "--form", "what"}, "expected one of auto, parallel, chunked, got 'what'"},
        {{"--json", "--json", "--json"}, "missing INPUT"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        parsed p;
        PARSE(p, cases[i].words[0], cases[i].words[1], cases[i].words[2]);
        assert_false(p.go_on);
        assert_int_equal(p.exit_code, EXIT_USAGE);
        if (!strstr(p.messages, cases[i].message))
            fail_msg("'%s' is not in '%s'", cases[i].message, p.messages);
    }
}

static void help_shows_everything(void **state) {
    (void)state;
    static const char *const parts[] = {"Tries the parser.",
                                        "Usage: softrnn try [options] INPUT [SECOND]",
                                        "what to read",
                                        "--threads N",
                                        "(default 3)",
                                        "auto, parallel, chunked (default auto)",
                                        "Examples:\n  softrnn try x\n"};
    char *spellings[] = {"--help", "-h"};
    for (size_t i = 0; i < 2; i++) {
        parsed p;
        char text[4096];
        parse(&p, STDOUT_FILENO, text, sizeof text, 1, &spellings[i]);
        assert_false(p.go_on);
        assert_int_equal(p.exit_code, EXIT_OK);
        for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
            if (!strstr(text, parts[part]))
                fail_msg("'%s' is not in '%s'", parts[part], text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(defaults_stay),
        cmocka_unit_test(wrong_usage_is_refused),
        cmocka_unit_test(help_shows_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
