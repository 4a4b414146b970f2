/* orders_bill.c: the verdict about a finite state, and the bill behind it. */
#include "report/format.h"
#include "report/json_read.h"
#include "report/orders_sections.h"

#include <math.h>
#include <string.h>

static void add_row(sr_table *table, const json_t *bill, const json_t *record, const char *layer,
                    const json_t *row) {
    const double tolerance =
        json_number_value(json_array_get(json_object_get(record, "tolerances"),
                                         (size_t)fmax(0, sr_json_number_of(bill, "tolerance"))));
    sr_table_cell(table, "%s", sr_json_text_of(bill, "criterion"));
    sr_table_cell(table, "%g", tolerance);
    sr_table_cell(table, "%s", layer);
    const double order = sr_json_number_of(row, "order");
    if (isfinite(order))
        sr_table_cell(table, "%.0f", order);
    else if (json_object_get(row, "state_bytes"))
        sr_table_cell(table, "%s", "");
    else
        sr_table_cell(table, "more than %.0f", sr_json_number_of(record, "most_order"));
    sr_table_cell(table, "%s", sr_json_text_of(row, "centre"));
    sr_table_cell(table, "%s", sr_format_bytes(sr_json_number_of(row, "state_bytes")).text);
    sr_table_cell(table, "%s",
                  sr_format_bytes(sr_json_number_of(row, "cache_bytes_per_token")).text);
    static const char *const counts[] = {"memory_break_even_tokens", "state_multiply_adds",
                                         "arithmetic_break_even_tokens"};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        sr_table_cell(table, "%s", sr_format_count(sr_json_number_of(row, counts[i])).text);
}

static srnn_status put_bill(sr_page *page, const json_t *record) {
    static const char *const costs[] = {"state", "cache a token", "state smaller beyond tokens",
                                        "multiply-adds a token", "less work beyond tokens"};
    sr_table *table;
    SR_TRY(sr_table_create(&table, "bill",
                           "A state of the needed order against a cache of keys and values, both "
                           "in float, per sequence"));
    sr_table_column(table, "what stays within");
    sr_table_number_column(table, "tolerance");
    sr_table_column(table, "layer");
    sr_table_number_column(table, "order");
    sr_table_column(table, "centre");
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        sr_table_number_column(table, costs[i]);
    for (size_t b = 0; b < sr_json_count_of(record, "bill"); b++) {
        const json_t *bill = sr_json_element_of(record, "bill", b);
        for (size_t i = 0; i < sr_json_count_of(bill, "layers"); i++) {
            const json_t *row = sr_json_element_of(bill, "layers", i);
            char layer[32];
            snprintf(layer, sizeof layer, "%.0f", sr_json_number_of(row, "layer"));
            add_row(table, bill, record, layer, row);
        }
        if (json_is_object(json_object_get(bill, "total")))
            add_row(table, bill, record, "all", json_object_get(bill, "total"));
    }
    return sr_page_table(page, table);
}

/* One paragraph a line. */
static void put_verdict(sr_page *page, const char *verdict) {
    while (*verdict) {
        const size_t length = strcspn(verdict, "\n");
        sr_page_paragraph(page, "%.*s", (int)length, verdict);
        verdict += length + (verdict[length] == '\n');
    }
}

srnn_status sr_orders_section_bill(sr_page *page, const json_t *record) {
    sr_page_section(page, "verdict", "Could this model run with a finite state?");
    put_verdict(page, sr_json_text_of(record, "verdict"));
    return put_bill(page, record);
}
