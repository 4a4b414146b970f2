/* chart_svg.c: a chart as an SVG element. */
#include "report/draw/chart.h"
#include "report/draw/escape.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    WIDTH = 720,
    HEIGHT = 380,
    TOP = 14,
    RIGHT = 16,
    BOTTOM = 50,
    LEFT = 66,
    KEY_ROW = 18, /* row height of the legend below a line chart */
    KEY_COLUMNS = 3,
    RANK_ROW = 26, /* row height of a rank chart */
    RANK_WIDTH = 480,
    RANK_LEFT = 175,  /* space for names */
    KEY_LETTERS = 28, /* longer names are cut in the legend; the tooltip has the whole name */
    RANK_LETTERS = 20,
    ENDS = 150, /* space for names at the ends of lines */
    END_LETTERS = 22,
    END_ROW = 12,
    TICKS = 6,
    FEW = 12,    /* up to this many values of x get a tick each */
    DOTTED = 24, /* lines with at most this many points have dots */
};

typedef struct axis {
    double low, high; /* in data; logarithms on a logarithmic axis */
    double from, to;  /* in the picture */
    double step;      /* between ticks */
    bool logarithmic;
} axis;

static double place(const axis *a, double value) {
    const double v = a->logarithmic ? log10(value) : value;
    return a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
}

/* 1, 2 or 5 times a power of ten, for about TICKS steps. */
static double nice_step(double span) {
    const double raw = span / TICKS, power = pow(10, floor(log10(raw)));
    const double lead = raw / power;
    return power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
}

static axis make_axis(double low, double high, double from, double to, bool logarithmic) {
    axis a = {.from = from, .to = to, .logarithmic = logarithmic};
    if (logarithmic) {
        low = log10(low);
        high = log10(high);
    }
    if (!(high - low > 1e-9 * fmax(fabs(low), fabs(high))) || high - low < 1e-12) {
        const double padding = fmax(fabs(low) * 0.05, 0.5);
        low -= padding;
        high += padding;
    }
    const double margin = logarithmic ? 0.15 : 0.03 * (high - low);
    a.low = low - margin;
    a.high = high + margin;
    a.step = logarithmic ? fmax(1, ceil((a.high - a.low) / TICKS)) : nice_step(a.high - a.low);
    return a;
}

typedef struct bounds {
    double x_low, x_high, y_low, y_high;
} bounds;

static bounds measure(const sr_chart *chart) {
    bounds b = {DBL_MAX, -DBL_MAX, DBL_MAX, -DBL_MAX};
    for (size_t s = 0; s < chart->count; s++)
        for (size_t i = 0; i < chart->series[s].count; i++) {
            const sr_series *series = &chart->series[s];
            b.x_low = fmin(b.x_low, series->x[i]);
            b.x_high = fmax(b.x_high, series->x[i]);
            b.y_low = fmin(b.y_low, series->low[i]);
            b.y_high = fmax(b.y_high, series->high[i]);
        }
    for (size_t s = 0; s < chart->count; s++)
        for (size_t i = 0; i < chart->series[s].dot_count; i++) {
            b.y_low = fmin(b.y_low, chart->series[s].dots[i]);
            b.y_high = fmax(b.y_high, chart->series[s].dots[i]);
        }
    if (chart->has_reference) {
        b.y_low = fmin(b.y_low, chart->reference - chart->band);
        b.y_high = fmax(b.y_high, chart->reference + chart->band);
    }
    return b;
}

static void write_tick(FILE *out, const axis *a, double value) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P", "E"};
    double shown = a->logarithmic ? pow(10, value) : value;
    size_t unit = 0;
    if (fabs(shown) < a->step * 1e-6)
        shown = 0; /* not -1e-17 */
    for (; fabs(shown) >= (unit || a->logarithmic ? 999.5 : 9999.5) && unit < 6; unit++)
        shown /= 1000;
    fprintf(out, "%s%.6g%s", shown < 0 ? "\u2212" : "", fabs(shown), units[unit]);
}

static void write_x_tick(FILE *out, const axis *a, double v, double top, double bottom) {
    const double x = a->from + (v - a->low) / (a->high - a->low) * (a->to - a->from);
    fprintf(out,
            "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/><text class=\"tick\" x=\"%.1f\" "
            "y=\"%.1f\" text-anchor=\"middle\">",
            x, top, bottom, x, bottom + 17);
    write_tick(out, a, v);
    fputs("</text>\n", out);
}

/* The distinct x of a line chart, if they are integers and few: orders, lengths. Returns their
 * number; FEW + 1: too many, or not integers. */
