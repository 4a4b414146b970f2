/* power.c: the number of seeds a comparison needs. */
#include "study/results/power.h"

#include "base/statistics.h"

#include <math.h>

static const double most_seeds = 1e6, known_degrees = 1e6, share_above = 0.8;

/* The difference in standard errors must be at least the t of the interval plus the t of the
 * power. */
static int sees(double seeds, double effect, double confidence, double power) {
    const double degrees = seeds - 1;
    return sqrt(seeds) * effect >=
           sr_student_t(degrees, confidence) + sr_student_t(degrees, 2 * power - 1);
}

double sr_seeds_needed(double deviation, double difference, double confidence, double power) {
    const double effect = difference / deviation;
    double high = 2;
    if (!(effect > 0))
        return NAN;
    while (high < most_seeds && !sees(high, effect, confidence, power))
        high *= 2;
    double low = fmax(2, high / 2);
    if (sees(low, effect, confidence, power))
        return low;
    while (high - low > 1) {
        const double middle = floor((low + high) / 2);
        if (sees(middle, effect, confidence, power))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* s^2 d / sigma^2 is chi-square with d degrees of freedom: a ratio of variances to a known one. */
double sr_deviation_most(double deviation, double degrees) {
    double low = 0, high = 1;
    for (int i = 0; i < 100; i++) {
        const double ratio = (low + high) / 2;
        if (sr_fisher_above(ratio, degrees, known_degrees) > share_above)
            low = ratio;
        else
            high = ratio;
    }
    return deviation / sqrt(high);
}
