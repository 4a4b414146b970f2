/* one_token.cu: decode: a recurrent state of linear scores takes in one token in one kernel, from
 * the operands to numerators. */
#include "attention/cuda/axes/decays.h"
#include "attention/cuda/axes/features.h"
#include "attention/cuda/axes/walk.h"

enum { ONE_WARPS = 8, ONE_THREADS = ONE_WARPS * SR_WARP, ONE_FEATURES = 256 };

struct one_memory {
    float q[ONE_FEATURES], k[ONE_FEATURES], kept[ONE_FEATURES]; /* kept: e^a of a feature */
    float part[ONE_WARPS][SR_WARP];
    double square[ONE_WARPS];
    float beta, factor; /* of v */
};

/* Whether the kernel here computes it. */
bool sr_axes_takes_one(const sr_axes_call &call) {
    const srnn_attention *const a = &call.a;
    return call.T == 1 && sr_axes_walks_back(a) && !call.rotated && a->pool == 0 &&
           a->feature != SRNN_FEATURE_UNIT_HEADS && call.F <= ONE_FEATURES && !call.cumulates &&
           a->normaliser != SRNN_NORMALISER_VALUE_POWER;
}

/* The sum of a number of each thread, to all of them. */
SR_DEVICE double one_sum(one_memory *shared, double x) {
    x = warp_sum(x);
    __syncthreads(); /* no thread reads the sums before */
    if (axes_lane() == 0)
        shared->square[threadIdx.x / SR_WARP] = x;
    __syncthreads();
    double sum = 0;
    for (int n = 0; n < ONE_WARPS; n++)
        sum += shared->square[n];
    return sum;
}

/* The sum over warps of what each has for the column of a lane, to all of them. */
SR_DEVICE float one_column(one_memory *shared, float x) {
    __syncthreads(); /* no thread reads the sums before */
    shared->part[threadIdx.x / SR_WARP][axes_lane()] = x;
    __syncthreads();
    float sum = 0;
    for (int n = 0; n < ONE_WARPS; n++)
        sum += shared->part[n][axes_lane()];
    return sum;
}

/* Features of the row of q or k to shared memory; complete after a barrier. */
SR_DEVICE void one_features(float *to, one_memory *shared, const sr_axes_call &call,
                            const axes_source &source, axes_row at) {
    const int c = (int)threadIdx.x;
    const double x = c < call.D ? axes_raw(call, source, at, c) : 0;
    const double square = one_sum(shared, x * x);
    if (c < call.F)
        to[c] = (float)axes_feature(call, source, at, square, c);
}

/* C of the token, and of the tokens up to it, of one gate of a head. */
struct one_sums {
    double now, with;
};

SR_DEVICE one_sums one_sums_of(const sr_axes_call &call, int head, int c) {
    const int b = head / call.Hkv, h = head % call.Hkv;
    const double before = call.carry.decay[(int64_t)head * call.decays + c];
    const double with = before + gate_logarithm(call.gate, h, axes_decay_number(call, b, h, 0, c));
    return {call.a.decay == SRNN_DECAY_LEARNED ? before : with, with};
}

/* e^a of the head's features to shared memory; complete after a barrier. */
SR_DEVICE void one_gates(one_memory *shared, const sr_axes_call &call, const axes_state &state,
                         int head) {
    const int f = (int)threadIdx.x;
    if (f >= call.F)
        return;
    shared->kept[f] = 1;
    if (call.decays == 0 || call.position() == 0)
        return;
    const int c = call.decays == 1 ? 0 : f;
    const double reference = state.reference[(int64_t)head * call.decays + c];
    shared->kept[f] = (float)exp(one_sums_of(call, head, c).now - reference);
}

/* After all heads have read them: the sums of the state, and those that continue. A thread owns
 * one. */
__global__ void one_token_sums(const __grid_constant__ sr_axes_call call,
                               const __grid_constant__ axes_state state) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.decays)
        return;
    const one_sums sums = one_sums_of(call, (int)(n / call.decays), (int)(n % call.decays));
    state.reference[n] = sums.now;
    call.carry.decay[n] = sums.with;
}

/* Block (x, y) owns head x of keys and values and 32 columns of the values, or behind them the
 * column of the row sums; warp w has every 8th row of features from w on, lane l column l. Operands
 * global -> shared as features and gates; the state global -> registers, decayed; for the delta
 * rule what it knows of the key, summed over warps through shared memory; the state with the token
 * registers -> global; numerators summed over warps -> global. */
