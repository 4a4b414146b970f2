/* completion.c: completion of commands, options and their words for bash, zsh and fish. */
#include "cli/manual/manual.h"
#include "cli/manual/walk.h"

#include <string.h>

/* ---- what all shells need */

static void put_group_nothing(void *context, const char *path, const char *summary,
                              const command_table *table) {
    (void)context, (void)path, (void)summary, (void)table;
}

static void put_words(FILE *out, const command_option *option, const char *between) {
    for (size_t i = 0; option->kind == OPTION_KIND_CHOICE && option->choices[i]; i++)
        fprintf(out, "%s%s", i ? between : "", option->choices[i]);
    for (size_t i = 0; walk_takes_variant(option) && walk_variant(i); i++)
        fprintf(out, "%s%s", i ? between : "", walk_variant(i));
}

static bool has_words(const command_option *option) {
    return option->kind == OPTION_KIND_CHOICE || walk_takes_variant(option);
}

/* A text without characters that end or expand a quoted string; `more`: others to drop. */
static void put_plain(FILE *out, const char *text, const char *more) {
    for (; *text; text++)
        putc(strchr("'\"\\`$", *text) || strchr(more, *text) ? ' ' : *text, out);
}

typedef struct path_list {
    FILE *out;
    const char *between;
    bool any;
} path_list;

static void put_path(path_list *list, const char *path) {
    fprintf(list->out, "%s\" %s\"", list->any ? list->between : "", path);
    list->any = true;
}

static void put_command_path(void *context, const char *path, const char *summary,
                             const command_line *line) {
    (void)summary, (void)line;
    put_path(context, path);
}

static void put_group_path(void *context, const char *path, const char *summary,
                           const command_table *table) {
    (void)summary, (void)table;
    if (*path)
        put_path(context, path);
}

/* " data", " data prepare", ...: all command paths between the program and its options. */
static void put_paths(FILE *out, const char *between) {
    path_list list = {.out = out, .between = between};
    walk_program(&(walker){put_group_path, put_command_path, &list});
}

/* ---- bash */

static void bash_values(void *context, const char *path, const char *summary,
                        const command_line *line) {
    (void)summary;
    FILE *out = context;
    for (size_t i = 0; i < line->option_count; i++) {
        const command_option *option = &line->options[i];
        if (option->kind == OPTION_KIND_FLAG)
            continue;
        fprintf(out, "    \" %s %s\") ", path, option->name);
        if (has_words(option)) {
            fputs("words=\"", out);
            put_words(out, option, " ");
            fputs("\" ;;\n", out);
        } else {
            fputs(option->kind == OPTION_KIND_TEXT ? "files=1 ;;\n" : "return ;;\n", out);
        }
    }
}

static void bash_options(void *context, const char *path, const char *summary,
                         const command_line *line) {
    (void)summary;
    FILE *out = context;
    fprintf(out, "        \" %s\") words=\"", path);
    for (size_t i = 0; i < line->option_count; i++)
        fprintf(out, "%s ", line->options[i].name);
    fprintf(out, "--help\"%s ;;\n", line->argument_count || line->rest ? " files=1" : "");
}

static void bash_group(void *context, const char *path, const char *summary,
                       const command_table *table) {
    (void)summary;
    FILE *out = context;
    fprintf(out, "        \"%s%s\") words=\"", *path ? " " : "", path);
    for (size_t i = 0; i < table->count; i++)
        fprintf(out, "%s ", table->commands[i].name);
    fprintf(out, "--help%s\" ;;\n", *path ? "" : " --version");
}

void manual_bash(FILE *out) {
    fputs("# Completion of softrnn for bash; made from its tables of options.\n"
          "_softrnn() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    local path= words= files= i\n"
          "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
          "        case \"$path ${COMP_WORDS[i]}\" in\n        ",
          out);
    put_paths(out, " | ");
    fputs(") path=\"$path ${COMP_WORDS[i]}\" ;;\n"
          "        *) break ;;\n"
          "        esac\n"
          "    done\n"
          "    case \"$path $previous\" in\n",
          out);
    walk_program(&(walker){put_group_nothing, bash_values, out});
    fputs("    *)\n        case \"$path\" in\n", out);
    walk_program(&(walker){bash_group, bash_options, out});
    fputs("        esac ;;\n"
          "    esac\n"
          "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
          "    [ -z \"$files\" ] || [[ $current == -* ]] ||\n"
          "        mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- \"$current\")\n"
          "}\n"
          "complete -o filenames -F _softrnn softrnn\n",
          out);
}

