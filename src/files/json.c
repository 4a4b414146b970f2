/* json.c: records as JSON in files, read so that nothing in a file can hurt. */
#include "files/json.h"

#include "files/file.h"
#include "files/path.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

srnn_status sr_json_parse(json_t **root, const char *path, const char *text, size_t bytes,
                          size_t flags) {
    json_error_t error;
    *root = json_loadb(text, bytes, flags, &error);
    if (*root)
        return SRNN_OK;
    return json_error_code(&error) == json_error_out_of_memory
               ? SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", path)
               : SR_FAIL(SRNN_ERR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
}

srnn_status sr_json_load(json_t **root, const char *path, size_t flags) {
    sr_mapping mapping;
    *root = NULL;
    SR_TRY(sr_mapping_open(&mapping, path));
    const srnn_status status =
        sr_json_parse(root, path, (const char *)mapping.data, mapping.bytes, flags);
    sr_mapping_close(&mapping);
    return status;
}

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
    char path[SR_PATH_BYTES];
    *object = NULL;
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sr_json_load(object, path, 0));
    const srnn_status status = check(*object, path, format);
    if (status != SRNN_OK) {
        json_decref(*object);
        *object = NULL;
    }
    return status;
}

srnn_status sr_json_lines_read(const char *path, sr_json_visit *visit, void *context) {
    sr_mapping file;
    srnn_status status = SRNN_OK;
    if (access(path, F_OK) != 0)
        return SRNN_OK;
    SR_TRY(sr_mapping_open(&file, path));
    const char *at = (const char *)file.data, *end = at + file.bytes, *stop;
    for (size_t line = 1;
         status == SRNN_OK && at < end && (stop = memchr(at, '\n', (size_t)(end - at)));
         line++, at = stop + 1) {
        json_t *object;
        status = sr_json_parse(&object, path, at, (size_t)(stop - at), 0);
        if (status != SRNN_ERR_MEMORY)
            status = visit(context, json_is_object(object) ? object : NULL, line);
        json_decref(object);
    }
    sr_mapping_close(&file);
    return status;
}

srnn_status sr_json_replace(json_t *object, const char *folder, const char *name, size_t flags) {
    char path[SR_PATH_BYTES];
    srnn_status status = sr_path_join(path, folder, name);
    char *text = object && status == SRNN_OK ? json_dumps(object, flags) : NULL;
    if (status == SRNN_OK)
        status = text ? sr_file_replace(path, text, strlen(text))
                      : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to write it", path);
    free(text);
    json_decref(object);
    return status;
}

const char *sr_json_text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double sr_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

int64_t sr_json_integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : 0;
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

/* After a failed addition. */
static void spoil(json_t **whole) {
    json_decref(*whole);
    *whole = NULL;
}

void sr_json_append(json_t **array, json_t *value) {
    if (json_array_append_new(*array, value) != 0)
        spoil(array);
}

void sr_json_set(json_t **object, const char *key, json_t *value) {
    if (json_object_set_new(*object, key, value) != 0)
        spoil(object);
}

json_t *sr_json_plain_text(const char *text) {
    json_t *string = json_string(text);
    if (string)
        return string;
    char *plain = malloc(4 * strlen(text) + 1);
    if (!plain)
        return NULL;
    size_t length = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        length += (size_t)sprintf(plain + length, *c < 0x80 ? "%c" : "\\x%02x", *c);
    string = json_string(plain);
    free(plain);
    return string;
}
