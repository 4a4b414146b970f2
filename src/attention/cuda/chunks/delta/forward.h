/* forward.h (private): the delta rule in chunks, forward: numerators, or what the backward pass
 * needs of the same walk, by the products of a class as delta_products. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_DELTA_FORWARD_H
#define SR_ATTENTION_CUDA_CHUNKS_DELTA_FORWARD_H

#include "attention/cuda/chunks/delta/walk.h"

/* KEEP: the walk of the backward pass, for the states before chunks, X and U instead of numerators.
 * FEW: a multiprocessor has one block, with more warps and slots. */
template <int F, bool KEEP, bool FEW> struct forward_shape {
    using Slot = delta_slot<F, !KEEP>;
    static constexpr int blocks = FEW ? 1 : 2; /* of a multiprocessor */
    static constexpr int kinds = KEEP ? 1 : 2; /* of tasks of a span: X, and P */

    /* At most one span a slot. */
    static constexpr SR_BOTH int workers(int slots) {
        const int most = F == 64 && FEW ? KEEP ? 4 : 6 : 3;
        return most < kinds * slots ? most : kinds * slots;
    }
    static constexpr SR_BOTH int marks(int slots) {
        return (workers(slots) + kinds - 1) / kinds;
    }
    static constexpr SR_BOTH int warps(int slots) {
        return SR_DELTA_STRIPS + 1 + workers(slots);
    }
    static constexpr int threads = warps(SR_DELTA_SLOTS_MOST) * SR_WARP;
};

struct forward_head {
    int b, query, head, slice; /* head: of keys and values */
};

/* The rows of the next span, from token t on. */
template <int F, bool KEEP>
SR_DEVICE void load_span(delta_slot<F, !KEEP> &slot, const sr_chunk_call &call,
                         const forward_head &at, const delta_span &span) {
    const int lane = delta_lane();
    delta_load<F, SR_WARP>(slot.keys, call.k.row(at.b, call.key_head(at.head), 0), call.k.time,
                           span, 0, call.F, lane);
    if constexpr (!KEEP)
        delta_load<F, SR_WARP>(slot.queries, call.q.row(at.b, call.query_head(at.query), 0),
                               call.q.time, span, 0, call.F, lane);
    delta_load<SR_DELTA_SLICE, SR_WARP>(slot.values, call.v.row(at.b, at.head, 0), call.v.time,
                                        span, at.slice * SR_DELTA_SLICE, call.V, lane);
    const int64_t row = call.row(call.Hkv, at.b, at.head, 0);
    if (call.decays > 0)
        delta_load_numbers(slot.gate, call.gate + row, span);
    delta_load_numbers(slot.factors.beta, call.beta + row, span);
    if (lane == 0)
        slot.span = span;
}

/* X to the workspace, rows of the span, not transposed. */
SR_DEVICE void keep_solved(sr_bf16 *to, const sr_bf16 *solved, const delta_span &span) {
    const int lane = delta_lane();
#pragma unroll 1
    for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll 1
        for (int j = 0; j <= i; j++) {
            uint32_t a[4];
            a_columns<16>(a, solved + delta_pairs_at(i, j), 0, 0, lane);
            delta_store_fragment(to + delta_pairs_at(i, j), 16, a, span.from - 16 * i,
                                 span.past - 16 * i, 16, lane);
        }
}

/* U, 16 values of a span: X of what the state did not know. */
template <class Products, int F, class Slot>
SR_DEVICE void span_values(float (&c)[8][4], const delta_state<F> &state, const Slot &slot,
                           int strip) {
    delta_strip rest;
    Products::times_rows(c, state, slot.keys);
    const int lane = delta_lane();
#pragma unroll
    for (int m = 0; m < SR_DELTA_STEPS; m++) {
        a_columns<SR_DELTA_SLICE>(rest.a[m], slot.values, 16 * m, strip, lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int token = 16 * m + 8 * half + delta_column(0, lane);
            const float2 before = delta_pair(slot.factors.before, token);
            const float2 beta = delta_pair(slot.factors.beta, token);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float *const known = c[2 * m + half] + 2 * n;
                const float2 value = unpack_bf16(rest.a[m][2 * half + n]);
                rest.a[m][2 * half + n] = pack_bf16(beta.x * (value.x - before.x * known[0]),
                                                    beta.y * (value.y - before.y * known[1]));
            }
        }
    }
    Products::times_solved(c, rest.a, slot.solved);
}

