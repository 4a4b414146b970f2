/* states.cu: additive writes with a gate per head, in chunks: the states before chunks, and
 * their gradients after chunks; and what segments of a walk add to them.
 *
 * Forwards S = sum of k v' with the decay up to where S stands. From the end R, the gradient of the
 * state after a token, is sum of q dN' over later tokens, with the decay from the token on; scale
 * included. */
#include "attention/cuda/chunks/head/head.h"
#include "device/cuda/check.h"

enum { THREADS = SR_PART_THREADS };

struct states_memory {
    alignas(16) sr_bf16 x[2][SR_CHUNK_SQUARE]; /* keys, or queries: 64 features */
    sr_bf16 y[2][SR_CHUNK_SQUARE];             /* values, or gradients: 64 columns */
    sr_bf16 out[SR_CHUNK_SQUARE];
    sr_chunk_tokens tokens[2];
    /* weights of tokens in the state and in its sums, for queries */
    float factor[2][SR_CHUNK], counts[2][SR_CHUNK];
};

/* The rows that a block copies, and their gates: of head `head` of keys and values, or of its query
 * heads in turn. */
template <bool QUERIES> struct states_input {
    const sr_chunk_call &call;
    states_memory *shared;
    const head_place &at;
    int part;
    sr_chunk_gates gates;
    sr_chunk_pair counts;

    SR_DEVICE states_input(const sr_chunk_call &of_call, states_memory *memory,
                           const head_place &place, int of_part)
        : call(of_call), shared(memory), at(place), part(of_part) {
    }

    /* Starts the copy of a span of the group's query head g. */
    SR_DEVICE void load(const sr_chunk_span &span, int g, int stage) {
        const int f0 = SR_CHUNK * part, v0 = SR_CHUNK * at.slice, h = at.head * call.group + g;
        if constexpr (QUERIES) {
            chunk_load<SR_CHUNK, THREADS>(shared->x[stage],
                                          chunk_rows(call.q, at.b, call.query_head(h), call.F, f0),
                                          span);
            chunk_load<SR_CHUNK, THREADS>(shared->y[stage],
                                          chunk_rows(call.d_numerator, at.b, h, call.V, v0), span);
        } else {
            chunk_load<SR_CHUNK, THREADS>(shared->x[stage],
                                          chunk_rows(call.k, at.b, call.key_head(at.head), call.F,
                                                     f0),
                                          span);
            chunk_load<SR_CHUNK, THREADS>(shared->y[stage],
                                          chunk_rows(call.v, at.b, at.head, call.V, v0), span);
        }
        cp_async_commit();
        if ((int)threadIdx.x >= SR_WARP)
            return;
        counts.x[0] = counts.x[1] = 0;
        head_open_gates(gates, call, at.b, at.head, span);
        if (QUERIES && call.sums_rows)
            counts.load(call.d_row_sum + call.row(call.H, at.b, h, 0), span);
    }

    /* What the gates amount to, by warp 0; complete after a barrier. */
    SR_DEVICE void publish(const sr_chunk_span &span, int stage) {
        if ((int)threadIdx.x >= SR_WARP)
            return;
        head_publish_gates(gates, shared->tokens[stage], call, at.b, at.head, span);
        if constexpr (QUERIES) {
            sr_chunk_pair weight;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                weight.x[n] = call.scale * exp2_fast(gates.x[n]);
                counts.x[n] *= weight.x[n];
            }
            weight.store(shared->factor[stage]);
            if (call.sums_rows)
                counts.store(shared->counts[stage]);
        }
    }

    /* The span of that stage joins the state. */
    SR_DEVICE void add(sr_state_part &state, int stage, bool ones) const {
        const float *const until = shared->tokens[stage].until;
        const float *const factor = QUERIES             ? shared->factor[stage]
                                    : head_weighs(call) ? until
                                                        : nullptr;
        state.template add<SR_CHUNK>(shared->x[stage], shared->y[stage], factor);
        if (ones)
            state.template add_ones<SR_CHUNK>(shared->x[stage],
                                              QUERIES ? shared->counts[stage] : until);
    }
};

/* The state to its place, through the warp's own rows of a tile. Parameters, not a struct: they
 * stay in registers. */
SR_DEVICE void keep_state(const sr_state_part &state, sr_bf16 *tile, const head_states &to,
                          const sr_chunk_call &call, const head_walks &walks, const head_place &at,
                          int part, int chunk, bool ones) {
    const int lane = (int)threadIdx.x % SR_WARP, strip = state.strip();
    const int64_t place = ((int64_t)at.b * call.Hkv + at.head) * walks.chunks + chunk;
    sr_bf16 *const rows = tile + 16 * SR_CHUNK * strip;
    sr_bf16 *const out =
        to.tiles + ((place * walks.parts + part) * walks.slices + at.slice) * SR_CHUNK_SQUARE +
        16 * SR_CHUNK * strip;
    __syncwarp(); /* the copy before is over */
    state.template publish<SR_CHUNK>(tile);
    __syncwarp();
#pragma unroll
    for (int n = 8 * lane; n < 16 * SR_CHUNK; n += 8 * SR_WARP)
        store_vector(out + n, load_vector(rows + n));
    if (ones)
        state.publish_ones(to.ones +
                           ((place * SR_CHUNK_STRIPS + strip) * walks.parts + part) * SR_CHUNK);
}

