/* test_report.c: a report says what its records say, and texts from files stay texts. */
#include "base/file.h"
#include "made_study.h"
#include "report/escape.h"
#include "report/report.h"
#include "report/table.h"
#include "test.h"
#include "train/folder.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_LIMIT = 2000000, PATH = 256 };

static char plain[64], hostile[64];

/* A file of a folder as a terminated text, which the caller frees. */
static char *read_text(const char *folder, const char *name) {
    char path[PATH];
    sr_mapping mapping;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(sr_mapping_open(&mapping, path), SRNN_OK);
    char *text = strndup((const char *)mapping.data, mapping.bytes);
    assert_non_null(text);
    assert_int_equal(strlen(text), mapping.bytes);
    sr_mapping_close(&mapping);
    return text;
}

static void expect_escaped(void (*escape)(FILE *, const char *), const char *text,
                           const char *want) {
    char *got = NULL;
    size_t bytes;
    FILE *out = open_memstream(&got, &bytes);
    assert_non_null(out);
    escape(out, text);
    assert_int_equal(fclose(out), 0);
    assert_string_equal(got, want);
    free(got);
}

static void escapes(void **state) {
    (void)state;
    expect_escaped(sr_escape_html, "<a href=\"x\" on='y'>&",
                   "&lt;a href=&quot;x&quot; on=&#39;y&#39;&gt;&amp;");
    expect_escaped(sr_escape_script, "</script>\"\\\n",
                   "\"\\u003c/script\\u003e\\u0022\\u005c\\u000a\"");
    expect_escaped(sr_escape_script, "<!--\u2028", "\"\\u003c!--\\u2028\"");
    expect_escaped(sr_escape_latex, "a_b%$#&{}~^\\",
                   "a\\_b\\%\\$\\#\\&\\{\\}\\textasciitilde{}\\textasciicircum{}"
                   "\\textbackslash{}");
    expect_escaped(sr_escape_csv, "a,\"b\"", "\"a,\"\"b\"\"\"");
    expect_escaped(sr_escape_csv, "=SUM(A1)", "\"'=SUM(A1)\"");
    expect_escaped(sr_escape_csv, "+cmd|' /C calc'", "\"'+cmd|' /C calc'\"");
    expect_escaped(sr_escape_csv, "-0.25", "-0.25");
    expect_escaped(sr_escape_csv, "plain", "plain");
}

static void wrong_bytes_are_replaced(void **state) {
    (void)state;
    static const char *const wrong[] = {"\xff",     "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                        "\xe2\x82", "\x01"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *got = NULL;
        size_t bytes;
        FILE *out = open_memstream(&got, &bytes);
        sr_escape_html(out, wrong[i]);
        assert_int_equal(fclose(out), 0);
        assert_memory_equal(got, "\ufffd", 3);
        free(got);
    }
    expect_escaped(sr_escape_html, "\u00e9\u4e2d\U0001F600", "\u00e9\u4e2d\U0001F600");
    expect_escaped(sr_escape_html, "a\u202eb", "a\ufffdb"); /* would turn the text round */
}

static size_t occurrences(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* What the hostile name would add to the page if it were taken for anything but text. */
static void hostile_names_stay_text(void **state) {
    (void)state;
    static const char *const parts[] = {"<script", "</script>", "<img", "onerror=alert(2)>"};
    char *ordinary = read_text(plain, "report.html"), *page = read_text(hostile, "report.html");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(occurrences(page, parts[i]), occurrences(ordinary, parts[i]));
    assert_true(occurrences(page, "&lt;script&gt;alert(1)&lt;/script&gt;") > 10);
    free(ordinary);
    free(page);
    char *figure = read_text(hostile, "figures/2-kjv-validation-loss.svg");
    assert_null(strstr(figure, "<script"));
    assert_null(strstr(figure, "<img"));
    free(figure);
    char *latex = read_text(hostile, "tables/2-kjv-differences.tex");
    assert_int_equal(occurrences(latex, "\\end{"), 2);
    assert_non_null(strstr(latex, "\\textbackslash{}end\\{x\\}\\$\\%\\_"));
    free(latex);
    char *csv = read_text(hostile, "tables/2-kjv-differences.csv");
    assert_int_equal(occurrences(csv, "\r\n"), 15);
    free(csv);
}

/* Two tasks measure accuracy, at two lengths. */
static void lengths_have_a_chart(void **state) {
    (void)state;
    char *figure = read_text(plain, "figures/lengths.svg");
    assert_non_null(strstr(figure, "linear elu"));
    free(figure);
}

static void pages_need_no_network(void **state) {
    (void)state;
    static const char *const parts[] = {"src=\"http", "href=\"http",     "url(",
                                        "@import",    "<link",           "src=\"//",
                                        "href=\"//",  "sourceMappingURL"};
    char *page = read_text(plain, "report.html");
    assert_true(strlen(page) < PAGE_LIMIT);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_null(strstr(page, parts[i]));
    assert_non_null(strstr(page, "default-src 'none'"));
    free(page);
}

/* The last validation value in a run's metrics.jsonl. */
static double last_value(const char *run, const char *key) {
    char name[PATH];
    double value = NAN;
    snprintf(name, sizeof name, "runs/%s/metrics.jsonl", run);
    char *text = read_text(plain, name), *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) && *line;) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        if (json_object_get(object, key))
            value = json_number_value(json_object_get(object, key));
        json_decref(object);
    }
    free(text);
    return value;
}

