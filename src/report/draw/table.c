/* table.c: a table of texts and numbers, written as HTML, CSV or LaTeX. */
#include "report/draw/table.h"

#include "base/memory.h"
#include "report/draw/escape.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct column {
    char *title;
    bool numbers;
} column;

typedef struct cell {
    char *text;
    char *why;    /* reason of a judgement; NULL: not a judgement */
    char *whole;  /* judgement and why in one text, for CSV; NULL: not a judgement */
    bool number;  /* whether it has a value */
    double value; /* if `number` */
} cell;

struct sr_table {
    char *name, *caption;
    column *columns; /* (column_count) */
    size_t column_count, column_capacity;
    cell *cells; /* (rows, columns), so far */
    size_t count, capacity;
    bool broken; /* an allocation failed */
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
    for (size_t i = 0; i < table->column_count; i++)
        free(table->columns[i].title);
    for (size_t i = 0; i < table->count; i++) {
        free(table->cells[i].text);
        free(table->cells[i].why);
        free(table->cells[i].whole);
    }
    free(table->columns);
    free(table->cells);
    free(table->name);
    free(table->caption);
    free(table);
}

/* Reallocates for one more element; NULL: no memory, and the elements are unchanged. */
static void *grow(void *elements, size_t size, size_t count, size_t *capacity) {
    if (count < *capacity)
        return elements;
    const size_t wanted = *capacity ? 2 * *capacity : 16;
    void *grown = realloc(elements, wanted * size);
    *capacity = grown ? wanted : *capacity;
    return grown;
}

static void add_column(sr_table *table, const char *title, bool numbers) {
    column *columns =
        grow(table->columns, sizeof *columns, table->column_count, &table->column_capacity);
    if (!columns) {
        table->broken = true;
        return;
    }
    table->columns = columns;
    columns[table->column_count++] = (column){copy(table, title), numbers};
}

void sr_table_column(sr_table *table, const char *title) {
    add_column(table, title, false);
}

void sr_table_number_column(sr_table *table, const char *title) {
    add_column(table, title, true);
}

static void append(sr_table *table, cell added) {
    cell *cells = grow(table->cells, sizeof *cells, table->count, &table->capacity);
    if (!cells) {
        table->broken = true;
        free(added.text);
        free(added.why);
        free(added.whole);
        return;
    }
    table->cells = cells;
    cells[table->count++] = added;
}

void sr_table_cell(sr_table *table, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0)
        table->broken = true;
    else
        append(table, (cell){.text = text});
}

void sr_table_number(sr_table *table, double value, const char *shown) {
    append(table, (cell){.text = copy(table, shown), .number = true, .value = value});
}

void sr_table_judgement(sr_table *table, const char *word, const char *why) {
    char *whole;
    if (asprintf(&whole, "%s%s%s", word, *why ? ": " : "", why) < 0) {
        whole = NULL;
        table->broken = true;
    }
    append(table, (cell){.text = copy(table, word), .why = copy(table, why), .whole = whole});
}

const char *sr_table_name(const sr_table *table) {
    return table->name;
}

size_t sr_table_rows(const sr_table *table) {
    return table->column_count ? table->count / table->column_count : 0;
}

srnn_status sr_table_check(const sr_table *table) {
    return table->broken ? SR_FAIL(SRNN_ERR_MEMORY, "no memory for a table of the report")
                         : SRNN_OK;
}

static const cell *cell_at(const sr_table *table, size_t row, size_t c) {
    return &table->cells[row * table->column_count + c];
}

/* A hyphen before a number is written as a minus sign. */
static bool has_minus(const sr_table *table, const cell *at, size_t c) {
    return table->columns[c].numbers && at->text[0] == '-' && at->text[1];
}

static void write_html_cell(FILE *out, const sr_table *table, size_t row, size_t c) {
    const cell *at = cell_at(table, row, c);
    fputs(c ? "<td" : "<th scope=\"row\"", out);
    if (table->columns[c].numbers)
        fputs(" class=\"number\"", out);
    if (at->why) {
        fputs(" class=\"judgement\"><strong data-word=\"", out);
        sr_escape_html(out, at->text);
        fputs("\">", out);
        sr_escape_html(out, at->text);
        fputs("</strong> <span class=\"why\">", out);
        sr_escape_html(out, at->why);
        fputs("</span>", out);
    } else {
        fputs(has_minus(table, at, c) ? ">&minus;" : ">", out);
        sr_escape_html(out, at->text + has_minus(table, at, c));
    }
    fputs(c ? "</td>" : "</th>", out);
}

void sr_table_write_html(FILE *out, const sr_table *table) {
    fprintf(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"");
    sr_escape_html(out, table->caption);
    fprintf(out, "\"><table id=\"table-");
    sr_escape_html(out, table->name);
    fputs("\"><caption><span>", out);
    sr_escape_html(out, table->caption);
    fputs("</span></caption>\n<thead><tr>", out);
    for (size_t c = 0; c < table->column_count; c++) {
        fprintf(out, "<th scope=\"col\"%s>", table->columns[c].numbers ? " class=\"number\"" : "");
        sr_escape_html(out, table->columns[c].title);
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        fputs("<tr>", out);
        for (size_t c = 0; c < table->column_count; c++)
            write_html_cell(out, table, r, c);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

void sr_table_write_csv(FILE *out, const sr_table *table) {
    for (size_t c = 0; c < table->column_count; c++) {
        fputs(c ? "," : "", out);
        sr_escape_csv(out, table->columns[c].title);
    }
    fputs("\r\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        for (size_t c = 0; c < table->column_count; c++) {
            const cell *at = cell_at(table, r, c);
            fputs(c ? "," : "", out);
            if (!at->number)
                sr_escape_csv(out, at->whole ? at->whole : at->text);
            else if (isfinite(at->value))
                fprintf(out, "%.9g", at->value);
        }
        fputs("\r\n", out);
    }
}

static void write_latex_cell(FILE *out, const sr_table *table, size_t row, size_t c) {
    const cell *at = cell_at(table, row, c);
    fputs(c ? " & " : "", out);
    fputs(has_minus(table, at, c) ? "$-$" : "", out);
    sr_escape_latex(out, at->text + has_minus(table, at, c));
    if (at->why && *at->why) {
        fputs(": ", out);
        sr_escape_latex(out, at->why);
    }
}

void sr_table_write_latex(FILE *out, const sr_table *table) {
    fputs("% needs \\usepackage{booktabs}\n\\begin{table}\n\\centering\n\\caption{", out);
    sr_escape_latex(out, table->caption);
    fputs("}\n\\begin{tabular}{", out);
    for (size_t c = 0; c < table->column_count; c++)
        putc(table->columns[c].numbers ? 'r' : 'l', out);
    fputs("}\n\\toprule\n", out);
    for (size_t c = 0; c < table->column_count; c++) {
        fputs(c ? " & " : "", out);
        sr_escape_latex(out, table->columns[c].title);
    }
    fputs(" \\\\\n\\midrule\n", out);
    for (size_t r = 0; r < sr_table_rows(table); r++) {
        for (size_t c = 0; c < table->column_count; c++)
            write_latex_cell(out, table, r, c);
        fputs(" \\\\\n", out);
    }
    fputs("\\bottomrule\n\\end{tabular}\n\\end{table}\n", out);
}
