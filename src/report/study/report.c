/* report.c: a study's records as one self-contained page. */
#include "report/study/report.h"

#include "files/json.h"
#include "report/draw/systems.h"
#include "report/study/sections.h"

static srnn_status put_sections(sr_page *page, const sr_records *records) {
    SR_TRY(sr_section_question(page, records));
    SR_TRY(sr_section_verdict(page, records));
    for (size_t i = 0; i < records->cell_count; i++)
        SR_TRY(sr_section_cell(page, records, i));
    SR_TRY(sr_section_lengths(page, records));
    SR_TRY(sr_section_variants(page, records));
    SR_TRY(sr_section_systems(page, records));
    SR_TRY(sr_section_orders(page, records));
    return sr_section_provenance(page, records);
}

static bool leaks_of(const sr_records *records) {
    bool leaks = false;
    for (size_t i = 0; i < records->variant_count; i++)
        leaks = leaks || sr_system_leaks(records->variants[i].attention);
    return leaks;
}

static const char *title_of(const sr_records *records) {
    const char *title = sr_json_text_of(records->plan, "title");
    return *title ? title : "A study of attention";
}

static srnn_status write_page(const sr_records *records, const char *folder, size_t *bytes) {
    sr_page page;
    SR_TRY(sr_page_open(&page, folder));
    srnn_status status = put_sections(&page, records);
    if (status == SRNN_OK)
        status = sr_page_write(&page, title_of(records), bytes);
    sr_page_free(&page);
    return status;
}

srnn_status sr_report_write(const char *study, const char *folder, size_t *bytes, bool *leaks) {
    sr_records records;
    SR_TRY(sr_records_read(&records, study));
    const srnn_status status = write_page(&records, folder, bytes);
    *leaks = leaks_of(&records);
    sr_records_free(&records);
    return status;
}
