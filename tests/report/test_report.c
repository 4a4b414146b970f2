/* test_report.c: reports agree with their records, and text from files is escaped. */
#include "files/file.h"
#include "files/folder.h"
#include "made_study.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/draw/table.h"
#include "report/study/kinds.h"
#include "report/study/report.h"
#include "test.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE_LIMIT = 2000000, PATH = 256 };

static char plain[64], hostile[64], one_seed[64], broken[64], systems[64];

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
    expect_escaped(sr_escape_html, "a\u202eb", "a\ufffdb"); /* would reverse the text direction */
}

static size_t occurrences(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
        count++;
    return count;
}

/* What the hostile name would add to the page if it were not escaped. */
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
    static const char *const parts[] = {"src=\"http", "url(",      "@import",         "<link",
                                        "src=\"//",   "href=\"//", "sourceMappingURL"};
    char *page = read_text(plain, "report.html");
    assert_true(strlen(page) < PAGE_LIMIT);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_null(strstr(page, parts[i]));
    assert_non_null(strstr(page, "default-src 'none'"));
    /* The only external link is the paper's. */
    assert_int_equal(occurrences(page, "href=\"http"), 1);
    assert_int_equal(occurrences(page, "<a href=\"https://arxiv.org/abs/2507.23632\">"), 1);
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

/* The next field of a CSV row, which ends at `end`, without its quotes; *at is advanced. */
static void next_field(char field[PATH], char **at) {
    size_t length = 0;
    const bool quoted = **at == '"';
    for (*at += quoted; quoted ? (**at != '"' || (*at)[1] == '"') : !strchr(",\r", **at); ++*at) {
        *at += quoted && **at == '"';
        assert_true(**at && length + 1 < PATH);
        field[length++] = **at;
    }
    field[length] = '\0';
    *at += quoted;
    *at += **at == ',';
}

/* The field of the row of a CSV file that begins with `name`, under the title. */
static void field_of(char field[PATH], const char *folder, const char *file, const char *name,
                     const char *title) {
    char *text = read_text(folder, file), *at = text, head[PATH];
    int column = 0;
    for (next_field(head, &at); strcmp(head, title) != 0; column++)
        next_field(head, &at);
    bool found = false;
    while (!found && (at = strchr(at, '\n')) && *++at) {
        next_field(field, &at);
        found = strcmp(field, name) == 0;
    }
    assert_true(found);
    for (; column > 0; column--)
        next_field(field, &at);
    free(text);
}

static double number_of(const char *file, const char *name, const char *title) {
    char field[PATH], *end;
    field_of(field, plain, file, name, title);
    const double value = strtod(field, &end);
    assert_true(end > field && !*end);
    return value;
}

static void expect_field(const char *folder, const char *file, const char *name, const char *title,
                         const char *want) {
    char field[PATH];
    field_of(field, folder, file, name, title);
    assert_string_equal(field, want);
}

/* Tables print nine digits. */
static void same_digits(double shown, double computed) {
    assert_true(fabs(shown - computed) < 2e-8 * fmax(1, fabs(computed)));
}

static const char *const recall = "tables/1-recall-differences.csv";
static const char *const text_task = "tables/2-kjv-differences.csv";

/* The mean over seeds of a run's last validation. */
static double mean_of(const char *task, int variant, const char *key) {
    double mean = 0;
    for (int seed = 1; seed <= 3; seed++) {
        char run[64];
        snprintf(run, sizeof run, "%s.v%d.%d", task, variant, seed);
        const double value = last_value(run, key);
        same_digits(number_of("tables/runs.csv", run,
                              strcmp(key, "validation_loss") == 0 ? "final loss"
                                                                  : "final accuracy"),
                    value);
        mean += value / 3;
    }
    return mean;
}

static void numbers_agree_with_the_metrics(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int index;
    } variants[] = {{"softmax", 0}, {"norm", 1}, {"order 2", 9}, {"linear elu", 12}};
    double baseline[2] = {0, 0};
    for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
        const double accuracy = mean_of("recall", variants[v].index, "validation_accuracy");
        const double loss = mean_of("kjv", variants[v].index, "validation_loss");
        same_digits(number_of(recall, variants[v].name, "mean"), accuracy);
        same_digits(number_of(text_task, variants[v].name, "mean"), loss);
        if (v == 0) {
            baseline[0] = accuracy;
            baseline[1] = loss;
        } else {
            same_digits(number_of(recall, variants[v].name, "difference"), accuracy - baseline[0]);
            same_digits(number_of(text_task, variants[v].name, "difference"), loss - baseline[1]);
        }
    }
    char *page = read_text(plain, "report.html");
    assert_null(strstr(page, "Stale statistics"));
    free(page);
}

