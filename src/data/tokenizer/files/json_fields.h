/* json_fields.h (private): reads the fields of a JSON object and rejects unknown ones. */
#ifndef SR_DATA_TOKENIZER_FILES_JSON_FIELDS_H
#define SR_DATA_TOKENIZER_FILES_JSON_FIELDS_H

#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>

/* `where` names the object in error messages: "model", "decoder". A missing field and null both
 * mean the default. */

/* SRNN_ERR_FORMAT if it is not an object, SRNN_ERR_UNSUPPORTED if it has a field that is not among
 * `allowed` (ends in NULL) and not null. */
srnn_status sr_json_check(const json_t *object, const char *where, const char *const *allowed);

/* The text of field "type", for a switch by name. */
srnn_status sr_json_type(const json_t *object, const char *where, const char **type);

srnn_status sr_json_bool(const json_t *object, const char *where, const char *name, bool *value);

/* *text is NULL if the field is missing. It belongs to the object. */
srnn_status sr_json_text(const json_t *object, const char *where, const char *name,
                         const char **text, size_t *bytes);

/* From 0 to `limit`. */
srnn_status sr_json_count(const json_t *object, const char *where, const char *name, int64_t limit,
                          int64_t *value);

#endif
