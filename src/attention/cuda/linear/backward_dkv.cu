/* backward_dkv.cu: chunked linear attention, dK and dV (mma.sync): a walk from the end, whose state
 * sums queries times gradients of numerators of all heads that share the keys. The row scales of a
 * query are folded into its features. Four warps have rows of keys, for dV, four have values, for
 * dK. */
#include "attention/cuda/linear/linear.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 2 * SR_CHUNK_ROWS, THREADS = WARPS * SR_WARP };

/* Queries of two chunks and their row scalars. */
struct query_memory {
    alignas(16) sr_bf16 queries[2][SR_CHUNK_NUMBERS];
    sr_bf16 d_numerators[2][SR_CHUNK_NUMBERS];
    float d_row_sums[2][SR_CHUNK];
    float scales[2][sr_chunk_tiles<THREADS>::pieces][THREADS]; /* of a thread's own pieces */
    /* what queries count before the chunk, where that differs */
    float factor[SR_CHUNK], ones[SR_CHUNK];
};

struct key_memory {
    query_memory of_queries;
    sr_bf16 state[SR_CHUNK_NUMBERS];
    sr_bf16 keys[2][SR_CHUNK_NUMBERS], values[2][SR_CHUNK_NUMBERS];
    sr_bf16 column[SR_CHUNK];
    int start; /* the first chunk, walked last */
};

/* The queries in flight, of the heads that share a head of keys. */
struct query_stream {
    using Tiles = sr_chunk_tiles<THREADS>;
    const sr_attention_view<sr_bf16> &call;
    const sr_mma_alignment &aligned;
    query_memory &memory;
    int b, kv;

    SR_DEVICE Tiles tiles(int g) const {
        return {head_rows(call.q, b, kv * call.group + g, call.D, aligned.q)};
    }

    SR_DEVICE void load(int t0, int g, int stage) {
        const int h = kv * call.group + g, past = call.T;
        const int64_t row = call.row_index(call.H, b, h, 0);
        const Tiles d = {head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator)};
        tiles(g).load(memory.queries[stage], t0, past);
        d.load(memory.d_numerators[stage], t0, past);
        load_row_numbers(memory.d_row_sums[stage], call.scratch.d_row_sum + row, t0, past);
#pragma unroll
        for (int n = 0; n < Tiles::pieces; n++) {
            const int t = t0 + Tiles::row() + n * Tiles::apart;
            cp_async_4(&memory.scales[stage][n][thread_again()],
                       call.scratch.row_scale + row + min(t, past - 1), t < past ? 4 : 0);
        }
    }

    /* Features of the tile loaded last, once it has landed. */
    SR_DEVICE void features(int t0, int g, int stage) const {
        const float *const scale = &memory.scales[stage][0][thread_again()];
        tiles(g).features(memory.queries[stage], query_map(call, b), t0, call.T,
                          [&](int n) { return call.score.coefficient[1] * scale[n * THREADS]; });
    }

    /* After a barrier, and before the one in front of add: the weights of this chunk's queries for
     * tokens before it. True if they are not all 1; `begins`: where the document of its last token
     * begins. */
    template <bool DECAYS>
    SR_DEVICE bool count(const sr_chunk_head<DECAYS> &head, int t0, int begins, int stage) {
        const bool differ = DECAYS || begins >= t0;
        const int tid = (int)threadIdx.x;
        if (differ && tid < SR_CHUNK) {
            const float factor = head.back_to(t0, t0 + tid);
            memory.factor[tid] = factor;
            memory.ones[tid] = counted(memory.d_row_sums[stage][tid], factor);
        }
        return differ;
    }

    /* By all threads, once no warp reads the queries any more: adds to the state what counts before
     * the chunk; some queries may be of other documents than the token before it. */
    SR_DEVICE void add(sr_chunk_state<WARPS> &state, int stage, bool differ, bool documents) const {
        if (documents) {
            Tiles::clear(memory.queries[stage], memory.factor);
            Tiles::clear(memory.d_numerators[stage], memory.factor);
            __syncthreads(); /* what does not count is zero */
        }
        state.add(memory.queries[stage], memory.d_numerators[stage], call.choices.sums_rows,
                  {differ ? memory.factor : nullptr,
                   differ ? memory.ones : memory.d_row_sums[stage]});
    }
};

