/* epilogue_backward.cu: gradients of outputs to those of numerators and row sums, and of what is
 * learned for outputs. */
#include "attention/cuda/axes/outputs.h"
#include "attention/cuda/axes/sums.h"
#include "equation/operands.h"

SR_DEVICE axes_output_row saved_row(const sr_axes_call &call, axes_row at) {
    return axes_output_of(call, at, call.saved_row_sum, call.saved_maximum);
}

/* The input of the norm. */
SR_DEVICE double before_norm(const sr_axes_call &call, const axes_output_row &row, int d) {
    const double numerator = (double)call.saved.at(row.at.b, row.at.h, row.at.t, d);
    return axes_gate(call, row, d) * axes_y(call, row, numerator, d);
}

/* The gradient behind the norm, in front of the post gate. */
SR_DEVICE double after_norm(const sr_axes_call &call, axes_row at, int d) {
    return axes_post(call, at, d) * (double)call.o.at(at.b, at.h, at.t, d);
}

/* Statistics of a norm and of the gradients behind it. A warp owns the rows of one token that the
 * norm covers: lanes stride over the channels of each head, reading saved numerators and d_o from
 * global memory, and sum in double by shuffles; lane 0 stores. */
__global__ void norm_statistics_backward(const __grid_constant__ sr_axes_call call) {
    const int groups = call.H / call.norm_heads, count = call.norm_heads * call.Dv;
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * groups * call.T)
        return;
    axes_row at = axes_row_of(n, groups, call.T);
    const int first = at.h * call.norm_heads;
    const bool length = sr_norm_is_length(call.a.norm), centred = sr_norm_is_centred(call.a.norm);
    double mean = 0, square = 0, shift = 0, along = 0, floor = SR_AXES_NORM_FLOOR;
    for (int pass = centred ? 0 : 1; pass < 2; pass++) {
        double sum = 0, other = 0;
        for (int h = first; h < first + call.norm_heads; h++) {
            at.h = h;
            const axes_output_row row = saved_row(call, at);
            if (call.norm_heads == 1)
                floor = axes_floor(call, row);
            for (int d = axes_lane(); d < call.Dv; d += SR_WARP) {
                const double x = before_norm(call, row, d) - mean;
                const double d_hat = after_norm(call, at, d) * axes_norm_weight(call, h, d);
                sum += pass == 0 ? x : x * x;
                other += pass == 0 ? d_hat : d_hat * x;
            }
        }
        sum = warp_sum(sum);
        other = warp_sum(other);
        if (pass == 0) {
            mean = sum / count;
            shift = other / count;
        } else {
            square = sum;
            along = other;
        }
    }
    axes_norm_row found = {mean, 1 / sqrt(square / count + call.norm_epsilon), shift, 0};
    found.along = along * found.inverse * found.inverse / count;
    if (length) {
        const double size = sqrt(square), inverse = 1 / fmax(size, floor);
        found.inverse = (double)sr_norm_length_factor(call.a.norm, count) * inverse;
        found.along = size < floor ? 0 : along * inverse * inverse;
    }
    at.h = first;
    if (axes_lane() == 0)
        *axes_norm_at(call, at) = found;
}

/* The gradient of the norm's input, x. */
SR_DEVICE double before_backward(const sr_axes_call &call, axes_row at, double x, int d) {
    const double du = after_norm(call, at, d);
    if (call.a.norm == SRNN_NORM_NONE)
        return du;
    const axes_norm_row norm = *axes_norm_at(call, at);
    const double d_hat = du * axes_norm_weight(call, at.h, d);
    return norm.inverse * (d_hat - norm.shift - (x - norm.mean) * norm.along);
}

/* norm(x) without the post gate. */
SR_DEVICE double normed(const sr_axes_call &call, axes_row at, double x, int d) {
    if (call.a.norm == SRNN_NORM_NONE)
        return x;
    const axes_norm_row norm = *axes_norm_at(call, at);
    return (x - norm.mean) * norm.inverse * axes_norm_weight(call, at.h, d) +
           axes_norm_bias(call, at.h, d);
}

