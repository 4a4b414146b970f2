/* attention_chunked_keys.cu: linear attention chunk by chunk, gradients of keys and values: a walk from the end, whose state
 * sums up queries times gradients of numerators, of all heads that share the keys. */
#include "device/cuda/attention_chunked.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

template <int DW, int VW> struct key_memory {
    alignas(16) sr_bf16 state[sr_chunk<DW, VW>::key_numbers];
    sr_bf16 keys[2][sr_chunk<DW, VW>::key_numbers];
    sr_bf16 values[2][sr_chunk<DW, VW>::value_numbers];
    sr_bf16 queries[2][sr_chunk<DW, VW>::key_numbers];
    sr_bf16 d_numerators[2][sr_chunk<DW, VW>::value_numbers];
    float scales[2][sr_chunk<DW, VW>::tokens], d_row_sums[2][sr_chunk<DW, VW>::tokens];
    float factor[sr_chunk<DW, VW>::tokens], ones[sr_chunk<DW, VW>::tokens];
    sr_bf16 column[DW];
};

/* A tile of queries of one head and one chunk; steps go from the last chunk to the first, head by head. */
struct key_step {
    int t0, h;
    bool first_head, last_head;
};

SR_DEVICE key_step step_of(const sr_attention_view<sr_bf16> &call, int kv, int chunk, int g,
                           int tokens) {
    return {chunk * tokens, kv * call.group + g, g == 0, g == call.group - 1};
}

/* Queries of a chunk and what belongs to them, shared memory. */
struct query_tile {
    const sr_bf16 *queries, *d_numerators;
    const float *scales, *d_row_sums;
};

/* 16 keys and values of a warp. */
template <int DW, int VW> struct key_rows {
    sr_operand<DW, false> k;
    sr_operand<VW, false> v;
    float d_k[DW / 8][4], d_v[VW / 8][4];
    int t; /* first row */

    SR_DEVICE int row(int half) const {
        return t + piece_row(half);
    }

    SR_DEVICE void clear() {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int n = 0; n < DW / 8; n++)
                d_k[n][e] = 0;
#pragma unroll
            for (int n = 0; n < VW / 8; n++)
                d_v[n][e] = 0;
        }
    }

    /* What later queries give: d_v = K R, d_k = V R^T + column. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
#pragma unroll
        for (int c = 0; c < DW / 16; c++) {
            uint32_t a[4];
            k.get(a, c);
#pragma unroll
            for (int n = 0; n < VW / 8; n += 2) {
                uint32_t b[4];
                load_b<DW>(b, state, 8 * n, c);
                mma_m16n8k16(d_v[n], a, b);
                mma_m16n8k16(d_v[n + 1], a, b + 2);
            }
        }
#pragma unroll
        for (int c = 0; c < VW / 16; c++) {
            uint32_t a[4];
            v.get(a, c);
            multiply_rows<DW>(d_k, a, state, 16 * c);
        }
        if (!sums)
            return;
#pragma unroll
        for (int n = 0; n < DW / 8; n++) {
            const sr_bf16 *const z = column + 8 * n + 2 * (threadIdx.x % 4);
            const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(z));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                d_k[n][2 * half] += pair.x;
                d_k[n][2 * half + 1] += pair.y;
            }
        }
    }

    /* Pairs with 16 queries from `query` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit(const sr_attention_view<sr_bf16> &call, const sr_chunk_head &head,
                         const query_tile &tile, int at, int query, bool masked) {
        using Keys = sr_operand<DW, false>;
        using Values = sr_operand<VW, false>;
        float w[1][SR_PIECE], d[1][SR_PIECE];
        multiply_pieces<DW>(
            w, [&](int) -> const Keys & { return k; }, tile.queries, at);
        multiply_pieces<VW>(
            d, [&](int) -> const Values & { return v; }, tile.d_numerators, at);
        sr_piece_decay decay;
        if (head.decay)
            decay.open(head.decay, t, query, head.T, SR_LOG2_E);
#pragma unroll
        for (int e = 0; e < SR_PIECE; e++) {
            const int i = query + piece_column(e), j = row(e / 2 % 2);
            float factor = call.score.coefficient[1] * tile.scales[at + piece_column(e)];
            if (head.decay)
                factor *= exp2_fast(-decay.row_less_column(e));
            if (masked && (i >= head.T || j > i || j < head.first[i]))
                factor = 0;
            w[0][e] = counted(w[0][e], factor);
            d[0][e] = counted(d[0][e] + tile.d_row_sums[at + piece_column(e)], factor);
        }
        uint32_t a[4];
        pack_piece(a, w[0]);
        multiply_rows<VW>(d_v, a, tile.d_numerators, at);
        pack_piece(a, d[0]);
        multiply_rows<DW>(d_k, a, tile.queries, at);
    }

    /* `tile`: the warp's own rows of the values, which nobody else reads. */
    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int kv, sr_bf16 *tile,
                          const sr_mma_alignment &aligned) {
        if (call.choices.decays)
            linear_dots<DW>(call.scratch.column_dot + call.row_index(call.Hkv, b, kv, 0), d_k,
                            key_features(call, b, kv, false), t, call.T);
        features_back<DW>(d_k, call.raw_k, call, b, kv, t);
        if (call.d_k.data)
            chunk_store(head_rows(call.d_k, b, kv, call.D, aligned.d_k), d_k, tile, t, call.T);
        if (call.scratch.value_factor)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x[VW / 4];
                row_of(x, d_v, half);
                value_gradient<sr_quad_row<VW>>(x, call, b, kv, row(half));
                set_row(d_v, x, half);
            }
        if (call.d_v.data)
            chunk_store(head_rows(call.d_v, b, kv, call.Dv, aligned.d_v), d_v, tile, t, call.T);
    }
};

