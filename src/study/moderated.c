/* moderated.c: variances of many samples, each shrunk towards what they have in common. */
#include "study/moderated.h"

#include <math.h>

/* Both series (Abramowitz and Stegun 6.3.18, 6.4.12) are good to 1e-12 from here on. */
static const double series_from = 12;

double sr_digamma(double x) {
    double sum = 0;
    for (; x < series_from; x++)
        sum -= 1 / x;
    const double y = 1 / (x * x);
    return sum + log(x) - 0.5 / x - y * (1.0 / 12 - y * (1.0 / 120 - y * (1.0 / 252 - y / 240)));
}

double sr_trigamma(double x) {
    double sum = 0;
    for (; x < series_from; x++)
        sum += 1 / (x * x);
    const double y = 1 / (x * x);
    return sum + y / 2 + (1 + y * (1.0 / 6 - y * (1.0 / 30 - y * (1.0 / 42 - y / 30)))) / x;
}

/* psi''; differences of the series above. */
static double tetragamma(double x) {
    double sum = 0;
    for (; x < series_from; x++)
        sum -= 2 / (x * x * x);
    const double y = 1 / (x * x);
    return sum - y * (1 + 1 / x + y * (0.5 - y * (1.0 / 6 - y * (1.0 / 6 - 0.3 * y))));
}

/* Newton's method on 1 / trigamma, which is convex and nearly straight (Smyth 2004, appendix). */
double sr_trigamma_inverse(double y) {
    if (y > 1e7)
        return 1 / sqrt(y);
    if (y < 1e-6)
        return 1 / y;
    double x = 0.5 + 1 / y;
    for (int i = 0; i < 50; i++) {
        const double value = sr_trigamma(x);
        const double step = value * (1 - value / y) / tetragamma(x);
        x += step;
        if (-step < 1e-10 * x)
            break;
    }
    return x;
}

static double floored(double variance) {
    return fmax(variance, SR_RESOLUTION * SR_RESOLUTION);
}

/* log s^2, freed of the bias that few degrees give it. */
static double log_variance(double variance, double degrees) {
    return log(floored(variance)) - sr_digamma(degrees / 2) + log(degrees / 2);
}

sr_prior sr_prior_of(const double *variances, const double *degrees, size_t count) {
    double mean = 0, squares = 0, chance = 0, pooled = 0, all = 0, used = 0;
    for (size_t i = 0; i < count; i++)
        if (degrees[i] >= 1) {
            used++;
            all += degrees[i];
            pooled += degrees[i] * floored(variances[i]);
            mean += log_variance(variances[i], degrees[i]);
            chance += sr_trigamma(degrees[i] / 2);
        }
    if (used < 2)
        return (sr_prior){0, NAN, all};
    mean /= used;
    for (size_t i = 0; i < count; i++)
        if (degrees[i] >= 1)
            squares += pow(log_variance(variances[i], degrees[i]) - mean, 2);
    const double spread = squares / (used - 1) - chance / used;
    if (!(spread > 0))
        return (sr_prior){INFINITY, pooled / all, all};
    const double half = sr_trigamma_inverse(spread);
    return (sr_prior){2 * half, exp(mean + sr_digamma(half) - log(half)), all};
}

sr_interval sr_interval_moderated(const double *differences, size_t count, const sr_prior *prior,
                                  double confidence) {
    const double mean = sr_mean(differences, count), own = (double)count - 1;
    if (count < 2)
        return (sr_interval){mean, NAN, NAN, 0};
    double variance = floored(pow(sr_standard_deviation(differences, count), 2));
    if (isinf(prior->degrees))
        variance = prior->variance;
    else if (prior->degrees > 0)
        variance = (prior->degrees * prior->variance + own * variance) / (prior->degrees + own);
    return sr_interval_around(mean, sqrt(variance), count,
                              fmin(prior->degrees + own, prior->most_degrees), confidence);
}
