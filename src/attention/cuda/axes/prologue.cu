/* prologue.cu: before the core: features of q and k, factors of v, running sums, averages. */
#include "attention/cuda/axes/decays.h"
#include "attention/cuda/axes/features.h"
#include "attention/cuda/axes/sums.h"

/* ---- running sums ---- */

/* C of all tokens: with the token's own gate, or, if learned, without. */
struct decay_sum {
    static constexpr bool reverse = false;
    SR_DEVICE static double term(const sr_axes_call &call, int b, int h, int t, int c) {
        return gate_logarithm(call.gate, h, axes_decay_number(call, b, h, t, c));
    }
    SR_DEVICE static void take(const sr_axes_call &call, int b, int h, int t, int c, double before,
                               double with) {
        call.scratch.decay[call.row(call.Hkv, b, h, t) * call.decays + c] =
            call.a.decay == SRNN_DECAY_LEARNED ? before : with;
    }
    SR_DEVICE static double *kept(const sr_axes_call &call, int64_t sequence) {
        return call.carry.position ? call.carry.decay + sequence : nullptr;
    }
};

struct cumulative_sum {
    static constexpr bool reverse = false;
    SR_DEVICE static double term(const sr_axes_call &call, int b, int h, int t, int) {
        return exp((double)call.in.output_gate.at(b, h, t, 0));
    }
    SR_DEVICE static void take(const sr_axes_call &call, int b, int h, int t, int, double,
                               double with) {
        call.scratch.cumulative[call.row(call.H, b, h, t)] = with;
    }
    SR_DEVICE static double *kept(const sr_axes_call &call, int64_t sequence) {
        return call.carry.position ? call.carry.cumulative + sequence : nullptr;
    }
};

/* Running averages of k and v. A thread owns one channel of one head and walks over the tokens in
 * order: gate and number global -> registers, the average registers -> global, and at the end into
 * the state. */
__global__ void average_rows(const __grid_constant__ sr_axes_call call) {
    const int width = call.D + call.Dv;
    const int64_t n = axes_thread(), head = n / width;
    if (head >= (int64_t)call.B * call.Hkv)
        return;
    const int column = (int)(n % width), b = (int)(head / call.Hkv), h = (int)(head % call.Hkv);
    const bool key = column < call.D;
    const int c = key ? column : column - call.D;
    double *const kept = call.carry.position ? call.carry.pool + n : nullptr;
    double average = kept ? *kept : 0;
    for (int t = 0; t < call.T; t++) {
        const double z = (double)call.in.pool_gate.at(b, h, t, c);
        const double x = key ? (double)call.in.k.at(b, call.shared_head(h), t, c)
                             : (double)call.in.v.at(b, h, t, c);
        if (call.place(b, t) % call.a.pool == 0)
            average = 0;
        average = sr_sigmoid(z) * average + sr_sigmoid(-z) * x;
        const int64_t row = call.row(call.Hkv, b, h, t);
        if (key)
            call.scratch.pooled_k[row * call.D + c] = (float)average;
        else
            call.scratch.pooled_v[row * call.Dv + c] = (float)average;
    }
    if (kept)
        *kept = average;
}

/* ---- what each position has by itself: a thread owns one number ---- */

/* Cosines and sines of channel pair n % half of the token that is n / half after the start. A
 * thread owns one pair: it computes the angle in double and stores both. */
__global__ void fill_angles(const __grid_constant__ sr_axes_call call) {
    const int half = call.D / 2;
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.T * half)
        return;
    const int64_t unit = call.a.position == SRNN_POSITION_ROPE_CHUNKS ? call.a.pool : 1;
    const double speed = pow(call.rope_theta, -2.0 * (double)(n % half) / call.D);
    const double angle = (double)((call.position() + n / half) / unit) * speed;
    call.scratch.angles[2 * n] = (float)axes_cosine(angle);
    call.scratch.angles[2 * n + 1] = (float)axes_sine(angle);
}

/* 1 / the norm of a channel over the heads. A thread owns channel d of one token: adds squares of
 * the heads in order, global -> registers, in double, and stores one number. */
__global__ void inverse_across(const __grid_constant__ sr_axes_call call, sr_axes_tensor x,
                               float *inverse, int heads) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.T * call.D)
        return;
    const int d = (int)(n % call.D), t = (int)(n / call.D % call.T), b = (int)(n / call.D / call.T);
    double square = 0;
    for (int h = 0; h < heads; h++) {
        const double number = (double)x.at(b, h, t, d);
        square += number * number;
    }
    inverse[n] = (float)(1.0 / fmax(sqrt(square), SR_AXES_NORM_FLOOR));
}

/* The factor of v and the delta rule's beta. A thread owns one token of a head: it reads the
 * gates' numbers and stores both. */
__global__ void token_factors(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    double factor = 1;
    switch (call.a.value_gate) {
    case SRNN_VALUE_GATE_OFF:
        break;
    case SRNN_VALUE_GATE_SIGMOID:
        factor = sr_sigmoid((double)call.in.value_gate.at(at.b, at.h, at.t, 0));
        break;
    case SRNN_VALUE_GATE_TIME_STEP:
        factor = sr_softplus(axes_decay_number(call, at.b, at.h, at.t, 0));
        break;
    }
    if (call.a.normaliser == SRNN_NORMALISER_VALUE_POWER)
        factor *= pow((double)(call.place(at.b, at.t) + 1),
                      -sr_sigmoid((double)call.in.value_power[at.h]));
    if (call.scratch.value_factor)
        call.scratch.value_factor[n] = (float)factor;
    if (!call.scratch.beta)
        return;
    const double z = (double)call.in.write_gate.at(at.b, at.h, at.t, 0);
    const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
    call.scratch.beta[n] = (float)(given ? z : call.write_range * sr_sigmoid(z));
}

