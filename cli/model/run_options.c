/* run_options.c: the settings of a run as options of a command. */
#include "cli/model/run_options.h"

#include <stdio.h>
#include <string.h>

static command_option option_of(sr_run_settings *settings, const sr_setting *s, const char *name,
                                const char **text) {
    void *at = (char *)settings + s->offset;
    command_option option = {.name = name,
                             .argument = s->argument,
                             .help = s->help,
                             .integer_least = (int64_t)s->least,
                             .integer_most = (int64_t)s->most,
                             .number_least = s->least,
                             .number_most = s->most,
                             .choices = s->choices};
    switch (s->kind) {
    case SR_SETTING_FLAG:
        option.kind = OPTION_KIND_FLAG;
        option.to.flag = at;
        break;
    case SR_SETTING_TEXT:
        option.kind = OPTION_KIND_TEXT;
        *text = **(char **)at ? *(char **)at : NULL;
        option.to.text = text;
        break;
    case SR_SETTING_INTEGER:
        option.kind = OPTION_KIND_INTEGER;
        option.to.integer = at;
        break;
    case SR_SETTING_INTEGER64:
        option.kind = OPTION_KIND_INTEGER64;
        option.to.integer64 = at;
        break;
    case SR_SETTING_NUMBER:
        option.kind = OPTION_KIND_NUMBER;
        option.to.number = at;
        break;
    case SR_SETTING_CHOICE:
        option.kind = OPTION_KIND_CHOICE;
        option.to.choice = at;
        break;
    }
    return option;
}

static bool is_named(const char *const *names, const char *name) {
    for (; names && *names; names++)
        if (strcmp(*names, name) == 0)
            return true;
    return false;
}

void run_options_add(run_options *all, sr_run_settings *settings, const char *const *without) {
    const sr_setting *s;
    for (size_t i = 0; (s = sr_setting_at(i)) && i < RUN_SETTINGS_MAX; i++) {
        if (is_named(without, s->name))
            continue;
        snprintf(all->names[i], sizeof all->names[i], "--%s", s->name);
        all->options[all->count++] = option_of(settings, s, all->names[i], &all->texts[i]);
    }
}

srnn_status run_options_keep(sr_run_settings *settings, const run_options *all) {
    const sr_setting *s;
    for (size_t i = 0; (s = sr_setting_at(i)) && i < RUN_SETTINGS_MAX; i++) {
        char **own = (char **)(void *)((char *)settings + s->offset);
        if (s->kind == SR_SETTING_TEXT && all->texts[i] && all->texts[i] != *own)
            if (sr_run_settings_text(own, all->texts[i]) != SRNN_OK)
                return SRNN_ERR_MEMORY;
    }
    return SRNN_OK;
}
