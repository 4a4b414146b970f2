/* reverse.h (private): the delta rule in chunks, backward: the walk from the last span to the
 * first, for the gradients of the states and of the values. With R the gradient of the state
 * after a span:
 *
 *     dU = diag(e^(c_last - c)) K R + sum P' dN, over the query heads of the group
 *     dV = diag(beta) X' dU
 *     R before it = e^c_last R + sum scale Q' diag(e^c) dN - K' diag(e^c) dV */
#ifndef SR_ATTENTION_CUDA_CHUNKS_DELTA_REVERSE_H
#define SR_ATTENTION_CUDA_CHUNKS_DELTA_REVERSE_H

#include "attention/cuda/chunks/delta/walk.h"

/* Warps of a block of which a multiprocessor has two, or with wide keys one. */
template <class Products, int F> struct reverse_shape {
    static constexpr int blocks = F == 64 ? 2 : 1;

    /* At most as many as slots. */
    static constexpr SR_BOTH int scorers(int slots) {
        const int most = F == 64 ? Products::reverse_scorers : 3;
        return most < slots ? most : slots;
    }
    static constexpr SR_BOTH int warps(int slots) {
        return SR_DELTA_STRIPS + 1 + scorers(slots);
    }
    static constexpr int threads = warps(SR_DELTA_SLOTS_MOST) * SR_WARP;
};

/* Of a slot: `values` are gradients of numerators, `solved` is not transposed. */
template <int F> struct reverse_slot : delta_slot<F, true> {
    int group; /* the span of which query head of the group */
};

struct reverse_head {
    int b, head, slice;
};

/* Rows of X in the span, to its blocks. */
SR_DEVICE void load_solved(sr_bf16 *to, const sr_bf16 *from, const delta_span &span) {
#pragma unroll 4
    for (int n = delta_lane(); n < SR_DELTA_BLOCKS * 32; n += SR_WARP) {
        const int block = n / 32, row = n / 2 % 16, chunk = n % 2;
        const int i = block < 1 ? 0 : block < 3 ? 1 : block < 6 ? 2 : 3, at = 16 * i + row;
        const bool counts = at >= span.from && at < span.past;
        cp_async_16(to + block * 256 + sr_tile<16>::offset(row, chunk), from + n * 8,
                    counts ? 16 : 0);
    }
}

template <int F>
SR_DEVICE void load_span(reverse_slot<F> &slot, const sr_chunk_call &call,
                         const delta_places &places, const reverse_head &at, const delta_span &span,
                         int group) {
    const int lane = delta_lane(), query = at.head * call.group + group;
    const int kv = at.b * call.Hkv + at.head;
    delta_load<F, SR_WARP>(slot.keys, call.k.row(at.b, call.key_head(at.head), 0), call.k.time,
                           span, 0, call.F, lane);
    delta_load<F, SR_WARP>(slot.queries, call.q.row(at.b, call.query_head(query), 0), call.q.time,
                           span, 0, call.F, lane);
    delta_load<SR_DELTA_SLICE, SR_WARP>(slot.values, call.d_numerator.row(at.b, query, 0),
                                        call.d_numerator.time, span, at.slice * SR_DELTA_SLICE,
                                        call.V, lane);
    load_solved(slot.solved,
                places.solved + ((int64_t)kv * delta_chunks(call.T) + span.t0 / SR_DELTA_CHUNK) *
                                    SR_DELTA_PAIRS,
                span);
    if (call.decays > 0)
        delta_load_numbers(slot.gate, call.gate + (int64_t)kv * call.T, span);
    delta_load_numbers(slot.factors.beta, call.beta + (int64_t)kv * call.T, span);
    if (lane == 0) {
        slot.span = span;
        slot.group = group;
    }
}

/* c (16 values x 64 tokens) += dN' P; R' += scale dN' diag(e^c) Q. */
template <class Products, int F>
SR_DEVICE void take_query(float (&c)[8][4], delta_state<F> &later, const reverse_slot<F> &slot,
                          int strip) {
    const int lane = delta_lane();
    delta_strip d_numerators;
    d_numerators.get(slot.values, strip);
    float d[8][4];
    Products::times_later(d, d_numerators.a, slot.scores);
#pragma unroll
    for (int n = 0; n < 32; n++)
        c[n / 4][n % 4] += d[n / 4][n % 4];
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++)
        delta_scale_columns(d_numerators.a[i], slot.of_queries.before, i, lane);
    Products::add_rows(later, d_numerators.a, slot.queries);
}

/* From c = dU' those of the values, and R' -= dV' diag(e^c) K. */
template <class Products, int F>
SR_DEVICE void take_keys(delta_strip &d_values, const float (&c)[8][4], delta_state<F> &later,
                         const reverse_slot<F> &slot) {
    float d_v[8][4];
    delta_strip d_used;
    d_used.set(c);
    Products::times_later(d_v, d_used.a, slot.solved);
    delta_scale_tokens(d_v, slot.factors.beta);
    d_values.set(d_v);
    delta_scale_tokens(d_v, slot.factors.before);
    delta_strip taken;
    taken.set(d_v);
#pragma unroll
    for (int n = 0; n < 4 * SR_DELTA_STEPS; n++)
        taken.a[n / 4][n % 4] ^= 0x80008000u;
    Products::add_rows(later, taken.a, slot.keys);
}

