/* prologue.cu: prologue: running sums, features and factors before the core; and epilogue of its
 * backward: their gradients. */
#include "attention/cuda/shared/prologue.h"

#include "attention/cuda/shared/prologue_rows.h"
#include "attention/cuda/shared/sums.h"
#include "equation/facts.h"

/* ---- running sums along a document, one warp per head ---- */

/* A Sum defines the terms, the direction, where the sum before and with each term is stored, and
 * where a recurrent state keeps the sum of past tokens (NULL: nowhere). */

/* z + dt_bias of a token. */
template <class N>
SR_DEVICE double decay_number(const sr_attention_view<N> &call, int b, int h, int t) {
    return (double)to_float(*call.decay.at(b, h, t)) + (double)gate_bias(call.gate, h, 0);
}

/* C of all tokens: with the token's own gate, or, if learned, without. */
template <class N> struct decay_sum {
    static constexpr bool reverse = false;
    SR_DEVICE static double term(const sr_attention_view<N> &call, int b, int h, int t) {
        return gate_logarithm(call.gate, h, decay_number(call, b, h, t));
    }
    SR_DEVICE static void take(const sr_attention_view<N> &call, int b, int h, int t, double before,
                               double with) {
        call.scratch.decay[call.row_index(call.Hkv, b, h, t)] =
            call.gate.decay == SRNN_DECAY_LEARNED ? before : with;
    }
    SR_DEVICE static double *kept(const sr_attention_view<N> &call, int sequence) {
        return call.carry.position ? call.carry.decay + sequence : nullptr;
    }
};

template <class N> struct cumulative_sum {
    static constexpr bool reverse = false;
    SR_DEVICE static double term(const sr_attention_view<N> &call, int b, int h, int t) {
        return exp((double)to_float(*call.output_gate.at(b, h, t)));
    }
    SR_DEVICE static void take(const sr_attention_view<N> &call, int b, int h, int t, double,
                               double with) {
        call.scratch.cumulative[call.row_index(call.H, b, h, t)] = with;
    }
    SR_DEVICE static double *kept(const sr_attention_view<N> &call, int sequence) {
        return call.carry.position ? call.carry.cumulative + sequence : nullptr;
    }
};

/* dC_i = the weights of row i times their gradients, less those of column i; a gate acts on all
 * later C, and except for learned ones on its own. With a row sum the row's part is 0 but for
 * rounding; it is not left out, since what rounding makes of it cancels here: a gradient that
 * should not reach beyond a strong gate does not. */
template <class N> struct decay_gradient {
    static constexpr bool reverse = true;
    SR_DEVICE static double term(const sr_attention_view<N> &call, int b, int h, int t) {
        double sum = -(double)call.scratch.column_dot[call.row_index(call.Hkv, b, h, t)];
        for (int g = 0; g < call.group; g++)
            sum += (double)call.scratch.row_dot[call.row_index(call.H, b, h * call.group + g, t)];
        return sum;
    }
    SR_DEVICE static void take(const sr_attention_view<N> &call, int b, int h, int t, double before,
                               double with) {
        const double own = call.gate.decay == SRNN_DECAY_LEARNED ? before : with;
        const double slope = gate_slope(call.gate, h, decay_number(call, b, h, t));
        if (call.d_decay.data)
            store_number(call.d_decay.at(b, h, t), (float)(slope == 0 ? 0 : own * slope));
        call.scratch.d_gate[call.row_index(call.Hkv, b, h, t)] = own;
    }
    SR_DEVICE static double *kept(const sr_attention_view<N> &, int) {
        return nullptr;
    }
};

/* The output gate acts on its own and all later sums. */
template <class N> struct cumulative_gradient {
    static constexpr bool reverse = true;
    SR_DEVICE static double term(const sr_attention_view<N> &call, int b, int h, int t) {
        return (double)call.scratch.d_cumulative[call.row_index(call.H, b, h, t)];
    }
    SR_DEVICE static void take(const sr_attention_view<N> &call, int b, int h, int t, double,
                               double with) {
        N *const gradient = call.d_output_gate.at(b, h, t);
        const double gate = exp((double)to_float(*call.output_gate.at(b, h, t)));
        store_number(gradient, (float)((double)to_float(*gradient) + gate * with));
    }
    SR_DEVICE static double *kept(const sr_attention_view<N> &, int) {
        return nullptr;
    }
};

/* A block owns one head of one batch row and walks its T positions, forwards or backwards, THREADS
 * at a time: each thread reads one term, global -> register, a segmented scan over the lanes by
 * shuffles (5 steps, in double) restarts the sum at each document, the sums of warps are added in
 * order through shared memory, and the last one is carried to the next round. Each thread stores
 * its own sum; a recurrent state gets the last one. */
