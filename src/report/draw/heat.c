/* heat.c: a heat map, as SVG. */
#include "report/draw/heat.h"

#include "report/draw/escape.h"

#include <math.h>

enum { SIDE = 46, LEFT = 64, TOP = 44 };

static void write_label(FILE *out, int x, int y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\" font-size=\"12\">", x, y, anchor);
    sr_escape_html(out, text);
    fputs("</text>\n", out);
}

static void write_square(FILE *out, int row, int column, double value, double share) {
    const int x = LEFT + column * SIDE, y = TOP + row * SIDE;
    /* One hue from light to dark, so that it also reads in grey. */
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"/>"
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\" font-size=\"11\" style=\"fill:%s\">"
            "%.4g</text>\n",
            x, y, SIDE - 1, SIDE - 1, (int)(235 - 205 * share), (int)(242 - 170 * share),
            (int)(250 - 110 * share), x + SIDE / 2, y + SIDE / 2 + 4, share > 0.5 ? "#fff" : "#111",
            value);
}

/* The text alternative of a map; its numbers are in a table. */
static void write_summary(FILE *out, const sr_heat *heat, double least, double most) {
    sr_escape_html(out, heat->title);
    if (least <= most)
        fprintf(out, ": %d by %d squares, from %.4g to %.4g", heat->rows, heat->columns, least,
                most);
    fputs(". The numbers are in the table that follows.", out);
}

void sr_heat_write_svg(FILE *out, const sr_heat *heat) {
    double least = INFINITY, most = -INFINITY;
    char number[16];
    for (int i = 0; i < heat->rows * heat->columns; i++)
        if (isfinite(heat->values[i])) {
            least = fmin(least, heat->values[i]);
            most = fmax(most, heat->values[i]);
        }
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "fill=\"currentColor\" role=\"img\" aria-label=\"",
            LEFT + heat->columns * SIDE + 8, TOP + heat->rows * SIDE + 8,
            LEFT + heat->columns * SIDE + 8);
    write_summary(out, heat, least, most);
    fputs("\">\n", out);
    write_label(out, LEFT, 14, "start", heat->column_title);
    write_label(out, 4, TOP - 8, "start", heat->row_title);
    for (int column = 0; column < heat->columns; column++) {
        snprintf(number, sizeof number, "%d", column);
        write_label(out, LEFT + column * SIDE + SIDE / 2, TOP - 8, "middle", number);
    }
    for (int row = 0; row < heat->rows; row++) {
        snprintf(number, sizeof number, "%d", row);
        write_label(out, LEFT - 10, TOP + row * SIDE + SIDE / 2 + 4, "end", number);
        for (int column = 0; column < heat->columns; column++) {
            const double value = heat->values[row * heat->columns + column];
            if (isfinite(value))
                write_square(out, row, column, value,
                             most > least ? (value - least) / (most - least) : 0);
        }
    }
    fputs("</svg>\n", out);
}
