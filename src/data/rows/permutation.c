/* permutation.c: a Feistel network with cycle walking. */
#include "data/rows/permutation.h"

#include "base/random.h"

/* Four rounds of a good round function are already a strong pseudorandom permutation (Luby and
 * Rackoff 1988); small domains need a few more. */
enum { ROUNDS = 8 };

/* A bijection of the numbers below 4^half_bits: each round adds a function of one half to the other
 * half, which is invertible for any function. */
static uint64_t network(uint64_t key, int half_bits, uint64_t index) {
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t mixed = left ^ (sr_random_bits(key, round, right) & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

uint64_t sr_permutation_at(uint64_t key, uint64_t count, uint64_t index) {
    int half_bits = 1;
    while (half_bits < 32 && (count - 1) >> 2 * half_bits > 0)
        half_bits++;
    /* The network's domain is less than four times as large as count. Indices that map outside
     * follow their cycle until it returns inside: a bijection of 0 .. count-1. */
    do
        index = network(key, half_bits, index);
    while (index >= count);
    return index;
}