static void expect_text(const char *folder, const char *file, const char *part) {
    char *text = read_text(folder, file);
    if (!strstr(text, part))
        fail_msg("%s lacks: %s", file, part);
    free(text);
}

static void expect_no_text(const char *folder, const char *file, const char *part) {
    char *text = read_text(folder, file);
    if (strstr(text, part))
        fail_msg("%s has: %s", file, part);
    free(text);
}

/* The first sentence has the effect that the metrics have, and comes first. */
static void the_headline_comes_from_the_metrics(void **state) {
    (void)state;
    char want[200];
    const double cost = mean_of("kjv", 3, "validation_loss") - mean_of("kjv", 0, "validation_loss");
    snprintf(want, sizeof want,
             "Dropping the denominator costs <strong>%.2f nats</strong>; a norm in its place costs "
             "<strong>nothing that shows here</strong>",
             cost);
    expect_text(plain, "report.html", want);
    expect_text(plain, "report.html", "The verdict</h2>\n<p class=\"headline\">");
    expect_text(one_seed, "report.html", "(of one seed: another may say otherwise)");
}

/* A norm whose interval is [-0.027, +0.033] in accuracy may cost more than 2 %; one of
 * [-0.036, +0.026] nats cannot. */
static void claims_need_narrow_intervals(void **state) {
    (void)state;
    const char *norm = "A norm can take the place of the denominator";
    char field[PATH];
    field_of(field, plain, "tables/claims.csv", norm, "Associative recall");
    assert_ptr_equal(strstr(field, "cannot tell: norm: unclear"), field);
    field_of(field, plain, "tables/claims.csv", norm, "Language model on the King James Bible");
    assert_ptr_equal(strstr(field, "seen here: norm: unclear"), field);
}

/* Every field of a number column is a number or empty. */
static void expect_numbers(const char *folder, const char *file, const char *const *texts,
                           size_t text_count) {
    char *text = read_text(folder, file), *at = text, titles[16][PATH], field[PATH];
    size_t columns = 0, numbers = 0;
    do
        next_field(titles[columns++], &at);
    while (*at != '\r' && columns < 16);
    while ((at = strchr(at, '\n')) && *++at)
        for (size_t c = 0; c < columns; c++) {
            char *end;
            bool is_text = false;
            next_field(field, &at);
            for (size_t i = 0; i < text_count; i++)
                is_text = is_text || strcmp(titles[c], texts[i]) == 0;
            (void)strtod(field, &end);
            if (!is_text && *end)
                fail_msg("%s: \"%s\" under %s is not a number", file, field, titles[c]);
            numbers += !is_text && *field;
        }
    assert_true(numbers > 20);
    free(text);
}

static void tables_hold_numbers(void **state) {
    (void)state;
    static const char *const texts[] = {"variant",  "difference of", "verdict",
                                        "interval", "run",           "status"};
    static const char *const files[] = {"tables/1-recall-differences.csv",
                                        "tables/2-kjv-differences.csv", "tables/2-kjv-costs.csv",
                                        "tables/runs.csv"};
    const char *const folders[] = {plain, one_seed, broken, hostile};
    for (size_t f = 0; f < sizeof folders / sizeof *folders; f++)
        for (size_t i = 0; i < sizeof files / sizeof *files; i++)
            expect_numbers(folders[f], files[i], texts, sizeof texts / sizeof *texts);
    expect_no_text(plain, "tables/2-kjv-costs.tex", "\u202f");
    expect_no_text(plain, "tables/2-kjv-costs.tex", "\u2013");
    expect_text(plain, "tables/2-kjv-costs.tex", "91\\,000");
}

