/* layers.c: some layers of a model, as a text. */
#include "model/config/layers.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

/* A number at *at, which moves behind it; false if there is none. */
static bool number(long *value, const char **at) {
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    *value = strtol(*at, &end, 10);
    *at = end;
    return true;
}

/* One entry, "5", "0-3", "8-" or "3-/4", at *at; false if there is none. */
static bool entry(long *first, long *last, long *step, const char **at, int L) {
    *step = 1;
    if (!number(first, at))
        return false;
    *last = *first;
    if (**at == '-') {
        ++*at;
        if (!number(last, at))
            *last = L - 1;
    }
    if (**at != '/')
        return true;
    ++*at;
    return number(step, at) && *step > 0;
}

srnn_status sr_layers_parse(bool *some, int L, const char *text) {
    long first, last, step;
    for (int layer = 0; layer < L; layer++)
        some[layer] = false;
    for (const char *at = text; *at;) {
        const bool whole = entry(&first, &last, &step, &at, L);
        if (!whole || (*at && (*at != ',' || !at[1])))
            return SR_FAIL(SRNN_ERR_FORMAT,
                           "layers \"%s\": write numbers and ranges between commas, such as "
                           "0,5,8- or 3-/4",
                           text);
        at += *at == ',';
        if (first > last || last >= L)
            return SR_FAIL(SRNN_ERR_ARGUMENT, "layers \"%s\": the model has layers 0-%d", text,
                           L - 1);
        for (long layer = first; layer <= last; layer += step)
            some[layer] = true;
    }
    return SRNN_OK;
}

void sr_layers_print(char *text, size_t bytes, const bool *some, int L) {
    size_t length = 0;
    if (bytes)
        *text = '\0';
    for (int first = 0; first < L; first++) {
        int last = first;
        if (!some[first])
            continue;
        while (last + 1 < L && some[last + 1])
            last++;
        const int added =
            last > first
                ? snprintf(text + length, bytes - length, "%s%d-%d", length ? "," : "", first, last)
                : snprintf(text + length, bytes - length, "%s%d", length ? "," : "", first);
        length += (size_t)added;
        if (length >= bytes)
            return;
        first = last;
    }
}
