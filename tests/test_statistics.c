/* test_statistics.c: statistics against numbers worked out by hand or printed in tables. */
#include "study/statistics.h"
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

/* Variants 1, 2 / 2, 5 at two seeds: means 1.5 and 3.5 either way, 2.5 in all, so every residual is
 * 0.5 and their squares add to 1 with one degree of freedom. */
static void blocks(void **state) {
    (void)state;
    const double values[] = {1, 2, 2, 5}, additive[] = {1, 2, 4, 11, 12, 14};
    double degrees;
    near(sr_block_residual(&degrees, values, 2, 2), 1, 1e-15);
    near(degrees, 1, 0);
    near(sr_block_residual(&degrees, additive, 2, 3), 0, 1e-14);
    near(degrees, 2, 0);
    assert_true(isnan(sr_block_residual(&degrees, values, 4, 1)) && degrees == 0);
}

static void pooled_intervals(void **state) {
    (void)state;
    const double quiet[] = {1, 1.1}, loud[] = {-3, 5};
    sr_interval i = sr_interval_pooled(quiet, 2, 0.2, 10, 0.95);
    near(i.mean, 1.05, 1e-15);
    /* sqrt(2) * 0.2 / sqrt(2) = 0.2 */
    near(i.high - i.mean, 2.22813885 * 0.2, 1e-8);
    assert_true(sr_interval_decides(&i));
    /* The variant's own scatter, sqrt(32), is larger than the table's. */
    i = sr_interval_pooled(loud, 2, 0.2, 10, 0.95);
    near(i.high - i.mean, 2.22813885 * 4, 1e-7);
    assert_true(sr_interval_pooled(quiet, 2, NAN, 0, 0.95).degrees == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_and_spreads),
        cmocka_unit_test(medians),
        cmocka_unit_test(student),
        cmocka_unit_test(intervals),
        cmocka_unit_test(blocks),
        cmocka_unit_test(pooled_intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