/* A bound that excludes zero is not printed as zero. */
static void intervals_show_their_side(void **state) {
    (void)state;
    assert_string_equal(sr_format_interval(0.002, 0.0001, 0.004).text,
                        "+0.00200 [+0.00010, +0.00400]");
    assert_string_equal(sr_format_interval(-0.1, -0.2, -1e-12).text,
                        "\u22120.100000000 [\u22120.200000000, \u22121.0e-12]");
    assert_string_equal(sr_format_interval(0.003, -0.027, 0.033).text,
                        "+0.003 [\u22120.027, +0.033]");
    assert_string_equal(sr_format_interval(0.003, NAN, NAN).text, "+0.003 (no interval)");
    assert_string_equal(sr_format_size(0.378).text, "0.38");
    /* The bounds of an interval have the same digits in a sentence and in a table. */
    assert_string_equal(sr_format_interval(0.01, -0.0242, 0.0443).text,
                        "+0.010 [\u22120.024, +0.044]");
    assert_string_equal(sr_format_bound(0.0443, -0.0242, 0.0443).text, "0.044");
    assert_string_equal(sr_format_bound(-0.0242, -0.0242, 0.0443).text, "0.024");
}

/* With one seed a task measured by accuracy is judged by its loss, and the page says so. */
static void one_seed_is_judged_by_loss(void **state) {
    (void)state;
    expect_field(one_seed, recall, "linear elu", "difference of", "loss");
    expect_field(one_seed, recall, "linear elu", "verdict", "worse");
    expect_field(one_seed, recall, "linear elu", "interval", "batches");
    expect_field(one_seed, recall, "linear elu", "std. dev.", "");
    expect_text(one_seed, "report.html", "With one seed accuracies cannot be judged");
    expect_text(one_seed, "report.html", "(one seed, hence the noise between seeds is not known)");
    expect_text(one_seed, "figures/1-recall-differences-in-loss.svg", "less is better");
    expect_no_text(one_seed, "report.html", "accuracy minus the baseline");
    expect_no_text(one_seed, "report.html", "Better:");
    expect_no_text(plain, "report.html", "one seed");
    const char *const claim = "Linear attention, the first order, falls short of softmax";
    char field[PATH];
    field_of(field, one_seed, "tables/claims.csv", claim, "Associative recall");
    assert_ptr_equal(strstr(field, "seen here: linear elu: worse, +2.0"), field);
}

/* Unstable variants are counted, named, drawn, and fall short in claims. */
static void unstable_variants_stay(void **state) {
    (void)state;
    expect_field(broken, text_task, "gate", "verdict", "unstable");
    expect_field(broken, text_task, "linear elu", "verdict", "unstable");
    expect_field(broken, text_task, "linear elu", "mean", "");
    expect_field(broken, text_task, "linear elu", "finished", "0");
    expect_field(broken, text_task, "linear elu", "planned", "3");
    expect_field(broken, recall, "order 2", "verdict", "unstable");
    expect_text(broken, "report.html",
                "Of 13 variants, <strong>7</strong> are worse than softmax, "
                "<strong>none</strong> is better, <strong>2</strong> are unstable, and "
                "<strong>4</strong> cannot be told apart");
    expect_text(broken, "report.html", "<b>gate</b> diverged in 2 of 3 seeds");
    expect_text(broken, "report.html",
                "<b>order 2</b> ended without a finite number in 1 of 3 seeds");
    expect_no_text(broken, "report.html", "Better:");
    expect_no_text(broken, "report.html", "Stale statistics");
    expect_text(broken, "figures/2-kjv-differences-in-loss.svg", "diverged in 3 of 3 seeds");
    expect_text(broken, "report.html", "in 2 of 3 forms and is <strong>unstable</strong> in 1");
    expect_text(broken, "tables/claims.csv",
                "seen here: linear elu: unstable, diverged in 3 of 3 seeds");
}