static size_t few_places(double places[FEW], const sr_chart *chart) {
    size_t count = 0;
    for (size_t s = 0; s < chart->count; s++)
        for (size_t i = 0; i < chart->series[s].count; i++) {
            const double x = chart->series[s].x[i];
            size_t k = 0;
            while (k < count && places[k] != x)
                k++;
            if (k == count && (count == FEW || x != floor(x)))
                return FEW + 1;
            if (k == count)
                places[count++] = x;
        }
    return count;
}

/* A logarithmic axis of few decades has ticks at 1, 2 and 5 in each of them. */
static void write_x_ticks(FILE *out, const axis *a, double bottom) {
    enum { FEW_DECADES = 3 };
    static const double leads[] = {1, 2, 5};
    const size_t parts = a->logarithmic && a->high - a->low < FEW_DECADES ? 3 : 1;
    for (double v = floor(a->low / a->step) * a->step; v <= a->high; v += a->step)
        for (size_t i = 0; i < parts; i++) {
            const double at = v + log10(leads[i]);
            if (at >= a->low && at <= a->high)
                write_x_tick(out, a, at, TOP, bottom);
        }
}

/* Ticks at these values, or evenly spaced if there are none. */
static void write_x_axis(FILE *out, const axis *a, const sr_chart *chart, double bottom,
                         const char *title) {
    double places[FEW];
    const size_t count = chart->kind == SR_CHART_LINES ? few_places(places, chart) : FEW + 1;
    for (size_t i = 0; i < count && count <= FEW; i++)
        write_x_tick(out, a, a->logarithmic ? log10(places[i]) : places[i], TOP, bottom);
    if (count > FEW)
        write_x_ticks(out, a, bottom);
    fprintf(out, "<text class=\"axis\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
            (a->from + a->to) / 2, bottom + 38);
    sr_escape_html(out, title);
    fputs("</text>\n", out);
}

static void write_y_axis(FILE *out, const axis *a, double left, double right, const char *title) {
    for (double v = ceil(a->low / a->step) * a->step; v <= a->high; v += a->step) {
        const double y = place(a, v);
        fprintf(out,
                "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"tick\" x=\"%.1f\" "
                "y=\"%.1f\" text-anchor=\"end\">",
                left, y, right, left - 7, y + 4);
        write_tick(out, a, v);
        fputs("</text>\n", out);
    }
    const double middle = (a->from + a->to) / 2;
    fprintf(out,
            "<text class=\"axis\" x=\"16\" y=\"%.1f\" text-anchor=\"middle\" "
            "transform=\"rotate(-90 16 %.1f)\">",
            middle, middle);
    sr_escape_html(out, title);
    fputs("</text>\n", out);
}

static int colour(const sr_series *series) {
    return series->style % SR_CHART_COLOURS;
}

static int dashes(const sr_series *series) {
    return series->style / SR_CHART_COLOURS % SR_CHART_DASHES;
}

/* A name of at most `letters` characters; the tooltip has the whole name. */
static void write_name(FILE *out, const char *name, size_t letters) {
    size_t bytes = 0, count = 0;
    for (; name[bytes] && count <= letters; bytes++)
        count += ((unsigned char)name[bytes] & 0xC0) != 0x80;
    if (!name[bytes]) {
        sr_escape_html(out, name);
        return;
    }
    char cut[4 * 64];
    bytes = bytes - 1 < sizeof cut - 1 ? bytes - 1 : sizeof cut - 1;
    memcpy(cut, name, bytes);
    cut[bytes] = '\0';
    sr_escape_html(out, cut);
    fputs("\u2026", out);
}

static void write_band(FILE *out, const sr_series *series, const axis *x, const axis *y) {
    bool wide = false;
    for (size_t i = 0; i < series->count; i++)
        wide = wide || series->high[i] > series->low[i];
    if (!wide)
        return;
    fprintf(out, "<path class=\"band c%d\" d=\"", colour(series));
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', place(x, series->x[i]),
                place(y, series->high[i]));
    for (size_t i = series->count; i-- > 0;)
        fprintf(out, "L%.1f %.1f", place(x, series->x[i]), place(y, series->low[i]));
    fputs("Z\"/>\n", out);
}

static void write_line(FILE *out, const sr_series *series, const axis *x, const axis *y) {
    fprintf(out, "<path class=\"line c%d d%d\" d=\"", colour(series), dashes(series));
    for (size_t i = 0; i < series->count; i++)
        fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', place(x, series->x[i]), place(y, series->y[i]));
    fputs("\"><title>", out);
    sr_escape_html(out, series->name);
    fputs("</title></path>\n", out);
    for (size_t i = 0; i < series->count && series->count <= DOTTED; i++)
        fprintf(out, "<circle class=\"mark c%d d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"/>\n",
                colour(series), dashes(series), place(x, series->x[i]), place(y, series->y[i]));
}

