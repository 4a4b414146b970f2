/* amx.h: a block of a product of pairs by AMX. */
#ifndef SR_BASE_PAIRS_AMX_H
#define SR_BASE_PAIRS_AMX_H

#include <immintrin.h>

/* Eight tiles of 16 rows of 64 bytes. A constant: gcc's _tile_loadconfig says that it reads 8 of
 * the 64 bytes, so that stores to the others are left out. */
static inline void pairs_begin(void) {
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } tiles __attribute__((aligned(64))) = {
        .palette = 1,
        .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {PAIR_HALF, PAIR_HALF, PAIR_HALF, PAIR_HALF, PAIR_HALF, PAIR_HALF, PAIR_HALF,
                 PAIR_HALF},
    };
    _tile_loadconfig(&tiles);
}

static inline void pairs_end(void) {
    _tile_release();
}

/* Two tiles of rows of A and two of columns of B make four of C. Inlined, its addresses would be
 * spilled. */
static __attribute__((noinline)) void pair_block(const pair_product *p) {
    float *c = p->c, *lower = c + PAIR_HALF * p->c_stride;
    const size_t c_bytes = (size_t)p->c_stride * sizeof *c;
    const size_t a_bytes = (size_t)p->a_stride * sizeof *p->a;
    const size_t b_bytes = (size_t)p->b_stride * sizeof *p->b;
    if (p->accumulate) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, c + PAIR_HALF, c_bytes);
        _tile_loadd(2, lower, c_bytes);
        _tile_loadd(3, lower + PAIR_HALF, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const uint16_t *a0 = p->a, *a1 = a0 + PAIR_HALF * p->a_stride;
    const uint32_t *b0 = p->b, *b1 = b0 + p->b_step;
    const int64_t a_step = p->a_step, b_step = PAIR_HALF * p->b_stride;
    for (int64_t k = p->k; k > 0; k -= PAIR_TILE) {
        _tile_loadd(4, a0, a_bytes);
        _tile_loadd(5, a1, a_bytes);
        _tile_loadd(6, b0, b_bytes);
        _tile_loadd(7, b1, b_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a0 += a_step, a1 += a_step, b0 += b_step, b1 += b_step;
    }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, c + PAIR_HALF, c_bytes);
    _tile_stored(2, lower, c_bytes);
    _tile_stored(3, lower + PAIR_HALF, c_bytes);
}

#endif
