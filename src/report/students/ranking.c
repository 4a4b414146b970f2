/* ranking.c: what each layer of a teacher costs, from layers.json next to a study of students. */
#include "files/json.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/students/students.h"

#include <math.h>
#include <string.h>

/* Next to the study's runs: layers/TASK, a folder of `softrnn distil --rank-layers`. */
static srnn_status folder_of(char path[SR_PATH_BYTES], bool *there, const sr_records *records,
                             const sr_student_task *task) {
    *there = false;
    if (!*task->task || *task->task == '.' || strchr(task->task, '/'))
        return SRNN_OK;
    SR_TRY(sr_path_print(path, "%s/layers/%s", records->folder, task->task));
    *there = sr_path_has(path, "layers.json");
    return SRNN_OK;
}

/* ---- orders */

static const json_t *orders_of(const json_t *record, size_t layer) {
    return sr_json_object_of(sr_json_element_of(record, "layers", layer), "orders");
}

/* The highest order that was tried about the centre. */
static double last_tried(const json_t *orders) {
    const size_t count = sr_json_count_of(orders, "rises");
    return count ? sr_json_number_of(sr_json_element_of(orders, "rises", count - 1), "order") : NAN;
}

/* An order of the record; INFINITY: above all that were tried; NAN: not measured. */
static double order_of(const json_t *orders, const char *name) {
    const double order = sr_json_number_of(orders, name);
    return isfinite(order) ? order : isfinite(last_tried(orders)) ? INFINITY : NAN;
}

static void print_order(char text[24], const json_t *orders, const char *name) {
    const double order = order_of(orders, name);
    snprintf(text, 24, "%s%.0f", isinf(order) ? "> " : "",
             isinf(order) ? last_tried(orders) : order);
}

/* "4 [1, 6]". One row has no interval. */
static void order_cell(sr_table *table, const json_t *orders, bool has_interval) {
    char order[24], low[24], high[24], text[80] = "\u2013";
    const double value = order_of(orders, "order");
    if (!isnan(value)) {
        print_order(order, orders, "order");
        print_order(low, orders, "low");
        print_order(high, orders, "high");
        snprintf(text, sizeof text, has_interval ? "%s [%s, %s]" : "%s", order, low, high);
    }
    sr_table_number(table, isfinite(value) ? value : NAN, text);
}

/* Layers that need no more, by the order itself or by an end of its interval. */
static size_t count_up_to(const json_t *record, const char *name, double most) {
    size_t count = 0;
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++)
        count += order_of(orders_of(record, i), name) <= most;
    return count;
}

/* Layers that need more than any order that was tried. */
static size_t count_above(const json_t *record) {
    size_t count = 0;
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++)
        count += order_of(orders_of(record, i), "order") == INFINITY;
    return count;
}

static void write_orders(FILE *out, const json_t *record) {
    static const double orders[] = {2, 6};
    const size_t measured = count_up_to(record, "order", INFINITY), above = count_above(record);
    if (!measured)
        return;
    fprintf(out,
            "<p>Which order of exp does a layer need so that the teacher loses less than %g nats "
            "with that layer alone cut? Of %zu layer%s",
            sr_json_number_of(record, "tolerable"), measured, measured == 1 ? "" : "s");
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        fprintf(out,
                "%s <strong>%zu</strong> at most order %.0f (%zu by the upper end of the interval)",
                i ? "," : " need", count_up_to(record, "order", orders[i]), orders[i],
                count_up_to(record, "high", orders[i]));
    fprintf(out, ", and <strong>%zu</strong> more than any that was tried.</p>\n", above);
}

/* ---- correlations */

typedef struct measure {
    const char *name, *title;
} measure;

static const measure measures[] = {
    {"order_2_rise", "nats lost with exp cut at order 2"},
    {"loss_order", "order that the loss needs"},
    {"entropy", "entropy of the weights"},
    {"mean_distance", "mean distance"},
    {"last_tokens", "weight of the last tokens"},
    {"first_token", "weight of the first token"},
    {"order_2_error", "error of the outputs at order 2"},
    {"order", "order that the outputs need"},
    {"number", "the layer\u2019s number (control)"},
};
enum { MEASURES = sizeof measures / sizeof *measures, CONTROL = MEASURES - 1 };

static sr_quantity correlation(const json_t *record, int which, const char *stage) {
    const json_t *all = sr_json_object_of(record, "correlations");
    const json_t *one = sr_json_object_of(sr_json_object_of(all, measures[which].name), stage);
    return (sr_quantity){sr_json_number_of(one, "rho"), sr_json_number_of(one, "low"),
                         sr_json_number_of(one, "high")};
}

static sr_formatted interval(const sr_quantity *q) {
    return sr_format_interval(q->mean, q->low, q->high);
}

static void quantity_cell(sr_table *table, const sr_quantity *q) {
    sr_table_number(table, q->mean, isfinite(q->mean) ? interval(q).text : "\u2013");
}

/* Of those with an interval, the one with the largest correlation of either sign; -1: none. */
static int best_measure(const json_t *record) {
    int best = -1;
    for (int i = 0; i < CONTROL; i++) {
        const sr_quantity q = correlation(record, i, "aligned");
        if (isfinite(q.mean) && isfinite(q.low) && isfinite(q.high) &&
            (best < 0 || fabs(q.mean) > fabs(correlation(record, best, "aligned").mean)))
            best = i;
    }
    return best;
}

