/* context_mix.cu: rows of contexts mixed, as Avey's contextualizer does it.
 *
 * The pairs of rows of a context are a matrix of the size of its weight, whatever the length of the
 * text, so the two sums over rows and their gradients are batched GEMMs, one product per context;
 * what is between them are the kernels below. With U the unit vectors, X = x0, W the weight and S
 * the sums (all per context), and pairs above the diagonal left out:
 *
 *     forward    cosines = U U^T      weights = W cosines (elementwise)      S = weights X
 *     backward   d_pairs = dS X^T     dW = sum of d_pairs cosines            dX = weights^T dS
 *                E = d_pairs W (elementwise)                                 dU = (E + E^T) U
 *
 * Bytes per number in bf16 (twice that in float): 6 of wide forward, 10 backward; each pair of rows
 * is written once and read twice forward, written twice and read six times backward. */
#include "ops/cuda/elements.h"
#include "ops/cuda/gemm/gemm.h"

enum { THREADS = 256, PAIR_TILE = 32, PAIR_ROWS = 8 };
static const float SMALL = 1e-8f; /* added to squares */

/* What forward saves, or its gradients; of the number type. */
template <class N> struct mix_arrays {
    N *x0, *unit, *sums; /* (rows, mixed) */
    N *cosines;          /* (rows, context); backward: E + E^T */
    N *weights;          /* (rows, context); backward: d_pairs */
    float *lengths;      /* (rows) */
};

template <class N> struct mix_call {
    N *x;                /* (rows, wide); backward: the gradient, to be written */
    const N *in;         /* backward: x */
    N *out;              /* (rows, wide - mixed); backward: the gradient */
    const float *weight; /* (context, context) */
    int64_t x_stride, in_stride, out_stride, rows;
    int wide, mixed, context;
};

SR_DEVICE float squared_relu(float x) {
    return x > 0 ? x * x : 0;
}

/* ---- forward ---- */

/* A block owns a row, a thread every 256th channel. x0 and the tail go global -> registers ->
 * global (the tail to out), squares of x0 to one block sum in double (shared memory, two barriers);
 * then each thread reads its x0 again, from its own registers' cache lines, and stores the unit
 * vector; thread 0 the length. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    activate(const mix_arrays<N> save, const mix_call<N> call) {
    __shared__ double shared[SR_WARP];
    const int64_t row = blockIdx.x;
    const N *x = call.x + row * call.x_stride;
    N *x0 = save.x0 + row * call.mixed, *unit = save.unit + row * call.mixed;
    N *out = call.out + row * call.out_stride;
    double squares = 0;
    for (int c = (int)threadIdx.x; c < call.mixed; c += THREADS) {
        const float active = squared_relu(load_number(x + c));
        store_number(x0 + c, active);
        squares += (double)active * (double)active;
    }
    for (int c = 2 * call.mixed + (int)threadIdx.x; c < call.wide; c += THREADS)
        store_number(out + c - call.mixed, squared_relu(load_number(x + c)));
    const float length = (float)sqrt(block_sum(squares, shared) + (double)SMALL);
    if (threadIdx.x == 0)
        save.lengths[row] = length;
    for (int c = (int)threadIdx.x; c < call.mixed; c += THREADS)
        store_number(unit + c, squared_relu(load_number(x + c)) / length);
}

/* weights = W cosines up to the diagonal, zero above it. A thread owns one pair of rows: global ->
 * registers -> global. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    weigh(const mix_arrays<N> save, const mix_call<N> call) {
    const int64_t row = grid_row();
    const int j = grid_item();
    if (row >= call.rows || j >= call.context)
        return;
    const int i = (int)(row % call.context);
    const int64_t at = row * call.context + j;
    const float cosine = j <= i ? load_number(save.cosines + at) : 0.0f;
    store_number(save.weights + at, cosine * call.weight[(int64_t)i * call.context + j]);
}

/* out = sums x1 over the mixed channels. A thread owns one number of out: global -> registers ->
 * global. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    join(const mix_arrays<N> save, const mix_call<N> call) {
    const int64_t row = grid_row();
    const int c = grid_item();
    if (row >= call.rows || c >= call.mixed)
        return;
    const float x1 = squared_relu(load_number(call.x + row * call.x_stride + call.mixed + c));
    store_number(call.out + row * call.out_stride + c,
                 x1 * load_number(save.sums + row * call.mixed + c));
}

/* ---- backward ---- */

