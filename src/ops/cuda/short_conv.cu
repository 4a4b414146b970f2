/* short_conv.cu: depthwise causal convolution over the tokens of a document, then SiLU.
 *
 * A block owns some channels of some rows; a thread W channels of every blockDim.y-th of these
 * rows. Earlier tokens come from the caches. Bytes per number in bf16 (twice that in float):
 * forward 2 + 2; backward reads x, d_out and d_out again, writes d_out and d_x: 10. */
#include "ops/cuda/elements.h"

enum { FORWARD_ROWS = 64, BACK_ROWS = 256, ROWS_AT_ONCE = 8, SHARED_BYTES = 64 * 1024 };

/* The block's taps, transposed so that a tap's channels are neighbours: taps[j] belongs to the
 * token j before; then, as taps[width], the bias. */
template <int W> struct conv_taps {
    static constexpr int channels = SR_WARP * W;
    float *numbers; /* (width + 1, channels) */

    SR_DEVICE float *at(int j) const {
        return numbers + j * channels + threadIdx.x * W;
    }
};

template <int W> SR_DEVICE int64_t first_channel() {
    return ((int64_t)blockIdx.y * SR_WARP + threadIdx.x) * W;
}

template <int W> SR_DEVICE void load_taps(conv_taps<W> taps, const sr_short_conv &conv) {
    const int64_t first = (int64_t)blockIdx.y * taps.channels;
    const int thread = threadIdx.y * SR_WARP + threadIdx.x, width = conv.width;
    const int threads = (int)blockDim.y * SR_WARP;
    for (int i = thread; i < taps.channels * width; i += threads) {
        const int c = i / width, tap = i - c * width;
        if (first + c < conv.x.columns)
            taps.numbers[(width - 1 - tap) * taps.channels + c] = conv.weight[first * width + i];
    }
    for (int c = thread; c < taps.channels; c += threads)
        if (first + c < conv.x.columns)
            taps.numbers[width * taps.channels + c] = conv.bias ? conv.bias[first + c] : 0.0f;
    __syncthreads();
}

/* A row of x, in 32 bits: divisions by T would cost more than the convolution. */
struct conv_row {
    int64_t row;
    int batch, token, before; /* before: tokens of its document before it */
};

SR_DEVICE conv_row conv_row_of(const sr_short_conv &conv, int64_t row) {
    const uint32_t n = (uint32_t)row, T = (uint32_t)conv.T, batch = n / T;
    return {row, (int)batch, (int)(n - batch * T), conv.positions[row]};
}

/* Channel c of the token j before a row, or NULL if its document has none. */
template <class N>
SR_DEVICE const N *earlier(const sr_short_conv &conv, const conv_row &at, int j, int64_t c) {
    const int64_t batch = at.batch, row = at.row;
    const int token = at.token - j;
    if (at.before < j)
        return nullptr;
    if (token >= 0)
        return (const N *)conv.x.data + (row - j) * conv.x.stride + c;
    if (!conv.history)
        return nullptr;
    const int64_t past = conv.width - 1;
    return (const N *)conv.history + (batch * past + past + token) * conv.x.columns + c;
}

/* sum (W) = the convolution, before SiLU. */
template <class N, int W>
SR_DEVICE void convolve(float *sum, conv_taps<W> taps, const sr_short_conv &conv,
                        const conv_row &row) {
    load_numbers<W>(sum, taps.at(conv.width));
    for (int j = 0; j < conv.width; j++) {
        const N *from = earlier<N>(conv, row, j, first_channel<W>());
        if (!from)
            break;
        float x[W], tap[W];
        load_numbers<W>(x, from);
        load_numbers<W>(tap, taps.at(j));
#pragma unroll
        for (int k = 0; k < W; k++)
            sum[k] += tap[k] * x[k];
    }
}

/* Block (x, y) owns 64 rows and 32 W channels; thread (x, y) W channels of every 8th row. All
 * threads load the taps, global -> shared, one barrier; then each reads its token and up to width -
 * 1 earlier ones, global (cached) -> registers, sums, applies SiLU and stores. Rows are
 * independent. */
template <class N, int W>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE)
    conv_forward(const sr_matrix out, const sr_short_conv conv) {
    SR_SHARED(float, shared);
    const conv_taps<W> taps = {shared};
    const int64_t c = first_channel<W>(), first = (int64_t)blockIdx.x * FORWARD_ROWS;
    const int64_t end = min(first + FORWARD_ROWS, out.rows);
    load_taps<W>(taps, conv);
    if (c >= out.columns)
        return;
    for (int64_t row = first + threadIdx.y; row < end; row += blockDim.y) {
        float sum[W];
        convolve<N, W>(sum, taps, conv, conv_row_of(conv, row));
#pragma unroll
        for (int k = 0; k < W; k++)
            sum[k] *= conv.plain ? 1.0f : sigmoid_for<N>(sum[k]);
        store_numbers<W>((N *)out.data + row * out.stride + c, sum);
    }
}

