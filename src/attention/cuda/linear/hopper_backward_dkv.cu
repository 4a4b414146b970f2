/* hopper_backward_dkv.cu: chunked linear attention on Hopper, dK and dV: a walk from the end, whose
 * state sums queries times gradients of numerators. The row scales of a query are folded into its
 * features. */
#include "attention/cuda/linear/hopper.h"

#include "device/cuda/check.h"

struct key_memory {
    alignas(1024) sr_bf16 queries[SR_CHUNK_NUMBERS];
    sr_bf16 d_numerators[SR_CHUNK_NUMBERS];
    sr_bf16 keys[SR_CHUNK_NUMBERS], values[SR_CHUNK_NUMBERS];
    sr_bf16 state[SR_CHUNK_NUMBERS]; /* of the queries after the chunk */
    sr_bf16 out[SR_CHUNK_NUMBERS];   /* gradients on their way out */
    sr_bf16 counts[8 * SR_CHUNK];    /* d_row_sums in pairs of rows */
    float d_row_sums[SR_CHUNK];
    float scales[chunk_tiles::pieces][CHUNK_THREADS]; /* of a thread's own pieces of queries */
    chunk_ones z;                                     /* queries times d_row_sums */
    float column[SR_CHUNK];                           /* the same after the chunk */
    uint64_t full;
    int b, kv, start; /* the head that is walked; its first chunk, walked last */
};
static_assert(chunk_blocks_fit(sizeof(key_memory), HOPPER_KEY_BLOCKS), "too much memory");

/* 64 rows: C = X state + (X Y^T) Z, the second term over the chunk's own queries. */
struct key_rows {
    chunk_sums c;

    /* C = X state, or C += where `add`. */
    template <contiguous STATE>
    SR_DEVICE void read(const sr_bf16 *x, const sr_bf16 *state, bool add) {
        multiply_tiles<SR_CHUNK, ALONG, STATE>(flat(c), x, state, add);
    }

    SR_DEVICE void finish_values(const chunk_task &task, const sr_rows_place &at, sr_bf16 *rows) {
        const sr_attention_view<sr_bf16> &call = task.call;
        if (call.scratch.value_factor)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[SR_CHUNK / 4];
                row_of(d, c, half);
                value_gradient<sr_quad_row<SR_CHUNK>>(d, call, at.b, at.h, at.t + piece_row(half));
                set_row(c, d, half);
            }
        if (call.d_v.data)
            store_rows<SR_CHUNK>(head_rows(call.d_v, at.b, at.h, SR_CHUNK, task.aligned.d_v), c,
                                 at.t, rows, call.T);
    }

    /* Epilogue of dK. `features` of the warp's keys. */
    SR_DEVICE void finish_keys(const chunk_task &task, const sr_rows_place &at,
                               const sr_bf16 *features, sr_bf16 *rows) {
        const sr_attention_view<sr_bf16> &call = task.call;
        features_back(c, features,
                      {call.raw_k.at(at.b, at.h, at.t), call.raw_k.time, SR_CHUNK, false},
                      call.choices.feature, call.T - at.t);
        if (call.d_k.data)
            store_rows<SR_CHUNK>(head_rows(call.d_k, at.b, at.h, SR_CHUNK, task.aligned.d_k), c,
                                 at.t, rows, call.T);
    }
};

/* Where documents begin around a chunk. Reloaded where it is needed, since registers are scarce. */
struct key_chunk {
    sr_chunk_head<false> head;
    int t0;
    int begins, after; /* starts of the documents of its last token, and of the token after it */

    SR_DEVICE key_chunk(const key_memory *shared, const sr_attention_view<sr_bf16> &call, int chunk)
        : head(chunk_head<false>(call, shared->b, shared->kv)), t0(chunk * SR_CHUNK) {
        const int t1 = t0 + SR_CHUNK;
        begins = head.first[min(t1, call.T) - 1];
        after = t1 < call.T ? head.first[t1] : call.T;
    }

    /* No document begins in the chunk, nor right before or after it. */
    SR_DEVICE bool inside() const {
        return begins < t0 && after < t0;
    }

    /* Zeroes rows of keys that later queries do not see. */
    SR_DEVICE void scale(chunk_sums &c) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = min(t0 + sums_row() + 8 * half, head.T - 1);
            scale_row(c, half, head.from_after(t0 + SR_CHUNK, t));
        }
    }
};

