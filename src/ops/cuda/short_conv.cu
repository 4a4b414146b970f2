/* short_conv.cu: depthwise causal convolution over the tokens of a document, then SiLU.
 *
 * A block owns some channels of some rows; a thread W channels of every blockDim.y-th of these
 * rows, or of runs of them. Earlier tokens come from the caches. Bytes per number in bf16 (twice
 * that in float): forward 2 + 2; backward reads x and d_out, writes d_x: 6; with more than four
 * taps it reads d_out twice and rewrites it: 10. */
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

/* ---- few taps: threads walk runs of tokens ---- */

/* Taps that a thread has in registers, and tokens that are loaded together; tokens of a run. */
enum { FEW_TAPS = 4, RUN = 32, FEW_WIDTH = 4 };
static_assert(RUN % FEW_TAPS == 0, "runs begin where groups of tokens do");

/* A run of tokens of a batch row, from .. past-1, and the channels of a thread. */
template <class N, int W> struct conv_run {
    const sr_short_conv &conv;
    const sr_matrix &d_out; /* forward: out */
    int batch, c, from, past;

    SR_DEVICE int64_t row(int token) const {
        return batch * conv.T + token;
    }
    /* How many tokens before itself a token reads. */
    SR_DEVICE int reads(int token) const {
        const int before = min(conv.positions[row(token)], conv.width - 1);
        return conv.history ? before : min(before, token);
    }
    SR_DEVICE void load_d(N (&to)[W], int token) const {
        if (token >= from && token < (int)conv.T)
            copy(to, (const N *)d_out.data + row(token) * d_out.stride + c);
    }
    /* Of x, or of the history; else `to` stays, and nothing reads it. */
    SR_DEVICE void load_x(N (&to)[W], int token) const {
        const int past_tokens = conv.width - 1;
        if (token >= (int)conv.T)
            return;
        if (token >= 0)
            copy(to, (const N *)conv.x.data + row(token) * conv.x.stride + c);
        else if (conv.history && token >= -past_tokens)
            copy(to, (const N *)conv.history +
                         ((int64_t)batch * past_tokens + past_tokens + token) * conv.x.columns + c);
    }

  private:
    static SR_DEVICE void copy(N (&to)[W], const N *from) {
        if constexpr (W == 1)
            to[0] = *from;
        else if constexpr (sizeof(N) * W == 16)
            *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
        else
            *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(from);
    }
};

/* Taps in registers, the bias in shared memory, since registers are scarce; and inputs of the
 * tokens that the current one reads: token t is in slot t % FEW_TAPS. */
template <class N, int W> struct conv_window {
    const float *bias;
    float taps[FEW_TAPS][W], x[FEW_TAPS][W];

    SR_DEVICE void open(conv_taps<W> from, int width) {
        bias = from.at(width);
#pragma unroll
        for (int j = 0; j < FEW_TAPS; j++)
            if (j < width)
                load_numbers<W>(taps[j], from.at(j));
    }
    SR_DEVICE void put(int i, const N (&numbers)[W]) {
#pragma unroll
        for (int k = 0; k < W; k++)
            x[i][k] = to_float(numbers[k]);
    }
    /* Slot of the token j before that of slot i. */
    static SR_DEVICE constexpr int slot(int i, int j) {
        return (i - j + FEW_TAPS) % FEW_TAPS;
    }
    /* z = the convolution of the token in slot i, before SiLU. */
    SR_DEVICE void convolve(float (&z)[W], int i, int reads) const {
        load_numbers<W>(z, bias);
#pragma unroll
        for (int k = 0; k < W; k++)
            z[k] += taps[0][k] * x[i][k];
#pragma unroll
        for (int j = 1; j < FEW_TAPS; j++)
            if (j <= reads)
#pragma unroll
                for (int k = 0; k < W; k++)
                    z[k] += taps[j][k] * x[slot(i, j)][k];
    }
};

/* Runs of a batch row; and run n of all. */
SR_BOTH int64_t runs_of_row(const sr_short_conv &conv) {
    return (conv.T + RUN - 1) / RUN;
}
template <class N, int W>
SR_DEVICE conv_run<N, W> conv_run_of(const sr_short_conv &conv, const sr_matrix &out, int n) {
    const int of_row = (int)runs_of_row(conv), batch = n / of_row,
              from = (n - batch * of_row) * RUN;
    return {conv, out, batch, (int)first_channel<W>(), from, min(from + RUN, (int)conv.T)};
}

