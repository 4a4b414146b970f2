/* channel.h (private): the core of additive writes with a gate per channel: its steps.
 *
 * A block of eight warps owns a head of keys and values and walks the spans of its chunks: forwards
 * for numerators and for the states before chunks, which backward keeps in bf16; and from the end
 * for gradients, with the gradient of the state in registers. Tiles of features are 64 or 128 wide,
 * tiles of values too, with zeros behind. */
#ifndef SR_ATTENTION_CUDA_CHUNKS_CHANNEL_H
#define SR_ATTENTION_CUDA_CHUNKS_CHANNEL_H

#include "attention/cuda/chunks/channel_scores.h"
#include "attention/cuda/chunks/core.h"

/* states: (B Hkv, chunks, F, V) of tile widths, before each chunk. */
srnn_status channel_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            cudaStream_t stream);
srnn_status channel_states(const sr_chunk_call &call, sr_bf16 *states, cudaStream_t stream);

/* sums: (B Hkv, CHANNEL_SUMS, 64, F): gradients of q, of k and of gates while a chunk takes more
 * than one level or query head; each number belongs to one thread. */
enum { CHANNEL_SUMS = 3 };
srnn_status channel_backward(const sr_chunk_call &call, const sr_bf16 *states, float *sums,
                             cudaStream_t stream);

/* Shared memory of a block, for tile widths. */
size_t channel_forward_bytes(int F, int V);
size_t channel_backward_bytes(int F, int V);

static inline int channel_width(int numbers) {
    return numbers <= 64 ? 64 : 128;
}

/* SR_CHANNEL_START(start, F, V, ...) calls start<F, V>(...) for tile widths. */
#define SR_CHANNEL_START(start, F, V, ...)                                              \
    ((F) == 64 ? ((V) == 64 ? start<64, 64>(__VA_ARGS__) : start<64, 128>(__VA_ARGS__)) \
               : ((V) == 64 ? start<128, 64>(__VA_ARGS__) : start<128, 128>(__VA_ARGS__)))

/* What a block's state is multiplied with: the factors of two rows of a lane. The tiles of the
 * level with `state` are anchored in the middle of the span's gates, or queries before and keys
 * behind them. With `half` the weight up to the anchor and from it on, and `whole` what lies
 * between the anchors:
 *     the state read is half S, and the next S = half (whole half S + K' V) */
struct channel_across {
    float half[2], whole[2];

    template <int F> SR_DEVICE void open(const channel_totals<F> &totals, int row, bool middle) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float all = totals.all(row + sum_row(2 * n, lane_again()));
            half[n] = middle ? exp2_fast(0.5f * all) : 1;
            whole[n] = middle ? 1 : exp2_fast(all);
        }
    }
};

