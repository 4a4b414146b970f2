/* member.c: single members of config.json, with their types checked. */
#include "model/config/member.h"

#include <limits.h>
#include <math.h>
#include <string.h>

void sr_config_refuse(sr_config_reader *reader, const char *key, const char *what) {
    if (reader->status == SRNN_OK)
        reader->status = SR_FAIL(SRNN_ERR_FORMAT, "%s: %s %s", reader->path, key, what);
}

const json_t *sr_config_value(const json_t *object, const char *key) {
    const json_t *found = json_object_get(object, key);
    return found && !json_is_null(found) ? found : NULL;
}

int sr_config_integer(sr_config_reader *reader, const char *key, int otherwise) {
    const json_t *found = sr_config_value(reader->root, key);
    if (!found)
        return otherwise;
    const json_int_t number = json_integer_value(found);
    if (!json_is_integer(found) || number < INT_MIN || number > INT_MAX) {
        sr_config_refuse(reader, key, "is not a whole number");
        return otherwise;
    }
    return (int)number;
}

double sr_config_real(sr_config_reader *reader, const json_t *object, const char *key,
                      double otherwise) {
    const json_t *found = sr_config_value(object, key);
    if (found && !json_is_number(found))
        sr_config_refuse(reader, key, "is not a number");
    return json_is_number(found) ? json_number_value(found) : otherwise;
}

bool sr_config_flag(sr_config_reader *reader, const json_t *object, const char *key,
                    bool otherwise) {
    const json_t *found = sr_config_value(object, key);
    if (found && !json_is_boolean(found))
        sr_config_refuse(reader, key, "is neither true nor false");
    return json_is_boolean(found) ? json_is_true(found) : otherwise;
}

const char *sr_config_word(sr_config_reader *reader, const json_t *object, const char *key,
                           const char *otherwise) {
    const json_t *found = sr_config_value(object, key);
    if (found && !json_is_string(found))
        sr_config_refuse(reader, key, "is not a text");
    return json_is_string(found) ? json_string_value(found) : otherwise;
}

/* An end of time_step_limit: a number, or transformers' {"__float__": "Infinity"}. */
static double limit_of(const json_t *value) {
    const json_t *word = json_object_get(value, "__float__");
    if (json_is_string(word))
        return strcmp(json_string_value(word), "Infinity") == 0 ? INFINITY : NAN;
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* Larger numbers than a float holds are as good as no limit; so files are read whose Infinity
 * became one. */
void sr_config_check_time_steps(sr_config_reader *r, const char *key) {
    const json_t *limit = sr_config_value(r->root, key);
    if (!limit || r->status != SRNN_OK)
        return;
    if (!(limit_of(json_array_get(limit, 0)) == 0 && limit_of(json_array_get(limit, 1)) > 1e38))
        r->status =
            SR_FAIL(SRNN_ERR_UNSUPPORTED,
                    "%s: %s must be [0, Infinity]: time steps are not limited here", r->path, key);
}
