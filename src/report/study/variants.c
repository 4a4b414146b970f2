/* variants.c: each variant's equation and text form. */
#include "report/draw/equation.h"
#include "report/draw/escape.h"
#include "report/draw/systems.h"
#include "report/study/sections.h"

#include <string.h>

const char sr_variant_symbols[] =
    "Per head and causal: row i sees the keys j = 1 \u2026 i. Heads have d numbers. q and k carry "
    "their positions unless it says otherwise; \u03c3 is the sigmoid; b, g and c are learned.";

void sr_variant_write_equation(FILE *out, const sr_variant_record *variant) {
    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Equation of ", out);
    sr_escape_html(out, variant->name);
    fputs("\">", out);
    sr_equation_write(out, &variant->descriptor);
    fputs("</div>\n<p class=\"remark\">", out);
    sr_equation_write_remarks(out, &variant->descriptor);
    fputs("</p>\n", out);
}

static void write_variant(FILE *out, const sr_variant_record *variant) {
    fputs("<article class=\"variant\">\n<h3>", out);
    sr_escape_html(out, variant->name);
    fputs("</h3>\n<p><code>", out);
    sr_escape_html(out, variant->text);
    fputs("</code>", out);
    if (*variant->attention && strcmp(variant->attention, variant->text) != 0) {
        fputs(", text form <code>", out);
        sr_escape_html(out, variant->attention);
        fputs("</code>", out);
    }
    fputs("</p>\n", out);
    if (variant->known) {
        sr_variant_write_equation(out, variant);
    } else if (sr_system_of(variant->attention)) {
        fputs("<pre class=\"lines\" tabindex=\"0\">", out);
        sr_escape_html(out, sr_system_of(variant->attention)->lines);
        fputs("</pre>\n", out);
    } else if (variant->by_layers) {
        fputs("<p>A hybrid: layers differ. The text form says which layers have which variant, by "
              "numbers of layers from 0 on (0-2:A,3-:B) or by counts that repeat to the last layer "
              "(3*A,1*B).</p>\n",
              out);
    } else {
        fputs("<p>This program cannot read the text form, so there is no equation.</p>\n", out);
    }
    fputs("</article>\n", out);
}

srnn_status sr_section_variants(sr_page *page, const sr_records *records) {
    sr_page_section(page, "variants", "The variants");
    sr_page_paragraph(page, "%s", sr_variant_symbols);
    fputs("<div class=\"variants\">\n", page->body);
    for (size_t i = 0; i < records->variant_count; i++)
        if (records->variants[i].used)
            write_variant(page->body, &records->variants[i]);
    fputs("</div>\n", page->body);
    return SRNN_OK;
}
