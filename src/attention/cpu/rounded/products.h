/* products.h (private): products of bf16 tiles by what the level has. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PRODUCTS_H
#define SR_ATTENTION_CPU_ROUNDED_PRODUCTS_H

#include "attention/cpu/shared/simd.h"
#include "base/pairs/product.h"

/* The first and the second number of pairs, or the number in the upper half. */
static inline vec first_of_pairs(vec_pattern pairs) {
    return (vec)(pairs << 16);
}

static inline vec second_of_pairs(vec_pattern pairs) {
    return (vec)(pairs & 0xffff0000U);
}

#ifndef __AVX512BF16__
#include "attention/cpu/rounded/products_plain.h"
#endif

#endif
