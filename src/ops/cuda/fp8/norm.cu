/* norm.cu: RMS norm of each row, written in 8 bits in both forms. Bytes per number: 4 + 2. */
#include "ops/cuda/fp8/producers.h"
#include "ops/cuda/fp8/tile.h"

enum {
    WARPS = 8,
    OWN_ROWS = 4,            /* of a warp */
    ROWS = OWN_ROWS * WARPS, /* of a block; in `across` they are a sector of memory */
    OWN = 4,                 /* columns of a lane that follow each other */
    KEPT = 8,                /* such pieces of a row that a lane keeps */
    STEP = OWN * SR_WARP,
    CHUNK = KEPT * STEP /* columns that are transposed at once */
};

/* No number of the norm of a row exceeds sqrt(C) times the largest weight, so the scale is known
 * before any row is: a power of two that is at most 2 sqrt(C) times smaller than that of the
 * numbers themselves, of which those below 2^-14 of the bound have fewer than 3 bits of mantissa.
 * 1.001: what the arithmetic may add. */
SR_DEVICE uint32_t bound_of(const sr_rmsnorm &norm, uint32_t *shared) {
    uint32_t largest = 0;
    for (int c = threadIdx.x; c < norm.C; c += WARPS * SR_WARP)
        largest = fp8_larger(largest, float_bits(norm.weight[c]) & 0x7fffffffu);
    largest = fp8_block_largest<WARPS>(largest, shared);
    return float_bits(bits_float(largest) * sqrtf((float)norm.C) * 1.001f) & 0x7fffffffu;
}

/* Columns of a row from `chunk` on, and what their norm is multiplied by. */
struct part {
    int row, chunk;
    float multiply;
};

/* One row of a warp, up to CHUNK columns from `chunk` on: global -> registers; with the first of
 * them 1/rms, from shuffles, which lane 0 stores for the backward pass; then codes go to `along`
 * and to the row of shared memory. */
SR_DEVICE void norm_part(uint32_t *codes, float *rstd, const sr_fp8_forms &to,
                         const sr_rmsnorm &norm, const part &of) {
    const int C = (int)norm.C, lane = threadIdx.x % SR_WARP, row = of.row, chunk = of.chunk;
    const float *const x = norm.x + row * norm.C;
    float numbers[KEPT][OWN] = {};
#pragma unroll
    for (int n = 0; n < KEPT; n++)
        if (chunk + n * STEP + OWN * lane < C)
            load_numbers<OWN>(numbers[n], x + chunk + n * STEP + OWN * lane);
    if (chunk == 0) {
        float squares = 0;
#pragma unroll
        for (int n = 0; n < KEPT; n++)
#pragma unroll
            for (int k = 0; k < OWN; k++)
                squares += numbers[n][k] * numbers[n][k];
        for (int c = CHUNK + OWN * lane; c < C; c += STEP) {
            float more[OWN];
            load_numbers<OWN>(more, x + c);
#pragma unroll
            for (int k = 0; k < OWN; k++)
                squares += more[k] * more[k];
        }
        *rstd = 1.0f / sqrtf(warp_sum(squares) / (float)C + norm.epsilon);
        if (lane == 0)
            norm.rstd[row] = *rstd;
    }
#pragma unroll
    for (int n = 0; n < KEPT; n++) {
        const int c = chunk + n * STEP + OWN * lane;
        float weight[OWN];
        if (c >= C)
            break;
        load_numbers<OWN>(weight, norm.weight + c);
#pragma unroll
        for (int k = 0; k < OWN; k++)
            numbers[n][k] *= *rstd * weight[k];
        const uint32_t word = fp8_four<sr_e4m3>(numbers[n], of.multiply);
        codes[n * SR_WARP + lane] = word;
        *reinterpret_cast<uint32_t *>(to.along + row * to.along_stride + c) = word;
    }
}

using chunk_of_rows = uint32_t[ROWS][CHUNK / OWN + 1];

/* 16 rows from `row` on, of 4 columns from c on: shared memory -> registers, transposed there, ->
 * global, 16 bytes a column. */
SR_DEVICE void store_columns(const chunk_of_rows &codes, const sr_fp8_forms &to, int first,
                             int half, int chunk, int word) {
    uint32_t columns[OWN][4];
#pragma unroll
    for (int four = 0; four < 4; four++) {
        uint32_t rows[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            rows[i] = codes[16 * half + 4 * four + i][word];
#pragma unroll
        for (int n = 0; n < OWN; n++)
            columns[n][four] = (rows[0] >> 8 * n & 0xffu) | (rows[1] >> 8 * n & 0xffu) << 8 |
                               (rows[2] >> 8 * n & 0xffu) << 16 | (rows[3] >> 8 * n & 0xffu) << 24;
    }
#pragma unroll
    for (int n = 0; n < OWN; n++)
        *reinterpret_cast<uint4 *>(to.across + (int64_t)(chunk + OWN * word + n) * to.rows + first +
                                   16 * half) =
            make_uint4(columns[n][0], columns[n][1], columns[n][2], columns[n][3]);
}

/* A block owns 32 rows, each of its 8 warps four of them, one after the other: global -> registers
 * -> `along` and shared memory (norm_part). After a barrier two threads share a sector of `across`:
 * a thread has 16 rows of 4 columns. Columns beyond CHUNK are read again, from the caches, and
 * transposed CHUNK at a time, between two barriers each. */
static __global__ void __launch_bounds__(WARPS *SR_WARP, 3)
    norm_codes(const sr_fp8_forms to, const sr_rmsnorm norm) {
    __shared__ chunk_of_rows codes;
    __shared__ uint32_t shared[SR_WARP];
    const int warp = threadIdx.x / SR_WARP, first = blockIdx.x * ROWS;
    const sr_fp8_scaling scaling = fp8_scaling<sr_e4m3>(bound_of(norm, shared));
    float rstd[OWN_ROWS];
    if (blockIdx.x == 0 && threadIdx.x == 0)
        norm.codes->scale = scaling.back;
    for (int chunk = 0; chunk < to.columns; chunk += CHUNK) {
#pragma unroll
        for (int i = 0; i < OWN_ROWS; i++)
            if (first + OWN_ROWS * warp + i < to.rows)
                norm_part(codes[OWN_ROWS * warp + i], &rstd[i], to, norm,
                          {first + OWN_ROWS * warp + i, chunk, scaling.multiply});
        __syncthreads();
        const int words = min(CHUNK, to.columns - chunk) / OWN, half = threadIdx.x % 2;
        for (int word = threadIdx.x / 2; word < words; word += WARPS * SR_WARP / 2)
            if (first + 16 * half < to.rows)
                store_columns(codes, to, first, half, chunk, word);
        __syncthreads();
    }
}

srnn_status sr_cuda_fp8_norm(sr_backend *backend, void *out, const sr_rmsnorm *norm) {
    const sr_fp8_forms to = {(uint8_t *)out, (uint8_t *)out + norm->rows * norm->C, norm->C,
                             (int)norm->rows, (int)norm->C};
    SR_CUDA(sr_launch(norm_codes, dim3((unsigned)sr_pieces(norm->rows, ROWS)),
                      dim3(WARPS * SR_WARP), 0, sr_stream_of(backend), to, *norm));
    return SRNN_OK;
}
