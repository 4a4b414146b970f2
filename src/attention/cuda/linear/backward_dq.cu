/* backward_dq.cu: chunked linear attention, dQ (mma.sync): the walk of the forward pass, with
 * gradients of numerators in place of queries. */
#include "attention/cuda/linear/linear.h"

#include "attention/cuda/shared/backward_preprocess.h"
#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP };

struct query_memory {
    alignas(16) sr_bf16 state[SR_CHUNK_NUMBERS];
    sr_bf16 d_numerators[2][SR_CHUNK_NUMBERS];
    sr_bf16 keys[2][SR_CHUNK_NUMBERS];
    sr_bf16 values[2][SR_CHUNK_NUMBERS];
    sr_bf16 queries[2][SR_CHUNK_NUMBERS];
    float d_row_sums[2][SR_CHUNK], scales[2][SR_CHUNK];
    float factor[SR_CHUNK];
    sr_bf16 column[SR_CHUNK];
};

/* 16 rows of a warp: gradients without row_scale and the score's coefficient. For plain rows the
 * gradient of the row sum follows from the numerators' part alone, and is multiplied by E = sum_j
 * k_j at the end. */
template <bool DECAYS, bool PLAIN> struct gradient_rows : sr_linear_rows {
    using Rows = sr_linear_rows;
    const float *d_row_sums; /* of the warp's rows; not of plain ones */
    float e[PLAIN ? P : 1][4];

    SR_DEVICE gradient_rows() {
        if constexpr (PLAIN)
#pragma unroll
            for (int n = 0; n < 4 * P; n++)
                e[n / 4][n % 4] = 0;
    }

    /* The state before the chunk. */
    SR_DEVICE void read(const sr_bf16 *state, const sr_bf16 *column, bool sums) {
        Rows::read_keys(state);
        if (!sums)
            return;
        if constexpr (PLAIN)
            add_column(e, column, {1, 1});
        else
            add_column(this->c, column, {d_row_sums[piece_row(0)], d_row_sums[piece_row(1)]});
    }
    SR_DEVICE void scale(int half, float factor) {
        scale_row(this->c, half, factor);
        if constexpr (PLAIN)
            scale_row(e, half, factor);
    }

    /* Pairs with 16 keys from `key` on, which are rows `at` .. of the tiles. */
    SR_DEVICE void visit_keys(const sr_chunk_head<DECAYS> &head, const sr_bf16 *keys,
                              const sr_bf16 *values, int at, int key, bool documents) {
        Rows::visit(values, keys, at, [&](float(&d)[SR_PIECE]) {
            if constexpr (!PLAIN)
#pragma unroll
                for (int n = 0; n < SR_PIECE; n++)
                    d[n] += d_row_sums[piece_row(n / 2 % 2)];
            decay_pairs(d, head, this->t, key, 1);
            hide_keys(d, head, this->t, key, documents);
        });
    }

    /* E += the same keys. */
    SR_DEVICE void sum_keys(const sr_chunk_head<DECAYS> &head, const sr_bf16 *keys, int at, int key,
                            bool documents) {
        float w[SR_PIECE];
        uint32_t a[4];
#pragma unroll
        for (int n = 0; n < SR_PIECE; n++)
            w[n] = 1;
        decay_pairs(w, head, this->t, key, 1);
        hide_keys(w, head, this->t, key, documents);
        pack_piece(a, w);
        multiply_rows<SR_CHUNK>(e, a, keys, at);
    }

    /* For plain rows: the per-row numbers of the backward pass, from the numerators' part of the
     * gradient; then the whole gradient. */
    SR_DEVICE void finish_rows(const sr_attention_view<sr_bf16> &call, int b, int h,
                               const sr_bf16 *features) {
        const float coefficient = call.score.coefficient[1];
        float dot[2];
        feature_dots(dot, this->c, features);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = Rows::row(half), inside = min(i, call.T - 1);
            const int64_t at = call.row_index(call.H, b, h, inside);
            const sr_row_facts facts = row_facts(call, b, h, inside, call.row_sum[at], 0);
            const sr_row_gradient g =
                row_plain_backward(call.choices, facts, coefficient * dot[half]);
            if (threadIdx.x % 4 == 0 && i < call.T)
                store_row_gradient(call, {b, h, i}, at, g);
            const float factor = coefficient * g.scale;
#pragma unroll
            for (int n = 0; n < P; n++)
#pragma unroll
                for (int m = 2 * half; m < 2 * half + 2; m++)
                    this->c[n][m] = factor * fmaf(g.row_sum, e[n][m], this->c[n][m]);
        }
    }

    /* Epilogue. `scales`: row_scale of the warp's rows; `features` of its queries, overwritten by
     * the gradients. */
    SR_DEVICE void finish(const sr_attention_view<sr_bf16> &call, int b, int h, const float *scales,
                          sr_bf16 *features, bool aligned) {
        const int left = call.T - this->t;
        if constexpr (PLAIN)
            finish_rows(call, b, h, features);
        else
#pragma unroll
            for (int half = 0; half < 2; half++)
                Rows::multiply(half, call.score.coefficient[1] * scales[piece_row(half)]);
        if constexpr (DECAYS)
            linear_dots(call.scratch.row_dot + call.row_index(call.H, b, h, this->t), this->c,
                        features, left);
        features_back(this->c, features,
                      {call.raw_q.at(b, h, this->t), call.raw_q.time, call.D, false},
                      call.choices.feature, left);
        if (call.d_q.data)
            Rows::store<SR_CHUNK>(head_rows(call.d_q, b, h, call.D, aligned), features, call.T);
    }
};

