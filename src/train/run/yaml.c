/* yaml.c: reads and writes a run's settings as run.yaml. */
#include "base/text.h"
#include "files/file.h"
#include "files/memory_stream.h"
#include "files/origin.h"
#include "train/run/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

static const void *at(const sr_run_settings *settings, const sr_setting *setting) {
    return (const char *)settings + setting->offset;
}

static void *place(sr_run_settings *settings, const sr_setting *setting) {
    return (char *)settings + setting->offset;
}

/* A double-quoted scalar. */
static void write_text(FILE *out, const char *text) {
    putc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(out, "\\x%02x", *c);
        else
            putc(*c, out);
    }
    putc('"', out);
}

/* The shortest text that parses to the same number; whole numbers as such: 10000, not 1e+04. */
static void write_number(FILE *out, double number) {
    char text[64];
    if (fabs(number) < 1e15 && number == floor(number)) {
        fprintf(out, "%.0f", number);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    fputs(text, out);
}

static void write_setting(FILE *out, const sr_run_settings *settings, const sr_setting *setting) {
    const void *value = at(settings, setting);
    fprintf(out, "%s: ", setting->name);
    switch (setting->kind) {
    case SR_SETTING_FLAG:
        fputs(*(const bool *)value ? "true" : "false", out);
        break;
    case SR_SETTING_TEXT:
        write_text(out, *(char *const *)value);
        break;
    case SR_SETTING_INTEGER:
        fprintf(out, "%d", *(const int *)value);
        break;
    case SR_SETTING_INTEGER64:
        fprintf(out, "%" PRId64, *(const int64_t *)value);
        break;
    case SR_SETTING_NUMBER:
        write_number(out, *(const double *)value);
        break;
    case SR_SETTING_CHOICE:
        fputs(setting->choices[*(const int *)value], out);
        break;
    }
    putc('\n', out);
}

/* Version, revision and machine of the run; only identity and instruction set are read back. */
static void write_origin(FILE *out, const sr_run_settings *settings) {
    sr_machine machine;
    sr_machine_look(&machine);
    fprintf(out, "\n# where and with what this run was started\nidentity: ");
    write_text(out, settings->identity);
    fprintf(out, "\ninstructions: ");
    write_text(out, settings->instructions);
    fprintf(out, "\nversion: ");
    write_text(out, srnn_version());
    fprintf(out, "\nrevision: ");
    write_text(out, sr_revision());
    fprintf(out, "\nmachine: ");
    write_text(out, machine.machine);
    fprintf(out, "\nsystem: ");
    write_text(out, machine.system);
    fprintf(out, "\nprocessors: %d\n", machine.processors);
}

srnn_status sr_run_settings_write(const sr_run_settings *settings, const char *path) {
    char *text = NULL;
    size_t length;
    FILE *out = sr_memory_stream(&text, &length);
    if (!out)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    fputs("# the settings of this run\n", out);
    for (size_t i = 0; sr_setting_at(i); i++)
        write_setting(out, settings, sr_setting_at(i));
    write_origin(out, settings);
    srnn_status status = SRNN_OK;
    if (fclose(out) != 0)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    if (status == SRNN_OK)
        status = sr_file_replace(path, text, length);
    free(text);
    return status;
}

static bool read_number(double *number, const char *text) {
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return *text && !*end && !errno && isfinite(*number);
}

/* False if the text is not a valid value. */
static bool read_value(sr_run_settings *settings, const sr_setting *setting, const char *text) {
    void *value = place(settings, setting);
    double number;
    switch (setting->kind) {
    case SR_SETTING_FLAG:
        *(bool *)value = strcmp(text, "true") == 0;
        return *(bool *)value || strcmp(text, "false") == 0;
    case SR_SETTING_TEXT:
        return sr_run_settings_text(value, text) == SRNN_OK;
    case SR_SETTING_CHOICE:
        for (int i = 0; setting->choices[i]; i++)
            if (strcmp(setting->choices[i], text) == 0) {
                *(int *)value = i;
                return true;
            }
        return false;
    case SR_SETTING_INTEGER:
    case SR_SETTING_INTEGER64:
    case SR_SETTING_NUMBER:
        break;
    }
    if (!read_number(&number, text) || number < setting->least || number > setting->most)
        return false;
    if (setting->kind == SR_SETTING_NUMBER) {
        *(double *)value = number;
        return true;
    }
    if (number != floor(number))
        return false;
    if (setting->kind == SR_SETTING_INTEGER)
        *(int *)value = (int)number;
    else
        *(int64_t *)value = (int64_t)number;
    return true;
}

static const sr_setting *find_setting(const char *name) {
    for (size_t i = 0; sr_setting_at(i); i++)
        if (strcmp(sr_setting_at(i)->name, name) == 0)
            return sr_setting_at(i);
    return NULL;
}

static srnn_status wrong_name(const char *name) {
    enum { MOST_NAMES = 96 };
    const char *names[MOST_NAMES];
    size_t count = 0;
    for (; count < MOST_NAMES && sr_setting_at(count); count++)
        names[count] = sr_setting_at(count)->name;
    const char *near = sr_nearest_word(name, names, count);
    return SR_FAIL(SRNN_ERR_FORMAT, "there is no setting \"%s\"%s%s", name,
                   near ? "; did you mean " : "", near ? near : "");
}

/* A value of an older run.yaml in today's words: recompute was a flag once. */
static const char *todays_value(const char *name, const char *value) {
    if (strcmp(name, "recompute") == 0 && strcmp(value, "true") == 0)
        return "block";
    return strcmp(name, "recompute") == 0 && strcmp(value, "false") == 0 ? "none" : value;
}

srnn_status sr_run_settings_set(sr_run_settings *settings, const char *name, const char *value) {
    const sr_setting *setting = find_setting(name);
    if (!setting)
        return wrong_name(name);
    return read_value(settings, setting, todays_value(name, value))
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_FORMAT, "%s cannot be \"%s\"", name, value);
}