static void write_measures(FILE *out, const json_t *record) {
    const int best = best_measure(record);
    const sr_quantity control = correlation(record, CONTROL, "aligned");
    fputs("<p>Does a measure of forward passes alone rank the layers by what they cost once "
          "aligned? ",
          out);
    if (best < 0) {
        fputs("There are too few layers to tell.</p>\n", out);
        return;
    }
    const sr_quantity q = correlation(record, best, "aligned");
    const sr_sign sign = sr_sign_of(&q);
    fprintf(out,
            "<strong>%s</strong>: of %d measures, %s does it best, with a rank correlation \u03c1 "
            "of %s%s",
            sign == SR_SIGN_UNCLEAR ? "It does not show" : "It does", (int)CONTROL,
            measures[best].title, interval(&q).text,
            sign == SR_SIGN_UNCLEAR ? ": the interval includes zero" : "");
    if (isfinite(control.mean))
        fprintf(out, ". The control, the layer\u2019s number, has %s%s", interval(&control).text,
                fabs(control.mean) >= fabs(q.mean) ? ": no measure says more than the depth does"
                                                   : "");
    fputs(".</p>\n", out);
}

static srnn_status put_correlations(sr_page *page, const json_t *record, const char *stem) {
    char name[80];
    sr_table *table;
    snprintf(name, sizeof name, "%s-measures", stem);
    SR_TRY(sr_table_create(&table, name,
                           "How measures of forward passes rank the layers: Spearman\u2019s \u03c1 "
                           "with the KL of the replaced layer, with 95 % intervals"));
    sr_table_column(table, "measure");
    sr_table_number_column(table, "as copied");
    sr_table_number_column(table, "aligned");
    for (int i = 0; i < MEASURES; i++) {
        const sr_quantity copied = correlation(record, i, "copied");
        const sr_quantity aligned = correlation(record, i, "aligned");
        sr_table_cell(table, "%s", measures[i].title);
        quantity_cell(table, &copied);
        quantity_cell(table, &aligned);
    }
    return sr_page_table(page, table);
}

/* ---- the layers */

static sr_quantity rise_at_2(const json_t *orders) {
    for (size_t i = 0; i < sr_json_count_of(orders, "rises"); i++) {
        const json_t *rise = sr_json_element_of(orders, "rises", i);
        if (sr_json_number_of(rise, "order") == 2)
            return (sr_quantity){sr_json_number_of(rise, "mean"), sr_json_number_of(rise, "low"),
                                 sr_json_number_of(rise, "high")};
    }
    return (sr_quantity){NAN, NAN, NAN};
}

static void number_cell(sr_table *table, const json_t *object, const char *name, int decimals) {
    const double number = sr_json_number_of(object, name);
    sr_table_number(table, number, sr_format_fixed(number, decimals).text);
}

static void add_layer(sr_table *table, const json_t *layer, bool has_interval) {
    const json_t *orders = sr_json_object_of(layer, "orders");
    const json_t *own = sr_json_object_of(layer, "measures");
    const sr_quantity rise = rise_at_2(orders);
    number_cell(table, layer, "layer", 0);
    number_cell(table, sr_json_object_of(layer, "copied"), "kl", 4);
    number_cell(table, sr_json_object_of(layer, "aligned"), "kl", 4);
    order_cell(table, orders, has_interval);
    quantity_cell(table, &rise);
    number_cell(table, own, "entropy", 2);
    number_cell(table, own, "mean_distance", 1);
}

static srnn_status put_layers(sr_page *page, const json_t *record, const char *stem) {
    static const char *const titles[] = {
        "KL as copied",         "KL aligned",    "order that the loss needs",
        "nats lost at order 2", "entropy, nats", "mean distance, tokens"};
    char name[80];
    sr_table *table;
    snprintf(name, sizeof name, "%s-teacher-layers", stem);
    SR_TRY(sr_table_create(&table, name,
                           "Each layer of the teacher alone, with 95 % intervals over rows"));
    sr_table_number_column(table, "layer");
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sr_table_number_column(table, titles[i]);
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++)
        add_layer(table, sr_json_element_of(record, "layers", i),
                  sr_json_number_of(record, "order_rows") > 1);
    return sr_page_table(page, table);
}

static srnn_status put_record(sr_page *page, const json_t *record, const char *stem) {
    FILE *out = page->body;
    fputs("<h3>What each layer of the teacher costs</h3>\n<p>By "
          "<code>softrnn distil --rank-layers</code>: each layer alone is replaced by ",
          out);
    sr_escape_html(out, sr_json_text_of(record, "attention"));
    fprintf(out,
            ", as copied and after its alignment, or has exp cut at a finite order, about the best "
            "centre that a finite state can have. Rows have %s tokens; each KL is a mean over %s "
            "targets, the loss of each order one over %s rows.</p>\n",
            sr_format_count(sr_json_number_of(record, "length")).text,
            sr_format_count(sr_json_number_of(record, "targets")).text,
            sr_format_count(sr_json_number_of(record, "order_rows")).text);
    write_orders(out, record);
    write_measures(out, record);
    SR_TRY(put_layers(page, record, stem));
    return put_correlations(page, record, stem);
}

srnn_status sr_students_ranking(sr_page *page, const sr_records *records,
                                const sr_student_task *task, const char *stem) {
    char path[SR_PATH_BYTES];
    bool there;
    json_t *record;
    SR_TRY(folder_of(path, &there, records, task));
    if (!there)
        return SRNN_OK;
    srnn_status status = sr_json_read(&record, path, "layers.json", "softrnn-layers");
    if (status == SRNN_ERR_FORMAT || status == SRNN_ERR_IO) {
        fputs("<p>What each layer of the teacher costs cannot be read: ", page->body);
        sr_escape_html(page->body, srnn_error_detail());
        fputs(".</p>\n", page->body);
        return SRNN_OK;
    }
    SR_TRY(status);
    status = put_record(page, record, stem);
    json_decref(record);
    return status;
}
