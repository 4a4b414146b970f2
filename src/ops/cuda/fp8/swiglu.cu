/* swiglu.cu: SwiGLU and its gradients, written in 8 bits in both forms. Bytes per number of out:
 * forward 4 for the largest sizes, then 4 + 2; backward 2 for the largest d_out, then 6 + 4. */
#include "ops/cuda/fp8/producers.h"
#include "ops/cuda/fp8/tile.h"

enum { THREADS = SR_FP8_TILE_THREADS, MOST_BLOCKS = 1024 };

struct halves {
    const sr_bf16 *data; /* (rows, 2F): gate, up */
    int64_t stride;
    int rows, F;
};

/* silu(gate), and what it multiplies. */
SR_DEVICE float silu(float gate) {
    return gate * sigmoid_for<sr_bf16>(gate);
}

SR_DEVICE uint32_t size_bits(float x) {
    return float_bits(x) & 0x7fffffffu;
}

/* Raises the sizes of the note to the largest of out, silu(gate) and up. A block owns every
 * gridDim.x-th group of eight columns per thread: global memory -> registers, over the block by
 * shuffles and a barrier for each size, then atomic maxima, whose order does not show. */
static __global__ void __launch_bounds__(THREADS)
    largest_of_swiglu(sr_matrix_note *note, const halves x) {
    __shared__ uint32_t shared[3][SR_WARP];
    const uint32_t eights = x.F / SR_EIGHT, count = x.rows * eights, step = gridDim.x * THREADS;
    uint32_t largest[3] = {};
#pragma unroll 2
    for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        const uint32_t row = i / eights, at = (i - row * eights) * SR_EIGHT;
        float gate[SR_EIGHT], up[SR_EIGHT];
        load_numbers<SR_EIGHT>(gate, x.data + row * x.stride + at);
        load_numbers<SR_EIGHT>(up, x.data + row * x.stride + x.F + at);
#pragma unroll
        for (int n = 0; n < SR_EIGHT; n++) {
            const float s = silu(gate[n]);
            largest[0] = fp8_larger(largest[0], size_bits(s * up[n]));
            largest[1] = fp8_larger(largest[1], size_bits(s));
            largest[2] = fp8_larger(largest[2], size_bits(up[n]));
        }
    }
    uint32_t *const to[3] = {&note->largest, &note->gate, &note->up};
#pragma unroll
    for (int which = 0; which < 3; which++) {
        const uint32_t all = fp8_block_largest<THREADS / SR_WARP>(largest[which], shared[which]);
        if (threadIdx.x == 0)
            atomicMax(to[which], all);
    }
}

/* out = silu(gate) up in 8 bits. A block owns a tile of out, a thread a piece of it (tile.h): gate
 * and up go global memory -> registers, codes from there as tile.h has it (one barrier). The
 * largest size is that of the numbers themselves. */
static __global__ void __launch_bounds__(THREADS, 4)
    swiglu_codes(const sr_fp8_forms to, sr_matrix_note *note, const halves x) {
    __shared__ sr_fp8_tile tile;
    const sr_fp8_piece own = fp8_piece(x.F, blockIdx.x);
    const sr_bf16 *const from = x.data + own.row * x.stride + own.column;
    uint4 raw[4][2];
    uint32_t codes[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            raw[i][0] = *reinterpret_cast<const uint4 *>(from + i * x.stride);
            raw[i][1] = *reinterpret_cast<const uint4 *>(from + i * x.stride + x.F);
        }
    const sr_fp8_scaling scaling = fp8_scaling<sr_e4m3>(note->largest);
    if (blockIdx.x == 0 && threadIdx.x == 0)
        note->scale = scaling.back;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            float gate[SR_EIGHT], up[SR_EIGHT];
            fp8_unpack(gate, raw[i][0]);
            fp8_unpack(up, raw[i][1]);
#pragma unroll
            for (int n = 0; n < SR_EIGHT; n++)
                up[n] *= silu(gate[n]);
            fp8_codes<sr_e4m3>(codes[i], up, scaling.multiply);
        }
    fp8_store_along(tile, codes, to, own);
    __syncthreads();
    fp8_store_across(tile, to, own);
}

/* A size that no gradient exceeds: d_gate = d_out up silu', |silu'| < 1.1, and d_up = d_out
 * silu(gate). E5M2 has 30 binades of normal numbers, so that a bound far above the largest gradient
 * costs nothing. */
SR_DEVICE uint32_t gradient_bound(const sr_matrix_note &d, const sr_matrix_note &x) {
    const float factor =
        bits_float(fp8_larger(x.gate, size_bits(bits_float(x.up) * 1.1f))) * 1.001f;
    return size_bits(bits_float(d.largest) * factor);
}

