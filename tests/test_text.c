/* test_text.c: a mistyped word finds the one that was meant. */
#include "base/text.h"
#include "test.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_words_are_found),
        cmocka_unit_test(far_words_are_not),
        cmocka_unit_test(long_words_are_harmless),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
