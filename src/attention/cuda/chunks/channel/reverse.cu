/* reverse.cu: gates per channel, in chunks, backward: the walk from the last span to the
 * first, for the gradients of states and of values. With R the gradient of the state after a span
 * and R~ that times `after`:
 *
 *     dU = K~ R~ + sum P' dN, over the query heads of the group
 *     dV = diag(beta) X' dU                                                (write=add: dV = dU)
 *     R before it = diag(before) (diag(between) R~ + sum Q^' dN - K^' dV) */
#include "attention/cuda/chunks/channel/walk.h"

template <int F, bool DELTA> struct reverse_memory {
    /* of the first half of a span: for each query head of the group, but for writers and factors */
    alignas(128) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 d_numerators[SR_CHUNK_SQUARE];
    sr_bf16 scores[SR_DELTA_PAIRS];
    sr_bf16 writers[SR_CHUNK * F];
    alignas(16) float first[2][F]; /* between, after */
    /* of the second */
    alignas(128) sr_bf16 readers[DELTA ? SR_CHUNK * F : 8];
    sr_bf16 solved[DELTA ? SR_DELTA_PAIRS : 8];
    sr_bf16 staged[SR_CHUNK_SQUARE]; /* dV on its way out */
    alignas(16) float before[F], beta[DELTA ? SR_CHUNK : 4];
    channel_walk_at at;
};

template <int F, bool DELTA>
SR_DEVICE void load_first(reverse_memory<F, DELTA> *shared, const sr_chunk_call &call,
                          const channel_places &places, const channel_walk_at &at,
                          const sr_chunk_span &span, int group) {
    constexpr int THREADS = CHANNEL_WALK_THREADS, tile = SR_CHUNK * F;
    const int query = at.head * call.group + group;
    chunk_load<SR_CHUNK, THREADS>(shared->d_numerators,
                                  chunk_rows(call.d_numerator, at.b, query, call.V, at.value),
                                  span);
    channel_copy_rows<F, THREADS>(shared->queries,
                                  channel_of_query(places.queries, call, at, query, span, tile),
                                  span);
    channel_copy<SR_DELTA_PAIRS, THREADS>(shared->scores,
                                          channel_of_query<sr_bf16>(places.scores, call, at, query,
                                                                    span, SR_DELTA_PAIRS));
    if (group > 0)
        return;
    channel_copy_rows<F, THREADS>(shared->writers,
                                  channel_of_key(places.writers, call, at, span, tile), span);
    channel_copy<2 * F, THREADS>(shared->first[0],
                                 channel_of_key<const float>(places.factors, call, at, span,
                                                             CHANNEL_FACTORS * F) +
                                     CHANNEL_BETWEEN * F);
}

template <int F, bool DELTA>
SR_DEVICE void load_second(reverse_memory<F, DELTA> *shared, const sr_chunk_call &call,
                           const channel_places &places, const channel_walk_at &at,
                           const sr_chunk_span &span) {
    constexpr int THREADS = CHANNEL_WALK_THREADS, tile = SR_CHUNK * F;
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

/* c (16 values x 64 tokens) += dN' P; R' += dN' Q^. */
template <int F, class Memory>
SR_DEVICE void take_query(float (&c)[8][4], delta_state<F> &later, const Memory *shared) {
    const int lane = delta_lane(), strip = channel_strip();
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++) {
        uint32_t a[4], b[4];
        a_columns<SR_CHUNK>(a, shared->d_numerators, 16 * i, strip, lane);
#pragma unroll
        for (int j = 0; j <= i; j++) {
            b_columns<16>(b, shared->scores + delta_pairs_at(i, j), 0, 0, lane);
            mma_m16n8k16(c[2 * j], a, b);
            mma_m16n8k16(c[2 * j + 1], a, b + 2);
        }
        add_product<F>(later.s, a, shared->queries, 16 * i, 0, lane);
    }
}

/* c = dU' becomes dV', and R' -= dV' K^. */
template <int F, class Memory>
SR_DEVICE void take_keys(delta_strip &d_values, float (&c)[8][4], delta_state<F> &later,
                         const Memory *shared) {
    const int lane = delta_lane();
    d_values.set(c); /* dU' */
    delta_clear(c);
#pragma unroll
    for (int i = 0; i < SR_DELTA_STEPS; i++)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            uint32_t b[4];
            b_rows<16>(b, shared->solved + delta_pairs_at(i, j), 0, 0, lane);
            mma_m16n8k16(c[2 * j], d_values.a[i], b);
            mma_m16n8k16(c[2 * j + 1], d_values.a[i], b + 2);
        }
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            c[n][e] *= delta_beta(shared->beta[8 * n + delta_column(e % 2, lane)]);
    d_values.set(c);
#pragma unroll
    for (int m = 0; m < SR_DELTA_STEPS; m++) {
        uint32_t a[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            a[n] = d_values.a[m][n] ^ 0x80008000u;
        add_product<F>(later.s, a, shared->readers, 16 * m, 0, lane);
    }
}

