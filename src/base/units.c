/* units.c: numbers of bytes in words. */
#include "base/units.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

const char *sr_bytes_words(char words[SR_BYTES_WORDS], double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    size_t unit = 0;
    if (!isfinite(bytes)) {
        snprintf(words, SR_BYTES_WORDS, "-");
        return words;
    }
    for (; bytes >= 1023.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        bytes /= 1024;
    /* From 1000 to 1023 three digits would become a power of ten. */
    const bool four = bytes >= 999.5 && bytes < 1023.5;
    snprintf(words, SR_BYTES_WORDS, four ? "%.0f %s" : "%.3g %s", bytes, units[unit]);
    return words;
}
