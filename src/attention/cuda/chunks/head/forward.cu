/* forward.cu: additive writes with a gate per head, in chunks: numerators, row sums and the
 * final state. */
#include "attention/cuda/chunks/head/head.h"
#include "device/cuda/check.h"

/* A warp has 16 rows of a chunk and a side of the 64 value columns, and of the state 16 values by
 * 64 features. */
template <int F> struct forward_shape {
    static constexpr int sides = F / SR_CHUNK, warps = SR_CHUNK_STRIPS * sides;
    static constexpr int threads = warps * SR_WARP, pieces = SR_CHUNK / 8 / sides;
    /* blocks for which registers are allotted */
    static constexpr int blocks = F == 64 ? 4 : F == 128 ? 2 : 1;
};

template <int F> struct forward_memory {
    static constexpr int sides = forward_shape<F>::sides;
    alignas(16) sr_bf16 square[2][SR_CHUNK * F]; /* queries; the state before them */
    sr_bf16 keys[2][SR_CHUNK * F];
    sr_bf16 values[2][SR_CHUNK_SQUARE];
    sr_bf16 weights[sides > 1 ? SR_CHUNK_SQUARE : 8]; /* of pairs, where several warps share rows */
    sr_chunk_tokens tokens[2];
    float ones[SR_CHUNK_STRIPS][F]; /* the state's sums of features, in strips */
    float row_sums[sides][SR_CHUNK];
    head_place at; /* here, since registers are scarce */
};

/* What a block copies. By all threads; complete after cp_async_wait and a barrier. */
template <int F> struct forward_input {
    static constexpr int threads = forward_shape<F>::threads;
    const sr_chunk_call &call;
    forward_memory<F> *shared;

    SR_DEVICE int kv() const {
        return shared->at.head / call.group;
    }
    SR_DEVICE int64_t state_at() const {
        return ((int64_t)shared->at.b * call.Hkv + kv()) * call.F * call.V;
    }
    SR_DEVICE void open(sr_chunk_gates &gates, const sr_chunk_span &span) const {
        head_open_gates(gates, call, shared->at.b, kv(), span);
    }
    SR_DEVICE void publish(sr_chunk_gates &gates, const sr_chunk_span &span, int stage) const {
        head_publish_gates(gates, shared->tokens[stage], call, shared->at.b, kv(), span);
    }
    SR_DEVICE void load_keys(const sr_chunk_span &span, int stage) const {
        const head_place &at = shared->at;
        chunk_load<F, threads>(shared->keys[stage],
                               chunk_rows(call.k, at.b, call.key_head(kv()), call.F), span);
        chunk_load<SR_CHUNK, threads>(shared->values[stage],
                                      chunk_rows(call.v, at.b, kv(), call.V, SR_CHUNK * at.slice),
                                      span);
        cp_async_commit();
    }
    SR_DEVICE void load_queries(const sr_chunk_span &span, sr_bf16 *tile) const {
        const head_place &at = shared->at;
        chunk_load<F, threads>(tile, chunk_rows(call.q, at.b, call.query_head(at.head), call.F),
                               span);
        cp_async_commit();
    }
};

/* The weights of a warp's 16 rows and 16 keys, from their dot products; `of_rows` += their sums. */
SR_DEVICE void weigh(float (&w)[2][4], float (&of_rows)[2], const sr_chunk_tokens &tokens, int own,
                     int at, bool decays) {
    const int lane = lane_again();
    if (decays)
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[e / 4][e % 4] *= tokens.between(own + sum_row(e, lane), at + sum_column(e, lane));
    if (at == own)
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[e / 4][e % 4] = sum_column(e, lane) > sum_row(e, lane) ? 0 : w[e / 4][e % 4];
#pragma unroll
    for (int e = 0; e < 8; e++)
        of_rows[e % 4 / 2] += w[e / 4][e % 4];
}

