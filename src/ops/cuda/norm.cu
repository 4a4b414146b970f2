/* norm.cu: RMS norm and LayerNorm of pieces of rows: the channels of a head, or all of a row.
 *
 * Backward in three kernels over slices of rows whose statistics the workspace holds: statistics,
 * gradients of weights, d_x, which may be written over d_out. Bytes per number in bf16 (twice that
 * in float): forward 2 + 2 (x is read again from the caches); backward x three times, d_out twice,
 * d_x once. */
#include "ops/cuda/elements.h"

enum { THREADS = 256, WARPS = THREADS / SR_WARP, WIDE = 1024, PART_ROWS = 256 };

/* Of one piece: x_hat = (x - mean) rstd. */
struct piece_stats {
    float mean, rstd;
};

/* Sum over the PIECE_THREADS threads that share a piece: a warp, or the block. */
template <int PIECE_THREADS> SR_DEVICE float piece_sum(float x) {
    if constexpr (PIECE_THREADS == SR_WARP) {
        return warp_sum(x);
    } else {
        __shared__ float shared[SR_WARP];
        return block_sum(x, shared);
    }
}

/* The piece that a thread works on, and its place among the PIECE_THREADS threads that share it. */
struct piece_place {
    int64_t row;
    int group, lane;
    bool there;
};

template <int PIECE_THREADS>
SR_DEVICE piece_place place_of(const sr_norm &norm, int64_t first_row) {
    const int64_t piece = (int64_t)blockIdx.x * (THREADS / PIECE_THREADS) +
                          threadIdx.x / PIECE_THREADS; /* of the slice */
    const int groups = (int)norm.groups;
    return {first_row + piece / groups, (int)(piece % groups), (int)threadIdx.x % PIECE_THREADS,
            first_row + piece / groups < norm.x.rows};
}

template <class X>
SR_DEVICE const X *piece_of(const sr_matrix &x, const piece_place &at, int64_t C) {
    return (const X *)x.data + at.row * x.stride + at.group * C;
}

template <int PIECE_THREADS, class X>
SR_DEVICE piece_stats stats_of(const sr_norm &norm, const X *x, const piece_place &at) {
    float sum = 0, squares = 0;
    for (int c = at.lane; norm.subtract_mean && c < (int)norm.C; c += PIECE_THREADS)
        sum += load_number(x + c);
    const float mean = norm.subtract_mean ? piece_sum<PIECE_THREADS>(sum) / (float)norm.C : 0.0f;
    for (int c = at.lane; c < (int)norm.C; c += PIECE_THREADS) {
        const float centred = load_number(x + c) - mean;
        squares += centred * centred;
    }
    squares = piece_sum<PIECE_THREADS>(squares);
    return {mean, 1.0f / sqrtf(squares / (float)norm.C + norm.epsilon)};
}

SR_DEVICE float weight_at(const sr_norm &norm, int group, int c) {
    return norm.weight[(norm.own_weights ? group * norm.C : 0) + c] + norm.offset;
}

/* out = the norm. PIECE_THREADS threads own a piece (a warp one of a head, a block one of a whole
 * row): they read it twice or, for LayerNorm, three times, the first time from global memory; one
 * or two sums over the piece (shuffles, or shared memory and barriers); then global -> registers ->
 * global. */
template <int PIECE_THREADS, class X, class N>
static __global__ void __launch_bounds__(THREADS)
    norm_pieces(const sr_matrix out, const sr_norm norm) {
    const piece_place at = place_of<PIECE_THREADS>(norm, 0);
    if (!at.there)
        return;
    const X *x = piece_of<X>(norm.x, at, norm.C);
    const piece_stats s = stats_of<PIECE_THREADS>(norm, x, at);
    N *to = (N *)out.data + at.row * out.stride + at.group * norm.C;
    const float *bias =
        norm.bias ? norm.bias + (norm.own_weights ? at.group * norm.C : 0) : nullptr;
    for (int c = at.lane; c < (int)norm.C; c += PIECE_THREADS)
        store_number(to + c, (load_number(x + c) - s.mean) * s.rstd * weight_at(norm, at.group, c) +
                                 (bias ? bias[c] : 0.0f));
}

/* stats (rows of the slice, groups). PIECE_THREADS threads own a piece, one of them stores. */
template <int PIECE_THREADS, class X>
static __global__ void __launch_bounds__(THREADS)
    measure_pieces(piece_stats *stats, const sr_norm norm, int64_t first_row) {
    const piece_place at = place_of<PIECE_THREADS>(norm, first_row);
    if (!at.there)
        return;
    const piece_stats s = stats_of<PIECE_THREADS>(norm, piece_of<X>(norm.x, at, norm.C), at);
    if (at.lane == 0)
        stats[(at.row - first_row) * norm.groups + at.group] = s;
}

