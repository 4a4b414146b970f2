/* json.h: records as JSON in files, read so that nothing in a file can hurt. */
#ifndef SR_FILES_JSON_H
#define SR_FILES_JSON_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Makes jansson tell this module when memory is short for it: by itself it then may read a number
 * or a text that is cut off, and write less than there is, without a word. For a program to call
 * first, as it holds for all who use jansson in the process. */
void sr_json_watch(void);

/* json_loadb, which gives NULL with an error for what is no JSON; false if memory was short. */
bool sr_json_scan(json_t **root, json_error_t *error, const char *text, size_t bytes, size_t flags);

/* The JSON in memory, read with these flags of json_loadb. Fails with SRNN_ERR_FORMAT, naming
 * `path` and the line, or with SRNN_ERR_MEMORY: a file is not damaged because memory is short. The
 * caller decrefs it. */
srnn_status sr_json_parse(json_t **root, const char *path, const char *text, size_t bytes,
                          size_t flags);

/* The same for a file. */
srnn_status sr_json_load(json_t **root, const char *path, size_t flags);

/* The object in `folder`/`name`, whose "format" must be `format`. The caller decrefs it. */
srnn_status sr_json_read(json_t **object, const char *folder, const char *name, const char *format);

/* Every whole line of a file: a process may be writing it. `object` is NULL for a line that is not
 * JSON object. Ends early if a visit fails. A file that is missing has no lines. */
typedef srnn_status sr_json_visit(void *context, const json_t *object, size_t line);
srnn_status sr_json_lines_read(const char *path, sr_json_visit *visit, void *context);

/* *text = the object, which must be complete, written with these flags of json_dumps; free() it.
 * Fails where json_dumps would lose a part for which there is no memory. */
srnn_status sr_json_dump(char **text, const json_t *object, size_t flags, const char *what);

/* Replaces `folder`/`name` by the object, written with these flags of json_dumps, and decrefs it.
 * Fails if it is not complete. */
srnn_status sr_json_replace(json_t *object, const char *folder, const char *name, size_t flags);

/* Writes the object, which must be complete, and the end of a line. */
srnn_status sr_json_print(FILE *out, const json_t *object, size_t flags);

/* Whatever is missing or of another type reads as "", NAN, 0, NULL, or an empty array. Texts belong
 * to the object. */
const char *sr_json_text_of(const json_t *object, const char *key);
double sr_json_number_of(const json_t *object, const char *key);
int64_t sr_json_integer_of(const json_t *object, const char *key);
const json_t *sr_json_object_of(const json_t *object, const char *key);

/* Elements of the array at `key`; element i (NULL past the end, or if it is not an object). */
size_t sr_json_count_of(const json_t *object, const char *key);
const json_t *sr_json_element_of(const json_t *object, const char *key, size_t i);

/* Add a value, which is then theirs, to an array or an object. Like a stream, a thread remembers
 * that memory was short for an addition, or for the value (NULL) or the whole (NULL): who makes a
 * record looks once, with sr_json_complete. */
void sr_json_append(json_t *array, json_t *value);
void sr_json_set(json_t *object, const char *key, json_t *value);

/* Fails with SRNN_ERR_MEMORY if `whole` is NULL or an addition of this thread failed since the last
 * call. */
srnn_status sr_json_complete(const json_t *whole, const char *what);

/* A text that may be no UTF-8, which JSON must be: bytes beyond ASCII are then written as \xNN.
 * NULL if memory is short. */
json_t *sr_json_plain_text(const char *text);

#endif