/* C += (Q K') V of rows own .. for the warp's columns, pieces of 16 keys up to their own. Where
 * several warps share rows, each weighs one piece in SIDES, and shared memory has the weights of
 * all. `of_rows`: the lane's share of the sums of the weights that the warp made. Parameters, not a
 * struct: they stay in registers. */
template <int F, int PIECES>
SR_DEVICE void visit_pairs(float (&c)[PIECES][4], float (&of_rows)[2], forward_memory<F> *shared,
                           int stage, int own, int side, bool decays) {
    constexpr int SIDES = forward_shape<F>::sides;
    const sr_bf16 *const queries = shared->square[stage], *const values = shared->values[stage];
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {};
        multiply_by_rows<F, F, F>(w, queries, own, 0, shared->keys[stage], at);
        weigh(w, of_rows, shared->tokens[stage], own, at, decays);
        if constexpr (SIDES == 1) {
            uint32_t a[4];
            pack_a(a, w[0], w[1]);
            multiply_rows<SR_CHUNK>(c, a, values, at, 0, lane_again());
        } else {
            pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
        }
    }
    if constexpr (SIDES > 1) {
        named_barrier_sync(1 + own / 16, SIDES * SR_WARP); /* the rows' weights are complete */
        const int lane = lane_again();
#pragma unroll 1
        for (int at = 0; at <= own; at += 16) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, shared->weights, own, at / 16, lane);
            multiply_rows<SR_CHUNK>(c, a, values, at, side * PIECES / 2, lane);
        }
    }
}

/* Row sums of the warp's rows: those of the pairs, and `earlier` from the state. */
template <int F>
SR_DEVICE void store_row_sums(const sr_chunk_call &call, forward_memory<F> *shared,
                              const head_place &at, const sr_chunk_span &span,
                              const float (&earlier)[2], int own) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = own + sum_row(2 * half), t = span.t0 + row;
        float all = earlier[half];
#pragma unroll
        for (int side = 0; side < forward_shape<F>::sides; side++)
            all += shared->row_sums[side][row];
        if (threadIdx.x % 4 == 0 && t >= span.from && t < span.past)
            call.row_sum[call.row(call.H, at.b, at.head, t)] = call.scale * all;
    }
}

/* A block owns a query head and 64 value columns, or one segment of that, and walks the spans of
 * its chunks in order; the state stays in registers. cp.async copies K and V of the next span,
 * global -> shared (two stages), during this one; its Q follows after the second barrier, into the
 * tile that held the published state. For each span: wait, barrier; rows = Q S (the state before
 * it, bf16 in shared memory) times their decay, plus the masked, decayed (Q K') V, piece by piece;
 * barrier; rows stored from registers; S = S across + K' V, published in the old query tile, with
 * the gates of the next span by warp 0. */