/* 16 keys (for dV) or values (for dK) of a warp. */
template <bool DECAYS> struct key_rows : sr_linear_rows {
    bool of_keys; /* gradients of keys, else of values */

    /* The state of the queries of later chunks. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
        if (!of_keys) {
            read_values(state);
            return;
        }
        read_keys(state);
        if (sums)
            add_column(c, column, {1, 1});
    }

    /* Pairs with 16 queries from `query` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit_queries(const sr_chunk_head<DECAYS> &head, const query_memory &tiles,
                                 int stage, int at, int query, bool documents) {
        const sr_bf16 *const queries = tiles.queries[stage], *const d = tiles.d_numerators[stage];
        const sr_bf16 *const y = of_keys ? d : queries, *const z = of_keys ? queries : d;
        visit<2>(y, z, at, [&](float(&w)[SR_PIECE]) {
            if (of_keys)
#pragma unroll
                for (int e = 0; e < SR_PIECE; e++)
                    w[e] += tiles.d_row_sums[stage][at + piece_column(e)];
            decay_pairs(w, head, t, query, -1);
            hide_queries(w, head, t, query, documents);
        });
    }

    /* Epilogue of dK. `features`: the warp's own rows of keys, overwritten by the gradients. */
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

    /* Epilogue of dV, through the warp's own rows of values. */
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

/* A block of 8 warps owns one KV head, or one segment of it, and walks its chunks from the end;
 * warps 0 .. 3 own 16 rows each for dV, warps 4 .. 7 for dK, and all eight share the state S = sum
 * q dN', in registers. For each chunk and each head of the group in turn: cp.async copies the next
 * Q, d_numerator and row scalars (and for the next chunk K and V), global -> shared, in two stages;
 * features in place, barrier; the first head starts rows from the state of later chunks (bf16 in
 * shared memory), each head adds masked pairs of the chunk by mma; barrier; S += Q' dN. After the
 * last head the rows are stored through their own tile and the state is published. A segment starts
 * from the state that query_states and scan_states left in the workspace. */
template <bool DECAYS>
__global__ void __launch_bounds__(THREADS, DECAYS ? 1 : 2)
    key_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
               const __grid_constant__ sr_mma_alignment aligned, const sr_chunk_segments segments) {
    using Tiles = sr_chunk_tiles<THREADS>;
    SR_SHARED(key_memory, shared);
    const sr_chunk_walk walk = chunk_walk(segments, (int)blockIdx.x);
    const int b = of_warp(walk.row / call.Hkv), kv = walk.row - b * call.Hkv;
    const int past = call.T, warp = warp_number();
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    const Tiles k = {head_rows(call.k, b, kv, call.D, aligned.k)};
    const Tiles v = {head_rows(call.v, b, kv, call.Dv, aligned.v)};
    query_stream queries = {call, aligned, shared->of_queries, b, kv};
    sr_chunk_state<WARPS> state(warp);
    key_rows<DECAYS> rows;
    int chunk = of_warp(walk.end) - 1, g = 0;
    /* Where the documents of the chunk's last token and of the one after it begin. */
    const int beyond = (chunk + 1) * SR_CHUNK;
    int begins = head.first[min(beyond, past) - 1],
        after = beyond < past ? head.first[beyond] : past;
    const auto load_keys = [&](int t0, int stage) {
        k.load(shared->keys[stage], t0, past);
        v.load(shared->values[stage], t0, past);
    };

    queries.load(chunk * SR_CHUNK, 0, 0);
    load_keys(chunk * SR_CHUNK, chunk % 2);
    cp_async_commit();
    if (walk.end < segments.chunks) {
        state.get(segments.state(walk.row, walk.segment));
        state.publish(shared->state, shared->column);
    }
    rows.of_keys = warp >= WARPS / 2;
    if (threadIdx.x == 0)
        shared->start = walk.start;
    __syncthreads();
    for (int stage = 0;; stage ^= 1) {
        const int t0 = chunk * SR_CHUNK, own = chunk_own(warp, chunk);
        const bool first_head = g == 0, last_head = g == call.group - 1;
        const bool more = !last_head || chunk > shared->start;
        sr_bf16 *const keys = shared->keys[chunk % 2], *const values = shared->values[chunk % 2];
        cp_async_wait<0>();
        queries.features(t0, g, stage);
        if (first_head)
            k.features(keys, key_map(call, b), t0, past);
        /* tiles and state are ready, and no warp reads the previous tiles */
        __syncthreads();
        if (more) {
            queries.load(last_head ? t0 - SR_CHUNK : t0, last_head ? 0 : g + 1, stage ^ 1);
            if (last_head)
                load_keys(t0 - SR_CHUNK, (chunk - 1) % 2);
            cp_async_commit();
        }
        const bool documents = begins > t0; /* a document begins inside */
        const bool differ = queries.count(head, t0, begins, stage);
        if (first_head) {
            rows.open(rows.of_keys ? values : keys, own, t0);
            if (after < t0 + SR_CHUNK) {
                rows.read(shared->state, shared->column, call.choices.sums_rows);
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
            rows.visit_queries(head, shared->of_queries, stage, at, t0 + at, documents);
        __syncthreads(); /* no warp reads the state any more, and factors are ready */
        if (last_head && rows.t < past) {
            if (rows.of_keys)
                rows.finish_keys(call, b, kv, keys + own * SR_CHUNK, aligned.d_k);
            else
                rows.finish_values(call, b, kv, values + own * SR_CHUNK, aligned.d_v);
        }
        if (!more)
            break;
        if (first_head && (DECAYS || after >= t0))
            state.multiply(head.back_across(t0, t0 + SR_CHUNK, after));
        queries.add(state, stage, differ, begins >= t0);
        g = last_head ? 0 : g + 1;
        if (last_head) {
            state.publish(shared->state, shared->column);
            chunk--;
            begins = of_warp(head.first[t0 - 1]);
            after = of_warp(head.first[t0]);
        }
    }
}

/* What each segment but the first adds to the state of a walk from the end. A block of 8 warps owns
 * one segment of one KV head and walks its chunks from the end, all heads of the group in turn:
 * cp.async copies Q, d_numerator and row scalars, global -> shared, in two stages; features in
 * place, barrier; factors (decay, documents) in shared memory, barrier; S += Q' dN by mma into
 * registers. At the end the block stores its state to the workspace, for scan_states or the walk
 * itself. */
template <bool DECAYS>
__global__ void __launch_bounds__(THREADS, 2)
    query_states(const __grid_constant__ sr_attention_view<sr_bf16> call,
                 const __grid_constant__ sr_mma_alignment aligned,
                 const sr_chunk_segments segments) {
    SR_SHARED(query_memory, shared);
    let_next_start();
    const int head_number = segments.whole + (int)blockIdx.x / (segments.count - 1);
    const int segment = (int)blockIdx.x % (segments.count - 1) + 1, start = segment * segments.each;
    const int b = head_number / call.Hkv, kv = head_number % call.Hkv, past = call.T;
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    query_stream queries = {call, aligned, *shared, b, kv};
    sr_chunk_state<WARPS> state(warp_number());
    int chunk = min(segments.chunks, start + segments.each) - 1, g = 0;

    queries.load(chunk * SR_CHUNK, 0, 0);
    cp_async_commit();
    for (int stage = 0; chunk >= start; stage ^= 1) {
        const int t0 = chunk * SR_CHUNK, t1 = t0 + SR_CHUNK;
        const bool last_head = g == call.group - 1;
        cp_async_wait<0>();
        queries.features(t0, g, stage);
        __syncthreads(); /* tiles are ready, and no warp reads the previous ones */
        if (!last_head || chunk > start) {
            queries.load(last_head ? t0 - SR_CHUNK : t0, last_head ? 0 : g + 1, stage ^ 1);
            cp_async_commit();
        }
        const int begins = head.first[min(t1, past) - 1];
        const bool differ = queries.count(head, t0, begins, stage);
        __syncthreads(); /* factors are ready */
        if (g == 0 && t1 < past)
            state.multiply(head.back_across(t0, t1, head.first[t1]));
        queries.add(state, stage, differ, begins >= t0);
        g = last_head ? 0 : g + 1;
        chunk -= last_head;
    }
    state.put(segments.state(head_number, segment - 1));
}

srnn_status sr_chunked_query_states(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned,
                                    const sr_chunk_segments &segments, cudaStream_t stream) {
    SR_CUDA(sr_launch(call.choices.decays ? query_states<true> : query_states<false>,
                      dim3((unsigned)segments.cut_blocks(segments.count - 1)), dim3(THREADS),
                      sizeof(query_memory), stream, call, aligned, segments));
    return sr_chunked_scan(call, segments, true, stream);
}

srnn_status sr_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned,
                                     const sr_chunk_workspace &workspace, cudaStream_t stream) {
    sr_chunk_segments segments = sr_chunked_segments(call.B * call.Hkv, 1, call.T,
                                                     SR_KEY_BLOCKS * workspace.multiprocessors);
    segments.states = workspace.states;
    if (segments.count > 1)
        SR_TRY(sr_chunked_query_states(call, aligned, segments, stream));
    SR_CUDA(sr_launch(call.choices.decays ? key_chunks<true> : key_chunks<false>,
                      dim3((unsigned)segments.blocks()), dim3(THREADS), sizeof(key_memory), stream,
                      call, aligned, segments));
    return SRNN_OK;
}