/* d_gate and d_up in 8 bits, side by side. A block owns a tile of each, a thread the same piece of
 * both: gate, up and d_out go global memory -> registers, codes from there as tile.h has it (one
 * barrier for both). `measured` has the largest d_out. The parameters of d_x, d_out and x. */
static __global__ void __launch_bounds__(THREADS)
    swiglu_back_codes(const sr_fp8_forms d_gate, const sr_fp8_forms d_up, sr_matrix_note *d,
                      const sr_matrix_note *measured, const sr_matrix_note *note,
                      const sr_bf16 *__restrict__ d_out, int64_t d_stride, const halves x) {
    __shared__ sr_fp8_tile tiles[2];
    const sr_fp8_piece own = fp8_piece(x.F, blockIdx.x);
    const sr_bf16 *const from = x.data + own.row * x.stride + own.column;
    const sr_bf16 *const d_from = d_out + own.row * d_stride + own.column;
    uint4 raw[4][3];
    uint32_t codes[2][4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            raw[i][0] = *reinterpret_cast<const uint4 *>(from + i * x.stride);
            raw[i][1] = *reinterpret_cast<const uint4 *>(from + i * x.stride + x.F);
            raw[i][2] = *reinterpret_cast<const uint4 *>(d_from + i * d_stride);
        }
    const sr_fp8_scaling scaling = fp8_scaling<sr_e5m2>(gradient_bound(*measured, *note));
    if (blockIdx.x == 0 && threadIdx.x == 0)
        d->scale = scaling.back;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            float gate[SR_EIGHT], up[SR_EIGHT], d_number[SR_EIGHT];
            fp8_unpack(gate, raw[i][0]);
            fp8_unpack(up, raw[i][1]);
            fp8_unpack(d_number, raw[i][2]);
#pragma unroll
            for (int n = 0; n < SR_EIGHT; n++) {
                const float g = gate[n], s = sigmoid_for<sr_bf16>(g);
                gate[n] = d_number[n] * up[n] * s * (1.0f + g * (1.0f - s));
                up[n] = d_number[n] * g * s;
            }
            fp8_codes<sr_e5m2>(codes[0][i], gate, scaling.multiply);
            fp8_codes<sr_e5m2>(codes[1][i], up, scaling.multiply);
        }
    fp8_store_along(tiles[0], codes[0], d_gate, own);
    fp8_store_along(tiles[1], codes[1], d_up, own);
    __syncthreads();
    fp8_store_across(tiles[0], d_gate, own);
    fp8_store_across(tiles[1], d_up, own);
}

static halves halves_of(sr_matrix x) {
    return {(const sr_bf16 *)x.data, x.stride, (int)x.rows, (int)(x.columns / 2)};
}

srnn_status sr_cuda_fp8_swiglu(sr_backend *backend, sr_matrix out, sr_matrix x) {
    const halves from = halves_of(x);
    const cudaStream_t stream = sr_stream_of(backend);
    uint8_t *const base = (uint8_t *)out.data;
    const sr_fp8_forms to = {base, base + out.rows * out.columns, out.columns, (int)out.rows,
                             (int)out.columns};
    const int64_t threads = sr_pieces(out.rows * (out.columns / SR_EIGHT), 2);
    SR_TRY(sr_device_zero(backend->device, out.note, sizeof *out.note));
    SR_CUDA(sr_launch(largest_of_swiglu,
                      dim3((unsigned)sr_minimum(MOST_BLOCKS, sr_pieces(threads, THREADS))),
                      dim3(THREADS), 0, stream, out.note, from));
    SR_CUDA(sr_launch(swiglu_codes, dim3(sr_fp8_tiles(out.rows, out.columns)), dim3(THREADS), 0,
                      stream, to, out.note, from));
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_swiglu_back(sr_backend *backend, sr_matrix d_x, sr_matrix d_out,
                                    sr_matrix x) {
    const int64_t F = d_out.columns, rows = d_out.rows;
    uint8_t *const along = (uint8_t *)d_x.data, *const across = along + rows * 2 * F;
    const sr_fp8_forms d_gate = {along, across, 2 * F, (int)rows, (int)F};
    const sr_fp8_forms d_up = {along + F, across + F * rows, 2 * F, (int)rows, (int)F};
    sr_matrix_note *measured = d_out.note;
    if (d_out.handed != SR_HANDED_MEASURED) {
        measured = d_x.note;
        SR_TRY(sr_cuda_fp8_measure(backend, &measured->largest, d_out));
    }
    SR_CUDA(sr_launch(swiglu_back_codes, dim3(sr_fp8_tiles(rows, F)), dim3(THREADS), 0,
                      sr_stream_of(backend), d_gate, d_up, d_x.note, measured, x.note,
                      (const sr_bf16 *)d_out.data, d_out.stride, halves_of(x)));
    return SRNN_OK;
}
