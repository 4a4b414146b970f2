/* gemm.cu: GEMM without a library: any shape, stride and alignment.
 *
 * bf16 by mma.sync: a block of 8 warps has a tile of 128 x 128 of d, each warp 64 x 32 of it;
 * operands are copied in steps of 32 along the sum, two steps ahead. float by FMA, a tile of 64 x
 * 64 per block. */
#include "ops/cuda/gemm/gemm.h"

#include "ops/cuda/elements.h"

#include <assert.h>

/* An operand: `count` rows of length K. along: a row's numbers are contiguous, element (row, k) is
 * data[row * stride + k]; else data[k * stride + row]. */
template <class N> struct operand {
    const N *data;
    int64_t stride, count, K;
    int64_t batch; /* numbers from one product's to the next's */
    /* every eighth number along the contiguous dimension is aligned to 16 bytes */
    bool aligned;
};

template <class Out> struct product_result {
    const Out *c;
    Out *d;
    int64_t c_stride, d_stride, M, N, c_batch, d_batch;
};

/* The operand, and the result, of the block's own product of a batch. */
template <class N> SR_DEVICE operand<N> of_batch(operand<N> x) {
    x.data += blockIdx.z * x.batch;
    return x;
}

template <class Out> SR_DEVICE product_result<Out> of_batch(product_result<Out> to) {
    if (to.c)
        to.c += blockIdx.z * to.c_batch;
    to.d += blockIdx.z * to.d_batch;
    return to;
}

template <class Out>
SR_DEVICE void store_sum(const product_result<Out> &to, int64_t m, int64_t n, float sum) {
    if (m >= to.M || n >= to.N)
        return;
    if (to.c)
        sum += load_number(to.c + m * to.c_stride + n);
    store_number(to.d + m * to.d_stride + n, sum);
}

/* ---- bf16 ---- */

enum {
    TILE = 128, /* rows of either operand in a block */
    DEPTH = 32, /* along the sum */
    STAGES = 3,
    THREADS = 256,
    ALONG_STRIDE = DEPTH + 8, /* of a tile's rows in shared memory: no bank conflicts in ldmatrix */
    ACROSS_STRIDE = TILE + 8,
    TILE_NUMBERS = TILE * ALONG_STRIDE /* more than DEPTH * ACROSS_STRIDE */
};
static_assert(TILE * ALONG_STRIDE >= DEPTH * ACROSS_STRIDE, "a stage holds either form");

/* Copies eight numbers to shared memory, with zeros past `valid`. */
SR_DEVICE void copy_eight(sr_bf16 *to, const sr_bf16 *from, int valid, bool aligned) {
    if (aligned) {
        cp_async_16(to, from, 2 * valid);
        return;
    }
    sr_vector<sr_bf16> eight;
#pragma unroll
    for (int i = 0; i < 8; i++)
        eight.number[i] = i < valid ? from[i] : sr_bf16{0};
    store_vector(to, eight);
}

SR_DEVICE int valid_of_eight(int64_t left) {
    return left < 0 ? 0 : left > 8 ? 8 : (int)left;
}

/* tile = rows first .. first + TILE - 1 of the operand, numbers k .. k + DEPTH - 1 of each. */
template <bool along>
SR_DEVICE void copy_tile(sr_bf16 *tile, const operand<sr_bf16> &x, int64_t first, int64_t k) {
    constexpr int eights = along ? DEPTH / 8 : TILE / 8;
#pragma unroll
    for (int i = threadIdx.x; i < TILE * DEPTH / 8; i += THREADS) {
        const int line = i / eights, at = i % eights * 8;
        const int64_t row = first + (along ? line : at), depth = k + (along ? at : line);
        const bool inside = along ? row < x.count : depth < x.K;
        const int valid = inside ? valid_of_eight(along ? x.K - depth : x.count - row) : 0;
        const sr_bf16 *from = x.data + (along ? row * x.stride + depth : depth * x.stride + row);
        copy_eight(tile + line * (along ? ALONG_STRIDE : ACROSS_STRIDE) + at,
                   valid > 0 ? from : x.data, valid, x.aligned);
    }
}

