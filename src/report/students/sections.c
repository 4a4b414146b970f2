/* sections.c: figures and tables of a study of students. */
#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/students/students.h"

#include <math.h>
#include <string.h>

/* ---- the question */

/* As given in the study's file, with a space after each comma. */
static void write_stages(FILE *out, const json_t *settings) {
    const char *stages = sr_json_text_of(settings, "stages");
    for (const char *c = *stages ? stages : "align,distil"; *c; c++) {
        const char one[] = {*c, '\0'};
        sr_escape_html(out, one);
        fputs(*c == ',' && c[1] != ' ' ? " " : "", out);
    }
}

srnn_status sr_students_question(sr_page *page, const sr_records *records) {
    const json_t *teacher = sr_json_object_of(records->plan, "teacher");
    const json_t *stages = sr_json_object_of(teacher, "students");
    FILE *out = page->body;
    sr_page_section(page, "question", "The question");
    fputs("<p>Softmax attention keeps the keys and values of every earlier token. Another "
          "attention keeps a state of fixed size, or a window. A <em>student</em> is a trained "
          "model, the <em>teacher</em>, with such an attention in its layers: it starts with the "
          "teacher\u2019s weights, and learns what the teacher does. How much of what the "
          "replacement loses comes back, for how many bytes?</p>\n"
          "<p>",
          out);
    if (json_is_string(json_object_get(teacher, "model"))) {
        fputs("The teacher is ", out);
        sr_escape_html(out, sr_json_text_of(teacher, "model"));
        fputs(". ", out);
    } else {
        fputs("The study trained its teacher, one for all seeds: intervals say how students "
              "scatter, not teachers. ",
              out);
    }
    fputs("Stages: ", out);
    write_stages(out, stages);
    fputs(". <em>Align</em> brings each replaced layer alone towards what the teacher\u2019s layer "
          "adds, <em>distil</em> the logits towards the teacher\u2019s, <em>tune</em> the student "
          "towards the text. Of the loss L, in nats per token on rows that were not trained on, "
          "(L<sub>swap</sub> \u2212 L<sub>student</sub>) / (L<sub>swap</sub> \u2212 "
          "L<sub>teacher</sub>) is the share that is recovered; L<sub>swap</sub> is that of the "
          "student before any training.</p>\n",
          out);
    return SRNN_OK;
}

/* ---- the loss that is recovered */

static void quantity_cell(sr_table *table, const sr_quantity *q) {
    sr_table_number(table, q->mean,
                    isfinite(q->mean) ? sr_format_interval(q->mean, q->low, q->high).text
                                      : "\u2013");
}

static void percent_cell(sr_table *table, const sr_quantity *q) {
    char text[120] = "\u2013";
    if (isfinite(q->mean) && isfinite(q->low))
        snprintf(text, sizeof text, "%.1f\u202f%% [%.1f, %.1f]", 100 * q->mean, 100 * q->low,
                 100 * q->high);
    else if (isfinite(q->mean))
        snprintf(text, sizeof text, "%.1f\u202f%% (no interval)", 100 * q->mean);
    sr_table_number(table, q->mean, text);
}

static void add_row(sr_table *table, const sr_student *s) {
    char bytes[160];
    snprintf(bytes, sizeof bytes, "%s, %.0f\u202f%%", sr_format_bytes(s->state_bytes).text,
             100 * s->state_bytes / s->cache_bytes);
    sr_table_cell(table, "%s", s->name);
    sr_table_number(table, s->state_bytes, isfinite(s->state_bytes) ? bytes : "\u2013");
    sr_table_number(table, s->swap_loss.mean, sr_format_fixed(s->swap_loss.mean, 3).text);
    sr_table_number(table, s->student_loss.mean, sr_format_fixed(s->student_loss.mean, 3).text);
    quantity_cell(table, &s->above_teacher);
    percent_cell(table, &s->recovered);
    sr_table_number(table, s->kl.mean, sr_format_fixed(s->kl.mean, 4).text);
    sr_table_number(table, s->swap_accuracy.mean, sr_format_fixed(s->swap_accuracy.mean, 3).text);
    sr_table_number(table, s->accuracy.mean, sr_format_fixed(s->accuracy.mean, 3).text);
}

static const sr_student *first_finished(const sr_student_task *task) {
    for (size_t i = 0; i < task->count; i++)
        if (isfinite(task->students[i].teacher_loss.mean))
            return &task->students[i];
    return NULL;
}

