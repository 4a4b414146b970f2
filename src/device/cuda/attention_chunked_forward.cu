/* attention_chunked_forward.cu: linear attention chunk by chunk, forward. */
#include "device/cuda/attention_chunked.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

template <int DW, int VW> struct forward_memory {
    alignas(16) sr_bf16 square[2][sr_chunk<DW, VW>::key_numbers]; /* queries; the state */
    sr_bf16 keys[2][sr_chunk<DW, VW>::key_numbers];
    sr_bf16 values[2][sr_chunk<DW, VW>::value_numbers];
    sr_bf16 out[sr_chunk<DW, VW>::tokens * SR_STORE_COLUMNS];
    float factor[sr_chunk<DW, VW>::tokens];
    sr_bf16 column[DW];
};

/* 16 rows of a warp. */
template <int DW, int VW> struct chunk_rows {
    static constexpr int P = VW / 8;
    sr_operand<DW, false> q;
    float o[P][4];
    float sum[2]; /* the lane's share */
    int t;        /* first row */

    SR_DEVICE int row(int half) const {
        return t + piece_row(half);
    }

    SR_DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] = 0;
        sum[0] = sum[1] = 0;
    }

    /* What the state gives: o = Q S, sums = Q z. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
        float product[4] = {};
#pragma unroll 2
        for (int k = 0; k < DW / 16; k++) {
            uint32_t a[4], b[4];
            q.get(a, k);
#pragma unroll
            for (int n = 0; n < P; n += 2) {
                load_b<DW>(b, state, 8 * n, k);
                mma_m16n8k16(o[n], a, b);
                mma_m16n8k16(o[n + 1], a, b + 2);
            }
            if (!sums)
                continue;
            /* All eight columns of B are z. */
            const sr_bf16 *const z = column + 16 * k + 2 * (threadIdx.x % 4);
            b[0] = *reinterpret_cast<const uint32_t *>(z);
            b[1] = *reinterpret_cast<const uint32_t *>(z + 8);
            mma_m16n8k16(product, a, b);
        }
        if (threadIdx.x % 4 == 0) {
            sum[0] = product[0];
            sum[1] = product[2];
        }
    }

    /* Rows to which the state is less than to others, or nothing. */
    SR_DEVICE void scale(const sr_chunk_head &head, int t0) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor = head.from_before(t0, row(half));
            sum[half] = counted(sum[half], factor);
            scale_row(o, half, factor);
        }
    }

    /* Pairs with 16 keys from `key` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit(const sr_attention_view<sr_bf16> &call, const sr_chunk_head &head,
                         const sr_bf16 *keys, const sr_bf16 *values, int at, int key, bool masked) {
        using Operand = sr_operand<DW, false>;
        float w[1][SR_PIECE];
        multiply_pieces<DW>(
            w, [&](int) -> const Operand & { return q; }, keys, at);
        sr_piece_decay decay;
        if (head.decay)
            decay.open(head.decay, t, key, head.T, SR_LOG2_E);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            float &x = w[0][e];
            x *= call.score.coefficient[1];
            if (head.decay)
                x *= exp2_fast(decay.row_less_column(e));
            if (masked) {
                const int i = row(e / 2 % 2), j = key + piece_column(e);
                x = j > i || j < head.first[min(i, head.T - 1)] ? 0 : x;
            }
            sum[e / 2 % 2] += x;
        }
        uint32_t a[4];
        pack_piece(a, w[0]);
        multiply_rows<VW>(o, a, values, at);
    }

    /* Numerators and statistics to memory where they are wanted, then the outputs. `tile`: the warp's. */
    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int h, sr_bf16 *tile,
                          const sr_mma_alignment &aligned) {
        const int64_t at = call.row_index(call.H, b, h, 0);
        if (call.numerator)
            chunk_store({call.numerator + at * call.Dv, call.Dv, call.Dv, aligned.numerator}, o,
                        tile, t, call.T);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = row(half);
            const float all = call.choices.sums_rows ? quad_sum(sum[half]) : 0;
            const sr_row_facts facts = row_facts(call, b, h, min(i, call.T - 1), all, 0);
            if (call.numerator && threadIdx.x % 4 == 0 && i < call.T) {
                call.row_sum[at + i] = facts.row_sum;
                call.maximum[at + i] = 0;
            }
            float x[2 * P];
            row_of(x, o, half);
            row_output<sr_quad_row<VW>>(x, call, facts);
            set_row(o, x, half);
        }
        chunk_store(head_rows(call.o, b, h, call.Dv, aligned.o), o, tile, t, call.T);
    }
};

