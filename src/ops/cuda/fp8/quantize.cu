/* quantize.cu: tensors of bf16 as numbers of 8 bits, in two kernels: the largest number, then the
 * conversion, which writes a tensor and its transpose from one read. Where a size is expected the
 * conversion comes first and measures; it is repeated if the expectation was wrong. */
#include "ops/cuda/fp8/tile.h"

enum {
    THREADS = SR_FP8_TILE_THREADS,
    MOST_BLOCKS = 1024,
    RESIDENT = 5 /* blocks of a multiprocessor: what they have in flight hides their latency */
};

template <class N> struct source {
    const N *data;
    int64_t stride;
    int rows, columns;
};

/* Eight numbers as they lie in memory. */
struct eight_floats {
    float4 first, second;
};
SR_DEVICE uint4 raw_eight(const sr_bf16 *from) {
    return *reinterpret_cast<const uint4 *>(from);
}
SR_DEVICE eight_floats raw_eight(const float *from) {
    const float4 *const fours = reinterpret_cast<const float4 *>(from);
    return {fours[0], fours[1]};
}
SR_DEVICE void fp8_unpack(float (&numbers)[SR_EIGHT], const eight_floats &raw) {
    const float all[SR_EIGHT] = {raw.first.x,  raw.first.y,  raw.first.z,  raw.first.w,
                                 raw.second.x, raw.second.y, raw.second.z, raw.second.w};
#pragma unroll
    for (int n = 0; n < SR_EIGHT; n++)
        numbers[n] = all[n];
}

/* The largest size of eight numbers, as bits of a float. */
SR_DEVICE uint32_t largest_of(uint4 raw) {
    const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
    uint32_t largest = 0;
#pragma unroll
    for (int n = 0; n < 4; n++)
        largest =
            fp8_larger(largest, fp8_larger(pairs[n] << 16 & 0x7fff0000u, pairs[n] & 0x7fff0000u));
    return largest;
}

/* Raises *largest to the largest size, as bits of a float. A block owns every gridDim.x-th group of
 * eight numbers per thread: global memory -> registers, over the block by shuffles and one barrier,
 * then one atomic maximum, whose order does not show. */
static __global__ void __launch_bounds__(THREADS)
    find_largest(uint32_t *largest, const source<sr_bf16> x) {
    __shared__ uint32_t shared[SR_WARP];
    const uint32_t eights = x.columns / SR_EIGHT, count = x.rows * eights,
                   step = gridDim.x * THREADS;
    uint32_t own = 0;
#pragma unroll 4
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const uint32_t row = i / eights, at = (i - row * eights) * SR_EIGHT;
        own =
            fp8_larger(own,
                       largest_of(*reinterpret_cast<const uint4 *>(x.data + row * x.stride + at)));
    }
    own = fp8_block_largest<THREADS / SR_WARP>(own, shared);
    if (threadIdx.x == 0)
        atomicMax(largest, own);
}

/* A tile of a block, before the barrier: each thread reads its piece (tile.h) as 16 bytes a row,
 * before the scaling is known, global memory -> registers, converts it there and stores the forms
 * that are wanted. The largest size of the piece. */
template <class Format, class N, class Scaling>
SR_DEVICE uint32_t quantize_tile(sr_fp8_tile &tile, const sr_fp8_tensor &to, const source<N> &x,
                                 const sr_fp8_piece &own, Scaling scaling_of) {
    const sr_fp8_forms forms = {to.along, to.across, x.columns, x.rows, x.columns};
    decltype(raw_eight(x.data)) raw[4] = {};
    uint32_t codes[4][2] = {}, largest = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.columns && own.row + i < x.rows)
            raw[i] = raw_eight(x.data + (own.row + i) * x.stride + own.column);
    const sr_fp8_scaling scaling = scaling_of();
    if (own.tile_row == 0 && own.tile_column == 0 && threadIdx.x == 0)
        *to.scale = scaling.back;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.columns && own.row + i < x.rows) {
            float numbers[SR_EIGHT];
            if constexpr (sizeof(N) == sizeof(sr_bf16)) /* floats were measured before */
                largest = fp8_larger(largest, largest_of(raw[i]));
            fp8_unpack(numbers, raw[i]);
            fp8_codes<Format>(codes[i], numbers, scaling.multiply);
            if (to.rounded)
                fp8_store_rounded<Format>(to.rounded + (int64_t)(own.row + i) * x.columns +
                                              own.column,
                                          codes[i], scaling.back);
        }
    fp8_store_along(tile, codes, forms, own);
    return largest;
}

template <class N>
SR_DEVICE void store_across(const sr_fp8_tile &tile, const sr_fp8_tensor &to, const source<N> &x,
                            const sr_fp8_piece &own) {
    fp8_store_across(tile, {to.along, to.across, x.columns, x.rows, x.columns}, own);
}

