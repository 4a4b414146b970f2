/* origin.c: provenance of a record: command, program and machine. */
#include "report/page/origin.h"

#include "files/json.h"
#include "report/draw/escape.h"
#include "report/draw/format.h"

void sr_origin_section(sr_page *page, const json_t *origin) {
    const char *command = sr_json_text_of(origin, "command");
    sr_page_section(page, "provenance", "Where this comes from");
    if (!*command)
        return;
    fputs("<p>To repeat it:</p>\n<pre class=\"command\" tabindex=\"0\"><code>", page->body);
    sr_escape_html(page->body, command);
    fputs("</code></pre>\n", page->body);
}

void sr_origin_text(sr_table *table, const char *what, const char *text) {
    if (!*text)
        return;
    sr_table_cell(table, "%s", what);
    sr_table_cell(table, "%s", text);
}

void sr_origin_machine(sr_table *table, const json_t *origin) {
    static const char *const facts[] = {"processor", "machine", "system"};
    const json_t *machine = sr_json_object_of(origin, "machine");
    sr_origin_text(table, "softrnn", sr_json_text_of(origin, "softrnn"));
    sr_origin_text(table, "revision", sr_json_text_of(origin, "revision"));
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        sr_origin_text(table, facts[i], sr_json_text_of(machine, facts[i]));
    sr_origin_text(table, "processors",
                   sr_format_count(sr_json_number_of(machine, "processors")).text);
    sr_origin_text(table, "memory",
                   sr_format_bytes(sr_json_number_of(machine, "memory_bytes")).text);
}
