/* rounding_plain.h (private): vectors rounded to bf16 by integer arithmetic. */
#ifndef SR_ATTENTION_CPU_ROUNDED_ROUNDING_PLAIN_H
#define SR_ATTENTION_CPU_ROUNDED_ROUNDING_PLAIN_H

typedef uint16_t narrow_vec __attribute__((vector_size(LANES * sizeof(uint16_t))));

/* bf16 in the upper half of each number; the lower half is not cleared. */
static inline vec_pattern rounded_up(vec x) {
    const vec_pattern bits = (vec_pattern)x;
    const vec_pattern rounded = bits + 0x7fffU + (bits >> 16 & 1U);
    const vec_pattern is_nan = (vec_pattern)(x != x);
    return (is_nan & (bits | 0x400000U)) | (~is_nan & rounded);
}

static inline vec rounded_of(vec x) {
    return second_of_pairs(rounded_up(x));
}

static inline vec store_rounded(uint16_t *to, vec x) {
    const vec_pattern upper = rounded_up(x);
    const narrow_vec narrow = __builtin_convertvector(upper >> 16, narrow_vec);
    memcpy(to, &narrow, sizeof narrow);
    return second_of_pairs(upper);
}

static inline vec_pattern pairs_of(vec first, vec second) {
    return (rounded_up(first) >> 16) | (rounded_up(second) & 0xffff0000U);
}

#endif
