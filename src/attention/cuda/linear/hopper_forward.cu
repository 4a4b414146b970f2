/* hopper_forward.cu: chunked linear attention on Hopper, forward. */
#include "attention/cuda/linear/hopper.h"

#include "device/cuda/check.h"

struct forward_memory {
    alignas(1024) sr_bf16 queries[SR_CHUNK_NUMBERS];
    sr_bf16 keys[SR_CHUNK_NUMBERS], values[SR_CHUNK_NUMBERS];
    sr_bf16 state[SR_CHUNK_NUMBERS];   /* before the chunk */
    sr_bf16 weights[SR_CHUNK_NUMBERS]; /* and rows on their way out */
    sr_bf16 sums[8 * SR_CHUNK];        /* z in pairs of rows, before the chunk */
    sr_bf16 ones[8 * SR_CHUNK];        /* 1 and 0, in pairs of rows: the weights of keys in z */
    chunk_ones z;
    uint64_t full;
    int b, h, kv, end; /* the head that is walked, and the end */
};
static_assert(chunk_blocks_fit(sizeof(forward_memory), HOPPER_PLAIN_BLOCKS), "too much memory");

/* The weights of the chunk's pairs, in bf16 to shared memory; and the row sums of a thread's two
 * rows, without the score's coefficient, over the chunk's keys and, where `before`, over earlier
 * ones. */
SR_DEVICE void weigh(float (&sum)[2], forward_memory *shared, const sr_chunk_head<false> &head,
                     int t0, bool documents, const float (&before)[2]) {
    chunk_sums w;
    float earlier[4];
    products([&] {
        multiply_tiles<SR_CHUNK, ALONG, ALONG>(flat(w), shared->queries, shared->keys, false);
        multiply_tiles<8, ALONG, ALONG>(earlier, shared->queries, shared->sums, false);
    });
    wgmma_settle(flat(w));
    wgmma_settle(earlier);
    hide_keys_of_chunk(w, head, t0, documents);
    pieces_to_tile<SR_CHUNK>(shared->weights + warp_row() * SR_CHUNK, w);
    fence_proxy_async();
    __syncwarp(); /* a warp multiplies its own rows */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float own = 0;
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
            own += w[n][2 * half] + w[n][2 * half + 1];
        sum[half] =
            counted(earlier[2 * half] + earlier[2 * half + 1], before[half]) + quad_sum(own);
    }
}

/* GEMMs for the numerators of 64 rows: with the state, and with the chunk's own values. */
SR_DEVICE void read_state(chunk_sums &c, const forward_memory *shared) {
    multiply_tiles<SR_CHUNK, ALONG, ALONG>(flat(c), shared->queries, shared->state, false);
}
SR_DEVICE void visit_values(chunk_sums &c, const forward_memory *shared) {
    multiply_tiles<SR_CHUNK, ALONG, ACROSS>(flat(c), shared->weights, shared->values, true);
}

/* For a chunk in which a document begins: its rows see nothing before it, and the state afterwards
 * holds nothing else. */
SR_DEVICE void walk_documents(chunk_sums &c, chunk_state &state, forward_memory *shared, int begun,
                              const float (&before)[2]) {
    products([&] { read_state(c, shared); });
    wgmma_settle(flat(c));
#pragma unroll
    for (int half = 0; half < 2; half++)
        scale_row(c, half, before[half]);
    products([&] { visit_values(c, shared); });
    wgmma_settle(flat(c));
    state.clear();
    if (begun > 0) {
        const auto kept = [&](int row) { return row >= begun; };
        __syncthreads(); /* no warp reads the tiles */
        clear_rows(shared->keys, kept);
        clear_rows(shared->values, kept);
        fence_proxy_async();
        __syncthreads(); /* tokens that do not count are zero */
    }
    state.add(shared->keys, shared->values, shared->ones);
}

/* For rows without a norm: the factors of their numerators, with the row sums saved for backward;
 * else the row sums. */
template <bool PLAIN>
SR_DEVICE void finish_sums(float (&sum)[2], const sr_attention_view<sr_bf16> &call,
                           const sr_rows_place &place) {
    const float coefficient = call.score.coefficient[1];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int t = place.t + piece_row(half), inside = min(t, call.T - 1);
        sum[half] *= coefficient;
        if constexpr (PLAIN) {
            const int64_t at = call.row_index(call.H, place.b, place.h, inside);
            if (call.row_sum && threadIdx.x % 4 == 0 && t < call.T) {
                call.row_sum[at] = sum[half];
                call.maximum[at] = 0;
            }
            if (call.choices.only_divided) /* the common case: without the branches of row_facts */
                sum[half] = coefficient / sum_denominator(call.choices, sum[half]);
            else
                sum[half] =
                    coefficient * row_plain_factor(call.choices, row_facts(call, place.b, place.h,
                                                                           inside, sum[half], 0));
        }
    }
}

/* Epilogue: outputs from numerators and the result of finish_sums. `rows`: the warp's own. */
template <bool PLAIN>
SR_DEVICE void finish_outputs(chunk_sums &c, const float (&sum)[2], const chunk_task &task,
                              const sr_rows_place &place, sr_bf16 *rows) {
    const sr_attention_view<sr_bf16> &call = task.call;
    const float coefficient = call.score.coefficient[1];
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 2; n++)
        flat(c)[n] *= PLAIN ? sum[n / 2 % 2] : coefficient;
    if constexpr (PLAIN) {
        store_rows<SR_CHUNK>(head_rows(call.o, place.b, place.h, SR_CHUNK, task.aligned.o), c,
                             place.t, rows, call.T);
    } else {
        const float mine = threadIdx.x % 4 == 0 ? 1 : 0; /* each lane has the whole sum */
        store_outputs<SR_CHUNK>(call, task.aligned, place, c, {mine * sum[0], mine * sum[1]}, rows);
    }
}

