/* sums.h (private): running sums along documents, and sums over all rows in a fixed order. */
#ifndef SR_ATTENTION_CUDA_AXES_SUMS_H
#define SR_ATTENTION_CUDA_AXES_SUMS_H

#include "attention/cuda/axes/call.h"

/* Running sums. A Sum has the terms of sequence (b, h, c) at token t, the direction, what becomes
 * of the sum before and with each term, and where a state keeps the sum of past tokens (NULL:
 * nowhere).
 *
 * A warp owns one sequence and walks its T positions 32 at a time: each lane reads one term, a
 * segmented scan over the lanes by shuffles restarts the sum at each document, and the last lane's
 * sum is carried to the next 32. */
template <class Sum>
__global__ void axes_running(const __grid_constant__ sr_axes_call call, int heads, int width) {
    const int lane = axes_lane();
    const int64_t sequence = axes_warp();
    if (sequence >= (int64_t)call.B * heads * width)
        return;
    const int c = (int)(sequence % width), h = (int)(sequence / width % heads);
    const int b = (int)(sequence / width / heads), T = call.T;
    double *const kept = Sum::kept(call, sequence);
    double carry = kept ? *kept : 0;
    for (int done = 0; done < T; done += SR_WARP) {
        const bool inside = done + lane < T;
        const int t = inside ? (Sum::reverse ? T - 1 - done - lane : done + lane) : 0;
        const bool start =
            inside && !kept &&
            (Sum::reverse ? t == T - 1 || call.start(b, t + 1) == t + 1 : call.start(b, t) == t);
        double with = inside ? Sum::term(call, b, h, t, c) : 0;
        int closed = start; /* a document starts between the sum's first term and this one */
        for (int distance = 1; distance < SR_WARP; distance *= 2) {
            const double earlier = shuffle_up(with, distance);
            const int earlier_closed = shuffle_up(closed, distance);
            if (lane >= distance) {
                if (!closed)
                    with += earlier;
                closed |= earlier_closed;
            }
        }
        if (!closed)
            with += carry;
        double before = shuffle_up(with, 1);
        if (lane == 0)
            before = carry;
        if (inside)
            Sum::take(call, b, h, t, c, start ? 0 : before, with);
        carry = shuffle(with, SR_WARP - 1);
    }
    if (kept && lane == 0)
        *kept = carry;
}

template <class Sum>
static srnn_status axes_start_running(const sr_axes_call &call, int heads, int width,
                                      cudaStream_t stream) {
    AXES_START_WARPS(axes_running<Sum>, (int64_t)call.B * heads * width, call, heads, width);
    return SRNN_OK;
}

/* out (columns); NULL: not wanted. */
template <class Term>
static srnn_status axes_sum_rows(float *out, const sr_axes_call &call, int64_t rows, int columns,
                                 cudaStream_t stream) {
    return sum_rows<Term>(out, call, call.scratch.partial, rows, columns, stream);
}

#endif
