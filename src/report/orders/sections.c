/* sections.c: sizes of orders, layers and heads, truncation, steps. */
#include "report/orders/sections.h"

#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/heat.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double element(const json_t *list, size_t i) {
    const json_t *value = json_array_get(list, i);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void add_point(sr_chart *chart, double x, double y) {
    sr_chart_point(chart, x, y, y, y);
}

/* One series per layer: the sizes of this name, which are natural logarithms. */
static void add_layers(sr_chart *chart, const json_t *record, const char *name) {
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++) {
        const json_t *layer = sr_json_element_of(record, "layers", i);
        const json_t *list = json_object_get(sr_json_object_of(layer, "sizes"), name);
        char title[32];
        snprintf(title, sizeof title, "layer %zu", i);
        sr_chart_series(chart, title, (int)i);
        for (size_t n = 0; n < json_array_size(list); n++)
            add_point(chart, (double)n, element(list, n) / M_LN10);
    }
}

/* Definitions of the size of an order. */
static const struct {
    const char *name, *title;
} kinds[] = {{"log_mean", "over all pairs"},
             {"log_mean_weighted", "weighted by attention"},
             {"mean_log", "of a typical pair"},
             {"reference", "as the reference defines it"}};

/* The highest order whose size was measured; if it is the dominant one, the true dominant order may
 * be higher. */
static double last_order(const json_t *record) {
    const json_t *sizes = sr_json_object_of(sr_json_element_of(record, "layers", 0), "sizes");
    return (double)json_array_size(json_object_get(sizes, "log_mean")) - 1;
}

/* A model with one layer has no chart. */
static void say_dominant(sr_page *page, const json_t *record) {
    const json_t *dominant = sr_json_object_of(sr_json_element_of(record, "layers", 0), "dominant");
    for (size_t kind = 0; dominant && kind < sizeof kinds / sizeof *kinds; kind++) {
        const double order = sr_json_number_of(dominant, kinds[kind].name);
        sr_page_paragraph(page, "Dominant order %s: %s%.0f.", kinds[kind].title,
                          order >= last_order(record) ? "\u2265 " : "", order);
    }
}

static srnn_status put_dominant(sr_page *page, const json_t *record) {
    const size_t layers = sr_json_count_of(record, "layers");
    sr_chart *chart;
    if (layers < 2) {
        say_dominant(page, record);
        return SRNN_OK;
    }
    SR_TRY(sr_chart_create(&chart, SR_CHART_POINTS, "dominant", "Dominant order of each layer"));
    sr_chart_axes(chart, "layer", "order");
    sr_chart_describe(chart,
                      "The order n whose |x|^n / n! is largest, by four meanings of large. At "
                      "%.0f, the highest that was measured, it is that or more.",
                      last_order(record));
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        sr_chart_series(chart, kinds[kind].title, (int)kind);
        for (size_t i = 0; i < layers; i++) {
            const json_t *layer = sr_json_element_of(record, "layers", i);
            add_point(chart, (double)i,
                      sr_json_number_of(sr_json_object_of(layer, "dominant"), kinds[kind].name));
        }
    }
    return sr_page_chart(page, chart);
}

static srnn_status put_sizes(sr_page *page, const json_t *record, const char *name,
                             const char *title, const char *size) {
    sr_chart *chart;
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "order", size);
    sr_chart_describe(chart, "One line per layer: the mean of |x|^n / n! over pairs and heads.");
    add_layers(chart, record, strstr(name, "weighted") ? "log_mean_weighted" : "log_mean");
    return sr_page_chart(page, chart);
}

srnn_status sr_orders_section_sizes(sr_page *page, const json_t *record) {
    sr_page_section(page, "sizes", "Which orders a layer uses");
    SR_TRY(put_dominant(page, record));
    SR_TRY(put_sizes(page, record, "sizes", "Size of the orders, as a power of ten",
                     "log10 of the mean"));
    return put_sizes(page, record, "sizes-weighted",
                     "Size of the orders where attention looks, as a power of ten",
                     "log10 of the weighted mean");
}

/* The value of a head in a map. */
static double of_head(const json_t *head, const char *what) {
    const json_t *logits = sr_json_object_of(head, "logits");
    if (strcmp(what, "weighted") == 0)
        return sr_json_number_of(sr_json_object_of(head, "dominant"), "log_mean_weighted");
    if (strcmp(what, "outputs") == 0) {
        const json_t *outputs = json_object_get(sr_json_object_of(head, "needed"), "outputs");
        return element(json_array_get(outputs, 0), 0);
    }
    return sr_json_number_of(logits, what);
}

static size_t most_heads(const json_t *record) {
    size_t most = 0;
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++) {
        const size_t heads = sr_json_count_of(sr_json_element_of(record, "layers", i), "heads");
        most = heads > most ? heads : most;
    }
    return most;
}

