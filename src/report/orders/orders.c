/* orders.c: the record of `softrnn orders` as one self-contained page. */
#include "report/orders/orders.h"

#include "files/json.h"
#include "report/orders/sections.h"

#include <stdio.h>
#include <string.h>

static bool is_run(const json_t *record) {
    return strcmp(sr_json_text_of(record, "format"), "softrnn-orders-run") == 0;
}

srnn_status sr_orders_read(json_t **record, const char *from) {
    const srnn_status status = sr_json_read(record, from, "orders.json", "softrnn-orders");
    if (status != SRNN_ERR_FORMAT)
        return status;
    return sr_json_read(record, from, "orders.json", "softrnn-orders-run");
}

const json_t *sr_orders_model_of(const json_t *record) {
    const size_t steps = sr_json_count_of(record, "checkpoints");
    if (!is_run(record))
        return record;
    return steps ? sr_json_object_of(sr_json_element_of(record, "checkpoints", steps - 1), "orders")
                 : NULL;
}

/* A run is shown as the model of its last checkpoint, with its steps after the verdict. */
static srnn_status put_sections(sr_page *page, const json_t *record) {
    const json_t *model = sr_orders_model_of(record);
    SR_TRY(sr_orders_section_verdict(page, model));
    if (is_run(record))
        SR_TRY(sr_orders_section_steps(page, record));
    SR_TRY(sr_orders_section_cost(page, model));
    SR_TRY(sr_orders_section_sizes(page, model));
    SR_TRY(sr_orders_section_heads(page, model));
    SR_TRY(sr_orders_section_truncation(page, model));
    return sr_orders_section_origin(page, record, model);
}

/* "Orders of exp in stories260K.bin" */
static void print_title(char *title, size_t size, const json_t *record) {
    const json_t *origin = sr_json_object_of(record, "origin");
    const char *path = sr_json_text_of(origin, is_run(record) ? "run" : "model");
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (end > begin && end - begin + 32 < size)
        snprintf(title, size, "Orders of exp in %.*s", (int)(end - begin), path + begin);
    else
        snprintf(title, size, "Which orders of exp a model uses");
}

static srnn_status write_page(const json_t *record, const char *folder, size_t *bytes) {
    sr_page page;
    char title[256];
    SR_TRY(sr_page_open(&page, folder));
    page.kicker = "softrnn orders";
    print_title(title, sizeof title, record);
    srnn_status status = put_sections(&page, record);
    if (status == SRNN_OK)
        status = sr_page_write(&page, title, bytes);
    sr_page_free(&page);
    return status;
}

srnn_status sr_report_write_orders(const char *from, const char *folder, size_t *bytes) {
    json_t *record;
    SR_TRY(sr_orders_read(&record, from));
    const srnn_status status = write_page(record, folder, bytes);
    json_decref(record);
    return status;
}