/* A block is one warpgroup and owns one head, or one segment of it, and walks its chunks in order;
 * the state S stays in wgmma accumulators. Thread 0 copies Q, K and V of a chunk by TMA, global ->
 * shared, one mbarrier per chunk, one stage: other resident blocks hide its latency. For each
 * chunk: state published in shared memory (bf16), mbarrier wait, features in place, proxy fence,
 * barrier; wgmma Q K' and Q z, masked weights to shared memory; one batch of wgmma: S += V' K, rows
 * = Q S_before + W V; barrier; the next chunk's TMA starts while the epilogue stores the rows
 * through the weights' tile. Chunks in which a document begins take walk_documents instead. A
 * segment starts from the states in the workspace. */
template <bool PLAIN>
__global__ void __launch_bounds__(CHUNK_THREADS,
                                  PLAIN ? HOPPER_PLAIN_BLOCKS : HOPPER_FORWARD_BLOCKS)
    hopper_forward_chunks(const __grid_constant__ chunk_task task) {
    const sr_attention_view<sr_bf16> &call = task.call;
    SR_SHARED(forward_memory, shared);
    const int past = call.T;
    int chunk;
    const auto load = [&](int t0) {
        if (threadIdx.x != 0)
            return;
        mbarrier_arrive_expect(&shared->full, 3 * CHUNK_TILE_BYTES);
        tensor_load_4d(shared->queries, &task.q, &shared->full, {0, t0, shared->h, shared->b});
        tensor_load_4d(shared->keys, &task.k, &shared->full, {0, t0, shared->kv, shared->b});
        tensor_load_4d(shared->values, &task.v, &shared->full, {0, t0, shared->kv, shared->b});
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
        }
        __syncthreads();
        load(chunk * SR_CHUNK);
        pair_column(shared->ones, 1);
        if (chunk > 0)
            state.get<SR_CHUNK_ROWS>(task.segments, chunk_head<false>(call, b, h / call.group),
                                     walk.row / call.group, walk.segment, false);
    }
    for (;; chunk++) {
        const int t0 = chunk * SR_CHUNK;
        const sr_chunk_head<false> head = chunk_head<false>(call, shared->b, shared->kv);
        /* Where the document of the chunk's last token begins. */
        const int begins = head.first[min(t0 + SR_CHUNK, past) - 1];
        float before[2] = {1, 1}, sum[2]; /* whether a row sees tokens before the chunk */
        chunk_sums c;
        state.publish(shared->state);
#pragma unroll
        for (int half = 0; half < 2; half++)
            pair_store(shared->sums, sums_row() + 8 * half, sums_column() / 2, shared->z.sum(half));
        mbarrier_wait(&shared->full, chunk % 2);
        chunk_pieces().features(shared->queries, query_map(call, shared->b), t0, past);
        chunk_pieces().features(shared->keys, key_map(call, shared->b), t0, past);
        fence_proxy_async();
        __syncthreads(); /* features and state are ready */
        if (begins >= t0)
#pragma unroll
            for (int half = 0; half < 2; half++)
                before[half] = head.from_before(t0, t0 + sums_row() + 8 * half);
        weigh(sum, shared, head, t0, begins > t0, before);
        finish_sums<PLAIN>(sum, call, {shared->b, shared->h, t0 + warp_row()});
        if (begins >= t0)
            walk_documents(c, state, shared, begins - t0, before);
        else
            state.add(shared->keys, shared->values, shared->ones, [&] {
                read_state(c, shared);
                visit_values(c, shared);
            });
        wgmma_settle(flat(c));
        __syncthreads(); /* no warp reads tiles and state any more */
        if (chunk + 1 < shared->end)
            load(t0 + SR_CHUNK);
        if (t0 + warp_row() < past)
            finish_outputs<PLAIN>(c, sum, task, {shared->b, shared->h, t0 + warp_row()},
                                  shared->weights + warp_row() * SR_CHUNK);
        if (chunk + 1 >= shared->end)
            break;
    }
}

srnn_status hopper_chunked_forward(const sr_attention_view<sr_bf16> &call,
                                   const sr_mma_alignment &aligned,
                                   const sr_chunk_workspace &workspace, cudaStream_t stream) {
    chunk_task task;
    const bool plain = sr_chunked_plain(call);
    const int blocks = plain ? HOPPER_PLAIN_BLOCKS : HOPPER_FORWARD_BLOCKS;
    const sr_chunk_segments segments = hopper_chunked_segments(call, call.group, blocks, workspace);
    if (segments.count > 1)
        SR_TRY(sr_chunked_key_states(call, aligned, segments, stream));
    SR_CUDA(chunk_task_make(&task, call, aligned, segments));
    SR_CUDA(chunk_walk_start(plain ? hopper_forward_chunks<true> : hopper_forward_chunks<false>,
                             task, sizeof(forward_memory), stream));
    return SRNN_OK;
}
