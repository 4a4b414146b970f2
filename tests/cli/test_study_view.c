/* test_study_view.c: lines and columns of the study's tables and of progress, for any names and
 * terminal. */
#include "base/units.h"
#include "cli/line/columns.h"
#include "cli/line/progress.h"
#include "cli/study/view.h"
#include "test.h"

#include <math.h>
#include <string.h>

static void columns(const char *text, int width, const char *want) {
    char out[64];
    assert_string_equal(column_text(out, sizeof out, text, width), want);
}

static void texts_fill_their_columns(void **state) {
    (void)state;
    columns("norm", 6, "norm  ");
    columns("softmax", 4, "soft");
    columns("größe", 6, "größe ");
    columns("größe", 3, "grö");
    columns("日本語", 7, "日本語 "); /* each two columns wide */
    columns("日本語", 5, "日本 ");   /* no half characters */
    columns("a\033[2J\302\233b", 8, "a?[2J?b ");
    columns("a\377b\303", 5, "a?b? ");
    char out[4];
    assert_string_equal(column_text(out, sizeof out, "größe", 5), "gr "); /* no half of one */
}

static sr_study_run run = {.id = (char[]){"text.both_gates___layer_norm.small.lr0.001.12"},
                           .steps = 600};

static void lines_fit_the_terminal(void **state) {
    (void)state;
    const sr_run_view views[] = {
        {.step = 0, .loss = NAN, .validation = NAN, .accuracy = NAN, .first_step = -1},
        {.step = 123, .loss = 2.34567, .validation = 2.5, .accuracy = 0.25, .seconds = 10},
        {.step = 99999, .loss = 1e30, .validation = INFINITY, .accuracy = NAN, .seconds = 1e9},
    };
    for (size_t v = 0; v < sizeof views / sizeof *views; v++)
        for (int width = 30; width < 200; width++) {
            char line[512];
            study_view_line(line, sizeof line, width, &run, &views[v]);
            if ((int)strlen(line) >= width)
                fail_msg("%zu columns in %d: %s", strlen(line), width, line);
            assert_null(strstr(line, "nan"));
            assert_non_null(strstr(line, ".12 ")); /* the end of its name distinguishes runs */
        }
}

static void lines_say_what_matters_first(void **state) {
    (void)state;
    const sr_run_view view = {
        .step = 100, .loss = 2.34567, .validation = 2.5, .accuracy = 0.25, .seconds = 10};
    char line[512];
    study_view_line(line, sizeof line, 40, &run, &view);
    assert_non_null(strstr(line, "100/600"));
    assert_non_null(strstr(line, "0:50 left"));
    assert_null(strstr(line, "loss"));
    study_view_line(line, sizeof line, 80, &run, &view);
    assert_non_null(strstr(line, "loss 2.3457"));
    assert_non_null(strstr(line, "accuracy 0.250"));
    assert_non_null(strstr(line, "0:50 left"));
    assert_null(strstr(line, "validation"));
    study_view_line(line, sizeof line, 120, &run, &view);
    assert_non_null(strstr(line, "validation 2.5000"));
}

/* A line of progress never reaches the last column; the bar shrinks first. */
static void progress_fits_the_terminal(void **state) {
    (void)state;
    static const double left[] = {12, 5000, 200000, INFINITY};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        for (int width = 2; width < 200; width++) {
            const progress_state progress = {
                0.5, left[i], "step 123456  loss 2.3456  123456 tokens/s  12 % of peak"};
            char line[512];
            progress_line(line, sizeof line, width, &progress);
            if ((int)strlen(line) >= width)
                fail_msg("%zu columns in %d: %s", strlen(line), width, line);
            assert_true(width < 40 || strstr(line, " 50 %  step 123456"));
            assert_true(width < 130 || line[0] == '[');
        }
}

static void times_have_their_unit(void **state) {
    (void)state;
    char words[SR_TIME_WORDS];
    assert_string_equal(sr_clock_words(words, 59), "0:59");
    assert_string_equal(sr_clock_words(words, 3723), "1:02:03");
    assert_string_equal(sr_clock_words(words, 187200), "2 d 4 h");
    assert_string_equal(sr_clock_words(words, INFINITY), "?");
    assert_string_equal(sr_clock_words(words, NAN), "?");
    assert_string_equal(sr_duration_words(words, 0.2), "1 s");
    assert_string_equal(sr_duration_words(words, 61), "2 min");
    assert_string_equal(sr_duration_words(words, 3599), "1 h 0 min");
    assert_string_equal(sr_duration_words(words, 12000), "3 h 20 min");
    assert_string_equal(sr_duration_words(words, 86399), "1 d 0 h");
    assert_string_equal(sr_duration_words(words, 1e300), "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_fill_their_columns),
        cmocka_unit_test(lines_fit_the_terminal),
        cmocka_unit_test(lines_say_what_matters_first),
        cmocka_unit_test(progress_fits_the_terminal),
        cmocka_unit_test(times_have_their_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