/* lambda = softplus(L z). A thread owns one level of a row: reads, computes, stores. */
__global__ void token_levels(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.H * call.T * call.levels)
        return;
    const int level = (int)(n % call.levels);
    const axes_row at = axes_row_of(n / call.levels, call.H, call.T);
    call.scratch.level[n] =
        (float)sr_softplus((double)call.in.level_scale[at.h * call.levels + level] *
                           (double)call.in.level_gate.at(at.b, at.h, at.t, level));
}

/* v times its factor. A thread owns one number: global -> registers -> the workspace. */
__global__ void value_rows(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * call.Dv)
        return;
    const int d = (int)(n % call.Dv);
    const axes_row at = axes_row_of(n / call.Dv, call.Hkv, call.T);
    const float v =
        call.scratch.pooled_v ? call.scratch.pooled_v[n] : call.in.v.at(at.b, at.h, at.t, d);
    call.scratch.v[n] = call.scratch.value_factor ? call.scratch.value_factor[n / call.Dv] * v : v;
}

/* ---- features: a warp owns a row ---- */

/* Features of q or k. A warp owns a row: it sums the squares of the row, then lane l computes every
 * 32nd feature from l on, global -> registers -> global. */
__global__ void feature_rows(const __grid_constant__ sr_axes_call call,
                             const __grid_constant__ axes_source source, float *out) {
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * source.heads * call.T)
        return;
    const axes_row at = axes_row_of(n, source.heads, call.T);
    const double square = axes_square(call, source, at);
    for (int c = axes_lane(); c < call.F; c += SR_WARP)
        out[n * call.F + c] = (float)axes_feature(call, source, at, square, c);
}

/* Features with rope_features, from those without. A thread owns one number: it reads it, its
 * partner and the angle, and stores once. */
__global__ void rotate_features(const __grid_constant__ sr_axes_call call, float *out,
                                const float *in, int heads) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * heads * call.T * call.F)
        return;
    const int64_t row = n / call.F;
    const axes_row at = axes_row_of(row, heads, call.T);
    out[n] = (float)axes_rotated(call, at, (int)(n % call.F), false,
                                 [&](int c) { return (double)in[row * call.F + c]; });
}

axes_source sr_axes_queries(const sr_axes_call &call) {
    return {call.in.q, nullptr, call.scratch.q_inverse, true, call.H, call.scale};
}

axes_source sr_axes_keys(const sr_axes_call &call) {
    return {call.in.k, call.scratch.pooled_k, call.scratch.k_inverse, false, call.Hkv, 1.0};
}

srnn_status sr_axes_angles(const sr_axes_call &call, cudaStream_t stream) {
    if (call.scratch.angles && call.D > 1)
        AXES_START(fill_angles, (int64_t)call.T * (call.D / 2), call);
    return SRNN_OK;
}

static srnn_status prepare_features(const sr_axes_call &call, cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    const int64_t rows = (int64_t)call.B * call.T;
    SR_TRY(sr_axes_angles(call, stream));
    if (s.q_inverse) {
        AXES_START(inverse_across, rows * call.D, call, call.in.q, s.q_inverse,
                   call.shares_queries ? call.shared : call.H);
        AXES_START(inverse_across, rows * call.D, call, call.in.k, s.k_inverse, call.shared);
    }
    AXES_START_WARPS(feature_rows, rows * call.H, call, sr_axes_queries(call), s.q);
    AXES_START_WARPS(feature_rows, rows * call.Hkv, call, sr_axes_keys(call), s.k);
    if (!call.rotated)
        return SRNN_OK;
    AXES_START(rotate_features, rows * call.H * call.F, call, s.rotated_q, s.q, call.H);
    AXES_START(rotate_features, rows * call.Hkv * call.F, call, s.rotated_k, s.k, call.Hkv);
    return SRNN_OK;
}

srnn_status sr_axes_levels(const sr_axes_call &call, cudaStream_t stream) {
    if (call.scratch.level)
        AXES_START(token_levels, (int64_t)call.B * call.H * call.T * call.levels, call);
    return SRNN_OK;
}

srnn_status sr_axes_prepare(const sr_axes_call &call, cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    const int64_t rows = (int64_t)call.B * call.T;
    if (s.decay)
        SR_TRY(axes_start_running<decay_sum>(call, call.Hkv, call.decays, stream));
    if (s.cumulative)
        SR_TRY(axes_start_running<cumulative_sum>(call, call.H, 1, stream));
    if (s.pooled_k)
        AXES_START(average_rows, (int64_t)call.B * call.Hkv * (call.D + call.Dv), call);
    if (s.value_factor || s.beta)
        AXES_START(token_factors, rows * call.Hkv, call);
    SR_TRY(sr_axes_levels(call, stream));
    AXES_START(value_rows, rows * call.Hkv * call.Dv, call);
    return prepare_features(call, stream);
}
