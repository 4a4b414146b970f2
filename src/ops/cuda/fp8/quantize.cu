/* quantize.cu: tensors of bf16 as numbers of 8 bits, in two kernels: the largest number, then the
 * conversion, which writes a tensor and its transpose from one read. */
#include "ops/cuda/fp8/tile.h"

enum { THREADS = SR_FP8_TILE_THREADS, MOST_BLOCKS = 1024 };

struct source {
    const sr_bf16 *data;
    int64_t stride;
    int rows, columns;
};

/* Raises *largest to the largest size, as bits of a float. A block owns every gridDim.x-th group of
 * eight numbers per thread: global memory -> registers, over the block by shuffles and one barrier,
 * then one atomic maximum, whose order does not show. */
static __global__ void __launch_bounds__(THREADS) find_largest(uint32_t *largest, const source x) {
    __shared__ uint32_t shared[SR_WARP];
    const uint32_t eights = x.columns / SR_EIGHT, count = x.rows * eights,
                   step = gridDim.x * THREADS;
    uint32_t own = 0;
#pragma unroll 4
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const uint32_t row = i / eights, at = (i - row * eights) * SR_EIGHT;
        const uint4 raw = *reinterpret_cast<const uint4 *>(x.data + row * x.stride + at);
        const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int n = 0; n < 4; n++)
            own = fp8_larger(own, fp8_larger(pairs[n] << 16 & 0x7fff0000u, pairs[n] & 0x7fff0000u));
    }
    own = fp8_block_largest<THREADS / SR_WARP>(own, shared);
    if (threadIdx.x == 0)
        atomicMax(largest, own);
}

/* A block owns a tile, a thread a piece of it (tile.h): numbers are read as 16 bytes a row before
 * the largest size is, global memory -> registers, converted there and stored in the forms that are
 * wanted (one barrier). */
template <class Format>
static __global__ void __launch_bounds__(THREADS) quantize(const sr_fp8_tensor to, const source x) {
    __shared__ sr_fp8_tile tile;
    const sr_fp8_piece own = fp8_piece(x.columns);
    const sr_fp8_forms forms = {to.along, to.across, x.columns, x.rows, x.columns};
    float numbers[4][SR_EIGHT];
    uint32_t codes[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.columns && own.row + i < x.rows)
            load_numbers<SR_EIGHT>(numbers[i], x.data + (own.row + i) * x.stride + own.column);
    const sr_fp8_scaling scaling = fp8_scaling<Format>(*to.largest);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *to.scale = scaling.back;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.columns && own.row + i < x.rows) {
            fp8_codes<Format>(codes[i], numbers[i], scaling.multiply);
            if (to.rounded)
                fp8_store_rounded<Format>(to.rounded + (int64_t)(own.row + i) * x.columns +
                                              own.column,
                                          codes[i], scaling.back);
        }
    fp8_store_along(tile, codes, forms, own);
    __syncthreads();
    fp8_store_across(tile, forms, own);
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

static source source_of(sr_matrix x) {
    return {(const sr_bf16 *)x.data, x.stride, (int)x.rows, (int)x.columns};
}

srnn_status sr_cuda_fp8_measure(sr_backend *backend, uint32_t *largest, sr_matrix x) {
    const unsigned count =
        (unsigned)sr_minimum(MOST_BLOCKS,
                             sr_pieces(x.rows * (x.columns / SR_EIGHT), (int64_t)4 * THREADS));
    SR_TRY(sr_device_zero(backend->device, largest, sizeof *largest));
    SR_CUDA(sr_launch(find_largest, dim3(count), dim3(THREADS), 0, sr_stream_of(backend), largest,
                      source_of(x)));
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
        SR_CUDA(
            sr_launch(quantize<sr_e5m2>, tiles, dim3(THREADS), 0, stream, tensor, source_of(x)));
    else
        SR_CUDA(
            sr_launch(quantize<sr_e4m3>, tiles, dim3(THREADS), 0, stream, tensor, source_of(x)));
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

/* One thread: both scales and the size so far, global -> registers, and the size back. 1.01: what
 * sums in float and their rounding to bf16 may add. */
static __global__ void bound_sums(sr_matrix_note *note, const float *e5m2_scale,
                                  const float *e4m3_scale, float depth) {
    const float largest =
        *e5m2_scale * bits_float(sr_e5m2::largest) * (*e4m3_scale * bits_float(sr_e4m3::largest));
    note->largest = fp8_larger(note->largest, float_bits(largest * depth * 1.01f) & 0x7fffffffu);
}

srnn_status sr_cuda_fp8_bound(sr_backend *backend, sr_matrix_note *note, const float *e5m2_scale,
                              const float *e4m3_scale, int64_t depth) {
    SR_CUDA(sr_launch(bound_sums, dim3(1), dim3(1), 0, sr_stream_of(backend), note, e5m2_scale,
                      e4m3_scale, (float)depth));
    return SRNN_OK;
}
