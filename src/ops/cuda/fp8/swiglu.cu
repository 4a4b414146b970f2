/* swiglu.cu: SwiGLU and its gradients, written in 8 bits in both forms. Bytes per number of out:
 * forward 4 + 2, twice where another size was expected; backward 2 for the largest d_out, unless it
 * is measured, then 6 + 4. */
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

/* The sizes that a note has of out, silu(gate) and up. */
enum { OUT, GATE, UP, SIZES };

/* A tile of out = silu(gate) up, before the barrier: a thread owns a piece of it (tile.h): gate and
 * up go global memory -> registers, codes from there as tile.h has it. Raises the largest sizes of
 * the thread's numbers. */
template <class Scaling>
SR_DEVICE void swiglu_tile(sr_fp8_tile &tile, uint32_t (&largest)[SIZES], const sr_fp8_forms &to,
                           const halves &x, const sr_fp8_piece &own, Scaling scaling_of) {
    const sr_bf16 *const from = x.data + own.row * x.stride + own.column;
    uint4 raw[4][2];
    uint32_t codes[4][2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            raw[i][0] = *reinterpret_cast<const uint4 *>(from + i * x.stride);
            raw[i][1] = *reinterpret_cast<const uint4 *>(from + i * x.stride + x.F);
        }
    const sr_fp8_scaling scaling = scaling_of();
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (own.column < x.F && own.row + i < x.rows) {
            float gate[SR_EIGHT], up[SR_EIGHT];
            fp8_unpack(gate, raw[i][0]);
            fp8_unpack(up, raw[i][1]);
#pragma unroll
            for (int n = 0; n < SR_EIGHT; n++) {
                const float s = silu(gate[n]);
                largest[UP] = fp8_larger(largest[UP], size_bits(up[n]));
                up[n] *= s;
                largest[GATE] = fp8_larger(largest[GATE], size_bits(s));
                largest[OUT] = fp8_larger(largest[OUT], size_bits(up[n]));
            }
            fp8_codes<sr_e4m3>(codes[i], up, scaling.multiply);
        }
    fp8_store_along(tile, codes, to, own);
}

/* out in 8 bits with the scale of the size that is expected, and the sizes of the note. A block
 * owns a tile of out, global -> registers -> global: a barrier before its second form, one for each
 * size that is compared over the block by shuffles, then an atomic maximum each, whose order does
 * not show. */
static __global__ void __launch_bounds__(THREADS, 4)
    swiglu_codes(const sr_fp8_forms to, sr_matrix_note *note, const halves x) {
    __shared__ sr_fp8_tile tile;
    __shared__ uint32_t shared[SIZES][SR_WARP];
    const sr_fp8_piece own = fp8_piece(x.F, blockIdx.x);
    uint32_t largest[SIZES] = {};
    swiglu_tile(tile, largest, to, x, own,
                [&] { return fp8_expected_scaling<sr_e4m3>(note->expected); });
    if (blockIdx.x == 0 && threadIdx.x == 0)
        note->scale = fp8_expected_scaling<sr_e4m3>(note->expected).back;
    __syncthreads();
    fp8_store_across(tile, to, own);
    uint32_t *const sizes[SIZES] = {&note->largest, &note->gate, &note->up};
#pragma unroll
    for (int which = 0; which < SIZES; which++) {
        const uint32_t all = fp8_block_largest<THREADS / SR_WARP>(largest[which], shared[which]);
        if (threadIdx.x == 0)
            atomicMax(sizes[which], all);
    }
}

/* The same, global -> registers -> global, with the scale of the largest size, unless that is as
 * expected: then no block does anything. A block owns every gridDim.x-th tile; two barriers a
 * tile. */
static __global__ void __launch_bounds__(THREADS)
    swiglu_again(const sr_fp8_forms to, sr_matrix_note *note, const halves x, int tile_count) {
    __shared__ sr_fp8_tile tile;
    if (fp8_as_expected<sr_e4m3>(*note))
        return;
    uint32_t largest[SIZES] = {};
    for (int i = blockIdx.x; i < tile_count; i += gridDim.x) {
        const sr_fp8_piece own = fp8_piece(x.F, i);
        swiglu_tile(tile, largest, to, x, own, [&] { return fp8_scaling<sr_e4m3>(note->largest); });
        __syncthreads();
        fp8_store_across(tile, to, own);
        __syncthreads();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        note->scale = fp8_scaling<sr_e4m3>(note->largest).back;
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
    const unsigned tiles = sr_fp8_tiles(out.rows, out.columns);
    SR_TRY(sr_cuda_fp8_expect(backend, out.note, x.note));
    SR_CUDA(sr_launch(swiglu_codes, dim3(tiles), dim3(THREADS), 0, stream, to, out.note, from));
    SR_CUDA(sr_launch(swiglu_again, dim3((unsigned)sr_minimum(tiles, MOST_BLOCKS)), dim3(THREADS),
                      0, stream, to, out.note, from, (int)tiles));
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
