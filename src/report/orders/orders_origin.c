/* orders_origin.c: what a record of orders was measured on, and how to repeat it. */
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/orders/orders_sections.h"
#include "report/records/json_read.h"

#include <math.h>
#include <string.h>

void sr_orders_put_subject(sr_page *page, const json_t *record) {
    const json_t *model = sr_json_object_of(record, "model");
    const json_t *data = sr_json_object_of(record, "data");
    const double apart = sr_json_number_of(data, "centre_tokens");
    sr_page_paragraph(
        page,
        "Measured on %s tokens in rows of %s, loss %s nats a token; truncated models were run on "
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

static void add_text(sr_table *table, const char *what, const json_t *object, const char *key) {
    const char *text = sr_json_text_of(object, key);
    if (!*text)
        return;
    sr_table_cell(table, "%s", what);
    sr_table_cell(table, "%s", text);
}

/* The attention of each layer; those alike once. */
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
    const json_t *origin = sr_json_object_of(record, "origin");
    const json_t *machine = sr_json_object_of(origin, "machine");
    const char *command = sr_json_text_of(origin, "command");
    sr_table *table;
    sr_page_section(page, "provenance", "Where this comes from");
    if (*command) {
        fputs("<p>To repeat it:</p>\n<pre class=\"command\" tabindex=\"0\"><code>", page->body);
        sr_escape_html(page->body, command);
        fputs("</code></pre>\n", page->body);
    }
    SR_TRY(sr_table_create(&table, "origin", "What was measured, where and with what"));
    sr_table_column(table, "what");
    sr_table_column(table, "value");
    add_text(table, "model", origin, "model");
    add_text(table, "run", origin, "run");
    add_text(table, "data", origin, "data");
    add_text(table, "tokenizer", origin, "tokenizer");
    add_attention(table, sr_json_object_of(model, "model"));
    add_text(table, "softrnn", origin, "softrnn");
    add_text(table, "revision", origin, "revision");
    add_text(table, "processor", machine, "processor");
    add_text(table, "machine", machine, "machine");
    add_text(table, "system", machine, "system");
    sr_table_cell(table, "processors");
    sr_table_cell(table, "%s", sr_format_count(sr_json_number_of(machine, "processors")).text);
    sr_table_cell(table, "memory");
    sr_table_cell(table, "%s", sr_format_bytes(sr_json_number_of(machine, "memory_bytes")).text);
    return sr_page_table(page, table);
}
