/* page.c: writes a page, with its figures and tables as separate files. */
#include "report/page/page.h"

#include "files/file.h"
#include "files/folder.h"
#include "files/memory_stream.h"
#include "files/path.h"
#include "report/draw/escape.h"
#include "report/page/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

srnn_status sr_page_make_folder(const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    return sr_folder_make(path);
}

srnn_status sr_page_open(sr_page *page, const char *folder) {
    *page = (sr_page){.folder = folder, .kicker = "softrnn study"};
    SR_TRY(sr_page_make_folder(folder, "figures"));
    SR_TRY(sr_page_make_folder(folder, "tables"));
    page->body = sr_memory_stream(&page->body_text, &page->body_bytes);
    page->links = sr_memory_stream(&page->links_text, &page->links_bytes);
    page->data = sr_memory_stream(&page->data_text, &page->data_bytes);
    if (!page->body || !page->links || !page->data) {
        sr_page_free(page);
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for the report");
    }
    return SRNN_OK;
}

static void close_stream(FILE **stream) {
    if (*stream)
        (void)fclose(*stream);
    *stream = NULL;
}

void sr_page_free(sr_page *page) {
    close_stream(&page->body);
    close_stream(&page->links);
    close_stream(&page->data);
    free(page->body_text);
    free(page->links_text);
    free(page->data_text);
    *page = (sr_page){0};
}

void sr_page_section(sr_page *page, const char *id, const char *heading) {
    fprintf(page->body, "%s<section aria-labelledby=\"%s\">\n<h2 id=\"%s\">",
            ftell(page->body) > 0 ? "</section>\n" : "", id, id);
    sr_escape_html(page->body, heading);
    fputs("</h2>\n", page->body);
    fprintf(page->links, "<li><a href=\"#%s\">", id);
    sr_escape_html(page->links, heading);
    fputs("</a></li>\n", page->links);
}

void sr_page_paragraph(sr_page *page, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        page->failed = true;
        return;
    }
    fputs("<p>", page->body);
    sr_escape_html(page->body, text);
    fputs("</p>\n", page->body);
    free(text);
}

/* Figures and tables can be regenerated from the records: they are neither synced nor replaced
 * atomically; doing so took a minute for the thousands of a large study. */
static srnn_status write_simply(const char *path, const char *text, size_t bytes) {
    int descriptor;
    SR_TRY(sr_descriptor_open_own(&descriptor, path, O_WRONLY | O_CREAT | O_TRUNC));
    FILE *out = fdopen(descriptor, "w");
    if (!out) {
        close(descriptor);
        return SR_FAIL(SRNN_ERR_IO, "%s: could not be written: %s", path, strerror(errno));
    }
    const bool written = fwrite(text, 1, bytes, out) == bytes;
    if (fclose(out) != 0 || !written) {
        const int error = errno;
        unlink(path);
        return SR_FAIL(SRNN_ERR_IO, "%s: could not be written: %s", path, strerror(error));
    }
    return SRNN_OK;
}