/* ---- zsh */

static void zsh_group(void *context, const char *path, const char *summary,
                      const command_table *table) {
    (void)summary;
    FILE *out = context;
    fprintf(out, "    \"%s%s\")\n        commands=(", *path ? " " : "", path);
    for (size_t i = 0; i < table->count; i++) {
        fprintf(out, "\n            '%s:", table->commands[i].name);
        put_plain(out, table->commands[i].summary, ":");
        putc('\'', out);
    }
    fputs(")\n        _describe command commands ;;\n", out);
}

static void zsh_command(void *context, const char *path, const char *summary,
                        const command_line *line) {
    (void)summary;
    FILE *out = context;
    fprintf(out, "    \" %s\")\n        _arguments", path);
    for (size_t i = 0; i < line->option_count; i++) {
        const command_option *option = &line->options[i];
        fprintf(out, " \\\n            '%s[", option->name);
        put_plain(out, option->help, "[]:");
        putc(']', out);
        if (option->kind != OPTION_KIND_FLAG) {
            putc(':', out);
            put_plain(out, option->argument, "[]:");
            putc(':', out);
        }
        if (has_words(option)) {
            putc('(', out);
            put_words(out, option, " ");
            putc(')', out);
        } else if (option->kind == OPTION_KIND_TEXT) {
            fputs("_files", out);
        }
        putc('\'', out);
    }
    fputs(" \\\n            '--help[this text]'", out);
    if (line->argument_count || line->rest)
        fputs(" \\\n            '*:argument:_files'", out);
    fputs(" ;;\n", out);
}

void manual_zsh(FILE *out) {
    fputs("#compdef softrnn\n"
          "# Completion of softrnn for zsh; made from its tables of options.\n"
          "_softrnn() {\n"
          "    local name= i=2\n"
          "    local -a commands\n"
          "    while ((i < CURRENT)); do\n"
          "        case \"$name ${words[i]}\" in\n        ",
          out);
    put_paths(out, " | ");
    fputs(") name=\"$name ${words[i]}\" ;;\n"
          "        *) break ;;\n"
          "        esac\n"
          "        ((i++))\n"
          "    done\n"
          "    shift $((i - 2)) words\n"
          "    ((CURRENT -= i - 2))\n"
          "    case \"$name\" in\n",
          out);
    walk_program(&(walker){zsh_group, zsh_command, out});
    fputs("    esac\n}\n_softrnn \"$@\"\n", out);
}

/* ---- fish */

static void fish_group(void *context, const char *path, const char *summary,
                       const command_table *table) {
    (void)summary;
    FILE *out = context;
    for (size_t i = 0; i < table->count; i++) {
        fprintf(out, "complete -c softrnn -f -n '__softrnn_at \"%s%s\"' -a %s -d '",
                *path ? " " : "", path, table->commands[i].name);
        put_plain(out, table->commands[i].summary, "");
        fputs("'\n", out);
    }
}

static void fish_command(void *context, const char *path, const char *summary,
                         const command_line *line) {
    (void)summary;
    FILE *out = context;
    for (size_t i = 0; i < line->option_count; i++) {
        const command_option *option = &line->options[i];
        fprintf(out, "complete -c softrnn -n '__softrnn_at \" %s\"' -l %s", path, option->name + 2);
        if (has_words(option)) {
            fputs(" -x -a '", out);
            put_words(out, option, " ");
            putc('\'', out);
        } else if (option->kind == OPTION_KIND_TEXT) {
            fputs(" -r -F", out);
        } else if (option->kind != OPTION_KIND_FLAG) {
            fputs(" -x", out);
        }
        fputs(" -d '", out);
        put_plain(out, option->help, "");
        fputs("'\n", out);
    }
    fprintf(out, "complete -c softrnn%s -n '__softrnn_at \" %s\"' -l help -d 'this text'\n",
            line->argument_count || line->rest ? "" : " -f", path);
}

void manual_fish(FILE *out) {
    fputs("# Completion of softrnn for fish; made from its tables of options.\n"
          "function __softrnn_at\n"
          "    set -l path ''\n"
          "    for word in (commandline -opc)[2..-1]\n"
          "        switch \"$path $word\"\n"
          "            case ",
          out);
    put_paths(out, " ");
    fputs("\n"
          "                set path \"$path $word\"\n"
          "            case '*'\n"
          "                break\n"
          "        end\n"
          "    end\n"
          "    test \"$path\" = \"$argv[1]\"\n"
          "end\n",
          out);
    walk_program(&(walker){fish_group, fish_command, out});
}