/* d_sums, and d_x of x1 and of the tail. A thread owns one channel of d_out of one row: reads it,
 * its x and (mixed channels) its sum, global -> registers, stores d_sums and one number of d_x. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    split_back(const mix_arrays<N> d, const mix_arrays<N> saved, const mix_call<N> call) {
    const int64_t row = grid_row();
    const int c = grid_item();
    if (row >= call.rows || c >= call.wide - call.mixed)
        return;
    const int channel = call.mixed + c; /* of x: x1 follows x0, and the tail x1 */
    const float x = load_number(call.in + row * call.in_stride + channel);
    const float slope = x > 0 ? 2 * x : 0,
                d_out = load_number(call.out + row * call.out_stride + c);
    float d_active = d_out;
    if (c < call.mixed) {
        store_number(d.sums + row * call.mixed + c, d_out * squared_relu(x));
        d_active *= load_number(saved.sums + row * call.mixed + c);
    }
    store_number(call.x + row * call.x_stride + channel, slope * d_active);
}

/* d_weight += d_pairs cosines, over all contexts in order. A thread owns one pair (i, j) of the
 * weight, j <= i, and walks the contexts: global -> registers, one store. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    weight_back(float *d_weight, const mix_arrays<N> d, const mix_arrays<N> saved,
                const mix_call<N> call) {
    const int64_t i = grid_row(), j = grid_item();
    if (i >= call.context || j > i)
        return;
    float sum = 0;
    for (int64_t row = i; row < call.rows; row += call.context)
        sum += load_number(d.weights + row * call.context + j) *
               load_number(saved.cosines + row * call.context + j);
    d_weight[i * call.context + j] += sum;
}

/* E + E^T with E = d_pairs W up to the diagonal, which therefore counts twice. Block (x, y, z) owns
 * the 32 x 32 tile (x, y) of context z; it loads the tile of E and, into shared memory, that of the
 * transpose (both coalesced), one barrier, then stores the sum. */
template <class N>
static __global__ void __launch_bounds__(PAIR_TILE *PAIR_ROWS)
    symmetric(const mix_arrays<N> d, const mix_call<N> call) {
    __shared__ float transposed[PAIR_TILE][PAIR_TILE + 1];
    const int n = call.context, x = (int)threadIdx.x;
    const int first_i = (int)blockIdx.x * PAIR_TILE, first_j = (int)blockIdx.y * PAIR_TILE;
    const N *pairs = d.weights + (int64_t)blockIdx.z * n * n;
    N *out = d.cosines + (int64_t)blockIdx.z * n * n;
    const auto lower = [&](int i, int j) {
        const int64_t at = (int64_t)i * n + j;
        return i < n && j <= i ? load_number(pairs + at) * call.weight[at] : 0.0f;
    };
    for (int y = (int)threadIdx.y; y < PAIR_TILE; y += PAIR_ROWS)
        transposed[y][x] = lower(first_j + y, first_i + x);
    __syncthreads();
    for (int y = (int)threadIdx.y; y < PAIR_TILE; y += PAIR_ROWS) {
        const int i = first_i + y, j = first_j + x;
        if (i < n && j < n)
            store_number(out + (int64_t)i * n + j, lower(i, j) + transposed[x][y]);
    }
}

/* d_x of x0, from the gradients of x0 (d.x0) and of its unit vector. A block owns a row, a thread
 * every 256th channel: one block sum of unit d_unit (shared memory, two barriers), then global ->
 * registers -> global. */
template <class N>
static __global__ void __launch_bounds__(THREADS)
    activate_back(const mix_arrays<N> d, const mix_arrays<N> saved, const mix_call<N> call) {
    __shared__ float shared[SR_WARP];
    const int64_t row = blockIdx.x, at = row * call.mixed;
    const N *x = call.in + row * call.in_stride;
    float along = 0;
    for (int c = (int)threadIdx.x; c < call.mixed; c += THREADS)
        along += load_number(saved.unit + at + c) * load_number(d.unit + at + c);
    along = block_sum(along, shared);
    const float length = saved.lengths[row];
    for (int c = (int)threadIdx.x; c < call.mixed; c += THREADS) {
        const float wide = load_number(x + c), unit = load_number(saved.unit + at + c);
        const float d_active =
            load_number(d.x0 + at + c) + (load_number(d.unit + at + c) - along * unit) / length;
        store_number(call.x + row * call.x_stride + c, wide > 0 ? 2 * wide * d_active : 0.0f);
    }
}