/* The rows that gradients of weights are summed over, and the destination of the partial sums. */
struct weight_parts {
    float *weight, *bias; /* (parts, weights) each */
    const piece_stats *stats;
    int64_t first_row, rows, part_rows, weights; /* of the slice; of a part; numbers */
};

/* Parts of d_weight and d_bias. Block (x, y) owns 32 weights, one per lane, and the rows of part y;
 * warp w adds rows w, w + 8, ... (and all groups that share the weights), global -> registers;
 * after a barrier warp 0 adds the warps' sums from shared memory, in order, and stores the part,
 * for add_parts. */
template <class X, class N>
static __global__ void __launch_bounds__(THREADS)
    weights_back(const weight_parts parts, const sr_matrix d_out, const sr_norm norm) {
    __shared__ float shared[2][WARPS][SR_WARP];
    const int w = (int)(blockIdx.x * SR_WARP + threadIdx.x), C = (int)norm.C;
    const int64_t first = (int64_t)blockIdx.y * parts.part_rows;
    const int64_t end = min(first + parts.part_rows, parts.rows);
    /* the groups that use the lane's weight: one, or all */
    const int group = norm.own_weights ? w / C : 0;
    const int past = norm.own_weights ? group + 1 : (int)norm.groups;
    float weight = 0, bias = 0;
    for (int64_t row = first + threadIdx.y; w < parts.weights && row < end; row += WARPS)
        for (int g = group; g < past; g++) {
            const piece_stats s = parts.stats[row * norm.groups + g];
            const int64_t at = parts.first_row + row, c = norm.own_weights ? w : g * C + w;
            const float d = load_number((const N *)d_out.data + at * d_out.stride + c);
            const float x = load_number((const X *)norm.x.data + at * norm.x.stride + c);
            weight += d * (x - s.mean) * s.rstd;
            bias += d;
        }
    shared[0][threadIdx.y][threadIdx.x] = weight;
    shared[1][threadIdx.y][threadIdx.x] = bias;
    __syncthreads();
    if (threadIdx.y != 0 || w >= parts.weights)
        return;
    for (int warp = 1; warp < WARPS; warp++) {
        weight += shared[0][warp][threadIdx.x];
        bias += shared[1][warp][threadIdx.x];
    }
    parts.weight[blockIdx.y * parts.weights + w] = weight;
    parts.bias[blockIdx.y * parts.weights + w] = bias;
}

/* With n = x_hat and u = d_out w:  d_x = rstd (u - mean(u) - n mean(u n)), mean(u) only of
 * LayerNorm. PIECE_THREADS threads own a piece: two sums over it, then global -> registers ->
 * global; each number of d_out is read by the thread that writes d_x there. */
template <int PIECE_THREADS, class X, class N, class D>
static __global__ void __launch_bounds__(THREADS)
    pieces_back(const sr_matrix d_x, const sr_matrix d_out, const sr_norm norm,
                const piece_stats *stats, int64_t first_row, bool adds) {
    const piece_place at = place_of<PIECE_THREADS>(norm, first_row);
    if (!at.there)
        return;
    const piece_stats s = stats[(at.row - first_row) * norm.groups + at.group];
    const X *x = piece_of<X>(norm.x, at, norm.C);
    const N *d = piece_of<N>(d_out, at, norm.C);
    D *to = (D *)d_x.data + at.row * d_x.stride + at.group * norm.C;
    float dot = 0, sum = 0;
    for (int c = at.lane; c < (int)norm.C; c += PIECE_THREADS) {
        const float u = load_number(d + c) * weight_at(norm, at.group, c);
        dot += u * (load_number(x + c) - s.mean);
        sum += u;
    }
    const float pull = piece_sum<PIECE_THREADS>(dot) * s.rstd * s.rstd / (float)norm.C;
    const float level = norm.subtract_mean ? piece_sum<PIECE_THREADS>(sum) / (float)norm.C : 0.0f;
    for (int c = at.lane; c < (int)norm.C; c += PIECE_THREADS) {
        const float u = load_number(d + c) * weight_at(norm, at.group, c);
        const float own = s.rstd * (u - level - (load_number(x + c) - s.mean) * pull);
        store_number(to + c, adds ? load_number(to + c) + own : own);
    }
}

/* ---- a call ---- */

template <class T> struct sr_type { using type = T; };

/* Calls work(sr_type<N>()) with the type of the numbers. */
template <class Work> static srnn_status with_type(srnn_dtype dtype, Work work) {
    return dtype == SRNN_BF16 ? work(sr_type<sr_bf16>()) : work(sr_type<float>());
}

static bool is_wide(const sr_norm *norm) {
    return norm->C >= WIDE;
}

static dim3 piece_grid(const sr_norm *norm, int64_t rows) {
    const int64_t pieces = rows * norm->groups;
    return dim3((unsigned)(is_wide(norm) ? pieces : sr_pieces(pieces, WARPS)));
}