/* The A fragment of 16 rows and 16 numbers of the first operand. */
template <bool along>
SR_DEVICE void first_fragment(uint32_t *fragment, const sr_bf16 *tile, int row, int k) {
    const int lane = threadIdx.x % SR_WARP;
    if constexpr (along)
        ldmatrix_x4(fragment, tile + (row + lane % 16) * ALONG_STRIDE + k + lane / 16 * 8);
    else
        ldmatrix_x4_transposed(fragment, tile + (k + lane % 8 + lane / 16 * 8) * ACROSS_STRIDE +
                                             row + lane / 8 % 2 * 8);
}

/* B fragments of the second: two of 8 rows (columns of d) each. */
template <bool along>
SR_DEVICE void second_fragments(uint32_t *fragments, const sr_bf16 *tile, int row, int k) {
    const int lane = threadIdx.x % SR_WARP;
    if constexpr (along)
        ldmatrix_x4(fragments,
                    tile + (row + lane % 8 + lane / 16 * 8) * ALONG_STRIDE + k + lane / 8 % 2 * 8);
    else
        ldmatrix_x4_transposed(fragments,
                               tile + (k + lane % 16) * ACROSS_STRIDE + row + lane / 16 * 8);
}

/* sums[i][j] += this step, for rows 16 i .. and columns 8 j .. of the warp's part of the tile. */
template <bool along_a, bool along_b>
SR_DEVICE void multiply_step(float (*sums)[4][4], const sr_bf16 *a_tile, const sr_bf16 *b_tile) {
    const int warp = threadIdx.x / SR_WARP, row = warp / 4 * 64, column = warp % 4 * 32;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            first_fragment<along_a>(a[i], a_tile, row + 16 * i, k);
#pragma unroll
        for (int j = 0; j < 2; j++)
            second_fragments<along_b>(b[j], b_tile, column + 16 * j, k);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                mma_m16n8k16(sums[i][j], a[i], b[j / 2] + j % 2 * 2);
    }
}

/* Block (x, y, z) owns the 128 x 128 tile (x, y) of d of product z; warp w rows 64 (w / 4) .. and
 * columns 32 (w % 4) .. of it. cp.async copies 32 numbers of K of both operands per step, global ->
 * shared, three stages: the wait and barrier for step n also free the stage of step n + 2, whose
 * copy starts then. Each warp loads fragments by ldmatrix and accumulates with mma.sync in
 * registers over all of K in order. The epilogue adds c and stores; each number of d has one
 * owner. */
template <bool along_a, bool along_b, class Out>
static __global__ void __launch_bounds__(THREADS)
    multiply_bf16(const product_result<Out> all, const operand<sr_bf16> all_a,
                  const operand<sr_bf16> all_b) {
    SR_SHARED(sr_bf16, stages); /* (STAGES, 2, TILE_NUMBERS) */
    const product_result<Out> to = of_batch(all);
    const operand<sr_bf16> a = of_batch(all_a), b = of_batch(all_b);
    const int64_t m = (int64_t)blockIdx.x * TILE, n = (int64_t)blockIdx.y * TILE;
    const int steps = (int)((a.K + DEPTH - 1) / DEPTH);
    float sums[4][4][4] = {};
    for (int step = 0; step < STAGES - 1; step++) {
        if (step < steps) {
            copy_tile<along_a>(stages + step * 2 * TILE_NUMBERS, a, m, step * DEPTH);
            copy_tile<along_b>(stages + (step * 2 + 1) * TILE_NUMBERS, b, n, step * DEPTH);
        }
        cp_async_commit();
    }
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); /* this step has landed, and no warp reads the one before */
        const int next = step + STAGES - 1;
        if (next < steps) {
            sr_bf16 *stage = stages + next % STAGES * 2 * TILE_NUMBERS;
            copy_tile<along_a>(stage, a, m, (int64_t)next * DEPTH);
            copy_tile<along_b>(stage + TILE_NUMBERS, b, n, (int64_t)next * DEPTH);
        }
        cp_async_commit();
        const sr_bf16 *stage = stages + step % STAGES * 2 * TILE_NUMBERS;
        multiply_step<along_a, along_b>(sums, stage, stage + TILE_NUMBERS);
    }
    const int warp = threadIdx.x / SR_WARP, lane = threadIdx.x % SR_WARP;
    const int64_t row = m + warp / 4 * 64 + lane / 4, column = n + warp % 4 * 32 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_sum(to, row + 16 * i + e / 2 * 8, column + 8 * j + e % 2, sums[i][j][e]);
}

