/* quantize.cu: tensors of bf16 as numbers of 8 bits, in two kernels: the largest number, then the
 * conversion, which writes a tensor and its transpose from one read. */
#include "ops/cuda/fp8/quantize.h"

#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/format.h"

enum { THREADS = 256, TILE_ROWS = 128, TILE_COLUMNS = 64, EIGHT = 8 };

struct source {
    const sr_bf16 *data;
    int64_t stride;
    int rows, columns;
};

/* Sizes are compared as bits, so that infinity is above all finite numbers, and NaN above that. */
SR_DEVICE uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The maximum over the threads of a block, for all of them. */
SR_DEVICE uint32_t block_largest(uint32_t x, uint32_t *shared) {
    const int lane = threadIdx.x % SR_WARP, warp = threadIdx.x / SR_WARP;
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = larger(x, shuffle_xor(x, mask));
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    x = shared[lane % (THREADS / SR_WARP)];
#pragma unroll
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = larger(x, shuffle_xor(x, mask));
    return x;
}

/* parts[block] = the largest size, as bits of a float, of every gridDim.x-th group of eight numbers
 * per thread: global memory -> registers, then over the block by shuffles. */
static __global__ void __launch_bounds__(THREADS) find_largest(uint32_t *parts, const source x) {
    __shared__ uint32_t shared[SR_WARP];
    const uint32_t eights = x.columns / EIGHT, count = x.rows * eights, step = gridDim.x * THREADS;
    uint32_t largest = 0;
#pragma unroll 4
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const uint32_t row = i / eights, at = (i - row * eights) * EIGHT;
        const uint4 raw = *reinterpret_cast<const uint4 *>(x.data + row * x.stride + at);
        const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int n = 0; n < 4; n++)
            largest = larger(largest, larger(pairs[n] << 16 & 0x7fff0000u, pairs[n] & 0x7fff0000u));
    }
    largest = block_largest(largest, shared);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = largest;
}

/* Block (x, y) owns a tile of 128 rows and 64 columns; a thread 4 rows and 8 columns of it, read as
 * 16 bytes a row. It converts them in registers and stores 8 bytes a row to `along`; blocks of 4 x
 * 4 numbers are transposed in registers and meet in shared memory, from where each thread stores
 * 32 rows of a column to `across`. The scale is found anew by each block, from parts (count). */
template <class Format>
static __global__ void __launch_bounds__(THREADS)
    quantize(const sr_fp8_tensor to, const source x, int count) {
    __shared__ uint32_t shared[SR_WARP];
    __shared__ uint32_t tile[TILE_COLUMNS][TILE_ROWS / 4 + 1];
    uint32_t largest = 0;
    for (int i = threadIdx.x; i < count; i += THREADS)
        largest = larger(largest, to.parts[i]);
    largest = block_largest(largest, shared);
    const bool finite = largest < 0x7f800000u;
    const int exponent = finite ? Format::scale_exponent(largest) : 0;
    const float multiply = sr_power_of_two(exponent);
    const float back = finite ? sr_power_of_two(-exponent) : bits_float(0x7fffffffu);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *to.scale = back;

    const int group = threadIdx.x % 8, four = threadIdx.x / 8;
    const int first = blockIdx.x * TILE_ROWS + 4 * four;
    const int column = blockIdx.y * TILE_COLUMNS + EIGHT * group;
    uint32_t codes[4][2] = {};
    if (column < x.columns)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int64_t row = first + i;
            if (row >= x.rows)
                break;
            float numbers[EIGHT];
            load_numbers<EIGHT>(numbers, x.data + row * x.stride + column);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float four_numbers[4];
#pragma unroll
                for (int n = 0; n < 4; n++)
                    four_numbers[n] = finite ? numbers[4 * half + n] * multiply : 0;
                codes[i][half] = pack_fp8<Format>(four_numbers);
            }
            if (to.along)
                *reinterpret_cast<uint2 *>(to.along + row * x.columns + column) =
                    make_uint2(codes[i][0], codes[i][1]);
            if (to.rounded) {
#pragma unroll
                for (int n = 0; n < EIGHT; n++)
                    numbers[n] = Format::widen(codes[i][n / 4] >> 8 * (n % 4) & 0xffu) * back;
                store_numbers<EIGHT>(to.rounded + row * x.columns + column, numbers);
            }
        }
    if (!to.across)
        return;
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                word |= (codes[i][half] >> 8 * n & 0xffu) << 8 * i;
            tile[EIGHT * group + 4 * half + n][four] = word;
        }
    __syncthreads();
    const int own = blockIdx.y * TILE_COLUMNS + threadIdx.x / 4, quarter = threadIdx.x % 4;
    const int64_t padded = sr_fp8_padded(x.rows);
    if (own < x.columns)
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const int64_t row = (int64_t)blockIdx.x * TILE_ROWS + 32 * quarter + 16 * part;
            const uint32_t *const words = tile[threadIdx.x / 4] + 8 * quarter + 4 * part;
            if (row < padded)
                *reinterpret_cast<uint4 *>(to.across + own * padded + row) =
                    make_uint4(words[0], words[1], words[2], words[3]);
        }
}

srnn_status sr_cuda_fp8_quantize(sr_backend *backend, const sr_fp8_tensor *to, sr_matrix x,
                                 sr_fp8_format format) {
    const source from = {(const sr_bf16 *)x.data, x.stride, (int)x.rows, (int)x.columns};
    const int count = (int)sr_minimum(SR_FP8_PARTS, sr_pieces(x.rows * (x.columns / EIGHT),
                                                              (int64_t)4 * THREADS));
    const dim3 tiles((unsigned)sr_pieces(x.rows, TILE_ROWS),
                     (unsigned)sr_pieces(x.columns, TILE_COLUMNS));
    const cudaStream_t stream = sr_stream_of(backend);
    SR_CUDA(
        sr_launch(find_largest, dim3((unsigned)count), dim3(THREADS), 0, stream, to->parts, from));
    if (format == SR_FP8_E5M2)
        SR_CUDA(sr_launch(quantize<sr_e5m2>, tiles, dim3(THREADS), 0, stream, *to, from, count));
    else
        SR_CUDA(sr_launch(quantize<sr_e4m3>, tiles, dim3(THREADS), 0, stream, *to, from, count));
    return SRNN_OK;
}
