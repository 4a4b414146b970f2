/* table.c: a table of texts, written as HTML, CSV or LaTeX. */
#include "report/table.h"

#include "base/memory.h"
#include "report/escape.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 16 };

struct sr_table {
    char *name, *caption;
    char *titles[COLUMNS_MAX];
    bool numbers[COLUMNS_MAX];
    size_t columns;
    char **cells; /* (rows, columns), so far */
    size_t count, capacity;
    bool broken; /* no memory for something */
};

/* NULL marks the table broken. */
static char *copy(sr_table *table, const char *text) {
    char *copied = strdup(text);
    table->broken = table->broken || !copied;
    return copied;
}

srnn_status sr_table_create(sr_table **table, const char *name, const char *caption) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **table));
    *table = memory;
    (*table)->name = copy(*table, name);
    (*table)->caption = copy(*table, caption);
    return SRNN_OK;
}

void sr_table_free(sr_table *table) {
    if (!table)
        return;
    for (size_t i = 0; i < table->columns; i++)
        free(table->titles[i]);
    for (size_t i = 0; i < table->count; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->name);
    free(table->caption);
    free(table);
}

static void add_column(sr_table *table, const char *title, bool number) {
    if (table->columns == COLUMNS_MAX) {
        table->broken = true;
        return;
    }
    table->numbers[table->columns] = number;
    table->titles[table->columns++] = copy(table, title);
}

void sr_table_column(sr_table *table, const char *title) {
    add_column(table, title, false);
}

void sr_table_number_column(sr_table *table, const char *title) {
    add_column(table, title, true);
}

static void append(sr_table *table, char *cell) {
    if (table->count == table->capacity) {
        const size_t capacity = table->capacity ? 2 * table->capacity : 64;
        char **cells = realloc(table->cells, capacity * sizeof *cells);
        if (!cells) {
            table->broken = true;
            free(cell);
            return;
        }
        table->cells = cells;
        table->capacity = capacity;
    }
    table->cells[table->count++] = cell;
}

void sr_table_cell(sr_table *table, const char *format, ...) {
    char *cell;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&cell, format, arguments);
    va_end(arguments);
    if (length < 0)
        table->broken = true;
    else
        append(table, cell);
}

const char *sr_table_name(const sr_table *table) {
    return table->name;
}

size_t sr_table_rows(const sr_table *table) {
    return table->columns ? table->count / table->columns : 0;
}

srnn_status sr_table_check(const sr_table *table) {
    return table->broken ? SR_FAIL(SRNN_ERR_MEMORY, "no memory for a table of the report")
                         : SRNN_OK;
}

static const char *cell_at(const sr_table *table, size_t row, size_t column) {
    return table->cells[row * table->columns + column];
}

/* A hyphen in a column of numbers is a minus sign. */
static void write_html_cell(FILE *out, const char *text, bool number) {
    if (number && *text == '-' && text[1]) {
        fputs("&minus;", out);
        text++;
    }
    sr_escape_html(out, text);
}

static void write_latex_cell(FILE *out, const char *text, bool number) {
    if (number && *text == '-' && text[1]) {
        fputs("$-$", out);
        text++;
    }
    sr_escape_latex(out, text);
}

void sr_table_write_html(FILE *out, const sr_table *table) {
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    sr_escape_html(out, table->caption);
    fprintf(out, "\"><table id=\"table-");
    sr_escape_html(out, table->name);
    fputs("\"><caption>", out);
    sr_escape_html(out, table->caption);
    fputs("</caption>\n<thead><tr>", out);
    for (size_t c = 0; c < table->columns; c++) {
        fprintf(out, "<th scope=\"col\"%s>", table->numbers[c] ? " class=\"number\"" : "");
        sr_escape_html(out, table->titles[c]);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        fputs("<tr>", out);
        for (size_t c = 0; c < table->columns; c++) {
            fputs(c ? "<td" : "<th scope=\"row\"", out);
            fputs(table->numbers[c] ? " class=\"number\">" : ">", out);
            write_html_cell(out, cell_at(table, r, c), table->numbers[c]);
            fputs(c ? "</td>" : "</th>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

void sr_table_write_csv(FILE *out, const sr_table *table) {
    for (size_t c = 0; c < table->columns; c++) {
        fputs(c ? "," : "", out);
        sr_escape_csv(out, table->titles[c]);
    }
    fputs("\r\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        for (size_t c = 0; c < table->columns; c++) {
            fputs(c ? "," : "", out);
            sr_escape_csv(out, cell_at(table, r, c));
        }
        fputs("\r\n", out);
    }
}

void sr_table_write_latex(FILE *out, const sr_table *table) {
    fputs("% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n\\caption{", out);
    sr_escape_latex(out, table->caption);
    fputs("}\n\\begin{tabular}{", out);
    for (size_t c = 0; c < table->columns; c++)
        putc(table->numbers[c] ? 'r' : 'l', out);
    fputs("}\n\\toprule\n", out);
    for (size_t c = 0; c < table->columns; c++) {
        fputs(c ? " & " : "", out);
        sr_escape_latex(out, table->titles[c]);
    }
    fputs(" \\\\\n\\midrule\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        for (size_t c = 0; c < table->columns; c++) {
            fputs(c ? " & " : "", out);
            write_latex_cell(out, cell_at(table, r, c), table->numbers[c]);
        }
        fputs(" \\\\\n", out);
    }
    fputs("\\bottomrule\n\\end{tabular}\n\\end{table}\n", out);
}