template <int DW, int VW>
__global__ void __launch_bounds__(sr_chunk<DW, VW>::threads, 2)
    key_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
               const sr_mma_alignment aligned) {
    constexpr int TOKENS = sr_chunk<DW, VW>::tokens, THREADS = sr_chunk<DW, VW>::threads;
    using Memory = key_memory<DW, VW>;
    SR_SHARED(Memory, shared);
    const int sequence = (int)blockIdx.x;
    const int b = sequence / call.Hkv, kv = sequence % call.Hkv;
    const int past = call.T;
    const int own = 16 * ((int)threadIdx.x / SR_WARP), tid = (int)threadIdx.x;
    const bool sums = call.choices.sums_rows;
    const sr_chunk_head head = chunk_head(call, b, kv);
    const sr_feature_rows k = key_features(call, b, kv, aligned.k);
    const auto v = head_rows(call.v, b, kv, call.Dv, aligned.v);
    const auto load_queries = [&](const key_step &step, int stage) {
        tile_load<DW, TOKENS, THREADS>(shared->queries[stage],
                                       head_rows(call.q, b, step.h, call.D, aligned.q), step.t0,
                                       step.t0, past);
        tile_load<VW, TOKENS, THREADS>(
            shared->d_numerators[stage],
            head_rows(call.d_numerator, b, step.h, call.Dv, aligned.d_numerator), step.t0, step.t0,
            past);
    };
    const auto load_keys = [&](int t0, int stage) {
        tile_load<DW, TOKENS, THREADS>(shared->keys[stage], k.rows, t0, t0, past);
        tile_load<VW, TOKENS, THREADS>(shared->values[stage], v, t0, t0, past);
    };
    sr_chunk_state<DW, VW> state;
    key_rows<DW, VW> rows;
    int chunk = (past - 1) / TOKENS, key_stage = 0;
    key_step step = step_of(call, kv, chunk, 0, TOKENS);

    load_queries(step, 0);
    load_keys(step.t0, 0);
    cp_async_commit();
    state.clear();
    for (int n = 0;; n++) {
        const int stage = n % 2, t0 = step.t0, last = min(t0 + TOKENS, past) - 1;
        sr_bf16 *const queries = shared->queries[stage], *const d = shared->d_numerators[stage];
        sr_bf16 *const keys = shared->keys[key_stage], *const values = shared->values[key_stage];
        const int64_t row = call.row_index(call.H, b, step.h, t0);
        cp_async_wait<0>();
        tile_features<DW, TOKENS, THREADS>(queries, query_features(call, b, step.h, aligned.q), t0,
                                           past);
        if (step.first_head)
            tile_features<DW, TOKENS, THREADS>(keys, k, t0, past);
        if (tid < TOKENS) {
            const bool inside = t0 + tid <= last;
            shared->scales[stage][tid] = inside ? call.scratch.row_scale[row + tid] : 0;
            shared->d_row_sums[stage][tid] = inside ? call.scratch.d_row_sum[row + tid] : 0;
        }
        __syncthreads(); /* tiles and state are there, and nobody reads the tiles before */
        const bool more = !step.last_head || t0 > 0;
        const key_step next = step.last_head
                                  ? step_of(call, kv, chunk - 1, 0, TOKENS)
                                  : step_of(call, kv, chunk, step.h + 1 - kv * call.group, TOKENS);
        if (more) {
            load_queries(next, stage ^ 1);
            if (step.last_head)
                load_keys(next.t0, key_stage ^ 1);
            cp_async_commit();
        }
        if (tid < TOKENS) {
            const float factor = counted(shared->scales[stage][tid], head.back_to(t0, t0 + tid));
            shared->factor[tid] = factor;
            shared->ones[tid] = counted(shared->d_row_sums[stage][tid], factor);
        }
        if (step.first_head) {
            rows.t = t0 + own;
            rows.k.open(keys, own);
            rows.v.open(values, own);
            rows.clear();
            if (t0 + TOKENS < call.T) {
                rows.read(shared->state, shared->column, sums);
                if (head.decay || head.first[t0 + TOKENS] > t0)
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const float factor =
                            head.from_after(t0 + TOKENS, min(rows.row(half), last));
                        scale_row(rows.d_k, half, factor);
                        scale_row(rows.d_v, half, factor);
                    }
            }
        }
        /* The pieces of the chunk from the rows' own on, which has hidden pairs. */
#pragma unroll 1
        for (int at = own; at < TOKENS; at += 16)
            rows.visit(call, head, {queries, d, shared->scales[stage], shared->d_row_sums[stage]},
                       at, t0 + at,
                       at == own || t0 + at + 15 > last || head.first[last] > t0 + own);
        __syncthreads(); /* nobody reads the state any more, and factors are there */
        if (t0 > 0) {
            if (step.first_head)
                state.keep(head, t0 + TOKENS < call.T && head.first[t0 + TOKENS] < t0
                                     ? head.between(t0, t0 + TOKENS)
                                     : 0);
            state.add(queries, d, sums, {shared->factor, shared->ones});
            if (step.last_head)
                state.publish(shared->state, shared->column, call.score.coefficient[1]);
        }
        if (step.last_head && rows.t < past)
            rows.finish(call, b, kv, values + own * VW, aligned);
        if (!more)
            break;
        if (step.last_head) {
            chunk--;
            key_stage ^= 1;
        }
        step = next;
    }
}

template <int DW, int VW>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(key_chunks<DW, VW>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(sr_chunk<DW, VW>::threads), sizeof(key_memory<DW, VW>), stream, call,
                      aligned));
    return SRNN_OK;
}

srnn_status sr_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                     const sr_mma_alignment &aligned, cudaStream_t stream) {
    return SR_CHUNK_START(start, call, aligned, stream);
}
