/* systems.c: a page for each related system in a study: its equation, how it follows from softmax,
 * its cost. */
#include "report/draw/systems.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"
#include "report/study/sections.h"

#include <math.h>
#include <string.h>

static const sr_system *system_of(const sr_variant_record *variant) {
    return sr_system_of(variant->attention);
}

bool sr_study_has_systems(const sr_records *records) {
    for (size_t i = 0; i < records->variant_count; i++) {
        const sr_system *system = system_of(&records->variants[i]);
        if (system && *system->chooses)
            return true;
    }
    return false;
}

/* ---- one page */

static void put_lines(FILE *out, const char *lines) {
    fputs("<pre class=\"lines\" tabindex=\"0\">", out);
    sr_escape_html(out, lines);
    fputs("</pre>\n", out);
}

static void put_paper(FILE *out, const sr_system *system, const sr_variant_record *variant) {
    fputs("<p>In this study: <b>", out);
    sr_escape_html(out, variant->name);
    fputs("</b>", out);
    if (strcmp(variant->name, variant->attention) != 0) {
        fputs(", <code>", out);
        sr_escape_html(out, variant->attention);
        fputs("</code>", out);
    }
    putc('.', out);
    if (system->paper)
        fprintf(out, " The paper: <a href=\"https://arxiv.org/abs/%s\">arXiv %s</a>.",
                system->paper, system->paper);
    fputs(" <a href=\"../../report.html\">Back to the study</a>.</p>\n", out);
    if (system->leaks) {
        fputs("<p class=\"warning\" role=\"note\"><strong>Not causal.</strong> ", out);
        sr_escape_html(out, sr_system_leak);
        fputs("</p>\n", out);
    }
}

static void put_equation(sr_page *page, const sr_system *system, const sr_variant_record *variant) {
    sr_page_section(page, "equation", "The equation");
    put_paper(page->body, system, variant);
    if (variant->known) {
        sr_page_paragraph(page, "%s", sr_variant_symbols);
        sr_variant_write_equation(page->body, variant);
    }
    sr_page_paragraph(page, variant->known ? "The same token by token:" : "For each chunk:");
    put_lines(page->body, system->lines);
}

/* The axes of the text form; softmax has none. */
static srnn_status put_choices(sr_page *page, const char *text) {
    sr_table *table;
    SR_TRY(sr_table_create(&table, "choices",
                           "What it chooses where softmax has the first value of every axis"));
    sr_table_column(table, "axis");
    sr_table_column(table, "value");
    while (*text) {
        const size_t length = strcspn(text, ","), name = strcspn(text, "=,");
        sr_table_cell(table, "%.*s", (int)name, text);
        if (name < length)
            sr_table_cell(table, "%.*s", (int)(length - name - 1), text + name + 1);
        else
            sr_table_cell(table, "on");
        text += length + (text[length] == ',');
    }
    return sr_page_table(page, table);
}

static void add_costs(sr_table *table, const sr_cell_record *cell, const sr_entry *entry) {
    const double per_token = sr_entry_memory(entry) / (cell->length > 0 ? cell->length : 1);
    sr_table_cell(table, "%s", cell->title);
    sr_table_cell(table, "%s", cell->accuracy ? "accuracy" : "loss");
    sr_table_number(table, entry->mean, sr_format_fixed(entry->mean, 4).text);
    const double baseline = cell->baseline ? cell->baseline->mean : NAN;
    sr_table_number(table, baseline, sr_format_fixed(baseline, 4).text);
    sr_table_cell(table, "%s", sr_effect_word(entry->effect));
    sr_table_number(table, entry->parameters, sr_format_count(entry->parameters).text);
    sr_table_number(table, per_token, sr_format_bytes(per_token).text);
    sr_table_number(table, entry->tokens_per_second,
                    sr_format_count(entry->tokens_per_second).text);
}

static srnn_status put_costs(sr_page *page, const sr_records *records,
                             const sr_variant_record *variant) {
    sr_table *table;
    SR_TRY(sr_table_create(&table, "costs",
                           "What it reached here and what that cost; bytes are of the state of all "
                           "layers, or of keys and values, per token of context"));
    sr_table_column(table, "task");
    sr_table_column(table, "measure");
    sr_table_number_column(table, "mean");
    sr_table_number_column(table, "baseline");
    sr_table_column(table, "verdict");
    sr_table_number_column(table, "parameters");
    sr_table_number_column(table, "bytes per token");
    sr_table_number_column(table, "tokens/s");
    for (size_t c = 0; c < records->cell_count; c++) {
        const sr_entry *entry = sr_cell_entry(&records->cells[c], variant);
        if (entry)
            add_costs(table, &records->cells[c], entry);
    }
    return sr_page_table(page, table);
}

static srnn_status put_sections(sr_page *page, const sr_records *records, const sr_system *system,
                                const sr_variant_record *variant) {
    put_equation(page, system, variant);
    sr_page_section(page, "softmax", "How it follows from softmax");
    sr_page_paragraph(page, "%s", system->from_softmax);
    if (variant->known && *system->chooses)
        SR_TRY(put_choices(page, variant->text));
    sr_page_section(page, "costs", "What it costs");
    sr_page_paragraph(page, "%s", system->state);
    sr_page_paragraph(page, "%s", system->work);
    return put_costs(page, records, variant);
}

static srnn_status write_page(const char *folder, const sr_records *records,
                              const sr_system *system, const sr_variant_record *variant) {
    sr_page page;
    size_t bytes;
    SR_TRY(sr_page_open(&page, folder));
    page.kicker = "softrnn study: a system";
    srnn_status status = put_sections(&page, records, system, variant);
    if (status == SRNN_OK)
        status = sr_page_write(&page, system->title, &bytes);
    sr_page_free(&page);
    return status;
}

/* ---- all of them: systems/STEM/report.html, and links to them */

static srnn_status put_system(sr_page *page, const sr_records *records, size_t index) {
    const sr_variant_record *variant = &records->variants[index];
    const sr_system *system = system_of(variant);
    char stem[64], name[80], folder[SR_PATH_BYTES];
    if (!sr_system_is_named(variant->attention))
        return SRNN_OK;
    sr_format_stem(stem, sizeof stem, index + 1, variant->name);
    snprintf(name, sizeof name, "systems/%s", stem);
    SR_TRY(sr_path_join(folder, page->folder, name));
    SR_TRY(sr_page_make_folder(page->folder, name));
    SR_TRY(write_page(folder, records, system, variant));
    fprintf(page->body, "<li><a href=\"%s/report.html\">", name);
    sr_escape_html(page->body, system->title);
    fputs("</a>", page->body);
    if (*system->chooses) {
        fputs(": ", page->body);
        sr_escape_html(page->body, system->chooses);
    }
    fputs("</li>\n", page->body);
    return SRNN_OK;
}

srnn_status sr_section_systems(sr_page *page, const sr_records *records) {
    if (!sr_study_has_systems(records))
        return SRNN_OK;
    sr_page_section(page, "systems", "The systems, one by one");
    sr_page_paragraph(page, "Each is softmax attention with other choices on the axes of one "
                            "equation. Its page has the equation, how it follows from softmax, and "
                            "what it costs.");
    SR_TRY(sr_page_make_folder(page->folder, "systems"));
    fputs("<ul>\n", page->body);
    for (size_t i = 0; i < records->variant_count; i++)
        SR_TRY(put_system(page, records, i));
    fputs("</ul>\n", page->body);
    return SRNN_OK;
}