/* Block (x, y) owns a group of runs, a warp one of them, and 32 W channels, a thread W. Taps go
 * global -> shared, one barrier, -> registers; each thread walks its run, x global -> registers,
 * loaded FEW_TAPS tokens ahead, applies SiLU and stores. */
template <class N, int W>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE, 2)
    conv_forward_runs(const sr_matrix out, const sr_short_conv conv) {
    SR_SHARED(float, shared);
    const conv_taps<W> taps = {shared};
    const int runs = (int)(out.rows / conv.T * runs_of_row(conv));
    const int n = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    conv_window<N, W> window;
    load_taps<W>(taps, conv);
    if (n >= runs || first_channel<W>() >= out.columns)
        return;
    window.open(taps, conv.width);
    const conv_run<N, W> run = conv_run_of<N, W>(conv, out, n);
    N x[FEW_TAPS][W] = {};
#pragma unroll
    for (int i = 0; i < FEW_TAPS; i++) {
        N before[W] = {};
        run.load_x(before, run.from - FEW_TAPS + i);
        window.put(i, before);
        run.load_x(x[i], run.from + i);
    }
    for (int begin = run.from; begin < run.past; begin += FEW_TAPS)
#pragma unroll
        for (int i = 0; i < FEW_TAPS; i++) {
            const int token = begin + i;
            if (token >= run.past)
                break;
            float z[W];
            window.put(i, x[i]);
            run.load_x(x[i], token + FEW_TAPS);
            window.convolve(z, i, run.reads(token));
#pragma unroll
            for (int k = 0; k < W; k++)
                z[k] *= conv.plain ? 1.0f : sigmoid_for<N>(z[k]);
            store_numbers<W>((N *)out.data + run.row(token) * out.stride + run.c, z);
        }
}

/* ---- backward ---- */

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
 * blockDim.y-th row. Taps go global -> shared; each thread recomputes the convolution, rewrites
 * its numbers of d_out in global memory and adds d x of each tap to its own sums in shared memory.
 * After a barrier the block adds its threads' sums in order and stores one part, for add_parts. */
