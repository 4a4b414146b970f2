/* products_plain.h (private): a block of a product where no instruction multiplies bf16: each number
 * is widened to a float. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PRODUCTS_PLAIN_H
#define SR_ATTENTION_CPU_ROUNDED_PRODUCTS_PLAIN_H

enum { PAIR_ROWS = 4, PAIR_COLUMNS = COLUMNS };

static inline void pairs_begin(void) {
}

static inline void pairs_end(void) {
}

static inline void pair_block(const pair_product *p) {
    vec sum[PAIR_ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < PAIR_ROWS; r++)
        sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t step = 0; step < p->k / 2; step++) {
        vec_pattern b0, b1;
        memcpy(&b0, p->b + step * p->b_stride, sizeof b0);
        memcpy(&b1, p->b + step * p->b_stride + LANES, sizeof b1);
        const vec first0 = first_of_pairs(b0), second0 = second_of_pairs(b0);
        const vec first1 = first_of_pairs(b1), second1 = second_of_pairs(b1);
#pragma GCC unroll 4
        for (int r = 0; r < PAIR_ROWS; r++) {
            uint32_t pair;
            memcpy(&pair, p->a + r * p->a_stride + 2 * step, sizeof pair);
            const vec_pattern spread = pair - (vec_pattern){0};
            sum[r][0] += first_of_pairs(spread) * first0;
            sum[r][1] += first_of_pairs(spread) * first1;
            sum[r][0] += second_of_pairs(spread) * second0;
            sum[r][1] += second_of_pairs(spread) * second1;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < PAIR_ROWS; r++) {
        float *c = p->c + r * p->c_stride;
        vec_store(c, p->accumulate ? sum[r][0] + vec_load(c) : sum[r][0]);
        vec_store(c + LANES, p->accumulate ? sum[r][1] + vec_load(c + LANES) : sum[r][1]);
    }
}

#endif
