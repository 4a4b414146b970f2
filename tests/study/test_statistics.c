/* test_statistics.c: statistics against numbers computed by hand or from tables. */
#include "base/random.h"
#include "study/results/power.h"
#include "study/results/shrinkage.h"
#include "test.h"

#include <math.h>

static void near(double got, double want, double error) {
    if (!(fabs(got - want) <= error))
        fail_msg("%.12g is not %.12g", got, want);
}

static void means_and_spreads(void **state) {
    (void)state;
    const double values[] = {2, 4, 4, 4, 5, 5, 7, 9};
    near(sr_mean(values, 8), 5, 0);
    near(sr_standard_deviation(values, 8), sqrt(32.0 / 7), 1e-15);
    assert_true(isnan(sr_mean(values, 0)));
    assert_true(isnan(sr_standard_deviation(values, 1)));
}

static void medians(void **state) {
    (void)state;
    double odd[] = {9, 1, 5}, even[] = {4, 1, 3, 2};
    near(sr_median(odd, 3), 5, 0);
    near(sr_median(even, 4), 2.5, 0);
    assert_true(isnan(sr_median(odd, 0)));
}

/* Two-sided 95 % and 99 % points as every table prints them. */
static void student(void **state) {
    (void)state;
    near(sr_student_t(1, 0.95), 12.70620474, 1e-7);
    near(sr_student_t(2, 0.95), 4.30265273, 1e-8);
    near(sr_student_t(10, 0.95), 2.22813885, 1e-8);
    near(sr_student_t(30, 0.95), 2.04227246, 1e-8);
    near(sr_student_t(1e7, 0.95), 1.95996, 1e-5);
    near(sr_student_t(5, 0.99), 4.03214298, 1e-8);
    assert_true(isnan(sr_student_t(0, 0.95)));
}

static void intervals(void **state) {
    (void)state;
    const double differences[] = {1, 2, 3}, same[] = {0, 0};
    sr_interval i = sr_interval_of(differences, 3, 0.95);
    near(i.mean, 2, 0);
    near(i.low, 2 - 4.30265273 / sqrt(3), 1e-8);
    near(i.high, 2 + 4.30265273 / sqrt(3), 1e-8);
    near(i.degrees, 2, 0);
    assert_false(sr_interval_decides(&i));
    i = sr_interval_of(differences, 1, 0.95);
    assert_true(i.degrees == 0 && isnan(i.low) && !sr_interval_decides(&i));
    i = sr_interval_of(same, 2, 0.95);
    assert_true(i.low == 0 && i.high == 0 && !sr_interval_decides(&i));
    assert_true(sr_interval_decides(&(sr_interval){1, 0.5, 1.5, 3}));
    assert_true(sr_interval_decides(&(sr_interval){-1, -1.5, -0.5, 3}));
}

/* Values of Abramowitz and Stegun, tables 6.1 and 6.2. */
static void gammas(void **state) {
    (void)state;
    near(sr_digamma(1), -0.5772156649015329, 1e-12);
    near(sr_digamma(0.5), -1.9635100260214235, 1e-12);
    near(sr_digamma(20), 2.9705239922421491, 1e-12);
    near(sr_trigamma(1), 1.6449340668482264, 1e-12);
    near(sr_trigamma(0.5), 4.9348022005446793, 1e-12);
    for (double x = 1e-3; x < 1e5; x *= 3)
        near(sr_trigamma_inverse(sr_trigamma(x)) / x, 1, 1e-6);
}

/* F(1, d) is the square of Student's t; F(2, 2) is above f with a share of 1 / (1 + f). */
static void fisher(void **state) {
    (void)state;
    near(sr_fisher_above(pow(2.22813885, 2), 1, 10), 0.05, 1e-8);
    near(sr_fisher_above(3, 2, 2), 0.25, 1e-12);
    near(sr_fisher_above(0, 2, 5), 1, 0);
    near(sr_fisher_above(3, 2, 1e6), exp(-3), 1e-6);
}

