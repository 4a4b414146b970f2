/* forward.cu: chunked attention of order 2, forward: rows of queries read the state before their
 * segment, and pair with the keys of the segment. */
#include "attention/cuda/order2/rows.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

/* A stage has 128 rows of the state, or 64 keys and their values. */
template <int WIDTH> struct rows_memory {
    alignas(16) sr_bf16 queries[SR_ORDER2_ROWS * WIDTH];
    sr_bf16 stage[STAGES][2][SR_CHUNK_NUMBERS];
};

/* Pairs of the rows with 16 keys from `key` on, which are rows `at` .. of the stage. */
template <int WIDTH>
SR_DEVICE void visit_keys(sr_order2_rows<WIDTH> &rows, const sr_chunk_head<true> &head,
                          const float *coefficient, const sr_bf16 *stage, int at, int key) {
    constexpr int HALVES = sr_order2_shape<WIDTH>::HALVES;
    float w[HALVES][SR_PIECE];
    uint32_t a[HALVES][4];
    rows.x.scores(w, stage, at);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = rows.t + 16 * half;
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            w[half][e] = order_two(coefficient, w[half][e]);
        decay_pairs(w[half], head, row, key, 1);
        hide_keys(w[half], head, row, key, rows.documents);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            if (HALVES > 1 && key > row) /* only here: a decay backwards may be infinite */
                w[half][e] = 0;
            rows.sum[half][e / 2 % 2] += w[half][e];
        }
        pack_piece(a[half], w[half]);
    }
    rows.multiply(a, stage + SR_CHUNK_NUMBERS, at);
}

/* Saves what rounding takes from 16 rows of numerators, behind all of them: with a decay, sums over
 * the pairs of a row must cancel those over the pairs of columns. */
SR_DEVICE void save_lost(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         const sr_rows_place &place, const float (&c)[SR_CHUNK / 8][4],
                         sr_bf16 *tile) {
    float lost[SR_CHUNK / 8][4];
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 2; n++) {
        const float x = c[n / 4][n % 4];
        lost[n / 4][n % 4] = x - to_float(to_bf16(x));
    }
    const int64_t at = call.row_index(call.H, place.b, place.h, 0);
    store_rows<SR_CHUNK>({lost_numerators(call) + at * call.Dv, call.Dv, call.Dv,
                          aligned.numerator},
                         lost, place.t, tile, call.T);
}

/* A block owns 128 queries of one head; a warp 16 or 32 of them. cp.async copies the queries once,
 * then stages of 128 rows of the state before the segment (none if the rows' document begins inside
 * it), then of 64 keys and values of the segment up to the rows, global -> shared, in three places:
 * each wait and barrier frees the place that is loaded two stages ahead. Each warp accumulates
 * numerators and row sums in registers: features (products of query numbers) times the state by
 * mma, scaled by the decay across the segment, then masked weights of the pairs times values. After
 * a last barrier the epilogue stores the warp's rows through a freed stage. */
template <int WIDTH>
__global__ void __launch_bounds__(sr_order2_shape<WIDTH>::THREADS, 2)
    expanded_outputs(const __grid_constant__ sr_attention_view<sr_bf16> call,
                     const sr_mma_alignment aligned, const sr_order2 expanded) {
    using memory = rows_memory<WIDTH>;
    using shape = sr_order2_shape<WIDTH>;
    constexpr int HALVES = shape::HALVES, THREADS = shape::THREADS;
    SR_SHARED(memory, shared);
    const sr_order2_block at = expanded_block(call, call.H, expanded);
    const int b = at.b, h = at.head, kv = h / call.group, past = call.T, t0 = at.t0;
    const int begin = at.begin, head_number = b * call.Hkv + kv;
    const sr_chunk_head<true> head = chunk_head<true>(call, b, kv);
    const sr_head_rows<const sr_bf16> keys = head_rows(call.k, b, kv, call.D, aligned.k);
    const sr_head_rows<const sr_bf16> values = head_rows(call.v, b, kv, call.Dv, aligned.v);
    const sr_bf16 *const state = expanded.state(head_number, at.segment);
    /* Stages of the state, none where the rows' documents begin inside the segment; and of keys. */
    const bool before = begin > 0 && head.first[t0] < begin;
    const int of_state = before ? expanded.stages() : 0;
    const int seen = seen_from(head, at), first = seen / SR_CHUNK * SR_CHUNK;
    const int of_keys = (min(t0 + SR_ORDER2_ROWS, past) - first + SR_CHUNK - 1) / SR_CHUNK;
    const auto load = [&](int n) {
        sr_bf16(*const stage)[SR_CHUNK_NUMBERS] = shared->stage[n % STAGES];
        if (n < of_state) {
            load_state(stage[0], state, expanded, n);
        } else if (n < of_state + of_keys) {
            const int from = first + (n - of_state) * SR_CHUNK;
            tile_load<WIDTH, SR_CHUNK, THREADS>(stage[0], keys, from, seen, past);
            tile_load<SR_CHUNK, SR_CHUNK, THREADS>(stage[1], values, from, seen, past);
        }
        cp_async_commit();
    };
    const int own = warp_number() * shape::WARP_ROWS;
    sr_order2_rows<WIDTH> rows(shared->queries + own * WIDTH, t0 + own);

    rows.documents = head.first[min(rows.t + shape::WARP_ROWS, past) - 1] > begin;
    tile_load<WIDTH, SR_ORDER2_ROWS, THREADS>(shared->queries,
                                              head_rows(call.q, b, h, call.D, aligned.q), t0, 0,
                                              past);
    load(0);
    load(1);
#pragma unroll 1
    for (int n = 0; n < of_state + of_keys; n++) {
        const sr_bf16 *const stage = shared->stage[n % STAGES][0];
        const int from = first + (n - of_state) * SR_CHUNK;
        cp_async_wait<1>();
        __syncthreads(); /* the stage is ready, and no warp reads the one before */
        load(n + 2);
        if (n < of_state) {
            rows.read(call, expanded, stage, n, expanded.vectors(head_number, at.segment));
            if (n == of_state - 1)
                rows.scale([&](int t) { return head.from_before(begin, t); });
            continue;
        }
#pragma unroll 1
        for (int m = 0; m < SR_CHUNK && from + m < rows.t + shape::WARP_ROWS; m += 16)
            visit_keys(rows, head, call.score.coefficient, stage, m, from + m);
    }
    __syncthreads(); /* no warp reads a stage any more */
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        if (rows.t + 16 * half < past) {
            const sr_rows_place place = {b, h, rows.t + 16 * half};
            sr_bf16 *const tile = shared->stage[0][0] + (own + 16 * half) * SR_CHUNK;
            if (call.numerator && call.choices.decays)
                save_lost(call, aligned, place, rows.c[half], tile);
            store_outputs<SR_CHUNK>(call, aligned, place, rows.c[half], rows.sum[half], tile);
        }
}

srnn_status sr_order2_forward(const sr_attention_view<sr_bf16> &call,
                              const sr_mma_alignment &aligned, const sr_order2 &expanded,
                              cudaStream_t stream) {
    const dim3 grid((unsigned)(call.B * call.H * expanded_blocks(call.T)));
    if (call.D <= 16)
        SR_CUDA(sr_launch(expanded_outputs<16>, grid, dim3(sr_order2_shape<16>::THREADS),
                          sizeof(rows_memory<16>), stream, call, aligned, expanded));
    else
        SR_CUDA(sr_launch(expanded_outputs<64>, grid, dim3(sr_order2_shape<64>::THREADS),
                          sizeof(rows_memory<64>), stream, call, aligned, expanded));
    return SRNN_OK;
}
