/* channel_forward.cu: additive writes with a gate per channel, in chunks: numerators and the final
 * state; and the states before chunks, for the backward pass. */
#include "attention/cuda/chunks/channel.h"
#include "device/cuda/check.h"

template <int F, int V> struct forward_shape {
    /* blocks for which registers are allotted */
    static constexpr int blocks = 1;
    static constexpr int pieces = V / 16; /* of a warp: 16 rows, half of the columns */
};

template <int F, int V> struct forward_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[2][SR_CHUNK * V];
    sr_bf16 scaled_queries[SR_CHUNK * F], scaled_keys[SR_CHUNK * F];
    sr_bf16 state[F * V];
    channel_gates<F> gates;
    channel_totals<F> totals;
};

/* C += the level's pairs of rows own .. times values, from their column 8 `begin` on. One warp. */
template <int F, int V, int PIECES>
SR_DEVICE void visit_pairs(float (&c)[PIECES][4], const forward_memory<F, V> *shared,
                           const sr_bf16 *values, int own, int begin, const channel_level &level) {
#pragma unroll 1
    for (int at = 0; at <= own; at += 16) {
        if (!level.visits(own, at))
            continue;
        float w[2][4];
        uint32_t a[4];
        channel_pairs<F>(w, shared->scaled_queries, own, shared->scaled_keys, at, level);
        pack_a(a, w[0], w[1]);
        multiply_rows<V>(c, a, values, at, begin / 2);
    }
}

/* A block owns a head of keys and values and V of its value columns, and walks its spans in order,
 * the state in registers; a warp has 16 rows of numerators and half of the columns, and a strip of
 * the state. Copies of the next span start as soon as the tiles of this one are scaled: queries,
 * keys and gates then, values into a second stage. For each span: gates summed up; barrier; for
 * each query head, level by level, queries and keys scaled, and with those of the last level the
 * state published in bf16; barrier; rows = Q S + (Q K') V, piece by piece, and the state takes in
 * the span. Where one level is enough, that makes two barriers. */
template <int F, int V>
__global__ void __launch_bounds__(CHANNEL_THREADS, (forward_shape<F, V>::blocks))
    channel_forward_walk(const __grid_constant__ sr_chunk_call call) {
    using Memory = forward_memory<F, V>;
    constexpr int P = forward_shape<F, V>::pieces, THREADS = CHANNEL_THREADS;
    SR_SHARED(Memory, shared);
    const int head = (int)blockIdx.x, v0 = V * (int)blockIdx.y;
    const int b = head / call.Hkv, kv = head % call.Hkv;
    const int warp = chunk_warp(), own = 16 * (warp % SR_CHUNK_STRIPS);
    const int begin = warp / SR_CHUNK_STRIPS * P;
    const sr_head_rows<const sr_bf16> keys = chunk_rows(call.k, b, call.key_head(kv), call.F);
    const sr_head_rows<const sr_bf16> values = chunk_rows(call.v, b, kv, call.V, v0);
    const float *const gate = call.gate + call.row(call.Hkv, b, kv, 0) * call.F;
    const auto queries = [&](int g) {
        return chunk_rows(call.q, b, call.query_head(kv * call.group + g), call.F);
    };
    sr_chunk_spans spans = chunk_spans(call, b);
    sr_chunk_span span = spans.after(0);
    channel_state<F, V> state;

    shared->gates.load(gate, call.F, span);
    chunk_load<F, THREADS>(shared->queries, queries(0), span);
    chunk_load<F, THREADS>(shared->keys, keys, span);
    chunk_load<V, THREADS>(shared->values[0], values, span);
    cp_async_commit();
    state.get(call, channel_state_of(call, call.initial, head), v0);
    for (int stage = 0;; stage ^= 1) {
        const bool more = span.past < call.T;
        const sr_chunk_span next = more ? spans.after(span.past) : span;
        const sr_bf16 *const values_now = shared->values[stage];
        cp_async_wait<0>();
        __syncwarp(); /* gates are ready */
        shared->gates.sum_up(shared->totals);
        __syncthreads(); /* tiles and totals are ready; no warp reads the previous ones */
        const int range = channel_range(shared->totals);
        channel_factors<F> factors;
        channel_across across;
        across.open(shared->totals, state.row(), range == SR_CHUNK);
        if (!span.continues)
            clear_pieces(state.s);
        for (int g = 0; g < call.group; g++) {
            float c[P][4];
            clear_pieces(c);
            if (g > 0) {
                cp_async_wait<0>();
                __syncthreads(); /* queries are ready; no warp reads the previous ones */
            }
            channel_level level = channel_first_level(range);
#pragma unroll 1
            while (!level.state) {
                factors.open(shared->gates, shared->totals, level);
                channel_scale_queries(shared->scaled_queries, shared->queries, shared->gates, factors,
                                      call.scale);
                channel_scale_keys(shared->scaled_keys, shared->keys, shared->gates, factors);
                __syncthreads(); /* the level's tiles are ready */
                visit_pairs(c, shared, values_now, own, begin, level);
                level = channel_next_level(level, range);
                __syncthreads(); /* no warp reads them */
            }
            factors.open(shared->gates, shared->totals, level);
            channel_scale_queries(shared->scaled_queries, shared->queries, shared->gates, factors,
                                  call.scale);
            if (g == 0) {
                channel_scale_keys(shared->scaled_keys, shared->keys, shared->gates, factors);
                state.multiply(across.half);
                state.publish(shared->state);
                state.multiply(across.whole);
            }
            __syncthreads(); /* scaled tiles and state are ready; no warp reads those they are of */
            if (g + 1 < call.group) {
                chunk_load<F, THREADS>(shared->queries, queries(g + 1), span);
                cp_async_commit();
            } else if (more) {
                chunk_load<F, THREADS>(shared->queries, queries(0), next);
                chunk_load<F, THREADS>(shared->keys, keys, next);
                chunk_load<V, THREADS>(shared->values[stage ^ 1], values, next);
                shared->gates.load(gate, call.F, next);
                cp_async_commit();
            }
            channel_multiply<F, V>(c, shared->scaled_queries, own, shared->state, begin);
            visit_pairs(c, shared, values_now, own, begin, level);
            const int column = v0 + 8 * begin;
            store_pieces<P>({call.numerator.row(b, kv * call.group + g, 0) + column,
                             call.numerator.time, call.V - column, true},
                            c, own, span);
            if (g == 0) {
                state.add(shared->scaled_keys, values_now);
                state.multiply(across.half);
            }
        }
        if (!more)
            break;
        span = next;
    }
    if (call.final)
        state.put(call, channel_state_of(call, call.final, head), v0);
}