template <int DW, int VW>
__global__ void __launch_bounds__(sr_chunk<DW, VW>::threads, 3)
    forward_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
                   const sr_mma_alignment aligned) {
    constexpr int TOKENS = sr_chunk<DW, VW>::tokens, THREADS = sr_chunk<DW, VW>::threads;
    using Memory = forward_memory<DW, VW>;
    SR_SHARED(Memory, shared);
    const int sequence = (int)blockIdx.x;
    const int b = sequence / call.H, h = sequence % call.H, kv = h / call.group;
    const int past = call.T;
    const int own = 16 * ((int)threadIdx.x / SR_WARP);
    const bool sums = call.choices.sums_rows;
    const sr_chunk_head head = chunk_head(call, b, kv);
    const sr_feature_rows q = query_features(call, b, h, aligned.q);
    const sr_feature_rows k = key_features(call, b, kv, aligned.k);
    const auto v = head_rows(call.v, b, kv, call.Dv, aligned.v);
    sr_chunk_state<DW, VW> state;

    tile_load<DW, TOKENS, THREADS>(shared->square[0], q.rows, 0, 0, past);
    tile_load<DW, TOKENS, THREADS>(shared->keys[0], k.rows, 0, 0, past);
    tile_load<VW, TOKENS, THREADS>(shared->values[0], v, 0, 0, past);
    cp_async_commit();
    state.clear();
    for (int t0 = 0, stage = 0; t0 < past; t0 += TOKENS, stage ^= 1) {
        sr_bf16 *const queries = shared->square[stage], *const before = shared->square[stage ^ 1];
        sr_bf16 *const keys = shared->keys[stage], *const values = shared->values[stage];
        const int next = t0 + TOKENS, last = min(next, past) - 1;
        cp_async_wait<0>();
        tile_features<DW, TOKENS, THREADS>(queries, q, t0, past);
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
        chunk_rows<DW, VW> rows;
        rows.t = t0 + own;
        rows.q.open(queries, own);
        rows.clear();
        if (t0 > 0) {
            rows.read(before, shared->column, sums);
            if (!plain || head.first[last] >= t0)
                rows.scale(head, t0);
        }
        /* The pieces of the chunk up to the rows' own, which has hidden pairs. */
#pragma unroll 1
        for (int at = 0; at <= own; at += 16)
            rows.visit(call, head, keys, values, at, t0 + at,
                       at == own || head.first[last] > t0 + at);
        __syncthreads(); /* nobody reads queries and state any more */
        if (next < past) {
            tile_load<DW, TOKENS, THREADS>(before, q.rows, next, next, past);
            cp_async_commit();
        }
        if (rows.t < past)
            rows.finish(call, b, h, shared->out + own * SR_STORE_COLUMNS, aligned);
        if (next >= past)
            break;
        const float *const factor = plain ? nullptr : shared->factor;
        state.keep(head, head.from_before(t0, last));
        state.add(keys, values, sums, {factor, factor});
        state.publish(queries, shared->column, call.score.coefficient[1]);
    }
}

template <int DW, int VW>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(forward_chunks<DW, VW>, dim3((unsigned)(call.B * call.H)),
                      dim3(sr_chunk<DW, VW>::threads), sizeof(forward_memory<DW, VW>), stream, call,
                      aligned));
    return SRNN_OK;
}

srnn_status sr_chunked_forward(const sr_attention_view<sr_bf16> &call,
                               const sr_mma_alignment &aligned, cudaStream_t stream) {
    return SR_CHUNK_START(start, call, aligned, stream);
}