/* A strip's walk. */
template <class Products, int F>
SR_DEVICE void walk_strip(const sr_chunk_call &call, const delta_places &places,
                          const reverse_head &at, reverse_slot<F> *slots,
                          const delta_barriers &barriers, int strip) {
    const int value = at.slice * SR_DELTA_SLICE + strip * SR_DELTA_STRIP;
    const int head = at.b * call.Hkv + at.head;
    const int64_t numbers = (int64_t)call.F * call.V;
    delta_state<F> later; /* R' */
    float c[8][4];
    later.clear();
    delta_clear(c);
    if (call.d_final)
        later.load(call.d_final + head * numbers, value, call.F, call.V);
    delta_run_strip(slots, barriers, [&](reverse_slot<F> &slot) {
        const delta_span span = slot.span;
        if (slot.group == 0) {
            if (span.ends)
                later.clear();
            if (span.closes_chunk(call.T)) {
                const int64_t chunk =
                    (int64_t)head * delta_chunks(call.T) + span.t0 / SR_DELTA_CHUNK;
                delta_store_strip(places.d_states + (chunk * call.V + value) * call.F, call.F,
                                  later.s, 0, call.V - value, 0, call.F);
            }
            Products::times_rows(c, later, slot.keys);
            delta_scale_tokens(c, slot.factors.until);
            later.multiply(slot.factors.across);
        }
        take_query<Products>(c, later, slot, strip);
        if (slot.group < call.group - 1)
            return;
        delta_strip d_values;
        take_keys<Products>(d_values, c, later, slot);
        Products::store(call.d_v.row(at.b, at.head, span.t0) + value, call.d_v.time, slot.values,
                        d_values, strip, span, call.V - value);
    });
    if (call.d_initial)
        later.store(call.d_initial + head * numbers, value, call.F, call.V);
}

/* A block walks a head of keys and values from its last span, which it sees once for each query
 * head of the group. Warps 0 .. 3 are the strips, which keep the state's gradient in registers,
 * then the loader (cp.async, global -> shared) and scorers; see walk.h. */
template <class Products, int F>
__global__ void __launch_bounds__(reverse_shape<Products, F>::threads,
                                  reverse_shape<Products, F>::blocks)
    delta_reverse(const __grid_constant__ sr_chunk_call call,
                  const __grid_constant__ delta_places places, int slot_count) {
    using Slot = reverse_slot<F>;
    SR_SHARED(Slot, slots);
    const int warp = of_warp((int)threadIdx.x / SR_WARP), index = (int)blockIdx.x;
    const reverse_head at = {index / call.Hkv, index % call.Hkv, (int)blockIdx.y};
    const int scorers = reverse_shape<Products, F>::scorers(slot_count);
    const delta_barriers barriers = {slot_count, SR_WARP};
    if (warp < SR_DELTA_STRIPS) {
        Products::strips_begin();
        walk_strip<Products, F>(call, places, at, slots, barriers, warp);
        return;
    }
    Products::others_begin();
    if (warp == SR_DELTA_STRIPS) {
        const int32_t *const first = call.first + (int64_t)at.b * call.T;
        int end = call.T, group = 0;
        delta_run_loader<Products>(slots, barriers, scorers, [&](Slot &slot) {
            if (end == 0)
                return false;
            const delta_span span = delta_span_before(first, end, call.T, call.initial != nullptr);
            load_span<F>(slot, call, places, at, span, group);
            group = group + 1 < call.group ? group + 1 : 0;
            end = group > 0 ? end : span.t0 + span.from;
            return true;
        });
    } else {
        delta_run_worker<Products>(
            slots, barriers, warp - SR_DELTA_STRIPS - 1, scorers, 1, scorers, [&](Slot &slot, int) {
                delta_all_squares<F>(slot.factors.unit, slot.keys, call.feature);
                delta_all_squares<F>(slot.of_queries.unit, slot.queries, call.feature);
                __syncwarp();
                slot.of_queries.fill(slot.factors.fill(call.decays > 0 ? slot.gate : nullptr,
                                                       call.feature),
                                     call.scale, call.feature);
                __syncwarp();
                delta_scores<F>(slot.scores, slot.queries, slot.keys, slot.factors.pairs.sum,
                                slot.factors.pairs.key,
                                [&](int row) { return call.scale * slot.of_queries.unit[row]; });
            });
    }
}

template <class Products, int F>
static srnn_status start_reverse(const sr_chunk_call &call, const sr_chunk_shape &shape,
                                 const delta_places &places, cudaStream_t stream) {
    using Shape = reverse_shape<Products, F>;
    const size_t slot = sizeof(reverse_slot<F>);
    const size_t whole = Shape::blocks == 2 ? shape.shared_bytes / 2 - 1024 : shape.shared_bytes;
    int slots = (int)(whole / slot);
    slots = slots > SR_DELTA_SLOTS_MOST ? SR_DELTA_SLOTS_MOST : slots < 1 ? 1 : slots;
    const int slices = (call.V + SR_DELTA_SLICE - 1) / SR_DELTA_SLICE;
    SR_CUDA(sr_launch(delta_reverse<Products, F>,
                      dim3((unsigned)(call.B * call.Hkv), (unsigned)slices),
                      dim3((unsigned)Shape::warps(slots) * SR_WARP), slots * slot, stream, call,
                      places, slots));
    return SRNN_OK;
}

#endif
