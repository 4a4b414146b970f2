/* epilogue.cu: from sums over keys to outputs: normaliser, skip, gates, norms. */
#include "attention/cuda/axes/outputs.h"

/* Statistics of a norm. A warp owns the rows of one token that the norm covers: lanes stride over
 * the channels of each head, reading numerators from global memory, and sum in double by shuffles;
 * lane 0 stores mean and inverse. */
__global__ void norm_statistics(const __grid_constant__ sr_axes_call call) {
    const int groups = call.H / call.norm_heads, count = call.norm_heads * call.Dv;
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * groups * call.T)
        return;
    axes_row at = axes_row_of(n, groups, call.T);
    const int first = at.h * call.norm_heads;
    double mean = 0, square = 0, floor = SR_AXES_NORM_FLOOR;
    for (int pass = sr_norm_is_centred(call.a.norm) ? 0 : 1; pass < 2; pass++) {
        double sum = 0;
        for (int h = first; h < first + call.norm_heads; h++) {
            at.h = h;
            const axes_output_row row =
                axes_output_of(call, at, call.scratch.row_sum, call.scratch.maximum);
            if (call.norm_heads == 1)
                floor = axes_floor(call, row);
            for (int d = axes_lane(); d < call.Dv; d += SR_WARP) {
                const double x =
                    axes_gate(call, row, d) *
                    axes_y(call, row, (double)call.scratch.numerator[row.n * call.Dv + d], d);
                sum += pass == 0 ? x : (x - mean) * (x - mean);
            }
        }
        sum = warp_sum(sum);
        if (pass == 0)
            mean = sum / count;
        else
            square = sum;
    }
    axes_norm_row found = {mean, 1 / sqrt(square / count + call.norm_epsilon), 0, 0};
    if (sr_norm_is_length(call.a.norm))
        found.inverse =
            (double)sr_norm_length_factor(call.a.norm, count) / fmax(sqrt(square), floor);
    at.h = first;
    if (axes_lane() == 0)
        *axes_norm_at(call, at) = found;
}

/* A thread owns one number of the output: numerator, row facts and gates global -> registers, in
 * double; it stores the output and, for backward, the numerator. The thread of channel 0 stores
 * the row sum and the maximum. */
__global__ void output_numbers(const __grid_constant__ sr_axes_call call) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.H * call.T * call.Dv)
        return;
    const int d = (int)(n % call.Dv);
    const axes_row at = axes_row_of(n / call.Dv, call.H, call.T);
    const axes_output_row row =
        axes_output_of(call, at, call.scratch.row_sum, call.scratch.maximum);
    const double numerator = (double)call.scratch.numerator[n];
    double x = axes_gate(call, row, d) * axes_y(call, row, numerator, d);
    if (call.a.norm != SRNN_NORM_NONE) {
        const axes_norm_row norm = *axes_norm_at(call, at);
        x = (x - norm.mean) * norm.inverse * axes_norm_weight(call, at.h, d) +
            axes_norm_bias(call, at.h, d);
    }
    x += axes_bonus_value(call, at, d);
    call.o.put(at.b, at.h, at.t, d, axes_post(call, at, d) * x);
    if (!call.saved.data)
        return;
    call.saved.put(at.b, at.h, at.t, d, numerator);
    if (d > 0)
        return;
    call.saved_row_sum[row.n] = (float)row.row_sum;
    call.saved_maximum[row.n] = (float)row.maximum;
}

srnn_status sr_axes_finish(const sr_axes_call &call, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.T;
    if (call.a.norm != SRNN_NORM_NONE)
        AXES_START_WARPS(norm_statistics, rows * (call.H / call.norm_heads), call);
    AXES_START(output_numbers, rows * call.H * call.Dv, call);
    return SRNN_OK;
}

/* One thread advances the position of the state, after all kernels that read it. */
__global__ void advance_position(int64_t *position, int T) {
    *position += T;
}

srnn_status sr_axes_advance(const sr_axes_call &call, cudaStream_t stream) {
    SR_CUDA(sr_launch(advance_position, dim3(1), dim3(1), 0, stream, call.carry.position, call.T));
    return SRNN_OK;
}
