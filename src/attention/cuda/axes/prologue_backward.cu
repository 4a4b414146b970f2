/* prologue_backward.cu: after the core's backward: gradients of operands from those of features,
 * values, running sums and gates. */
#include "attention/cuda/axes/decays.h"
#include "attention/cuda/axes/features.h"
#include "attention/cuda/axes/outputs.h"
#include "attention/cuda/axes/sums.h"

/* ---- features: a warp owns a row ---- */

/* Gradients of q or k from those of their features. A warp owns a row: it forms the sums over the
 * row that the feature needs, adds the inverse RoPE of the rotated part where the two differ, and
 * lane l stores every 32nd channel from l on. */
__global__ void feature_rows_backward(const __grid_constant__ sr_axes_call call,
                                      const __grid_constant__ axes_source source, float *out,
                                      const float *plain, const float *rotated) {
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * source.heads * call.T)
        return;
    const axes_row at = axes_row_of(n, source.heads, call.T);
    const auto gradient = [&](int c) -> double {
        double d = (double)plain[n * call.F + c];
        if (rotated != plain)
            d += axes_rotated(call, at, c, true,
                              [&](int m) { return (double)rotated[n * call.F + m]; });
        return d;
    };
    const axes_feature_sums sums = axes_feature_sums_of(call, source, at, gradient);
    for (int c = axes_lane(); c < call.D; c += SR_WARP) {
        double d;
        if (call.a.position == SRNN_POSITION_ROPE_CHUNKS)
            d = axes_rotated(call, at, c, true, [&](int m) {
                return axes_feature_backward(call, source, at, sums, m, gradient);
            });
        else
            d = axes_feature_backward(call, source, at, sums, c, gradient);
        out[n * call.D + c] = (float)d;
    }
}

/* The gradient of one channel of a head of the caller's: the sum over the heads that share it.
 * Parameters, not a struct: they stay in registers. */
SR_DEVICE double shared_sum(const sr_axes_call &call, const float *d, int own, int b, int head,
                            int t, int c) {
    double sum = 0;
    if (!call.shares_queries)
        return (double)d[call.row(own, b, head, t) * call.D + c];
    for (int h = 0; h < own; h++)
        if (call.shared_head(h) == head)
            sum += (double)d[call.row(own, b, h, t) * call.D + c];
    return sum;
}

/* Gradients of q or k. A thread owns one channel of a token for all heads: without unit_heads they
 * are the sums; with it a first loop finds what they have along the norm across the heads.
 * Parameters, not a struct: they stay in registers. */
__global__ void input_rows(const __grid_constant__ sr_axes_call call, sr_axes_tensor out,
                           sr_axes_tensor x, const float *d, const float *inverse, int own,
                           int heads) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.T * call.D)
        return;
    const int c = (int)(n % call.D), t = (int)(n / call.D % call.T), b = (int)(n / call.D / call.T);
    double along = 0;
    for (int h = 0; inverse && h < heads; h++)
        along += (double)x.at(b, h, t, c) * shared_sum(call, d, own, b, h, t, c);
    const bool floored = inverse && !(inverse[n] < (float)(1 / SR_AXES_NORM_FLOOR));
    const double factor = inverse ? (double)inverse[n] : 1;
    along *= floored ? 0 : factor * factor;
    for (int h = 0; h < heads; h++) {
        const double sum = shared_sum(call, d, own, b, h, t, c);
        out.put(b, h, t, c, inverse ? factor * (sum - along * (double)x.at(b, h, t, c)) : sum);
    }
}

/* What the bonus adds to the gradients of q, or of k, whose heads `own` there are. A thread owns
 * one number: it sums over the heads that share it, in double, and adds to global memory. */
__global__ void bonus_rows_backward(const __grid_constant__ sr_axes_call call, float *d, int own,
                                    bool query) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * own * call.T * call.D)
        return;
    const int c = (int)(n % call.D), group = call.H / own;
    const axes_row at = axes_row_of(n / call.D, own, call.T);
    double sum = 0;
    for (int h = at.h * group; h < (at.h + 1) * group; h++) {
        const axes_row row = {at.b, h, at.t};
        sum += axes_bonus_backward(call, row) * (double)call.in.skip_weight[h * call.D + c] *
               (query ? axes_bonus_key(call, row, c) : axes_bonus_query(call, row, c));
    }
    d[n] = (float)((double)d[n] + sum);
}

