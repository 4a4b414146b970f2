/* random.c: random numbers as a pure function of seed, stream and counter. */
#include "base/random.h"

#include <math.h>

/* Philox 2x64 with 10 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
 * 2011, section 4. The counter block is (counter, stream), the key is the seed. */
static const uint64_t multiplier = 0xD2B74407B1CE6E93;
static const uint64_t key_step = 0x9E3779B97F4A7C15;
enum { ROUNDS = 10 };

/* The 128-bit product, in ISO C types. */
static uint64_t multiply_high(uint64_t a, uint64_t b) {
    uint64_t a_low = a & UINT32_MAX, a_high = a >> 32;
    uint64_t b_low = b & UINT32_MAX, b_high = b >> 32;
    uint64_t middle = a_high * b_low + (a_low * b_low >> 32);
    uint64_t other = a_low * b_high + (middle & UINT32_MAX);
    return a_high * b_high + (middle >> 32) + (other >> 32);
}

static void philox(uint64_t out[2], uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t left = counter, right = stream, key = seed;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t high = multiply_high(multiplier, left);
        uint64_t low = multiplier * left;
        left = high ^ key ^ right;
        right = low;
        key += key_step;
    }
    out[0] = left;
    out[1] = right;
}

/* The upper 53 bits as a fraction. */
static double fraction(uint64_t bits) {
    return (double)(bits >> 11) * 0x1p-53;
}

uint64_t sr_random_bits(uint64_t seed, uint64_t stream, uint64_t counter) {
    uint64_t bits[2];
    philox(bits, seed, stream, counter);
    return bits[0];
}

double sr_random_uniform(uint64_t seed, uint64_t stream, uint64_t counter) {
    return fraction(sr_random_bits(seed, stream, counter));
}

uint64_t sr_random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound) {
    /* floor(bits * bound / 2^64): the bias is below bound / 2^64, which cannot be measured, and one
     * draw always suffices, as counter-based generation requires. */
    return multiply_high(sr_random_bits(seed, stream, counter), bound);
}

double sr_random_normal(uint64_t seed, uint64_t stream, uint64_t counter) {
    static const double two_pi = 6.283185307179586;
    uint64_t bits[2];
    philox(bits, seed, stream, counter);
    /* Box and Muller; 1 - fraction lies in (0, 1]. */
    return sqrt(-2 * log(1 - fraction(bits[0]))) * cos(two_pi * fraction(bits[1]));
}
