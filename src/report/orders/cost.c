/* cost.c: the verdict about a finite state, and the costs it is based on. */
#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/orders/sections.h"

#include <math.h>
#include <string.h>

/* Integers up to a readable size, powers of ten beyond. */
static void add_count(sr_table *table, double count) {
    char words[32];
    snprintf(words, sizeof words, "%.3g", count);
    const bool long_number = isfinite(count) && fabs(count) >= 1e7;
    sr_table_number(table, count, long_number ? words : sr_format_count(count).text);
}

static void add_bytes(sr_table *table, double bytes) {
    sr_table_number(table, bytes, sr_format_bytes(bytes).text);
}

static void add_costs(sr_table *table, const json_t *row) {
    add_bytes(table, sr_json_number_of(row, "state_bytes"));
    add_bytes(table, sr_json_number_of(row, "cache_bytes_per_token"));
    add_count(table, sr_json_number_of(row, "memory_break_even_tokens"));
    add_count(table, sr_json_number_of(row, "state_multiply_adds"));
    add_count(table, sr_json_number_of(row, "arithmetic_break_even_tokens"));
}

/* Layers `first` to `last`, which have the same cost. */
static void add_layers(sr_table *table, const json_t *record, const json_t *first,
                       const json_t *last) {
    const double order = sr_json_number_of(first, "order");
    if (first == last)
        sr_table_cell(table, "%.0f", sr_json_number_of(first, "layer"));
    else
        sr_table_cell(table, "%.0f to %.0f, each", sr_json_number_of(first, "layer"),
                      sr_json_number_of(last, "layer"));
    if (isfinite(order))
        sr_table_cell(table, "%.0f", order);
    else
        sr_table_cell(table, "> %.0f", sr_json_number_of(record, "most_order"));
    sr_table_cell(table, "%s", sr_json_text_of(first, "centre"));
    add_costs(table, first);
}

static bool same_cut(const json_t *one, const json_t *other) {
    static const char *const keys[] = {"order", "centre", "state_bytes"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *left = json_object_get(one, keys[i]);
        const json_t *right = json_object_get(other, keys[i]);
        if (left != right && !json_equal(left, right))
            return false;
    }
    return other != NULL;
}

static void add_all_layers(sr_table *table, const json_t *record, const json_t *cost) {
    for (size_t i = 0; i < sr_json_count_of(cost, "layers"); i++) {
        const json_t *first = sr_json_element_of(cost, "layers", i), *last = first;
        while (same_cut(first, sr_json_element_of(cost, "layers", i + 1)))
            last = sr_json_element_of(cost, "layers", ++i);
        add_layers(table, record, first, last);
    }
}