/* ---- running averages ---- */

/* Backward of the averages, in place: d_raw_k and d_v become gradients of k and v. A thread owns
 * channel c of k and of v, which have one gate, and walks from the last token: averages and
 * gradients global -> registers, the gradient of the later ones carried, and stores. */
__global__ void average_rows_backward(const __grid_constant__ sr_axes_call call) {
    const int width = call.D > call.Dv ? call.D : call.Dv;
    const int64_t n = axes_thread(), head = n / width;
    if (head >= (int64_t)call.B * call.Hkv)
        return;
    const int c = (int)(n % width), b = (int)(head / call.Hkv), h = (int)(head % call.Hkv);
    double later_k = 0, later_v = 0;
    for (int t = call.T - 1; t >= 0; t--) {
        const double z = (double)call.in.pool_gate.at(b, h, t, c);
        const double gate = sr_sigmoid(z), rest = sr_sigmoid(-z);
        const int64_t row = call.row(call.Hkv, b, h, t), place = call.place(b, t);
        const bool last = t == call.T - 1 || call.start(b, t + 1) == t + 1;
        const bool first = place % call.a.pool == 0;
        double d_gate = 0;
        if (last)
            later_k = later_v = 0;
        if (c < call.D) {
            float *const d = call.scratch.d_raw_k + row * call.D + c;
            const double before = first ? 0 : (double)call.scratch.pooled_k[(row - 1) * call.D + c];
            const double d_average = later_k + (double)*d;
            d_gate += d_average * (before - (double)call.in.k.at(b, call.shared_head(h), t, c)) *
                      gate * rest;
            *d = (float)(rest * d_average);
            later_k = first ? 0 : gate * d_average;
        }
        if (c < call.Dv) {
            float *const d = call.scratch.d_v + row * call.Dv + c;
            const double before =
                first ? 0 : (double)call.scratch.pooled_v[(row - 1) * call.Dv + c];
            const double d_average = later_v + (double)*d;
            d_gate += d_average * (before - (double)call.in.v.at(b, h, t, c)) * gate * rest;
            *d = (float)(rest * d_average);
            later_v = first ? 0 : gate * d_average;
        }
        if (call.out.pool_gate.data)
            call.out.pool_gate.put(b, h, t, c, d_gate);
    }
}

/* ---- values ---- */

/* value_dot, and d_v times the factor. A warp owns a row: lanes read and rewrite d_v in global
 * memory, shuffles sum <v, d_v>, and lane 0 stores it. */
__global__ void factor_rows_backward(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const double factor = (double)call.scratch.value_factor[n];
    double dot = 0;
    for (int d = axes_lane(); d < call.Dv; d += SR_WARP) {
        float *const own = call.scratch.d_v + n * call.Dv + d;
        dot += (double)*own * (double)call.scratch.v[n * call.Dv + d];
        *own = (float)(factor * (double)*own);
    }
    dot = warp_sum(dot);
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    if (axes_lane() != 0)
        return;
    call.scratch.value_dot[n] = dot;
    if (call.a.value_gate == SRNN_VALUE_GATE_SIGMOID && call.out.value_gate.data)
        call.out.value_gate.put(at.b, at.h, at.t, 0,
                                dot * sr_sigmoid(
                                          -(double)call.in.value_gate.at(at.b, at.h, at.t, 0)));
}

/* Gradients of v, with what the skip takes of it, and of the skip's own operand. A thread owns one
 * number: it sums over the heads of its group, global -> registers, and stores once. */
__global__ void value_numbers(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * call.Dv)
        return;
    const int d = (int)(n % call.Dv);
    const axes_row at = axes_row_of(n / call.Dv, call.Hkv, call.T);
    const bool bonus = call.a.skip == SRNN_SKIP_BONUS;
    double skipped = 0;
    for (int h = at.h * call.group; call.scratch.d_skip && h < (at.h + 1) * call.group; h++)
        skipped += (bonus ? axes_bonus(call, {at.b, h, at.t}) : axes_skip_weight(call, h, d)) *
                   (double)call.scratch.d_skip[call.row(call.H, at.b, h, at.t) * call.Dv + d];
    const bool conv = call.a.skip == SRNN_SKIP_CONV;
    if (conv && call.out.skip.data)
        call.out.skip.put(at.b, at.h, at.t, d, skipped);
    if (call.out.v.data)
        call.out.v.put(at.b, at.h, at.t, d, (double)call.scratch.d_v[n] + (conv ? 0 : skipped));
}

