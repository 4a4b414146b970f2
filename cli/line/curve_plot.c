/* curve_plot.c: loss curves as a text plot. */
#include "cli/line/curve_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 16, COLUMNS = 72 };

/* The scale of the plot. */
typedef struct axes {
    double first_step, last_step, low, high; /* low and high: as drawn, maybe logarithms */
    int logarithmic;
} axes;

char curve_letter(int index) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return letters[(size_t)index % (sizeof letters - 1)];
}

static double drawn(const axes *a, double loss) {
    return a->logarithmic ? log10(loss) : loss;
}

static int find_axes(axes *a, const curve *curves, int count) {
    double low = INFINITY, high = -INFINITY;
    *a = (axes){.first_step = INFINITY, .last_step = -INFINITY};
    for (int c = 0; c < count; c++)
        for (size_t i = 0; i < curves[c].count; i++) {
            a->first_step = fmin(a->first_step, curves[c].steps[i]);
            a->last_step = fmax(a->last_step, curves[c].steps[i]);
            low = fmin(low, curves[c].losses[i]);
            high = fmax(high, curves[c].losses[i]);
        }
    if (!(low <= high))
        return 0;
    a->logarithmic = low > 0 && high > 10 * low;
    a->low = drawn(a, low);
    a->high = drawn(a, high);
    if (!(a->high > a->low)) {
        a->low -= 0.5;
        a->high += 0.5;
    }
    return 1;
}

/* The loss of a curve at a step, interpolated; NaN outside. */
static double loss_at(const curve *c, double step) {
    if (c->count == 0 || step < c->steps[0] || step > c->steps[c->count - 1])
        return NAN;
    size_t i = 0;
    while (i + 1 < c->count && c->steps[i + 1] < step)
        i++;
    if (i + 1 == c->count || c->steps[i + 1] == c->steps[i])
        return c->losses[i];
    const double share = (step - c->steps[i]) / (c->steps[i + 1] - c->steps[i]);
    return c->losses[i] + share * (c->losses[i + 1] - c->losses[i]);
}

static void draw(char grid[ROWS][COLUMNS + 1], const axes *a, const curve *c, char letter) {
    for (int column = 0; column < COLUMNS; column++) {
        const double share = (double)column / (COLUMNS - 1);
        const double loss = loss_at(c, a->first_step + share * (a->last_step - a->first_step));
        if (isnan(loss))
            continue;
        const double height = (a->high - drawn(a, loss)) / (a->high - a->low);
        const int row = (int)lround(fmin(fmax(height, 0), 1) * (ROWS - 1));
        grid[row][column] = grid[row][column] == ' ' ? letter : '*'; /* several curves */
    }
}

void curve_plot(const curve *curves, int count) {
    char grid[ROWS][COLUMNS + 1];
    axes a;
    if (!find_axes(&a, curves, count)) {
        puts("(there are no finite losses to plot)");
        return;
    }
    for (int row = 0; row < ROWS; row++) {
        memset(grid[row], ' ', COLUMNS);
        grid[row][COLUMNS] = '\0';
    }
    for (int c = 0; c < count; c++)
        draw(grid, &a, &curves[c], curve_letter(c));
    for (int row = 0; row < ROWS; row++) {
        const double value = a.high - (a.high - a.low) * row / (ROWS - 1);
        printf("%10.4g |%s\n", a.logarithmic ? pow(10, value) : value, grid[row]);
    }
    printf("%10s +", "");
    for (int column = 0; column < COLUMNS; column++)
        putchar('-');
    printf("\n%10s  %-*.0f%*.0f   (*: several curves)\n", "", COLUMNS / 2, a.first_step,
           COLUMNS / 2, a.last_step);
}
