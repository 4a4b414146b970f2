/* forward.cu: the delta rule in chunks, forward: numerators, or what the backward pass
 * needs of the same walk. */
#include "attention/cuda/chunks/delta/walk.h"

/* KEEP: the walk of the backward pass, for the states before chunks, X and U instead of numerators.
 * SOLVERS: warps that solve, at most. */
template <int F, bool KEEP, int SOLVERS> struct forward_shape {
    using Slot = delta_slot<F, !KEEP>;
    static constexpr int scorers = KEEP ? 0 : 1;
    static constexpr int others = SR_DELTA_STRIPS + 1 + scorers; /* warps that are no solvers */
    static constexpr int threads = (others + SOLVERS) * SR_WARP;
    static constexpr int blocks = F == 64 && SOLVERS == 2 ? 2 : 1; /* of a multiprocessor */
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
template <int F, class Slot>
SR_DEVICE void span_values(float (&c)[8][4], const delta_state<F> &state, const Slot &slot,
                           int strip) {
    delta_strip rest;
    state.times_rows(c, slot.keys);
    const int lane = delta_lane();
#pragma unroll
    for (int m = 0; m < SR_DELTA_STEPS; m++) {
        a_columns<SR_DELTA_SLICE>(rest.a[m], slot.values, 16 * m, strip, lane);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int token = 16 * m + 8 * (n / 2) + delta_column(0, lane);
            const float *const known = c[2 * m + n / 2] + n % 2 * 2;
            const float2 value = unpack_bf16(rest.a[m][n]);
            const float x = value.x - slot.factors.before[token] * known[0];
            const float y = value.y - slot.factors.before[token + 1] * known[1];
            rest.a[m][n] =
                pack_bf16(slot.factors.beta[token] * x, slot.factors.beta[token + 1] * y);
        }
    }
    delta_clear(c);
#pragma unroll
    for (int j = 0; j < SR_DELTA_STEPS; j++)
#pragma unroll
        for (int i = j; i < SR_DELTA_STEPS; i++) {
            uint32_t b[4];
            b_columns<16>(b, slot.solved + delta_pairs_at(i, j), 0, 0, lane);
            mma_m16n8k16(c[2 * i], rest.a[j], b);
            mma_m16n8k16(c[2 * i + 1], rest.a[j], b + 2);
        }
}

/* Numerators of a span, a strip's 16 columns: 16 tokens at a time, e^c Q S + P U. */
template <int F, class Slot>
SR_DEVICE void span_numerators(const sr_chunk_call &call, const forward_head &at,
                               const delta_state<F> &state, const delta_strip &used,
                               const Slot &slot, int strip) {
    const int column = at.slice * SR_DELTA_SLICE + strip * SR_DELTA_STRIP;
    const delta_span &span = slot.span;
    sr_bf16 *const to = call.numerator.row(at.b, at.query, span.t0) + column;
    const int lane = delta_lane();
#pragma unroll 1
    for (int i = 0; i < SR_DELTA_STEPS; i++) {
        float c[2][4] = {};
        uint32_t a[4];
#pragma unroll
        for (int k = 0; k < F / 16; k++) {
            uint32_t known[4];
            a_rows<F>(a, slot.queries, 16 * i, k, lane);
            state.operand(known, k);
            delta_multiply_strip(c, a, known);
        }
#pragma unroll
        for (int e = 0; e < 8; e++)
            c[e / 4][e % 4] *=
                call.scale * slot.of_queries.before[16 * i + delta_row(e / 2 % 2, lane)];
#pragma unroll
        for (int j = 0; j < SR_DELTA_STEPS; j++) {
            if (j > i)
                break;
            a_rows<16>(a, slot.scores + delta_pairs_at(i, j), 0, 0, lane);
            delta_multiply_strip(c, a, used.a[j]);
        }
        pack_a(a, c[0], c[1]);
        delta_store_fragment(to + 16 * i * call.numerator.time, call.numerator.time, a,
                             span.from - 16 * i, span.past - 16 * i, call.V - column, lane);
    }
}

/* S' = e^c_last S' + U' diag(e^(c_last - c)) K; `left` has U' diag(...). */
template <int F>
SR_DEVICE void join_values(delta_state<F> &state, const delta_strip &left, const sr_bf16 *keys,
                           float across) {
    const int lane = delta_lane();
    state.multiply(across);
#pragma unroll
    for (int m = 0; m < SR_DELTA_STEPS; m++)
        add_product<F>(state.s, left.a[m], keys, 16 * m, 0, lane);
}

/* A strip's walk. */
template <int F, bool KEEP>
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
        span_values(c, state, slot, strip);
        used.set(c);
        delta_scale_tokens(c, slot.factors.until);
        left.set(c);
        if constexpr (KEEP) {
            const int column = at.slice * SR_DELTA_SLICE;
            used.put(slot.values, strip);
            __syncwarp();
            delta_store_columns(places.used + call.row(call.Hkv, at.b, at.head, span.t0) * call.V +
                                    column,
                                call.V, slot.values, strip, span, call.V - column);
        } else
            span_numerators(call, at, state, used, slot, strip);
        join_values(state, left, slot.keys, slot.factors.across);
    });
    if (!KEEP && call.final && at.query % call.group == 0)
        state.store(call.final + head * numbers, value, call.F, call.V);
}

/* A block walks a head from its first span: without KEEP that of a query head, whose state is made
 * again for each head of a group. Warps 0 .. 3 are the strips, whose state stays in registers,
 * then the loader (cp.async, global -> shared), the scorer (not with KEEP) and the solvers; see
 * walk.h. */
