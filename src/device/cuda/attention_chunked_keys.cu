/* attention_chunked_keys.cu: linear attention chunk by chunk, gradients of keys and values: a walk from the end, whose state
 * sums up queries times gradients of numerators, of all heads that share the keys. What a query's weights are scaled with
 * is in its features. Four warps have rows of keys, for gradients of values, four have values, for those of keys. */
#include "device/cuda/attention_chunked.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 2 * SR_CHUNK_ROWS, THREADS = WARPS * SR_WARP };

struct key_memory {
    alignas(16) sr_bf16 state[SR_CHUNK_NUMBERS];
    sr_bf16 keys[2][SR_CHUNK_NUMBERS], values[2][SR_CHUNK_NUMBERS];
    sr_bf16 queries[2][SR_CHUNK_NUMBERS], d_numerators[2][SR_CHUNK_NUMBERS];
    float d_row_sums[2][SR_CHUNK];
    float factor[SR_CHUNK], ones[SR_CHUNK];
    sr_bf16 column[SR_CHUNK];
};

/* Queries of a chunk and what belongs to them, shared memory. */
struct query_tile {
    const sr_bf16 *queries, *d_numerators;
    const float *d_row_sums;
};

/* 16 keys (gradients of values) or values (gradients of keys) of a warp. */
template <bool DECAYS> struct key_rows : sr_chunk_rows {
    bool of_keys; /* what the gradients are of */

    /* What the queries of later chunks give; `after`: the first token of the next chunk. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
        if (!of_keys) {
            read_values(state);
            return;
        }
        read_keys(state);
        if (sums)
            add_column(column, {1, 1});
    }

    /* Pairs with 16 queries from `query` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit_queries(const sr_chunk_head<DECAYS> &head, const query_tile &tile, int at,
                                 int query, bool documents) {
        const sr_bf16 *const y = of_keys ? tile.d_numerators : tile.queries;
        const sr_bf16 *const z = of_keys ? tile.queries : tile.d_numerators;
        visit(y, z, at, [&](float(&w)[SR_PIECE]) {
            if (of_keys)
#pragma unroll
                for (int e = 0; e < SR_PIECE; e++)
                    w[e] += tile.d_row_sums[at + piece_column(e)];
            decay_pairs(w, head, t, query, -1);
            hide_queries(w, head, t, query, documents);
        });
    }

    /* `features`: the warp's own rows of keys, whose place becomes that of the gradients. */
    SR_DEVICE void finish_keys(const sr_attention_view<sr_bf16> &call, int b, int kv,
                               sr_bf16 *features, bool aligned) {
        const int left = call.T - t;
        if constexpr (DECAYS)
            linear_dots(call.scratch.column_dot + call.row_index(call.Hkv, b, kv, t), c, features,
                        left);
        features_back(c, features, {call.raw_k.at(b, kv, t), call.raw_k.time, call.D, false},
                      call.choices.feature, left);
        if (call.d_k.data)
            store<SR_CHUNK>(head_rows(call.d_k, b, kv, call.D, aligned), features, call.T);
    }

    SR_DEVICE void finish_values(const sr_attention_view<sr_bf16> &call, int b, int kv,
                                 sr_bf16 *values, bool aligned) {
        if (call.scratch.value_factor)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[2 * P];
                row_of(d, c, half);
                value_gradient<sr_quad_row<SR_CHUNK>>(d, call, b, kv, row(half));
                set_row(c, d, half);
            }
        if (call.d_v.data)
            store<SR_CHUNK>(head_rows(call.d_v, b, kv, call.Dv, aligned), values, call.T);
    }
};

