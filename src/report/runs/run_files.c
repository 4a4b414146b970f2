/* run_files.c: reads the files of one run. */
#include "report/runs/run_files.h"

#include "files/file.h"
#include "files/json.h"
#include "files/path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_status read_settings(sr_run_files *run) {
    char path[SR_PATH_BYTES];
    sr_mapping file;
    SR_TRY(sr_path_join(path, run->folder, "run.yaml"));
    SR_TRY(sr_mapping_open(&file, path));
    run->settings = strndup((const char *)file.data, file.bytes);
    sr_mapping_close(&file);
    return run->settings ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", path);
}

/* Ignores slashes at the end of a path. */
static char *last_name(const char *folder) {
    size_t end = strlen(folder);
    while (end > 1 && folder[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && folder[begin - 1] != '/')
        begin--;
    return strndup(folder + begin, end - begin);
}

static srnn_status add_seconds(void *context, const json_t *object, size_t line) {
    sr_run_files *run = context;
    const double seconds = sr_json_number_of(object, "seconds");
    (void)line;
    if (isfinite(seconds))
        run->seconds = isfinite(run->seconds) ? run->seconds + seconds : seconds;
    return SRNN_OK;
}

srnn_status sr_run_files_read(sr_run_files *run, const char *folder) {
    char path[SR_PATH_BYTES];
    *run = (sr_run_files){.folder = folder, .name = last_name(folder), .seconds = NAN};
    if (!run->name)
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory for a name");
    SR_TRY(read_settings(run));
    SR_TRY(sr_path_join(path, folder, "metrics.jsonl"));
    SR_TRY(sr_curve_read(&run->curve, path, sr_run_number(run, "steps")));
    SR_TRY(sr_path_join(path, folder, "timings.jsonl"));
    return sr_json_lines_read(path, add_seconds, run);
}

void sr_run_files_free(sr_run_files *run) {
    free(run->name);
    free(run->settings);
    *run = (sr_run_files){0};
}

void sr_run_setting(char value[SR_SETTING_TEXT_BYTES], const sr_run_files *run, const char *name) {
    const size_t length = strlen(name);
    value[0] = '\0';
    for (const char *line = run->settings; *line; line += strcspn(line, "\n") + 1) {
        if (strncmp(line, name, length) == 0 && strncmp(line + length, ": ", 2) == 0) {
            const char *from = line + length + 2;
            size_t bytes = strcspn(from, "\n");
            const bool quoted = bytes >= 2 && from[0] == '"' && from[bytes - 1] == '"';
            snprintf(value, SR_SETTING_TEXT_BYTES, "%.*s", (int)bytes - 2 * quoted, from + quoted);
            return;
        }
        if (!strchr(line, '\n'))
            return;
    }
}

double sr_run_number(const sr_run_files *run, const char *name) {
    char value[SR_SETTING_TEXT_BYTES], *end;
    sr_run_setting(value, run, name);
    const double number = strtod(value, &end);
    return end == value ? NAN : number;
}

bool sr_run_setting_name(char name[SR_SETTING_TEXT_BYTES], const sr_run_files *run, size_t index) {
    const char *line = run->settings;
    for (; index > 0 && *line; index--)
        line += strcspn(line, "\n") + (strchr(line, '\n') != NULL);
    const size_t length = strcspn(line, ":\n");
    snprintf(name, SR_SETTING_TEXT_BYTES, "%.*s", line[length] == ':' ? (int)length : 0, line);
    if (*name == '#' || *name == ' ')
        *name = '\0';
    return *line;
}
