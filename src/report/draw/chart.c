/* chart.c: a chart of series, and its data for the page's script. */
#include "report/draw/chart.h"

#include "base/memory.h"
#include "report/draw/escape.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static char *copy(sr_chart *chart, const char *text) {
    char *copied = strdup(text);
    chart->broken = chart->broken || !copied;
    return copied;
}

srnn_status sr_chart_create(sr_chart **chart, sr_chart_kind kind, const char *name,
                            const char *title) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **chart));
    *chart = memory;
    (*chart)->kind = kind;
    (*chart)->name = copy(*chart, name);
    (*chart)->title = copy(*chart, title);
    (*chart)->description = copy(*chart, "");
    (*chart)->x_title = copy(*chart, "");
    (*chart)->y_title = copy(*chart, "");
    return SRNN_OK;
}

void sr_chart_free(sr_chart *chart) {
    if (!chart)
        return;
    for (size_t i = 0; i < chart->count; i++) {
        free(chart->series[i].name);
        free(chart->series[i].x);
        free(chart->series[i].dots);
        free(chart->series[i].note);
    }
    free(chart->series);
    free(chart->name);
    free(chart->title);
    free(chart->description);
    free(chart->x_title);
    free(chart->y_title);
    free(chart);
}

void sr_chart_axes(sr_chart *chart, const char *x_title, const char *y_title) {
    free(chart->x_title);
    free(chart->y_title);
    chart->x_title = copy(chart, x_title);
    chart->y_title = copy(chart, y_title);
}

void sr_chart_describe(sr_chart *chart, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) {
        chart->broken = true;
        return;
    }
    free(chart->description);
    chart->description = text;
}

void sr_chart_series(sr_chart *chart, const char *name, int style) {
    if (chart->count == chart->capacity) {
        const size_t capacity = chart->capacity ? 2 * chart->capacity : 16;
        sr_series *series = realloc(chart->series, capacity * sizeof *series);
        if (!series) {
            chart->broken = true;
            return;
        }
        chart->series = series;
        chart->capacity = capacity;
    }
    chart->series[chart->count++] = (sr_series){.name = copy(chart, name), .style = style};
}

/* The four arrays are one block of four times the capacity. */
static bool grow(sr_series *series) {
    const size_t capacity = series->capacity ? 2 * series->capacity : 16;
    double *block = malloc(4 * capacity * sizeof *block);
    if (!block)
        return false;
    double *const from[] = {series->x, series->y, series->low, series->high};
    for (size_t i = 0; i < 4 && series->count; i++)
        memcpy(block + i * capacity, from[i], series->count * sizeof *block);
    free(series->x);
    series->x = block;
    series->y = block + capacity;
    series->low = block + 2 * capacity;
    series->high = block + 3 * capacity;
    series->capacity = capacity;
    return true;
}

/* Records may claim absurd values; differences of drawable ones cannot overflow. */
static bool drawable(double value) {
    return isfinite(value) && fabs(value) < 1e30;
}

void sr_chart_point(sr_chart *chart, double x, double y, double low, double high) {
    if (chart->broken || !drawable(x) || !drawable(y) || (chart->x_log && x <= 0))
        return;
    sr_series *series = &chart->series[chart->count - 1];
    if (series->count == series->capacity && !grow(series)) {
        chart->broken = true;
        return;
    }
    series->x[series->count] = x;
    series->y[series->count] = y;
    series->low[series->count] = drawable(low) ? low : y;
    series->high[series->count++] = drawable(high) ? high : y;
}

static double known(double scale) {
    return drawable(scale) && scale > 0 ? scale : 0;
}

void sr_chart_scale(sr_chart *chart, double tokens, double seconds, double flops) {
    if (chart->broken)
        return;
    chart->series[chart->count - 1].tokens = known(tokens);
    chart->series[chart->count - 1].seconds = known(seconds);
    chart->series[chart->count - 1].flops = known(flops);
}

void sr_chart_band(sr_chart *chart, double half) {
    chart->band = drawable(half) && half > 0 ? half : 0;
}

void sr_chart_dot(sr_chart *chart, double y) {
    if (chart->broken || !drawable(y))
        return;
    sr_series *series = &chart->series[chart->count - 1];
    if (series->dot_count == series->dot_capacity) {
        const size_t capacity = series->dot_capacity ? 2 * series->dot_capacity : 8;
        double *dots = realloc(series->dots, capacity * sizeof *dots);
        if (!dots) {
            chart->broken = true;
            return;
        }
        series->dots = dots;
        series->dot_capacity = capacity;
    }
    series->dots[series->dot_count++] = y;
}

void sr_chart_note(sr_chart *chart, const char *words) {
    if (chart->broken)
        return;
    sr_series *series = &chart->series[chart->count - 1];
    free(series->note);
    series->note = copy(chart, words);
}

srnn_status sr_chart_check(const sr_chart *chart) {
    return chart->broken ? SR_FAIL(SRNN_ERR_MEMORY, "no memory for a chart of the report")
                         : SRNN_OK;
}

bool sr_chart_has_points(const sr_chart *chart) {
    if (chart->broken)
        return true; /* it had some; sr_chart_check reports the failure */
    for (size_t i = 0; i < chart->count; i++)
        if (chart->series[i].count || chart->series[i].note)
            return true;
    return false;
}

static void write_numbers(FILE *out, const char *name, const double *numbers, size_t count) {
    fprintf(out, ",\"%s\":[", name);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s%.5g", i ? "," : "", numbers[i]);
    putc(']', out);
}

static bool has_bars(const sr_series *series) {
    for (size_t i = 0; i < series->count; i++)
        if (series->low[i] < series->y[i] || series->high[i] > series->y[i])
            return true;
    return false;
}

static void write_series(FILE *out, const sr_series *series) {
    fputs("{\"name\":", out);
    sr_escape_script(out, series->name);
    fprintf(out, ",\"style\":%d", series->style);
    if (series->tokens > 0)
        fprintf(out, ",\"tokens\":%.9g", series->tokens);
    if (series->seconds > 0)
        fprintf(out, ",\"seconds\":%.5g", series->seconds);
    if (series->flops > 0)
        fprintf(out, ",\"flops\":%.5g", series->flops);
    write_numbers(out, "x", series->x, series->count);
    write_numbers(out, "y", series->y, series->count);
    if (has_bars(series)) {
        write_numbers(out, "low", series->low, series->count);
        write_numbers(out, "high", series->high, series->count);
    }
    putc('}', out);
}

void sr_chart_write_data(FILE *out, const sr_chart *chart) {
    fputs("{\"name\":", out);
    sr_escape_script(out, chart->name);
    fputs(",\"x_title\":", out);
    sr_escape_script(out, chart->x_title);
    fputs(",\"y_title\":", out);
    sr_escape_script(out, chart->y_title);
    fprintf(out, ",\"points\":%s,\"x_log\":%s", chart->kind == SR_CHART_POINTS ? "true" : "false",
            chart->x_log ? "true" : "false");
    fputs(",\"series\":[", out);
    for (size_t i = 0; i < chart->count; i++) {
        fputs(i ? ",\n" : "\n", out);
        write_series(out, &chart->series[i]);
    }
    fputs("]}", out);
}
