/* forward.cu: gates per channel, in chunks, forward: numerators and the final state, or
 * what the backward pass needs of the same walk. */
#include "attention/cuda/chunks/channel/walk.h"

/* KEEP: the walk of the backward pass, for states before chunks and U instead of numerators. */
template <int F, bool DELTA, bool KEEP> struct forward_memory {
    /* of the first half of a span */
    alignas(128) sr_bf16 readers[DELTA ? SR_CHUNK * F : 8];
    sr_bf16 values[SR_CHUNK_SQUARE]; /* DELTA, else of the second half */
    sr_bf16 solved[DELTA ? SR_DELTA_PAIRS : 8];
    alignas(16) float before[F], beta[DELTA ? SR_CHUNK : 4];
    /* of the second */
    alignas(128) sr_bf16 writers[SR_CHUNK * F];
    sr_bf16 queries[KEEP ? 8 : SR_CHUNK * F];
    sr_bf16 scores[KEEP ? 8 : SR_DELTA_PAIRS];
    sr_bf16 staged[DELTA && KEEP ? SR_CHUNK_SQUARE : 8]; /* U on its way out */
    alignas(16) float rest[2][F];                        /* between, after */
    channel_walk_at at;
};

template <class Memory>
SR_DEVICE void load_values(Memory *shared, const sr_chunk_call &call, const channel_walk_at &at,
                           const sr_chunk_span &span) {
    chunk_load<SR_CHUNK, CHANNEL_WALK_THREADS>(shared->values,
                                               chunk_rows(call.v, at.b, at.head, call.V, at.value),
                                               span);
}

template <int F, bool DELTA, bool KEEP>
SR_DEVICE void load_first(forward_memory<F, DELTA, KEEP> *shared, const sr_chunk_call &call,
                          const channel_places &places, const channel_walk_at &at,
                          const sr_chunk_span &span) {
    constexpr int THREADS = CHANNEL_WALK_THREADS, tile = SR_CHUNK * F;
    if constexpr (DELTA)
        load_values(shared, call, at, span);
    channel_copy<F, THREADS>(shared->before,
                             channel_of_key<const float>(places.factors, call, at, span,
                                                         CHANNEL_FACTORS * F));
    if constexpr (DELTA) {
        channel_copy_rows<F, THREADS>(shared->readers,
                                      channel_of_key(places.readers, call, at, span, tile), span);
        channel_copy<SR_DELTA_PAIRS, THREADS>(shared->solved,
                                              channel_of_key<const sr_bf16>(places.solved, call, at,
                                                                            span, SR_DELTA_PAIRS));
        channel_load_betas(shared->beta, call, at, span);
    }
}

template <int F, bool DELTA, bool KEEP>
SR_DEVICE void load_second(forward_memory<F, DELTA, KEEP> *shared, const sr_chunk_call &call,
                           const channel_places &places, const channel_walk_at &at,
                           const sr_chunk_span &span) {
    constexpr int THREADS = CHANNEL_WALK_THREADS, tile = SR_CHUNK * F;
    if constexpr (!DELTA)
        load_values(shared, call, at, span);
    channel_copy_rows<F, THREADS>(shared->writers,
                                  channel_of_key(places.writers, call, at, span, tile), span);
    channel_copy<2 * F, THREADS>(shared->rest[0],
                                 channel_of_key<const float>(places.factors, call, at, span,
                                                             CHANNEL_FACTORS * F) +
                                     CHANNEL_BETWEEN * F);
    if constexpr (!KEEP) {
        channel_copy_rows<F, THREADS>(shared->queries,
                                      channel_of_query(places.queries, call, at, at.query, span,
                                                       tile),
                                      span);
        channel_copy<SR_DELTA_PAIRS, THREADS>(shared->scores,
                                              channel_of_query<sr_bf16>(places.scores, call, at,
                                                                        at.query, span,
                                                                        SR_DELTA_PAIRS));
    }
}

/* U of a span, 16 values: X diag(beta) (V - K^ S^). */
template <int F, class Memory>
SR_DEVICE void span_values(delta_strip &used, const delta_state<F> &state, const Memory *shared) {
    const int lane = delta_lane(), strip = channel_strip();
    float c[8][4];
    state.times_rows(c, shared->readers);
#pragma unroll
    for (int m = 0; m < SR_DELTA_STEPS; m++) {
        a_columns<SR_CHUNK>(used.a[m], shared->values, 16 * m, strip, lane);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float *const known = c[2 * m + n / 2] + n % 2 * 2;
            const int token = 16 * m + 8 * (n / 2) + delta_column(0, lane);
            const float2 value = unpack_bf16(used.a[m][n]);
            used.a[m][n] = pack_bf16(delta_beta(shared->beta[token]) * (value.x - known[0]),
                                     delta_beta(shared->beta[token + 1]) * (value.y - known[1]));
        }
    }
    delta_clear(c);
