/* pairs.c: products of tiles in bf16, for one level. */
#include "ops/cpu/pairs.h"

#include "base/pairs/product.h"

enum { LINE = PAIR_HALF }; /* pairs in a vector */

static int64_t padded(int64_t n) {
    return (n + PAIR_TILE - 1) / PAIR_TILE * PAIR_TILE;
}

/* The stored rows of an operand, `along` numbers each. */
typedef struct stored_rows {
    const void *data; /* float, or bf16 if `narrow` */
    bool narrow;
    int64_t stride, rows, along;
    bool along_k; /* numbers of a row follow each other along K; else rows do */
} stored_rows;

static __mmask16 first_lanes(int64_t count) {
    return (__mmask16)(count >= 16 ? 0xffff : count <= 0 ? 0 : (1U << count) - 1);
}

/* 16 numbers of a row as bf16 in 16 bits each; zeros outside of the matrix. */
static __m256i sixteen(const stored_rows *m, int64_t row, int64_t at) {
    const __mmask16 mask = row < m->rows ? first_lanes(m->along - at) : 0;
    const int64_t number = row * m->stride + at;
    return m->narrow ? _mm256_maskz_loadu_epi16(mask, (const uint16_t *)m->data + number)
                     : (__m256i)_mm512_cvtneps_pbh(
                           _mm512_maskz_loadu_ps(mask, (const float *)m->data + number));
}

/* Pairs of neighbours in a row. */
static __m512i pairs_along(const stored_rows *m, int64_t row, int64_t at) {
    if (!m->narrow && row < m->rows && at + 2 * LINE <= m->along) {
        const float *from = (const float *)m->data + row * m->stride + at;
        return (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + LINE), _mm512_loadu_ps(from));
    }
    return _mm512_inserti64x4(_mm512_castsi256_si512(sixteen(m, row, at)),
                              sixteen(m, row, at + LINE), 1);
}

/* Pairs of neighbours in a column: of this row and the next. */
static __m512i pairs_across(const stored_rows *m, int64_t row, int64_t at) {
    const __m512i first = _mm512_cvtepu16_epi32(sixteen(m, row, at));
    const __m512i second = _mm512_cvtepu16_epi32(sixteen(m, row + 1, at));
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

/* Interleaving with the row half a square further down moves the highest bit of a number's row
 * index to the lowest bit of its column index. */
static void transpose(__m512i x[LINE]) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#pragma GCC unroll 4
    for (int step = 1; step < LINE; step *= 2) {
        __m512i to[LINE];
#pragma GCC unroll 8
        for (int r = 0; r < LINE / 2; r++) {
            to[2 * r] = _mm512_permutex2var_epi32(x[r], low, x[r + LINE / 2]);
            to[2 * r + 1] = _mm512_permutex2var_epi32(x[r], high, x[r + LINE / 2]);
        }
#pragma GCC unroll 16
        for (int r = 0; r < LINE; r++)
            x[r] = to[r];
    }
}

/* Where 16 lines of 16 pairs go: strides from line to line, from 16 rows of A or columns of B to
 * the next 16 of a panel, from 32 k to the next, and from panel to panel. */
typedef struct line_strides {
    int64_t line, half, step, panel;
} line_strides;

/* 16 lines at a time, of 32 k and 16 rows of A or columns of B, which are transposed if operands
 * are stored the other way round. */
static void pack(uint32_t *out, line_strides to, const stored_rows *m, bool turn, int64_t count,
                 int64_t K) {
    for (int64_t n = 0; n < padded(count); n += LINE)
        for (int64_t k = 0; k < padded(K); k += PAIR_TILE) {
            uint32_t *at =
                out + n / PAIR_TILE * to.panel + n / LINE % 2 * to.half + k / PAIR_TILE * to.step;
            __m512i lines[LINE];
#pragma GCC unroll 16
            for (int i = 0; i < LINE; i++)
                lines[i] = m->along_k ? pairs_along(m, n + i, k) : pairs_across(m, k + 2 * i, n);
            if (turn)
                transpose(lines);
#pragma GCC unroll 16
            for (int i = 0; i < LINE; i++)
                _mm512_storeu_si512(at + i * to.line, lines[i]);
        }
}

static void pack_a(uint16_t *out, const sr_product *tile) {
    const bool transposed = tile->transpose_a;
    const stored_rows m = {tile->a,
                           false,
                           tile->a_stride,
                           transposed ? tile->K : tile->M,
                           transposed ? tile->M : tile->K,
                           !transposed};
    const line_strides to = {LINE, LINE * LINE, 2 * LINE * LINE, padded(tile->K) * LINE};
    pack((uint32_t *)(void *)out, to, &m, transposed, tile->M, tile->K);
}

static void pack_b(uint32_t *out, const sr_product *tile) {
    const bool transposed = tile->transpose_b;
    const stored_rows m = {tile->b,
                           tile->narrow_b,
                           tile->b_stride,
                           transposed ? tile->N : tile->K,
                           transposed ? tile->K : tile->N,
                           transposed};
    const line_strides to = {LINE, padded(tile->K) / 2 * LINE, LINE * LINE, padded(tile->K) * LINE};
    pack(out, to, &m, transposed, tile->N, tile->K);
}

/* A block of C that ends within PAIR_TILE rows or columns. */
static void multiply_edge(pair_product block, int64_t rows, int64_t columns) {
    float whole[PAIR_TILE * PAIR_TILE] __attribute__((aligned(64)));
    float *const c = block.c;
    const int64_t stride = block.c_stride;
    const bool accumulate = block.accumulate;
    block.c = whole;
    block.c_stride = PAIR_TILE;
    block.accumulate = false;
    pair_block(&block);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t column = 0; column < columns; column++) {
            const float sum = whole[row * PAIR_TILE + column];
            float *at = c + row * stride + column;
            *at = accumulate ? *at + sum : sum;
        }
}

/* A strip of B of this depth stays in the first cache while A passes. */
enum { DEPTH = 512 };

static void multiply(const sr_product *tile, const uint16_t *a, const uint32_t *b) {
    const int64_t K = padded(tile->K);
    pairs_begin();
    for (int64_t k = 0; k < K; k += DEPTH)
        for (int64_t column = 0; column < tile->N; column += PAIR_TILE)
            for (int64_t row = 0; row < tile->M; row += PAIR_TILE) {
                const pair_product block = {.c = tile->c + row * tile->c_stride + column,
                                            .c_stride = tile->c_stride,
                                            .accumulate = tile->add || k > 0,
                                            .a = a + row * K + k * PAIR_TILE,
                                            .a_stride = PAIR_TILE,
                                            .a_step = PAIR_TILE * PAIR_TILE,
                                            .b = b + column / LINE * (K / 2 * LINE) + k / 2 * LINE,
                                            .b_stride = LINE,
                                            .b_step = K / 2 * LINE,
                                            .k = K - k < DEPTH ? K - k : DEPTH};
                const int64_t rows = tile->M - row, columns = tile->N - column;
                if (rows >= PAIR_TILE && columns >= PAIR_TILE)
                    pair_block(&block);
                else
                    multiply_edge(block, rows < PAIR_TILE ? rows : PAIR_TILE,
                                  columns < PAIR_TILE ? columns : PAIR_TILE);
            }
    pairs_end();
}

extern const sr_cpu_pairs SR_PAIRS_TABLE;
const sr_cpu_pairs SR_PAIRS_TABLE = {.pack_a = pack_a, .pack_b = pack_b, .multiply = multiply};
