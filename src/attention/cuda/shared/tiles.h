/* tiles.h (private): swizzled tiles of bf16 rows in shared memory, cp.async copies to them, stores
 * from them, and fragments of them for mma.sync. */
#ifndef SR_ATTENTION_CUDA_SHARED_TILES_H
#define SR_ATTENTION_CUDA_SHARED_TILES_H

#include "attention/cuda/shared/rows.h"
#include "attention/cuda/shared/tile_scheduler.h"

/* Swizzle: where a tile of WIDTH numbers per row keeps 8 of them (16 bytes, a chunk). Chunks are
 * permuted within a row so that the same chunk of 8 rows lies in 8 different groups of banks. */
template <int WIDTH> struct sr_tile {
    static constexpr int chunks = WIDTH / 8;
    static constexpr int rows_a_line = chunks < 8 ? 8 / chunks : 1; /* of 128 bytes */
    static constexpr int swizzle = chunks < 8 ? chunks : 8;

    static SR_BOTH int offset(int row, int chunk) {
        return row * WIDTH + (chunk ^ (row / rows_a_line % swizzle)) * 8;
    }

    /* Chunk 2 k + odd of a row, written so that a lane keeps at most four such offsets, and adds
     * the rest of k. */
    static SR_BOTH int offset(int row, int k, int odd) {
        const int inside = (2 * (k % 4) + odd) ^ (row / rows_a_line % swizzle);
        return k / 4 * 64 + (row * WIDTH + inside * 8);
    }
};

/* Rows of one head in global memory. */
template <class N> struct sr_head_rows {
    N *rows; /* row t at rows + t * time */
    int64_t time;
    int columns;
    bool aligned; /* rows begin at multiples of 16 bytes */
};

template <class N>
SR_DEVICE sr_head_rows<N> head_rows(const sr_strided<N> &array, int b, int h, int columns,
                                    bool aligned) {
    return {array.at(b, h, 0), array.time, columns, aligned};
}

/* The first row whose document begins after key `last`; T if there is none. `first` never falls. */
SR_DEVICE int end_of_queries(const int32_t *first, int last, int T) {
    int low = min(last, T - 1), high = T; /* the row of the key itself sees it */
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (first[middle] > last)
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Starts the cp.async copy of rows t0 .. t0+ROWS-1 by all THREADS threads of the block; rows
 * outside from .. past-1 and columns past the end become zero. Complete after cp_async_wait and a
 * barrier. */
template <int WIDTH, int ROWS, int THREADS>
SR_DEVICE void tile_load(sr_bf16 *tile, const sr_head_rows<const sr_bf16> &head, int t0, int from,
                         int past) {
    using Tile = sr_tile<WIDTH>;
#pragma unroll
    for (int n = (int)threadIdx.x; n < ROWS * Tile::chunks; n += THREADS) {
        const int row = n / Tile::chunks, chunk = n % Tile::chunks, t = t0 + row;
        const int left = head.columns - 8 * chunk;
        const int count = t < from || t >= past || left < 0 ? 0 : left > 8 ? 8 : left;
        const sr_bf16 *const source = head.rows + (count > 0 ? t * head.time + 8 * chunk : 0);
        sr_bf16 *const to = tile + Tile::offset(row, chunk);
        if (head.aligned) {
            cp_async_16(to, source, 2 * count);
            continue;
        }
        sr_vector<sr_bf16> vector = {};
#pragma unroll
        for (int c = 0; c < 8; c++)
            if (c < count)
                vector.number[c] = source[c];
        store_vector(to, vector);
    }
}

/* ---- fragments: `row` is a multiple of 16, and only an offset to the lane's address ---- */

/* Where a lane's addresses come from: a loop may pass what thread_again returns, so that they take
 * no registers outside of it. */
SR_DEVICE int warp_lane() {
    return (int)(threadIdx.x % SR_WARP);
}

/* A: rows row .. row+15 of the tile, columns 16 k .. 16 k + 15. */
template <int WIDTH>
SR_DEVICE void load_a(uint32_t (&a)[4], const sr_bf16 *tile, int row, int k,
                      int lane = warp_lane()) {
    ldmatrix_x4(a, tile + row * WIDTH + sr_tile<WIDTH>::offset(lane % 16, k, lane / 16));
}

/* B of two mma, whose columns are rows row .. row+7 and row+8 .. row+15 of the tile; the sum is
 * over columns 16 k .. 16 k + 15. b[0..1] belong to the first. */
template <int WIDTH>
SR_DEVICE void load_b(uint32_t (&b)[4], const sr_bf16 *tile, int row, int k,
                      int lane = warp_lane()) {
    ldmatrix_x4(b, tile + row * WIDTH +
                       sr_tile<WIDTH>::offset(lane % 8 + lane / 16 * 8, k, lane / 8 % 2));
}

/* B of two mma, whose columns are columns 16 c .. 16 c + 15 of the tile; the sum is over rows row
 * .. row+15. */
template <int WIDTH>
SR_DEVICE void load_b_rows(uint32_t (&b)[4], const sr_bf16 *tile, int row, int c,
                           int lane = warp_lane()) {
    ldmatrix_x4_transposed(b, tile + row * WIDTH + sr_tile<WIDTH>::offset(lane % 16, c, lane / 16));
}

/* The C fragment of a 16 x 16 piece (two mma side by side) as the A fragment of the next GEMM. */
SR_DEVICE void pack_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack_bf16(left[0], left[1]);
    a[1] = pack_bf16(left[2], left[3]);
    a[2] = pack_bf16(right[0], right[1]);
    a[3] = pack_bf16(right[2], right[3]);
}