/* A block owns a tile and stores it in both forms, with one barrier between them. */
template <class Format>
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    quantize(const sr_fp8_tensor to, const source<sr_bf16> x) {
    __shared__ sr_fp8_tile tile;
    const sr_fp8_piece own = fp8_piece(x.columns, blockIdx.x);
    quantize_tile<Format>(tile, to, x, own, [&] { return fp8_scaling<Format>(*to.largest); });
    __syncthreads();
    store_across(tile, to, x, own);
}

/* ---- where a size is expected */

/* One thread: what is expected, global -> register -> global, and nothing measured yet. */
static __global__ void expect(sr_matrix_note *note, const sr_matrix_note *before) {
    const uint32_t expected = before ? before->largest : 0;
    *note = {};
    note->expected = expected;
}

/* As quantize (global -> registers -> global), with the scale of the expected size; raises
 * note->largest to the largest of all: over the block by shuffles and the same barrier, then one
 * atomic maximum. */
static __global__ void __launch_bounds__(THREADS, RESIDENT)
    quantize_expected(const sr_fp8_tensor to, const source<sr_bf16> x, sr_matrix_note *note) {
    __shared__ sr_fp8_tile tile;
    __shared__ uint32_t shared[SR_WARP];
    const sr_fp8_piece own = fp8_piece(x.columns, blockIdx.x);
    const uint32_t largest = quantize_tile<sr_e5m2>(tile, to, x, own, [&] {
        return fp8_expected_scaling<sr_e5m2>(note->expected);
    });
    const uint32_t all = fp8_block_largest<THREADS / SR_WARP>(largest, shared);
    store_across(tile, to, x, own);
    if (threadIdx.x == 0)
        atomicMax(&note->largest, all);
}

/* As quantize (global -> registers -> global) with the largest size, unless it is as expected: then
 * no block does anything. A block owns every gridDim.x-th tile, so that there are few of them; two
 * barriers a tile. */
static __global__ void __launch_bounds__(THREADS)
    quantize_again(const sr_fp8_tensor to, const source<sr_bf16> x, const sr_matrix_note *note,
                   int tile_count) {
    __shared__ sr_fp8_tile tile;
    if (fp8_as_expected<sr_e5m2>(*note))
        return;
    for (int i = blockIdx.x; i < tile_count; i += gridDim.x) {
        const sr_fp8_piece own = fp8_piece(x.columns, i);
        quantize_tile<sr_e5m2>(tile, to, x, own,
                               [&] { return fp8_scaling<sr_e5m2>(note->largest); });
        __syncthreads();
        store_across(tile, to, x, own);
        __syncthreads();
    }
}

/* The codes of a thread's piece of a tile, global -> registers, transposed into shared memory. */
SR_DEVICE void transpose_tile(sr_fp8_tile &tile, const sr_fp8_tensor &to, int rows, int columns,
                              const sr_fp8_piece &own) {
    uint32_t codes[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < columns && own.row + i < rows) {
            const uint2 raw = *reinterpret_cast<const uint2 *>(
                to.along + (int64_t)(own.row + i) * columns + own.column);
            codes[i][0] = raw.x, codes[i][1] = raw.y;
        }
    fp8_store_along(tile, codes, {nullptr, nullptr, columns, rows, columns}, own);
}

/* What lacks of a gradient whose codes with the scale of the expected size are there: their
 * transpose; or, where the size is another, both forms, rounded again from floats. A block owns a
 * tile: global -> registers -> global, with one barrier. */
static __global__ void __launch_bounds__(THREADS)
    complete(const sr_fp8_tensor to, const source<float> x, const sr_matrix_note *note) {
    __shared__ sr_fp8_tile tile;
    const sr_fp8_piece own = fp8_piece(x.columns, blockIdx.x);
    if (fp8_as_expected<sr_e5m2>(*note))
        transpose_tile(tile, to, x.rows, x.columns, own);
    else
        quantize_tile<sr_e5m2>(tile, to, x, own,
                               [&] { return fp8_scaling<sr_e5m2>(note->largest); });
    __syncthreads();
    store_across(tile, to, x, own);
}

/* rounded = what codes stand for. A thread owns eight of them: global -> registers -> global. */
template <class Format>
static __global__ void __launch_bounds__(THREADS) widen(const sr_fp8_tensor x, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    const uint2 raw = *reinterpret_cast<const uint2 *>(x.along + SR_EIGHT * i);
    const uint32_t codes[2] = {raw.x, raw.y};
    fp8_store_rounded<Format>(x.rounded + SR_EIGHT * i, codes, *x.scale);
}

template <class N> static source<N> source_of(sr_matrix x) {
    return {(const N *)x.data, x.stride, (int)x.rows, (int)x.columns};
}