static void report_again(const char *folder, srnn_status want) {
    size_t bytes;
    bool leaks;
    assert_int_equal(sr_report_write(folder, folder, &bytes, &leaks), want);
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

/* Writes the report with an edited file, and expects words in the page, which is not restored. */
static void expect_after(const char *folder, const char *name, const char *from, const char *to,
                         const char *part) {
    char *old = edit(folder, name, from, to);
    report_again(folder, SRNN_OK);
    expect_text(folder, "report.html", part);
    restore(folder, name, old);
}

/* Before the verdict the page states the question. */
static void the_question_comes_first(void **state) {
    (void)state;
    char *page = read_text(plain, "report.html");
    const char *verdict = strstr(page, "<h2 id=\"verdict\">");
    static const char *const parts[] = {
        "On the Expressiveness of Softmax Attention",
        "<em>denominator</em>",
        "<dt>norm</dt> <dd>no denominator; the output scaled to length one</dd>",
        "<dt>softmax</dt> <dd>weights exp(q\u00b7k), divided by their sum</dd>",
        "<b>Associative recall</b>: accuracy, the share of right answers, more is better",
    };
    assert_non_null(verdict);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *found = strstr(page, parts[i]);
        if (!found || found > verdict)
            fail_msg("before the verdict the page lacks: %s", parts[i]);
    }
    free(page);
    /* A study of other variants does not mention the paper. */
    char *old =
        edit(plain, "study.json", "\"text\": \"score=exp\"", "\"text\": \"score=exp,norm=rms\"");
    report_again(plain, SRNN_OK);
    expect_no_text(plain, "report.html", "arxiv.org");
    expect_no_text(plain, "report.html", "The paper says");
    restore(plain, "study.json", old);
    report_again(plain, SRNN_OK);
}

/* The text of @text is named. */
static void the_text_is_named(void **state) {
    (void)state;
    expect_text(plain, "report.html", "</b>: the King James Bible; loss in nats");
    expect_after(plain, "study.json", "softrnn study --out", "softrnn study --text my.txt --out",
                 "</b>: <code>my.txt</code>; loss in nats");
    expect_after(plain, "study.json", "softrnn study --out",
                 "softrnn study --text 'it'\\\\''s my Übung.txt' --out",
                 "</b>: <code>&#39;it&#39;\\&#39;&#39;s my Übung.txt&#39;</code>; loss in nats");
    report_again(plain, SRNN_OK);
}

/* Tasks that differ in their pairs alone make a line over pairs, and none over length. */
static void pairs_have_a_chart(void **state) {
    (void)state;
    expect_no_text(plain, "report.html", "the number of pairs");
    char *old = edit(plain, "study.json", "pairs=8,length=96", "pairs=4,length=96");
    report_again(plain, SRNN_OK);
    expect_text(plain, "figures/pairs.svg", "Accuracy against the number of pairs");
    expect_no_text(plain, "report.html", "Accuracy against the length");
    restore(plain, "study.json", old);
    report_again(plain, SRNN_OK);
}

/* The verdict is the summary's; one that its interval contradicts is not repeated. */
static void verdicts_are_read(void **state) {
    (void)state;
    expect_field(plain, text_task, "norm", "verdict", "unclear");
    expect_after(plain, "summary.json", "\"verdict\": \"worse\"", "\"verdict\": \"unclear\"",
                 "Of 10 variants, <strong>4</strong> are worse than softmax");
    expect_after(plain, "summary.json", "\"verdict\": \"unclear\"", "\"verdict\": \"better\"",
                 "a verdict that its interval denies");
    expect_no_text(plain, "report.html", "Better:");
    report_again(plain, SRNN_OK);
}

/* A speed measured under other conditions than the baseline's is marked, with a footnote. */
static void speeds_apart_are_marked(void **state) {
    (void)state;
    expect_no_text(plain, "report.html", "side by side");
    expect_after(plain, "summary.json", "\"tokens_per_second\": 93000",
                 "\"apart\": true, \"tokens_per_second\": 93000", "Not side by side");
    expect_text(plain, "report.html", "93\u202f000*</td>");
    expect_field(plain, "tables/1-recall-costs.csv", "norm", "tokens/s", "93000");
    report_again(plain, SRNN_OK);
}

/* Training costs: FLOPs as an axis and a figure, gradient norms, and single axes. */
static void training_is_shown(void **state) {
    (void)state;
    expect_text(plain, "figures/2-kjv-gradient-norm.svg", "Gradient norm by step");
    expect_text(plain, "figures/2-kjv-flops.svg", "Quality against training FLOPs");
    expect_text(plain, "report.html", "\"flops\":3.3333e+08");
    expect_field(plain, "tables/2-kjv-axes.csv", "normaliser", "variant", "no denominator");
    expect_field(plain, "tables/2-kjv-axes.csv", "normaliser", "here", "none");
    expect_field(plain, "tables/2-kjv-axes.csv", "score", "baseline", "exp");
    expect_field(plain, "tables/2-kjv-axes.csv", "score", "here", "taylor:4"); /* best first */
    expect_no_text(plain, "tables/2-kjv-axes.csv", "norm,");                   /* two axes */
}