template <class N, class Sum>
__global__ void running_sums(const sr_attention_view<N> call, int heads) {
    __shared__ double last[WARPS];
    __shared__ int ends[WARPS]; /* a document starts in the warp's part */
    const int lane = threadIdx.x % SR_WARP, warp = threadIdx.x / SR_WARP;
    const int sequence = (int)blockIdx.x;
    const int b = sequence / heads, h = sequence % heads, T = call.T;
    const int32_t *const first = call.document + (int64_t)b * T;
    double *const kept = Sum::kept(call, sequence);
    double carry = kept ? *kept : 0;
    for (int done = 0; done < T; done += THREADS) {
        const int n = done + (int)threadIdx.x;
        const bool inside = n < T;
        const int t = inside ? (Sum::reverse ? T - 1 - n : n) : 0;
        const bool start =
            inside && !kept && (Sum::reverse ? t == T - 1 || first[t + 1] == t + 1 : first[t] == t);
        double with = inside ? Sum::term(call, b, h, t) : 0;
        int closed = start; /* a document starts between the sum's first term and this one */
        for (int distance = 1; distance < SR_WARP; distance *= 2) {
            const double earlier = shuffle_up(with, distance);
            const int earlier_closed = shuffle_up(closed, distance);
            if (lane < distance)
                continue;
            if (!closed)
                with += earlier;
            closed |= earlier_closed;
        }
        if (lane == SR_WARP - 1) {
            last[warp] = with;
            ends[warp] = closed;
        }
        __syncthreads();
        double earlier = carry; /* the sum before this warp */
        for (int w = 0; w < WARPS; w++) {
            if (w == warp)
                earlier = carry;
            carry = ends[w] ? last[w] : carry + last[w];
        }
        __syncthreads(); /* all have read them */
        if (!closed)
            with += earlier;
        double before = shuffle_up(with, 1);
        if (lane == 0)
            before = earlier;
        if (inside)
            Sum::take(call, b, h, t, start ? 0 : before, with);
    }
    if (kept && threadIdx.x == 0)
        *kept = carry;
}

template <class Sum, class N>
static srnn_status start_sums(const sr_attention_view<N> &call, int heads, cudaStream_t stream) {
    SR_CUDA(sr_launch(running_sums<N, Sum>, dim3((unsigned)(call.B * heads)), dim3(THREADS), 0,
                      stream, call, heads));
    return SRNN_OK;
}

/* ---- windows ---- */

/* The first position a row sees, of its document and its window. A thread owns one row: reads its
 * document's start, stores the larger of both. */
template <class N> __global__ void fill_seen(const sr_attention_view<N> call) {
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n < (int64_t)call.B * call.T)
        call.scratch.seen[n] = max(call.document[n], (int)(n % call.T) - call.window + 1);
}

/* ---- norms across the heads ---- */

template <class N> struct across {
    sr_strided<const N> x;
    sr_strided<N> gradient; /* backward; data NULL: not wanted */
    float *inverse;         /* (B, T, D) */
    int heads, T, D;
    int64_t count; /* of channels: B T D */
};

/* inverse = 1 / norm across the heads. A thread owns one channel (b, t, d): it reads that channel
 * of every head from global memory, adds the squares in double and stores one number. */
template <class N> __global__ void inverse_across(const across<N> a) {
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n >= a.count)
        return;
    const int d = (int)(n % a.D), t = (int)(n / a.D % a.T), b = (int)(n / a.D / a.T);
    double square = 0;
    for (int h = 0; h < a.heads; h++) {
        const double x = (double)to_float(a.x.at(b, h, t)[d]);
        square += x * x;
    }
    a.inverse[n] = (float)(1.0 / fmax(sqrt(square), (double)SR_NORM_FLOOR));
}

/* In place: gradients of x from gradients of x / norm. A thread owns one channel (b, t, d) of all
 * heads: a first loop over heads reads x and gradient and sums <x, gradient> in double, a second
 * one rewrites the gradient in global memory. No other thread touches these numbers. */
template <class N> __global__ void across_backward(const across<N> a) {
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n >= a.count)
        return;
    const int d = (int)(n % a.D), t = (int)(n / a.D % a.T), b = (int)(n / a.D / a.T);
    const double inverse = (double)a.inverse[n];
    double along = 0; /* <x, gradient> / norm^2, 0 where the norm is at its floor */
    for (int h = 0; h < a.heads; h++)
        along += (double)to_float(a.x.at(b, h, t)[d]) * (double)to_float(a.gradient.at(b, h, t)[d]);
    along *= a.inverse[n] < 1 / SR_NORM_FLOOR ? inverse * inverse : 0;
    for (int h = 0; h < a.heads; h++) {
        N *const g = a.gradient.at(b, h, t) + d;
        const double x = (double)to_float(a.x.at(b, h, t)[d]);
        store_number(g, (float)(inverse * ((double)to_float(*g) - along * x)));
    }
}