/* The numbers of a map, folded. */
static srnn_status put_map_table(sr_page *page, const sr_heat *heat, const char *what) {
    sr_table *table;
    char name[32];
    snprintf(name, sizeof name, "heads-%s", what);
    SR_TRY(sr_table_create(&table, name, heat->title));
    sr_table_column(table, heat->row_title);
    for (int column = 0; column < heat->columns; column++) {
        snprintf(name, sizeof name, "%s %d", heat->column_title, column);
        sr_table_number_column(table, name);
    }
    for (int i = 0; i < heat->rows * heat->columns; i++) {
        if (i % heat->columns == 0)
            sr_table_cell(table, "%d", i / heat->columns);
        snprintf(name, sizeof name, "%.4g", heat->values[i]);
        sr_table_number(table, heat->values[i], isfinite(heat->values[i]) ? name : "\u2013");
    }
    fputs("<details><summary>The numbers as a table</summary>\n", page->body);
    const srnn_status status = sr_page_table(page, table);
    fputs("</details>\n", page->body);
    return status;
}

static srnn_status put_map(sr_page *page, const json_t *record, const char *what,
                           const char *title) {
    const size_t rows = sr_json_count_of(record, "layers"), columns = most_heads(record);
    void *memory;
    if (rows * columns == 0)
        return SRNN_OK;
    SR_TRY(sr_alloc(&memory, rows * columns, sizeof(double)));
    double *values = memory;
    for (size_t i = 0; i < rows; i++)
        for (size_t h = 0; h < columns; h++)
            values[i * columns + h] =
                of_head(sr_json_element_of(sr_json_element_of(record, "layers", i), "heads", h),
                        what);
    const sr_heat heat = {title, "layer", "head", values, (int)rows, (int)columns};
    fprintf(page->body,
            "<figure aria-labelledby=\"caption-heads-%s\">\n"
            "<figcaption id=\"caption-heads-%s\">%s</figcaption>\n<div class=\"scroll\">",
            what, what, title);
    sr_heat_write_svg(page->body, &heat);
    fputs("</div>\n", page->body);
    const srnn_status status = put_map_table(page, &heat, what);
    fputs("</figure>\n", page->body);
    free(memory);
    return status;
}

srnn_status sr_orders_section_heads(sr_page *page, const json_t *record) {
    sr_page_section(page, "heads", "Layers and heads");
    SR_TRY(put_map(page, record, "max", "Largest logit"));
    SR_TRY(put_map(page, record, "min", "Least logit"));
    SR_TRY(put_map(page, record, "sd", "Standard deviation of the logits"));
    SR_TRY(put_map(page, record, "weighted", "Dominant order, weighted by attention"));
    return put_map(page, record, "outputs",
                   "Order needed to keep the head's outputs within the wider tolerance, expanded "
                   "about zero; empty: more than the highest tried");
}

static void add_curve(sr_chart *chart, const json_t *cuts, const json_t *values, const char *name,
                      int style) {
    sr_chart_series(chart, name, style);
    for (size_t i = 0; i < json_array_size(values); i++)
        add_point(chart, element(cuts, i), element(values, i));
}

static srnn_status put_truncated(sr_page *page, const json_t *record, const char *what,
                                 const char *title) {
    const json_t *cuts = json_object_get(record, "cuts");
    const json_t *all = sr_json_object_of(record, "all_layers");
    sr_chart *chart;
    char name[64];
    snprintf(name, sizeof name, "truncated-%s", strcmp(what, "loss") == 0 ? "loss" : "logits");
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "order", title);
    sr_chart_describe(chart,
                      "All layers truncated at once, and one layer at a time; no retraining.");
    add_curve(chart, cuts, json_object_get(sr_json_object_of(all, "truncated"), what), "all layers",
              0);
    int style = 1;
    for (size_t i = 0; i < sr_json_count_of(all, "centred"); i++) {
        const json_t *centred = sr_json_element_of(all, "centred", i);
        snprintf(name, sizeof name, "all layers about the %.40s",
                 sr_json_text_of(centred, "centre"));
        add_curve(chart, cuts, json_object_get(sr_json_object_of(centred, "truncated"), what), name,
                  style++);
    }
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++) {
        const json_t *layer = sr_json_element_of(record, "layers", i);
        snprintf(name, sizeof name, "layer %zu alone", i);
        add_curve(chart, cuts, json_object_get(sr_json_object_of(layer, "truncated"), what), name,
                  style++);
    }
    return sr_page_chart(page, chart);
}