/* The page says if all variants had one learning rate; after tuning it shows the rates tried. */
static void tuning_is_said(void **state) {
    (void)state;
    static const char tuning[] =
        "{\"format\": \"softrnn-tuning\", \"version\": 1, \"runs\": 12, \"flops\": 1e12, "
        "\"seconds\": 90, \"rates\": ["
        "{\"task\": \"recall\", \"size\": \"\", \"variant\": \"norm\", \"learning_rate\": 0.003,"
        " \"edge\": true, \"trials\": [{\"learning_rate\": 0.003, \"round\": 1, \"losses\": [0.5]},"
        " {\"learning_rate\": 0.001, \"round\": 1, \"losses\": [0.75]},"
        " {\"learning_rate\": 0.01, \"round\": 1, \"losses\": [null]}]}]}";
    char path[PATH];
    expect_text(plain, "report.html", "<strong>not tuned</strong>");
    snprintf(path, sizeof path, "%s/tuning.json", plain);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(tuning, out) >= 0 && fclose(out) == 0);
    expect_after(plain, "summary.json", "\"confidence\"", "\"tuned\": true, \"confidence\"",
                 "Learning rates were tuned for each variant before the comparison");
    expect_no_text(plain, "report.html", "not tuned");
    expect_text(plain, "tables/origin.csv", "training time of tuning,\"12 runs, 1.5 minutes\"");
    assert_int_equal(remove(path), 0);
    report_again(plain, SRNN_OK);
}

static void write_tests(const char *run, const char *tests) {
    char path[PATH];
    snprintf(path, sizeof path, "%s/runs/%s/tests.json", plain, run);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    assert_true(fputs(tests, out) >= 0 && fclose(out) == 0);
}

/* The names of settings in a run's tests are neither markup nor paths. */
static void settings_of_tests_stay_text(void **state) {
    (void)state;
    static const char tests[] = "{\"tests\": [{\"data\": \"x:../../../out=1,\\\"><img src=x "
                                "onerror=alert(2)>=1\", \"accuracy\": 0.5},"
                                "{\"data\": \"x:../../../out=2,\\\"><img src=x "
                                "onerror=alert(2)>=2\", \"accuracy\": 0.75}]}";
    char path[PATH], outside[PATH];
    snprintf(path, sizeof path, "%s/figures/1-recall-tests-..",
             plain); /* a folder that its owner prepared */
    assert_int_equal(mkdir(path, 0777), 0);
    write_tests("recall.v0.1", tests);
    report_again(plain, SRNN_OK);
    expect_no_text(plain, "report.html", "\"><img");
    expect_text(plain, "figures/1-recall-tests-1-out.svg", "against ../../../out");
    snprintf(outside, sizeof outside, "%s/../out.svg", plain);
    assert_int_not_equal(access(outside, F_OK), 0);
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof path, "%s/runs/recall.v0.1/tests.json", plain);
    assert_int_equal(remove(path), 0);
    report_again(plain, SRNN_OK);
}

/* Tests of finished runs: a curve over each setting in which they differ, means over seeds in a
 * table; a file that is not JSON is ignored. */
static void tests_are_shown(void **state) {
    (void)state;
    static const char first[] =
        "{\"tests\": [{\"data\": \"recall:pairs=4,length=48\", \"accuracy\": 0.75, \"chance\": "
        "0.0625},"
        "{\"data\": \"recall:pairs=8,length=48\", \"accuracy\": 0.5, \"chance\": 0.0625}]}";
    static const char second[] =
        "{\"tests\": [{\"data\": \"recall:pairs=4,length=48\", \"accuracy\": 0.25, \"chance\": "
        "0.0625},"
        "{\"data\": \"recall:pairs=8,length=48\", \"accuracy\": null, \"chance\": 0.0625}]}";
    static const char *const runs[] = {"recall.v0.1", "recall.v0.2", "recall.v1.1"};
    expect_no_text(plain, "report.html", "Accuracy in tests");
    write_tests(runs[0], first);
    write_tests(runs[1], second);
    write_tests(runs[2], "{");
    report_again(plain, SRNN_OK);
    expect_text(plain, "figures/1-recall-tests-1-pairs.svg", "Accuracy in tests against pairs");
    expect_field(plain, "tables/1-recall-tests.csv", "recall:pairs=4,length=48", "softmax", "0.5");
    expect_field(plain, "tables/1-recall-tests.csv", "recall:pairs=8,length=48", "softmax", "0.5");
    expect_field(plain, "tables/1-recall-tests.csv", "recall:pairs=8,length=48", "norm", "");
    expect_field(plain, "tables/1-recall-tests.csv", "recall:pairs=8,length=48", "chance",
                 "0.0625");
    expect_no_text(plain, "report.html", "Accuracy in tests against length");
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        char path[PATH];
        snprintf(path, sizeof path, "%s/runs/%s/tests.json", plain, runs[i]);
        assert_int_equal(remove(path), 0);
    }
    report_again(plain, SRNN_OK);
}

