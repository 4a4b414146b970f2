/* few_rows.cu: GEMM of few rows (decode) in bf16 with prologue and epilogue: y = x W^T + c.
 *
 * The time is that of reading W once, 2 bytes per weight, with as many loads in flight as possible,
 * and with few kernels one after the other. A warp has one row of W (a column of y) or two; its
 * lanes walk along them, 8 numbers each. x comes from the caches. The first loads are issued before
 * the previous kernel, which computes x, is over.
 *
 * A norm in front costs no kernel: every warp reads all of x anyway, sums its squares along with
 * the dot products, and multiplies by 1/rms at the end. Where two columns of y belong together, one
 * warp has both: a channel and its RoPE partner, a gate and its up (SwiGLU). */
#include "ops/cuda/decode/queue.h"
#include "ops/cuda/gemm/epilogue.h"

enum {
    WARPS = 4,
    WIDTH = 8,
    STEP = SR_WARP * WIDTH,
    VECTORS = 8, /* of weights that a lane has in flight */
    BLOCKS = 4   /* per multiprocessor: limits the registers of a thread */
};

/* ---- a lane's operands ---- */

/* A lane's part of one row of x: the dot products with its weights, and the squares. */
template <int COLUMNS> struct lane_sums { float product[COLUMNS], squares; };

template <int COLUMNS>
SR_DEVICE void multiply_eight(lane_sums<COLUMNS> &sums, const float *x,
                              const sr_vector<sr_bf16> *weights) {
#pragma unroll
    for (int column = 0; column < COLUMNS; column++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++)
            sums.product[column] =
                fmaf(x[i], to_float(weights[column].number[i]), sums.product[column]);
}

/* Eight numbers of x without a norm. */
template <int ROWS, int COLUMNS>
SR_DEVICE void multiply_part(lane_sums<COLUMNS> *sums, const sr_vector<sr_bf16> *weights,
                             const sr_few_rows_gemm &p, const sr_bf16 *x, int64_t) {
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= p.product.M)
            break;
        float numbers[WIDTH];
        load_numbers<WIDTH>(numbers, x + row * p.product.a_stride);
        multiply_eight<COLUMNS>(sums[row], numbers, weights);
    }
}

/* Eight numbers of x before a norm. */
template <int ROWS, int COLUMNS>
SR_DEVICE void multiply_part(lane_sums<COLUMNS> *sums, const sr_vector<sr_bf16> *weights,
                             const sr_few_rows_gemm &p, const float *x, int64_t k) {
    float norm[WIDTH];
    load_numbers<WIDTH>(norm, p.norm.weight + k);
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= p.product.M)
            break;
        float numbers[WIDTH];
        load_numbers<WIDTH>(numbers, x + row * p.product.a_stride);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            sums[row].squares = fmaf(numbers[i], numbers[i], sums[row].squares);
            numbers[i] *= norm[i];
        }
        multiply_eight<COLUMNS>(sums[row], numbers, weights);
    }
}

/* weights[step][column] = this lane's numbers at start + step * STEP, within the rows. The last row
 * is read twice where the columns of y end. */
template <int COLUMNS, int AHEAD>
SR_DEVICE void load_weights(sr_vector<sr_bf16> (*weights)[COLUMNS], const sr_cuda_gemm_call &p,
                            const int64_t *columns, int64_t start) {
    const sr_bf16 *__restrict__ from = (const sr_bf16 *)p.b + start;
#pragma unroll
    for (int step = 0; step < AHEAD; step++)
#pragma unroll
        for (int column = 0; column < COLUMNS; column++)
            if (start + step * STEP < p.K)
                weights[step][column] =
                    load_vector(from + min(columns[column], p.N - 1) * p.b_stride + step * STEP);
}

/* ---- epilogue ---- */

template <class Out>
SR_DEVICE void finish_one(const sr_cuda_gemm_call &p, int row, int64_t n, float sum) {
    if (p.c)
        sum += load_number((const Out *)p.c + row * p.c_stride + n);
    store_number((Out *)p.d + row * p.d_stride + n, sum);
}

/* The number of warps with work. */
SR_BOTH int64_t units_of(const sr_few_rows_gemm &p, int columns) {
    return columns == 2 ? pairs_of(p) : p.product.N;
}

/* X: float where x is normed, else bf16. A warp owns one column of y, or a pair, for all rows. Each
 * lane walks K in steps of 8 numbers, every 32nd: AHEAD steps of weights in flight, global ->
 * registers, the first before the previous kernel is over; x from the caches -> registers,
 * multiplied in float. Shuffles add the lanes' sums (and squares for the norm) at the end; lane 0
 * runs the epilogue (1/rms, RoPE or SwiGLU, addend) and stores. No shared memory, no barriers. */