/* Circles, then squares; every second one is hollow. */
static void write_shape(FILE *out, const sr_series *series, double x, double y) {
    fprintf(out, "<path class=\"mark c%d d%d\" d=\"M%.1f %.1f%s\"", colour(series), dashes(series),
            x - 5, dashes(series) < 2 ? y : y - 5,
            dashes(series) < 2 ? "a5 5 0 1 1 10 0a5 5 0 1 1-10 0z" : "h10v10h-10z");
}

static void write_mark(FILE *out, const sr_series *series, size_t i, double x, double y) {
    write_shape(out, series, x, y);
    fputs("><title>", out);
    sr_escape_html(out, series->name);
    fprintf(out, ": %.4g", series->y[i]);
    if (series->high[i] > series->low[i])
        fprintf(out, " [%.4g, %.4g]", series->low[i], series->high[i]);
    fputs("</title></path>\n", out);
}

static void write_points(FILE *out, const sr_series *series, const axis *x, const axis *y) {
    for (size_t i = 0; i < series->count; i++)
        write_mark(out, series, i, place(x, series->x[i]), place(y, series->y[i]));
}

/* The name of a line at its end; `y` is already adjusted to avoid overlaps. */
static void write_end(FILE *out, const sr_series *series, const axis *x, double from, double y) {
    const size_t last = series->count - 1;
    fprintf(out,
            "<path class=\"leader c%d d%d\" d=\"M%.1f %.1fL%.1f %.1f\"/>"
            "<text class=\"end t%d\" x=\"%.1f\" y=\"%.1f\">",
            colour(series), dashes(series), place(x, series->x[last]), from, x->to + 14, y,
            colour(series), x->to + 18, y + 4);
    write_name(out, series->name, END_LETTERS);
    fputs("</text>\n", out);
}

/* Names from the top down, each below the previous one; a chart with too many has only the
 * legend. */
static void write_ends(FILE *out, const sr_chart *chart, const axis *x, const axis *y) {
    enum { MOST = (HEIGHT - TOP - BOTTOM) / END_ROW };
    size_t order[MOST], count = 0;
    double at[MOST];
    for (size_t s = 0; s < chart->count; s++) {
        if (chart->series[s].count == 0)
            continue;
        if (count == MOST)
            return;
        order[count++] = s;
    }
    for (size_t i = 1; i < count; i++) /* by the y of the end */
        for (size_t k = i; k > 0; k--) {
            const sr_series *a = &chart->series[order[k - 1]], *b = &chart->series[order[k]];
            if (a->y[a->count - 1] >= b->y[b->count - 1])
                break;
            const size_t swap = order[k];
            order[k] = order[k - 1];
            order[k - 1] = swap;
        }
    for (size_t i = 0; i < count; i++) {
        const sr_series *series = &chart->series[order[i]];
        at[i] = fmax(place(y, series->y[series->count - 1]), i ? at[i - 1] + END_ROW : TOP);
    }
    double limit = HEIGHT - BOTTOM;
    for (size_t i = count; i-- > 0; limit = at[i] - END_ROW)
        at[i] = fmin(at[i], limit);
    for (size_t i = 0; i < count; i++) {
        const sr_series *series = &chart->series[order[i]];
        write_end(out, series, x, place(y, series->y[series->count - 1]), at[i]);
    }
}

static void write_key(FILE *out, const sr_chart *chart) {
    const double column = (double)(WIDTH - LEFT - RIGHT) / KEY_COLUMNS;
    for (size_t s = 0; s < chart->count; s++) {
        const sr_series *series = &chart->series[s];
        const double x = LEFT + column * (double)(s % KEY_COLUMNS);
        const double y = HEIGHT + 12 + KEY_ROW * (double)(s / KEY_COLUMNS);
        if (chart->kind == SR_CHART_LINES) {
            fprintf(out, "<path class=\"line c%d d%d\" d=\"M%.1f %.1fh26\"/>", colour(series),
                    dashes(series), x, y - 4);
        } else {
            write_shape(out, series, x + 13, y - 4);
            fputs("/>", out);
        }
        fprintf(out, "<text class=\"key\" x=\"%.1f\" y=\"%.1f\">", x + 33, y);
        write_name(out, series->name, KEY_LETTERS);
        fputs("</text>\n", out);
    }
}