template <int ROWS>
__global__ void __launch_bounds__(ONE_THREADS, 1)
    one_token(const __grid_constant__ sr_axes_call call, const __grid_constant__ axes_state state,
              const __grid_constant__ axes_source queries,
              const __grid_constant__ axes_source keys) {
    __shared__ one_memory memory;
    one_memory *const shared = &memory;
    const int head = (int)blockIdx.x, b = head / call.Hkv, kv = head % call.Hkv;
    const int warp = (int)threadIdx.x / SR_WARP, lane = axes_lane();
    const int slices = (call.Dv + SR_WARP - 1) / SR_WARP;
    const bool ones = (int)blockIdx.y == slices;
    const int column = (int)blockIdx.y * SR_WARP + lane;
    const bool used = ones ? lane == 0 : column < call.Dv;
    float *const from =
        state.numbers + head * state.head + (ones ? state.features * call.Dv : (int64_t)column);
    const int stride = ones ? 1 : call.Dv;
    one_features(shared->k, shared, call, keys, {b, kv, 0});
    one_gates(shared, call, state, head);
    if (threadIdx.x == 0) {
        shared->factor = 1;
        if (call.a.value_gate == SRNN_VALUE_GATE_SIGMOID)
            shared->factor = (float)sr_sigmoid((double)call.in.value_gate.at(b, kv, 0, 0));
        if (call.a.value_gate == SRNN_VALUE_GATE_TIME_STEP)
            shared->factor = (float)sr_softplus(axes_decay_number(call, b, kv, 0, 0));
        const double z = call.delta ? (double)call.in.write_gate.at(b, kv, 0, 0) : 0;
        const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
        shared->beta = (float)(given ? z : call.write_range * sr_sigmoid(z));
    }
    __syncthreads(); /* keys and gates are there */
    float S[ROWS], known = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int f = r * ONE_WARPS + warp;
        S[r] = used && f < call.F ? from[(int64_t)f * stride] * shared->kept[f] : 0;
        known = fmaf(f < call.F ? shared->k[f] : 0, S[r], known);
    }
    float u = ones ? 1 : used ? shared->factor * call.in.v.at(b, kv, 0, column) : 0;
    if (call.delta && !ones)
        u = shared->beta * (u - one_column(shared, known));
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int f = r * ONE_WARPS + warp;
        S[r] = fmaf(f < call.F ? shared->k[f] : 0, u, S[r]);
        if (used && f < call.F)
            from[(int64_t)f * stride] = S[r];
    }
    for (int g = 0; g < call.group; g++) {
        const int h = kv * call.group + g;
        one_features(shared->q, shared, call, queries, {b, h, 0});
        __syncthreads(); /* queries are there */
        float y = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int f = r * ONE_WARPS + warp;
            y = fmaf(f < call.F ? shared->q[f] : 0, S[r], y);
        }
        y = one_column(shared, y);
        if (warp != 0 || !used)
            continue;
        if (ones)
            call.scratch.row_sum[b * call.H + h] = y;
        else
            call.scratch.numerator[((int64_t)b * call.H + h) * call.Dv + column] = y;
    }
}

srnn_status sr_axes_take_one(const sr_axes_call &call, const axes_state &state,
                             cudaStream_t stream) {
    const size_t rows = (size_t)call.B * (size_t)call.H;
    const unsigned slices = axes_blocks(call.Dv, SR_WARP) + (call.sums_rows ? 1 : 0);
    const dim3 grid((unsigned)(call.B * call.Hkv), slices), block(ONE_THREADS);
    if (!call.sums_rows)
        SR_CUDA(cudaMemsetAsync(call.scratch.row_sum, 0, rows * sizeof(float), stream));
    SR_CUDA(cudaMemsetAsync(call.scratch.maximum, 0, rows * sizeof(float), stream));
    const auto kernel = call.F <= 64 ? one_token<8> : call.F <= 128 ? one_token<16> : one_token<32>;
    SR_CUDA(sr_launch(kernel, grid, block, 0, stream, call, state, sr_axes_queries(call),
                      sr_axes_keys(call)));
    if (call.decays > 0)
        AXES_START(one_token_sums, (int64_t)call.B * call.Hkv * call.decays, call, state);
    return SRNN_OK;
}
