/* orders.c: the record of `softrnn orders` as one self-contained page. */
#include "report/orders.h"

#include "report/json_read.h"
#include "report/orders_sections.h"

#include <string.h>

static srnn_status put_model(sr_page *page, const json_t *record) {
    SR_TRY(sr_orders_section_bill(page, record));
    SR_TRY(sr_orders_section_sizes(page, record));
    SR_TRY(sr_orders_section_heads(page, record));
    return sr_orders_section_truncation(page, record);
}

/* The steps of a run first, then its last checkpoint as a model. */
static srnn_status put_run(sr_page *page, const json_t *record) {
    const size_t steps = sr_json_count_of(record, "checkpoints");
    SR_TRY(sr_orders_section_steps(page, record));
    const json_t *last = sr_json_element_of(record, "checkpoints", steps - 1);
    return steps > 0 ? put_model(page, sr_json_object_of(last, "orders")) : SRNN_OK;
}

static srnn_status write_page(const json_t *record, bool run, const char *folder, size_t *bytes) {
    sr_page page;
    SR_TRY(sr_page_open(&page, folder));
    srnn_status status = run ? put_run(&page, record) : put_model(&page, record);
    if (status == SRNN_OK)
        status = sr_page_write(&page, "Which orders of exp a model uses", bytes);
    sr_page_free(&page);
    return status;
}

srnn_status sr_report_write_orders(const char *from, const char *folder, size_t *bytes) {
    json_t *record;
    bool run = false;
    srnn_status status = sr_json_read(&record, from, "orders.json", "softrnn-orders");
    if (status == SRNN_ERR_FORMAT) {
        status = sr_json_read(&record, from, "orders.json", "softrnn-orders-run");
        run = true;
    }
    SR_TRY(status);
    status = write_page(record, run, folder, bytes);
    json_decref(record);
    return status;
}
