/* cluster_rows.cu: GEMM of up to 32 rows (decode of a batch) in bf16 with prologue and epilogue: y
 * = x W^T + c; split-K over a thread block cluster.
 *
 * Reading W still takes the time, and all multiprocessors have to load it at once, before the
 * previous kernel is over. A block has 64 pairs of columns of y (epilogue.h) and a part of the sum;
 * the blocks of a cluster have the other parts. Each leaves its sums in its shared memory, and then
 * finishes some of the rows, with the sums of all blocks of the cluster, in a fixed order. A norm
 * in front costs no kernel: the squares are summed along with the dot products, and 1/rms is
 * multiplied at the end. */
#include "device/cuda/cooperative.h"
#include "ops/cuda/gemm/epilogue.h"

enum {
    ROWS = SR_CUDA_MANY_ROWS,
    PAIRS = 64,
    COLUMNS = 2 * PAIRS,
    DEPTH = 128,        /* of the sum, per step */
    STRIDE = DEPTH + 8, /* of rows in shared memory: no bank conflicts in ldmatrix */
    STAGES = 2,
    THREADS = 256,
    WARPS = THREADS / SR_WARP,
    BLOCKS = 2, /* per multiprocessor */
    PARTS = 8,  /* of the sum, at most: the blocks of a cluster */
    WIDTH = 8,  /* numbers that a thread copies at a time */
    EIGHTS = DEPTH / WIDTH,
    LINES = THREADS / EIGHTS, /* rows that the block copies at a time */
    WARP_COLUMNS = COLUMNS / 4,
    WARP_ROWS = ROWS / WARPS, /* of x, loaded by a warp */
    FOUR = 4
};

struct stage {
    alignas(16) sr_bf16 x[ROWS][STRIDE], weights[COLUMNS][STRIDE];
};

/* A block's sums: the first columns of its pairs, then the second. Overlays the first stage. */
struct block_sums {
    float product[ROWS][COLUMNS + 8], squares[ROWS];
};
static_assert(sizeof(block_sums) <= sizeof(stage), "a stage holds the sums");
static_assert(ROWS == 32 && WARPS == 8, "as warps share rows and columns");

/* A block's part of the sum: numbers of x in pieces of DEPTH, every parts-th of them. */
struct block_part {
    int tile, part, parts, steps;
};

SR_DEVICE block_part part_of(const sr_cuda_gemm_call &p, int parts) {
    const int part = (int)blockIdx.x & (parts - 1), pieces = ((int)p.K + DEPTH - 1) / DEPTH;
    return {(int)blockIdx.x / parts, part, parts, (pieces - part + parts - 1) / parts};
}

SR_DEVICE int start_of(const block_part &own, int step) {
    return (own.part + step * own.parts) * DEPTH;
}

/* ---- loading ---- */

/* How many bytes of eight numbers from k on exist. */
SR_DEVICE int bytes_of_eight(int64_t K, int k) {
    return k < K ? 2 * WIDTH : 0;
}

SR_DEVICE void copy_weights(stage &to, const sr_few_rows_gemm &p, const block_part &own, int step) {
    const int line = (int)threadIdx.x / EIGHTS, at = (int)threadIdx.x % EIGHTS * WIDTH;
    const int k = start_of(own, step) + at, last = (int)p.product.N - 1;
    const int bytes = bytes_of_eight(p.product.K, k);
    const sr_bf16 *const weights = (const sr_bf16 *)p.product.b + (bytes ? k : 0);
#pragma unroll
    for (int i = 0; i < PAIRS / LINES; i++) {
        const int number = line + i * LINES;
        const column_pair pair = pair_of(p.end, own.tile * PAIRS + number);
        cp_async_16(&to.weights[number][at],
                    weights + (int64_t)min(pair.first, last) * p.product.b_stride, bytes);
        cp_async_16(&to.weights[PAIRS + number][at],
                    weights + (int64_t)min(pair.second, last) * p.product.b_stride, bytes);
    }
}

/* A thread's part of x on its way to shared memory. Without a norm it is copied by cp.async, steps
 * ahead; to be normed, it goes through registers: four numbers of each row of the warp, which has
 * every WARPS-th. */
template <class X> struct x_part {};

template <> struct x_part<float> {
    float numbers[WARP_ROWS][FOUR], norm[FOUR], squares[WARP_ROWS];
};

SR_DEVICE void copy_x(stage &to, const sr_cuda_gemm_call &p, int k, const sr_bf16 *x) {
    const int at = (int)threadIdx.x % EIGHTS * WIDTH;
#pragma unroll
    for (int i = 0; i < ROWS / LINES; i++) {
        const int row = (int)threadIdx.x / EIGHTS + i * LINES;
        const int bytes = row < p.M ? bytes_of_eight(p.K, k + at) : 0;
        cp_async_16(&to.x[row][at], x + (bytes ? row * p.a_stride + k + at : 0), bytes);
    }
}

SR_DEVICE void copy_x(stage &, const sr_cuda_gemm_call &, int, const float *) {
}