/* Texts of the first run that has some, escaped; a damaged file is ignored. */
static void samples_are_shown(void **state) {
    (void)state;
    static const char text[] =
        "{\"samples\": [{\"prompt\": \"In the <b>\", \"text\": \" & sea\"}]}";
    static const char *const texts[] = {"{", text};
    expect_no_text(plain, "report.html", "What the models write");
    for (int seed = 1; seed <= 2; seed++) {
        char path[PATH];
        snprintf(path, sizeof path, "%s/runs/kjv.v0.%d/samples.json", plain, seed);
        FILE *out = fopen(path, "w");
        assert_non_null(out);
        assert_true(fputs(texts[seed - 1], out) >= 0 && fclose(out) == 0);
    }
    report_again(plain, SRNN_OK);
    expect_text(plain, "report.html", "What the models write");
    expect_text(plain, "report.html", ", seed 2</h4>");
    expect_text(plain, "report.html", "In the &lt;b&gt;<strong> &amp; sea</strong>");
    for (int seed = 1; seed <= 2; seed++) {
        char path[PATH];
        snprintf(path, sizeof path, "%s/runs/kjv.v0.%d/samples.json", plain, seed);
        assert_int_equal(remove(path), 0);
    }
    report_again(plain, SRNN_OK);
}

/* Only existing checkpoints have links, as paths of the study's folder. */
static void checkpoints_have_links(void **state) {
    (void)state;
    char path[PATH];
    expect_no_text(plain, "report.html", "/checkpoints\"");
    snprintf(path, sizeof path, "%s/runs/recall.v0.1/checkpoints", plain);
    assert_int_equal(sr_folder_make(path), SRNN_OK);
    report_again(plain, SRNN_OK);
    char *page = read_text(plain, "report.html");
    assert_int_equal(occurrences(page, "/checkpoints\""), 1);
    assert_non_null(strstr(page, "<a href=\"./runs/recall.v0.1/checkpoints\">recall.v0.1</a>"));
    free(page);
    assert_int_equal(sr_folder_remove(path), SRNN_OK);
    report_again(plain, SRNN_OK);
}

static void damaged_records_are_said(void **state) {
    (void)state;
    expect_after(plain, "runs/kjv.v0.1/metrics.jsonl", "{\"step\": 3,", "\"step\": 3,",
                 "<code>runs/kjv.v0.1</code>: 1 line of metrics.jsonl cannot be read");
    expect_after(plain, "runs/kjv.v0.1/metrics.jsonl", "{\"step\": 3,", "[],\xff\n{\"step\": 3,",
                 "<code>runs/kjv.v0.1</code>: 1 line of metrics.jsonl cannot be read");
    expect_after(plain, "runs/kjv.v0.1/result.json", "{", "[",
                 "result.json cannot be read: the run counts as not ended");
    report_again(plain, SRNN_OK);
    expect_no_text(plain, "report.html", "Damaged records");
}

/* Two identical variants of one order are both drawn. */
static void no_order_is_dropped(void **state) {
    (void)state;
    expect_text(plain, "figures/1-recall-orders.svg", ">order 1 \u2026 order 8<");
    char *old = edit(plain, "study.json", "\"score=taylor:8\"", "\"score=taylor:4\"");
    report_again(plain, SRNN_OK);
    expect_text(plain, "figures/1-recall-orders.svg", ">order 1 \u2026 order 4<");
    expect_text(plain, "figures/1-recall-orders.svg", ">order 8<");
    restore(plain, "study.json", old);
    /* Another norm makes another line. */
    old = edit(plain, "study.json", "\"score=taylor:4\"", "\"score=taylor:4,norm=rms\"");
    report_again(plain, SRNN_OK);
    expect_text(plain, "figures/1-recall-orders.svg", ">order 4<");
    restore(plain, "study.json", old);
    report_again(plain, SRNN_OK);
}

