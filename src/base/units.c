/* units.c: bytes and seconds as text. */
#include "base/units.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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

enum { MINUTE = 60, HOUR = 3600, DAY = 86400 };
static const double too_long = 1000.0 * 366 * DAY;

static void write_days(char words[SR_TIME_WORDS], int64_t seconds) {
    snprintf(words, SR_TIME_WORDS, "%lld d %lld h", (long long)(seconds / DAY),
             (long long)(seconds % DAY / HOUR));
}

const char *sr_clock_words(char words[SR_TIME_WORDS], double seconds) {
    const int64_t whole = seconds >= 0 && seconds < too_long ? (int64_t)seconds : -1;
    if (whole < 0)
        snprintf(words, SR_TIME_WORDS, "?");
    else if (whole >= DAY)
        write_days(words, whole);
    else if (whole >= HOUR)
        snprintf(words, SR_TIME_WORDS, "%d:%02d:%02d", (int)whole / HOUR, (int)whole / MINUTE % 60,
                 (int)whole % 60);
    else
        snprintf(words, SR_TIME_WORDS, "%d:%02d", (int)whole / MINUTE, (int)whole % 60);
    return words;
}

/* The smallest multiple of `unit` that is not less. */
static int64_t rounded_up(double seconds, int unit) {
    return (int64_t)ceil(seconds / unit) * unit;
}

const char *sr_duration_words(char words[SR_TIME_WORDS], double seconds) {
    if (!(seconds >= 0 && seconds < too_long))
        snprintf(words, SR_TIME_WORDS, "?");
    else if (seconds <= MINUTE)
        snprintf(words, SR_TIME_WORDS, "%d s", (int)rounded_up(seconds, 1));
    else if (rounded_up(seconds, MINUTE) < HOUR)
        snprintf(words, SR_TIME_WORDS, "%d min", (int)rounded_up(seconds, MINUTE) / MINUTE);
    else if (rounded_up(seconds, MINUTE) < DAY)
        snprintf(words, SR_TIME_WORDS, "%d h %d min", (int)rounded_up(seconds, MINUTE) / HOUR,
                 (int)rounded_up(seconds, MINUTE) / MINUTE % 60);
    else
        write_days(words, rounded_up(seconds, HOUR));
    return words;
}
