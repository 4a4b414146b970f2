/* test_pattern.c: regular expressions find what Oniguruma finds, or are refused. */
#include "data/text/pattern.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* The matches as "start-end", separated by spaces. */
static void find_all(char *out, size_t size, const char *expression, const char *text) {
    sr_pattern *pattern;
    sr_matcher *matcher;
    sr_search search;
    bool found;
    out[0] = 0;
    if (sr_pattern_create_regex(&pattern, expression, strlen(expression)) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_matcher_create(&matcher), SRNN_OK);
    sr_search_start(&search, pattern, matcher, text, strlen(text));
    for (;;) {
        assert_int_equal(sr_search_next(&search, &found), SRNN_OK);
        if (!found)
            break;
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%zu-%zu", used ? " " : "", search.start, search.end);
    }
    sr_matcher_free(matcher);
    sr_pattern_free(pattern);
}

/* What Hugging Face's tokenizers 0.23.3 finds. */
static void matches_like_oniguruma(void **state) {
    (void)state;
    static const struct {
        const char *expression, *text, *matches;
    } cases[] = {
        /* Empty matches count, but not where the last one ended. */
        {"(?=[a-z])", "'ab", "1-1 2-2"},
        {"1*", "a11b", "0-0 1-3 4-4"},
        {"$", "a\nb", "1-1 3-3"},
        {"^", "a\nb\n", "0-0 2-2"},
        {"(?=\u00e9)", "\u00e9\u00e9", "0-0 2-2"},
        /* Repeats. */
        {"1{,2}", "111", "0-2 2-3"},
        {"1{,}", "1{,}", "0-4"},
        {"1{1,2}?", "111", "0-1 1-2 2-3"},
        {"a{b", "a{b", "0-3"},
        /* Upper and lower case. */
        {"(?i)he|x", "HE X", "0-2 3-4"},
        {"h(?i:e|t)", "hE hT HE", "0-2 3-5"},
        {"(?i:'s|'k)", "'S '\u017f '\u212a", "0-2 3-6 7-11"},
        /* Classes and escapes. */
        {"\\v", "\n\v\f", "1-2"},
        {"\\w", "\u00bd\u00b2_a", "0-2 2-4 4-5 5-6"},
        {"[\\w]", "\u00bd\u00b2_a", "4-5 5-6"},
        {"\\s", "\u180e \u00a0", "3-4 4-6"},
        {"[a-]+", "-a-b", "0-3"},
        {"(?<word>a)b", "ab", "0-2"},
        {"\\p{^L}+", "a1 ", "1-3"},
        /* The script alone, without shared characters: U+30FC belongs to two scripts. */
        {"\\p{Hiragana}+", "\u3042\u30fc", "0-3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[256];
        find_all(got, sizeof got, cases[i].expression, cases[i].text);
        if (strcmp(got, cases[i].matches) != 0)
            fail_msg("%s: %s, not %s", cases[i].expression, got, cases[i].matches);
    }
}

/* Letters, digits and marks of Unicode 15 and 16, whatever Unicode version the library has. */
static void knows_new_characters(void **state) {
    (void)state;
    static const struct {
        const char *expression, *text, *matches;
    } cases[] = {
        {"\\p{L}+", "a\U00031350\U0001e030b", "0-10"},
        {"\\p{N}+", "1\U00010d40\U0001d2c02", "0-10"},
        {"\\p{Nd}+", "1\U00010d40\U0001d2c02", "0-5 9-10"},
        {"\\d+", "1\U00011f50a", "0-5"},
        {"\\D+", "1\U00011f50a", "5-6"},
        {"[^\\s\\p{L}\\p{N}]+", "!\U00031350!\U00010d40\U0001fae9", "0-1 5-6 10-14"},
        {"\\P{L}+", "\U00031350!\u1c89", "4-5"},
        {"\\p{Lu}", "\u1c89\u1c8a", "0-3"},
        {"\\p{M}", "\u0897a", "0-3"},
        {"\\p{Han}+", "\u4e2d\U0002ebf0", "0-7"},
        {"\\w+", "a\u0897\U00010d40!", "0-8"},
        {"\\W+", "a\U00010d40!", "5-6"},
        {"[\\w.]+", ".\ua7cd.", "0-5"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char got[256];
        find_all(got, sizeof got, cases[i].expression, cases[i].text);
        if (strcmp(got, cases[i].matches) != 0)
            fail_msg("%s: %s, not %s", cases[i].expression, got, cases[i].matches);
    }
}

/* Read differently by PCRE2, or not at all by Oniguruma. */
static void refuses_what_would_differ(void **state) {
    (void)state;
    static const char *const refused[] = {
        "a{2}?",       "a{2}+",       "a**",       "a{2}{3}",    "h(?i)e|t",   "(?i:ss)",
        "(?i:S(t))",   "(?i:\u00df)", "(?i:s{2})", "(?i)\\p{L}", "(?i:[\\w])", "[a&&b]",
        "[[:alpha:]]", "[]a]",        "\\h",       "\\X",        "\\bx",       "\\1",
        "\\xe9",       "\\x",         "(?x)a",     "(?#a)",      "(?=a)*",     "^*",
        "(*UCP)a",     "[a-\\d]",     "\\p{Mn}",   "\\p{C}",     "\\pL",       "\\p{Zzzz}",
        "a)",          "(a",          "[a",        "a\\",        "\\k<a>",     "[\\W]",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        sr_pattern *pattern;
        srnn_status status = sr_pattern_create_regex(&pattern, refused[i], strlen(refused[i]));
        if (status == SRNN_OK)
            fail_msg("%s is not refused", refused[i]);
        assert_null(pattern);
    }
    sr_pattern *pattern;
    assert_int_equal(sr_pattern_create_regex(&pattern, "a{2}?", 5), SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "{2}?"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_like_oniguruma),
        cmocka_unit_test(knows_new_characters),
        cmocka_unit_test(refuses_what_would_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