/* The gradient of the normaliser to that of the row sum, or of the running sum of gates. */
SR_DEVICE void normaliser_backward(const sr_axes_call &call, const axes_output_row &row, double d,
                                   double *d_row_sum, double *d_cumulative) {
    if (call.a.detach)
        return;
    switch (call.a.normaliser) {
    case SRNN_NORMALISER_ROW_SUM:
        *d_row_sum = d;
        break;
    case SRNN_NORMALISER_ROW_SUM_MIN1:
        *d_row_sum = row.row_sum < 1 ? 0 : d;
        break;
    case SRNN_NORMALISER_CUMULATIVE_GATE:
        *d_cumulative += row.cumulative < 1 ? 0 : d;
        break;
    case SRNN_NORMALISER_ROW_LENGTH:
    case SRNN_NORMALISER_NONE:
    case SRNN_NORMALISER_VALUE_POWER:
        break;
    }
}

/* The gradient of the gate's number where it has one per row, from that of the gate. */
SR_DEVICE double gate_backward(const sr_axes_call &call, const axes_output_row &row, double d_gate,
                               double *d_cumulative) {
    switch (call.a.output_gate) {
    case SRNN_GATE_NONE:
    case SRNN_GATE_SIGMOID: /* its channels were added up already */
        break;
    case SRNN_GATE_INVERSE_EXP:
        return -d_gate * row.gate;
    case SRNN_GATE_INVERSE_CUMULATIVE:
        *d_cumulative -= d_gate * row.gate * row.gate;
        break;
    }
    return 0;
}

/* A warp owns a row (b, h, t): lanes stride over its channels, numerator and d_o global ->
 * registers, and store the gradients of the numerator and of the gates; sums over the row are made
 * by shuffles and stored by lane 0. */
__global__ void rows_backward(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * call.H * call.T)
        return;
    const axes_row at = axes_row_of(n, call.H, call.T);
    const axes_output_row row = saved_row(call, at);
    const bool channels = call.a.gate_width == SRNN_WIDTH_CHANNEL;
    const bool sigmoid = call.a.output_gate == SRNN_GATE_SIGMOID,
               wanted = call.out.output_gate.data;
    const bool bonus = call.a.skip == SRNN_SKIP_BONUS;
    double d_gate = 0, d_number = 0, divided = 0;
    for (int d = axes_lane(); d < call.Dv; d += SR_WARP) {
        const double numerator = (double)call.saved.at(at.b, at.h, at.t, d);
        const double y = axes_y(call, row, numerator, d), gate = axes_gate(call, row, d);
        const double dx = before_backward(call, at, gate * y, d), dy = dx * gate;
        const double z = call.gated ? axes_gate_number(call, at, d) : 0;
        double own = 0;
        if (call.a.post_gate)
            own += (double)call.o.at(at.b, at.h, at.t, d) *
                   (normed(call, at, gate * y, d) + axes_bonus_value(call, at, d)) *
                   sr_gate_slope(call.a.gate_shape, z);
        if (sigmoid)
            own += dx * y * sr_gate_slope(call.a.gate_shape, z);
        d_number += own;
        d_gate += dx * y;
        divided += dy * numerator;
        call.scratch.d_numerator[n * call.Dv + d] = (float)(dy / row.normaliser);
        if (call.scratch.d_skip)
            call.scratch.d_skip[n * call.Dv + d] = (float)(bonus ? after_norm(call, at, d) : dy);
        if (call.gated && wanted && channels)
            call.out.output_gate.put(at.b, at.h, at.t, d, own);
    }
    d_gate = warp_sum(d_gate);
    d_number = warp_sum(d_number);
    divided = warp_sum(divided);
    if (axes_lane() != 0)
        return;
    double d_row_sum = 0, d_cumulative = 0;
    normaliser_backward(call, row, -divided / row.normaliser / row.normaliser, &d_row_sum,
                        &d_cumulative);
    d_number += gate_backward(call, row, d_gate, &d_cumulative);
    call.scratch.d_row_sum[n] = d_row_sum;
    if (call.scratch.d_cumulative)
        call.scratch.d_cumulative[n] = d_cumulative;
    if (call.gated && wanted && !channels)
        call.out.output_gate.put(at.b, at.h, at.t, 0, d_number);
}

/* The output gate acts on its own and all later sums. */
struct cumulative_gradient {
    static constexpr bool reverse = true;
    SR_DEVICE static double term(const sr_axes_call &call, int b, int h, int t, int) {
        return call.scratch.d_cumulative[call.row(call.H, b, h, t)];
    }
    SR_DEVICE static void take(const sr_axes_call &call, int b, int h, int t, int, double,
                               double with) {
        const double gate = exp((double)call.in.output_gate.at(b, h, t, 0));
        call.out.output_gate.put(b, h, t, 0,
                                 (double)call.out.output_gate.at(b, h, t, 0) + gate * with);
    }
    SR_DEVICE static double *kept(const sr_axes_call &, int64_t) {
        return nullptr;
    }
};