/* Taps that a thread keeps its sums of in registers; of more, in shared memory. */
enum { REGISTER_TAPS = 4 };

/* The block's sums for its taps and bias: sums (blockDim.y, width + 1, channels); each thread adds
 * to its own. */
template <int W> SR_DEVICE void add_to_sums(float *sums, const float *d, const float *x) {
    float total[W];
    load_numbers<W>(total, sums);
#pragma unroll
    for (int k = 0; k < W; k++)
        total[k] += x ? d[k] * x[k] : d[k];
    store_numbers<W>(sums, total);
}

/* Where the partial gradients of weight and bias go: (parts, channels, width) and (parts,
 * channels). */
struct conv_parts {
    float *weight, *bias;
    int64_t rows; /* of a part */
};

/* Adds the sums of the threads of each channel, in order, into this block's part. */
template <int W>
SR_DEVICE void write_parts(const conv_parts &parts, const float *sums, const sr_short_conv &conv) {
    constexpr int channels = conv_taps<W>::channels;
    const int thread = threadIdx.y * SR_WARP + threadIdx.x, width = conv.width;
    const int64_t first = (int64_t)blockIdx.y * channels, C = conv.x.columns;
    for (int i = thread; i < (width + 1) * channels; i += (int)blockDim.y * SR_WARP) {
        const int j = i / channels, c = i % channels;
        if (first + c >= C)
            continue;
        float sum = 0;
        for (int y = 0; y < (int)blockDim.y; y++)
            sum += sums[y * (width + 1) * channels + i];
        if (j == width)
            parts.bias[blockIdx.x * C + first + c] = sum;
        else
            parts.weight[(blockIdx.x * C + first + c) * width + width - 1 - j] = sum;
    }
}

/* Turns d_out into the gradient before SiLU, in place, and sums the gradients of taps and bias.
 * Block (x, y) owns the rows of part x and 32 W channels; a thread W channels of every
 * blockDim.y-th row. Taps go global -> shared; each thread recomputes the convolution, rewrites its
 * numbers of d_out in global memory and adds d x of each tap to its own sums, in registers where
 * FEW (at most REGISTER_TAPS), else in shared memory. After a barrier the block adds its threads'
 * sums in order and stores one part, for add_parts. */
template <class N, int W, bool FEW>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE)
    conv_back_to_weights(const conv_parts parts, const sr_matrix d_out, const sr_short_conv conv) {
    SR_SHARED(float, shared);
    constexpr int channels = conv_taps<W>::channels;
    const int block_numbers = (conv.width + 1) * channels;
    const conv_taps<W> taps = {shared};
    const conv_taps<W> own = {shared + (1 + threadIdx.y) * block_numbers};
    const int64_t c = first_channel<W>(), first = (int64_t)blockIdx.x * parts.rows;
    const int64_t end = min(first + parts.rows, d_out.rows);
    float sums[FEW ? REGISTER_TAPS + 1 : 1][W] = {}; /* the last: of the bias */
    for (int i = threadIdx.y * SR_WARP + threadIdx.x; i < (int)blockDim.y * block_numbers;
         i += (int)blockDim.y * SR_WARP)
        shared[block_numbers + i] = 0;
    load_taps<W>(taps, conv);
    for (int64_t row = first + threadIdx.y; c < d_out.columns && row < end; row += blockDim.y) {
        float before[W], d[W];
        N *at = (N *)d_out.data + row * d_out.stride + c;
        const conv_row own_row = conv_row_of(conv, row);
        convolve<N, W>(before, taps, conv, own_row);
        load_numbers<W>(d, at);
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float s = sigmoid_for<N>(before[k]);
            d[k] *= conv.plain ? 1.0f : s * (1.0f + before[k] * (1.0f - s));
        }
        store_numbers<W>(at, d);
        if constexpr (FEW) {
#pragma unroll
            for (int k = 0; k < W; k++)
                sums[REGISTER_TAPS][k] += d[k];
#pragma unroll
            for (int j = 0; j < REGISTER_TAPS; j++) {
                const N *from = j < conv.width ? earlier<N>(conv, own_row, j, c) : nullptr;
                if (!from)
                    break;
                float x[W];
                load_numbers<W>(x, from);
#pragma unroll
                for (int k = 0; k < W; k++)
                    sums[j][k] += d[k] * x[k];
            }
        } else {
            add_to_sums<W>(own.at(conv.width), d, nullptr);
            for (int j = 0; j < conv.width; j++) {
                const N *from = earlier<N>(conv, own_row, j, c);
                if (!from)
                    break;
                float x[W];
                load_numbers<W>(x, from);
                add_to_sums<W>(own.at(j), d, x);
            }
        }
    }
    if constexpr (FEW) {
        __syncthreads(); /* the sums in shared memory are zero */
#pragma unroll
        for (int j = 0; j < REGISTER_TAPS; j++)
            if (j < conv.width)
                store_numbers<W>(own.at(j), sums[j]);
        store_numbers<W>(own.at(conv.width), sums[REGISTER_TAPS]);
    }
    __syncthreads();
    write_parts<W>(parts, shared + block_numbers, conv);
}