/* c (16 x WIDTH) += A (16 x 16) times rows row .. row+15 of the tile, from column 16 `begin` of it
 * on. */
template <int WIDTH, int PIECES>
SR_DEVICE void multiply_rows(float (&c)[PIECES][4], const uint32_t (&a)[4], const sr_bf16 *tile,
                             int row, int begin = 0, int lane = warp_lane()) {
#pragma unroll
    for (int n = 0; n < PIECES; n += 2) {
        uint32_t b[4];
        load_b_rows<WIDTH>(b, tile, row, begin + n / 2, lane);
        mma_m16n8k16(c[n], a, b);
        mma_m16n8k16(c[n + 1], a, b + 2);
    }
}

/* The A fragments of 16 rows of a tile: held in registers, or reloaded each time. */
template <int WIDTH, bool KEPT> struct sr_operand;

template <int WIDTH> struct sr_operand<WIDTH, true> {
    uint32_t kept[WIDTH / 16][4];
    SR_DEVICE void open(const sr_bf16 *tile, int row) {
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++)
            load_a<WIDTH>(kept[k], tile, row, k);
    }
    SR_DEVICE void get(uint32_t (&a)[4], int k) const {
#pragma unroll
        for (int n = 0; n < 4; n++)
            a[n] = kept[k][n];
    }
};

template <int WIDTH> struct sr_operand<WIDTH, false> {
    const sr_bf16 *rows;
    SR_DEVICE void open(const sr_bf16 *tile, int row) {
        rows = tile + row * WIDTH;
    }
    SR_DEVICE void get(uint32_t (&a)[4], int k) const {
        load_a<WIDTH>(a, rows, 0, k);
    }
};

/* ---- results ---- */

/* Row `half` (0: g, 1: g + 8) of a C of PIECES mma side by side, as a row over four lanes. */
template <int PIECES>
SR_DEVICE void row_of(float (&x)[2 * PIECES], const float (&c)[PIECES][4], int half) {
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        x[2 * n] = c[n][2 * half];
        x[2 * n + 1] = c[n][2 * half + 1];
    }
}

template <int PIECES>
SR_DEVICE void set_row(float (&c)[PIECES][4], const float (&x)[2 * PIECES], int half) {
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        c[n][2 * half] = x[2 * n];
        c[n][2 * half + 1] = x[2 * n + 1];
    }
}

/* Stores C (16 x 8 PIECES) to rows t0 .. t0+15, those before `past`, from column `begin` on. One
 * warp, through 16 rows of a tile that no other warp uses. */
template <int WIDTH, int PIECES>
SR_DEVICE void tile_store(const sr_head_rows<sr_bf16> &head, const float (&c)[PIECES][4],
                          sr_bf16 *tile, int t0, int past, int begin = 0) {
    using Tile = sr_tile<WIDTH>;
    const int lane = threadIdx.x % SR_WARP;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < PIECES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            sr_bf16 *const to =
                tile + Tile::offset(lane / 4 + 8 * half, begin / 8 + n) + 2 * (lane % 4);
            *reinterpret_cast<uint32_t *>(to) = pack_bf16(c[n][2 * half], c[n][2 * half + 1]);
        }
    __syncwarp();
    for (int n = lane; n < 16 * PIECES; n += SR_WARP) {
        const int row = n / PIECES, chunk = begin / 8 + n % PIECES;
        const int count = min(8, head.columns - 8 * chunk);
        if (t0 + row >= past || count <= 0)
            continue;
        const sr_vector<sr_bf16> vector = load_vector(tile + Tile::offset(row, chunk));
        sr_bf16 *const to = head.rows + (t0 + row) * head.time + 8 * chunk;
        if (head.aligned && count == 8) {
            store_vector(to, vector);
            continue;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < count)
                to[i] = vector.number[i];
    }
}

#endif