/* ---- decays ---- */

/* A gate acts on all later C, and except for learned ones on its own. */
struct decay_gradient {
    static constexpr bool reverse = true;
    SR_DEVICE static double term(const sr_axes_call &call, int b, int h, int t, int c) {
        double sum = call.scratch.column_decay[call.row(call.Hkv, b, h, t) * call.decays + c];
        for (int g = h * call.group; g < (h + 1) * call.group; g++)
            sum += call.scratch.row_decay[call.row(call.H, b, g, t) * call.decays + c];
        return sum;
    }
    SR_DEVICE static void take(const sr_axes_call &call, int b, int h, int t, int c, double before,
                               double with) {
        call.scratch.d_gate[call.row(call.Hkv, b, h, t) * call.decays + c] =
            call.a.decay == SRNN_DECAY_LEARNED ? before : with;
    }
    SR_DEVICE static double *kept(const sr_axes_call &, int64_t) {
        return nullptr;
    }
};

/* The gradient of a gate's number z from that of its logarithm, and of a time step. */
SR_DEVICE double number_backward(const sr_axes_call &call, int64_t row, axes_row at, int c) {
    const double z = axes_decay_number(call, at.b, at.h, at.t, c), step = sr_softplus(z);
    double d = call.scratch.d_gate[row * call.decays + c] * gate_slope(call.gate, at.h, z);
    if (call.a.value_gate == SRNN_VALUE_GATE_TIME_STEP && step > 0)
        d += call.scratch.value_dot[row] / step * sr_sigmoid(z);
    return d;
}

/* The gradient of the decay operand. A thread owns one number: reads the gradient of its logarithm
 * from the workspace and stores once. Runs after the running sums of decays_backward. */
__global__ void decay_numbers(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * call.decays)
        return;
    const int64_t row = n / call.decays;
    const int c = (int)(n % call.decays);
    const axes_row at = axes_row_of(row, call.Hkv, call.T);
    call.out.decay.put(at.b, at.h, at.t, c, number_backward(call, row, at, c));
}

/* Rows are (B, T); columns Hkv. */
struct a_log_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int h) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        const int64_t row = call.row(call.Hkv, b, h, t);
        double sum = 0;
        for (int c = 0; c < call.decays; c++)
            sum += call.scratch.d_gate[row * call.decays + c] *
                   gate_rate_slope(call.gate, h, axes_decay_number(call, b, h, t, c));
        return sum;
    }
};

/* Columns Hkv, or Hkv D where it is wide. */
struct dt_bias_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        const bool wide = call.a.dt_width == SRNN_DT_WIDTH_CHANNEL;
        const int h = wide ? column / call.D : column, from = wide ? column % call.D : 0;
        const axes_row at = {(int)(n / call.T), h, (int)(n % call.T)};
        double sum = 0;
        for (int c = from; c < (wide ? from + 1 : call.decays); c++)
            sum += number_backward(call, call.row(call.Hkv, at.b, h, at.t), at, c);
        return sum;
    }
};

struct value_power_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int h) {
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        const double c = sr_sigmoid((double)call.in.value_power[h]);
        return -call.scratch.value_dot[call.row(call.Hkv, b, h, t)] *
               log((double)(call.place(b, t) + 1)) * c * (1 - c);
    }
};

/* ---- gates of the core ---- */

/* The gradient of the write gate. A thread owns one token of a head: d_beta times the slope. */
__global__ void beta_numbers(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    const double z = (double)call.in.write_gate.at(at.b, at.h, at.t, 0);
    const bool given = call.a.write_gate == SRNN_WRITE_GATE_GIVEN;
    const double slope = given ? 1 : call.write_range * sr_sigmoid(z) * sr_sigmoid(-z);
    call.out.write_gate.put(at.b, at.h, at.t, 0, slope * (double)call.scratch.d_beta[n]);
}

/* lambda = softplus(L z): the slope by L z times the gradient. */
SR_DEVICE double level_slope(const sr_axes_call &call, axes_row at, int level) {
    const int64_t n = call.row(call.H, at.b, at.h, at.t) * call.levels + level;
    return (double)call.scratch.d_level[n] *
           sr_sigmoid((double)call.in.level_scale[at.h * call.levels + level] *
                      (double)call.in.level_gate.at(at.b, at.h, at.t, level));
}

