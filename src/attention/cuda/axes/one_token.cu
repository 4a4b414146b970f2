/* one_token.cu: decode: a recurrent state of linear scores takes in one token in one kernel, from
 * the operands to numerators. */
#include "attention/cuda/axes/decays.h"
#include "attention/cuda/axes/features.h"
#include "attention/cuda/axes/walk.h"

enum { ONE_WARPS = 8, ONE_THREADS = ONE_WARPS * SR_WARP, ONE_FEATURES = 256, ONE_GROUP = 4 };

struct one_memory {
    float q[ONE_FEATURES], k[ONE_FEATURES], kept[ONE_FEATURES]; /* kept: e^a of a feature */
    float part[ONE_WARPS][SR_WARP];
    double square[ONE_WARPS];
    float beta, factor; /* of v */
};

/* Whether the kernel here computes it. */
bool sr_axes_takes_one(const sr_axes_call &call) {
    const srnn_attention *const a = &call.a;
    return call.T == 1 && a->score == SRNN_SCORE_LINEAR && !call.rotated && a->pool == 0 &&
           (call.levels == 0 || call.group <= ONE_GROUP) && a->feature != SRNN_FEATURE_UNIT_HEADS &&
           call.F <= ONE_FEATURES && !call.cumulates &&
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

/* e^a of the head's features since a level was written, to shared memory; complete after a
 * barrier. */
SR_DEVICE void one_gates(float *kept, const sr_axes_call &call, const axes_state &state, int head,
                         int level) {
    const int f = (int)threadIdx.x;
    if (f >= call.F)
        return;
    kept[f] = 1;
    if (call.decays == 0 || call.position() == 0)
        return;
    const int c = call.decays == 1 ? 0 : f;
    const double reference =
        state.reference[((int64_t)head * state.levels + level) * call.decays + c];
    kept[f] = (float)exp(one_sums_of(call, head, c).now - reference);
}

/* The factor of v and the delta rule's beta, by one thread. */
SR_DEVICE void one_factors(one_memory *shared, const sr_axes_call &call, int b, int kv) {
    shared->factor = 1;
    if (call.a.value_gate == SRNN_VALUE_GATE_SIGMOID)
        shared->factor = (float)sr_sigmoid((double)call.in.value_gate.at(b, kv, 0, 0));
    if (call.a.value_gate == SRNN_VALUE_GATE_TIME_STEP)
        shared->factor = (float)sr_softplus(axes_decay_number(call, b, kv, 0, 0));
    const double z = call.delta ? (double)call.in.write_gate.at(b, kv, 0, 0) : 0;
    const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
    shared->beta = (float)(given ? z : call.write_range * sr_sigmoid(z));
}

/* ---- levels ---- */

/* Whether the level has numbers once the token at this place has come, and the one that takes in
 * those below it before. */
SR_DEVICE bool one_reads(int level, int64_t place) {
    return level == 0 || (place >> (level - 1) & 1) != 0;
}
SR_DEVICE int one_merged(const axes_state &state, int64_t place) {
    return place == 0 ? 0 : min(__ffs((int)place), state.levels - 1);
}

/* After all heads have read them: the sums of what was written, and those that continue. A thread
 * owns one gate of a head. */
__global__ void one_token_sums(const __grid_constant__ sr_axes_call call,
                               const __grid_constant__ axes_state state) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.decays)
        return;
    const one_sums sums = one_sums_of(call, (int)(n / call.decays), (int)(n % call.decays));
    double *const to =
        state.reference + n / call.decays * state.levels * call.decays + n % call.decays;
    const int64_t place = call.position();
    for (int level = 0; level < state.levels; level++)
        if (level == 0 || level == one_merged(state, place) ||
            (call.delta && one_reads(level, place)))
            to[level * call.decays] = sums.now;
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
    one_gates(shared->kept, call, state, head, 0);
    if (threadIdx.x == 0)
        one_factors(shared, call, b, kv);
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

struct one_levels_memory {
    one_memory one;
    float q[ONE_GROUP][ONE_FEATURES], level[ONE_GROUP][SR_LEVELS_MAX];
};

/* The same with levels. A block merges levels where a bit of the place is set first, from global
 * memory into registers and the level's place; of the others that hold something it reads the
 * numbers as they were written, times the gates since; with the delta rule it writes to all of
 * these. The lowest level is the token alone, and only written. */
