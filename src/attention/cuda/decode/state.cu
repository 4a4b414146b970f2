/* state.cu: the end of a feed, the same for every kind of state. */
#include "attention/cuda/decode/state.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };

sr_partials sr_partials_place(const srnn_problem *p, int64_t count, sr_layout *layout) {
    sr_partials partials = {};
    partials.x = (float *)sr_layout_take(layout, (size_t)count * (size_t)p->Dv, sizeof *partials.x);
    partials.sum = (float *)sr_layout_take(layout, (size_t)count, sizeof *partials.sum);
    partials.maximum = (float *)sr_layout_take(layout, (size_t)count, sizeof *partials.maximum);
    return partials;
}

/* Combines the split-K partials of the online softmax. A warp owns one row of (B, H, T): a first
 * loop over its parts finds the maximum of the running maxima, a second one adds row sums and
 * numerators, global -> registers, each rescaled to that maximum, in the order of the parts. The
 * epilogue then stores the output row. */
template <class N, int WIDTH>
__global__ void finish_rows(const __grid_constant__ sr_attention_view<N> call,
                            const sr_partials partials) {
    using Row = sr_warp_row<WIDTH>;
    const int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / SR_WARP;
    if (n >= (int64_t)call.B * call.H * call.T)
        return;
    const int t = (int)(n % call.T), h = (int)(n / call.T % call.H), b = (int)(n / call.T / call.H);
    const float unit = unit_of(call.score);
    float maximum = -INFINITY, sum = 0, x[Row::count] = {};
    for (int part = 0; part < partials.parts; part++)
        maximum = fmaxf(maximum, partials.maximum[n * partials.parts + part]);
    for (int part = 0; part < partials.parts; part++) {
        const int64_t at = n * partials.parts + part;
        const float own = partials.maximum[at];
        const float factor = own == maximum ? 1 : exp2f((own - maximum) * unit);
        float y[Row::count];
        row_load<Row>(y, partials.x + at * call.Dv, call.Dv);
        sum = fmaf(factor, partials.sum[at], sum);
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            x[m] = fmaf(factor, y[m], x[m]);
    }
    const float saved = maximum == -INFINITY ? 0 : maximum * unit * SR_LN_2;
    row_output<Row>(x, call, row_facts(call, b, h, t, sum, saved));
    row_store<Row>(call.o.at(b, h, t), x, call.Dv);
}

/* One thread adds T to the state's position in global memory, after all kernels of the feed on the
 * stream. */
__global__ void move_on(int64_t *position, int T) {
    *position += T;
}

template <class N>
srnn_status sr_partials_finish(const sr_attention_view<N> &call, const sr_partials &partials,
                               cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.H * call.T;
    const dim3 grid((unsigned)((rows + WARPS - 1) / WARPS)), block(THREADS);
    if (call.Dv <= 64)
        SR_CUDA(sr_launch(finish_rows<N, 64>, grid, block, 0, stream, call, partials));
    else if (call.Dv <= 128)
        SR_CUDA(sr_launch(finish_rows<N, 128>, grid, block, 0, stream, call, partials));
    else
        SR_CUDA(sr_launch(finish_rows<N, 256>, grid, block, 0, stream, call, partials));
    SR_CUDA(sr_launch(move_on, dim3(1), dim3(1), 0, stream, call.carry.position, call.T));
    return SRNN_OK;
}

template srnn_status sr_partials_finish(const sr_attention_view<float> &, const sr_partials &,
                                        cudaStream_t);
template srnn_status sr_partials_finish(const sr_attention_view<sr_bf16> &, const sr_partials &,
                                        cudaStream_t);
