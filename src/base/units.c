/* units.c: numbers of bytes in words. */
#include "base/units.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

const char *sr_bytes_words(char words[SR_BYTES_WORDS], double bytes) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    size_t unit = 0;
    if (!isfinite(bytes)) {
        snprintf(words, SR_BYTES_WORDS, "-");
        return words;
    }
    /* What would be written as 1.02e+03 belongs to the next unit. */
    for (; bytes >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        bytes /= 1024;
    snprintf(words, SR_BYTES_WORDS, "%.3g %s", bytes, units[unit]);
    return words;
}