#pragma unroll
    for (int j = 0; j < SR_DELTA_STEPS; j++)
#pragma unroll
        for (int i = j; i < SR_DELTA_STEPS; i++) {
            uint32_t b[4];
            b_columns<16>(b, shared->solved + delta_pairs_at(i, j), 0, 0, lane);
            mma_m16n8k16(c[2 * i], used.a[j], b);
            mma_m16n8k16(c[2 * i + 1], used.a[j], b + 2);
        }
    used.set(c);
}

/* U of 16 tokens; without the delta rule those are values. */
template <bool DELTA, class Memory>
SR_DEVICE void used_values(uint32_t (&a)[4], const delta_strip &used, const Memory *shared, int m,
                           int lane) {
    if constexpr (DELTA)
#pragma unroll
        for (int n = 0; n < 4; n++)
            a[n] = used.a[m][n];
    else
        a_columns<SR_CHUNK>(a, shared->values, 16 * m, channel_strip(), lane);
}

/* Numerators of a span, the strip's columns: Q^ S^ + P U, 16 tokens at a time. */
template <int F, bool DELTA, class Memory>
SR_DEVICE void span_numerators(const sr_chunk_call &call, const channel_walk_at &at,
                               const delta_state<F> &state, const delta_strip &used,
                               const Memory *shared, const sr_chunk_span &span) {
    const int value = channel_value(at), lane = delta_lane();
    sr_bf16 *const to = call.numerator.row(at.b, at.query, span.t0) + value;
#pragma unroll 1
    for (int i = 0; i < SR_DELTA_STEPS; i++) {
        float c[2][4] = {};
        uint32_t a[4];
#pragma unroll
        for (int k = 0; k < F / 16; k++) {
            uint32_t known[4];
            a_rows<F>(a, shared->queries, 16 * i, k, lane);
            state.operand(known, k);
            delta_multiply_strip(c, a, known);
        }
        const auto add = [&](int j) {
            uint32_t known[4];
            a_rows<16>(a, shared->scores + delta_pairs_at(i, j), 0, 0, lane);
            used_values<DELTA>(known, used, shared, j, lane);
            delta_multiply_strip(c, a, known);
        };
        if constexpr (DELTA) /* U is in registers */
#pragma unroll
            for (int j = 0; j < SR_DELTA_STEPS; j++) {
                if (j > i)
                    break;
                add(j);
            }
        else
#pragma unroll 1
            for (int j = 0; j <= i; j++)
                add(j);
        pack_a(a, c[0], c[1]);
        delta_store_fragment(to + 16 * i * call.numerator.time, call.numerator.time, a,
                             span.from - span.t0 - 16 * i, span.past - span.t0 - 16 * i,
                             call.V - value, lane);
    }
}

/* The strip's columns of U. */
template <class Memory>
SR_DEVICE void store_used(Memory *shared, const sr_chunk_call &call, const channel_places &places,
                          const channel_walk_at &at, const sr_chunk_span &span,
                          const delta_strip &used) {
    using Tile = sr_tile<SR_CHUNK>;
    sr_bf16 *const to =
        channel_of_key(places.used, call, at, span, channel_slices(call) * SR_CHUNK_SQUARE) +
        channel_slice(at, SR_CHUNK_SQUARE);
    used.put(shared->staged, channel_strip());
    __syncwarp();
    channel_each_piece(span, [&](int row, int chunk) {
        const int place = Tile::offset(row, chunk);
        store_vector(to + place, load_vector(shared->staged + place));
    });
}

template <int F, bool DELTA> struct forward_shape {
    /* blocks for which registers are allotted */
    static constexpr int blocks = F == 128 ? 3 : DELTA ? 4 : 5;
};

/* A block walks a head from its first span: without KEEP that of a query head, whose state is made
 * again for each head of a group. For each span: barrier; copies of the second half start; U in
 * registers; barrier; copies of the next span's first half start; numerators, and the state takes
 * in the span. */