/* Every line of a figure has its name at its end; orders that were run are the ticks. */
static void lines_are_named_at_their_ends(void **state) {
    (void)state;
    char *figure = read_text(plain, "figures/2-kjv-validation-loss.svg");
    assert_int_equal(occurrences(figure, "<text class=\"end "),
                     occurrences(figure, "class=\"leader "));
    assert_int_equal(occurrences(figure, "<text class=\"end "),
                     occurrences(figure, "<text class=\"key\""));
    free(figure);
    figure = read_text(plain, "figures/1-recall-orders.svg");
    assert_null(strstr(figure, "text-anchor=\"middle\">3</text>"));
    assert_non_null(strstr(figure, "text-anchor=\"middle\">8</text>"));
    free(figure);
    expect_no_text(plain, "report.html", "against the speed");
}

/* Nor do two lengths of different tasks. */
static void tasks_of_different_kinds_are_no_curve(void **state) {
    (void)state;
    char *old = edit(plain, "study.json", "\"recall:", "\"induction:");
    report_again(plain, SRNN_OK);
    expect_no_text(plain, "report.html", "Accuracy over length");
    restore(plain, "study.json", old);
    report_again(plain, SRNN_OK);
}

/* Two tasks of one length make no line over length. */
static void lengths_are_not_repeated(void **state) {
    (void)state;
    expect_text(plain, "report.html", "Accuracy over length");
    char *old = edit(plain, "study.json", "\"length\": 96", "\"length\": 48");
    report_again(plain, SRNN_OK);
    expect_no_text(plain, "report.html", "Accuracy over length");
    restore(plain, "study.json", old);
    report_again(plain, SRNN_OK);
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
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *old = edit(plain, cases[i].name, cases[i].from, cases[i].to);
        report_again(plain, cases[i].want);
        restore(plain, cases[i].name, old);
    }
}

/* Charts survive numbers of any size, and text in place of numbers. */
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
        {"summary.json", "\"pairs\": [", "\"pairs\": [7, {}, {\"difference\": 1e308},"},
        {"summary.json", "\"floor\": ", "\"floor\": 1e308, \"was\": "},
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
    bool leaks;
    snprintf(folder, 64, "/tmp/softrnn-report-XXXXXX");
    return mkdtemp(folder) && made_study_write(folder, kind) == 0 &&
                   sr_report_write(folder, folder, &bytes, &leaks) == SRNN_OK
               ? 0
               : -1;
}

static int enter(void **state) {
    (void)state;
    return make(plain, MADE_PLAIN) || make(hostile, MADE_HOSTILE) ||
           make(one_seed, MADE_ONE_SEED) || make(broken, MADE_BROKEN) ||
           make(systems, MADE_SYSTEMS);
}

static int leave(void **state) {
    (void)state;
    const char *const folders[] = {plain, hostile, one_seed, broken, systems};
    int failed = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        failed |= sr_folder_remove(folders[i]) != SRNN_OK;
    return failed;
}

/* The claim about orders is about one family: softmax's own series. */
static void orders_are_of_one_family(void **state) {
    (void)state;
    static const char *const of_it[] = {"order:1", "order:2", "order:8"};
    static const char *const others[] = {"order:1,normaliser=none,norm=l2", "order:2,norm=l2",
                                         "norm", "linear_elu", "softmax"};
    srnn_attention a;
    for (size_t i = 0; i < sizeof of_it / sizeof *of_it; i++) {
        assert_int_equal(srnn_attention_parse(&a, of_it[i]), SRNN_OK);
        assert_true(sr_kind_truncated(&a));
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(srnn_attention_parse(&a, others[i]), SRNN_OK);
        assert_false(sr_kind_truncated(&a));
    }
}