template <int F, bool KEEP, int SOLVERS>
__global__ void __launch_bounds__(forward_shape<F, KEEP, SOLVERS>::threads,
                                  forward_shape<F, KEEP, SOLVERS>::blocks)
    delta_forward(const __grid_constant__ sr_chunk_call call,
                  const __grid_constant__ delta_places places, int slot_count) {
    using Shape = forward_shape<F, KEEP, SOLVERS>;
    using Slot = typename Shape::Slot;
    SR_SHARED(Slot, slots);
    const int warp = of_warp((int)threadIdx.x / SR_WARP);
    const int solvers = (int)blockDim.x / SR_WARP - Shape::others;
    const int heads = KEEP ? call.Hkv : call.H, index = (int)blockIdx.x;
    forward_head at = {index / heads, index % heads, index % heads, (int)blockIdx.y};
    if (!KEEP)
        at.head = at.query / call.group;
    const delta_barriers barriers = {slot_count, (1 + Shape::scorers) * SR_WARP};
    if (warp < SR_DELTA_STRIPS) {
        walk_strip<F, KEEP>(call, places, at, slots, barriers, warp);
    } else if (warp == SR_DELTA_STRIPS) {
        const int32_t *const first = call.first + (int64_t)at.b * call.T;
        int t = 0;
        delta_run_loader(slots, barriers, solvers, [&](Slot &slot) {
            if (t >= call.T)
                return false;
            const delta_span span = delta_span_from(first, t, call.T, call.initial != nullptr);
            load_span<F, KEEP>(slot, call, at, span);
            t = span.t0 + span.past;
            return true;
        });
    } else if (!KEEP && warp == SR_DELTA_STRIPS + 1) {
        if constexpr (!KEEP)
            delta_run_worker(slots, barriers, 0, 1, solvers - 1, [&](Slot &slot) {
                delta_exponents &exponents = slot.exponents;
                delta_query_factors &of_queries = slot.of_queries;
                delta_all_squares<F>(exponents.key, slot.keys, call.feature);
                delta_all_squares<F>(of_queries.unit, slot.queries, call.feature);
                __syncwarp();
                const float2 units = delta_units(exponents.key, call.feature);
                of_queries.fill(exponents.fill(call.decays > 0 ? slot.gate : nullptr, units),
                                call.feature);
                __syncwarp();
                delta_scores<F>(slot.scores, slot.queries, slot.keys, exponents, of_queries.unit,
                                call.scale);
            });
    } else {
        delta_run_worker(slots, barriers, warp - Shape::others, solvers, 0, [&](Slot &slot) {
            delta_all_squares<F>(slot.factors.unit, slot.keys, call.feature);
            __syncwarp();
            slot.factors.fill(call.decays > 0 ? slot.gate : nullptr, call.feature);
            __syncwarp();
            delta_solve_span<F>(slot.solved, slot.keys, slot.factors);
            __syncwarp();
            if (KEEP && at.slice == 0)
                keep_solved(places.solved +
                                ((int64_t)(at.b * call.Hkv + at.head) * delta_chunks(call.T) +
                                 slot.span.t0 / SR_DELTA_CHUNK) *
                                    SR_DELTA_PAIRS,
                            slot.solved, slot.span);
        });
    }
}

/* ---- launches ---- */

template <int F, bool KEEP, int SOLVERS>
static srnn_status start(const sr_chunk_call &call, const sr_chunk_shape &shape,
                         const delta_places &places, cudaStream_t stream) {
    using Shape = forward_shape<F, KEEP, SOLVERS>;
    const size_t slot = sizeof(typename Shape::Slot);
    const size_t whole = Shape::blocks == 1 ? shape.shared_bytes : shape.shared_bytes / 2 - 1024;
    int slots = (int)(whole / slot);
    slots = slots > SR_DELTA_SLOTS_MOST ? SR_DELTA_SLOTS_MOST : slots < 1 ? 1 : slots;
    const int solvers = SOLVERS < slots ? SOLVERS : slots;
    const int heads = call.B * (KEEP ? call.Hkv : call.H);
    const int slices = (call.V + SR_DELTA_SLICE - 1) / SR_DELTA_SLICE;
    SR_CUDA(sr_launch(delta_forward<F, KEEP, SOLVERS>, dim3((unsigned)heads, (unsigned)slices),
                      dim3((unsigned)(Shape::others + solvers) * SR_WARP), slots * slot, stream,
                      call, places, slots));
    return SRNN_OK;
}

/* Where there is no second block for a multiprocessor, one has more solvers and slots. */
template <bool KEEP>
static srnn_status start_any(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             const delta_places &places, cudaStream_t stream) {
    const int64_t blocks = (int64_t)call.B * (KEEP ? call.Hkv : call.H) *
                           ((call.V + SR_DELTA_SLICE - 1) / SR_DELTA_SLICE);
    if (call.F > 64)
        return start<128, KEEP, 2>(call, shape, places, stream);
    if (blocks <= shape.multiprocessors)
        return start<64, KEEP, 4>(call, shape, places, stream);
    return start<64, KEEP, 2>(call, shape, places, stream);
}

srnn_status sr_delta_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             cudaStream_t stream) {
    return start_any<false>(call, shape, delta_places(), stream);
}

srnn_status sr_delta_states(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            const delta_places &places, cudaStream_t stream) {
    return start_any<true>(call, shape, places, stream);
}