/* ---- what is learned for outputs: terms of sums over rows ---- */

/* Of a norm whose weights all heads share, rows are (B, H, T) and columns Dv; else (B, T) and
 * H Dv. */
SR_DEVICE axes_row norm_row_of(const sr_axes_call &call, int64_t n, int column) {
    if (!call.norm_per_head)
        return axes_row_of(n, call.H, call.T);
    return {(int)(n / call.T), column / call.Dv, (int)(n % call.T)};
}

struct norm_weight_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        const axes_row at = norm_row_of(call, n, column);
        const int d = column % call.Dv;
        const axes_norm_row norm = *axes_norm_at(call, at);
        const double x = before_norm(call, saved_row(call, at), d);
        return after_norm(call, at, d) * (x - norm.mean) * norm.inverse;
    }
};

struct norm_bias_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        return after_norm(call, norm_row_of(call, n, column), column % call.Dv);
    }
};

/* Rows are (B, T); columns H, or H Dv. */
struct skip_weight_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        const bool channel = call.a.skip == SRNN_SKIP_CHANNEL;
        const int h = channel ? column / call.Dv : column, from = channel ? column % call.Dv : 0;
        const int b = (int)(n / call.T), t = (int)(n % call.T);
        const float *const d_skip = call.scratch.d_skip + call.row(call.H, b, h, t) * call.Dv;
        double sum = 0;
        for (int d = from; d < (channel ? from + 1 : call.Dv); d++)
            sum += (double)d_skip[d] * (double)call.in.v.at(b, axes_value_head(call, h), t, d);
        return sum;
    }
};

/* Rows are (B, T); columns H D. */
struct bonus_weight_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int column) {
        const axes_row at = {(int)(n / call.T), column / call.D, (int)(n % call.T)};
        const int c = column % call.D;
        return axes_bonus_backward(call, at) * axes_bonus_query(call, at, c) *
               axes_bonus_key(call, at, c);
    }
};

/* Rows are (B, T); columns H. */
struct sink_term {
    SR_DEVICE static double of(const sr_axes_call &call, int64_t n, int h) {
        const int64_t row = call.row(call.H, (int)(n / call.T), h, n % call.T);
        return call.scratch.d_row_sum[row] * axes_sink(call, h, (double)call.saved_maximum[row]);
    }
};

srnn_status sr_axes_outputs_backward(const sr_axes_call &call, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    const sr_axes_scratch &s = call.scratch;
    const srnn_attention *a = &call.a;
    const bool wide = call.norm_per_head;
    SR_CUDA(cudaMemsetAsync(s.zeroed, 0, (size_t)(s.zeroed_past - s.zeroed), stream));
    if (a->norm != SRNN_NORM_NONE)
        AXES_START_WARPS(norm_statistics_backward, rows * (call.H / call.norm_heads), call);
    AXES_START_WARPS(rows_backward, rows * call.H, call);
    if (call.cumulates && call.out.output_gate.data)
        SR_TRY(axes_start_running<cumulative_gradient>(call, call.H, 1, stream));
    if (sr_norm_has_weight(a->norm))
        SR_TRY(axes_sum_rows<norm_weight_term>(call.out.norm_weight, call,
                                               wide ? rows : rows * call.H,
                                               wide ? call.H * call.Dv : call.Dv, stream));
    if (sr_norm_is_centred(a->norm))
        SR_TRY(axes_sum_rows<norm_bias_term>(call.out.norm_bias, call, wide ? rows : rows * call.H,
                                             wide ? call.H * call.Dv : call.Dv, stream));
    if (sr_operand_used(SR_OPERAND_SINKS, a))
        SR_TRY(axes_sum_rows<sink_term>(call.out.sinks, call, rows, call.H, stream));
    if (a->skip == SRNN_SKIP_BONUS)
        return axes_sum_rows<bonus_weight_term>(call.out.skip_weight, call, rows, call.H * call.D,
                                                stream);
    if (sr_operand_used(SR_OPERAND_SKIP_WEIGHT, a))
        SR_TRY(axes_sum_rows<skip_weight_term>(call.out.skip_weight, call, rows,
                                               a->skip == SRNN_SKIP_CHANNEL ? call.H * call.Dv
                                                                            : call.H,
                                               stream));
    return SRNN_OK;
}