template <int F>
__global__ void __launch_bounds__(forward_shape<F>::threads, forward_shape<F>::blocks)
    head_forward_walk(const __grid_constant__ sr_chunk_call call,
                      const __grid_constant__ head_walks walks, const head_sums sums) {
    using Shape = forward_shape<F>;
    using Memory = forward_memory<F>;
    constexpr int P = Shape::pieces;
    SR_SHARED(Memory, shared);
    const forward_input<F> input = {call, shared};
    const head_place &at = shared->at;
    if (threadIdx.x == 0)
        shared->at = head_place_at(walks, (int)blockIdx.x, false);
    __syncthreads(); /* its place is known */
    const int warp = chunk_warp(), side = warp / SR_CHUNK_STRIPS;
    const int past = min(at.end * SR_CHUNK, call.T);
    const bool keeps = call.final && past == call.T && at.head % call.group == 0;
    const bool row_sums = call.sums_rows && at.slice == 0, decays = head_weighs(call);
    sr_chunk_spans spans = chunk_spans(call, at.b);
    sr_chunk_span span = spans.after(at.start * SR_CHUNK);
    sr_chunk_gates gates;

    input.load_queries(span, shared->square[0]);
    input.load_keys(span, 0);
    sr_state_part state;
    state.clear();
    if (call.initial)
        state.get(call, call.initial + input.state_at(), 0, SR_CHUNK * at.slice);
    head_join(state, walks, sums, at, 0);
    if (!span.continues)
        state.clear();
    state.template publish<F>(shared->square[1]);
    state.publish_ones(shared->ones[state.strip()]);
    if (warp == 0) {
        input.open(gates, span);
        input.publish(gates, span, 0);
    }
    for (int stage = 0;; stage ^= 1) {
        sr_bf16 *const queries = shared->square[stage], *const before = shared->square[stage ^ 1];
        const sr_chunk_tokens &tokens = shared->tokens[stage];
        const int own = 16 * ((warp + span.t0 / SR_CHUNK) % SR_CHUNK_STRIPS);
        const bool more = span.past < past;
        sr_chunk_span next = span;
        cp_async_wait<0>();
        __syncthreads(); /* tiles, gates and state are ready; no warp reads the previous ones */
        if (more) {
            next = spans.after(span.past);
            input.load_keys(next, stage ^ 1);
            if (warp == 0)
                input.open(gates, next);
        }
        float c[P][4], of_rows[2] = {}, earlier[2] = {};
        clear_pieces(c);
        multiply_by_rows<F, F, F>(c, queries, own, 0, before, 8 * P * side);
        if (decays)
            scale_pieces(c, tokens.before + own);
        visit_pairs<F>(c, of_rows, shared, stage, own, side, decays);
        if (row_sums) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float all = quad_sum(of_rows[half]);
                if (threadIdx.x % 4 == 0)
                    shared->row_sums[side][own + sum_row(2 * half)] = all;
            }
            if (side == 0) {
                row_dots<F, SR_CHUNK_STRIPS>(earlier, queries, own, shared->ones);
                earlier[0] *= tokens.before[own + sum_row(0)];
                earlier[1] *= tokens.before[own + sum_row(2)];
            }
        }
        __syncthreads(); /* no warp reads queries and state any more; row sums are ready */
        if (more)
            input.load_queries(next, before);
#pragma unroll
        for (int e = 0; e < 4 * P; e++)
            c[e / 4][e % 4] *= call.scale;
        const int column = SR_CHUNK * at.slice + 8 * P * side;
        store_pieces<P>({call.numerator.row(at.b, at.head, 0) + column, call.numerator.time,
                         call.V - column, true},
                        c, own, span);
        if (row_sums && side == 0)
            store_row_sums(call, shared, at, span, earlier, own);
        if (!more && !keeps)
            break;
        if (decays)
            state.multiply(tokens.across);
        state.template add<F>(shared->keys[stage], shared->values[stage],
                              decays ? tokens.until : nullptr);
        if (row_sums)
            state.template add_ones<F>(shared->keys[stage], tokens.until);
        if (!more)
            break;
        if (!next.continues)
            state.clear();
        state.template publish<F>(queries);
        state.publish_ones(shared->ones[state.strip()]);
        if (warp == 0)
            input.publish(gates, next, stage ^ 1);
        span = next;
    }
    if (keeps)
        state.put(call, call.final + input.state_at(), 0, SR_CHUNK * at.slice);
}

template <int F>
static srnn_status start(const sr_chunk_call &call, const head_walks &walks, const head_sums &sums,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(head_forward_walk<F>, dim3((unsigned)walks.blocks()),
                      dim3(forward_shape<F>::threads), sizeof(forward_memory<F>), stream, call,
                      walks, sums));
    return SRNN_OK;
}

srnn_status head_forward(const sr_chunk_call &call, const head_walks &walks, const head_sums &sums,
                         cudaStream_t stream) {
    switch (head_width(call.F)) {
    case 64:
        return start<64>(call, walks, sums, stream);
    case 128:
        return start<128>(call, walks, sums, stream);
    }
    return start<256>(call, walks, sums, stream);
}

size_t head_forward_bytes(int F) {
    const int width = head_width(F);
    return width == 64    ? sizeof(forward_memory<64>)
           : width == 128 ? sizeof(forward_memory<128>)
                          : sizeof(forward_memory<256>);
}
