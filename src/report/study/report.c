/* report.c: a study's records as one self-contained page. */
#include "report/study/report.h"

#include "files/json.h"
#include "report/draw/format.h"
#include "report/draw/systems.h"
#include "report/students/students.h"
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

/* The figures of one task, and its sentences before them. */
static srnn_status put_students(sr_page *page, const sr_records *records,
                                const sr_student_task *task, size_t index) {
    char stem[64];
    sr_format_stem(stem, sizeof stem, index + 1, task->task);
    sr_page_section(page, stem, task->title);
    fputs("<h3>What comes back</h3>\n", page->body);
    SR_TRY(sr_students_recovered(page, task, stem));
    fputs("<h3>What the bytes buy</h3>\n", page->body);
    SR_TRY(sr_students_memory(page, task, stem));
    fputs("<h3>Where in the text it is lost</h3>\n", page->body);
    SR_TRY(sr_students_positions(page, task, stem));
    fputs("<h3>The controls in numbers</h3>\n", page->body);
    SR_TRY(sr_students_controls(page, task, stem));
    fputs("<h3>Layer by layer</h3>\n", page->body);
    SR_TRY(sr_students_layers(page, task, stem));
    return sr_students_ranking(page, records, task, stem);
}

/* What differs from a study of variants: its question, its verdict, and its figures. */
static srnn_status put_student_sections(sr_page *page, const sr_records *records) {
    SR_TRY(sr_students_question(page, records));
    sr_page_section(page, "verdict", "The verdict");
    for (size_t i = 0; i < sr_student_task_count(records); i++) {
        sr_student_task task;
        srnn_status status = sr_student_task_read(&task, records, i);
        if (status == SRNN_OK)
            sr_students_verdict(page->body, &task);
        sr_student_task_free(&task);
        SR_TRY(status);
    }
    sr_warnings_write(page->body, records);
    for (size_t i = 0; i < sr_student_task_count(records); i++) {
        sr_student_task task;
        srnn_status status = sr_student_task_read(&task, records, i);
        if (status == SRNN_OK)
            status = put_students(page, records, &task, i);
        sr_student_task_free(&task);
        SR_TRY(status);
    }
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
    srnn_status status =
        (sr_records_have_students(records) ? put_student_sections : put_sections)(&page, records);
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
