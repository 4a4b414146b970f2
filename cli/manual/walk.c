/* walk.c: every command of the program, one after the other, with its table of options. */
#include "cli/manual/walk.h"

#include "cli/program.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 128 };

typedef struct walk {
    const walker *visitor;
    char path[PATH_BYTES];
    const char *summary;
} walk;

static void take_line(void *context, const command_line *line) {
    walk *w = context;
    w->visitor->command(w->visitor->context, w->path, w->summary, line);
}

static void take_table(void *context, const command_table *table) {
    walk *w = context;
    const size_t length = strlen(w->path);
    w->visitor->group(w->visitor->context, w->path, w->summary, table);
    for (size_t i = 0; i < table->count; i++) {
        snprintf(w->path + length, sizeof w->path - length, "%s%s", length ? " " : "",
                 table->commands[i].name);
        w->summary = table->commands[i].summary;
        (void)table->commands[i].run(0, NULL);
    }
    w->path[length] = '\0';
}

void walk_program(const walker *visitor) {
    walk w = {.visitor = visitor, .summary = program_table.purpose};
    const command_observer observer = {take_table, take_line, &w};
    command_observe(&observer);
    (void)command_dispatch(&program_table, 0, NULL);
    command_observe(NULL);
}

const char *walk_variant(size_t index) {
    const srnn_variant *variant = srnn_variant_at(index);
    return variant ? variant->name : NULL;
}

bool walk_takes_variant(const command_option *option) {
    return strcmp(option->name, "--attention") == 0;
}