/* The strip's columns of dV. */
template <class Memory>
SR_DEVICE void store_values(Memory *shared, const sr_chunk_call &call, const channel_walk_at &at,
                            const sr_chunk_span &span, const delta_strip &d_values) {
    using Tile = sr_tile<SR_CHUNK>;
    sr_bf16 *const to = call.d_v.row(at.b, at.head, span.t0) + at.value;
    d_values.put(shared->staged, channel_strip());
    __syncwarp();
    channel_each_piece(span, [&](int row, int chunk) {
        if (at.value + 8 * chunk < call.V)
            store_vector(to + row * call.d_v.time + 8 * chunk,
                         load_vector(shared->staged + Tile::offset(row, chunk)));
    });
}

/* A block walks a head of keys and values from its last span. For each span: barrier; copies of the
 * second half start; dU and the queries' part of R, with two more barriers for each further query
 * head; barrier; copies of the next span's first half start; dV and the keys' part of R. */
template <int F, bool DELTA>
__global__ void __launch_bounds__(CHANNEL_WALK_THREADS, F == 128 ? 2
                                                        : DELTA  ? 4
                                                                 : 5)
    channel_reverse(const __grid_constant__ sr_chunk_call call,
                    const __grid_constant__ channel_places places) {
    using Memory = reverse_memory<F, DELTA>;
    SR_SHARED(Memory, shared);
    const int index = (int)blockIdx.x;
    const int64_t numbers = (int64_t)call.F * call.V;
    if (threadIdx.x == 0)
        shared->at = {index / call.Hkv, 0, index % call.Hkv, SR_CHUNK * (int)blockIdx.y, {}};
    __syncthreads(); /* the head is known */
    const channel_walk_at &at = shared->at;
    sr_chunk_spans spans = chunk_spans(call, at.b);
    {
        const sr_chunk_span span = spans.before(call.T);
        if (threadIdx.x == 0)
            shared->at.spans[0] = span;
        load_first(shared, call, places, at, span, 0);
        cp_async_commit();
    }
    delta_state<F> later; /* R' */
    later.clear();
    if (call.d_final)
        later.load(call.d_final + at.kv(call) * numbers, channel_value(at), call.F, call.V);
    for (int now = 0;; now ^= 1) {
        const sr_chunk_span &span = at.spans[now], &next = at.spans[now ^ 1];
        float c[8][4];
#pragma unroll 1
        for (int g = 0; g < call.group; g++) {
            cp_async_wait<0>();
            __syncthreads(); /* the first half is there; no warp reads the second */
            if (g == call.group - 1) {
                load_second(shared, call, places, at, span);
                cp_async_commit();
            }
            if (g == 0) {
                /* else R is 0, and the factors are of another document, perhaps NaN */
                const bool last = span.past == min(span.t0 + SR_CHUNK, call.T);
                if (last) {
                    later.multiply(shared->first[1]);
                    channel_store_state(places.d_states, call, at, span, later);
                }
                later.times_rows(c, shared->writers);
                if (last)
                    later.multiply(shared->first[0]);
            }
            take_query(c, later, shared);
            if (g < call.group - 1) {
                __syncthreads(); /* no warp reads the query head's */
                load_first(shared, call, places, at, span, g + 1);
                cp_async_commit();
            }
        }
        const bool more = span.from > 0;
        if (more) {
            const sr_chunk_span then = spans.before(span.from);
            if (threadIdx.x == 0)
                shared->at.spans[now ^ 1] = then;
        }
        cp_async_wait<0>();
        __syncthreads(); /* the second half is there; no warp reads the first */
        if (more) {
            load_first(shared, call, places, at, next, 0);
            cp_async_commit();
        }
        delta_strip d_values;
        if constexpr (DELTA)
            take_keys(d_values, c, later, shared);
        else
            d_values.set(c);
        store_values(shared, call, at, span, d_values);
        later.multiply(shared->before);
        if (!span.continues)
            later.clear();
        if (!more)
            break;
    }
    if (call.d_initial)
        later.store(call.d_initial + at.kv(call) * numbers, channel_value(at), call.F, call.V);
}

template <int F, bool DELTA>
static srnn_status start(const sr_chunk_call &call, const channel_places &places,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(channel_reverse<F, DELTA>,
                      dim3((unsigned)(call.B * call.Hkv),
                           (unsigned)((call.V + SR_CHUNK - 1) / SR_CHUNK)),
                      dim3(CHANNEL_WALK_THREADS), sizeof(reverse_memory<F, DELTA>), stream, call,
                      places));
    return SRNN_OK;
}

template <int F>
static srnn_status start_any(const sr_chunk_call &call, const channel_places &places,
                             cudaStream_t stream) {
    return call.delta ? start<F, true>(call, places, stream)
                      : start<F, false>(call, places, stream);
}

srnn_status sr_channel_reverse(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream) {
    return SR_CHANNEL_START(start_any, call.F, call, places, stream);
}