/* ---- memory ---- */

/* base nullptr: only the bytes. */
template <class N>
static mix_arrays<N> lay_out(const sr_context_mix *mix, void *base, size_t *bytes) {
    enum { ALIGNMENT = 256 };
    const int64_t rows = mix->x.rows;
    *bytes = 0;
    const auto take = [&](int64_t columns, size_t size) {
        char *start = base ? (char *)base + *bytes : nullptr;
        *bytes += ((size_t)(rows * columns) * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        return (void *)start;
    };
    mix_arrays<N> a;
    a.x0 = (N *)take(mix->mixed, sizeof(N));
    a.unit = (N *)take(mix->mixed, sizeof(N));
    a.sums = (N *)take(mix->mixed, sizeof(N));
    a.cosines = (N *)take(mix->context, sizeof(N));
    a.weights = (N *)take(mix->context, sizeof(N));
    a.lengths = (float *)take(1, sizeof(float));
    return a;
}

size_t sr_cuda_context_mix_bytes(const sr_backend *backend, const sr_context_mix *mix) {
    size_t bytes;
    if (backend->number == SRNN_BF16)
        lay_out<sr_bf16>(mix, nullptr, &bytes);
    else
        lay_out<float>(mix, nullptr, &bytes);
    return bytes;
}

/* ---- the products of all contexts ---- */

template <class N> static srnn_dtype dtype_of() {
    return sizeof(N) == sizeof(float) ? SRNN_F32 : SRNN_BF16;
}

/* pairs (rows, context) = x (rows, mixed) y^T. */
template <class N>
static srnn_status multiply_pairs(sr_backend *backend, const sr_context_mix *mix, N *pairs,
                                  const N *x, const N *y) {
    const int64_t n = mix->context, columns = mix->mixed;
    const sr_cuda_gemm_call product = {.a = x,
                                       .b = y,
                                       .c = nullptr,
                                       .d = pairs,
                                       .a_stride = columns,
                                       .b_stride = columns,
                                       .c_stride = 0,
                                       .d_stride = n,
                                       .M = n,
                                       .N = n,
                                       .K = columns,
                                       .transpose_a = false,
                                       .transpose_b = true,
                                       .in = dtype_of<N>(),
                                       .out = dtype_of<N>(),
                                       .batch = {mix->x.rows / n, n * columns, n * columns, 0,
                                                 n * n}};
    return sr_cuda_multiply(backend, &product);
}

/* out (rows, mixed) = pairs (rows, context) x, or their transposes x. */
template <class N>
static srnn_status multiply_rows(sr_backend *backend, const sr_context_mix *mix, N *out,
                                 const N *pairs, const N *x, bool transposed) {
    const int64_t n = mix->context, columns = mix->mixed;
    const sr_cuda_gemm_call product = {.a = pairs,
                                       .b = x,
                                       .c = nullptr,
                                       .d = out,
                                       .a_stride = n,
                                       .b_stride = columns,
                                       .c_stride = 0,
                                       .d_stride = columns,
                                       .M = n,
                                       .N = columns,
                                       .K = n,
                                       .transpose_a = transposed,
                                       .transpose_b = false,
                                       .in = dtype_of<N>(),
                                       .out = dtype_of<N>(),
                                       .batch = {mix->x.rows / n, n * n, n * columns, 0,
                                                 n * columns}};
    return sr_cuda_multiply(backend, &product);
}

/* ---- a call ---- */

template <class N>
static srnn_status forward(sr_backend *backend, sr_matrix out, const sr_context_mix *mix) {
    const cudaStream_t stream = sr_stream_of(backend);
    size_t bytes;
    const mix_arrays<N> save = lay_out<N>(mix, mix->saved, &bytes);
    const int64_t rows = mix->x.rows;
    const mix_call<N> call = {.x = (N *)mix->x.data,
                              .in = nullptr,
                              .out = (N *)out.data,
                              .weight = mix->weight,
                              .x_stride = mix->x.stride,
                              .in_stride = 0,
                              .out_stride = out.stride,
                              .rows = rows,
                              .wide = (int)mix->x.columns,
                              .mixed = (int)mix->mixed,
                              .context = (int)mix->context};
    const sr_row_grid pairs = sr_row_grid_of(rows, mix->context);
    const sr_row_grid numbers = sr_row_grid_of(rows, mix->mixed);
    SR_CUDA(sr_launch(activate<N>, dim3((unsigned)rows), dim3(THREADS), 0, stream, save, call));
    SR_TRY(multiply_pairs<N>(backend, mix, save.cosines, save.unit, save.unit));
    SR_CUDA(sr_launch(weigh<N>, pairs.grid, pairs.block, 0, stream, save, call));
    SR_TRY(multiply_rows<N>(backend, mix, save.sums, save.weights, save.x0, false));
    SR_CUDA(sr_launch(join<N>, numbers.grid, numbers.block, 0, stream, save, call));
    return SRNN_OK;
}

/* As many launches as needed: one dimension of a grid is limited. */
template <class N>
static srnn_status start_symmetric(sr_backend *backend, mix_arrays<N> d, const mix_call<N> &call) {
    enum { MOST = 32768 };
    const int64_t contexts = call.rows / call.context,
                  numbers = (int64_t)call.context * call.context;
    const unsigned tiles = (unsigned)sr_pieces(call.context, PAIR_TILE);
    for (int64_t first = 0; first < contexts; first += MOST) {
        SR_CUDA(sr_launch(symmetric<N>,
                          dim3(tiles, tiles, (unsigned)sr_minimum(MOST, contexts - first)),
                          dim3(PAIR_TILE, PAIR_ROWS), 0, sr_stream_of(backend), d, call));
        d.weights += MOST * numbers;
        d.cosines += MOST * numbers;
    }
    return SRNN_OK;
}

template <class N>
static srnn_status backward(sr_backend *backend, sr_matrix d_x, float *d_weight, sr_matrix d_out,
                            const sr_context_mix *mix, void *scratch) {
    const cudaStream_t stream = sr_stream_of(backend);
    size_t bytes;
    const mix_arrays<N> saved = lay_out<N>(mix, mix->saved, &bytes);
    const mix_arrays<N> d = lay_out<N>(mix, scratch, &bytes);
    const int64_t rows = mix->x.rows;
    const mix_call<N> call = {.x = (N *)d_x.data,
                              .in = (const N *)mix->x.data,
                              .out = (N *)d_out.data,
                              .weight = mix->weight,
                              .x_stride = d_x.stride,
                              .in_stride = mix->x.stride,
                              .out_stride = d_out.stride,
                              .rows = rows,
                              .wide = (int)mix->x.columns,
                              .mixed = (int)mix->mixed,
                              .context = (int)mix->context};
    const sr_row_grid numbers = sr_row_grid_of(rows, mix->x.columns - mix->mixed);
    const sr_row_grid pairs = sr_row_grid_of(mix->context, mix->context);
    SR_CUDA(sr_launch(split_back<N>, numbers.grid, numbers.block, 0, stream, d, saved, call));
    SR_TRY(multiply_pairs<N>(backend, mix, d.weights, d.sums, saved.x0));
    SR_CUDA(
        sr_launch(weight_back<N>, pairs.grid, pairs.block, 0, stream, d_weight, d, saved, call));
    SR_TRY(start_symmetric<N>(backend, d, call));
    SR_TRY(multiply_rows<N>(backend, mix, d.x0, saved.weights, d.sums, true));
    SR_TRY(multiply_rows<N>(backend, mix, d.unit, d.cosines, saved.unit, false));
    SR_CUDA(sr_launch(activate_back<N>, dim3((unsigned)rows), dim3(THREADS), 0, stream, d, saved,
                      call));
    return SRNN_OK;
}

srnn_status sr_cuda_context_mix_forward(sr_backend *backend, sr_matrix out,
                                        const sr_context_mix *mix) {
    if (mix->x.rows == 0)
        return SRNN_OK;
    return backend->number == SRNN_BF16 ? forward<sr_bf16>(backend, out, mix)
                                        : forward<float>(backend, out, mix);
}

srnn_status sr_cuda_context_mix_backward(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                         sr_matrix d_out, const sr_context_mix *mix,
                                         void *scratch) {
    if (mix->x.rows == 0)
        return SRNN_OK;
    return backend->number == SRNN_BF16
               ? backward<sr_bf16>(backend, d_x, d_weight, d_out, mix, scratch)
               : backward<float>(backend, d_x, d_weight, d_out, mix, scratch);
}
