/* pages.c: a manual page for the program and for each of its commands. */
#include "cli/manual/manual.h"
#include "cli/manual/walk.h"
#include "files/memory_stream.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pages {
    const char *folder;
    const char *version;
    bool failed;
} pages;

/* Escapes text for a page: dashes that can be copied, no line that is a roff request. */
static void put(FILE *out, const char *text) {
    bool begins = true;
    for (; *text; text++) {
        if (begins && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            putc(*text, out);
        begins = *text == '\n';
    }
}

/* Lines, verbatim. */
static void put_lines(FILE *out, const char *text) {
    fputs(".nf\n", out);
    put(out, text);
    fputs(text[0] && text[strlen(text) - 1] == '\n' ? ".fi\n" : "\n.fi\n", out);
}

/* softrnn-data-prepare.1 */
static FILE *open_page(pages *p, char *name, size_t size, const char *path) {
    char file[4096];
    snprintf(name, size, "softrnn%s%s", *path ? "-" : "", path);
    for (char *at = name; *at; at++)
        *at = *at == ' ' ? '-' : *at;
    snprintf(file, sizeof file, "%s/%s.1", p->folder, name);
    FILE *out = fopen(file, "w");
    if (!out)
        perror(file);
    p->failed = p->failed || !out;
    return out;
}

static void close_page(pages *p, FILE *out) {
    fputs(".SH EXIT STATUS\n0: done. 1: failed, with the reason on stderr. 2: wrong usage.\n", out);
    const bool lost = ferror(out);
    p->failed = fclose(out) != 0 || lost || p->failed;
}

static void put_head(FILE *out, const pages *p, const char *name, const char *summary) {
    char capitals[128];
    size_t length = 0;
    for (; name[length] && length + 1 < sizeof capitals; length++)
        capitals[length] = (char)toupper((unsigned char)name[length]);
    capitals[length] = '\0';
    fprintf(out, ".TH %s 1 \"\" \"softrnn %s\" \"User Commands\"\n.SH NAME\n%s \\- ", capitals,
            p->version, name);
    put(out, summary);
    putc('\n', out);
}

static void put_option(FILE *out, const command_option *option) {
    char *values = NULL;
    size_t length;
    FILE *text = sr_memory_stream(&values, &length);
    if (!text)
        return;
    options_print_values(text, option);
    fclose(text);
    fputs(".TP\n.B ", out);
    put(out, option->name);
    if (option->argument) {
        fputs(" \\fI", out);
        put(out, option->argument);
        fputs("\\fR", out);
    }
    putc('\n', out);
    put(out, option->help);
    put(out, values);
    putc('\n', out);
    free(values);
}

static void put_command(void *context, const char *path, const char *summary,
                        const command_line *line) {
    pages *p = context;
    char name[128];
    FILE *out = open_page(p, name, sizeof name, path);
    if (!out)
        return;
    put_head(out, p, name, summary);
    fputs(".SH SYNOPSIS\n", out);
    put_lines(out, line->usage);
    fputs(".SH DESCRIPTION\n", out);
    put(out, line->purpose);
    putc('\n', out);
    if (line->argument_count)
        fputs(".SH ARGUMENTS\n", out);
    for (size_t i = 0; i < line->argument_count; i++) {
        fprintf(out, ".TP\n.I %s\n", line->arguments[i].name);
        put(out, line->arguments[i].help);
        putc('\n', out);
    }
    fputs(".SH OPTIONS\n", out);
    for (size_t i = 0; i < line->option_count; i++)
        put_option(out, &line->options[i]);
    fputs(".TP\n.B \\-\\-help\nthis text, shorter\n.SH EXAMPLES\n", out);
    put_lines(out, line->examples);
    close_page(p, out);
}

static void put_group(void *context, const char *path, const char *summary,
                      const command_table *table) {
    pages *p = context;
    char name[128];
    FILE *out = open_page(p, name, sizeof name, path);
    if (!out)
        return;
    put_head(out, p, name, summary);
    fprintf(out, ".SH SYNOPSIS\n%s COMMAND [options]\n.SH COMMANDS\n", table->program);
    for (size_t i = 0; i < table->count; i++) {
        fprintf(out, ".TP\n.B %s\n", table->commands[i].name);
        put(out, table->commands[i].summary);
        fputs("; see\n.BR ", out);
        put(out, name);
        fprintf(out, "\\-%s (1)\n", table->commands[i].name);
    }
    fputs(".SH EXAMPLES\n", out);
    put_lines(out, table->examples);
    close_page(p, out);
}

bool manual_pages(const char *folder, const char *version) {
    pages p = {.folder = folder, .version = version};
    walk_program(&(walker){put_group, put_command, &p});
    return !p.failed;
}