template <int ROWS>
__global__ void __launch_bounds__(ONE_THREADS, 1)
    one_token_levels(const __grid_constant__ sr_axes_call call,
                     const __grid_constant__ axes_state state,
                     const __grid_constant__ axes_source queries,
                     const __grid_constant__ axes_source keys) {
    __shared__ one_levels_memory memory;
    one_memory *const shared = &memory.one;
    const int head = (int)blockIdx.x, b = head / call.Hkv, kv = head % call.Hkv;
    const int warp = (int)threadIdx.x / SR_WARP, lane = axes_lane();
    const int slices = (call.Dv + SR_WARP - 1) / SR_WARP;
    const bool ones = (int)blockIdx.y == slices, erases = call.delta && !ones;
    const int column = (int)blockIdx.y * SR_WARP + lane;
    const bool used = ones ? lane == 0 : column < call.Dv;
    const int stride = ones ? 1 : call.Dv;
    float *const numbers =
        state.numbers + head * state.head +
        (ones ? (int64_t)state.levels * state.features * call.Dv : (int64_t)column);
    const int64_t place = call.position();
    const int merged = one_merged(state, place);
    one_features(shared->k, shared, call, keys, {b, kv, 0});
    for (int g = 0; g < call.group; g++)
        one_features(memory.q[g], shared, call, queries, {b, kv * call.group + g, 0});
    for (int n = (int)threadIdx.x; n < call.group * call.levels; n += ONE_THREADS) {
        const int g = n / call.levels, level = n % call.levels, h = kv * call.group + g;
        memory.level[g][level] =
            (float)sr_softplus((double)call.in.level_scale[h * call.levels + level] *
                               (double)call.in.level_gate.at(b, h, 0, level));
    }
    if (threadIdx.x == 0)
        one_factors(shared, call, b, kv);
    __syncthreads(); /* rows, weights and factors are there */
    const float v = ones ? 1 : used ? shared->factor * call.in.v.at(b, kv, 0, column) : 0;
    float y[ONE_GROUP] = {};
    for (int level = state.levels - 1; level >= 0; level--) {
        if (!one_reads(level, place))
            continue;
        const bool merges = level > 0 && level == merged;
        const int past = merges ? merged : level == 0 ? 0 : level + 1;
        float S[ROWS] = {}, known = 0, u = level > 0 ? 0 : v;
        for (int from = merges ? 0 : level; from < past; from++) {
            __syncthreads(); /* no thread reads the gates before */
            one_gates(shared->kept, call, state, head, from);
            __syncthreads(); /* gates are there */
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int f = r * ONE_WARPS + warp;
                if (used && f < call.F)
                    S[r] =
                        fmaf(numbers[(from * state.features + f) * stride], shared->kept[f], S[r]);
            }
        }
        if (erases) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int f = r * ONE_WARPS + warp;
                known = fmaf(f < call.F ? shared->k[f] : 0, S[r], known);
            }
            u = shared->beta * (u - one_column(shared, known));
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int f = r * ONE_WARPS + warp;
            if (!used || f >= call.F)
                continue;
            S[r] = fmaf(shared->k[f], u, S[r]);
            if (level == 0 || merges || call.delta)
                numbers[(level * state.features + f) * stride] = S[r];
#pragma unroll
            for (int g = 0; g < ONE_GROUP; g++)
                if (g < call.group)
                    y[g] = fmaf(memory.level[g][level] * memory.q[g][f], S[r], y[g]);
        }
    }
#pragma unroll
    for (int g = 0; g < ONE_GROUP; g++) {
        if (g >= call.group)
            continue;
        const int h = kv * call.group + g;
        const float all = one_column(shared, y[g]);
        if (warp != 0 || !used)
            continue;
        if (ones)
            call.scratch.row_sum[b * call.H + h] = all;
        else
            call.scratch.numerator[((int64_t)b * call.H + h) * call.Dv + column] = all;
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
    const auto levels = call.F <= 64    ? one_token_levels<8>
                        : call.F <= 128 ? one_token_levels<16>
                                        : one_token_levels<32>;
    const auto plain = call.F <= 64 ? one_token<8> : call.F <= 128 ? one_token<16> : one_token<32>;
    const auto kernel = call.levels > 0 ? levels : plain;
    SR_CUDA(sr_launch(kernel, grid, block, 0, stream, call, state, sr_axes_queries(call),
                      sr_axes_keys(call)));
    if (call.decays > 0)
        AXES_START(one_token_sums, (int64_t)call.B * call.Hkv * call.decays, call, state);
    return SRNN_OK;
}