/* Rows 1, -1 times 1, 2, 1.5 at two seeds: variances 2, 8, 4.5, covariances 4, 3, 6. */
static void priors(void **state) {
    (void)state;
    const double alike[] = {1, -1, 2, -2, NAN, 3, 1.5, -1.5};
    sr_prior prior = sr_prior_of(alike, 4, 2);
    near(prior.variance, 14.5 / 3, 1e-14);
    const double share = (13.0 / 3) / (14.5 / 3);
    near(prior.degrees, 3 / (1 + 2 * share * share) - 1, 1e-14);
    /* Differences that scatter less than the prior, and more. */
    const double quiet[] = {1, 1}, loud[] = {-60, 60};
    sr_interval i = sr_interval_shrunk(quiet, 2, &prior, 0.95);
    near(i.degrees, 1 + prior.degrees, 1e-3);
    near(i.high - 1,
         sr_student_t(1 + prior.degrees, 0.95) *
             sqrt(prior.degrees / (1 + prior.degrees) * prior.variance / 2),
         1e-2);
    i = sr_interval_shrunk(loud, 2, &prior, 0.95);
    assert_true(i.degrees < 1.1);
    near(i.high / sr_interval_of(loud, 2, 0.95).high, 1, 0.2);
    /* A single sample has no prior: Student's interval. */
    prior = sr_prior_of(alike, 1, 2);
    assert_true(prior.degrees == 0);
    near(sr_interval_shrunk(loud, 2, &prior, 0.95).high, sr_interval_of(loud, 2, 0.95).high, 1e-9);
    assert_true(sr_interval_shrunk(loud, 1, &prior, 0.95).degrees == 0);
}

/* Scatters that differ by orders of magnitude have no common prior; zero scatter is floored. */
static void priors_of_unlike_scatter(void **state) {
    (void)state;
    const double apart[] = {1, 2, 3, 1e-3, 0, -1e-3, 0, 0, 0, 100, 0, -100};
    const sr_prior prior = sr_prior_of(apart, 4, 3);
    assert_true(prior.degrees > 0 && prior.degrees < 0.2);
    near(sr_interval_shrunk(apart, 3, &prior, 0.95).high / sr_interval_of(apart, 3, 0.95).high, 1,
         0.05);
    const sr_interval none = sr_interval_shrunk(apart + 6, 3, &prior, 0.95);
    assert_true(none.low < -1e-5 && none.high > 1e-5);
}

/* With the computed number of seeds the difference is detected about as often as requested. */
static void seeds_needed_are_enough(void **state) {
    (void)state;
    enum { TRIALS = 4000 };
    static const double effects[] = {3, 1, 0.5};
    static const double expected[] = {4, 10, 34}; /* tables of the paired t test, alpha 0.05 */
    for (uint64_t e = 0; e < 3; e++) {
        const double needed = sr_seeds_needed(1, effects[e], 0.95, 0.8);
        near(needed, expected[e], 1);
        size_t seen = 0, count = (size_t)needed;
        for (uint64_t trial = 0; trial < TRIALS; trial++) {
            double differences[64];
            for (uint64_t i = 0; i < count; i++)
                differences[i] = effects[e] + sr_random_normal(e, trial, i);
            const sr_interval interval = sr_interval_of(differences, count, 0.95);
            seen += interval.low > 0;
        }
        assert_in_range(seen, 0.77 * TRIALS, 0.99 * TRIALS);
        assert_true(sr_seeds_needed(1, effects[e], 0.95, 0.8) <=
                    sr_seeds_needed(1.5, effects[e], 0.95, 0.8));
    }
    assert_true(isnan(sr_seeds_needed(1, 0, 0.95, 0.8)));
    /* The 20 % points of chi-square with 1 and 4 degrees of freedom. */
    near(sr_deviation_most(1, 1), 1 / sqrt(0.06418), 1e-3);
    near(sr_deviation_most(2, 4), 2 / sqrt(1.64878 / 4), 1e-3);
}

/* How often the intervals of differences whose true value is 0 contain it at all of 2, 3, .. seeds,
 * with the confidence that sr_summary_make uses for a study that may end early. */
