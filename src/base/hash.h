/* hash.h: one number for many: Fowler, Noll and Vo's hash, 1a, over whole numbers. */
#ifndef SR_BASE_HASH_H
#define SR_BASE_HASH_H

#include <stdint.h>

#define SR_HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* Any single number that changes changes the result. */
static inline uint64_t sr_hash_add(uint64_t hash, uint64_t number) {
    return (hash ^ number) * UINT64_C(0x100000001b3);
}

/* As a count that JSON can hold. */
static inline int64_t sr_hash_end(uint64_t hash) {
    return (int64_t)(hash >> 1);
}

#endif
