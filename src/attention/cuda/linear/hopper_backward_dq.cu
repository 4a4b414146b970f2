/* hopper_backward_dq.cu: chunked linear attention on Hopper, dQ: the walk of the forward pass, with
 * gradients of numerators in place of queries. */
#include "attention/cuda/linear/hopper.h"

#include "attention/cuda/shared/backward_preprocess.h"
#include "device/cuda/check.h"

struct query_memory {
    alignas(1024) sr_bf16 d_numerators[SR_CHUNK_NUMBERS];
    sr_bf16 keys[SR_CHUNK_NUMBERS], values[SR_CHUNK_NUMBERS];
    sr_bf16 queries[SR_CHUNK_NUMBERS]; /* and gradients on their way out */
    sr_bf16 state[SR_CHUNK_NUMBERS];   /* before the chunk */
    sr_bf16 ones[8 * SR_CHUNK];        /* 1 and 0, in pairs of rows */
    chunk_ones z;
    float column[SR_CHUNK]; /* z before the chunk */
    uint64_t full, queries_full;
    int b, h, kv, end; /* the head that is walked, and the end */
};
static_assert(chunk_blocks_fit(sizeof(query_memory), HOPPER_QUERY_BLOCKS), "too much memory");

/* Gradients of the features of 64 queries. Those of the row sums, which are known only after the
 * numerators' part, are multiplied by E, the sum of the keys that each query sees. */
struct gradient_rows {
    chunk_sums c;
    float sum[2];    /* gradients of the row sums */
    float factor[2]; /* of the score and of the row */

    /* GEMMs with the state before the chunk; of A with the chunk's own keys. */
    SR_DEVICE void read(const query_memory *shared) {
        multiply_tiles<SR_CHUNK, ALONG, ACROSS>(flat(c), shared->d_numerators, shared->state,
                                                false);
    }
    SR_DEVICE void visit(const uint32_t (&a)[SR_CHUNK / 4], const query_memory *shared) {
        multiply_packed(c, a, shared->keys);
    }

    /* Loads the saved numbers of rows: their sums where there is no norm, else the gradients of the
     * backward preprocess. */
    SR_DEVICE void ask(const sr_attention_view<sr_bf16> &call, int b, int h, int t) {
        const bool plain = call.choices.norm == SRNN_NORM_NONE;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = call.row_index(call.H, b, h, min(t + piece_row(half), call.T - 1));
            sum[half] = plain ? call.row_sum[at] : call.scratch.d_row_sum[at];
            factor[half] = plain ? 1 : call.scratch.row_scale[at];
        }
    }

    /* The gradients of the row sums and the factors of rows; for plain rows, stored for the dK/dV
     * kernel. */
    SR_DEVICE void answer(const sr_attention_view<sr_bf16> &call, int b, int h, int t,
                          const sr_bf16 *features) {
        const float coefficient = call.score.coefficient[1];
        const bool plain = call.choices.norm == SRNN_NORM_NONE;
        float dot[2] = {0, 0};
        if (plain)
            feature_dots(dot, c, features);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = t + piece_row(half), inside = min(i, call.T - 1);
            const int64_t at = call.row_index(call.H, b, h, inside);
            const bool write = threadIdx.x % 4 == 0 && i < call.T;
            if (!plain) {
                factor[half] *= coefficient;
                continue;
            }
            if (call.choices.only_divided) { /* the common case: without the branches below */
                const float scale = 1 / sum_denominator(call.choices, sum[half]);
                sum[half] = -coefficient * dot[half] * scale;
                factor[half] = coefficient * scale;
                if (write) {
                    call.scratch.row_scale[at] = scale;
                    call.scratch.d_row_sum[at] = sum[half];
                }
                continue;
            }
            const sr_row_facts facts = row_facts(call, b, h, inside, sum[half], 0);
            const sr_row_gradient g =
                row_plain_backward(call.choices, facts, coefficient * dot[half]);
            if (write)
                store_row_gradient(call, {b, h, i}, at, g);
            sum[half] = g.row_sum;
            factor[half] = coefficient * g.scale;
        }
    }

    /* C += sum E: first the sums in bf16 times the chunk's keys, then their rounding errors;
     * `before`: whether a row sees tokens before the chunk. */
    SR_DEVICE void add_sums(const query_memory *shared, const sr_chunk_head<false> &head, int t0,
                            bool documents, const bool (&before)[2]) {
        float left[2] = {sum[0], sum[1]};
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
            chunk_sums w;
            uint32_t a[SR_CHUNK / 4];
#pragma unroll
            for (int n = 0; n < SR_CHUNK / 2; n++)
                flat(w)[n] = left[n / 2 % 2];
            hide_keys_of_chunk(w, head, t0, documents);
            pack_sums(a, w);
            products([&] { visit(a, shared); });
            wgmma_settle(flat(c));
#pragma unroll
            for (int half = 0; half < 2; half++)
                left[half] -= to_float(to_bf16(left[half]));
        }
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (before[e / 2])
                    c[n][e] =
                        fmaf(sum[e / 2], shared->column[8 * n + sums_column() + e % 2], c[n][e]);
    }

    /* Epilogue. `features` of the warp's queries, overwritten by the gradients. */
    SR_DEVICE void finish(const chunk_task &task, int b, int h, int t, sr_bf16 *features) {
        const sr_attention_view<sr_bf16> &call = task.call;
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 2; n++)
            flat(c)[n] *= factor[n / 2 % 2];
        features_back(c, features, {call.raw_q.at(b, h, t), call.raw_q.time, SR_CHUNK, false},
                      call.choices.feature, call.T - t);
        if (call.d_q.data)
            store_rows<SR_CHUNK>(head_rows(call.d_q, b, h, SR_CHUNK, task.aligned.d_q), c, t,
                                 features, call.T);
    }
};

