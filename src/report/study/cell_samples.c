/* cell_samples.c: text that the finished runs of a cell wrote. */
#include "files/json.h"
#include "report/draw/escape.h"
#include "report/study/sections.h"

#include <stdio.h>

/* The variant's first run with samples. */
static const sr_run_record *sampled(const sr_entry *entry) {
    for (size_t r = 0; r < entry->member_count; r++)
        if (sr_json_count_of(entry->members[r]->samples, "samples") > 0)
            return entry->members[r];
    return NULL;
}

static void put_run(FILE *out, const sr_entry *entry, const sr_run_record *run) {
    fputs("<h4>", out);
    sr_escape_html(out, entry->variant->name);
    fprintf(out, ", seed %lld</h4>\n", (long long)sr_json_integer_of(run->plan, "seed"));
    for (size_t i = 0; i < sr_json_count_of(run->samples, "samples"); i++) {
        const json_t *sample = sr_json_element_of(run->samples, "samples", i);
        fputs("<pre class=\"lines\" tabindex=\"0\">", out);
        sr_escape_html(out, sr_json_text_of(sample, "prompt"));
        fputs("<strong>", out);
        sr_escape_html(out, sr_json_text_of(sample, "text"));
        fputs("</strong></pre>\n", out);
    }
}

void sr_cell_samples(sr_page *page, const sr_cell_record *cell) {
    bool any = false;
    for (size_t i = 0; i < cell->count; i++) {
        const sr_run_record *run = sampled(cell->ranked[i]);
        if (!run)
            continue;
        if (!any)
            fputs("<details><summary>What the models write</summary>\n<p>Beginnings of validation "
                  "rows, and in bold what the finished run of each variant's first seed makes of "
                  "them, best variant first.</p>\n",
                  page->body);
        any = true;
        put_run(page->body, cell->ranked[i], run);
    }
    if (any)
        fputs("</details>\n", page->body);
}