template <bool DECAYS>
__global__ void __launch_bounds__(THREADS, DECAYS ? 1 : 2)
    key_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
               const sr_mma_alignment aligned) {
    using Tiles = sr_chunk_tiles<THREADS>;
    SR_SHARED(key_memory, shared);
    const int sequence = (int)blockIdx.x, tid = (int)threadIdx.x;
    const int b = sequence / call.Hkv, kv = sequence % call.Hkv;
    const int past = call.T;
    const bool sums = call.choices.sums_rows;
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    const Tiles k = {head_rows(call.k, b, kv, call.D, aligned.k)};
    const Tiles v = {head_rows(call.v, b, kv, call.Dv, aligned.v)};
    const auto tiles_of_queries = [&](int g) -> Tiles {
        return {head_rows(call.q, b, kv * call.group + g, call.D, aligned.q)};
    };
    float scale[Tiles::pieces]; /* of the queries that come */
    const auto load_queries = [&](int t0, int g, int stage) {
        const int h = kv * call.group + g;
        const int64_t row = call.row_index(call.H, b, h, 0);
        const Tiles d = {head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator)};
        tiles_of_queries(g).load(shared->queries[stage], t0, past);
        d.load(shared->d_numerators[stage], t0, past);
        load_row_numbers(shared->d_row_sums[stage], call.scratch.d_row_sum + row, t0, past);
#pragma unroll
        for (int n = 0; n < Tiles::pieces; n++) {
            const int t = t0 + Tiles::row() + n * Tiles::apart;
            scale[n] = t < past ? call.scratch.row_scale[row + t] : 0;
        }
    };
    const auto load_keys = [&](int t0, int stage) {
        k.load(shared->keys[stage], t0, past);
        v.load(shared->values[stage], t0, past);
    };
    sr_chunk_state<WARPS> state;
    key_rows<DECAYS> rows;
    int chunk = (past - 1) / SR_CHUNK, g = 0;
    /* Where the documents of the chunk's last token and of the one after it begin. */
    int begins = head.first[past - 1], after = past;

    load_queries(chunk * SR_CHUNK, 0, 0);
    load_keys(chunk * SR_CHUNK, chunk % 2);
    cp_async_commit();
    state.clear();
    rows.of_keys = tid >= THREADS / 2;
    for (int stage = 0;; stage ^= 1) {
        const int t0 = chunk * SR_CHUNK, own = chunk_own(chunk);
        const bool first_head = g == 0, last_head = g == call.group - 1;
        const bool more = !last_head || t0 > 0;
        sr_bf16 *const queries = shared->queries[stage];
        sr_bf16 *const keys = shared->keys[chunk % 2], *const values = shared->values[chunk % 2];
        cp_async_wait<0>();
        tiles_of_queries(g).features(queries, query_map(call, b), t0, past, [&](int n) {
            return call.score.coefficient[1] * (n == 0 ? scale[0] : scale[Tiles::pieces - 1]);
        });
        if (first_head)
            k.features(keys, key_map(call, b), t0, past);
        __syncthreads(); /* tiles and state are there, and nobody reads the tiles before */
        if (more) {
            load_queries(last_head ? t0 - SR_CHUNK : t0, last_head ? 0 : g + 1, stage ^ 1);
            if (last_head)
                load_keys(t0 - SR_CHUNK, (chunk - 1) % 2);
            cp_async_commit();
        }
        const bool documents = begins > t0;         /* one begins inside */
        const bool differ = DECAYS || begins >= t0; /* queries count differently before the chunk */
        if (differ && tid < SR_CHUNK) {
            const float factor = head.back_to(t0, t0 + tid);
            shared->factor[tid] = factor;
            shared->ones[tid] = counted(shared->d_row_sums[stage][tid], factor);
        }
        if (first_head) {
            rows.open(rows.of_keys ? values : keys, own, t0);
            if (after < t0 + SR_CHUNK) {
                rows.read(shared->state, shared->column, sums);
                if (DECAYS || after > t0)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        rows.scale(half,
                                   head.from_after(t0 + SR_CHUNK, min(rows.row(half), past - 1)));
            }
        }
        /* The pieces of the chunk from the rows' own on. */
#pragma unroll 1
        for (int at = own; at < SR_CHUNK; at += 16)
            rows.visit_queries(head,
                               {queries, shared->d_numerators[stage], shared->d_row_sums[stage]},
                               at, t0 + at, documents);
        __syncthreads(); /* nobody reads the state any more, and factors are there */
        if (last_head && rows.t < past) {
            if (rows.of_keys)
                rows.finish_keys(call, b, kv, keys + own * SR_CHUNK, aligned.d_k);
            else
                rows.finish_values(call, b, kv, values + own * SR_CHUNK, aligned.d_v);
        }
        if (!more)
            break;
        if (t0 > 0) {
            const float kept = after < t0 ? head.between(t0, t0 + SR_CHUNK) : 0;
            if (first_head && (DECAYS || kept == 0))
                state.multiply(kept);
            state.add(queries, shared->d_numerators[stage], sums,
                      {differ ? shared->factor : nullptr,
                       differ ? shared->ones : shared->d_row_sums[stage]});
            if (last_head)
                state.publish(shared->state, shared->column);
        }
        g = last_head ? 0 : g + 1;
        if (last_head) {
            chunk--;
            begins = head.first[t0 - 1];
            after = head.first[t0];
        }
    }
}

template <bool DECAYS>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(key_chunks<DECAYS>, dim3((unsigned)(call.B * call.Hkv)), dim3(THREADS),
                      sizeof(key_memory), stream, call, aligned));
    return SRNN_OK;
}

srnn_status sr_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned, cudaStream_t stream) {
    return call.choices.decays ? start<true>(call, aligned, stream)
                               : start<false>(call, aligned, stream);
}
