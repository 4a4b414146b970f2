/* format.c: numbers as text for the report. */
#include "report/draw/format.h"

#include "base/units.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { DECIMALS_MAX = 9 };

static const sr_formatted dash = {"\u2013"};

/* Values that round to zero become zero, without a sign. */
static double without_dust(double value, int decimals) {
    return fabs(value) < 0.5 * pow(10, -decimals) ? 0 : value;
}

sr_formatted sr_format_fixed(double value, int decimals) {
    sr_formatted words;
    if (!isfinite(value))
        return dash;
    if (decimals >= DECIMALS_MAX && without_dust(value, decimals) == 0 && fabs(value) > 0)
        snprintf(words.text, sizeof words.text, "%.1e", value);
    else
        snprintf(words.text, sizeof words.text, fabs(value) < 1e9 ? "%.*f" : "%.*g", decimals,
                 without_dust(value, decimals));
    return words;
}

int sr_format_decimals(double low, double high, int least) {
    const bool holds_zero = low <= 0 && high >= 0;
    const double size = holds_zero ? fmax(fabs(low), fabs(high)) : fmin(fabs(low), fabs(high));
    if (!isfinite(size) || size == 0)
        return least;
    const double needed = 1 - floor(log10(size));
    return needed < least ? least : needed > DECIMALS_MAX ? DECIMALS_MAX : (int)needed;
}

sr_formatted sr_format_size(double value) {
    const double size = fabs(value);
    return sr_format_fixed(size, sr_format_decimals(size, size, 0));
}

sr_formatted sr_format_bound(double value, double low, double high) {
    return sr_format_fixed(fabs(value), sr_format_decimals(low, high, 3));
}

sr_formatted sr_format_signed(double value, int decimals) {
    sr_formatted words = sr_format_fixed(value, decimals);
    if (isfinite(value) && without_dust(value, decimals) > 0) {
        memmove(words.text + 1, words.text, sizeof words.text - 1);
        words.text[0] = '+';
    }
    return words;
}

sr_formatted sr_format_interval(double value, double low, double high) {
    sr_formatted words;
    const bool bounded = isfinite(low) && isfinite(high);
    const double numbers[] = {value, low, high};
    static const char *const around[] = {"", " [", ", "};
    const int decimals = sr_format_decimals(low, high, 3);
    size_t used = 0;
    for (size_t i = 0; i < (bounded ? 3 : 1); i++) {
        const sr_formatted number = sr_format_signed(numbers[i], decimals);
        const bool minus = number.text[0] == '-';
        used += (size_t)snprintf(words.text + used, sizeof words.text - used, "%s%s%.20s",
                                 around[i], minus ? "\u2212" : "", number.text + minus);
    }
    snprintf(words.text + used, sizeof words.text - used, bounded ? "]" : " (no interval)");
    return words;
}

sr_formatted sr_format_count(double value) {
    sr_formatted words;
    char digits[32];
    if (!isfinite(value) || fabs(value) >= 1e18)
        return dash;
    const int length = snprintf(digits, sizeof digits, "%.0f", value);
    size_t used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0 && digits[i - 1] != '-' && length > 4) {
            memcpy(words.text + used, "\u202f", 3); /* a narrow no-break space */
            used += 3;
        }
        words.text[used++] = digits[i];
    }
    words.text[used] = '\0';
    return words;
}

sr_formatted sr_format_bytes(double bytes) {
    sr_formatted words;
    char text[SR_BYTES_WORDS];
    if (!isfinite(bytes) || bytes < 0)
        return dash;
    snprintf(words.text, sizeof words.text, "%s", sr_bytes_words(text, bytes));
    return words;
}

void sr_format_stem(char *stem, size_t size, size_t number, const char *name) {
    enum { LETTERS = 24 };
    size_t used = (size_t)snprintf(stem, size, "%zu", number);
    for (size_t i = 0; name[i] && i < LETTERS && used + 2 < size; i++) {
        const bool plain = isalnum((unsigned char)name[i]) && (unsigned char)name[i] < 0x80;
        if (i == 0 || (!plain && stem[used - 1] != '-'))
            stem[used++] = '-';
        if (plain)
            stem[used++] = (char)tolower((unsigned char)name[i]);
    }
    stem[used] = '\0';
}