/* A block owns 64 features by 64 values of the state of a head of keys and values, or one segment
 * of its walk, and walks its spans in order (QUERIES: from the end, each with all query heads in
 * turn); the state stays in registers. cp.async copies the rows of the next visit, global -> shared
 * (two stages), during this one. For each span: wait, barrier; KEEPS: the state as it was before,
 * registers -> shared -> global, where the span is at the edge of its chunk; S = S across + X' Y.
 * Without KEEPS the segment starts from nothing, and leaves what it adds. */
template <bool QUERIES, bool KEEPS>
__global__ void __launch_bounds__(THREADS, 4)
    head_states_walk(const __grid_constant__ sr_chunk_call call,
                     const __grid_constant__ head_walks walks, const head_sums sums,
                     const head_states to) {
    SR_SHARED(states_memory, shared);
    const int part = of_warp((int)blockIdx.x % walks.parts), block = (int)blockIdx.x / walks.parts;
    head_place at = KEEPS ? head_place_at(walks, of_warp(block), QUERIES)
                          : head_place_of(walks, walks.whole + of_warp(block / (walks.count - 1)),
                                          of_warp(block % (walks.count - 1)), QUERIES);
    at.head /= walks.group; /* of keys and values */
    const int begin = at.start * SR_CHUNK, end = min(at.end * SR_CHUNK, call.T);
    const bool ones = call.sums_rows && at.slice == 0;
    const int64_t state_at = ((int64_t)at.b * call.Hkv + at.head) * call.F * call.V;
    const int f0 = SR_CHUNK * part, v0 = SR_CHUNK * at.slice;
    states_input<QUERIES> input(call, shared, at, part);
    sr_chunk_spans spans = chunk_spans(call, at.b);
    sr_chunk_span span = QUERIES ? spans.before(end) : spans.after(begin);
    /* Whether the span sees the state that the walk brings. */
    bool sees = span.continues;
    if (QUERIES)
        sees = end < call.T ? spans.first[end] < end : call.d_final != nullptr;
    sr_state_part state;
    float factor = 1;
    int g = 0;

    input.load(span, 0, 0);
    input.publish(span, 0);
    state.clear();
    if (KEEPS) {
        const float *const given = QUERIES ? call.d_final : call.initial;
        if (given)
            state.get(call, given + state_at, f0, v0);
        head_join(state, walks, sums, at, part);
    }
    for (int stage = 0;; stage ^= 1) {
        const bool last_head = !QUERIES || g == call.group - 1;
        const bool more = !last_head || (QUERIES ? span.from > begin : span.past < end);
        sr_chunk_span next = span;
        bool next_sees = sees;
        cp_async_wait<0>();
        __syncthreads(); /* tiles and gates are ready; no warp reads the previous ones */
        if (more) {
            if (last_head) {
                next = QUERIES ? spans.before(span.from) : spans.after(span.past);
                next_sees = QUERIES ? span.continues : next.continues;
            }
            input.load(next, last_head ? 0 : g + 1, stage ^ 1);
        }
        if (g == 0) {
            const int edge = QUERIES ? min(span.t0 + SR_CHUNK, call.T) : span.t0;
            const float across = shared->tokens[stage].across;
            if (!sees)
                state.clear();
            else if (KEEPS && (QUERIES ? span.past : span.from) == edge)
                keep_state(state, shared->out, to, call, walks, at, part, span.t0 / SR_CHUNK, ones);
            factor = sees ? factor * across : 0;
            if (call.decays)
                state.multiply(across);
        }
        input.add(state, stage, ones);
        if (!more)
            break;
        input.publish(next, stage ^ 1);
        g = last_head ? 0 : g + 1;
        span = next;
        sees = next_sees;
    }
    if (!KEEPS) {
        const int64_t place = sums.at(walks, at.number, at.order);
        state.put_numbers(sums.numbers + (place * walks.parts + part) * SR_PART_NUMBERS);
        if (threadIdx.x == 0)
            sums.factor[place] = factor;
    } else if (QUERIES && call.d_initial && begin == 0) {
        state.put(call, call.d_initial + state_at, f0, v0);
    }
}

template <bool QUERIES>
static srnn_status start_sums(const sr_chunk_call &call, const head_walks &walks,
                              const head_sums &sums, cudaStream_t stream) {
    if (walks.sums() == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch(head_states_walk<QUERIES, false>,
                      dim3((unsigned)(walks.sums() * walks.parts)), dim3(THREADS),
                      sizeof(states_memory), stream, call, walks, sums, head_states{}));
    return SRNN_OK;
}

template <bool QUERIES>
static srnn_status start_states(const sr_chunk_call &call, const head_walks &walks,
                                const head_sums &sums, const head_states &to, cudaStream_t stream) {
    SR_CUDA(sr_launch(head_states_walk<QUERIES, true>,
                      dim3((unsigned)(walks.blocks() * walks.parts)), dim3(THREADS),
                      sizeof(states_memory), stream, call, walks, sums, to));
    return SRNN_OK;
}

srnn_status head_key_sums(const sr_chunk_call &call, const head_walks &walks, const head_sums &sums,
                          cudaStream_t stream) {
    return start_sums<false>(call, walks, sums, stream);
}

srnn_status head_query_sums(const sr_chunk_call &call, const head_walks &walks,
                            const head_sums &sums, cudaStream_t stream) {
    return start_sums<true>(call, walks, sums, stream);
}

srnn_status head_key_states(const sr_chunk_call &call, const head_walks &walks,
                            const head_sums &sums, const head_states &to, cudaStream_t stream) {
    return start_states<false>(call, walks, sums, to, stream);
}

srnn_status head_query_states(const sr_chunk_call &call, const head_walks &walks,
                              const head_sums &sums, const head_states &to, cudaStream_t stream) {
    return start_states<true>(call, walks, sums, to, stream);
}