/* dV = K S + W' dN. */
SR_DEVICE void value_gradients(key_rows &rows, const key_memory *shared, const key_chunk &at) {
    uint32_t a[SR_CHUNK / 4];
    {
        chunk_sums w;
        products([&] {
            multiply_tiles<SR_CHUNK, ALONG, ALONG>(flat(w), shared->keys, shared->queries, false);
        });
        wgmma_settle(flat(w));
        hide_queries_of_chunk(w, at.head, at.t0, at.begins > at.t0);
        pack_sums(a, w);
    }
    const auto read = [&] { rows.read<ALONG>(shared->keys, shared->state, false); };
    const auto visit = [&] { multiply_packed(rows.c, a, shared->d_numerators); };
    if (at.inside()) {
        products([&] {
            read();
            visit();
        });
    } else {
        products(read);
        wgmma_settle(flat(rows.c));
        at.scale(rows.c);
        products(visit);
    }
    wgmma_settle(flat(rows.c));
}

/* dK = V S' + dW' Q; also updates the state where no document begins. */
SR_DEVICE void key_gradients(key_rows &rows, chunk_state &state, const key_memory *shared,
                             const key_chunk &at) {
    uint32_t a[SR_CHUNK / 4];
    {
        chunk_sums d;
        products([&] {
            multiply_tiles<SR_CHUNK, ALONG, ALONG>(flat(d), shared->values, shared->d_numerators,
                                                   false);
        });
        wgmma_settle(flat(d));
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d[n][e] += shared->d_row_sums[8 * n + sums_column() + e % 2];
        hide_queries_of_chunk(d, at.head, at.t0, at.begins > at.t0);
        pack_sums(a, d);
    }
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            rows.c[n][e] = shared->column[8 * n + sums_column() + e % 2];
    const auto read = [&] { rows.read<ACROSS>(shared->values, shared->state, true); };
    const auto visit = [&] { multiply_packed(rows.c, a, shared->queries); };
    if (at.inside()) {
        state.add(shared->queries, shared->d_numerators, shared->counts, [&] {
            read();
            visit();
        });
    } else {
        products(read);
        wgmma_settle(flat(rows.c));
        at.scale(rows.c);
        products(visit);
    }
    wgmma_settle(flat(rows.c));
}

/* Row scalars of a chunk's queries, 0 past the end. Their loads are in flight together with the
 * tiles. */
struct query_numbers {
    float d_row_sum, scale[chunk_tiles::pieces];

    SR_DEVICE void ask(const key_memory *shared, const sr_attention_view<sr_bf16> &call, int t0) {
        const int64_t row = call.row_index(call.H, shared->b, shared->kv, t0);
        const int query = (int)threadIdx.x % SR_CHUNK;
        d_row_sum = t0 + query < call.T ? call.scratch.d_row_sum[row + query] : 0;
#pragma unroll
        for (int n = 0; n < chunk_tiles::pieces; n++) {
            const int t = chunk_tiles::row() + n * chunk_tiles::apart;
            scale[n] = t0 + t < call.T ? call.scratch.row_scale[row + t] : 0;
        }
    }
    SR_DEVICE void store(key_memory *shared, float coefficient) const {
#pragma unroll
        for (int n = 0; n < chunk_tiles::pieces; n++)
            shared->scales[n][threadIdx.x] = coefficient * scale[n];
        if ((int)threadIdx.x < SR_CHUNK)
            shared->d_row_sums[threadIdx.x] = d_row_sum;
        pair_column(shared->counts, d_row_sum);
    }
};

/* Updates the state where documents begin: with queries that see tokens before the chunk. */
SR_DEVICE void add_documents(chunk_state &state, key_memory *shared, const key_chunk &at) {
    if (at.inside())
        return;
    if (at.begins >= at.t0) {
        const auto kept = [&](int n) {
            return at.t0 + n < at.head.T && at.head.first[at.t0 + n] < at.t0;
        };
        const int query = (int)threadIdx.x % SR_CHUNK;
        __syncthreads(); /* no warp reads the tiles */
        clear_rows(shared->queries, kept);
        clear_rows(shared->d_numerators, kept);
        pair_column(shared->counts, kept(query) ? shared->d_row_sums[query] : 0);
        fence_proxy_async();
        __syncthreads(); /* what does not count is zero */
    }
    if (at.after >= at.t0)
        state.clear();
    state.add(shared->queries, shared->d_numerators, shared->counts);
}