/* ---- float ---- */

enum { FLOAT_TILE = 64, FLOAT_DEPTH = 16, FLOAT_STRIDE = FLOAT_TILE + 4, FLOAT_PART = 4 };

/* tile (FLOAT_DEPTH, FLOAT_STRIDE): number k of each row side by side. */
template <bool along>
SR_DEVICE void load_float_tile(float *tile, const operand<float> &x, int64_t first, int64_t k) {
#pragma unroll
    for (int i = threadIdx.x; i < FLOAT_TILE * FLOAT_DEPTH; i += THREADS) {
        const int row = along ? i / FLOAT_DEPTH : i % FLOAT_TILE;
        const int depth = along ? i % FLOAT_DEPTH : i / FLOAT_TILE;
        const bool inside = first + row < x.count && k + depth < x.K;
        const int64_t at =
            along ? (first + row) * x.stride + k + depth : (k + depth) * x.stride + first + row;
        tile[depth * FLOAT_STRIDE + row] = inside ? x.data[at] : 0.0f;
    }
}

/* Block (x, y, z) owns the 64 x 64 tile (x, y) of d of product z; a thread 4 x 4 of it. Per step
 * all threads load 16 numbers of K of both operands, global -> shared (one stage), barrier, FMA
 * from shared memory into registers, barrier. The sum over K has one order; the epilogue adds c and
 * stores. */