template <int ROWS, int COLUMNS, class X, class Out>
static __global__ void __launch_bounds__(WARPS *SR_WARP, ROWS == 1 ? BLOCKS : 3)
    multiply_few(const __grid_constant__ sr_few_rows_gemm p) {
    constexpr int AHEAD = VECTORS / COLUMNS;
    constexpr bool normed = sizeof(X) == sizeof(float);
    const int lane = threadIdx.x % SR_WARP;
    const int64_t unit = (int64_t)blockIdx.x * WARPS + threadIdx.x / SR_WARP;
    const column_pair pair =
        COLUMNS == 2 ? pair_of(p.end, (int)unit) : column_pair{(int)unit, (int)unit};
    const int64_t columns[] = {pair.first, pair.second};
    const X *x = (const X *)p.product.a;
    lane_sums<COLUMNS> sums[ROWS] = {};
    sr_vector<sr_bf16> weights[AHEAD][COLUMNS];
    int64_t start = lane * WIDTH;
    let_next_start();
    /* x may not be ready yet */
    load_weights<COLUMNS, AHEAD>(weights, p.product, columns, start);
    wait_for_previous();
    while (start < p.product.K) {
#pragma unroll
        for (int step = 0; step < AHEAD; step++)
            if (start + step * STEP < p.product.K)
                multiply_part<ROWS, COLUMNS>(sums, weights[step], p, x + start + step * STEP,
                                             start + step * STEP);
        start += AHEAD * STEP;
        load_weights<COLUMNS, AHEAD>(weights, p.product, columns, start);
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        if (row >= p.product.M)
            break;
        float factor = 1;
        if constexpr (normed)
            factor = 1 / sqrtf(warp_sum(sums[row].squares) / (float)p.product.K + p.norm.epsilon);
        const float first = warp_sum(sums[row].product[0]) * factor;
        const float second = COLUMNS == 2 ? warp_sum(sums[row].product[COLUMNS - 1]) * factor : 0;
        if (lane != 0 || unit >= units_of(p, COLUMNS))
            continue;
        if constexpr (COLUMNS == 2)
            store_pair<Out>(p, row, pair, pair_end_of<Out>(p, row, pair, position_of(p, row)),
                            first, second);
        else
            finish_one<Out>(p.product, row, pair.first, first);
    }
}

/* ---- launching ---- */

template <int ROWS, int COLUMNS, class X, class Out>
static srnn_status start(sr_backend *backend, const sr_few_rows_gemm *p) {
    const int64_t blocks = sr_pieces(units_of(*p, COLUMNS), WARPS);
    SR_CUDA(sr_launch_early(sr_may_start_early(backend), multiply_few<ROWS, COLUMNS, X, Out>,
                            dim3((unsigned)blocks), dim3(WARPS * SR_WARP), 0, sr_stream_of(backend),
                            *p));
    return SRNN_OK;
}

template <int ROWS> static srnn_status start_rows(sr_backend *backend, const sr_few_rows_gemm *p) {
    if (p->norm.weight)
        return start<ROWS, 2, float, sr_bf16>(backend, p);
    return p->product.out == SRNN_BF16 ? start<ROWS, 1, sr_bf16, sr_bf16>(backend, p)
                                       : start<ROWS, 1, sr_bf16, float>(backend, p);
}

/* The same GEMM as a task of the persistent decode kernel. */
static sr_decode_gemm decode_product(const sr_few_rows_gemm *few) {
    const sr_cuda_gemm_call *p = &few->product;
    sr_decode_gemm product = {};
    product.x = {(void *)p->a, p->a_stride, few->norm.weight ? SRNN_F32 : p->in};
    product.c = {(void *)p->c, p->c_stride, p->out};
    product.d = {p->d, p->d_stride, p->out};
    product.weight = p->b;
    product.M = (int)p->M;
    product.N = (int)p->N;
    product.K = (int)p->K;
    product.norm = few->norm.weight;
    product.epsilon = few->norm.epsilon;
    product.swiglu = few->end.swiglu;
    product.pair_columns = (int)few->end.pair_columns;
    product.D = few->end.rope.D;
    product.angles = few->end.rope.table;
    product.positions = few->end.rope.positions;
    return product;
}

srnn_status sr_cuda_start_few(sr_backend *backend, const sr_few_rows_gemm *p) {
    const sr_decode_gemm product = decode_product(p);
    if (p->product.b_stride == p->product.K && sr_decode_add_gemm(backend->device, &product))
        return SRNN_OK;
    if (p->product.M == 1)
        return start_rows<1>(backend, p);
    return p->product.M <= SR_CUDA_FEW_ROWS ? start_rows<SR_CUDA_FEW_ROWS>(backend, p)
                                            : sr_cuda_start_many(backend, p);
}

int64_t sr_cuda_few_rows(const sr_backend *backend, int64_t N) {
    const bool many =
        sr_cuda_facts(backend->device)->capability_major == 9 && N <= SR_CUDA_MANY_COLUMNS;
    return many ? SR_CUDA_MANY_ROWS : SR_CUDA_FEW_ROWS;
}

bool sr_cuda_is_few(const sr_backend *backend, const sr_cuda_gemm_call *p) {
    return p->batch.count <= 1 && p->in == SRNN_BF16 && p->M <= sr_cuda_few_rows(backend, p->N) &&
           !p->transpose_a && p->transpose_b && p->K > 0 && p->K % WIDTH == 0 &&
           sr_is_aligned({p->a, p->a_stride, p->in}, WIDTH) &&
           sr_is_aligned({p->b, p->b_stride, p->in}, WIDTH);
}

srnn_status sr_cuda_multiply_few(sr_backend *backend, const sr_cuda_gemm_call *product) {
    sr_few_rows_gemm p = {};
    p.product = *product;
    return sr_cuda_start_few(backend, &p);
}
