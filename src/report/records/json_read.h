/* json_read.h (private): the fields of records, read so that nothing in a file can hurt. */
#ifndef SR_REPORT_RECORDS_JSON_READ_H
#define SR_REPORT_RECORDS_JSON_READ_H

#include "base/status.h"

#include <jansson.h>

/* The object in `folder`/`name`, whose "format" must be `format`. The caller decrefs it. */
srnn_status sr_json_read(json_t **object, const char *folder, const char *name, const char *format);

/* Whatever is missing or of another type reads as "", NAN, NULL, or an empty array. Texts belong
 * to the object. */
const char *sr_json_text_of(const json_t *object, const char *key);
double sr_json_number_of(const json_t *object, const char *key);
const json_t *sr_json_object_of(const json_t *object, const char *key);

/* Elements of the array at `key`; element i (NULL past the end, or if it is no object). */
size_t sr_json_count_of(const json_t *object, const char *key);
const json_t *sr_json_element_of(const json_t *object, const char *key, size_t i);

#endif
