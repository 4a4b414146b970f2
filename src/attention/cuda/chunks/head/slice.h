/* slice.h (private): gradients of a chunk of a head of up to 64 values, all of whose tiles a block
 * has in shared memory at once (single.cu, shared.cu): copies, values, sums.
 *
 * `Memory` has the tiles `values`, `gradients` (of numerators), `keys`, `state`, `later` and
 * `weights`, the place, tokens and sums. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_HEAD_SLICE_H
#define SR_ATTENTION_CUDA_CHUNKS_HEAD_SLICE_H

#include "attention/cuda/chunks/head/gradients.h"

/* Starts the copies of a head's tiles. */
template <int F, class Memory>
SR_DEVICE void load_head(const sr_chunk_call &call, Memory *shared, int h,
                         const head_states &before, const head_states &later) {
    const gradients_place &at = shared->at;
    const int64_t place = at.number(call, h) * (SR_CHUNK * F);
    chunk_load<SR_CHUNK, THREADS>(shared->values, chunk_rows(call.v, at.b, h, call.V), at.span);
    chunk_load<SR_CHUNK, THREADS>(shared->gradients, chunk_rows(call.d_numerator, at.b, h, call.V),
                                  at.span);
    const int own = 8 * thread_again();
#pragma unroll
    for (int n = 0; n < SR_CHUNK * F; n += 8 * THREADS) {
        if (at.reads_state)
            cp_async_16(shared->state + n + own, before.tiles + place + n + own);
        if (at.reads_later)
            cp_async_16(shared->later + n + own, later.tiles + place + n + own);
    }
    cp_async_commit();
}

/* dv of a head, and <v, dv> without the skip. */
template <int F, class Memory>
SR_DEVICE void value_gradients(const sr_chunk_call &call, Memory *shared, int h) {
    const gradients_place &at = shared->at;
    const int own = at.own(), side = at.side();
    float c[PIECES][4];
    clear_pieces(c);
    if (at.reads_later) {
#pragma unroll 1
        for (int part = 0; part < F / SR_CHUNK; part++)
            multiply_by_rows<F, SR_CHUNK, SR_CHUNK>(c, shared->keys, own, SR_CHUNK_STRIPS * part,
                                                    shared->later + part * SR_CHUNK_SQUARE,
                                                    8 * PIECES * side);
        scale_pieces(c, shared->tokens.until + own);
    }
    const int lane = lane_again();
#pragma unroll 1
    for (int row = own; row < SR_CHUNK; row += 16) {
        uint32_t a[4];
        load_a_columns<SR_CHUNK>(a, shared->weights, row, own / 16, lane);
        multiply_rows<SR_CHUNK>(c, a, shared->gradients, row, at.column(0) / 16, lane);
    }
    if (call.value_dot)
        add_row_dots<SR_CHUNK>(shared->values_dot[side], c, shared->values, own, at.column(0));
    if (call.skip) {
        const float factor = call.skip[h];
        const row_words<SR_CHUNK> words(own, at.column(0));
#pragma unroll
        for (int n = 0; n < PIECES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float2 pair = words.get(shared->gradients, n, half);
                c[n][2 * half] = fmaf(factor, pair.x, c[n][2 * half]);
                c[n][2 * half + 1] = fmaf(factor, pair.y, c[n][2 * half + 1]);
            }
    }
    if (call.d_v.data)
        store_columns(call.d_v, at, h, c, at.column(0), call.V);
}

/* Sums of a head that are complete: gradients of its gates, and <v, dv>. Warps 0, and 1 and 2. */
template <class Memory>
SR_DEVICE void store_sums(const sr_chunk_call &call, const Memory *shared, int h) {
    const gradients_place &at = shared->at;
    const int thread = (int)threadIdx.x;
    if (thread < SR_WARP) {
        if (call.d_gate)
            store_gates(call, shared->sums, at, h, shared->tokens.across);
    } else if (call.value_dot && thread < SR_WARP + SR_CHUNK) {
        const int t = at.span.t0 + thread - SR_WARP;
        if (t >= at.span.from && t < at.span.past)
            call.value_dot[call.row(call.Hkv, at.b, h, t)] =
                (double)(shared->values_dot[0][thread - SR_WARP] +
                         shared->values_dot[1][thread - SR_WARP]);
    }
}

#endif
