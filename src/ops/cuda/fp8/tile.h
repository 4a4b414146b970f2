/* tile.h (private): how a block of 256 threads stores a tile of 128 rows and 64 columns in 8 bits,
 * in both forms.
 *
 * A thread has 4 rows and 8 columns in registers. It stores 8 bytes a row to `along`; blocks of 4 x
 * 4 numbers are transposed in registers and meet in shared memory, from where four threads store
 * the rows of a column to `across`, 64 bytes at a time. */
#ifndef SR_OPS_CUDA_FP8_TILE_H
#define SR_OPS_CUDA_FP8_TILE_H

#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/format.h"
#include "ops/cuda/fp8/quantize.h"

enum { SR_FP8_TILE_THREADS = 256, SR_FP8_TILE_ROWS = 128, SR_FP8_TILE_COLUMNS = 64, SR_EIGHT = 8 };

/* A matrix of 8 bits in device memory; NULL: that form is not wanted. */
typedef struct sr_fp8_forms {
    uint8_t *along;  /* (rows, columns) */
    uint8_t *across; /* (columns, rows rounded up to SR_FP8_STEP), zeros at the end */
    int64_t along_stride;
    int rows, columns;
} sr_fp8_forms;

/* The tiles of a matrix, those of the same rows next to each other: blocks that run together read
 * whole rows. */
static inline unsigned sr_fp8_tiles(int64_t rows, int64_t columns) {
    return (unsigned)(sr_pieces(rows, SR_FP8_TILE_ROWS) * sr_pieces(columns, SR_FP8_TILE_COLUMNS));
}

/* Sizes are compared as bits, so that infinity is above all finite numbers, and NaN above that. */
SR_DEVICE uint32_t fp8_larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The maximum over the threads of a block of `warps` warps, for all of them. */
template <int warps> SR_DEVICE uint32_t fp8_block_largest(uint32_t x, uint32_t *shared) {
    const int lane = threadIdx.x % SR_WARP, warp = threadIdx.x / SR_WARP;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = fp8_larger(x, shuffle_xor(x, mask));
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = shared[lane % warps];
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = fp8_larger(x, shuffle_xor(x, mask));
    return x;
}

/* What a thread owns: rows [row, row + 4), columns [column, column + 8) of the tile whose first row
 * and column are given. */
struct sr_fp8_piece {
    int tile_row, tile_column, row, column;
};

SR_DEVICE sr_fp8_piece fp8_piece(int columns, int tile) {
    const int across = (columns + SR_FP8_TILE_COLUMNS - 1) / SR_FP8_TILE_COLUMNS;
    const int down = tile / across;
    const int row = down * SR_FP8_TILE_ROWS, column = (tile - down * across) * SR_FP8_TILE_COLUMNS;
    return {row, column, row + 4 * ((int)threadIdx.x / 8),
            column + SR_EIGHT * ((int)threadIdx.x % 8)};
}

/* How numbers become codes, given the bits of a size that none of them exceeds: what they are
 * multiplied by, and the scale that undoes it, NaN where that size is not finite. */
struct sr_fp8_scaling {
    float multiply, back;
};

template <class Format> SR_DEVICE sr_fp8_scaling fp8_scaling(uint32_t largest) {
    const bool finite = largest < 0x7f800000u;
    const int exponent = finite ? Format::scale_exponent(largest) : 0;
    return {sr_power_of_two(exponent),
            finite ? sr_power_of_two(-exponent) : bits_float(0x7fffffffu)};
}

/* The same where a size is expected, and whether that was right. */
template <class Format> SR_DEVICE sr_fp8_scaling fp8_expected_scaling(uint32_t expected) {
    const int exponent = Format::scale_exponent(expected) - Format::above;
    return {sr_power_of_two(exponent), sr_power_of_two(-exponent)};
}

template <class Format> SR_DEVICE bool fp8_as_expected(const sr_matrix_note &note) {
    const float largest = bits_float(note.largest), expected = bits_float(note.expected);
    return largest <= expected * (1 << Format::above) && largest * (1 << Format::below) >= expected;
}

/* Codes of four and of eight numbers; what is not finite becomes NaN. */
template <class Format> SR_DEVICE uint32_t fp8_four(const float *numbers, float multiply) {
    float scaled[4];
#pragma unroll
    for (int n = 0; n < 4; n++)
        scaled[n] = fmaf(numbers[n], 0.0f, numbers[n] * multiply);
    return pack_fp8<Format>(scaled);
}

template <class Format>
SR_DEVICE void fp8_codes(uint32_t (&codes)[2], const float (&numbers)[SR_EIGHT], float multiply) {
#pragma unroll
    for (int half = 0; half < 2; half++)
        codes[half] = fp8_four<Format>(numbers + 4 * half, multiply);
}

/* Eight numbers of bf16 as they lie in memory. */
SR_DEVICE void fp8_unpack(float (&numbers)[SR_EIGHT], uint4 raw) {
    const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float2 two = unpack_bf16(pairs[n]);
        numbers[2 * n] = two.x, numbers[2 * n + 1] = two.y;
    }
}

/* The numbers that eight codes stand for, as bf16. */
template <class Format>
SR_DEVICE void fp8_store_rounded(sr_bf16 *to, const uint32_t (&codes)[2], float back) {
    float numbers[SR_EIGHT];
#pragma unroll
    for (int n = 0; n < SR_EIGHT; n++)
        numbers[n] = Format::widen(codes[n / 4] >> 8 * (n % 4) & 0xffu) * back;
    store_numbers<SR_EIGHT>(to, numbers);
}

using sr_fp8_tile = uint32_t[SR_FP8_TILE_COLUMNS][SR_FP8_TILE_ROWS / 4 + 1];

/* Before a barrier: stores the thread's codes, zero in rows that the matrix does not have, to
 * `along`, and transposes them into shared memory. */
SR_DEVICE void fp8_store_along(sr_fp8_tile &tile, const uint32_t (&codes)[4][2],
                               const sr_fp8_forms &to, const sr_fp8_piece &own) {
    if (to.along && own.column < to.columns)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (own.row + i < to.rows)
                *reinterpret_cast<uint2 *>(to.along + (own.row + i) * to.along_stride +
                                           own.column) = make_uint2(codes[i][0], codes[i][1]);
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                word |= (codes[i][half] >> 8 * n & 0xffu) << 8 * i;
            tile[own.column - own.tile_column + 4 * half + n][threadIdx.x / 8] = word;
        }
}

/* After the barrier. */
SR_DEVICE void fp8_store_across(const sr_fp8_tile &tile, const sr_fp8_forms &to,
                                const sr_fp8_piece &of) {
    const int own = of.tile_column + (int)threadIdx.x / 4, quarter = (int)threadIdx.x % 4;
    const int64_t padded = sr_fp8_padded(to.rows);
    if (!to.across || own >= to.columns)
        return;
#pragma unroll
    for (int part = 0; part < 2; part++) {
        const int64_t row = of.tile_row + 64 * part + 16 * quarter;
        const uint32_t *const words = tile[threadIdx.x / 4] + 16 * part + 4 * quarter;
        if (row < padded)
            *reinterpret_cast<uint4 *>(to.across + own * padded + row) =
                make_uint4(words[0], words[1], words[2], words[3]);
    }
}

#endif