template <class N, int W>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE)
    conv_back_to_weights(const conv_parts parts, const sr_matrix d_out, const sr_short_conv conv) {
    SR_SHARED(float, shared);
    constexpr int channels = conv_taps<W>::channels;
    const int block_numbers = (conv.width + 1) * channels;
    const conv_taps<W> taps = {shared};
    const conv_taps<W> own = {shared + (1 + threadIdx.y) * block_numbers};
    const int64_t c = first_channel<W>(), first = (int64_t)blockIdx.x * parts.rows;
    const int64_t end = min(first + parts.rows, d_out.rows);
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

/* ---- backward with few taps, in one kernel ---- */

/* What a thread has of a run: numbers of token t are in slot t % FEW_TAPS. */
template <class N, int W> struct conv_back : conv_window<N, W> {
    float d[FEW_TAPS][W];            /* gradients before SiLU of it and of those after it */
    int reach[FEW_TAPS];             /* how far back those read within the batch row; -1: nothing */
    float sums[FEW_TAPS][W], sum[W]; /* gradients of taps and bias */

    SR_DEVICE void open(conv_taps<W> from, int width) {
        conv_window<N, W>::open(from, width);
#pragma unroll
        for (int k = 0; k < W; k++) {
            sum[k] = 0;
#pragma unroll
            for (int j = 0; j < FEW_TAPS; j++)
                sums[j][k] = 0;
        }
    }

    /* The gradient before SiLU of a token in slot i, which reads `reads` tokens before itself; what
     * taps and bias get of it, where the run has the token. */
    SR_DEVICE void differentiate(int i, const N (&d_out)[W], int reads, bool plain, bool own) {
        const auto &inputs = this->x;
        float z[W];
        this->convolve(z, i, reads);
#pragma unroll
        for (int k = 0; k < W; k++) {
            const float s = sigmoid_for<N>(z[k]), slope = s * (1.0f + z[k] * (1.0f - s));
            d[i][k] = to_float(d_out[k]) * (plain ? 1.0f : slope);
        }
        if (!own)
            return;
#pragma unroll
        for (int k = 0; k < W; k++) {
            sum[k] += d[i][k];
            sums[0][k] += d[i][k] * inputs[i][k];
        }
#pragma unroll
        for (int j = 1; j < FEW_TAPS; j++)
            if (j <= reads)
#pragma unroll
                for (int k = 0; k < W; k++)
                    sums[j][k] += d[i][k] * inputs[this->slot(i, j)][k];
    }

    /* d_x of the token in slot i. */
    SR_DEVICE void input_gradient(float (&d_x)[W], int i) const {
#pragma unroll
        for (int k = 0; k < W; k++)
            d_x[k] = this->taps[0][k] * d[i][k];
#pragma unroll
        for (int j = 1; j < FEW_TAPS; j++)
            if (reach[(i + j) % FEW_TAPS] >= j)
#pragma unroll
                for (int k = 0; k < W; k++)
                    d_x[k] += this->taps[j][k] * d[(i + j) % FEW_TAPS][k];
    }
};

/* Walks a run from its end; the gradients of the tokens after it that read it are found again. */
template <class N, int W>
SR_DEVICE void walk_run(conv_back<N, W> &back, const conv_run<N, W> &run, const sr_matrix &d_x) {
    const sr_short_conv &conv = run.conv;
    const int T = (int)conv.T, last = conv.width - 1;
    N d_out[FEW_TAPS][W] = {}, x[FEW_TAPS][W] = {};
    const int top = (run.past + FEW_TAPS - 1) / FEW_TAPS * FEW_TAPS;
#pragma unroll
    for (int i = 0; i < FEW_TAPS; i++) {
        N own[W] = {};
        run.load_x(own, top + i);
        run.load_x(x[i], top - FEW_TAPS + i);
        run.load_d(d_out[i], top + i);
        back.reach[i] = -1;
        back.put(i, own);
    }
    for (int begin = top; begin >= run.from; begin -= FEW_TAPS) {
#pragma unroll
        for (int i = FEW_TAPS - 1; i >= 0; i--) {
            const int token = begin + i;
            const bool own = token < run.past;
            if (token < T && token < run.past + last) {
                const int reads = run.reads(token);
                back.reach[i] = min(reads, token);
                back.differentiate(i, d_out[i], reads, conv.plain, own);
            }
            if (own) {
                float d[W];
                back.input_gradient(d, i);
                store_numbers<W>((N *)d_x.data + run.row(token) * d_x.stride + run.c, d);
                if (conv.history && token < last) /* for conv_back_to_history */
                    store_numbers<W>((N *)run.d_out.data + run.row(token) * run.d_out.stride +
                                         run.c,
                                     back.d[i]);
            }
            back.put(i, x[i]); /* token begin + i - FEW_TAPS takes the slot */
            run.load_x(x[i], token - 2 * FEW_TAPS);
            run.load_d(d_out[i], token - FEW_TAPS);
        }
    }
}

/* d_x, and sums for the gradients of taps and bias, at most FEW_TAPS taps. Block (x, y) owns every
 * gridDim.x-th group of runs, a warp one of each, and 32 W channels, a thread W. Taps go global ->
 * shared, one barrier, -> registers; each thread walks its runs from their ends, x and d_out global
 * -> registers, loaded FEW_TAPS tokens ahead, d_x registers -> global. Of d_out only tokens that
 * may read a history become the gradient before SiLU; no other run reads those. After a barrier the
 * block adds its threads' sums in order and stores one part, for add_parts. */
template <class N, int W>
static __global__ void __launch_bounds__(SR_WARP *ROWS_AT_ONCE, sizeof(N) == 2 ? 2 : 1)
    conv_back_runs(const sr_matrix d_x, const conv_parts parts, const sr_matrix d_out,
                   const sr_short_conv conv) {
    SR_SHARED(float, shared);
    const int block_numbers = (conv.width + 1) * conv_taps<W>::channels;
    const conv_taps<W> taps = {shared};
    const conv_taps<W> own = {shared + (1 + threadIdx.y) * block_numbers};
    const int runs = (int)(d_x.rows / conv.T * runs_of_row(conv));
    conv_back<N, W> back;
    load_taps<W>(taps, conv);
    back.open(taps, conv.width);
    if (first_channel<W>() < d_x.columns)
        for (int n = (int)(blockIdx.x * blockDim.y + threadIdx.y); n < runs;
             n += (int)(gridDim.x * blockDim.y))
            walk_run<N, W>(back, conv_run_of<N, W>(conv, d_out, n), d_x);
#pragma unroll
    for (int j = 0; j < FEW_TAPS; j++)
        if (j < conv.width)
            store_numbers<W>(own.at(j), back.sums[j]);
    store_numbers<W>(own.at(conv.width), back.sum);
    __syncthreads();
    write_parts<W>(parts, shared + block_numbers, conv);
}

/* ---- states ---- */

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
        const int64_t runs = out.rows / conv->T * runs_of_row(*conv);
        if (conv->width <= FEW_TAPS)
            SR_CUDA(sr_launch(conv_forward_runs<typename A::N, A::W>,
                              dim3((unsigned)sr_pieces(runs, ROWS_AT_ONCE),
                                   (unsigned)sr_pieces(out.columns, SR_WARP * A::W)),
                              dim3(SR_WARP, ROWS_AT_ONCE), tap_bytes(conv, A::W),
                              sr_stream_of(backend), out, *conv));
        else
            SR_CUDA(sr_launch(conv_forward<typename A::N, A::W>,
                              conv_grid(conv, FORWARD_ROWS, A::W), dim3(SR_WARP, ROWS_AT_ONCE),
                              tap_bytes(conv, A::W), sr_stream_of(backend), out, *conv));
        return SRNN_OK;
    });
}