/* The teacher, for comparison. */
static void add_teacher(sr_table *table, const sr_student *s) {
    sr_table_cell(table, "the teacher");
    sr_table_number(table, s->cache_bytes, sr_format_bytes(s->cache_bytes).text);
    sr_table_number(table, NAN, "\u2013");
    sr_table_number(table, s->teacher_loss.mean, sr_format_fixed(s->teacher_loss.mean, 3).text);
    for (int i = 0; i < 4; i++)
        sr_table_number(table, NAN, "\u2013");
    sr_table_number(table, s->teacher_accuracy.mean,
                    sr_format_fixed(s->teacher_accuracy.mean, 3).text);
}

static srnn_status put_table(sr_page *page, const sr_student_task *task, const char *stem) {
    static const char *const numbers[] = {
        "bytes", "copied",          "loss",    "above the teacher", "recovered",
        "KL",    "accuracy copied", "accuracy"};
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-students", stem);
    SR_TRY(sr_table_create(&table, name,
                           "What each student recovers: bytes of one sequence, and as a share of "
                           "the teacher\u2019s cache; loss and accuracy as copied and at the "
                           "end; means over seeds with 95 % intervals"));
    sr_table_column(table, "student");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    if (first_finished(task))
        add_teacher(table, first_finished(task));
    for (size_t g = 0; g < task->group_count; g++)
        for (size_t i = 0; i < task->groups[g].count; i++)
            add_row(table, task->groups[g].ranked[i]);
    return sr_page_table(page, table);
}

static void add_curve(sr_chart *chart, const sr_student *s) {
    sr_chart_series(chart, s->system, s->style);
    sr_chart_point(chart, 0, 0, 0, 0);
    for (size_t i = 0; i < sr_json_count_of(s->object, "curve"); i++) {
        const json_t *point = sr_json_element_of(s->object, "curve", i);
        const double mean = 100 * sr_json_number_of(point, "mean");
        const double low = 100 * sr_json_number_of(point, "low");
        const double high = 100 * sr_json_number_of(point, "high");
        sr_chart_point(chart, sr_json_number_of(point, "tokens"), mean, isfinite(low) ? low : mean,
                       isfinite(high) ? high : mean);
    }
}

static srnn_status put_curves(sr_page *page, const sr_student_group *group, const char *stem,
                              size_t number) {
    char name[80], title[200];
    sr_chart *chart;
    snprintf(name, sizeof name, "%s-recovered-%zu", stem, number);
    snprintf(title, sizeof title, "Loss recovered against tokens: %.120s", group->budget);
    SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
    sr_chart_axes(chart, "tokens learned from, all stages", "loss recovered, %");
    sr_chart_describe(chart, "One line per student, the mean over its seeds with its 95 %% "
                             "interval. 0 is the student as copied, 100 the teacher. Students that "
                             "lose less than 0.01 nats as copied have no line.");
    for (size_t i = 0; i < group->count; i++)
        if (isfinite(group->ranked[i]->recovered.mean))
            add_curve(chart, group->ranked[i]);
    return sr_page_chart(page, chart);
}

srnn_status sr_students_recovered(sr_page *page, const sr_student_task *task, const char *stem) {
    SR_TRY(put_table(page, task, stem));
    for (size_t g = 0; g < task->group_count; g++)
        SR_TRY(put_curves(page, &task->groups[g], stem, g));
    return SRNN_OK;
}

/* ---- bytes against loss */

srnn_status sr_students_memory(sr_page *page, const sr_student_task *task, const char *stem) {
    char name[64];
    sr_chart *chart;
    const sr_student *any = first_finished(task);
    snprintf(name, sizeof name, "%s-memory", stem);
    SR_TRY(sr_chart_create(&chart, SR_CHART_POINTS, name, "Loss above the teacher against bytes"));
    chart->x_log = true;
    sr_chart_axes(chart, "bytes of states and caches of one sequence",
                  "loss above the teacher, nats");
    sr_chart_describe(chart, "One mark a student; the table above has the intervals. Caches of the "
                             "layers that keep the teacher\u2019s attention are counted, at the "
                             "length of the rows. A state keeps its size in longer texts, a cache "
                             "grows.");
    if (any) {
        sr_chart_series(chart, "the teacher", 0);
        sr_chart_point(chart, any->cache_bytes, 0, 0, 0);
    }
    for (size_t i = 0; i < task->count; i++) {
        const sr_student *s = &task->students[i];
        const sr_quantity *q = &s->above_teacher;
        if (!isfinite(q->mean))
            continue;
        sr_chart_series(chart, s->name, (int)i + 1);
        sr_chart_point(chart, s->state_bytes, q->mean, isfinite(q->low) ? q->low : q->mean,
                       isfinite(q->high) ? q->high : q->mean);
    }
    return sr_page_chart(page, chart);
}

