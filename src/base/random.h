/* random.h: counter-based random numbers: a pure function of seed, stream and counter, so that any
 * position can be computed directly and the order of use does not matter. */
#ifndef SR_BASE_RANDOM_H
#define SR_BASE_RANDOM_H

#include <stdint.h>

/* 64 random bits. Different seeds, streams and counters give unrelated numbers; the same three give
 * the same number on every machine and in every version. */
uint64_t sr_random_bits(uint64_t seed, uint64_t stream, uint64_t counter);

/* Uniform in [0, 1): a multiple of 2^-53. */
double sr_random_uniform(uint64_t seed, uint64_t stream, uint64_t counter);

/* Uniform in 0 .. bound-1, bound at least 1. */
uint64_t sr_random_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t bound);

/* Mean 0, variance 1; never farther from 0 than 8.6. Uses the C library's log, sqrt and cos. */
double sr_random_normal(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
