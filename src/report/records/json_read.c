/* json_read.c: the fields of records, read so that nothing in a file can hurt. */
#include "report/records/json_read.h"

#include "files/file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static srnn_status check(const json_t *object, const char *path, const char *format) {
    if (strcmp(sr_json_text_of(object, "format"), format) != 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: its \"format\" is not \"%s\"", path, format);
    if (sr_json_number_of(object, "version") != 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "%s: its \"version\" is not 1: written by a newer softrnn?", path);
    return SRNN_OK;
}

srnn_status sr_json_read(json_t **object, const char *folder, const char *name,
                         const char *format) {
    char path[PATH_MAX];
    sr_mapping mapping;
    json_error_t error;
    *object = NULL;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    SR_TRY(sr_mapping_open(&mapping, path));
    json_t *read = json_loadb((const char *)mapping.data, mapping.bytes, 0, &error);
    sr_mapping_close(&mapping);
    if (!read)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    const srnn_status status = check(read, path, format);
    if (status != SRNN_OK) {
        json_decref(read);
        return status;
    }
    *object = read;
    return SRNN_OK;
}

const char *sr_json_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double sr_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

const json_t *sr_json_object_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_object(value) ? value : NULL;
}

size_t sr_json_count_of(const json_t *object, const char *key) {
    return json_array_size(json_object_get(object, key));
}

const json_t *sr_json_element_of(const json_t *object, const char *key, size_t i) {
    const json_t *value = json_array_get(json_object_get(object, key), i);
    return json_is_object(value) ? value : NULL;
}