srnn_status sr_cuda_fp8_measure(sr_backend *backend, uint32_t *largest, sr_matrix x) {
    const unsigned count =
        (unsigned)sr_minimum(MOST_BLOCKS,
                             sr_pieces(x.rows * (x.columns / SR_EIGHT), (int64_t)4 * THREADS));
    SR_TRY(sr_device_zero(backend->device, largest, sizeof *largest));
    SR_CUDA(sr_launch(find_largest, dim3(count), dim3(THREADS), 0, sr_stream_of(backend), largest,
                      source_of<sr_bf16>(x)));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_quantize(sr_backend *backend, const sr_fp8_tensor *to, sr_matrix x,
                                 sr_fp8_format format) {
    const dim3 tiles(sr_fp8_tiles(x.rows, x.columns));
    const cudaStream_t stream = sr_stream_of(backend);
    sr_fp8_tensor tensor = *to;
    if (x.handed == SR_HANDED_MEASURED)
        tensor.largest = &x.note->largest;
    else
        SR_TRY(sr_cuda_fp8_measure(backend, to->largest, x));
    if (format == SR_FP8_E5M2)
        SR_CUDA(sr_launch(quantize<sr_e5m2>, tiles, dim3(THREADS), 0, stream, tensor,
                          source_of<sr_bf16>(x)));
    else
        SR_CUDA(sr_launch(quantize<sr_e4m3>, tiles, dim3(THREADS), 0, stream, tensor,
                          source_of<sr_bf16>(x)));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_expect(sr_backend *backend, sr_matrix_note *note,
                               const sr_matrix_note *before) {
    SR_CUDA(sr_launch(expect, dim3(1), dim3(1), 0, sr_stream_of(backend), note, before));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_quantize_expected(sr_backend *backend, const sr_fp8_tensor *to, sr_matrix x,
                                          sr_matrix_note *note) {
    const unsigned tiles = sr_fp8_tiles(x.rows, x.columns);
    const dim3 threads(THREADS);
    const cudaStream_t stream = sr_stream_of(backend);
    const source<sr_bf16> from = source_of<sr_bf16>(x);
    SR_TRY(sr_cuda_fp8_expect(backend, note, note));
    SR_CUDA(sr_launch(quantize_expected, dim3(tiles), threads, 0, stream, *to, from, note));
    SR_CUDA(sr_launch(quantize_again, dim3((unsigned)sr_minimum(tiles, MOST_BLOCKS)), threads, 0,
                      stream, *to, from, (const sr_matrix_note *)note, (int)tiles));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_complete(sr_backend *backend, void *codes, sr_matrix x,
                                 sr_matrix_note *note) {
    uint8_t *const along = (uint8_t *)codes;
    const sr_fp8_tensor to = {along, along + x.rows * x.columns, nullptr, &note->scale,
                              &note->largest};
    SR_CUDA(sr_launch(complete, dim3(sr_fp8_tiles(x.rows, x.columns)), dim3(THREADS), 0,
                      sr_stream_of(backend), to, source_of<float>(x),
                      (const sr_matrix_note *)note));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_widen(sr_backend *backend, const sr_fp8_tensor *x, int64_t count,
                              sr_fp8_format format) {
    const int64_t eights = count / SR_EIGHT;
    const dim3 blocks((unsigned)sr_pieces(eights, THREADS));
    if (format == SR_FP8_E5M2)
        SR_CUDA(
            sr_launch(widen<sr_e5m2>, blocks, dim3(THREADS), 0, sr_stream_of(backend), *x, eights));
    else
        SR_CUDA(
            sr_launch(widen<sr_e4m3>, blocks, dim3(THREADS), 0, sr_stream_of(backend), *x, eights));
    return SRNN_OK;
}

/* One thread: scales and sizes, global -> registers, and the size of the sums back. 1.01: what sums
 * in float and their rounding to bf16 may add; 1.125: what rounding to E5M2 may. */
static __global__ void bound_sums(sr_matrix_note *note, const uint32_t *e5m2_largest,
                                  const float *e5m2_scale, const float *e4m3_scale, float depth) {
    const float e5m2 = e5m2_largest ? bits_float(*e5m2_largest) * 1.125f
                                    : *e5m2_scale * bits_float(sr_e5m2::largest);
    const float largest = e5m2 * (*e4m3_scale * bits_float(sr_e4m3::largest));
    note->largest = fp8_larger(note->largest, float_bits(largest * depth * 1.01f) & 0x7fffffffu);
}

srnn_status sr_cuda_fp8_bound(sr_backend *backend, sr_matrix_note *note, const sr_fp8_factor *e5m2,
                              const float *e4m3_scale, int64_t depth) {
    SR_CUDA(sr_launch(bound_sums, dim3(1), dim3(1), 0, sr_stream_of(backend), note, e5m2->largest,
                      e5m2->scale, e4m3_scale, (float)depth));
    return SRNN_OK;
}