/* Gradients of the weights of the chunk's pairs, the numerators' part, in bf16. */
SR_DEVICE void differentiate(uint32_t (&a)[SR_CHUNK / 4], const query_memory *shared,
                             const sr_chunk_head<false> &head, int t0, bool documents) {
    chunk_sums d;
    products([&] {
        multiply_tiles<SR_CHUNK, ALONG, ALONG>(flat(d), shared->d_numerators, shared->values,
                                               false);
    });
    wgmma_settle(flat(d));
    hide_keys_of_chunk(d, head, t0, documents);
    pack_sums(a, d);
}

/* A block is one warpgroup and owns one head, or one segment of it, and walks its chunks in order;
 * the state S stays in wgmma accumulators. Thread 0 copies K, V and d_numerator of a chunk by TMA,
 * global -> shared, with one mbarrier, and Q with another. For each chunk: state published in
 * shared memory (bf16), mbarrier wait, features of K in place, barrier; wgmma dN V', masked in
 * registers; one batch of wgmma: S += V' K, dQ = dN S_before + dW K; wait for Q, its features,
 * barrier; per-row numbers, and for row sums two more wgmma; barrier; the next TMA of K, V and dN
 * starts while the epilogue stores the rows through the query tile; barrier; then that of Q. A
 * segment starts from the states in the workspace. */
