/* backward_dv.cu: chunked attention of order 2, dV: rows of keys read the state of queries after
 * their segment, and pair with the queries of the segment. */
#include "attention/cuda/order2/rows.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

/* A stage has 128 rows of the state, or 64 queries, their gradients of numerators and row
 * scalars. */
template <int WIDTH> struct rows_memory {
    alignas(16) sr_bf16 keys[SR_ORDER2_ROWS * WIDTH];
    sr_bf16 stage[STAGES][2][SR_CHUNK_NUMBERS];
    float scales[STAGES][SR_CHUNK], d_row_sums[STAGES][SR_CHUNK];
};

/* 64 queries of a stage. */
struct query_stage {
    const sr_bf16 *queries, *d_numerators;
    const float *scales, *d_row_sums;
    int t0;
};

/* Pairs of the rows with 16 queries, which are rows `at` .. of the stage. */
template <int WIDTH>
SR_DEVICE void visit_queries(sr_order2_rows<WIDTH> &rows, const sr_chunk_head<true> &head,
                             const float *coefficient, const query_stage &stage, int at) {
    const int query = stage.t0 + at;
    constexpr int HALVES = sr_order2_shape<WIDTH>::HALVES;
    float w[HALVES][SR_PIECE];
    uint32_t a[HALVES][4];
    rows.x.scores(w, stage.queries, at);
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        const int row = rows.t + 16 * half;
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++)
            w[half][e] = order_two(coefficient, w[half][e]) * stage.scales[at + piece_column(e)];
        decay_pairs(w[half], head, row, query, -1);
        hide_queries(w[half], head, row, query, rows.documents);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            if (HALVES > 1 && query < row) /* only here: a decay backwards may be infinite */
                w[half][e] = 0;
            rows.sum[half][e / 2 % 2] =
                fmaf(w[half][e], stage.d_row_sums[at + piece_column(e)], rows.sum[half][e / 2 % 2]);
        }
        pack_piece(a[half], w[half]);
    }
    rows.multiply(a, stage.d_numerators, at);
}

/* Epilogue of 16 rows: column sums for a decay's gradient, then the rows of dV to memory. */
SR_DEVICE void store_values(const sr_attention_view<sr_bf16> &call, const sr_rows_place &place,
                            float (&c)[SR_CHUNK / 8][4], const float (&sum)[2], sr_bf16 *tile,
                            bool aligned) {
    using Row = sr_quad_row<SR_CHUNK>;
    const int b = place.b, kv = place.h;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int j = place.t + piece_row(half);
        float d[Row::count], value[Row::count];
        row_of(d, c, half);
        if (call.choices.decays) {
            row_load<Row>(value, call.v.at(b, kv, min(j, call.T - 1)), call.Dv);
            const float dot = row_dot<Row>(value, d) + quad_sum(sum[half]);
            if (threadIdx.x % 4 == 0 && j < call.T)
                call.scratch.column_dot[call.row_index(call.Hkv, b, kv, j)] = dot;
        }
        if (call.scratch.value_factor)
            value_gradient<Row>(d, call, b, kv, j);
        set_row(c, d, half);
    }
    if (call.d_v.data)
        store_rows<SR_CHUNK>(head_rows(call.d_v, b, kv, call.Dv, aligned), c, place.t, tile,
                             call.T);
}

/* A block owns 128 keys of one KV head; a warp 16 or 32 of them. cp.async copies the keys once,
 * then stages of the state of queries after the segment (none if a document begins in between),
 * then of 64 queries, d_numerator and row scalars of the segment, head by head of the group, global
 * -> shared, in three places: each wait and barrier frees the place that is loaded two stages
 * ahead. Each warp accumulates dV in registers: features of its keys times the state by mma, scaled
 * by the decay across the segment, then weights of the pairs times dN. After a last barrier each
 * warp stores its rows once, through a freed stage. */