static srnn_status put_centres(sr_page *page, const json_t *record, size_t layer) {
    const json_t *cuts = json_object_get(record, "cuts");
    const json_t *centres = json_object_get(record, "centres");
    const json_t *errors = sr_json_object_of(sr_json_element_of(record, "layers", layer), "errors");
    const json_t *outputs = json_object_get(errors, "outputs");
    sr_chart *chart;
    char name[64], title[96];
    snprintf(name, sizeof name, "centres-%zu", layer);
    snprintf(title, sizeof title, "What a centre saves in layer %zu", layer);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "order", "log10 of the relative error of outputs");
    sr_chart_describe(chart,
                      "exp expanded about zero, about a constant of the head, about the mean "
                      "of the row, and about its middle.");
    for (size_t centre = 0; centre < json_array_size(centres); centre++) {
        const char *word = json_string_value(json_array_get(centres, centre));
        const json_t *values = json_array_get(outputs, centre);
        sr_chart_series(chart, word ? word : "", (int)centre);
        for (size_t i = 0; i < json_array_size(values); i++)
            add_point(chart, element(cuts, i), log10(element(values, i)));
    }
    return sr_page_chart(page, chart);
}

static void put_texts(sr_page *page, const json_t *record) {
    for (size_t i = 0; i < sr_json_count_of(record, "texts"); i++) {
        const json_t *text = sr_json_element_of(record, "texts", i);
        const double order = sr_json_number_of(text, "order");
        if (order > 0)
            sr_page_paragraph(page, "Order %.0f: %s", order, sr_json_text_of(text, "text"));
        else
            sr_page_paragraph(page, "Untruncated: %s", sr_json_text_of(text, "text"));
    }
}

srnn_status sr_orders_section_truncation(sr_page *page, const json_t *record) {
    sr_page_section(page, "truncation", "What truncation does");
    sr_page_paragraph(page, "Untruncated the loss is %.4f nats per token.",
                      sr_json_number_of(sr_json_object_of(record, "data"), "trial_loss"));
    SR_TRY(put_truncated(page, record, "loss", "Loss"));
    SR_TRY(put_truncated(page, record, "logits_error", "Relative error of the final logits"));
    sr_page_paragraph(page,
                      "exp may be expanded about another number than zero, a centre: exp(x) = "
                      "exp(c) exp(x \u2212 c). Logits that lie near their centre need fewer "
                      "orders, and the factor exp(c) is kept next to the state.");
    for (size_t i = 0; i < sr_json_count_of(record, "layers"); i++)
        SR_TRY(put_centres(page, record, i));
    put_texts(page, record);
    return SRNN_OK;
}

/* One line per layer over the steps of a run. */
static srnn_status put_steps(sr_page *page, const json_t *record, const char *name,
                             const char *title, double (*value)(const json_t *layer)) {
    const size_t steps = sr_json_count_of(record, "checkpoints");
    const json_t *first = sr_json_object_of(sr_json_element_of(record, "checkpoints", 0), "orders");
    sr_chart *chart;
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "step", title);
    sr_chart_describe(chart, "One line per layer, one point per checkpoint.");
    for (size_t i = 0; i < sr_json_count_of(first, "layers"); i++) {
        char word[32];
        snprintf(word, sizeof word, "layer %zu", i);
        sr_chart_series(chart, word, (int)i);
        for (size_t step = 0; step < steps; step++) {
            const json_t *checkpoint = sr_json_element_of(record, "checkpoints", step);
            add_point(chart, sr_json_number_of(checkpoint, "step"),
                      value(sr_json_element_of(sr_json_object_of(checkpoint, "orders"), "layers",
                                               i)));
        }
    }
    return sr_page_chart(page, chart);
}

static double largest_logit(const json_t *layer) {
    double largest = NAN;
    for (size_t h = 0; h < sr_json_count_of(layer, "heads"); h++)
        largest = fmax(largest, of_head(sr_json_element_of(layer, "heads", h), "max"));
    return largest;
}

static double weighted_order(const json_t *layer) {
    return sr_json_number_of(sr_json_object_of(layer, "dominant"), "log_mean_weighted");
}

static double needed_order(const json_t *layer) {
    return element(json_array_get(json_object_get(sr_json_object_of(layer, "needed"), "outputs"),
                                  0),
                   0);
}

srnn_status sr_orders_section_steps(sr_page *page, const json_t *record) {
    sr_page_section(page, "steps", "Orders along training");
    if (sr_json_count_of(record, "checkpoints") < 2) {
        sr_page_paragraph(page, "The run has one checkpoint; what follows is about that.");
        return SRNN_OK;
    }
    SR_TRY(put_steps(page, record, "steps-needed", "Order needed for the outputs", needed_order));
    SR_TRY(put_steps(page, record, "steps-dominant", "Dominant order, weighted by attention",
                     weighted_order));
    return put_steps(page, record, "steps-logits", "Largest logit", largest_logit);
}
