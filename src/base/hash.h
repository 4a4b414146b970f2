/* hash.h: FNV-1a over 64-bit numbers, and a checksum of bytes. */
#ifndef SR_BASE_HASH_H
#define SR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SR_HASH_BEGIN UINT64_C(0xcbf29ce484222325)

/* A change of any single number changes the result. */
static inline uint64_t sr_hash_add(uint64_t hash, uint64_t number) {
    return (hash ^ number) * UINT64_C(0x100000001b3);
}

/* A checksum, eight bytes at a time; the rest is padded with zeros. The upper bits are folded into
 * the lower ones, so that two flipped bits do not cancel. */
static inline uint64_t sr_checksum_bytes(uint64_t hash, const void *bytes, size_t count) {
    const char *at = bytes;
    for (size_t n = 0; n < count; n += sizeof(uint64_t)) {
        uint64_t number = 0;
        memcpy(&number, at + n, count - n < sizeof number ? count - n : sizeof number);
        hash = sr_hash_add(hash, number);
        hash ^= hash >> 32;
    }
    return hash;
}

/* As a non-negative integer that JSON can represent. */
static inline int64_t sr_hash_end(uint64_t hash) {
    return (int64_t)(hash >> 1);
}

#endif