template <int F, bool DELTA, bool KEEP>
__global__ void __launch_bounds__(CHANNEL_WALK_THREADS, (forward_shape<F, DELTA>::blocks))
    channel_forward(const __grid_constant__ sr_chunk_call call,
                    const __grid_constant__ channel_places places) {
    using Memory = forward_memory<F, DELTA, KEEP>;
    SR_SHARED(Memory, shared);
    const int heads = KEEP ? call.Hkv : call.H, index = (int)blockIdx.x % heads;
    const int64_t numbers = (int64_t)call.F * call.V;
    if (threadIdx.x == 0)
        shared->at = {(int)blockIdx.x / heads,
                      index,
                      KEEP ? index : index / call.group,
                      SR_CHUNK * (int)blockIdx.y,
                      {}};
    __syncthreads(); /* the head is known */
    const channel_walk_at &at = shared->at;
    sr_chunk_spans spans = chunk_spans(call, at.b);
    {
        const sr_chunk_span span = spans.after(0);
        if (threadIdx.x == 0)
            shared->at.spans[0] = span;
        load_first(shared, call, places, at, span);
        cp_async_commit();
    }
    delta_state<F> state; /* S' */
    state.clear();
    if (call.initial)
        state.load(call.initial + at.kv(call) * numbers, channel_value(at), call.F, call.V);
    for (int now = 0;; now ^= 1) {
        const sr_chunk_span &span = at.spans[now], &next = at.spans[now ^ 1];
        delta_strip used;
        cp_async_wait<0>();
        __syncthreads(); /* the first half is there; no warp reads the second of the span before */
        load_second(shared, call, places, at, span);
        cp_async_commit();
        const bool more = span.past < call.T;
        if (more) {
            const sr_chunk_span then = spans.after(span.past);
            if (threadIdx.x == 0)
                shared->at.spans[now ^ 1] = then;
        }
        state.multiply(shared->before); /* of another document: perhaps NaN */
        if (!span.continues)
            state.clear();
        if (KEEP && span.from == span.t0)
            channel_store_state(places.states, call, at, span, state);
        if constexpr (DELTA)
            span_values(used, state, shared);
        cp_async_wait<0>();
        __syncthreads(); /* the second half is there; no warp reads the first */
        if (more) {
            load_first(shared, call, places, at, next);
            cp_async_commit();
        }
        if constexpr (!KEEP)
            span_numerators<F, DELTA>(call, at, state, used, shared, span);
        else if constexpr (DELTA)
            store_used(shared, call, places, at, span, used);
        state.multiply(shared->rest[0]);
#pragma unroll
        for (int m = 0; m < SR_DELTA_STEPS; m++) {
            uint32_t a[4];
            used_values<DELTA>(a, used, shared, m, delta_lane());
            add_product<F>(state.s, a, shared->writers, 16 * m, 0, delta_lane());
        }
        state.multiply(shared->rest[1]);
        if (!more)
            break;
    }
    if (!KEEP && call.final && at.query % call.group == 0)
        state.store(call.final + at.kv(call) * numbers, channel_value(at), call.F, call.V);
}

template <int F, bool DELTA, bool KEEP>
static srnn_status start(const sr_chunk_call &call, const channel_places &places,
                         cudaStream_t stream) {
    const unsigned heads = (unsigned)(call.B * (KEEP ? call.Hkv : call.H));
    SR_CUDA(sr_launch(channel_forward<F, DELTA, KEEP>,
                      dim3(heads, (unsigned)((call.V + SR_CHUNK - 1) / SR_CHUNK)),
                      dim3(CHANNEL_WALK_THREADS), sizeof(forward_memory<F, DELTA, KEEP>), stream,
                      call, places));
    return SRNN_OK;
}

template <int F>
static srnn_status start_forward(const sr_chunk_call &call, const channel_places &places,
                                 cudaStream_t stream) {
    return call.delta ? start<F, true, false>(call, places, stream)
                      : start<F, false, false>(call, places, stream);
}
template <int F>
static srnn_status start_states(const sr_chunk_call &call, const channel_places &places,
                                cudaStream_t stream) {
    return call.delta ? start<F, true, true>(call, places, stream)
                      : start<F, false, true>(call, places, stream);
}

srnn_status sr_channel_forward(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream) {
    return SR_CHANNEL_START(start_forward, call.F, call, places, stream);
}

srnn_status sr_channel_states(const sr_chunk_call &call, const channel_places &places,
                              cudaStream_t stream) {
    return SR_CHANNEL_START(start_states, call.F, call, places, stream);
}
