/* json_fields.c: reads the fields of a JSON object and rejects unknown ones. */
#include "data/tokenizer/files/json_fields.h"

#include <string.h>

static bool contains(const char *const *words, const char *word) {
    for (; *words; words++)
        if (strcmp(*words, word) == 0)
            return true;
    return false;
}

srnn_status sr_json_check(const json_t *object, const char *where, const char *const *allowed) {
    if (!json_is_object(object))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s is not an object", where);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value) {
        if (!json_is_null(value) && !contains(allowed, name))
            return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: the field \"%s\" is not supported", where,
                           name);
    }
    return SRNN_OK;
}

/* The field, or NULL if it is missing or null. */
static const json_t *field(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

srnn_status sr_json_text(const json_t *object, const char *where, const char *name,
                         const char **text, size_t *bytes) {
    const json_t *value = field(object, name);
    *text = NULL;
    *bytes = 0;
    if (!value)
        return SRNN_OK;
    if (!json_is_string(value))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"%s\" is not a string", where, name);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return SRNN_OK;
}

srnn_status sr_json_type(const json_t *object, const char *where, const char **type) {
    size_t bytes;
    if (!json_is_object(object))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s is not an object", where);
    SR_TRY(sr_json_text(object, where, "type", type, &bytes));
    if (!*type)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"type\" is missing", where);
    return SRNN_OK;
}

srnn_status sr_json_bool(const json_t *object, const char *where, const char *name, bool *value) {
    const json_t *found = field(object, name);
    if (!found)
        return SRNN_OK;
    if (!json_is_boolean(found))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"%s\" is neither true nor false", where, name);
    *value = json_is_true(found);
    return SRNN_OK;
}

srnn_status sr_json_count(const json_t *object, const char *where, const char *name, int64_t limit,
                          int64_t *value) {
    const json_t *found = field(object, name);
    if (!found)
        return SRNN_OK;
    if (!json_is_integer(found) || json_integer_value(found) < 0 ||
        json_integer_value(found) > limit)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: \"%s\" is not a number from 0 to %lld", where, name,
                       (long long)limit);
    *value = json_integer_value(found);
    return SRNN_OK;
}