/* ---- positions */

static void add_positions(sr_chart *chart, const sr_student *s) {
    sr_chart_series(chart, s->system, s->style);
    for (size_t i = 0; i < sr_json_count_of(s->object, "positions"); i++) {
        const json_t *p = sr_json_element_of(s->object, "positions", i);
        const double from = sr_json_number_of(p, "from"), to = sr_json_number_of(p, "to");
        const json_t *above = sr_json_object_of(p, "above_teacher");
        const double mean = sr_json_number_of(above, "mean");
        const double low = sr_json_number_of(above, "low"), high = sr_json_number_of(above, "high");
        sr_chart_point(chart, (from + to - 1) / 2 + 1, mean, isfinite(low) ? low : mean,
                       isfinite(high) ? high : mean);
    }
}

srnn_status sr_students_positions(sr_page *page, const sr_student_task *task, const char *stem) {
    for (size_t g = 0; g < task->group_count; g++) {
        const sr_student_group *group = &task->groups[g];
        char name[80], title[200];
        sr_chart *chart;
        snprintf(name, sizeof name, "%s-positions-%zu", stem, g);
        snprintf(title, sizeof title, "Loss above the teacher by position: %.120s", group->budget);
        SR_TRY(sr_chart_create(&chart, SR_CHART_LINES, name, title));
        chart->x_log = true;
        chart->has_reference = true;
        sr_chart_axes(chart, "tokens seen, the token itself included",
                      "loss above the teacher, nats");
        sr_chart_describe(chart,
                          "Means over seeds with 95 %% intervals. A student whose line rises "
                          "loses what is far back; one whose line is flat loses as much "
                          "everywhere.");
        for (size_t i = 0; i < group->count; i++)
            add_positions(chart, group->ranked[i]);
        SR_TRY(sr_page_chart(page, chart));
    }
    return SRNN_OK;
}

/* ---- layers */

srnn_status sr_students_layers(sr_page *page, const sr_student_task *task, const char *stem) {
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-layers", stem);
    SR_TRY(sr_table_create(&table, name,
                           "KL to the teacher, nats, with each layer alone replaced in the "
                           "teacher; means over seeds"));
    sr_table_column(table, "student");
    sr_table_number_column(table, "layer");
    sr_table_number_column(table, "KL as copied");
    sr_table_number_column(table, "KL aligned");
    for (size_t i = 0; i < task->count; i++)
        for (size_t k = 0; k < sr_json_count_of(task->students[i].object, "layers"); k++) {
            const json_t *layer = sr_json_element_of(task->students[i].object, "layers", k);
            const double number = sr_json_number_of(layer, "layer");
            const double copied = sr_json_number_of(layer, "copied_kl");
            const double aligned = sr_json_number_of(layer, "aligned_kl");
            sr_table_cell(table, "%s", task->students[i].name);
            sr_table_number(table, number, sr_format_fixed(number, 0).text);
            sr_table_number(table, copied, sr_format_fixed(copied, 4).text);
            sr_table_number(table, aligned, sr_format_fixed(aligned, 4).text);
        }
    if (sr_table_rows(table) > 0)
        return sr_page_table(page, table);
    sr_table_free(table);
    return SRNN_OK;
}

/* ---- controls */

srnn_status sr_students_controls(sr_page *page, const sr_student_task *task, const char *stem) {
    static const char *const numbers[] = {"from scratch, minus the student",
                                          "student, minus the teacher trained again",
                                          "state zeroed, minus the student",
                                          "window alone, minus the student"};
    char name[64];
    sr_table *table;
    snprintf(name, sizeof name, "%s-controls", stem);
    SR_TRY(sr_table_create(&table, name,
                           "Controls: differences of losses, nats, on runs with the same seed, "
                           "with 95 % intervals"));
    sr_table_column(table, "student");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sr_table_number_column(table, numbers[i]);
    for (size_t i = 0; i < task->count; i++) {
        const sr_student *s = &task->students[i];
        sr_table_cell(table, "%s", s->name);
        quantity_cell(table, &s->from_scratch);
        quantity_cell(table, &s->teacher_again);
        quantity_cell(table, &s->zeroed);
        quantity_cell(table, &s->window);
    }
    return sr_page_table(page, table);
}
