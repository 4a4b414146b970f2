/* chart.h (private): a chart of series, written as SVG or as data for the page's script. */
#ifndef SR_REPORT_DRAW_CHART_H
#define SR_REPORT_DRAW_CHART_H

#include "base/status.h"

#include <stdio.h>

typedef enum sr_chart_kind {
    SR_CHART_LINES = 0, /* y over x; low and high make a band */
    SR_CHART_POINTS,    /* one mark per point */
    SR_CHART_RANKS,     /* one row per series, top to bottom: its y along the axis, with its bar */
} sr_chart_kind;

/* Points of one name. The arrays belong to the chart. */
typedef struct sr_series {
    char *name;
    int style;          /* colour and dashes: the same number looks the same in every chart */
    double *x, *y;      /* (count) */
    double *low, *high; /* (count); equal to y where nothing is known */
    size_t count, capacity;
    double tokens, seconds, flops; /* what one unit of x is in these, of lines; 0: not known */
    double *dots;                  /* (dot_count): single observations, of ranks */
    size_t dot_count, dot_capacity;
    char *note; /* words instead of points, of ranks; NULL: none */
} sr_series;

typedef struct sr_chart {
    char *name;        /* stem of its file, and id in the page */
    char *title;       /* what it shows */
    char *description; /* what one sees in it, for whoever does not see it */
    char *x_title, *y_title;
    sr_chart_kind kind;
    bool x_log;
    bool has_reference; /* a line across at y = reference */
    double reference;
    double band;       /* half the width of a band around the reference, of ranks; 0: none */
    sr_series *series; /* (count) */
    size_t count, capacity;
    bool broken; /* no memory for something */
} sr_chart;

/* Texts are copied. */
srnn_status sr_chart_create(sr_chart **chart, sr_chart_kind kind, const char *name,
                            const char *title);
void sr_chart_free(sr_chart *chart);

void sr_chart_axes(sr_chart *chart, const char *x_title, const char *y_title);
void sr_chart_describe(sr_chart *chart, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Starts a series; points then go to it. */
void sr_chart_series(sr_chart *chart, const char *name, int style);

/* One unit of the series' x is so many tokens, seconds and floating-point operations: the page then
 * offers these as axes, where all series have them. What is not finite or not above 0 is not
 * known. */
void sr_chart_scale(sr_chart *chart, double tokens, double seconds, double flops);

/* A point whose y is not finite (or beyond 1e30) is left out; so is an x of 0 or less on a
 * logarithmic axis. */
void sr_chart_point(sr_chart *chart, double x, double y, double low, double high);

/* Of ranks: a band of half this width around the reference; one observation behind a point; words
 * in a row that has no point. */
void sr_chart_band(sr_chart *chart, double half);
void sr_chart_dot(sr_chart *chart, double y);
void sr_chart_note(sr_chart *chart, const char *words);

/* SRNN_ERR_MEMORY if anything above found no memory. */
srnn_status sr_chart_check(const sr_chart *chart);

/* True if there is anything to draw. */
bool sr_chart_has_points(const sr_chart *chart);

/* Colours and dashes are classes: c0..c6 and d0..d3 of the style sheet. */
enum { SR_CHART_COLOURS = 7, SR_CHART_DASHES = 4 };

/* An svg element; `style` (NULL: none) goes into it, for a file that stands alone. */
void sr_chart_write_svg(FILE *out, const sr_chart *chart, const char *style, size_t style_bytes);

/* A JSON object for the script. */
void sr_chart_write_data(FILE *out, const sr_chart *chart);

#endif