/* d_x from d_out, which is already the gradient before SiLU. Block (x, y) owns 64 rows and 32 W
 * channels; taps go global -> shared, one barrier; each thread reads d_out of its token and of up
 * to width - 1 later ones of the document, global (cached) -> registers, and stores d_x. Rows are
 * independent; runs after conv_back_to_weights. */
template <class N, int W>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE)
    conv_back_to_inputs(const sr_matrix d_x, const sr_matrix d_out, const sr_short_conv conv) {
    SR_SHARED(float, shared);
    const conv_taps<W> taps = {shared};
    const int64_t c = first_channel<W>(), first = (int64_t)blockIdx.x * FORWARD_ROWS;
    const int64_t end = min(first + FORWARD_ROWS, d_x.rows);
    load_taps<W>(taps, conv);
    if (c >= d_x.columns)
        return;
    for (int64_t row = first + threadIdx.y; row < end; row += blockDim.y) {
        /* tokens from here to the end of the batch row */
        const int after = (int)conv.T - conv_row_of(conv, row).token;
        float sum[W] = {0};
        for (int j = 0; j < conv.width && j < after; j++) {
            if (conv.positions[row + j] < j)
                break;
            float d[W], tap[W];
            load_numbers<W>(d, (const N *)d_out.data + (row + j) * d_out.stride + c);
            load_numbers<W>(tap, taps.at(j));
#pragma unroll
            for (int k = 0; k < W; k++)
                sum[k] += tap[k] * d[k];
        }
        store_numbers<W>((N *)d_x.data + row * d_x.stride + c, sum);
    }
}

/* The convolution state of a session: row i of a batch row's history is token T - (width - 1) + i.
 * A thread owns one channel of one history row and copies it, global -> global, from x or from the
 * old history. */
template <class N>
static __global__ void __launch_bounds__(256)
    keep_history(N *__restrict__ history, const sr_short_conv conv, int64_t rows) {
    const int64_t row = grid_row(), c = grid_item(), past = conv.width - 1;
    if (row >= rows || c >= conv.x.columns)
        return;
    const int64_t batch = row / past, token = conv.T - past + row % past;
    N x = from_float<N>(0);
    if (token >= 0)
        x = ((const N *)conv.x.data)[(batch * conv.T + token) * conv.x.stride + c];
    else if (conv.history)
        x = ((const N *)conv.history)[(batch * past + past + token) * conv.x.columns + c];
    history[row * conv.x.columns + c] = x;
}

/* The gradient of a history, from the d_out of conv_back_to_weights. A thread owns one channel
 * of one history row, which the first tokens of the batch row read, and adds their gradients in
 * order, global -> register -> global. */
template <class N>
static __global__ void __launch_bounds__(256)
    conv_back_to_history(N *__restrict__ d_history, const sr_matrix d_out, const sr_short_conv conv,
                         int64_t rows) {
    const int64_t row = grid_row(), c = grid_item(), past = conv.width - 1;
    if (row >= rows || c >= conv.x.columns)
        return;
    const int64_t batch = row / past, place = row % past;
    float sum = to_float(d_history[row * conv.x.columns + c]);
    for (int64_t token = 0; token <= place && token < conv.T; token++) {
        const int64_t at = batch * conv.T + token, back = token + past - place;
        if (conv.positions[at] >= back)
            sum += conv.weight[c * conv.width + past - back] *
                   to_float(((const N *)d_out.data)[at * d_out.stride + c]);
    }
    d_history[row * conv.x.columns + c] = from_float<N>(sum);
}

static size_t tap_bytes(const sr_short_conv *conv, int W) {
    return (size_t)(conv->width + 1) * SR_WARP * (size_t)W * sizeof(float);
}

static dim3 conv_grid(const sr_short_conv *conv, int64_t rows_of_block, int W) {
    return dim3((unsigned)sr_pieces(conv->x.rows, rows_of_block),
                (unsigned)sr_pieces(conv->x.columns, SR_WARP * W));
}