__global__ void __launch_bounds__(CHUNK_THREADS, HOPPER_QUERY_BLOCKS)
    hopper_query_chunks(const __grid_constant__ chunk_task task) {
    const sr_attention_view<sr_bf16> &call = task.call;
    SR_SHARED(query_memory, shared);
    const int past = call.T;
    int chunk;
    const auto load_queries = [&](int t0) {
        if (threadIdx.x != 0)
            return;
        mbarrier_arrive_expect(&shared->queries_full, CHUNK_TILE_BYTES);
        tensor_load_4d(shared->queries, &task.q, &shared->queries_full,
                       {0, t0, shared->h, shared->b});
    };
    const auto load = [&](int t0) {
        uint64_t *const full = &shared->full;
        if (threadIdx.x != 0)
            return;
        mbarrier_arrive_expect(full, 3 * CHUNK_TILE_BYTES);
        tensor_load_4d(shared->keys, &task.k, full, {0, t0, shared->kv, shared->b});
        tensor_load_4d(shared->d_numerators, &task.d, full, {0, t0, shared->h, shared->b});
        tensor_load_4d(shared->values, &task.v, full, {0, t0, shared->kv, shared->b});
    };
    chunk_state state(shared->z);
    {
        const sr_chunk_walk walk = chunk_walk(task.segments, (int)blockIdx.x);
        const int b = of_warp(walk.row / call.H), h = walk.row - b * call.H;
        chunk = walk.start;
        if (threadIdx.x == 0) {
            shared->b = b;
            shared->h = h;
            shared->kv = h / call.group;
            shared->end = walk.end;
            chunk_barrier_init(&shared->full, chunk);
            chunk_barrier_init(&shared->queries_full, chunk);
        }
        __syncthreads();
        load(chunk * SR_CHUNK);
        load_queries(chunk * SR_CHUNK);
        pair_column(shared->ones, 1);
        if (chunk > 0)
            state.get<SR_CHUNK_ROWS>(task.segments, chunk_head<false>(call, b, h / call.group),
                                     walk.row / call.group, walk.segment, false);
    }
    for (;; chunk++) {
        const int t0 = chunk * SR_CHUNK, own = warp_row();
        const sr_chunk_head<false> head = chunk_head<false>(call, shared->b, shared->kv);
        /* Where the document of the chunk's last token begins. */
        const int begins = head.first[min(t0 + SR_CHUNK, past) - 1];
        const bool documents = begins > t0; /* a document begins inside */
        bool before[2] = {true, true};
        gradient_rows rows;
        uint32_t a[SR_CHUNK / 4];
        state.publish(shared->state);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (sums_column() == 0)
                shared->column[sums_row() + 8 * half] = shared->z.sum(half);
        mbarrier_wait(&shared->full, chunk % 2);
        chunk_pieces().features(shared->keys, key_map(call, shared->b), t0, past);
        fence_proxy_async();
        __syncthreads(); /* features and state are ready */
        differentiate(a, shared, head, t0, documents);
        if (begins >= t0) {
            products([&] { rows.read(shared); });
            wgmma_settle(flat(rows.c));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                before[half] = head.from_before(t0, t0 + sums_row() + 8 * half) != 0;
                scale_row(rows.c, half, before[half] ? 1.0f : 0.0f);
            }
            products([&] { rows.visit(a, shared); });
        } else {
            state.add(shared->keys, shared->values, shared->ones, [&] {
                rows.read(shared);
                rows.visit(a, shared);
            });
        }
        wgmma_settle(flat(rows.c));
        rows.ask(call, shared->b, shared->h, t0 + own);
        mbarrier_wait(&shared->queries_full, chunk % 2);
        chunk_pieces().features(shared->queries, query_map(call, shared->b), t0, past);
        __syncthreads(); /* features of queries are ready */
        rows.answer(call, shared->b, shared->h, t0 + own, shared->queries + own * SR_CHUNK);
        if (call.choices.sums_rows)
            rows.add_sums(shared, head, t0, documents, before);
        if (documents) {
            const auto kept = [&](int row) { return t0 + row >= begins; };
            __syncthreads(); /* no warp reads the tiles */
            clear_rows(shared->keys, kept);
            clear_rows(shared->values, kept);
            fence_proxy_async();
            __syncthreads(); /* tokens that do not count are zero */
        }
        if (begins >= t0) {
            state.clear();
            state.add(shared->keys, shared->values, shared->ones);
        }
        __syncthreads(); /* no warp reads tiles and state any more, except for the queries */
        const bool more = chunk + 1 < shared->end;
        if (more)
            load(t0 + SR_CHUNK);
        if (t0 + own < past)
            rows.finish(task, shared->b, shared->h, t0 + own, shared->queries + own * SR_CHUNK);
        if (!more)
            break;
        fence_proxy_async();
        __syncthreads(); /* nor the queries */
        load_queries(t0 + SR_CHUNK);
    }
}

srnn_status hopper_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                            const sr_mma_alignment &aligned,
                                            const sr_chunk_workspace &workspace,
                                            cudaStream_t stream) {
    chunk_task task;
    const sr_chunk_segments segments =
        hopper_chunked_segments(call, call.group, HOPPER_QUERY_BLOCKS, workspace);
    if (segments.count > 1)
        SR_TRY(sr_chunked_key_states(call, aligned, segments, stream));
    SR_CUDA(chunk_task_make(&task, call, aligned, segments));
    SR_CUDA(chunk_walk_start(hopper_query_chunks, task, sizeof(query_memory), stream));
    return SRNN_OK;
}
