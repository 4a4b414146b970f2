/* test_statistics.c: statistics against numbers worked out by hand or printed in tables. */
#include "study/moderated.h"
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

/* Variances that differ no more than chance lets them have one in common; those that differ by
 * orders of magnitude have none. */
static void priors(void **state) {
    (void)state;
    const double alike[] = {1, 1.5, 0.5, 1}, apart[] = {1e-6, 1, 1e-4, 1e4}, two[] = {2, 2, 2, 2};
    const double differences[] = {1, 2, 3};
    sr_prior prior = sr_prior_of(alike, two, 4);
    assert_true(isinf(prior.degrees));
    near(prior.variance, 1, 1e-15);
    near(prior.most_degrees, 8, 0);
    sr_interval i = sr_interval_moderated(differences, 3, &prior, 0.95);
    near(i.high - i.mean, sr_student_t(8, 0.95) / sqrt(3), 1e-12);
    prior = sr_prior_of(apart, two, 4);
    assert_true(prior.degrees > 0 && prior.degrees < 0.5);
    i = sr_interval_moderated(differences, 3, &prior, 0.95);
    assert_true(i.degrees < 2.5);
    const double variance = (prior.degrees * prior.variance + 2) / (prior.degrees + 2);
    near(i.high - i.mean, sr_student_t(prior.degrees + 2, 0.95) * sqrt(variance / 3), 1e-12);
    /* One sample has nothing in common with others: Student's interval. */
    prior = sr_prior_of(alike, two, 1);
    assert_true(prior.degrees == 0);
    near(sr_interval_moderated(differences, 3, &prior, 0.95).high,
         sr_interval_of(differences, 3, 0.95).high, 1e-12);
    assert_true(sr_interval_moderated(differences, 1, &prior, 0.95).degrees == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_spreads), cmocka_unit_test(medians), cmocka_unit_test(student),
        cmocka_unit_test(intervals),         cmocka_unit_test(gammas),  cmocka_unit_test(priors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