/* Writes FOLDER/kind/name.ending with the output of `write` for `what`. */
static srnn_status write_file(const sr_page *page, const char *kind, const char *name,
                              const char *ending, void (*write)(FILE *, const void *),
                              const void *what) {
    char path[SR_PATH_BYTES];
    char *text = NULL;
    size_t bytes;
    SR_TRY(sr_path_print(path, "%s/%s/%s.%s", page->folder, kind, name, ending));
    FILE *out = sr_memory_stream(&text, &bytes);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    write(out, what);
    srnn_status status = SRNN_OK;
    if (fclose(out) != 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    if (status == SRNN_OK)
        status = write_simply(path, text, bytes);
    free(text);
    return status;
}

static void write_lone_svg(FILE *out, const void *chart) {
    const sr_page_file style = sr_page_figure_style();
    sr_chart_write_svg(out, chart, style.text, style.bytes);
}

static void write_csv(FILE *out, const void *table) {
    sr_table_write_csv(out, table);
}

static void write_latex(FILE *out, const void *table) {
    sr_table_write_latex(out, table);
}

/* Rank charts are static SVG; the others are redrawn by the script from their data. */
static void put_chart(sr_page *page, const sr_chart *chart) {
    const bool live = chart->kind != SR_CHART_RANKS;
    fprintf(page->body,
            "<figure id=\"figure-%s\" aria-labelledby=\"caption-%s\"%s>\n"
            "<figcaption id=\"caption-%s\">",
            chart->name, chart->name, live ? " class=\"live\"" : "", chart->name);
    sr_escape_html(page->body, chart->title);
    fputs("</figcaption>\n<div class=\"still\">", page->body);
    sr_chart_write_svg(page->body, chart, NULL, 0);
    fputs("</div>\n<p class=\"description\">", page->body);
    sr_escape_html(page->body, chart->description);
    fputs("</p>\n</figure>\n", page->body);
    if (live) {
        fputs(page->charts++ ? ",\n" : "", page->data);
        sr_chart_write_data(page->data, chart);
    }
}

static srnn_status place_chart(sr_page *page, const sr_chart *chart) {
    SR_TRY(sr_chart_check(chart));
    if (!sr_chart_has_points(chart))
        return SRNN_OK;
    put_chart(page, chart);
    return write_file(page, "figures", chart->name, "svg", write_lone_svg, chart);
}

srnn_status sr_page_chart(sr_page *page, sr_chart *chart) {
    const srnn_status status = place_chart(page, chart);
    sr_chart_free(chart);
    return status;
}

static srnn_status place_table(sr_page *page, const sr_table *table) {
    SR_TRY(sr_table_check(table));
    sr_table_write_html(page->body, table);
    SR_TRY(write_file(page, "tables", sr_table_name(table), "csv", write_csv, table));
    return write_file(page, "tables", sr_table_name(table), "tex", write_latex, table);
}

srnn_status sr_page_table(sr_page *page, sr_table *table) {
    const srnn_status status = place_table(page, table);
    sr_table_free(table);
    return status;
}

static void put_file(FILE *out, sr_page_file file) {
    fwrite(file.text, 1, file.bytes, out);
}

/* Drops the library's last line, which names a source map that is not included. */
static void put_library(FILE *out) {
    const sr_page_file file = sr_page_library();
    const char *end = memmem(file.text, file.bytes, "//# sourceMappingURL", 20);
    fwrite(file.text, 1, end ? (size_t)(end - file.text) : file.bytes, out);
}

/* Replaces a mark {{name}} of the template. */
static void put_mark(FILE *out, const sr_page *page, const char *title, const char *mark,
                     size_t length) {
#define IS(name) (length == sizeof name - 1 && memcmp(mark, name, length) == 0)
    if (IS("title")) {
        sr_escape_html(out, title);
    } else if (IS("kicker")) {
        sr_escape_html(out, page->kicker);
    } else if (IS("style")) {
        put_file(out, sr_page_figure_style());
        put_file(out, sr_page_style());
    } else if (IS("links")) {
        fwrite(page->links_text, 1, page->links_bytes, out);
    } else if (IS("body")) {
        fwrite(page->body_text, 1, page->body_bytes, out);
    } else if (IS("data")) {
        fwrite(page->data_text, 1, page->data_bytes, out);
    } else if (IS("library")) {
        put_library(out);
    } else if (IS("script")) {
        put_file(out, sr_page_script());
    } else if (IS("selftest")) {
        put_file(out, sr_page_selftest());
    } else if (IS("version")) {
        fputs(srnn_version(), out);
    }
#undef IS
}

static void fill_template(FILE *out, const sr_page *page, const char *title) {
    const sr_page_file template = sr_page_template();
    const char *at = template.text, *end = at + template.bytes;
    while (at < end) {
        const char *open = memmem(at, (size_t)(end - at), "{{", 2);
        const char *close = open ? memmem(open, (size_t)(end - open), "}}", 2) : NULL;
        if (!close)
            break;
        fwrite(at, 1, (size_t)(open - at), out);
        put_mark(out, page, title, open + 2, (size_t)(close - open - 2));
        at = close + 2;
    }
    fwrite(at, 1, (size_t)(end - at), out);
}

srnn_status sr_page_write(sr_page *page, const char *title, size_t *bytes) {
    char path[SR_PATH_BYTES];
    char *text = NULL;
    fputs("</section>\n", page->body);
    SR_TRY(sr_path_join(path, page->folder, "report.html"));
    const bool whole = !(fflush(page->body) | fflush(page->links) | fflush(page->data) |
                         (int)page->failed); /* flushing sets the texts */
    FILE *out = whole ? sr_memory_stream(&text, bytes) : NULL;
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    fill_template(out, page, title);
    srnn_status status = SRNN_OK;
    if (fclose(out) != 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    if (status == SRNN_OK)
        status = sr_file_replace(path, text, *bytes);
    free(text);
    return status;
}