/* A block is one warpgroup and owns one KV head (which has one query head), or one segment of it,
 * and walks its chunks from the end; the state S = sum q dN' stays in wgmma accumulators. Thread 0
 * copies Q, K, d_numerator and V of a chunk by TMA, global -> shared, with one mbarrier; every
 * thread loads its row scalars, global -> registers, at the same time. For each chunk: state
 * published in shared memory (bf16), row scalars stored, mbarrier wait, features in place, barrier;
 * wgmma K Q', masked, then dV = K S + W' dN, stored through the `out` tile; wgmma V dN', masked,
 * then one batch S += dN' Q and dK = V S' + dW' Q, stored the same way; barrier before the next
 * TMA. Each row is written once by its owner. A segment starts from the states in the workspace. */
__global__ void __launch_bounds__(CHUNK_THREADS, HOPPER_KEY_BLOCKS)
    hopper_key_chunks(const __grid_constant__ chunk_task task) {
    const sr_attention_view<sr_bf16> &call = task.call;
    SR_SHARED(key_memory, shared);
    const int past = call.T;
    int chunk;
    const auto load = [&](int t0) {
        uint64_t *const full = &shared->full;
        if (threadIdx.x != 0)
            return;
        mbarrier_arrive_expect(full, 4 * CHUNK_TILE_BYTES);
        tensor_load_4d(shared->queries, &task.q, full, {0, t0, shared->kv, shared->b});
        tensor_load_4d(shared->keys, &task.k, full, {0, t0, shared->kv, shared->b});
        tensor_load_4d(shared->d_numerators, &task.d, full, {0, t0, shared->kv, shared->b});
        tensor_load_4d(shared->values, &task.v, full, {0, t0, shared->kv, shared->b});
    };
    chunk_state state(shared->z);
    query_numbers numbers;
    {
        const sr_chunk_walk walk = chunk_walk(task.segments, (int)blockIdx.x);
        const int b = of_warp(walk.row / call.Hkv);
        chunk = walk.end - 1;
        if (threadIdx.x == 0) {
            shared->b = b;
            shared->kv = walk.row - b * call.Hkv;
            shared->start = walk.start;
            chunk_barrier_init(&shared->full, chunk);
        }
        __syncthreads();
        load(chunk * SR_CHUNK);
        numbers.ask(shared, call, chunk * SR_CHUNK);
        if (walk.end < task.segments.chunks)
            state.get<2 * SR_CHUNK_ROWS>(task.segments,
                                         chunk_head<false>(call, b, walk.row - b * call.Hkv),
                                         walk.row, walk.segment, true);
    }
    for (;; chunk--) {
        const int t0 = chunk * SR_CHUNK;
        key_rows rows;
        state.publish(shared->state);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (sums_column() == 0)
                shared->column[sums_row() + 8 * half] = shared->z.sum(half);
        numbers.store(shared, call.score.coefficient[1]);
        mbarrier_wait(&shared->full, chunk % 2);
        chunk_pieces().features(shared->queries, query_map(call, shared->b), t0, past,
                                [&](int n) { return shared->scales[n][thread_again()]; });
        chunk_pieces().features(shared->keys, key_map(call, shared->b), t0, past);
        fence_proxy_async();
        __syncthreads(); /* features and state are ready */
        value_gradients(rows, shared, key_chunk(shared, call, chunk));
        if (t0 + warp_row() < past)
            rows.finish_values(task, {shared->b, shared->kv, t0 + warp_row()},
                               shared->out + warp_row() * SR_CHUNK);
        key_gradients(rows, state, shared, key_chunk(shared, call, chunk));
        if (t0 + warp_row() < past)
            rows.finish_keys(task, {shared->b, shared->kv, t0 + warp_row()},
                             shared->keys + warp_row() * SR_CHUNK,
                             shared->out + warp_row() * SR_CHUNK);
        if (chunk <= shared->start)
            break;
        add_documents(state, shared, key_chunk(shared, call, chunk));
        __syncthreads(); /* no warp reads tiles and state any more */
        load(t0 - SR_CHUNK);
        numbers.ask(shared, call, t0 - SR_CHUNK);
    }
}

srnn_status hopper_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                         const sr_mma_alignment &aligned,
                                         const sr_chunk_workspace &workspace, cudaStream_t stream) {
    chunk_task task;
    const sr_chunk_segments segments =
        hopper_chunked_segments(call, 1, HOPPER_KEY_BLOCKS, workspace);
    if (segments.count > 1)
        SR_TRY(sr_chunked_query_states(call, aligned, segments, stream));
    SR_CUDA(chunk_task_make(&task, call, aligned, segments));
    SR_CUDA(chunk_walk_start(hopper_key_chunks, task, sizeof(key_memory), stream));
    return SRNN_OK;
}
