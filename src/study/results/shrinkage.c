/* shrinkage.c: moderated variances: each is shrunk towards a common prior. */
#include "study/results/shrinkage.h"

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

/* Newton's method on 1 / trigamma, which is convex and nearly linear (Smyth 2004, appendix). */
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

/* Covariance of two rows of differences over their common seeds; returns the number of those. */
static size_t covariance_of(double *covariance, const double *a, const double *b, size_t seeds) {
    double mean_a = 0, mean_b = 0, sum = 0;
    size_t count = 0;
    for (size_t s = 0; s < seeds; s++)
        if (isfinite(a[s]) && isfinite(b[s])) {
            count++;
            mean_a += (a[s] - mean_a) / (double)count;
            mean_b += (b[s] - mean_b) / (double)count;
        }
    for (size_t s = 0; s < seeds; s++)
        if (isfinite(a[s]) && isfinite(b[s]))
            sum += (a[s] - mean_a) * (b[s] - mean_b);
    *covariance = count > 1 ? sum / (double)(count - 1) : 0;
    return count;
}

/* Sums over the rows with two differences or more. */
typedef struct sums {
    double rows, degrees;
    double variances;  /* weighted by degrees of freedom */
    double logs;       /* of log variances, corrected for the bias of few degrees of freedom */
    double squares;    /* of these logs */
    double chance;     /* their sampling variance */
    double covariance; /* mean over pairs of rows */
} sums;

static void add_row(sums *all, double variance, double degrees) {
    const double logarithm = log(variance) - sr_digamma(degrees / 2) + log(degrees / 2);
    all->rows++;
    all->degrees += degrees;
    all->variances += degrees * variance;
    all->logs += logarithm;
    all->squares += logarithm * logarithm;
    all->chance += sr_trigamma(degrees / 2);
}

static sums add_up(const double *differences, size_t variants, size_t seeds) {
    sums all = {0};
    double covariance, pairs = 0;
    for (size_t v = 0; v < variants; v++) {
        const double *row = differences + v * seeds;
        const size_t count = covariance_of(&covariance, row, row, seeds);
        if (count > 1)
            add_row(&all, floored(covariance), (double)count - 1);
        for (size_t w = 0; w < v; w++)
            if (covariance_of(&covariance, row, differences + w * seeds, seeds) > 1)
                all.covariance += (covariance - all.covariance) / ++pairs;
    }
    return all;
}

/* The effective degrees of freedom of correlated rows, minus those of one row. All rows share the
 * baseline: half of a difference's variance is the baseline's if it scatters like the variants,
 * more if it scatters more. */
static double worth(const sums *all) {
    const double share = fmin(fmax(all->covariance / (all->variances / all->degrees), 0.5), 1);
    return all->degrees / (1 + (all->rows - 1) * share * share) - all->degrees / all->rows;
}

sr_prior sr_prior_of(const double *differences, size_t variants, size_t seeds) {
    const sums all = add_up(differences, variants, seeds);
    if (all.rows < 2)
        return (sr_prior){0, NAN};
    const double mean = all.logs / all.rows;
    const double spread =
        (all.squares - all.rows * mean * mean) / (all.rows - 1) - all.chance / all.rows;
    if (!(spread > 0)) /* no more than sampling noise: one variance for all */
        return (sr_prior){worth(&all), all.variances / all.degrees};
    const double half = sr_trigamma_inverse(spread);
    return (sr_prior){fmin(2 * half, worth(&all)), exp(mean + sr_digamma(half) - log(half))};
}

sr_interval sr_interval_shrunk(const double *differences, size_t count, const sr_prior *prior,
                               double confidence) {
    const double mean = sr_mean(differences, count), own = (double)count - 1;
    if (count < 2)
        return (sr_interval){mean, NAN, NAN, 0};
    double variance = floored(pow(sr_standard_deviation(differences, count), 2)), more = 0;
    if (prior->degrees > 0) {
        more = prior->degrees * sr_fisher_above(variance / prior->variance, own, 1e6);
        variance = (more * prior->variance + own * variance) / (more + own);
    }
    return sr_interval_around(mean, sqrt(variance), count, more + own, confidence);
}
