/* outputs.h (private): one number of a row between numerator and output: normaliser, skip, gates,
 * norm, in double, where their terms may cancel. */
#ifndef SR_ATTENTION_CUDA_AXES_OUTPUTS_H
#define SR_ATTENTION_CUDA_AXES_OUTPUTS_H

#include "attention/cuda/axes/call.h"

#include <float.h>

/* A row: what the core left of it, and what it is divided by and gated with. */
struct axes_output_row {
    axes_row at;
    int64_t n; /* of (B, H, T) */
    double row_sum, maximum, cumulative;
    double normaliser;
    double gate; /* of a gate with one number, or 1 */
};

/* Statistics of the norm of a row, or of all rows that one norm covers. */
struct axes_norm_row {
    double mean, inverse; /* norm(x) = (x - mean) inverse weight + bias */
    double shift, along;  /* backward: mean of d_hat, and its part along the row */
};

/* What the row sum of a row still lacks. */
SR_DEVICE double axes_sink(const sr_axes_call &call, int h, double maximum) {
    const bool learned = call.a.sink == SRNN_SINK_LEARNED;
    return sr_row_sink(&call.a, learned ? (double)call.in.sinks[h] : 0, maximum);
}

/* row_sum, maximum (B, H, T): where the core left them, or what forward saved. */
SR_DEVICE axes_output_row axes_output_of(const sr_axes_call &call, axes_row at,
                                         const float *row_sum, const float *maximum) {
    axes_output_row row = {at, call.row(call.H, at.b, at.h, at.t), 0, 0, 0, 1, 1};
    row.row_sum = (double)row_sum[row.n];
    row.maximum = (double)maximum[row.n];
    if (call.scratch.cumulative)
        row.cumulative = call.scratch.cumulative[row.n];
    sr_query_row query = {};
    query.row_sum = row.row_sum;
    query.length = (double)(call.place(at.b, at.t) + 1);
    if (call.a.window && query.length > (double)call.a.window)
        query.length = (double)call.a.window;
    query.sink = axes_sink(call, at.h, row.maximum);
    query.gate_sum = row.cumulative;
    query.least = (double)FLT_MIN;
    if (call.gated)
        query.gate = (double)call.in.output_gate.at(at.b, at.h, at.t, 0);
    row.normaliser = sr_row_normaliser(&call.a, &query);
    if (call.a.output_gate != SRNN_GATE_SIGMOID)
        row.gate = sr_row_output_gate(&call.a, &query);
    return row;
}

/* The number of the output gate for channel d. */
SR_DEVICE double axes_gate_number(const sr_axes_call &call, axes_row at, int d) {
    const int c = call.a.gate_width == SRNN_WIDTH_CHANNEL ? d : 0;
    return (double)call.in.output_gate.at(at.b, at.h, at.t, c);
}

SR_DEVICE double axes_gate(const sr_axes_call &call, const axes_output_row &row, int d) {
    if (call.a.output_gate != SRNN_GATE_SIGMOID)
        return row.gate;
    return sr_gate_value(call.a.gate_shape, axes_gate_number(call, row.at, d));
}

SR_DEVICE double axes_post(const sr_axes_call &call, axes_row at, int d) {
    return call.a.post_gate ? sr_gate_value(call.a.gate_shape, axes_gate_number(call, at, d)) : 1;
}

/* The head of keys and values of a query head. */
SR_DEVICE int axes_value_head(const sr_axes_call &call, int h) {
    return h / call.group;
}

SR_DEVICE double axes_skip_weight(const sr_axes_call &call, int h, int d) {
    switch (call.a.skip) {
    case SRNN_SKIP_HEAD:
        return (double)call.in.skip_weight[h];
    case SRNN_SKIP_CHANNEL:
        return (double)call.in.skip_weight[h * call.Dv + d];
    case SRNN_SKIP_NONE:
    case SRNN_SKIP_CONV:
    case SRNN_SKIP_BONUS: /* refused: the kernels do not declare it */
        break;
    }
    return 1;
}

/* y: the numerator, divided, and the skip. */
SR_DEVICE double axes_y(const sr_axes_call &call, const axes_output_row &row, double numerator,
                        int d) {
    const double y = numerator / row.normaliser;
    if (call.a.skip == SRNN_SKIP_NONE)
        return y;
    const sr_axes_tensor &from = call.a.skip == SRNN_SKIP_CONV ? call.in.skip : call.in.v;
    return y + axes_skip_weight(call, row.at.h, d) *
                   (double)from.at(row.at.b, axes_value_head(call, row.at.h), row.at.t, d);
}

/* Weight and bias of the norm for channel d of head h. */
SR_DEVICE int axes_norm_column(const sr_axes_call &call, int h, int d) {
    return call.norm_per_head ? h * call.Dv + d : d;
}

SR_DEVICE double axes_norm_weight(const sr_axes_call &call, int h, int d) {
    return sr_norm_has_weight(call.a.norm)
               ? (double)call.in.norm_weight[axes_norm_column(call, h, d)]
               : 1;
}

SR_DEVICE double axes_norm_bias(const sr_axes_call &call, int h, int d) {
    return sr_norm_is_centred(call.a.norm) ? (double)call.in.norm_bias[axes_norm_column(call, h, d)]
                                           : 0;
}

/* The floor of an l2 norm: of rows divided by their sum, or of undivided ones, whose scale it then
 * has. */
SR_DEVICE double axes_floor(const sr_axes_call &call, const axes_output_row &row) {
    if (call.floor_follows_rows)
        return SR_AXES_NORM_FLOOR * row.row_sum;
    return call.a.normaliser == SRNN_NORMALISER_ROW_SUM ? SR_AXES_NORM_FLOOR
                                                        : SR_AXES_NORM_FLOOR * exp(-row.maximum);
}

/* Where the statistics of the norm of a row are. */
SR_DEVICE axes_norm_row *axes_norm_at(const sr_axes_call &call, axes_row at) {
    const int64_t group = call.row(call.H / call.norm_heads, at.b, at.h / call.norm_heads, at.t);
    return (axes_norm_row *)call.scratch.norm + group;
}

#endif