static double sequential_coverage(size_t seeds, uint64_t stream) {
    enum { TRIALS = 10000, MOST_LOOKS = 16 };
    const double confidence = 1 - 0.05 / ((double)seeds - 1);
    size_t held = 0;
    double t[MOST_LOOKS + 1];
    for (size_t look = 2; look <= seeds; look++)
        t[look] = sr_student_t((double)look - 1, confidence);
    for (uint64_t trial = 0; trial < TRIALS; trial++) {
        double differences[MOST_LOOKS];
        bool holds = true;
        for (uint64_t s = 0; s < seeds; s++)
            differences[s] = sr_random_normal(9, stream, trial * MOST_LOOKS + s);
        for (size_t look = 2; look <= seeds; look++)
            holds = holds &&
                    fabs(sr_mean(differences, look)) <=
                        t[look] * sr_standard_deviation(differences, look) / sqrt((double)look);
        held += holds;
    }
    return (double)held / TRIALS;
}

/* With optional stopping after every seed the intervals must still hold in 95 % of cases. */
static void sequential_intervals_hold(void **state) {
    (void)state;
    static const size_t seeds[] = {3, 5, 8, 12};
    for (uint64_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        const double share = sequential_coverage(seeds[i], i);
        print_message("up to %zu seeds: %.3f\n", seeds[i], share);
        assert_true(share >= 0.95 && share < 0.99);
    }
}

enum { MOST_VARIANTS = 20, MOST_SEEDS = 3, DRAWS = 5000 };

/* How often the interval of the last variant contains its true difference, 0. scatters[0] is the
 * baseline's. */
static double coverage(const double *scatters, size_t count, size_t seeds, uint64_t stream) {
    double differences[MOST_VARIANTS * MOST_SEEDS];
    int held = 0;
    uint64_t at = 0;
    for (int draw = 0; draw < DRAWS; draw++) {
        for (size_t s = 0; s < seeds; s++) {
            const double base = scatters[0] * sr_random_normal(17, stream, at++);
            for (size_t v = 1; v < count; v++)
                differences[(v - 1) * seeds + s] =
                    scatters[v] * sr_random_normal(17, stream, at++) - base;
        }
        const sr_prior prior = sr_prior_of(differences, count - 1, seeds);
        const sr_interval i =
            sr_interval_shrunk(differences + (count - 2) * seeds, seeds, &prior, 0.95);
        held += !sr_interval_decides(&i);
    }
    return (double)held / DRAWS;
}

/* docs/STUDY.md prints these. */
static void intervals_hold_as_often_as_they_say(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t count;
        double baseline, most, last; /* scatters */
        double least;                /* coverage wanted */
    } cases[] = {
        {"all alike", 18, 1, 1, 1, 0.94},
        {"three alike", 3, 1, 1, 1, 0.93},
        {"the variant scatters thrice as much", 18, 1, 1, 3, 0.92},
        {"the variant scatters ten times as much", 18, 1, 1, 10, 0.9},
        {"the baseline scatters thrice as much", 18, 3, 1, 1, 0.92},
        {"all but two at the ceiling", 11, 0, 0, 1, 0.93},
    };
    for (size_t seeds = 2; seeds <= MOST_SEEDS; seeds++)
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            double scatters[MOST_VARIANTS];
            for (size_t v = 0; v < cases[c].count; v++)
                scatters[v] = cases[c].most;
            scatters[0] = cases[c].baseline;
            scatters[cases[c].count - 1] = cases[c].last;
            if (cases[c].most == 0)
                scatters[cases[c].count - 2] = cases[c].last;
            const double held = coverage(scatters, cases[c].count, seeds, c);
            print_message("%zu seeds, %s: %.3f\n", seeds, cases[c].name, held);
            if (held < cases[c].least)
                fail_msg("%s: %.3f of the intervals hold the truth", cases[c].name, held);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_spreads),
        cmocka_unit_test(medians),
        cmocka_unit_test(student),
        cmocka_unit_test(intervals),
        cmocka_unit_test(fisher),
        cmocka_unit_test(gammas),
        cmocka_unit_test(priors),
        cmocka_unit_test(priors_of_unlike_scatter),
        cmocka_unit_test(intervals_hold_as_often_as_they_say),

        cmocka_unit_test(seeds_needed_are_enough),
        cmocka_unit_test(sequential_intervals_hold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
