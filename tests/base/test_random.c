/* test_random.c: the generator is the published one, and its distributions are correct. */
#include "base/random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>

enum { DRAWS = 200000 };

/* The published known answers of Philox 2x64-10, first word. */
static void bits_are_philox(void **state) {
    (void)state;
    assert_true(sr_random_bits(0, 0, 0) == 0xca00a0459843d731);
    assert_true(sr_random_bits(UINT64_MAX, UINT64_MAX, UINT64_MAX) == 0x65b021d60cd8310f);
    assert_true(sr_random_bits(0xa4093822299f31d0, 0x13198a2e03707344, 0x243f6a8885a308d3) ==
                0x0a5e742c2997341c);
}

/* Moments within five standard errors. */
static void uniform_is_uniform(void **state) {
    (void)state;
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = sr_random_uniform(7, 1, i);
        assert_true(x >= 0 && x < 1);
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 5 * sqrt(1.0 / 12 / DRAWS));
    assert_true(fabs(squares / DRAWS - 1.0 / 3) < 5 * sqrt(4.0 / 45 / DRAWS));
}

static void normal_is_normal(void **state) {
    (void)state;
    double sum = 0, squares = 0, fourths = 0, neighbours = 0, last = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = sr_random_normal(7, 2, i);
        assert_true(fabs(x) < 8.6);
        sum += x;
        squares += x * x;
        fourths += x * x * x * x;
        neighbours += x * last;
        last = x;
    }
    assert_true(fabs(sum / DRAWS) < 5 / sqrt(DRAWS));
    assert_true(fabs(squares / DRAWS - 1) < 5 * sqrt(2.0 / DRAWS));
    assert_true(fabs(fourths / DRAWS - 3) < 5 * sqrt(96.0 / DRAWS));
    assert_true(fabs(neighbours / DRAWS) < 5 / sqrt(DRAWS));
}

static void below_covers_its_range_evenly(void **state) {
    (void)state;
    int counts[7] = {0};
    for (uint64_t i = 0; i < 70000; i++)
        counts[sr_random_below(3, 4, i, 7)]++;
    for (int i = 0; i < 7; i++)
        assert_true(abs(counts[i] - 10000) < 5 * 93);
    assert_int_equal(sr_random_below(3, 4, 5, 1), 0);
    assert_true(sr_random_below(3, 4, 5, UINT64_MAX) < UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_philox),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(normal_is_normal),
        cmocka_unit_test(below_covers_its_range_evenly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