static double tolerance_of(const json_t *record, const json_t *cost) {
    const double index = sr_json_number_of(cost, "tolerance");
    const json_t *value = json_array_get(json_object_get(record, "tolerances"),
                                         index >= 0 && index < 1e6 ? (size_t)index : 0);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* The result of running the model with all layers truncated at once. */
static void put_together(sr_page *page, const json_t *record, const json_t *cost) {
    const json_t *together = sr_json_object_of(cost, "together");
    const double whole = sr_json_number_of(sr_json_object_of(record, "data"), "trial_loss");
    if (together)
        sr_page_paragraph(page,
                          "Run with all layers so, the final logits are off by %s, and the loss "
                          "is %s (untruncated %s).",
                          sr_format_fixed(sr_json_number_of(together, "logits_error"), 5).text,
                          sr_format_fixed(sr_json_number_of(together, "loss"), 4).text,
                          sr_format_fixed(whole, 4).text);
    else
        sr_page_paragraph(page, "Not run as a whole: some layer needs more than was tried.");
}

static srnn_status put_table(sr_page *page, const json_t *record, const json_t *cost,
                             size_t number) {
    static const char *const costs[] = {"state", "cache / token", "smaller beyond", "work / token",
                                        "less beyond"};
    const json_t *total = sr_json_object_of(cost, "total");
    sr_table *table;
    char name[64], caption[256];
    snprintf(name, sizeof name, "cost-%zu", number);
    snprintf(caption, sizeof caption, "Within %g. %.160s", tolerance_of(record, cost),
             sr_json_text_of(cost, "title"));
    SR_TRY(sr_table_create(&table, name, caption));
    sr_table_column(table, "layer");
    sr_table_number_column(table, "order");
    sr_table_column(table, "centre");
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        sr_table_number_column(table, costs[i]);
    add_all_layers(table, record, cost);
    if (total) {
        sr_table_cell(table, "all");
        sr_table_cell(table, "%s", "");
        sr_table_cell(table, "%s", "");
        add_costs(table, total);
    }
    SR_TRY(sr_page_table(page, table));
    put_together(page, record, cost);
    return SRNN_OK;
}

/* True if an order that was tried suffices for some layer. */
static bool has_order(const json_t *cost) {
    for (size_t i = 0; i < sr_json_count_of(cost, "layers"); i++)
        if (isfinite(sr_json_number_of(sr_json_element_of(cost, "layers", i), "order")))
            return true;
    return false;
}

static bool has_any_order(const json_t *record) {
    for (size_t i = 0; i < sr_json_count_of(record, "costs"); i++)
        if (has_order(sr_json_element_of(record, "costs", i)))
            return true;
    return false;
}

/* The costs of one criterion: the first tolerance shown, the others folded. */
static srnn_status put_criterion(sr_page *page, const json_t *record, const json_t *first) {
    fputs("<h3>", page->body);
    sr_escape_html(page->body, sr_json_text_of(first, "title"));
    fputs("</h3>\n", page->body);
    for (size_t i = 0; i < sr_json_count_of(record, "costs"); i++) {
        const json_t *cost = sr_json_element_of(record, "costs", i);
        if (strcmp(sr_json_text_of(cost, "criterion"), sr_json_text_of(first, "criterion")) != 0)
            continue;
        if (cost != first)
            fprintf(page->body, "<details><summary>Within %g</summary>\n",
                    tolerance_of(record, cost));
        if (has_order(cost))
            SR_TRY(put_table(page, record, cost, i));
        else
            sr_page_paragraph(page, "Within %g every layer needs more than order %.0f.",
                              tolerance_of(record, cost), sr_json_number_of(record, "most_order"));
        if (cost != first)
            fputs("</details>\n", page->body);
    }
    return SRNN_OK;
}

/* One paragraph per line: answers shown, their derivation folded. */
static void put_lines(sr_page *page, const char *verdict, bool answers) {
    while (*verdict) {
        const size_t length = strcspn(verdict, "\n");
        if ((strncmp(verdict, "Could ", 6) == 0) == answers)
            sr_page_paragraph(page, "%.*s", (int)length, verdict);
        verdict += length + (verdict[length] == '\n');
    }
}

srnn_status sr_orders_section_verdict(sr_page *page, const json_t *record) {
    const char *verdict = sr_json_text_of(record, "verdict");
    sr_page_section(page, "verdict", "Could this model run with a finite state?");
    fputs("<div class=\"finding\">\n", page->body);
    put_lines(page, verdict, true);
    fputs("<details><summary>Which orders that takes</summary>\n", page->body);
    put_lines(page, verdict, false);
    fputs("</details>\n</div>\n", page->body);
    sr_orders_put_subject(page, record);
    return SRNN_OK;
}

srnn_status sr_orders_section_cost(sr_page *page, const json_t *record) {
    sr_page_section(page, "costs", "The cost");
    sr_page_paragraph(page,
                      "A state of the needed order against a cache of keys and values, both "
                      "in float, for one sequence: bytes, in units of 1024, and the context, in "
                      "tokens, beyond which the state is smaller; multiplications with their "
                      "additions a token, and the context beyond which the state is less "
                      "work. The centre is the number about which exp is expanded: zero, a "
                      "constant of the head, or the mean or middle of each row of logits.");
    if (!has_any_order(record)) {
        sr_page_paragraph(page,
                          "There is nothing to pay for: by every measure and tolerance, every "
                          "layer needs more than order %.0f, the highest that was tried.",
                          sr_json_number_of(record, "most_order"));
        return SRNN_OK;
    }
    for (size_t i = 0; i < sr_json_count_of(record, "costs"); i++) {
        const json_t *cost = sr_json_element_of(record, "costs", i);
        if (sr_json_number_of(cost, "tolerance") == 0)
            SR_TRY(put_criterion(page, record, cost));
    }
    return SRNN_OK;
}