static srnn_status read_given(char *to, size_t size, const char *path, const char *key,
                              const char *value) {
    return snprintf(to, size, "%s", value) < (int)size
               ? SRNN_OK
               : SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is too long", path, key);
}

static srnn_status read_pair(sr_run_settings *settings, const char *path, const char *key,
                             const char *value) {
    static const char *const origin[] = {"version", "revision", "machine", "system", "processors"};
    for (size_t i = 0; i < sizeof origin / sizeof *origin; i++)
        if (strcmp(key, origin[i]) == 0)
            return SRNN_OK;
    if (strcmp(key, "identity") == 0)
        return read_given(settings->identity, sizeof settings->identity, path, key, value);
    if (strcmp(key, "instructions") == 0)
        return read_given(settings->instructions, sizeof settings->instructions, path, key, value);
    const srnn_status status = sr_run_settings_set(settings, key, value);
    if (status == SRNN_OK)
        return SRNN_OK;
    char why[512];
    snprintf(why, sizeof why, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s: %s", path, why);
}

/* The file is one flat mapping of scalars. */
static srnn_status read_events(sr_run_settings *settings, const char *path, yaml_parser_t *parser) {
    char *key = NULL;
    srnn_status status = SRNN_OK;
    for (bool done = false; !done && status == SRNN_OK;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            status =
                SR_FAIL(SRNN_ERR_FORMAT, "%s: line %zu: %s", path, parser->problem_mark.line + 1,
                        parser->problem ? parser->problem : "not YAML");
            break;
        }
        const char *text =
            event.type == YAML_SCALAR_EVENT ? (const char *)event.data.scalar.value : NULL;
        if (text && !key) {
            key = strdup(text);
            if (!key)
                status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory", path);
        } else if (text) {
            status = read_pair(settings, path, key, text);
            free(key);
            key = NULL;
        } else if (event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_ALIAS_EVENT ||
                   (event.type == YAML_MAPPING_START_EVENT && key)) {
            status = SR_FAIL(SRNN_ERR_FORMAT, "%s: not the settings of a run", path);
        }
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    free(key);
    return status;
}

srnn_status sr_run_settings_read(sr_run_settings *settings, const char *path) {
    sr_mapping file;
    yaml_parser_t parser;
    SR_TRY(sr_mapping_open(&file, path));
    if (!yaml_parser_initialize(&parser)) {
        sr_mapping_close(&file);
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", path);
    }
    yaml_parser_set_input_string(&parser, file.data, file.bytes);
    const srnn_status status = read_events(settings, path, &parser);
    yaml_parser_delete(&parser);
    sr_mapping_close(&file);
    return status;
}