/* The gradient of the level gates. A thread owns one level of a row: reads, multiplies, stores. */
__global__ void level_numbers(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.H * call.T * call.levels)
        return;
    const int level = (int)(n % call.levels);
    const axes_row at = axes_row_of(n / call.levels, call.H, call.T);
    call.out.level_gate.put(at.b, at.h, at.t, level,
                            level_slope(call, at, level) *
                                (double)call.in.level_scale[at.h * call.levels + level]);
}

/* Rows are (B, T); columns H levels. */
struct level_scale_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        const axes_row at = {(int)(n / call.T), column / call.levels, (int)(n % call.T)};
        const int level = column % call.levels;
        return level_slope(call, at, level) *
               (double)call.in.level_gate.at(at.b, at.h, at.t, level);
    }
};

/* ---- calls ---- */

static srnn_status decays_backward(const sr_axes_call &call, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    if (!call.gates_direct)
        SR_TRY(axes_start_running<decay_gradient>(call, call.Hkv, call.decays, stream));
    if (call.out.decay.data)
        AXES_START(decay_numbers, rows * call.Hkv * call.decays, call);
    if (!call.gate.a_log)
        return SRNN_OK;
    SR_TRY(axes_sum_rows<a_log_term>(call.out.a_log, call, rows, call.Hkv, stream));
    const bool wide = call.a.dt_width == SRNN_DT_WIDTH_CHANNEL;
    return axes_sum_rows<dt_bias_term>(call.out.dt_bias, call, rows,
                                       wide ? call.Hkv * call.D : call.Hkv, stream);
}

static srnn_status features_backward(const sr_axes_call &call, cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    const int64_t rows = (int64_t)call.B * call.T;
    const int queries = call.shares_queries ? call.shared : call.H;
    AXES_START_WARPS(feature_rows_backward, rows * call.H, call, sr_axes_queries(call), s.d_raw_q,
                     s.d_q, s.d_rotated_q);
    AXES_START_WARPS(feature_rows_backward, rows * call.Hkv, call, sr_axes_keys(call), s.d_raw_k,
                     s.d_k, s.d_rotated_k);
    if (s.pooled_k)
        AXES_START(average_rows_backward,
                   (int64_t)call.B * call.Hkv * (call.D > call.Dv ? call.D : call.Dv), call);
    if (call.a.skip == SRNN_SKIP_BONUS) {
        AXES_START(bonus_rows_backward, rows * call.H * call.D, call, s.d_raw_q, call.H, true);
        AXES_START(bonus_rows_backward, rows * call.Hkv * call.D, call, s.d_raw_k, call.Hkv, false);
    }
    if (call.out.q.data)
        AXES_START(input_rows, rows * call.D, call, call.out.q, call.in.q, s.d_raw_q, s.q_inverse,
                   call.H, queries);
    if (call.out.k.data)
        AXES_START(input_rows, rows * call.D, call, call.out.k, call.in.k, s.d_raw_k, s.k_inverse,
                   call.Hkv, call.shared);
    return SRNN_OK;
}

srnn_status sr_axes_levels_backward(const sr_axes_call &call, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    if (call.levels == 0)
        return SRNN_OK;
    if (call.out.level_gate.data)
        AXES_START(level_numbers, rows * call.H * call.levels, call);
    return axes_sum_rows<level_scale_term>(call.out.level_scale, call, rows, call.H * call.levels,
                                           stream);
}

srnn_status sr_axes_inputs_backward(const sr_axes_call &call, cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    const int64_t rows = (int64_t)call.B * call.T;
    if (s.value_factor)
        AXES_START_WARPS(factor_rows_backward, rows * call.Hkv, call);
    SR_TRY(features_backward(call, stream));
    AXES_START(value_numbers, rows * call.Hkv * call.Dv, call);
    if (call.decays > 0)
        SR_TRY(decays_backward(call, stream));
    if (call.a.normaliser == SRNN_NORMALISER_VALUE_POWER)
        SR_TRY(axes_sum_rows<value_power_term>(call.out.value_power, call, rows, call.Hkv, stream));
    if (call.delta && call.out.write_gate.data)
        AXES_START(beta_numbers, rows * call.Hkv, call);
    return sr_axes_levels_backward(call, stream);
}