static void write_plane(FILE *out, const sr_chart *chart) {
    const bounds b = measure(chart);
    const double right = WIDTH - RIGHT - (chart->kind == SR_CHART_LINES ? ENDS : 0);
    const axis x = make_axis(b.x_low, b.x_high, LEFT, right, chart->x_log);
    const axis y = make_axis(b.y_low, b.y_high, HEIGHT - BOTTOM, TOP, false);
    write_x_axis(out, &x, chart, HEIGHT - BOTTOM, chart->x_title);
    write_y_axis(out, &y, LEFT, right, chart->y_title);
    if (chart->has_reference)
        fprintf(out, "<path class=\"reference\" d=\"M%d %.1fH%.1f\"/>\n", LEFT,
                place(&y, chart->reference), right);
    for (size_t s = 0; s < chart->count && chart->kind == SR_CHART_LINES; s++)
        write_band(out, &chart->series[s], &x, &y);
    for (size_t s = 0; s < chart->count; s++)
        if (chart->kind == SR_CHART_LINES)
            write_line(out, &chart->series[s], &x, &y);
        else
            write_points(out, &chart->series[s], &x, &y);
    if (chart->kind == SR_CHART_LINES)
        write_ends(out, chart, &x, &y);
    write_key(out, chart);
}

/* Observations are drawn first, below the bar and its mark. */
static void write_dots(FILE *out, const sr_series *series, const axis *along, double y) {
    for (size_t i = 0; i < series->dot_count; i++)
        fprintf(out, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>", colour(series),
                place(along, series->dots[i]), y + 9);
}

static void write_rank(FILE *out, const sr_series *series, const axis *along, double y) {
    fprintf(out, "<g class=\"rank\"><text class=\"name\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
            RANK_LEFT - 12, y + 4);
    write_name(out, series->name, RANK_LETTERS);
    fputs("</text>", out);
    if (series->note) {
        fprintf(out, "<text class=\"note\" x=\"%d\" y=\"%.1f\">", RANK_LEFT + 6, y + 4);
        sr_escape_html(out, series->note);
        fputs("</text>", out);
    }
    write_dots(out, series, along, y);
    for (size_t i = 0; i < series->count; i++) {
        if (series->high[i] > series->low[i])
            fprintf(out, "<path class=\"bar c%d\" d=\"M%.1f %.1fH%.1f\"/>", colour(series),
                    place(along, series->low[i]), y, place(along, series->high[i]));
        write_mark(out, series, i, place(along, series->y[i]), y);
    }
    fputs("</g>\n", out);
}

static void write_ranks(FILE *out, const sr_chart *chart) {
    const bounds b = measure(chart);
    const axis along = make_axis(b.y_low, b.y_high, RANK_LEFT, RANK_WIDTH - RIGHT, false);
    const double bottom = TOP + RANK_ROW * (double)chart->count;
    if (chart->band > 0) {
        const double left = place(&along, chart->reference - chart->band);
        fprintf(out, "<rect class=\"floor\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%.1f\"/>\n",
                left, TOP, place(&along, chart->reference + chart->band) - left, bottom - TOP);
    }
    write_x_axis(out, &along, chart, bottom, chart->y_title);
    if (chart->has_reference)
        fprintf(out, "<path class=\"reference\" d=\"M%.1f %dV%.1f\"/>\n",
                place(&along, chart->reference), TOP, bottom);
    for (size_t s = 0; s < chart->count; s++)
        write_rank(out, &chart->series[s], &along, TOP + RANK_ROW * ((double)s + 0.5));
}

static int width_of(const sr_chart *chart) {
    return chart->kind == SR_CHART_RANKS ? RANK_WIDTH : WIDTH;
}

static int height_of(const sr_chart *chart) {
    if (chart->kind == SR_CHART_RANKS)
        return TOP + RANK_ROW * (int)chart->count + BOTTOM;
    return HEIGHT + 8 + KEY_ROW * (int)((chart->count + KEY_COLUMNS - 1) / KEY_COLUMNS);
}

void sr_chart_write_svg(FILE *out, const sr_chart *chart, const char *style, size_t style_bytes) {
    fprintf(out, "<svg%s class=\"%s\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
            style ? " xmlns=\"http://www.w3.org/2000/svg\"" : "",
            chart->kind == SR_CHART_RANKS ? "ranks" : "plane", width_of(chart), height_of(chart));
    sr_escape_html(out, chart->title);
    fputs(". ", out);
    sr_escape_html(out, chart->description);
    fputs("\">\n", out);
    if (style) {
        fputs("<style>\n", out);
        fwrite(style, 1, style_bytes, out);
        fputs("</style>\n", out);
    }
    if (!sr_chart_has_points(chart))
        fprintf(out,
                "<text class=\"axis\" x=\"%d\" y=\"40\" text-anchor=\"middle\">nothing to "
                "draw</text>\n",
                WIDTH / 2);
    else if (chart->kind == SR_CHART_RANKS)
        write_ranks(out, chart);
    else
        write_plane(out, chart);
    fputs("</svg>\n", out);
}