srnn_status sr_cuda_short_conv_forward(sr_backend *backend, sr_matrix out,
                                       const sr_short_conv *conv) {
    const sr_place places[] = {sr_place_of(out),
                               sr_place_of(conv->x),
                               {conv->history, conv->x.columns, conv->x.dtype}};
    if (out.rows == 0)
        return SRNN_OK;
    return sr_with_access<8>(out.dtype, out.columns, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(conv_forward<typename A::N, A::W>, conv_grid(conv, FORWARD_ROWS, A::W),
                          dim3(SR_WARP, ROWS_AT_ONCE), tap_bytes(conv, A::W), sr_stream_of(backend),
                          out, *conv));
        return SRNN_OK;
    });
}

/* The two kernels of backward, W numbers at a time. */
template <class N, int W>
static srnn_status start_back(sr_backend *backend, sr_matrix d_x, const conv_parts &parts,
                              sr_matrix d_out, const sr_short_conv *conv) {
    const size_t taps = tap_bytes(conv, W);
    const unsigned at_once =
        (unsigned)sr_maximum(1, sr_minimum(ROWS_AT_ONCE, (int64_t)(SHARED_BYTES / taps)));
    SR_CUDA(sr_launch(conv->width <= REGISTER_TAPS ? conv_back_to_weights<N, W, true>
                                                   : conv_back_to_weights<N, W, false>,
                      conv_grid(conv, parts.rows, W), dim3(SR_WARP, at_once), taps * (1 + at_once),
                      sr_stream_of(backend), parts, d_out, *conv));
    SR_CUDA(sr_launch(conv_back_to_inputs<N, W>, conv_grid(conv, FORWARD_ROWS, W),
                      dim3(SR_WARP, ROWS_AT_ONCE), taps, sr_stream_of(backend), d_x, d_out, *conv));
    return SRNN_OK;
}

srnn_status sr_cuda_short_conv_backward(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                        float *d_bias, sr_matrix d_out, const sr_short_conv *conv) {
    const sr_place places[] = {sr_place_of(d_x),
                               sr_place_of(d_out),
                               sr_place_of(conv->x),
                               {conv->history, conv->x.columns, conv->x.dtype}};
    const int64_t C = conv->x.columns, width = conv->width;
    if (d_x.rows == 0)
        return SRNN_OK;
    const int64_t affordable = sr_maximum(1, sr_workspace_floats(backend) / (C * (width + 1)));
    const int64_t most = sr_minimum(affordable, sr_pieces(d_x.rows, BACK_ROWS));
    const int64_t part_rows = sr_pieces(d_x.rows, most), count = sr_pieces(d_x.rows, part_rows);
    float *workspace = sr_workspace_of(backend);
    const conv_parts parts = {workspace, workspace + count * C * width, part_rows};
    SR_TRY(sr_with_access<8>(d_x.dtype, C, places, 4, [&](auto access) -> srnn_status {
        using A = decltype(access);
        return start_back<typename A::N, A::W>(backend, d_x, parts, d_out, conv);
    }));
    SR_TRY(sr_cuda_add_parts(backend, d_weight, parts.weight, count, C * width));
    return d_bias ? sr_cuda_add_parts(backend, d_bias, parts.bias, count, C) : SRNN_OK;
}

srnn_status sr_cuda_short_conv_history(sr_backend *backend, void *history,
                                       const sr_short_conv *conv) {
    const int64_t rows = conv->x.rows / conv->T * (conv->width - 1);
    const sr_row_grid blocks = sr_row_grid_of(rows, conv->x.columns);
    if (rows == 0)
        return SRNN_OK;
    if (conv->x.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(keep_history<sr_bf16>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), (sr_bf16 *)history, *conv, rows));
    else
        SR_CUDA(sr_launch(keep_history<float>, blocks.grid, blocks.block, 0, sr_stream_of(backend),
                          (float *)history, *conv, rows));
    return SRNN_OK;
}

srnn_status sr_cuda_short_conv_history_backward(sr_backend *backend, void *d_history,
                                                sr_matrix d_out, const sr_short_conv *conv) {
    const int64_t rows = conv->x.rows / conv->T * (conv->width - 1);
    const sr_row_grid blocks = sr_row_grid_of(rows, conv->x.columns);
    if (rows == 0)
        return SRNN_OK;
    if (conv->x.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(conv_back_to_history<sr_bf16>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), (sr_bf16 *)d_history, d_out, *conv, rows));
    else
        SR_CUDA(sr_launch(conv_back_to_history<float>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), (float *)d_history, d_out, *conv, rows));
    return SRNN_OK;
}