template <class N> static across<N> across_queries(const sr_attention_view<N> &call) {
    return {call.raw_q, call.d_q, call.scratch.q_inverse,           call.H,
            call.T,     call.D,   (int64_t)call.B * call.T * call.D};
}

template <class N> static across<N> across_keys(const sr_attention_view<N> &call) {
    return {call.raw_k, call.d_k, call.scratch.k_inverse,           call.Hkv,
            call.T,     call.D,   (int64_t)call.B * call.T * call.D};
}

/* ---- features and factors ---- */

/* The row of this lane in a grid with one row per group of lanes. */
template <class Row> SR_DEVICE int64_t this_row() {
    return ((int64_t)blockIdx.x * WARPS + threadIdx.x / SR_WARP) * Row::rows + Row::row();
}

/* Feature map of q or k into the workspace. A warp owns Row::rows rows of (B, heads, T), a row
 * spread over Row::lanes lanes with 16 bytes each: global -> registers, the feature (sums over the
 * row by shuffles), registers -> global. Lanes past the last row compute it again but store
 * nothing. */
template <class N, int WIDTH>
__global__ void feature_rows(const sr_attention_view<N> call, bool keys) {
    using Row = sr_eight_row<WIDTH>;
    const int heads = keys ? call.Hkv : call.H;
    const int64_t rows = (int64_t)call.B * heads * call.T;
    const int64_t n = this_row<Row>();
    const bool inside = n < rows;
    const row_place at = place_of(inside ? n : rows - 1, heads, call.T);
    const float *inverse = keys ? call.scratch.k_inverse : call.scratch.q_inverse;
    float x[Row::count];
    row_load<Row>(x, (keys ? call.raw_k : call.raw_q).at(at.b, at.h, at.t), call.D);
    row_feature<Row>(x, call.choices.feature,
                     inverse ? inverse + ((int64_t)at.b * call.T + at.t) * call.D : nullptr,
                     call.D);
    if (inside)
        row_store<Row>((keys ? call.scratch.k : call.scratch.q).at(at.b, at.h, at.t), x, call.D);
}

/* v times its factor (value gate, learned power of the position) into the workspace. A warp owns
 * Row::rows rows of (B, Hkv, T): global -> registers, times the factor, registers -> global; the
 * row's first lane stores the factor for the backward pass. */
template <class N, int WIDTH> __global__ void value_rows(const sr_attention_view<N> call) {
    using Row = sr_eight_row<WIDTH>;
    const int64_t n = this_row<Row>();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const row_place at = place_of(n, call.Hkv, call.T);
    float x[Row::count], factor = 1;
    if (call.choices.value_gate)
        factor = sigmoid(to_float(*call.value_gate.at(at.b, at.h, at.t)));
    if (call.choices.normaliser == SRNN_NORMALISER_VALUE_POWER) {
        const int64_t position =
            call.position() + at.t - call.document[(int64_t)at.b * call.T + at.t] + 1;
        factor *= powf((float)position, -sigmoid(call.value_power[at.h]));
    }
    row_load<Row>(x, call.raw_v.at(at.b, at.h, at.t), call.Dv);
    row_multiply<Row>(x, factor);
    row_store<Row>(call.scratch.v.at(at.b, at.h, at.t), x, call.Dv);
    if (Row::column(0) == 0)
        call.scratch.value_factor[n] = factor;
}

/* Blocks whose warps cover `rows` rows of `width` numbers. */
static unsigned blocks_for_rows(int64_t rows, int width) {
    return blocks_for(rows, WARPS * (width <= 64    ? sr_eight_row<64>::rows
                                     : width <= 128 ? sr_eight_row<128>::rows
                                                    : sr_eight_row<256>::rows));
}

template <class N>
srnn_status sr_attention_prepare(const sr_attention_view<N> &call, cudaStream_t stream) {
    const sr_attention_scratch<N> &scratch = call.scratch;
    const int64_t rows = (int64_t)call.B * call.T;
    if (scratch.seen)
        SR_CUDA(sr_launch(fill_seen<N>, dim3(blocks_for(rows, THREADS)), dim3(THREADS), 0, stream,
                          call));
    if (scratch.decay)
        SR_TRY(start_sums<decay_sum<N>>(call, call.Hkv, stream));
    if (scratch.cumulative)
        SR_TRY(start_sums<cumulative_sum<N>>(call, call.H, stream));
    if (scratch.q_inverse) {
        const dim3 grid(blocks_for(rows * call.D, THREADS)), block(THREADS);
        SR_CUDA(sr_launch(inverse_across<N>, grid, block, 0, stream, across_queries(call)));
        SR_CUDA(sr_launch(inverse_across<N>, grid, block, 0, stream, across_keys(call)));
    }
    if (scratch.q.data) {
        START(feature_rows, call.D, blocks_for_rows(rows * call.H, call.D), call, false);
        START(feature_rows, call.D, blocks_for_rows(rows * call.Hkv, call.D), call, true);
    }
    if (scratch.v.data)
        START(value_rows, call.Dv, blocks_for_rows(rows * call.Hkv, call.Dv), call);
    return SRNN_OK;
}