/* Field `column` of the row of a CSV file that begins with `name`. */
static double cell_of(const char *file, const char *name, int column) {
    char *text = read_text(plain, file), start[PATH];
    snprintf(start, sizeof start, "\n%s,", name);
    char *row = strstr(text, start);
    assert_non_null(row);
    for (row++; column > 0; column--) {
        row = strchr(row, ',');
        assert_non_null(row);
        row++;
    }
    const double value = strtod(row, NULL);
    free(text);
    return value;
}

/* Tables have four decimals. */
static void same_digits(double shown, double computed) {
    assert_true(fabs(shown - computed) < 6e-5);
}

static void numbers_agree_with_the_metrics(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int index;
    } variants[] = {{"softmax", 0}, {"norm", 1}, {"order 2", 9}, {"linear elu", 12}};
    double baseline[2] = {0, 0};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        double accuracy = 0, loss = 0;
        for (int seed = 1; seed <= 3; seed++) {
            char run[64];
            snprintf(run, sizeof run, "recall.v%d.%d", variants[v].index, seed);
            accuracy += last_value(run, "validation_accuracy") / 3;
            snprintf(run, sizeof run, "kjv.v%d.%d", variants[v].index, seed);
            loss += last_value(run, "validation_loss") / 3;
            same_digits(cell_of("tables/runs.csv", run, 4), last_value(run, "validation_loss"));
        }
        if (v == 0) {
            baseline[0] = accuracy;
            baseline[1] = loss;
        }
        const char *recall = "tables/1-recall-differences.csv";
        const char *text = "tables/2-kjv-differences.csv";
        same_digits(cell_of(recall, variants[v].name, 1), accuracy);
        same_digits(cell_of(text, variants[v].name, 1), loss);
        if (v > 0) {
            same_digits(cell_of(recall, variants[v].name, 3), accuracy - baseline[0]);
            same_digits(cell_of(text, variants[v].name, 3), loss - baseline[1]);
        }
    }
    char *page = read_text(plain, "report.html");
    assert_null(strstr(page, "Stale statistics"));
    free(page);
}

/* "Better" only where the interval excludes zero, whatever summary.json calls it. */
static void verdicts_follow_intervals(void **state) {
    (void)state;
    char *text = read_text(plain, "tables/2-kjv-differences.csv"), *rest = text;
    strsep(&rest, "\n");
    size_t rows = 0;
    for (char *line; (line = strsep(&rest, "\n")) && *line; rows++) {
        char *field = *line == '"' ? strchr(line + 1, '"') + 1 : strchr(line, ',');
        double low, high;
        char verdict[32];
        if (sscanf(field, ",%*f,%*f,%*f,%lf,%lf,%31[a-z]", &low, &high, verdict) != 3)
            continue;
        assert_string_equal(verdict, low > 0 ? "worse" : high < 0 ? "better" : "unclear");
    }
    assert_int_equal(rows, 14);
    free(text);
}

static void report_again(const char *folder, srnn_status want) {
    size_t bytes;
    assert_int_equal(sr_report_write(folder, folder, &bytes), want);
}