/* A strip's walk. */
template <class Products, int F, bool KEEP>
SR_DEVICE void walk_strip(const sr_chunk_call &call, const delta_places &places,
                          const forward_head &at, delta_slot<F, !KEEP> *slots,
                          const delta_barriers &barriers, int strip) {
    const int value = at.slice * SR_DELTA_SLICE + strip * SR_DELTA_STRIP;
    const int head = at.b * call.Hkv + at.head;
    const int64_t numbers = (int64_t)call.F * call.V;
    delta_state<F> state;
    state.clear();
    if (call.initial)
        state.load(call.initial + head * numbers, value, call.F, call.V);
    delta_run_strip(slots, barriers, [&](delta_slot<F, !KEEP> &slot) {
        const delta_span span = slot.span;
        if (span.fresh)
            state.clear();
        if (KEEP && span.opens_chunk()) {
            const int64_t chunk = (int64_t)head * delta_chunks(call.T) + span.t0 / SR_DELTA_CHUNK;
            delta_store_strip(places.states + (chunk * call.V + value) * call.F, call.F, state.s, 0,
                              call.V - value, 0, call.F);
        }
        float c[8][4];
        delta_strip used, left;
        span_values<Products>(c, state, slot, strip);
        if constexpr (KEEP)
            used.set(c);
        else
            used.set(c, slot.factors.unit);
        delta_scale_tokens(c, slot.factors.until);
        left.set(c);
        if constexpr (KEEP)
            Products::store(places.used + call.row(call.Hkv, at.b, at.head, span.t0) * call.V +
                                value,
                            call.V, slot.values, used, strip, span, call.V - value);
        else
            Products::store_numerators(call.numerator.row(at.b, at.query, span.t0) + value,
                                       call.numerator.time, slot, state, used, call.scale, strip,
                                       call.V - value);
        state.multiply(slot.factors.across); /* S' = e^c_last S' + U' diag(e^(c_last - c)) K */
        Products::add_rows(state, left.a, slot.keys);
    });
    if (!KEEP && call.final && at.query % call.group == 0)
        state.store(call.final + head * numbers, value, call.F, call.V);
}

/* ---- workers ---- */

/* X of a span, and the factors of its tokens. */
template <int F, bool KEEP>
SR_DEVICE void solve(delta_slot<F, !KEEP> &slot, const sr_chunk_call &call,
                     const delta_places &places, const forward_head &at) {
    delta_all_squares<F>(slot.factors.unit, slot.keys, call.feature);
    if constexpr (!KEEP)
        delta_all_squares<F>(slot.of_queries.unit, slot.queries, call.feature);
    __syncwarp();
    const float2 sum = slot.factors.fill(call.decays > 0 ? slot.gate : nullptr, call.feature);
    if constexpr (!KEEP)
        slot.of_queries.fill(sum, call.scale, call.feature);
    __syncwarp();
    delta_solve_span<F>(slot.solved, slot.keys, slot.factors);
    __syncwarp();
    if (KEEP && at.slice == 0)
        keep_solved(places.solved + ((int64_t)(at.b * call.Hkv + at.head) * delta_chunks(call.T) +
                                     slot.span.t0 / SR_DELTA_CHUNK) *
                                        SR_DELTA_PAIRS,
                    slot.solved, slot.span);
}

/* P of a span, without the factors of queries and keys: strips have them. */
template <int F, bool KEEP>
SR_DEVICE void score(delta_slot<F, !KEEP> &slot, const sr_chunk_call &call) {
    if constexpr (!KEEP) {
        const float2 sum = delta_running(call.decays > 0 ? slot.gate : nullptr);
        delta_put(slot.sum, sum.x, sum.y);
        __syncwarp();
        delta_scores<F>(slot.scores, slot.queries, slot.keys, slot.sum, slot.sum,
                        [](int) { return 1.0f; });
    }
}

