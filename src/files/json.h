/* json.h: JSON records in files, from untrusted input. */
#ifndef SR_FILES_JSON_H
#define SR_FILES_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Installs allocation functions that detect when jansson runs out of memory: by itself it may then
 * silently read a truncated number or text, or write only a part. Call it first in a program, as it
 * applies to all uses of jansson in the process. */
void sr_json_watch(void);

/* json_loadb, with *root NULL and an error for invalid JSON; false if memory ran out. */
bool sr_json_scan(json_t **root, json_error_t *error, const char *text, size_t bytes, size_t flags);

/* Parses JSON in memory with these flags of json_loadb. Fails with SRNN_ERR_FORMAT, naming `path`
 * and the line, or with SRNN_ERR_MEMORY: running out of memory does not mean a damaged file. The
 * caller decrefs it. */
srnn_status sr_json_parse(json_t **root, const char *path, const char *text, size_t bytes,
                          size_t flags);

/* The same for a file. */
srnn_status sr_json_load(json_t **root, const char *path, size_t flags);

/* The object in `folder`/`name`, whose "format" must be `format`. The caller decrefs it. */
srnn_status sr_json_read(json_t **object, const char *folder, const char *name, const char *format);

/* Visits every complete line of a file, which another process may be writing. `object` is NULL for
 * a line that is not a JSON object. Stops if a visit fails. A missing file has no lines. */
typedef srnn_status sr_json_visit(void *context, const json_t *object, size_t line);
srnn_status sr_json_lines_read(const char *path, sr_json_visit *visit, void *context);

/* *text = the object, which must be complete, written with these flags of json_dumps; free() it.
 * Fails if memory runs out, where json_dumps might drop a part. */
srnn_status sr_json_dump(char **text, const json_t *object, size_t flags, const char *what);

/* Replaces `folder`/`name` by the object, written with these flags of json_dumps, and decrefs it.
 * Fails if it is not complete. */
srnn_status sr_json_replace(json_t *object, const char *folder, const char *name, size_t flags);

/* Writes the object, which must be complete, and a newline. */
srnn_status sr_json_print(FILE *out, const json_t *object, size_t flags);

/* A missing value, or one of another type, reads as "", NAN, 0, NULL, or an empty array. Texts
 * belong to the object. */
const char *sr_json_text_of(const json_t *object, const char *key);
double sr_json_number_of(const json_t *object, const char *key);
int64_t sr_json_integer_of(const json_t *object, const char *key);
const json_t *sr_json_object_of(const json_t *object, const char *key);

/* Elements of the array at `key`; element i (NULL past the end, or if it is not an object). */
size_t sr_json_count_of(const json_t *object, const char *key);
const json_t *sr_json_element_of(const json_t *object, const char *key, size_t i);

/* Append to an array or set in an object; the container takes ownership of the value. As with a
 * stream, errors are sticky: a failed addition, or a NULL value or container, is remembered for
 * this thread and reported once by sr_json_complete. */
void sr_json_append(json_t *array, json_t *value);
void sr_json_set(json_t *object, const char *key, json_t *value);

/* Fails with SRNN_ERR_MEMORY if `whole` is NULL or an addition of this thread failed since the last
 * call. */
srnn_status sr_json_complete(const json_t *whole, const char *what);

/* A text that may not be UTF-8, which JSON requires: other bytes beyond ASCII are then written as
 * \xNN. NULL if memory runs out. */
json_t *sr_json_plain_text(const char *text);

#endif