/* ---- learned powers: deterministic sums ---- */

/* d_value_power: v_j is multiplied by j^-sigmoid(c). A block of 32 x 32 threads owns one KV head:
 * each thread adds every 1024-th row of (B, T) in double from global memory; the sums are added
 * over y through shared memory, then over x by shuffles, both in a fixed order, and thread (0, 0)
 * stores the result. */
template <class N> __global__ void value_power_backward(const sr_attention_view<N> call) {
    const int h = (int)blockIdx.x;
    const int64_t rows = (int64_t)call.B * call.T;
    double sum = 0;
    for (int64_t n = threadIdx.y * SR_WARP + threadIdx.x; n < rows; n += SR_WARP * SR_WARP) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        const double position = (double)(t - call.document[n] + 1);
        sum -= (double)call.scratch.value_dot[call.row_index(call.Hkv, b, h, t)] * log(position);
    }
    const double all = warp_sum(add_over_y(sum));
    const double c = 1.0 / (1.0 + exp(-(double)call.value_power[h]));
    if (threadIdx.x == 0 && threadIdx.y == 0)
        call.d_value_power[h] = (float)(all * c * (1.0 - c));
}

/* ---- gradients of what is learned for gates and sinks: sums over the rows (B, T) ---- */

struct sink_term {
    template <class N>
    SR_DEVICE static double of(const sr_attention_view<N> &call, int64_t n, int h) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        return (double)call.scratch.d_sink[call.row_index(call.H, b, h, t)];
    }
};

struct a_log_term {
    template <class N>
    SR_DEVICE static double of(const sr_attention_view<N> &call, int64_t n, int h) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        return call.scratch.d_gate[call.row_index(call.Hkv, b, h, t)] *
               gate_rate_slope(call.gate, h, decay_number(call, b, h, t));
    }
};

struct dt_bias_term {
    template <class N>
    SR_DEVICE static double of(const sr_attention_view<N> &call, int64_t n, int h) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        const double slope = gate_slope(call.gate, h, decay_number(call, b, h, t));
        return slope == 0 ? 0 : call.scratch.d_gate[call.row_index(call.Hkv, b, h, t)] * slope;
    }
};

template <class N>
static srnn_status decays_backward(const sr_attention_view<N> &call, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    double *const partial = call.scratch.partial;
    if (!call.d_decay.data && !call.gate.a_log)
        return SRNN_OK;
    SR_TRY(start_sums<decay_gradient<N>>(call, call.Hkv, stream));
    if (!call.gate.a_log)
        return SRNN_OK;
    SR_TRY(sum_rows<a_log_term>(call.d_a_log, call, partial, rows, call.Hkv, stream));
    return sum_rows<dt_bias_term>(call.d_dt_bias, call, partial, rows, call.Hkv, stream);
}

template <class N>
srnn_status sr_attention_inputs_backward(const sr_attention_view<N> &call, cudaStream_t stream) {
    const sr_attention_scratch<N> &scratch = call.scratch;
    if (scratch.decay)
        SR_TRY(decays_backward(call, stream));
    if (scratch.d_sink)
        SR_TRY(sum_rows<sink_term>(call.d_sinks, call, scratch.partial, (int64_t)call.B * call.T,
                                   call.H, stream));
    if (call.choices.cumulates && call.d_output_gate.data)
        SR_TRY(start_sums<cumulative_gradient<N>>(call, call.H, stream));
    if (scratch.q_inverse) {
        const dim3 grid(blocks_for((int64_t)call.B * call.T * call.D, THREADS)), block(THREADS);
        if (call.d_q.data)
            SR_CUDA(sr_launch(across_backward<N>, grid, block, 0, stream, across_queries(call)));
        if (call.d_k.data)
            SR_CUDA(sr_launch(across_backward<N>, grid, block, 0, stream, across_keys(call)));
    }
    if (call.choices.normaliser == SRNN_NORMALISER_VALUE_POWER && call.d_value_power)
        SR_CUDA(sr_launch(value_power_backward<N>, dim3((unsigned)call.Hkv), dim3(SR_WARP, SR_WARP),
                          0, stream, call));
    return SRNN_OK;
}

#define INSTANTIATE(N)                                                                     \
    template srnn_status sr_attention_prepare(const sr_attention_view<N> &, cudaStream_t); \
    template srnn_status sr_attention_inputs_backward(const sr_attention_view<N> &, cudaStream_t);
INSTANTIATE(float)
INSTANTIATE(sr_bf16)
