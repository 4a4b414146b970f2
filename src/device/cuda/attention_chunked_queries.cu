/* attention_chunked_queries.cu: linear attention chunk by chunk, gradients of the queries: the walk of the forward pass, with
 * gradients of numerators in place of queries. */
#include "device/cuda/attention_chunked.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

template <int DW, int VW> struct query_memory {
    alignas(16) sr_bf16 square[2][sr_chunk<DW, VW>::value_numbers]; /* d_numerator; the state */
    sr_bf16 keys[2][sr_chunk<DW, VW>::key_numbers];
    sr_bf16 values[2][sr_chunk<DW, VW>::value_numbers];
    sr_bf16 out[sr_chunk<DW, VW>::tokens * SR_STORE_COLUMNS];
    float factor[sr_chunk<DW, VW>::tokens];
    sr_bf16 column[DW];
};

/* 16 rows of a warp: gradients but for row_scale. */
template <int DW, int VW> struct gradient_rows {
    static constexpr int P = DW / 8;
    sr_operand<VW, false> d_numerator;
    float d_q[P][4];
    float d_row_sum[2];
    int t; /* first row */

    SR_DEVICE int row(int half) const {
        return t + piece_row(half);
    }

    SR_DEVICE void open(const sr_attention_view<sr_bf16> &call, int64_t rows) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            d_row_sum[half] = call.scratch.d_row_sum[rows + min(row(half), call.T - 1)];
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                d_q[n][e] = 0;
    }

    /* What the state gives: dN S^T + d_row_sum z. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
#pragma unroll
        for (int k = 0; k < VW / 16; k++) {
            uint32_t a[4];
            d_numerator.get(a, k);
            multiply_rows<DW>(d_q, a, state, 16 * k);
        }
        if (!sums)
            return;
#pragma unroll
        for (int n = 0; n < P; n++) {
            const sr_bf16 *const z = column + 8 * n + 2 * (threadIdx.x % 4);
            const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(z));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                d_q[n][2 * half] = fmaf(d_row_sum[half], pair.x, d_q[n][2 * half]);
                d_q[n][2 * half + 1] = fmaf(d_row_sum[half], pair.y, d_q[n][2 * half + 1]);
            }
        }
    }

    /* Pairs with 16 keys from `key` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit(const sr_attention_view<sr_bf16> &call, const sr_chunk_head &head,
                         const sr_bf16 *keys, const sr_bf16 *values, int at, int key, bool masked) {
        using Operand = sr_operand<VW, false>;
        float d[1][SR_PIECE];
        multiply_pieces<VW>(
            d, [&](int) -> const Operand & { return d_numerator; }, values, at);
        sr_piece_decay decay;
        if (head.decay)
            decay.open(head.decay, t, key, head.T, SR_LOG2_E);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            float &x = d[0][e];
            x = (x + d_row_sum[e / 2 % 2]) * call.score.coefficient[1];
            if (head.decay)
                x *= exp2_fast(decay.row_less_column(e));
            if (masked) {
                const int i = row(e / 2 % 2), j = key + piece_column(e);
                x = j > i || j < head.first[min(i, head.T - 1)] ? 0 : x;
            }
        }
        uint32_t a[4];
        pack_piece(a, d[0]);
        multiply_rows<DW>(d_q, a, keys, at);
    }

    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int h, sr_bf16 *tile,
                          bool aligned) {
        const int64_t at = call.row_index(call.H, b, h, 0);
#pragma unroll
        for (int half = 0; half < 2; half++)
            scale_row(d_q, half, call.scratch.row_scale[at + min(row(half), call.T - 1)]);
        if (call.choices.decays)
            linear_dots<DW>(call.scratch.row_dot + at, d_q, query_features(call, b, h, false), t,
                            call.T);
        features_back<DW>(d_q, call.raw_q, call, b, h, t);
        if (call.d_q.data)
            chunk_store(head_rows(call.d_q, b, h, call.D, aligned), d_q, tile, t, call.T);
    }
};

template <int DW, int VW>
__global__ void __launch_bounds__(sr_chunk<DW, VW>::threads, 2)
    query_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
                 const sr_mma_alignment aligned) {
    constexpr int TOKENS = sr_chunk<DW, VW>::tokens, THREADS = sr_chunk<DW, VW>::threads;
    using Memory = query_memory<DW, VW>;
    SR_SHARED(Memory, shared);
    const int sequence = (int)blockIdx.x;
    const int b = sequence / call.H, h = sequence % call.H, kv = h / call.group;
    const int past = call.T;
    const int own = 16 * ((int)threadIdx.x / SR_WARP);
    const bool sums = call.choices.sums_rows;
    const sr_chunk_head head = chunk_head(call, b, kv);
    const auto d = head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator);
    const sr_feature_rows k = key_features(call, b, kv, aligned.k);
    const auto v = head_rows(call.v, b, kv, call.Dv, aligned.v);
    sr_chunk_state<DW, VW> state;

    tile_load<VW, TOKENS, THREADS>(shared->square[0], d, 0, 0, past);
    tile_load<DW, TOKENS, THREADS>(shared->keys[0], k.rows, 0, 0, past);
    tile_load<VW, TOKENS, THREADS>(shared->values[0], v, 0, 0, past);
    cp_async_commit();
    state.clear();
    for (int t0 = 0, stage = 0; t0 < past; t0 += TOKENS, stage ^= 1) {
        sr_bf16 *const own_rows = shared->square[stage], *const before = shared->square[stage ^ 1];
        sr_bf16 *const keys = shared->keys[stage], *const values = shared->values[stage];
        const int next = t0 + TOKENS, last = min(next, past) - 1;
        cp_async_wait<0>();
        tile_features<DW, TOKENS, THREADS>(keys, k, t0, past);
        __syncthreads(); /* tiles and state are there, and nobody reads the tiles before */
        if (next < past) {
            tile_load<DW, TOKENS, THREADS>(shared->keys[stage ^ 1], k.rows, next, next, past);
            tile_load<VW, TOKENS, THREADS>(shared->values[stage ^ 1], v, next, next, past);
            cp_async_commit();
        }
        const bool plain = head.plain_until(t0, last);
        if (!plain && (int)threadIdx.x < TOKENS)
            shared->factor[threadIdx.x] = head.until(last, t0 + (int)threadIdx.x);
        gradient_rows<DW, VW> rows;
        rows.t = t0 + own;
        rows.d_numerator.open(own_rows, own);
        rows.open(call, call.row_index(call.H, b, h, 0));
        if (t0 > 0) {
            rows.read(before, shared->column, sums);
            if (!plain || head.first[last] >= t0)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    scale_row(rows.d_q, half, head.from_before(t0, rows.row(half)));
        }
        /* The pieces of the chunk up to the rows' own, which has hidden pairs. */
#pragma unroll 1
        for (int at = 0; at <= own; at += 16)
            rows.visit(call, head, keys, values, at, t0 + at,
                       at == own || head.first[last] > t0 + at);
        __syncthreads(); /* nobody reads the rows' tile and the state any more */
        if (next < past) {
            tile_load<VW, TOKENS, THREADS>(before, d, next, next, past);
            cp_async_commit();
        }
        if (rows.t < past)
            rows.finish(call, b, h, shared->out + own * SR_STORE_COLUMNS, aligned.d_q);
        if (next >= past)
            break;
        const float *const factor = plain ? nullptr : shared->factor;
        state.keep(head, head.from_before(t0, last));
        state.add(keys, values, sums, {factor, factor});
        state.publish(own_rows, shared->column, call.score.coefficient[1]);
    }
}

template <int DW, int VW>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(query_chunks<DW, VW>, dim3((unsigned)(call.B * call.H)),
                      dim3(sr_chunk<DW, VW>::threads), sizeof(query_memory<DW, VW>), stream, call,
                      aligned));
    return SRNN_OK;
}

srnn_status sr_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                        const sr_mma_alignment &aligned, cudaStream_t stream) {
    return SR_CHUNK_START(start, call, aligned, stream);
}
