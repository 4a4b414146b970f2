/* orders_study.c: the orders of a study's runs: a table, and a page for each. */
#include "files/json.h"
#include "files/memory_stream.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/orders/orders.h"
#include "report/study/sections.h"

#include <stdlib.h>
#include <string.h>

/* A run's folder, if it has a record of orders. */
static bool find(char path[SR_PATH_BYTES], const sr_records *records, size_t run) {
    const char *folder = sr_json_text_of(records->runs[run].plan, "folder");
    return sr_path_join(path, records->folder, folder) == SRNN_OK &&
           sr_path_has(path, "orders.json");
}

/* The answer to the first tolerance, without the question. */
static void add_answer(sr_table *table, const char *verdict) {
    const size_t length = strcspn(verdict, "\n");
    const char *mark = memchr(verdict, '?', length);
    const char *answer = mark ? mark + 1 + (mark[1] == ' ') : verdict;
    sr_table_cell(table, "%.*s", (int)(length - (size_t)(answer - verdict)), answer);
}

static void add_row(sr_table *table, const char *id, const json_t *model) {
    const json_t *needed =
        json_object_get(sr_json_object_of(sr_json_object_of(model, "all_layers"), "needed"),
                        "logits");
    const json_t *order = json_array_get(needed, 0);
    const json_t *data = sr_json_object_of(model, "data");
    sr_table_cell(table, "%s", id);
    const double loss = sr_json_number_of(data, "loss");
    sr_table_number(table, loss, sr_format_fixed(loss, 4).text);
    if (json_is_number(order))
        sr_table_cell(table, "%.0f", json_number_value(order));
    else
        sr_table_cell(table, "> %.0f", sr_json_number_of(model, "most_order"));
    add_answer(table, sr_json_text_of(model, "verdict"));
}

/* The run's page, next to the study's: orders/STEM/report.html. */
static srnn_status put_page(sr_page *page, FILE *links, const char *from, const char *id,
                            size_t number) {
    char stem[64], name[80], folder[SR_PATH_BYTES];
    size_t bytes;
    sr_format_stem(stem, sizeof stem, number, id);
    snprintf(name, sizeof name, "orders/%s", stem);
    SR_TRY(sr_path_join(folder, page->folder, name));
    SR_TRY(sr_page_make_folder(page->folder, "orders"));
    SR_TRY(sr_page_make_folder(page->folder, name));
    SR_TRY(sr_report_write_orders(from, folder, &bytes));
    fprintf(links, "<li><a href=\"%s/report.html\">Orders of ", name);
    sr_escape_html(links, id);
    fputs("</a></li>\n", links);
    return SRNN_OK;
}

static srnn_status put_run(sr_page *page, sr_table *table, FILE *links, const sr_records *records,
                           size_t run) {
    const char *id = sr_json_text_of(records->runs[run].plan, "id");
    char from[SR_PATH_BYTES];
    json_t *record;
    if (!find(from, records, run))
        return SRNN_OK;
    SR_TRY(sr_orders_read(&record, from));
    add_row(table, id, sr_orders_model_of(record));
    json_decref(record);
    return put_page(page, links, from, id, run);
}

static srnn_status put_runs(sr_page *page, FILE *links, const sr_records *records) {
    sr_table *table;
    srnn_status status = SRNN_OK;
    SR_TRY(sr_table_create(&table, "orders", "Runs whose orders were measured"));
    sr_table_column(table, "run");
    sr_table_number_column(table, "loss");
    sr_table_number_column(table, "order needed about zero");
    sr_table_column(table, "a finite state?");
    for (size_t i = 0; i < records->run_count && status == SRNN_OK; i++)
        status = put_run(page, table, links, records, i);
    if (status != SRNN_OK) {
        sr_table_free(table);
        return status;
    }
    return sr_page_table(page, table);
}

srnn_status sr_section_orders(sr_page *page, const sr_records *records) {
    char path[SR_PATH_BYTES], *text = NULL;
    size_t bytes, found = 0;
    for (size_t i = 0; i < records->run_count; i++)
        found += find(path, records, i);
    if (found == 0)
        return SRNN_OK;
    FILE *links = sr_memory_stream(&text, &bytes);
    if (!links)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    sr_page_section(page, "orders", "Which orders of exp the runs use");
    srnn_status status = put_runs(page, links, records);
    if (fclose(links) != 0 && status == SRNN_OK)
        status = SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    if (status == SRNN_OK)
        fprintf(page->body, "<ul>\n%s</ul>\n", text);
    free(text);
    return status;
}