/* A block walks a head from its first span: without KEEP that of a query head, whose state is made
 * again for each head of a group. Warps 0 .. 3 are the strips, whose state stays in registers,
 * then the loader (cp.async, global -> shared) and workers; see walk.h. */
template <class Products, int F, bool KEEP, bool FEW>
__global__ void __launch_bounds__(forward_shape<F, KEEP, FEW>::threads,
                                  forward_shape<F, KEEP, FEW>::blocks)
    delta_forward(const __grid_constant__ sr_chunk_call call,
                  const __grid_constant__ delta_places places, int slot_count) {
    using Shape = forward_shape<F, KEEP, FEW>;
    using Slot = typename Shape::Slot;
    SR_SHARED(Slot, slots);
    const int warp = of_warp((int)threadIdx.x / SR_WARP);
    const int workers = Shape::workers(slot_count), marks = Shape::marks(slot_count);
    const int heads = KEEP ? call.Hkv : call.H, index = (int)blockIdx.x;
    forward_head at = {index / heads, index % heads, index % heads, (int)blockIdx.y};
    if (!KEEP)
        at.head = at.query / call.group;
    const delta_barriers barriers = {slot_count, Shape::kinds * SR_WARP};
    if (warp < SR_DELTA_STRIPS) {
        if constexpr (!FEW)
            Products::strips_begin();
        walk_strip<Products, F, KEEP>(call, places, at, slots, barriers, warp);
        return;
    }
    if constexpr (!FEW)
        Products::others_begin();
    if (warp == SR_DELTA_STRIPS) {
        const int32_t *const first = call.first + (int64_t)at.b * call.T;
        int t = 0;
        delta_run_loader<Products>(slots, barriers, marks, [&](Slot &slot) {
            if (t >= call.T)
                return false;
            const delta_span span = delta_span_from(first, t, call.T, call.initial != nullptr);
            load_span<F, KEEP>(slot, call, at, span);
            t = span.t0 + span.past;
            return true;
        });
    } else {
        const auto work = [&](Slot &slot, int kind) {
            if (kind == 0)
                solve<F, KEEP>(slot, call, places, at);
            else
                score<F, KEEP>(slot, call);
        };
        delta_run_worker<Products>(slots, barriers, warp - SR_DELTA_STRIPS - 1, workers,
                                   Shape::kinds, marks, work);
    }
}

/* ---- launches ---- */

template <class Products, int F, bool KEEP, bool FEW>
static srnn_status start_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                 const delta_places &places, cudaStream_t stream) {
    using Shape = forward_shape<F, KEEP, FEW>;
    const size_t slot = sizeof(typename Shape::Slot);
    const size_t whole = Shape::blocks == 1 ? shape.shared_bytes : shape.shared_bytes / 2 - 1024;
    int slots = (int)(whole / slot);
    slots = slots > SR_DELTA_SLOTS_MOST ? SR_DELTA_SLOTS_MOST : slots < 1 ? 1 : slots;
    const int heads = call.B * (KEEP ? call.Hkv : call.H);
    const int slices = (call.V + SR_DELTA_SLICE - 1) / SR_DELTA_SLICE;
    SR_CUDA(sr_launch(delta_forward<Products, F, KEEP, FEW>,
                      dim3((unsigned)heads, (unsigned)slices),
                      dim3((unsigned)Shape::warps(slots) * SR_WARP), slots * slot, stream, call,
                      places, slots));
    return SRNN_OK;
}

/* Where there is no second block for a multiprocessor, one has more warps. */
template <class Products, int F, bool KEEP>
static srnn_status start_forward_any(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                     const delta_places &places, cudaStream_t stream) {
    const int64_t blocks = (int64_t)call.B * (KEEP ? call.Hkv : call.H) *
                           ((call.V + SR_DELTA_SLICE - 1) / SR_DELTA_SLICE);
    if constexpr (F <= 64)
        if (blocks > shape.multiprocessors)
            return start_forward<Products, F, KEEP, false>(call, shape, places, stream);
    return start_forward<Products, F, KEEP, true>(call, shape, places, stream);
}

#endif