/* Issues the loads, without waiting for them. */
SR_DEVICE void fetch_x(x_part<float> &part, const sr_few_rows_gemm &p, int k, const float *x) {
    const int warp = (int)threadIdx.x / SR_WARP, at = k + (int)threadIdx.x % SR_WARP * FOUR;
    const float *const from = x + warp * p.product.a_stride + at;
    const int rows = at < p.product.K ? (int)p.product.M : 0;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
#pragma unroll
        for (int n = 0; n < FOUR; n++)
            part.numbers[i][n] = part.norm[n] = 0;
        if (warp + i * WARPS < rows)
            load_numbers<FOUR>(part.numbers[i], from + i * WARPS * p.product.a_stride);
    }
    if (rows > 0)
        load_numbers<FOUR>(part.norm, p.norm.weight + at);
}

SR_DEVICE void fetch_x(x_part<sr_bf16> &, const sr_few_rows_gemm &, int, const sr_bf16 *) {
}

SR_DEVICE void put_x(stage &to, x_part<float> &part) {
    const int warp = (int)threadIdx.x / SR_WARP, at = (int)threadIdx.x % SR_WARP * FOUR;
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
#pragma unroll
        for (int n = 0; n < FOUR; n++) {
            part.squares[i] = fmaf(part.numbers[i][n], part.numbers[i][n], part.squares[i]);
            part.numbers[i][n] *= part.norm[n];
        }
        store_numbers<FOUR>(&to.x[warp + i * WARPS][at], part.numbers[i]);
    }
}

SR_DEVICE void put_x(stage &, x_part<sr_bf16> &) {
}

/* ---- GEMM ---- */

/* A warp has 16 rows and a quarter of the columns. */
struct warp_sums {
    float c[WARP_COLUMNS / 8][4];
};

SR_DEVICE int row_of_warp() {
    return (int)threadIdx.x / SR_WARP % 2 * 16;
}

SR_DEVICE int column_of_warp() {
    return (int)threadIdx.x / SR_WARP / 2 * WARP_COLUMNS;
}

SR_DEVICE void multiply(warp_sums &sums, const stage &from) {
    const int lane = (int)threadIdx.x % SR_WARP, row = row_of_warp(), column = column_of_warp();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        uint32_t x[4], weights[WARP_COLUMNS / 16][4];
        ldmatrix_x4(x, &from.x[row + lane % 16][k + lane / 16 * 8]);
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 16; j++)
            ldmatrix_x4(
                weights[j],
                &from.weights[column + 16 * j + lane % 8 + lane / 16 * 8][k + lane / 8 % 2 * 8]);
#pragma unroll
        for (int j = 0; j < WARP_COLUMNS / 8; j++)
            mma_m16n8k16(sums.c[j], x, weights[j / 2] + j % 2 * 2);
    }
}

/* ---- epilogue ---- */