/* A block of 4 warps owns one head, or one segment of it, and walks its chunks in order; each warp
 * owns 16 rows of a chunk and 16 columns of the state, in registers. cp.async copies K, V,
 * d_numerator, Q (where its features are needed) and row scalars of the next chunk, global ->
 * shared, in two stages. For each chunk: wait, features in place, barrier; dQ = dN S' (state before
 * the chunk, bf16 in shared memory) + masked (dN V') K piece by piece; barrier; the epilogue
 * applies row scales and the feature's backward and stores the rows through the query tile; then S
 * += K' V and the new state is published. For plain rows it also stores row_scale and d_row_sum,
 * which the dK/dV kernel reads. A segment starts from the state that key_states and scan_states
 * left in the workspace. */
template <bool DECAYS, bool PLAIN>
__global__ void __launch_bounds__(THREADS, DECAYS || SR_CHUNK_BLOCKS < 3 ? 2 : SR_QUERY_BLOCKS)
    query_chunks(const __grid_constant__ sr_attention_view<sr_bf16> call,
                 const sr_mma_alignment aligned, const sr_chunk_segments segments) {
    using Tiles = sr_chunk_tiles<THREADS>;
    SR_SHARED(query_memory, shared);
    const sr_chunk_walk walk = chunk_walk(segments, (int)blockIdx.x);
    const int b = of_warp(walk.row / call.H), h = walk.row - b * call.H;
    const int kv = of_warp(h / call.group);
    const int past = call.T, start = walk.start, warp = warp_number(), tid = (int)threadIdx.x;
    const bool sums = call.choices.sums_rows;
    const bool features = DECAYS || PLAIN || features_need_rows(call.choices.feature);
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    const Tiles q = {head_rows(call.q, b, h, call.D, aligned.q)};
    const Tiles k = {head_rows(call.k, b, kv, call.D, aligned.k)};
    const Tiles v = {head_rows(call.v, b, kv, call.Dv, aligned.v)};
    const Tiles d = {head_rows(call.d_numerator, b, h, call.Dv, aligned.d_numerator)};
    const int64_t row = call.row_index(call.H, b, h, 0);
    const auto load = [&](int t0, int stage) {
        k.load(shared->keys[stage], t0, past);
        v.load(shared->values[stage], t0, past);
        d.load(shared->d_numerators[stage], t0, past);
        if (features)
            q.load(shared->queries[stage], t0, past);
        if (!PLAIN) {
            load_row_numbers(shared->d_row_sums[stage], call.scratch.d_row_sum + row, t0, past);
            load_row_numbers(shared->scales[stage], call.scratch.row_scale + row, t0, past);
        }
        cp_async_commit();
    };
    sr_chunk_state<WARPS> state(warp);
    /* Where the document of the chunk's last token begins. */
    int begins = head.first[min((start + 1) * SR_CHUNK, past) - 1];

    load(start * SR_CHUNK, start % 2);
    if (start > 0) {
        state.get(segments.state(walk.row / call.group, walk.segment));
        state.publish(shared->state, shared->column);
    }
    for (int chunk = start;; chunk++) {
        const int stage = chunk % 2, t0 = chunk * SR_CHUNK, next = t0 + SR_CHUNK;
        const int last = min(next, past) - 1, own = chunk_own(warp, chunk);
        sr_bf16 *const keys = shared->keys[stage], *const values = shared->values[stage];
        cp_async_wait<0>();
        k.features(keys, key_map(call, b), t0, past);
        if (features)
            q.features(shared->queries[stage], query_map(call, b), t0, past);
        /* tiles and state are ready, and no warp reads the previous tiles */
        __syncthreads();
        if (chunk + 1 < walk.end)
            load(next, stage ^ 1);
        const bool documents = begins > t0; /* a document begins inside */
        const int next_begins = head.first[min(next + SR_CHUNK, past) - 1];
        if ((DECAYS || documents) && tid < SR_CHUNK)
            shared->factor[tid] = head.until(last, t0 + tid);
        gradient_rows<DECAYS, PLAIN> rows;
        rows.open(shared->d_numerators[stage], own, t0);
        rows.d_row_sums = shared->d_row_sums[stage] + own;
        if (t0 > 0 && begins != t0) {
            rows.read(shared->state, shared->column, sums);
            if (DECAYS || documents)
#pragma unroll
                for (int half = 0; half < 2; half++)
                    rows.scale(half, head.from_before(t0, rows.row(half)));
        }
        /* The pieces of the chunk up to the rows' own. */
#pragma unroll 1
        for (int at = 0; at <= own; at += 16) {
            rows.visit_keys(head, keys, values, at, t0 + at, documents);
            if constexpr (PLAIN)
                if (sums)
                    rows.sum_keys(head, keys, at, t0 + at, documents);
        }
        __syncthreads(); /* no warp reads the state any more */
        if (rows.t < past)
            rows.finish(call, b, h, shared->scales[stage] + own,
                        shared->queries[stage] + own * SR_CHUNK, aligned.d_q);
        if (chunk + 1 >= walk.end)
            break;
        const float *const factor = DECAYS || documents ? shared->factor : nullptr;
        if (documents) {
            Tiles::clear(keys, factor);
            Tiles::clear(values, factor);
            __syncthreads(); /* tokens that do not count are zero */
        }
        if (DECAYS || begins >= t0)
            state.multiply(head.across(t0, last, begins));
        state.add(keys, values, sums, {factor, factor});
        state.publish(shared->state, shared->column);
        begins = next_begins;
    }
}

srnn_status sr_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                        const sr_mma_alignment &aligned,
                                        const sr_chunk_workspace &workspace, cudaStream_t stream) {
    sr_chunk_segments segments = sr_chunked_segments(call.B * call.Hkv, call.group, call.T,
                                                     SR_QUERY_BLOCKS * workspace.multiprocessors);
    segments.states = workspace.states;
    if (segments.count > 1)
        SR_TRY(sr_chunked_key_states(call, aligned, segments, stream));
    const bool plain = sr_chunked_plain(call);
    const auto decaying = plain ? query_chunks<true, true> : query_chunks<true, false>;
    const auto constant = plain ? query_chunks<false, true> : query_chunks<false, false>;
    SR_CUDA(sr_launch(call.choices.decays ? decaying : constant, dim3((unsigned)segments.blocks()),
                      dim3(THREADS), sizeof(query_memory), stream, call, aligned, segments));
    return SRNN_OK;
}