/* Replaces the first `from` in a file of the folder; the caller writes the old text back. */
static char *edit(const char *folder, const char *name, const char *from, const char *to) {
    char path[PATH], *old = read_text(folder, name), *at = strstr(old, from), *changed;
    assert_non_null(at);
    assert_true(asprintf(&changed, "%.*s%s%s", (int)(at - old), old, to, at + strlen(from)) > 0);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(sr_file_replace(path, changed, strlen(changed)), SRNN_OK);
    free(changed);
    return old;
}

static void restore(const char *folder, const char *name, char *old) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(sr_file_replace(path, old, strlen(old)), SRNN_OK);
    free(old);
}

static void stale_statistics_are_noticed(void **state) {
    (void)state;
    char *old = edit(plain, "runs/kjv.v1.2/metrics.jsonl", "\"step\": 600", "\"step\": 601");
    report_again(plain, SRNN_OK);
    char *page = read_text(plain, "report.html");
    assert_non_null(strstr(page, "Stale statistics"));
    free(page);
    restore(plain, "runs/kjv.v1.2/metrics.jsonl", old);
    report_again(plain, SRNN_OK);
}

static void wrong_records_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *from, *to;
        srnn_status want;
    } cases[] = {
        {"study.json", "softrnn-study", "something", SRNN_ERR_FORMAT},
        {"study.json", "\"version\": 1", "\"version\": 2", SRNN_ERR_UNSUPPORTED},
        {"study.json", "\"runs/recall.v0.1\"", "\"../recall.v0.1\"", SRNN_ERR_FORMAT},
        {"study.json", "\"runs/recall.v0.1\"", "\"/recall.v0.1\"", SRNN_ERR_FORMAT},
        {"study.json", "{", "[", SRNN_ERR_FORMAT},
        {"summary.json", "\"variant\": \"softmax\"", "\"variant\": \"sofmax\"", SRNN_ERR_FORMAT},
        {"runs/kjv.v0.1/metrics.jsonl", "{\"step\": 3,", "\"step\": 3,", SRNN_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *old = edit(plain, cases[i].name, cases[i].from, cases[i].to);
        report_again(plain, cases[i].want);
        restore(plain, cases[i].name, old);
    }
}

/* Numbers of any size, and texts where numbers belong, make no chart fail. */
static void absurd_numbers_are_survived(void **state) {
    (void)state;
    static const struct {
        const char *name, *from, *to;
    } cases[] = {
        {"study.json", "\"steps\": 600", "\"steps\": 1e300"},
        {"study.json", "\"steps\": 600", "\"steps\": \"many\""},
        {"study.json", "\"length\": 48", "\"length\": -1e308"},
        {"summary.json", "\"low\": ", "\"low\": -1e308, \"was\": "},
        {"summary.json", "\"mean\": ", "\"mean\": 1e29, \"was\": "},
        {"summary.json", "\"state_bytes\": null", "\"state_bytes\": 0"},
        {"summary.json", "\"tokens_per_second\": ", "\"tokens_per_second\": 1e308, \"was\": "},
        {"summary.json", "\"confidence\": ", "\"confidence\": [], \"was\": "},
        {"summary.json", "\"runs\": 3", "\"runs\": 1e18"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *old = edit(plain, cases[i].name, cases[i].from, cases[i].to);
        report_again(plain, SRNN_OK);
        restore(plain, cases[i].name, old);
    }
    report_again(plain, SRNN_OK);
}

static int make(char folder[64], made_kind kind) {
    size_t bytes;
    snprintf(folder, 64, "/tmp/softrnn-report-XXXXXX");
    return mkdtemp(folder) && made_study_write(folder, kind) == 0 &&
                   sr_report_write(folder, folder, &bytes) == SRNN_OK
               ? 0
               : -1;
}

static int enter(void **state) {
    (void)state;
    return make(plain, MADE_PLAIN) || make(hostile, MADE_HOSTILE);
}

static int leave(void **state) {
    (void)state;
    return sr_folder_remove(plain) == SRNN_OK && sr_folder_remove(hostile) == SRNN_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escapes),
        cmocka_unit_test(wrong_bytes_are_replaced),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(lengths_have_a_chart),
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(numbers_agree_with_the_metrics),
        cmocka_unit_test(verdicts_follow_intervals),
        cmocka_unit_test(stale_statistics_are_noticed),
        cmocka_unit_test(wrong_records_are_refused),
        cmocka_unit_test(absurd_numbers_are_survived),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
