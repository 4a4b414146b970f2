/* products_plain.h (private): a block of a product of pairs where no instruction multiplies bf16:
 * each number is widened to a float. */
#ifndef SR_ATTENTION_CPU_ROUNDED_PRODUCTS_PLAIN_H
#define SR_ATTENTION_CPU_ROUNDED_PRODUCTS_PLAIN_H

static inline void pairs_begin(void) {
}

static inline void pairs_end(void) {
}

enum { PAIR_ROWS = 4 };

/* A few rows, and two vectors of columns from `b` and p->c on. */
static inline void pair_rows(const pair_product *p, const uint32_t *b0, const uint32_t *b1) {
    vec sum[PAIR_ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < PAIR_ROWS; r++)
        sum[r][0] = sum[r][1] = (vec){0};
    for (int64_t k = 0; k < p->k; k += PAIR_TILE) {
        const uint16_t *a = p->a + k / PAIR_TILE * p->a_step;
        for (int pair = 0; pair < PAIR_HALF; pair++, b0 += p->b_stride, b1 += p->b_stride) {
            vec_pattern pairs0, pairs1;
            memcpy(&pairs0, b0, sizeof pairs0);
            memcpy(&pairs1, b1, sizeof pairs1);
            const vec first0 = first_of_pairs(pairs0), second0 = second_of_pairs(pairs0);
            const vec first1 = first_of_pairs(pairs1), second1 = second_of_pairs(pairs1);
#pragma GCC unroll 4
            for (int r = 0; r < PAIR_ROWS; r++) {
                uint32_t both;
                memcpy(&both, a + r * p->a_stride + 2 * pair, sizeof both);
                const vec_pattern spread = both - (vec_pattern){0};
                sum[r][0] += first_of_pairs(spread) * first0;
                sum[r][1] += first_of_pairs(spread) * first1;
                sum[r][0] += second_of_pairs(spread) * second0;
                sum[r][1] += second_of_pairs(spread) * second1;
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < PAIR_ROWS; r++) {
        float *c = p->c + r * p->c_stride;
        vec_store(c, p->accumulate ? sum[r][0] + vec_load(c) : sum[r][0]);
        vec_store(c + LANES, p->accumulate ? sum[r][1] + vec_load(c + LANES) : sum[r][1]);
    }
}

static inline const uint32_t *b_column(const pair_product *p, int column) {
    return p->b + column / PAIR_HALF * p->b_step + column % PAIR_HALF;
}

static void pair_block(const pair_product *p) {
    for (int row = 0; row < PAIR_TILE; row += PAIR_ROWS)
        for (int column = 0; column < PAIR_TILE; column += COLUMNS) {
            pair_product rows = *p;
            rows.a += row * p->a_stride;
            rows.c += row * p->c_stride + column;
            pair_rows(&rows, b_column(p, column), b_column(p, column + LANES));
        }
}

#endif