template <int WIDTH>
__global__ void __launch_bounds__(sr_order2_shape<WIDTH>::THREADS, WIDTH <= 16 ? 3 : 2)
    expanded_values(const __grid_constant__ sr_attention_view<sr_bf16> call,
                    const __grid_constant__ sr_mma_alignment aligned, const sr_order2 expanded) {
    using memory = rows_memory<WIDTH>;
    using shape = sr_order2_shape<WIDTH>;
    constexpr int HALVES = shape::HALVES, THREADS = shape::THREADS;
    SR_SHARED(memory, shared);
    const sr_order2_block at = expanded_block(call, call.Hkv, expanded);
    const int b = at.b, kv = at.head, past = call.T, t0 = at.t0, end = at.end;
    const int head_number = b * call.Hkv + kv;
    const sr_chunk_head<true> head = chunk_head<true>(call, b, kv);
    const sr_bf16 *const state = expanded.state(head_number, at.segment);
    /* Stages of the state, none where a document begins after the rows and before its queries; and
     * of queries. */
    const bool after = end < past && head.first[end] < t0 + SR_ORDER2_ROWS;
    const int of_state = after ? expanded.stages() : 0;
    const int to = seen_to(head, at);
    const int of_queries = (to - t0 + SR_CHUNK - 1) / SR_CHUNK * call.group;
    const auto query = [&](int n) { return t0 + (n - of_state) / call.group * SR_CHUNK; };
    const auto load = [&](int n) {
        const int place = n % STAGES;
        sr_bf16(*const stage)[SR_CHUNK_NUMBERS] = shared->stage[place];
        if (n < of_state) {
            load_state(stage[0], state, expanded, n);
        } else if (n < of_state + of_queries) {
            const int h = kv * call.group + (n - of_state) % call.group, from = query(n);
            const int64_t row = call.row_index(call.H, b, h, 0);
            tile_load<WIDTH, SR_CHUNK, THREADS>(stage[0],
                                                head_rows(call.q, b, h, call.D, aligned.q), from, 0,
                                                to);
            tile_load<SR_CHUNK, SR_CHUNK, THREADS>(stage[1],
                                                   head_rows(call.d_numerator, b, h, call.Dv,
                                                             aligned.d_numerator),
                                                   from, 0, to);
            load_row_numbers(shared->scales[place], call.scratch.row_scale + row, from, to);
            load_row_numbers(shared->d_row_sums[place], call.scratch.d_row_sum + row, from, to);
        }
        cp_async_commit();
    };
    const int own = warp_number() * shape::WARP_ROWS;
    sr_order2_rows<WIDTH> rows(shared->keys + own * WIDTH, t0 + own);

    rows.documents = head.first[end - 1] > rows.t;
    tile_load<WIDTH, SR_ORDER2_ROWS, THREADS>(shared->keys,
                                              head_rows(call.k, b, kv, call.D, aligned.k), t0, 0,
                                              past);
    load(0);
    load(1);
#pragma unroll 1
    for (int n = 0; n < of_state + of_queries; n++) {
        cp_async_wait<1>();
        __syncthreads(); /* the stage is ready, and no warp reads the one before */
        load(n + 2);
        if (n < of_state) {
            rows.read(call, expanded, shared->stage[n % STAGES][0], n,
                      expanded.vectors(head_number, at.segment));
            if (n == of_state - 1)
                rows.scale([&](int t) { return head.from_after(end, min(t, past - 1)); });
            continue;
        }
        const int place = n % STAGES;
        const query_stage stage = {shared->stage[place][0], shared->stage[place][1],
                                   shared->scales[place], shared->d_row_sums[place], query(n)};
#pragma unroll 1
        for (int m = 0; m < SR_CHUNK; m += 16)
            if (stage.t0 + m >= rows.t)
                visit_queries(rows, head, call.score.coefficient, stage, m);
    }
    __syncthreads(); /* no warp reads a stage any more */
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        if (rows.t + 16 * half < past)
            store_values(call, {b, kv, rows.t + 16 * half}, rows.c[half], rows.sum[half],
                         shared->stage[0][0] + (own + 16 * half) * SR_CHUNK, aligned.d_v);
}

srnn_status sr_order2_backward_values(const sr_attention_view<sr_bf16> &call,
                                      const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                      cudaStream_t stream) {
    const dim3 grid((unsigned)(expanded.heads * expanded_blocks(call.T)));
    if (call.D <= 16)
        SR_CUDA(sr_launch(expanded_values<16>, grid, dim3(sr_order2_shape<16>::THREADS),
                          sizeof(rows_memory<16>), stream, call, aligned, expanded));
    else
        SR_CUDA(sr_launch(expanded_values<64>, grid, dim3(sr_order2_shape<64>::THREADS),
                          sizeof(rows_memory<64>), stream, call, aligned, expanded));
    return SRNN_OK;
}