SR_DEVICE void leave_sums(block_sums &to, const warp_sums &sums) {
    const int lane = (int)threadIdx.x % SR_WARP, row = row_of_warp() + lane / 4;
#pragma unroll
    for (int j = 0; j < WARP_COLUMNS / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            *reinterpret_cast<float2 *>(
                &to.product[row + 8 * half][column_of_warp() + 8 * j + lane % 4 * 2]) =
                make_float2(sums.c[j][2 * half], sums.c[j][2 * half + 1]);
}

SR_DEVICE void leave_squares(block_sums &to, const x_part<float> &part) {
#pragma unroll
    for (int i = 0; i < WARP_ROWS; i++) {
        const float sum = warp_sum(part.squares[i]);
        if (threadIdx.x % SR_WARP == 0)
            to.squares[threadIdx.x / SR_WARP + i * WARPS] = sum;
    }
}

SR_DEVICE void leave_squares(block_sums &, const x_part<sr_bf16> &) {
}

/* A pair of a row that a thread finishes; the blocks of a cluster share the rows. */
struct end_item {
    int row, pair; /* of the tile; row ROWS: none */
    column_pair at;
};

SR_DEVICE end_item item_of(const sr_few_rows_gemm &p, const block_part &own, int number) {
    const int pair = number % PAIRS, row = own.part + number / PAIRS * own.parts;
    const bool there = own.tile * PAIRS + pair < pairs_of(p) && row < p.product.M;
    return {there ? row : (int)ROWS, pair, pair_of(p.end, own.tile * PAIRS + pair)};
}

template <bool NORMED, class Out>
SR_DEVICE void end_pair(const sr_few_rows_gemm &p, const block_part &own, const end_item &item,
                        const pair_end &end, const block_sums &sums) {
    float part[PARTS][3], first = 0, second = 0, squares = 0, factor = 1;
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (i < own.parts) {
            part[i][0] = cluster_load(&sums.product[item.row][item.pair], i);
            part[i][1] = cluster_load(&sums.product[item.row][PAIRS + item.pair], i);
            part[i][2] = NORMED ? cluster_load(&sums.squares[item.row], i) : 0;
        }
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        if (i < own.parts) {
            first += part[i][0];
            second += part[i][1];
            squares += part[i][2];
        }
    if (NORMED)
        factor = rsqrt_fast(squares / (float)p.product.K + p.norm.epsilon);
    store_pair<Out>(p, item.row, item.at, end, first * factor, second * factor);
}

/* X: float where x is normed, else bf16. Cluster t owns tile t, 64 column pairs of y for all 32
 * rows; block i of the cluster owns every parts-th piece of 128 along K (split-K). Weights go
 * global -> shared by cp.async, two stages, the first ones before the previous kernel is over; x
 * follows by cp.async, or through registers to be normed. Per step: wait, barrier, ldmatrix and mma
 * into registers (a warp has 16 rows x 32 columns), barrier, next copies. Then each block writes
 * its sums to its shared memory, cluster barrier, and finishes every parts-th row: it reads the
 * sums of all blocks in the cluster's shared memory, adds them in order, and runs the epilogue
 * (1/rms, RoPE or SwiGLU, addend). */
template <class X, class Out>
static __global__ void __launch_bounds__(THREADS, BLOCKS)
    multiply_many(const __grid_constant__ sr_few_rows_gemm p, int parts) {
    constexpr bool NORMED = sizeof(X) == sizeof(float);
    SR_SHARED(stage, stages);
    __shared__ int32_t positions[ROWS];
    const block_part own = part_of(p.product, parts);
    const X *x = (const X *)p.product.a;
    x_part<X> part = {};
    warp_sums sums = {};
    let_next_start();
    for (int step = 0; step < STAGES && step < own.steps; step++)
        copy_weights(stages[step], p, own, step); /* x may not be ready yet */
    wait_for_previous();
    fetch_x(part, p, start_of(own, 0), x);
    if ((int)threadIdx.x < p.product.M)
        positions[threadIdx.x] = position_of(p, (int)threadIdx.x);
    for (int step = 0; step < STAGES; step++) {
        if (step < own.steps)
            copy_x(stages[step], p.product, start_of(own, step), x);
        cp_async_commit();
    }
    for (int step = 0; step < own.steps; step++) {
        stage &now = stages[step % STAGES];
        put_x(now, part);
        cp_async_wait<STAGES - 1>();
        __syncthreads();
        if (step + 1 < own.steps)
            fetch_x(part, p, start_of(own, step + 1), x);
        if (row_of_warp() < p.product.M)
            multiply(sums, now);
        __syncthreads();
        if (step + STAGES < own.steps) {
            copy_weights(now, p, own, step + STAGES);
            copy_x(now, p.product, start_of(own, step + STAGES), x);
        }
        cp_async_commit();
    }
    block_sums &left = *reinterpret_cast<block_sums *>(stages);
    leave_sums(left, sums);
    leave_squares(left, part);
    const int items = PAIRS * ROWS / parts;
    end_item item = item_of(p, own, (int)threadIdx.x);
    pair_end end = {};
    /* loaded while other blocks arrive */
    if (item.row < ROWS)
        end = pair_end_of<Out>(p, item.row, item.at, positions[item.row]);
    cluster_barrier();
    for (int number = (int)threadIdx.x; number < items; number += THREADS) {
        const end_item next = item_of(p, own, number + THREADS);
        pair_end next_end = {};
        if (number + THREADS < items && next.row < ROWS)
            next_end = pair_end_of<Out>(p, next.row, next.at, positions[next.row]);
        if (item.row < ROWS)
            end_pair<NORMED, Out>(p, own, item, end, left);
        item = next;
        end = next_end;
    }
    cluster_leave();
}

/* Parts of the split-K sum: as many as let all blocks be resident. Clusters do not fill a GPU
 * completely. */
static int parts_of(const sr_few_rows_gemm *p, int64_t tiles, int multiprocessors) {
    const int64_t pieces = sr_pieces(p->product.K, DEPTH);
    int parts = PARTS;
    while (parts > 1 && (parts > pieces || tiles * parts > BLOCKS * multiprocessors * 7 / 8))
        parts /= 2;
    return parts;
}

template <class X, class Out>
static srnn_status start(sr_backend *backend, const sr_few_rows_gemm *p) {
    const int64_t tiles = sr_pieces(pairs_of(*p), PAIRS);
    const int parts = parts_of(p, tiles, sr_cuda_facts(backend->device)->multiprocessors);
    const int64_t steps = sr_pieces(sr_pieces(p->product.K, DEPTH), parts);
    SR_CUDA(sr_launch_clusters(parts, multiply_many<X, Out>, dim3((unsigned)(tiles * parts)),
                               dim3(THREADS), sr_minimum(steps, STAGES) * sizeof(stage),
                               sr_stream_of(backend), *p, parts));
    return SRNN_OK;
}

srnn_status sr_cuda_start_many(sr_backend *backend, const sr_few_rows_gemm *p) {
    if (p->norm.weight)
        return start<float, sr_bf16>(backend, p);
    return p->product.out == SRNN_BF16 ? start<sr_bf16, sr_bf16>(backend, p)
                                       : start<sr_bf16, float>(backend, p);
}