/* Every variant with its own layer, with its axes from docs/SYSTEMS.md. */
static void every_system_is_described(void **state) {
    (void)state;
    char *document = read_text(SOFTRNN_TEST_INPUTS "/../../docs", "SYSTEMS.md");
    const srnn_variant *variant;
    const sr_system *system;
    for (size_t i = 0; (variant = srnn_variant_at(i)); i++)
        if (variant->attention.wiring.layer != SRNN_LAYER_PLAIN && !sr_system_of(variant->name))
            fail_msg("report/draw/systems.c has no row for %s", variant->name);
    for (size_t i = 0; (system = sr_system_at(i)); i++) {
        char cell[256];
        snprintf(cell, sizeof cell, "| %s |\n", system->chooses);
        if (!strstr(system->name, "avey") && *system->chooses && !strstr(document, cell))
            fail_msg("docs/SYSTEMS.md does not say that %s chooses %s", system->name,
                     system->chooses);
    }
    free(document);
}

static void systems_have_pages(void **state) {
    (void)state;
    static const char *const parts[] = {"The equation", "How it follows from softmax",
                                        "What it costs", "bytes per token", "20\u202f024"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        expect_text(systems, "systems/4-mamba2/report.html", parts[i]);
    expect_text(systems, "systems/4-mamba2/report.html", "<math");
    expect_text(systems, "systems/4-mamba2/report.html", "<td>softplus</td>");
    expect_text(systems, "systems/14-avey/report.html", "Not causal");
    expect_text(systems, "systems/14-avey/report.html", "tril(V)");
    expect_no_text(systems, "systems/15-avey-causal/report.html", "Not causal");
    expect_text(systems, "report.html", "Not causal: avey");
    expect_text(systems, "report.html", "href=\"systems/11-rat/report.html\"");
    expect_text(systems, "report.html", "systems, <strong>");
    /* Details that a generic equation would get wrong. */
    expect_text(systems, "systems/5-gla/report.html", "<msub><mi>C</mi><mi>jc</mi></msub>");
    expect_no_text(systems, "systems/5-gla/report.html", "<msub><mi>C</mi><mi>j</mi></msub>");
    expect_text(systems, "systems/11-rat/report.html", "of its own only itself");
    expect_text(systems, "systems/11-rat/report.html", "Positions are the numbers of chunks");
    expect_text(systems, "systems/12-grela/report.html", "and not in the row sum below");
    /* They are not the plain linear attention of the paper. */
    expect_no_text(systems, "report.html", "The paper says");
    expect_no_text(systems, "report.html", "against the order");
    expect_no_text(plain, "report.html", "one by one");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_system_is_described),
        cmocka_unit_test(systems_have_pages),
        cmocka_unit_test(orders_are_of_one_family),
        cmocka_unit_test(escapes),
        cmocka_unit_test(wrong_bytes_are_replaced),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(lengths_have_a_chart),
        cmocka_unit_test(pages_need_no_network),
        cmocka_unit_test(numbers_agree_with_the_metrics),
        cmocka_unit_test(the_headline_comes_from_the_metrics),
        cmocka_unit_test(claims_need_narrow_intervals),
        cmocka_unit_test(tables_hold_numbers),
        cmocka_unit_test(intervals_show_their_side),
        cmocka_unit_test(one_seed_is_judged_by_loss),
        cmocka_unit_test(unstable_variants_stay),
        cmocka_unit_test(verdicts_are_read),
        cmocka_unit_test(speeds_apart_are_marked),
        cmocka_unit_test(training_is_shown),
        cmocka_unit_test(tuning_is_said),
        cmocka_unit_test(tests_are_shown),
        cmocka_unit_test(settings_of_tests_stay_text),
        cmocka_unit_test(samples_are_shown),
        cmocka_unit_test(checkpoints_have_links),
        cmocka_unit_test(damaged_records_are_said),
        cmocka_unit_test(no_order_is_dropped),
        cmocka_unit_test(the_question_comes_first),
        cmocka_unit_test(the_text_is_named),
        cmocka_unit_test(pairs_have_a_chart),
        cmocka_unit_test(lines_are_named_at_their_ends),
        cmocka_unit_test(lengths_are_not_repeated),
        cmocka_unit_test(tasks_of_different_kinds_are_no_curve),
        cmocka_unit_test(stale_statistics_are_noticed),
        cmocka_unit_test(wrong_records_are_refused),
        cmocka_unit_test(absurd_numbers_are_survived),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