template <bool along_a, bool along_b>
static __global__ void __launch_bounds__(THREADS)
    multiply_float(const product_result<float> all, const operand<float> all_a,
                   const operand<float> all_b) {
    const product_result<float> to = of_batch(all);
    const operand<float> a = of_batch(all_a), b = of_batch(all_b);
    __shared__ __align__(16) float a_tile[FLOAT_DEPTH * FLOAT_STRIDE];
    __shared__ __align__(16) float b_tile[FLOAT_DEPTH * FLOAT_STRIDE];
    const int64_t m = (int64_t)blockIdx.x * FLOAT_TILE, n = (int64_t)blockIdx.y * FLOAT_TILE;
    const int row = threadIdx.x / 16 * FLOAT_PART, column = threadIdx.x % 16 * FLOAT_PART;
    float sums[FLOAT_PART][FLOAT_PART] = {};
    for (int64_t k = 0; k < a.K; k += FLOAT_DEPTH) {
        load_float_tile<along_a>(a_tile, a, m, k);
        load_float_tile<along_b>(b_tile, b, n, k);
        __syncthreads();
#pragma unroll
        for (int depth = 0; depth < FLOAT_DEPTH; depth++) {
            float a_part[FLOAT_PART], b_part[FLOAT_PART];
            load_numbers<FLOAT_PART>(a_part, a_tile + depth * FLOAT_STRIDE + row);
            load_numbers<FLOAT_PART>(b_part, b_tile + depth * FLOAT_STRIDE + column);
#pragma unroll
            for (int i = 0; i < FLOAT_PART; i++)
#pragma unroll
                for (int j = 0; j < FLOAT_PART; j++)
                    sums[i][j] += a_part[i] * b_part[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < FLOAT_PART; i++)
#pragma unroll
        for (int j = 0; j < FLOAT_PART; j++)
            store_sum(to, m + row + i, n + column + j, sums[i][j]);
}

/* ---- dispatch ---- */

template <class N>
static operand<N> operand_of(const void *data, int64_t stride, int64_t count, int64_t K,
                             int64_t batch) {
    const bool aligned = sr_is_aligned({data, stride, SRNN_BF16}, 8) && batch % 8 == 0;
    return {(const N *)data, stride, count, K, batch, aligned};
}

template <class Out> static product_result<Out> result_of(const sr_cuda_gemm_call *p) {
    return {(const Out *)p->c, (Out *)p->d, p->c_stride, p->d_stride, p->M, p->N,
            p->batch.c,        p->batch.d};
}

static dim3 product_grid(const sr_cuda_gemm_call *p, int64_t tile) {
    return dim3((unsigned)sr_pieces(p->M, tile), (unsigned)sr_pieces(p->N, tile),
                (unsigned)sr_maximum(1, p->batch.count));
}

template <bool along_a, bool along_b, class Out>
static srnn_status start_bf16(sr_backend *backend, const sr_cuda_gemm_call *p) {
    SR_CUDA(sr_launch(multiply_bf16<along_a, along_b, Out>, product_grid(p, TILE), dim3(THREADS),
                      STAGES * 2 * TILE_NUMBERS * sizeof(sr_bf16), sr_stream_of(backend),
                      result_of<Out>(p),
                      operand_of<sr_bf16>(p->a, p->a_stride, p->M, p->K, p->batch.a),
                      operand_of<sr_bf16>(p->b, p->b_stride, p->N, p->K, p->batch.b)));
    return SRNN_OK;
}

template <bool along_a, bool along_b>
static srnn_status start(sr_backend *backend, const sr_cuda_gemm_call *p) {
    if (p->in == SRNN_BF16)
        return p->out == SRNN_BF16 ? start_bf16<along_a, along_b, sr_bf16>(backend, p)
                                   : start_bf16<along_a, along_b, float>(backend, p);
    SR_CUDA(sr_launch(multiply_float<along_a, along_b>, product_grid(p, FLOAT_TILE), dim3(THREADS),
                      0, sr_stream_of(backend), result_of<float>(p),
                      operand_of<float>(p->a, p->a_stride, p->M, p->K, p->batch.a),
                      operand_of<float>(p->b, p->b_stride, p->N, p->K, p->batch.b)));
    return SRNN_OK;
}

static srnn_status start_any(sr_backend *backend, const sr_cuda_gemm_call *p) {
    assert(!(p->transpose_a && p->transpose_b));
    if (p->transpose_a)
        return start<false, false>(backend, p);
    return p->transpose_b ? start<true, true>(backend, p) : start<true, false>(backend, p);
}

static const void *number_at(const void *data, int64_t index, srnn_dtype dtype) {
    return sr_number_at(const_cast<void *>(data), index, dtype);
}

/* As many products of a batch at a time as a grid may have. */
static srnn_status multiply(sr_backend *backend, const sr_cuda_gemm_call *p) {
    enum { MOST = 32768 };
    const int64_t batch = sr_maximum(1, p->batch.count);
    for (int64_t first = 0; first < batch; first += MOST) {
        sr_cuda_gemm_call part = *p;
        part.batch.count = sr_minimum(MOST, batch - first);
        part.a = number_at(p->a, first * p->batch.a, p->in);
        part.b = number_at(p->b, first * p->batch.b, p->in);
        part.c = number_at(p->c, first * p->batch.c, p->out);
        part.d = sr_number_at(p->d, first * p->batch.d, p->out);
        SR_TRY(start_any(backend, &part));
    }
    return SRNN_OK;
}

srnn_status sr_cuda_multiply(sr_backend *backend, const sr_cuda_gemm_call *product) {
    const sr_backend_cuda *cuda = (const sr_backend_cuda *)backend;
    bool started = false;
    if (product->M == 0 || product->N == 0)
        return SRNN_OK;
    if (sr_cuda_is_few(backend, product))
        return sr_cuda_multiply_few(backend, product);
    if (cuda->library && product->K > 0) {
        const sr_cublaslt_place place = {sr_stream_of(backend), cuda->workspace,
                                         cuda->workspace_bytes};
        SR_TRY(sr_cublaslt_multiply(cuda->library, &started, product, nullptr, &place));
    }
    return started ? SRNN_OK : multiply(backend, product);
}
