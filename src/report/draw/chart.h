/* chart.h (private): a chart of series, written as SVG or as data for the page's script. */
#ifndef SR_REPORT_DRAW_CHART_H
#define SR_REPORT_DRAW_CHART_H

#include "base/status.h"

#include <stdio.h>

typedef enum sr_chart_kind {
    SR_CHART_LINES = 0, /* y over x; low and high make a band */
    SR_CHART_POINTS,    /* one mark per point */
    SR_CHART_RANKS,     /* one row per series, top to bottom: its y along the axis, with an error
                         * bar */
} sr_chart_kind;

/* A named series of points. The arrays belong to the chart. */
typedef struct sr_series {
    char *name;
    int style;          /* colour and dashes: the same number is drawn the same in every chart */
    double *x, *y;      /* (count) */
    double *low, *high; /* (count); equal to y if unknown */
    size_t count, capacity;
    double tokens, seconds, flops; /* of lines: one unit of x in these; 0: unknown */
    double *dots;                  /* of ranks (dot_count): single observations */
    size_t dot_count, dot_capacity;
    char *note; /* of ranks: text instead of a point; NULL: none */
} sr_series;

typedef struct sr_chart {
    char *name; /* stem of its file, and id in the page */
    char *title;
    char *description; /* text alternative for screen readers */
    char *x_title, *y_title;
    sr_chart_kind kind;
    bool x_log;
    bool has_reference; /* a horizontal line at y = reference */
    double reference;
    double band;       /* of ranks: half the width of a band around the reference; 0: none */
    sr_series *series; /* (count) */
    size_t count, capacity;
    bool broken; /* an allocation failed */
} sr_chart;

/* Texts are copied. */
srnn_status sr_chart_create(sr_chart **chart, sr_chart_kind kind, const char *name,
                            const char *title);
void sr_chart_free(sr_chart *chart);

void sr_chart_axes(sr_chart *chart, const char *x_title, const char *y_title);
void sr_chart_describe(sr_chart *chart, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Starts a series; later points are added to it. */
void sr_chart_series(sr_chart *chart, const char *name, int style);

/* One unit of the series' x in tokens, seconds and floating-point operations: the page then offers
 * these as axes, if all series have them. Values that are not finite or not positive are
 * unknown. */
void sr_chart_scale(sr_chart *chart, double tokens, double seconds, double flops);

/* A point whose y is not finite (or beyond 1e30) is dropped; so is an x of 0 or less on a
 * logarithmic axis. */
void sr_chart_point(sr_chart *chart, double x, double y, double low, double high);

/* For ranks: a band of this half width around the reference; a single observation of a point; text
 * for a row without a point. */
void sr_chart_band(sr_chart *chart, double half);
void sr_chart_dot(sr_chart *chart, double y);
void sr_chart_note(sr_chart *chart, const char *words);

/* SRNN_ERR_MEMORY if anything above ran out of memory. */
srnn_status sr_chart_check(const sr_chart *chart);

/* True if there is anything to draw. */
bool sr_chart_has_points(const sr_chart *chart);

/* Colours and dashes are classes: c0..c6 and d0..d3 of the style sheet. */
enum { SR_CHART_COLOURS = 7, SR_CHART_DASHES = 4 };

/* An svg element; `style` (NULL: none) is included, for a standalone file. */
void sr_chart_write_svg(FILE *out, const sr_chart *chart, const char *style, size_t style_bytes);

/* A JSON object for the script. */
void sr_chart_write_data(FILE *out, const sr_chart *chart);

#endif