/* A warp's part of a state (F, V) in registers: a strip of 16 features by all values or half. */
template <int F, int V> struct channel_state {
    static constexpr int strips = F / 16, parts = CHANNEL_WARPS / strips;
    static constexpr int pieces = V / 8 / parts;
    float s[pieces][4];

    static SR_DEVICE int row() { /* the first feature */
        return 16 * (thread_again() / SR_WARP % strips);
    }
    static SR_DEVICE int part() {
        return thread_again() / SR_WARP / strips;
    }
    static SR_DEVICE int begin() { /* the first column / 8 */
        return part() * pieces;
    }

    SR_DEVICE void multiply(const float (&factor)[2]) {
#pragma unroll
        for (int e = 0; e < 4 * pieces; e++)
            s[e / 4][e % 4] *= factor[e % 4 / 2];
    }

    /* S += keys' values of a chunk. */
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values) {
        const int lane = lane_again(), strip = row() / 16, from = begin() / 2;
#pragma unroll 1
        for (int step = 0; step < SR_CHUNK_STRIPS; step++) {
            uint32_t a[4];
            load_a_columns<F>(a, keys, 16 * step, strip, lane);
            multiply_rows<V>(s, a, values, 16 * step, from, lane);
        }
    }

    /* To a tile (F, V) of bf16; complete after a barrier. */
    SR_DEVICE void publish(sr_bf16 *tile) const {
        pieces_to_tile<V>(tile + row() * V, s, begin());
    }

    /* To rows of bf16 in global memory, V each. */
    SR_DEVICE void store(sr_bf16 *to) const {
        const sr_chunk_span all = {0, 0, F, false};
        store_pieces<pieces>({to + 8 * begin(), V, V - 8 * begin(), true}, s, row(), all);
    }

    /* use(x, place) for each pair of neighbours in an array (F, V), from column v0 on. */
    template <class Use> SR_DEVICE void each(const sr_chunk_call &call, int v0, const Use &use) {
#pragma unroll
        for (int e = 0; e < 4 * pieces; e += 2) {
            const int lane = lane_again();
            const int f = row() + sum_row(e, lane), v = v0 + 8 * begin() + sum_column(e, lane);
            if (f < call.F && v < call.V)
                use(&s[e / 4][e % 4], (int64_t)f * call.V + v);
        }
    }
    /* Zero, or that of an array. */
    SR_DEVICE void get(const sr_chunk_call &call, const float *state, int v0) {
        clear_pieces(s);
        if (state)
            each(call, v0, [&](float *x, int64_t at) {
                const float2 pair = *reinterpret_cast<const float2 *>(state + at);
                x[0] = pair.x;
                x[1] = pair.y;
            });
    }
    SR_DEVICE void put(const sr_chunk_call &call, float *state, int v0) {
        each(call, v0, [&](float *x, int64_t at) {
            *reinterpret_cast<float2 *>(state + at) = make_float2(x[0], x[1]);
        });
    }
};

/* C += rows own .. of tile a (64, F), all of it, times tile b (F, V), from its column 8 `begin`
 * on. */
template <int F, int V, int PIECES>
SR_DEVICE void channel_multiply(float (&c)[PIECES][4], const sr_bf16 *a, int own, const sr_bf16 *b,
                                int begin) {
#pragma unroll 1
    for (int k = 0; k < F / 16; k += SR_CHUNK_STRIPS)
        multiply_by_columns<F, V>(c, a, own, k, b + 16 * k * V, begin);
}

/* What a block reads; in shared memory, since registers are scarce. */
struct channel_head {
    int b, kv;
    sr_head_rows<const sr_bf16> queries, keys, values; /* queries of the first head of the group */
    const float *gate;                                 /* (T, F) */

    /* By one thread; complete after a barrier. Values from column v0 on. */
    SR_DEVICE void open(const sr_chunk_call &call, int v0) {
        b = (int)blockIdx.x / call.Hkv;
        kv = (int)blockIdx.x % call.Hkv;
        queries = queries_of(call, 0);
        keys = chunk_rows(call.k, b, call.key_head(kv), call.F);
        values = chunk_rows(call.v, b, kv, call.V, v0);
        gate = call.gate + call.row(call.Hkv, b, kv, 0) * call.F;
    }

    /* The rows of queries, and of gradients of numerators, of head g of the group. */
    SR_DEVICE sr_head_rows<const sr_bf16> queries_of(const sr_chunk_call &call, int g) const {
        return chunk_rows(call.q, b, call.query_head(kv * call.group + g), call.F);
    }
    SR_DEVICE sr_head_rows<const sr_bf16> gradients_of(const sr_chunk_call &call, int g) const {
        return chunk_rows(call.d_numerator, b, kv * call.group + g, call.V);
    }
};

/* The state (F, V) of the block's head in an array of all heads; NULL: none. */
template <class N> SR_DEVICE N *channel_state_of(const sr_chunk_call &call, N *states) {
    return states ? states + (int64_t)blockIdx.x * call.F * call.V : nullptr;
}

#endif
