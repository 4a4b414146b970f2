/* test_text.c: a mistyped word finds the one that was meant; bytes as text; escaping. */
#include "base/text.h"
#include "base/units.h"
#include "test.h"

#include <math.h>
#include <string.h>

static const char *const words[] = {"threads",    "thread_count", "normaliser",  "norm",
                                    "row_length", "row_sum",      "softmax_divs"};
enum { WORDS = sizeof words / sizeof *words };

static void near_words_are_found(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"thread", "threads"}, {"thraeds", "threads"},
        {"treads", "threads"}, {"normalizer", "normaliser"},
        {"NORM", "norm"},      {"nomr", "norm"},
        {"row", "row_length"}, {"softmax_divS", "softmax_divs"},
        {"rowsum", "row_sum"}, {"threads", "threads"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        const char *found = sr_nearest_word(pairs[i][0], words, WORDS);
        assert_non_null(found);
        assert_string_equal(found, pairs[i][1]);
    }
}

static void far_words_are_not(void **state) {
    (void)state;
    static const char *const far[] = {"", "x", "ro", "output", "clamp", "form_of"};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++)
        assert_null(sr_nearest_word(far[i], words, WORDS));
    assert_null(sr_nearest_word("threads", words, 0));
    static const char *const ends[] = {"2mamba", "mamba2"};
    assert_string_equal(sr_nearest_word("mamba", ends, 2), "mamba2");
}

static void long_words_are_harmless(void **state) {
    (void)state;
    char word[5000];
    memset(word, 'a', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_null(sr_nearest_word(word, words, WORDS));
    const char *const long_words[] = {word};
    assert_null(sr_nearest_word("aaaa", long_words, 1));
}

static void bytes_in_words(void **state) {
    (void)state;
    static const struct {
        double bytes;
        const char *want;
    } cases[] = {{0, "0 B"},        {512, "512 B"},     {1023, "1023 B"},
                 {1024, "1 KB"},    {16896, "16.5 KB"}, {1023.4 * 1024, "1023 KB"},
                 {1048575, "1 MB"}, {0x1p80, "1 YB"},   {0x1p100, "1.05e+06 YB"},
                 {INFINITY, "-"},   {NAN, "-"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[SR_BYTES_WORDS];
        assert_string_equal(sr_bytes_words(got, cases[i].bytes), cases[i].want);
    }
}

static void utf8_is_recognised(void **state) {
    (void)state;
    static const char *const good[] = {
        "", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {
        "\x80",         "\xc3",         "a\xc3(",           "\xc0\xaf",
        "\xe0\x80\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf4\x90\x80\x80",
        "\xf0\x9f\x98"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(sr_text_is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(sr_text_is_utf8(bad[i], strlen(bad[i])));
    assert_true(sr_text_is_utf8("a\0b", 3));
}

static void what_steers_a_terminal_is_escaped(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"plain \xc3\xa9 \xe2\x82\xac", "plain \xc3\xa9 \xe2\x82\xac"},
        {"\x1b[31mred\a", "\\x1b[31mred\\x07"},
        {"two\nlines\t\x7f", "two\\x0alines\\x09\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\xc2\\x9b31m"}, /* CSI, a C1 control */
        {"\x9b"
         "31m",
         "\\x9b31m"}, /* the same in Latin-1 */
        {"a\xe2\x80\xae"
         "b",
         "a\\xe2\\x80\\xaeb"}, /* right-to-left override */
        {"cut \xe2\x82", "cut \\xe2\\x82"},
    };
    char got[64];
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        sr_text_escape(got, sizeof got, pairs[i][0]);
        assert_string_equal(got, pairs[i][1]);
    }
    sr_text_escape(got, 4, "ab\xc3\xa9"); /* not half a character */
    assert_string_equal(got, "ab");
    sr_text_escape(got, 5, "\n\n");
    assert_string_equal(got, "\\x0a");
    sr_text_escape(got, 1, "a");
    assert_string_equal(got, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_steers_a_terminal_is_escaped),
        cmocka_unit_test(utf8_is_recognised),
        cmocka_unit_test(near_words_are_found),
        cmocka_unit_test(far_words_are_not),
        cmocka_unit_test(long_words_are_harmless),
        cmocka_unit_test(bytes_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