template <int F, int V> struct states_memory {
    alignas(16) sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[2][SR_CHUNK * V];
    sr_bf16 scaled_keys[SR_CHUNK * F];
    channel_gates<F> gates;
    channel_totals<F> totals;
};

/* The same walk for the states before chunks alone, stored in bf16 from registers. */
template <int F, int V>
__global__ void __launch_bounds__(CHANNEL_THREADS, 1)
    channel_states_walk(const __grid_constant__ sr_chunk_call call, sr_bf16 *states) {
    using Memory = states_memory<F, V>;
    constexpr int THREADS = CHANNEL_THREADS;
    SR_SHARED(Memory, shared);
    const int head = (int)blockIdx.x, b = head / call.Hkv, kv = head % call.Hkv;
    const sr_head_rows<const sr_bf16> keys = chunk_rows(call.k, b, call.key_head(kv), call.F);
    const sr_head_rows<const sr_bf16> values = chunk_rows(call.v, b, kv, call.V);
    const float *const gate = call.gate + call.row(call.Hkv, b, kv, 0) * call.F;
    sr_bf16 *const to = states + (int64_t)head * chunk_count(call.T) * F * V;
    sr_chunk_spans spans = chunk_spans(call, b);
    sr_chunk_span span = spans.after(0);
    channel_state<F, V> state;

    shared->gates.load(gate, call.F, span);
    chunk_load<F, THREADS>(shared->keys, keys, span);
    chunk_load<V, THREADS>(shared->values[0], values, span);
    cp_async_commit();
    state.get(call, channel_state_of(call, call.initial, head), 0);
    for (int stage = 0;; stage ^= 1) {
        if (!span.continues)
            clear_pieces(state.s);
        if (span.from == span.t0)
            state.store(to + (int64_t)(span.t0 / SR_CHUNK) * F * V);
        if (span.past >= call.T)
            break;
        const sr_chunk_span next = spans.after(span.past);
        cp_async_wait<0>();
        __syncwarp(); /* gates are ready */
        shared->gates.sum_up(shared->totals);
        __syncthreads(); /* tiles and totals are ready; no warp reads the previous ones */
        channel_factors<F> factors;
        channel_across across;
        factors.open(shared->gates, shared->totals, {0, 0, true});
        across.open(shared->totals, state.row(), false);
        channel_scale_keys(shared->scaled_keys, shared->keys, shared->gates, factors);
        __syncthreads(); /* scaled keys are ready; no warp reads keys */
        chunk_load<F, THREADS>(shared->keys, keys, next);
        chunk_load<V, THREADS>(shared->values[stage ^ 1], values, next);
        shared->gates.load(gate, call.F, next);
        cp_async_commit();
        state.multiply(across.whole);
        state.add(shared->scaled_keys, shared->values[stage]);
        span = next;
    }
}

template <int F, int V>
static srnn_status start_forward(const sr_chunk_call &call, cudaStream_t stream) {
    const unsigned slices = (unsigned)((call.V + V - 1) / V);
    SR_CUDA(sr_launch(channel_forward_walk<F, V>, dim3((unsigned)(call.B * call.Hkv), slices),
                      dim3(CHANNEL_THREADS), sizeof(forward_memory<F, V>), stream, call));
    return SRNN_OK;
}

template <int F, int V>
static srnn_status start_states(const sr_chunk_call &call, sr_bf16 *states, cudaStream_t stream) {
    SR_CUDA(sr_launch(channel_states_walk<F, V>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(CHANNEL_THREADS), sizeof(states_memory<F, V>), stream, call, states));
    return SRNN_OK;
}

/* Few heads: two blocks share the values of one. */
srnn_status channel_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            cudaStream_t stream) {
    const bool few = shape.B * shape.Hkv < shape.multiprocessors;
    const int V = few ? 64 : channel_width(call.V);
    return SR_CHANNEL_START(start_forward, channel_width(call.F), V, call, stream);
}

srnn_status channel_states(const sr_chunk_call &call, sr_bf16 *states, cudaStream_t stream) {
    return SR_CHANNEL_START(start_states, channel_width(call.F), channel_width(call.V), call,
                            states, stream);
}

template <int F, int V> static size_t forward_bytes() {
    return sizeof(forward_memory<F, V>);
}

size_t channel_forward_bytes(int F, int V) {
    return SR_CHANNEL_START(forward_bytes, F, V);
}