srnn_status sr_cuda_norm_forward(sr_backend *backend, sr_matrix out, const sr_norm *norm) {
    if (norm->x.rows == 0)
        return SRNN_OK;
    return with_type(norm->x.dtype, [&](auto from) {
        using X = typename decltype(from)::type;
        return with_type(out.dtype, [&](auto to) -> srnn_status {
            using N = typename decltype(to)::type;
            SR_CUDA(
                sr_launch(is_wide(norm) ? norm_pieces<THREADS, X, N> : norm_pieces<SR_WARP, X, N>,
                          piece_grid(norm, norm->x.rows), dim3(THREADS), 0, sr_stream_of(backend),
                          out, *norm));
            return SRNN_OK;
        });
    });
}

/* Where a slice's statistics and parts are in the workspace. */
struct norm_slice {
    piece_stats *stats;
    float *parts; /* of weights; those of biases follow */
    int64_t first, rows, part_rows, part_count, weights;
};

template <class X, class N>
static srnn_status start_weights(sr_backend *backend, const sr_norm_gradient *gradient,
                                 sr_matrix d_out, const sr_norm *norm, const norm_slice &slice) {
    float *biases = slice.parts + slice.part_count * slice.weights;
    const weight_parts parts = {slice.parts, biases,          slice.stats,  slice.first,
                                slice.rows,  slice.part_rows, slice.weights};
    SR_CUDA(sr_launch(weights_back<X, N>,
                      dim3((unsigned)sr_pieces(slice.weights, SR_WARP), (unsigned)slice.part_count),
                      dim3(SR_WARP, WARPS), 0, sr_stream_of(backend), parts, d_out, *norm));
    SR_TRY(sr_cuda_add_parts(backend, gradient->d_weight, slice.parts, slice.part_count,
                             slice.weights));
    return gradient->d_bias ? sr_cuda_add_parts(backend, gradient->d_bias, biases, slice.part_count,
                                                slice.weights)
                            : SRNN_OK;
}

template <class X, class N>
static srnn_status slice_back(sr_backend *backend, const sr_norm_gradient *gradient,
                              sr_matrix d_out, const sr_norm *norm, const norm_slice &slice) {
    const dim3 grid = piece_grid(norm, slice.rows);
    sr_norm part = *norm;
    part.x.rows = slice.first + slice.rows;
    SR_CUDA(sr_launch(is_wide(norm) ? measure_pieces<THREADS, X> : measure_pieces<SR_WARP, X>, grid,
                      dim3(THREADS), 0, sr_stream_of(backend), slice.stats, part, slice.first));
    SR_TRY((start_weights<X, N>(backend, gradient, d_out, norm, slice)));
    return with_type(gradient->d_x.dtype, [&](auto to) -> srnn_status {
        using D = typename decltype(to)::type;
        SR_CUDA(
            sr_launch(is_wide(norm) ? pieces_back<THREADS, X, N, D> : pieces_back<SR_WARP, X, N, D>,
                      grid, dim3(THREADS), 0, sr_stream_of(backend), gradient->d_x, d_out, part,
                      slice.stats, slice.first, gradient->adds));
        return SRNN_OK;
    });
}

/* Half of the workspace for statistics, half for parts. */
static norm_slice slice_of(sr_backend *backend, const sr_norm *norm, int64_t first) {
    const int64_t half = sr_workspace_floats(backend) / 2;
    norm_slice s = {};
    s.stats = (piece_stats *)(void *)sr_workspace_of(backend);
    s.parts = sr_workspace_of(backend) + half;
    s.first = first;
    s.rows = sr_minimum(sr_maximum(1, half / (2 * norm->groups)), norm->x.rows - first);
    s.weights = norm->own_weights ? norm->groups * norm->C : norm->C;
    const int64_t most =
        sr_maximum(1, sr_minimum(sr_pieces(s.rows, PART_ROWS), half / (2 * s.weights)));
    s.part_rows = sr_pieces(s.rows, most);
    s.part_count = sr_pieces(s.rows, s.part_rows);
    return s;
}

srnn_status sr_cuda_norm_backward(sr_backend *backend, const sr_norm_gradient *gradient,
                                  sr_matrix d_out, const sr_norm *norm) {
    for (int64_t first = 0; first < norm->x.rows;) {
        const norm_slice slice = slice_of(backend, norm, first);
        SR_TRY(with_type(norm->x.dtype, [&](auto from) {
            using X = typename decltype(from)::type;
            return with_type(d_out.dtype, [&](auto out) {
                return slice_back<X, typename decltype(out)::type>(backend, gradient, d_out, norm,
                                                                   slice);
            });
        }));
        first += slice.rows;
    }
    return SRNN_OK;
}
