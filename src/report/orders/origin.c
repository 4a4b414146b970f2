/* origin.c: provenance of a record of orders, and how to reproduce it. */
#include "report/page/origin.h"
#include "files/json.h"
#include "report/draw/format.h"
#include "report/orders/sections.h"

#include <math.h>

void sr_orders_put_subject(sr_page *page, const json_t *record) {
    const json_t *model = sr_json_object_of(record, "model");
    const json_t *data = sr_json_object_of(record, "data");
    const double apart = sr_json_number_of(data, "centre_tokens");
    sr_page_paragraph(
        page,
        "Measured on %s tokens in rows of %s, loss %s nats per token; truncated models were run on "
        "the first %s of them. The model has %s layers of %s heads, %s wide, and reads at most %s "
        "tokens.",
        sr_format_count(sr_json_number_of(data, "tokens")).text,
        sr_format_count(sr_json_number_of(data, "row_length")).text,
        sr_format_fixed(sr_json_number_of(data, "loss"), 4).text,
        sr_format_count(sr_json_number_of(data, "trial_tokens")).text,
        sr_format_count(sr_json_number_of(model, "layers")).text,
        sr_format_count(sr_json_number_of(model, "heads")).text,
        sr_format_count(sr_json_number_of(model, "head_size")).text,
        sr_format_count(sr_json_number_of(model, "positions")).text);
    if (apart > 0)
        sr_page_paragraph(page, "The heads\u2019 centres come from the other %s tokens.",
                          sr_format_count(apart).text);
    else
        sr_page_paragraph(page, "The heads\u2019 centres come from the tokens they are judged on: "
                                "on others they may need more.");
}

/* The attention of each layer; identical ones once. */
static void add_attention(sr_table *table, const json_t *model) {
    const json_t *list = json_object_get(model, "attention");
    for (size_t i = 0, first = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (json_equal(json_array_get(list, i), json_array_get(list, i + 1)))
            continue;
        if (first == i)
            sr_table_cell(table, "attention of layer %zu", i);
        else
            sr_table_cell(table, "attention of layers %zu to %zu", first, i);
        sr_table_cell(table, "%s", text ? text : "");
        first = i + 1;
    }
}

srnn_status sr_orders_section_origin(sr_page *page, const json_t *record, const json_t *model) {
    static const char *const subjects[] = {"model", "run", "data", "tokenizer"};
    const json_t *origin = sr_json_object_of(record, "origin");
    sr_table *table;
    sr_origin_section(page, origin);
    SR_TRY(sr_table_create(&table, "origin", "What was measured, where and with what"));
    sr_table_column(table, "what");
    sr_table_column(table, "value");
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
        sr_origin_text(table, subjects[i], sr_json_text_of(origin, subjects[i]));
    add_attention(table, sr_json_object_of(model, "model"));
    sr_origin_machine(table, origin);
    return sr_page_table(page, table);
}