/* Parts of the sums over rows: one for each block of rows. */
static conv_parts parts_of(sr_backend *backend, const sr_short_conv *conv, int64_t blocks,
                           int64_t *count) {
    const int64_t C = conv->x.columns, rows = conv->x.rows, width = conv->width;
    const int64_t affordable = sr_maximum(1, sr_workspace_floats(backend) / (C * (width + 1)));
    const int64_t part_rows = sr_pieces(rows, sr_minimum(affordable, blocks));
    float *const workspace = sr_workspace_of(backend);
    *count = sr_pieces(rows, part_rows);
    return {workspace, workspace + *count * C * width, part_rows};
}

/* With few taps: one kernel. Eight parameters: the operands, and the places whose alignment
 * decides how they are read. */
static srnn_status back_few(sr_backend *backend, sr_matrix d_x, const conv_parts &parts,
                            int64_t count, sr_matrix d_out, const sr_short_conv *conv,
                            const sr_place *places, int place_count) {
    const int64_t C = conv->x.columns;
    return sr_with_access<FEW_WIDTH>(
        d_x.dtype, C, places, place_count, [&](auto access) -> srnn_status {
            using A = decltype(access);
            SR_CUDA(sr_launch(conv_back_runs<typename A::N, A::W>,
                              dim3((unsigned)count, (unsigned)sr_pieces(C, SR_WARP * A::W)),
                              dim3(SR_WARP, ROWS_AT_ONCE),
                              tap_bytes(conv, A::W) * (1 + ROWS_AT_ONCE), sr_stream_of(backend),
                              d_x, parts, d_out, *conv));
            return SRNN_OK;
        });
}

/* With more: two kernels. Seven parameters, as above. */
static srnn_status back_many(sr_backend *backend, sr_matrix d_x, const conv_parts &parts,
                             sr_matrix d_out, const sr_short_conv *conv, const sr_place *places,
                             int place_count) {
    return sr_with_access<8>(
        d_x.dtype, conv->x.columns, places, place_count, [&](auto access) -> srnn_status {
            using A = decltype(access);
            const size_t taps = tap_bytes(conv, A::W);
            const unsigned at_once =
                (unsigned)sr_maximum(1, sr_minimum(ROWS_AT_ONCE, (int64_t)(SHARED_BYTES / taps)));
            SR_CUDA(sr_launch(conv_back_to_weights<typename A::N, A::W>,
                              conv_grid(conv, parts.rows, A::W), dim3(SR_WARP, at_once),
                              taps * (1 + at_once), sr_stream_of(backend), parts, d_out, *conv));
            SR_CUDA(sr_launch(conv_back_to_inputs<typename A::N, A::W>,
                              conv_grid(conv, FORWARD_ROWS, A::W), dim3(SR_WARP, ROWS_AT_ONCE),
                              taps, sr_stream_of(backend), d_x, d_out, *conv));
            return SRNN_OK;
        });
}

srnn_status sr_cuda_short_conv_backward(sr_backend *backend, sr_matrix d_x, float *d_weight,
                                        float *d_bias, sr_matrix d_out, const sr_short_conv *conv) {
    const sr_place places[] = {sr_place_of(d_x),
                               sr_place_of(d_out),
                               sr_place_of(conv->x),
                               {conv->history, conv->x.columns, conv->x.dtype}};
    const int64_t C = conv->x.columns, width = conv->width;
    const bool few = width <= FEW_TAPS;
    if (d_x.rows == 0)
        return SRNN_OK;
    const int64_t runs = d_x.rows / conv->T * runs_of_row(*conv);
    int64_t count;
    const conv_parts parts =
        parts_of(backend, conv,
                 few ? sr_pieces(runs, ROWS_AT_ONCE) : sr_pieces(d_x.rows, BACK_ROWS), &count);
    SR_TRY(few ? back_few(backend, d_x, parts, count, d_out, conv, places, 4)
               : back_many(backend, d_x, parts, d_out, conv, places, 4));
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
