/* statistics.c: means, spreads and confidence intervals of differences. */
#include "base/statistics.h"

#include <math.h>
#include <stdlib.h>

double sr_mean(const double *values, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return count ? sum / (double)count : NAN;
}

double sr_standard_deviation(const double *values, size_t count) {
    const double mean = sr_mean(values, count);
    double squares = 0;
    for (size_t i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return count > 1 ? sqrt(squares / (double)(count - 1)) : NAN;
}

static int compare(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double sr_median(double *values, size_t count) {
    if (count == 0)
        return NAN;
    qsort(values, count, sizeof *values, compare);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* The continued fraction of the incomplete beta function, by Lentz's method (Press et al.,
 * "Numerical Recipes", 6.4). */
static double beta_fraction(double a, double b, double x) {
    const double tiny = 1e-300;
    double c = 1, d = 1 - (a + b) * x / (a + 1);
    d = 1 / (fabs(d) < tiny ? tiny : d);
    double fraction = d;
    for (int m = 1; m < 1000; m++) {
        const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        double change = 1;
        for (int half = 0; half < 2; half++) {
            const double term = half ? odd : even;
            d = 1 + term * d;
            c = 1 + term / c;
            d = 1 / (fabs(d) < tiny ? tiny : d);
            c = fabs(c) < tiny ? tiny : c;
            change = c * d;
            fraction *= change;
        }
        if (fabs(change - 1) < 1e-15)
            break;
    }
    return fraction;
}

/* The regularised incomplete beta function. */
static double beta(double a, double b, double x) {
    if (x <= 0 || x >= 1)
        return x <= 0 ? 0 : 1;
    const double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x));
    return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                     : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

double sr_student_t(double degrees, double confidence) {
    double low = 0, high = 1;
    if (!(degrees > 0) || !(confidence > 0 && confidence < 1))
        return NAN;
    /* The probability outside -t .. t falls as t grows. */
    const double outside = 1 - confidence;
    while (beta(degrees / 2, 0.5, degrees / (degrees + high * high)) > outside)
        high *= 2;
    for (int i = 0; i < 200 && low < high; i++) {
        const double t = (low + high) / 2;
        if (t <= low || t >= high)
            break;
        if (beta(degrees / 2, 0.5, degrees / (degrees + t * t)) > outside)
            low = t;
        else
            high = t;
    }
    return high;
}

double sr_fisher_above(double ratio, double upper_degrees, double lower_degrees) {
    return beta(lower_degrees / 2, upper_degrees / 2,
                lower_degrees / (lower_degrees + upper_degrees * ratio));
}

bool sr_interval_decides(const sr_interval *interval) {
    return interval->low > 0 || interval->high < 0;
}

sr_interval sr_interval_around(double mean, double deviation, size_t count, double degrees,
                               double confidence) {
    const double half = sr_student_t(degrees, confidence) * deviation / sqrt((double)count);
    return (sr_interval){mean, mean - half, mean + half, degrees};
}

sr_interval sr_interval_of(const double *differences, size_t count, double confidence) {
    const double mean = sr_mean(differences, count);
    if (count < 2)
        return (sr_interval){mean, NAN, NAN, 0};
    return sr_interval_around(mean, sr_standard_deviation(differences, count), count,
                              (double)(count - 1), confidence);
}
