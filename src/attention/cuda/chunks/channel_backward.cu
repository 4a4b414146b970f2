/* channel_backward.cu: additive writes with a gate per channel, in chunks: gradients.
 *
 * With q^, k^ the scaled rows of a level, scale included, w_ij = <q^_i, k^_j> and G_ij =
 * <dN_i, v_j> for the level's pairs; S the state before the span and R the gradient of that after
 * it, both times their weight up to the anchor:
 *     dq^_i = S dN_i + sum_j G_ij k^_j        dq_i = dq^_i times the factor of q^_i, scale included
 *     dk^_j = R v_j + sum_i G_ij q^_i         dk_j = dk^_j times the factor of k^_j
 *     dv_j = R' k^_j + sum_i w_ij dN_i        R = weight (R + sum_i q^_i dN_i')
 * The gate of a channel of token t gets the sum of w_ij's share dw_ij over i >= t > j. Rows from t
 * on have in q^ dq^ - k^ dk^ the pairs with i among them, less those with j among them:
 *     d_gate_t = sum of (q^ dq^ - k^ dk^) from t on + the pairs of later i and any j up to the end
 * of the span; the last are those of j in the span, the sum of what k^ dk^ has from R, and of j
 * before it, <S, R>. What cancels is made of the same numbers in float. Pairs that no gate of the
 * span lies between are left out of these sums, i = j and those of later i and the last j: where
 * gates forget nearly everything, they are all that is not small. No sum runs over more than a
 * chunk, so that errors do not add up along the sequence. */
#include "attention/cuda/chunks/channel.h"
#include "device/cuda/check.h"

/* Blocks for which registers are allotted, where widths are 64; before Hopper shared memory has no
 * room for two. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define BACKWARD_BLOCKS 1
#else
#define BACKWARD_BLOCKS 2
#endif

template <int F, int V> struct backward_shape {
    static constexpr int blocks = F + V <= 128 ? BACKWARD_BLOCKS : 1;
};

/* Sums (64, F) in float: columns are permuted so that what a half warp stores, 4 rows of 8 columns,
 * lies in different banks. */
template <int F> struct channel_sums_tile {
    float number[SR_CHUNK * F];

    SR_DEVICE float2 *at(int row, int column) {
        return reinterpret_cast<float2 *>(number + row * F + (column ^ row % 4 * 8));
    }
    /* C of rows own .., from column 8 `begin` on. */
    template <int PIECES> SR_DEVICE void put(const float (&c)[PIECES][4], int own, int begin) {
        const int lane = lane_again();
#pragma unroll
        for (int e = 0; e < 4 * PIECES; e += 2)
            *at(own + sum_row(e, lane), 8 * begin + sum_column(e, lane)) =
                make_float2(c[e / 4][e % 4], c[e / 4][e % 4 + 1]);
    }
    /* Of the thread's row n and channels. */
    SR_DEVICE float2 &own(int s, int n) {
        return *at(CHANNEL_ROWS * channel_group() + n, channel_of(s));
    }
};

template <int F, int V> struct backward_memory {
    /* Whether shared memory holds dq^ and dk^ at once. */
    static constexpr bool together = F + V < 256;
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK * V];
    sr_bf16 gradients[SR_CHUNK * V]; /* of numerators */
    sr_bf16 scaled_queries[SR_CHUNK * F], scaled_keys[SR_CHUNK * F];
    sr_bf16 state[F * V]; /* S */
    union {
        sr_bf16 pairs[2][SR_CHUNK_SQUARE];              /* w; G without i = j */
        channel_sums_tile<together ? F : 64> d_queries; /* dq^ */
    };
    union {
        sr_bf16 later[F * V];        /* R */
        channel_sums_tile<F> d_keys; /* dk^, then parts of d_gate */
    };
    channel_head at;
    channel_gates<F> gates;
    channel_totals<F> totals, d_totals;        /* of gates; of their gradients */
    float both[channel_state<F, V>::parts][F]; /* <S, R> */
    float until[SR_CHUNK_STRIPS][F];           /* what k^ dk^ has from R, for 16 rows */
    float diagonal[SR_CHUNK];                  /* G of i = j */
};

/* The state before a span; where a document begins inside a chunk there is none. */
template <int F, int V>
SR_DEVICE void load_state(sr_bf16 *tile, const sr_bf16 *states, const sr_chunk_span &span) {
    const sr_bf16 *const from = states + (int64_t)(span.t0 / SR_CHUNK) * F * V;
    const int rows = span.from == span.t0 ? F : 0;
    tile_load<V, F, CHANNEL_THREADS>(tile, {from, V, V, true}, 0, 0, rows);
}

/* S times the weight of each feature up to the anchor; by all threads. */
template <int F, int V> SR_DEVICE void scale_state(sr_bf16 *tile, const channel_totals<F> &totals) {
#pragma unroll 2
    for (int n = thread_again(); n < F * V / 8; n += CHANNEL_THREADS) {
        const float factor = exp2_fast(0.5f * totals.all(n / (V / 8)));
        uint32_t *const at = reinterpret_cast<uint32_t *>(tile + 8 * n);
        sr_vector<uint32_t> words = load_vector(at);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const float2 pair = unpack_bf16(words.number[w]) * factor;
            words.number[w] = pack_bf16(pair.x, pair.y);
        }
        store_vector(at, words);
    }
}

/* The diagonal of a piece, which becomes zero. One warp. */
SR_DEVICE void take_diagonal(float (&w)[2][4], float *diagonal) {
    const int lane = lane_again();
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (sum_row(e, lane) == sum_column(e, lane)) {
            diagonal[sum_row(e, lane)] = w[e / 4][e % 4];
            w[e / 4][e % 4] = 0;
        }
}

/* w and G of rows own .. for the level, pieces of 16 keys, every second one. One warp. */
template <int F, int V>
SR_DEVICE void weigh_pairs(backward_memory<F, V> *shared, int own, int side,
                           const channel_level &level) {
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 32) {
        if (!level.visits(own, at))
            continue;
        float w[2][4];
        channel_pairs<F>(w, shared->scaled_queries, own, shared->scaled_keys, at, level);
        pieces_to_tile<SR_CHUNK>(shared->pairs[0] + own * SR_CHUNK, w, at / 8);
        channel_pairs<V>(w, shared->gradients, own, shared->values, at, level);
        if (at == own && level.has_diagonal())
            take_diagonal(w, shared->diagonal + own);
        pieces_to_tile<SR_CHUNK>(shared->pairs[1] + own * SR_CHUNK, w, at / 8);
    }
}

/* <S, R> of the warp's features: `whole` times R in registers, S in a tile. */
template <int F, int V>
SR_DEVICE void dot_states(float (*both)[F], const channel_state<F, V> &later, const sr_bf16 *tile) {
    using State = channel_state<F, V>;
    const int lane = lane_again();
    float dot[2] = {};
#pragma unroll
    for (int e = 0; e < 4 * State::pieces; e += 2) {
        const sr_bf16 *const at =
            tile + sr_tile<V>::offset(later.row() + sum_row(e, lane), later.begin() + e / 4) +
            2 * (lane % 4);
        const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(at));
        float &own = dot[e % 4 / 2];
        own = fmaf(later.s[e / 4][e % 4], pair.x, fmaf(later.s[e / 4][e % 4 + 1], pair.y, own));
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(dot[half]);
        if (lane % 4 == 0)
            both[later.part()][later.row() + sum_row(2 * half, lane)] = all;
    }
}

/* of_rows[column] = the sum over rows own .. but `without` of C times a tile, for the columns of C,
 * from 8 `begin` on. One warp. */
template <int F, int PIECES>
SR_DEVICE void dot_rows(float *of_rows, const float (&c)[PIECES][4], const sr_bf16 *tile, int own,
                        int begin, int without) {
    const int lane = lane_again();
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        float2 sum = {0, 0};
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = own + sum_row(e, lane);
            const sr_bf16 *const at = tile + sr_tile<F>::offset(row, begin + n) + 2 * (lane % 4);
            if (row != without)
                sum = sum + unpack_bf16(*reinterpret_cast<const uint32_t *>(at)) *
                                make_float2(c[n][e], c[n][e + 1]);
        }
#pragma unroll
        for (int mask = 4; mask < SR_WARP; mask *= 2) {
            sum.x += shuffle_xor(sum.x, mask);
            sum.y += shuffle_xor(sum.y, mask);
        }
        if (lane < 4)
            *reinterpret_cast<float2 *>(of_rows + 8 * (begin + n) + 2 * lane) = sum;
    }
}

/* Which part of a sum over levels, or over levels and query heads, comes now. */
struct sum_part {
    bool first, last;
};

/* The sum so far with x, the part that comes now; `kept` between parts. */
SR_DEVICE float2 sum_on(float2 &kept, float2 x, const sum_part &part) {
    if (!part.first)
        x = x + kept;
    if (!part.last)
        kept = x;
    return x;
}

/* Rows of a span on their way out: what a thread has of them. */
template <int F> struct channel_place {
    int from, past, first, channels; /* the span; the thread's first row; F of the call */
    float *sums;                     /* of the block */

    /* The token of the thread's row n, and whether it has the channels of set s. */
    SR_DEVICE int token(int n) const {
        return first + n;
    }
    SR_DEVICE bool exists(int s, int n) const {
        return token(n) >= from && token(n) < past && channel_of(s) < channels;
    }
    SR_DEVICE bool ends(int n) const {
        return token(n) == past - 1;
    }
    SR_DEVICE void store(sr_bf16 *row, int s, float2 x) const {
        *reinterpret_cast<uint32_t *>(row + channel_of(s)) = pack_bf16(x.x, x.y);
    }
    template <class Memory>
    SR_DEVICE float diagonal(const Memory *shared, int n, bool counts) const {
        return counts ? shared->diagonal[CHANNEL_ROWS * channel_group() + n] : 0;
    }
    /* The thread's pair of one of its sums in global memory. */
    SR_DEVICE float2 &sum(int which, int s, int n) const {
        const int row = which * SR_CHUNK + CHANNEL_ROWS * channel_group() + n;
        return *reinterpret_cast<float2 *>(sums + row * F + channel_of(s));
    }
};

enum channel_sum { SUM_QUERIES, SUM_KEYS, SUM_GATES };

/* dq of a query head g from dq^ in shared memory, stored once complete; q^ dq^ replaces dq^, or
 * where dk^ comes into its place goes to the sums. Parameters, not a struct: they stay in
 * registers. */
template <int F, int V, class Tile>
SR_DEVICE void finish_queries(const sr_chunk_call &call, const channel_place<F> &place,
                              backward_memory<F, V> *shared, Tile &d_queries, int g,
                              const channel_factors<F> &factors, const sum_part &part,
                              bool first_of_keys, bool diagonal) {
    factors.each_query(shared->gates, [&](int s, int n, float2 factor) {
        const float2 d = d_queries.own(s, n);
        const float2 both = channel_get<F>(shared->scaled_queries, s, n) * d;
        if constexpr (backward_memory<F, V>::together)
            d_queries.own(s, n) = both;
        else
            sum_on(place.sum(SUM_GATES, s, n), both, {first_of_keys, false});
        const float2 all =
            d + channel_get<F>(shared->scaled_keys, s, n) * place.diagonal(shared, n, diagonal);
        const float2 own = factors.queries ? all * (factor * call.scale) : make_float2(0, 0);
        const float2 x = sum_on(place.sum(SUM_QUERIES, s, n), own, part);
        if (part.last && place.exists(s, n))
            place.store(call.d_q.row(shared->at.b, shared->at.kv * call.group + g, place.token(n)),
                        s, x);
    });
}

/* dk from dk^, which the thread's parts of d_gate so far, q^ dq^ - k^ dk^, replace. */
template <int F, int V>
SR_DEVICE void finish_keys(const sr_chunk_call &call, const channel_place<F> &place,
                           backward_memory<F, V> *shared, const channel_factors<F> &factors,
                           const sum_part &part, bool diagonal) {
    factors.each_key(shared->gates, [&](int s, int n, float2 factor) {
        const float2 d = shared->d_keys.own(s, n);
        float2 both =
            channel_get<F>(shared->scaled_keys, s, n) * d * (place.ends(n) ? 0.0f : -1.0f);
        if constexpr (backward_memory<F, V>::together)
            both = sum_on(place.sum(SUM_GATES, s, n), both + shared->d_queries.own(s, n), part);
        else
            both = sum_on(place.sum(SUM_GATES, s, n), both, {false, part.last});
        shared->d_keys.own(s, n) = both;
        const float2 all =
            d + channel_get<F>(shared->scaled_queries, s, n) * place.diagonal(shared, n, diagonal);
        const float2 own = factors.keys ? all * factor : make_float2(0, 0);
        const float2 x = sum_on(place.sum(SUM_KEYS, s, n), own, part);
        if (part.last && place.exists(s, n))
            place.store(call.d_k.row(shared->at.b, shared->at.kv, place.token(n)), s, x);
    });
}

/* Gradients of gates from those parts, which become their sums over later rows. By all threads,
 * with a barrier. */
template <int F, int V>
SR_DEVICE void store_gates(const sr_chunk_call &call, const channel_place<F> &place,
                           backward_memory<F, V> *shared, bool continues) {
#pragma unroll
    for (int s = 0; s < F / 64; s++) {
        float2 sum = {0, 0};
#pragma unroll
        for (int n = CHANNEL_ROWS - 1; n >= 0; n--) {
            sum = sum + shared->d_keys.own(s, n);
            shared->d_keys.own(s, n) = sum;
        }
        shared->d_totals.put(s, sum);
    }
    __syncthreads(); /* totals are ready */
    float *const to = call.d_gate + call.row(call.Hkv, shared->at.b, shared->at.kv, 0) * call.F;
#pragma unroll
    for (int s = 0; s < F / 64; s++) {
        const auto get = [&](const float *x) {
            return *reinterpret_cast<const float2 *>(x + channel_of(s));
        };
        float2 later = {0, 0};
#pragma unroll
        for (int part = 0; part < channel_state<F, V>::parts; part++)
            later = later + get(shared->both[part]);
#pragma unroll
        for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
            later = later + get(shared->until[strip]);
#pragma unroll
        for (int group = CHANNEL_WARPS - 1; group > 0; group--)
            if (group > channel_group())
                later = later + shared->d_totals.get(group, s);
        float2 above = {0, 0};
#pragma unroll 4
        for (int n = 0; n < CHANNEL_ROWS; n++) {
            const bool begins = place.token(n) == place.from && !continues;
            const float2 sum = shared->gates.get(s, n), gate = sum - above;
            float2 d = shared->d_keys.own(s, n) + later;
            d.x = begins || gate.x < SR_CHANNEL_LEAST ? 0 : d.x;
            d.y = begins || gate.y < SR_CHANNEL_LEAST ? 0 : d.y;
            above = sum;
            if (place.exists(s, n))
                *reinterpret_cast<float2 *>(to + (int64_t)place.token(n) * call.F + channel_of(s)) =
                    d;
        }
    }
}

/* A block owns a head of keys and values and walks its spans from the last, R in registers. A warp
 * has 16 rows of gradients and half of their columns, a strip of R, and of scaled tiles 8 rows. For
 * each span: gates summed up; barrier; then for each query head, level by level:
 *     queries and keys scaled, and with those of the last level S, and R published; barrier; copies
 *     of the next queries and keys start; w and G to shared memory; barrier; dq^, dk^, dv in
 *     registers, and R takes in the span; barrier; copies of the next values, dN and S start; dq^
 *     and dk^ to shared memory, over w, G and R; barrier; and from there, row by row, dq and dk to
 *     global memory, and the thread's part of d_gate.
 * Then dv, and sums over later rows for d_gate. Where one level is enough, that makes six
 * barriers. */
template <int F, int V>
__global__ void __launch_bounds__(CHANNEL_THREADS, (backward_shape<F, V>::blocks))
    channel_backward_walk(const __grid_constant__ sr_chunk_call call, const sr_bf16 *states,
                          float *sums) {
    using Memory = backward_memory<F, V>;
    constexpr int THREADS = CHANNEL_THREADS, PF = F / 16, PV = V / 16;
    SR_SHARED(Memory, shared);
    const int warp = chunk_warp(), own = 16 * (warp % SR_CHUNK_STRIPS);
    const int side = warp / SR_CHUNK_STRIPS, last = call.group - 1;
    sr_chunk_spans spans = chunk_spans(call, (int)blockIdx.x / call.Hkv);
    sr_chunk_span span = spans.before(call.T);
    channel_state<F, V> later; /* R */
    states += (int64_t)blockIdx.x * chunk_count(call.T) * F * V;
    sums += (int64_t)blockIdx.x * CHANNEL_SUMS * SR_CHUNK * F;

    if (threadIdx.x == 0)
        shared->at.open(call, 0);
    __syncthreads(); /* the head is known */
    chunk_load<F, THREADS>(shared->queries, shared->at.queries, span);
    chunk_load<F, THREADS>(shared->keys, shared->at.keys, span);
    chunk_load<V, THREADS>(shared->values, shared->at.values, span);
    chunk_load<V, THREADS>(shared->gradients, shared->at.gradients_of(call, 0), span);
    load_state<F, V>(shared->state, states, span);
    shared->gates.load(shared->at.gate, call.F, span);
    cp_async_commit();
    later.get(call, channel_state_of(call, call.d_final), 0);
    for (;;) {
        const bool more = span.from > 0;
        const sr_chunk_span next = more ? spans.before(span.from) : span;
        cp_async_wait<0>();
        __syncwarp(); /* gates are ready */
        shared->gates.sum_up(shared->totals);
        __syncthreads(); /* tiles and totals are ready; no warp reads the previous ones */
        const int range = channel_range(shared->totals);
        float d_v[PV][4];
        const channel_place<F> place = {span.from, span.past,
                                        span.t0 + CHANNEL_ROWS * channel_group(), call.F, sums};
        clear_pieces(d_v);
        for (int g = 0; g <= last; g++) {
            channel_level level = channel_first_level(range);
#pragma unroll 1
            for (;;) {
                if (g > 0 || !level.is_first()) {
                    cp_async_wait<0>();
                    __syncthreads(); /* queries are ready; no warp reads the previous tiles */
                }
                const bool states_too = level.state && g == 0;
                channel_factors<F> factors;
                factors.open(shared->gates, shared->totals, level);
                channel_scale_queries(shared->scaled_queries, shared->queries, shared->gates,
                                      factors, call.scale);
                if (g == 0 || range < SR_CHUNK)
                    channel_scale_keys(shared->scaled_keys, shared->keys, shared->gates, factors);
                channel_across across;
                if (states_too) {
                    across.open(shared->totals, later.row(), range == SR_CHUNK);
                    if (range == SR_CHUNK)
                        scale_state<F, V>(shared->state, shared->totals);
                    later.multiply(across.half);
                    later.publish(shared->later);
                    later.multiply(across.whole);
                }
                __syncthreads(); /* scaled tiles and states are ready */
                if (level.state && (g < last || more)) {
                    if (g < last) {
                        chunk_load<F, THREADS>(shared->queries, shared->at.queries_of(call, g + 1),
                                               span);
                    } else {
                        chunk_load<F, THREADS>(shared->queries, shared->at.queries, next);
                        chunk_load<F, THREADS>(shared->keys, shared->at.keys, next);
                    }
                    cp_async_commit();
                }
                weigh_pairs(shared, own, side, level);
                __syncthreads(); /* w and G are ready */
                float d_q[PF][4], d_k[PF][4];
                clear_pieces(d_q);
                clear_pieces(d_k);
                if (states_too) {
                    dot_states(shared->both, later, shared->state);
                    multiply_by_rows<V, V, V>(d_k, shared->values, own, 0, shared->later,
                                              8 * side * PF);
                    dot_rows<F>(shared->until[own / 16], d_k, shared->scaled_keys, own, side * PF,
                                span.past - 1 - span.t0);
                    channel_multiply<F, V>(d_v, shared->scaled_keys, own, shared->later, side * PV);
                }
                channel_multiply_columns<F>(d_k, shared->pairs[1], own, shared->scaled_queries,
                                            side * PF, level);
                channel_multiply_columns<V>(d_v, shared->pairs[0], own, shared->gradients,
                                            side * PV, level);
                if (level.state) {
                    multiply_by_rows<V, V, V>(d_q, shared->gradients, own, 0, shared->state,
                                              8 * side * PF);
                    later.add(shared->scaled_queries, shared->gradients);
                }
                channel_multiply_rows<F>(d_q, shared->pairs[1], own, shared->scaled_keys, side * PF,
                                         level);
                __syncthreads(); /* no warp reads w, G, R, S, values and dN */
                if (level.state && (g < last || more)) {
                    if (g < last) {
                        chunk_load<V, THREADS>(shared->gradients,
                                               shared->at.gradients_of(call, g + 1), span);
                    } else {
                        chunk_load<V, THREADS>(shared->gradients, shared->at.gradients_of(call, 0),
                                               next);
                        chunk_load<V, THREADS>(shared->values, shared->at.values, next);
                        load_state<F, V>(shared->state, states, next);
                    }
                    cp_async_commit();
                }
                const sum_part of_query = {level.is_first(), level.state};
                const sum_part of_key = {g == 0 && of_query.first, g == last && of_query.last};
                if constexpr (Memory::together) {
                    shared->d_queries.put(d_q, own, side * PF);
                    shared->d_keys.put(d_k, own, side * PF);
                    __syncthreads(); /* dq^ and dk^ are ready */
                    finish_queries(call, place, shared, shared->d_queries, g, factors, of_query,
                                   of_key.first, level.has_diagonal());
                } else {
                    shared->d_keys.put(d_q, own, side * PF);
                    __syncthreads(); /* dq^ is ready */
                    finish_queries(call, place, shared, shared->d_keys, g, factors, of_query,
                                   of_key.first, level.has_diagonal());
                    __syncthreads(); /* no warp reads it */
                    shared->d_keys.put(d_k, own, side * PF);
                    __syncthreads(); /* dk^ is ready */
                }
                finish_keys(call, place, shared, factors, of_key, level.has_diagonal());
                if (level.state)
                    break;
                level = channel_next_level(level, range);
            }
        }
        store_pieces<PV>({call.d_v.row(shared->at.b, shared->at.kv, 0) + 8 * side * PV,
                          call.d_v.time, call.V - 8 * side * PV, true},
                         d_v, own, span);
        channel_across across;
        across.open(shared->totals, later.row(), range == SR_CHUNK);
        later.multiply(across.half);
        store_gates(call, place, shared, span.continues);
        if (!more)
            break;
        __syncwarp(); /* no lane reads gates */
        shared->gates.load(shared->at.gate, call.F, next);
        cp_async_commit();
        if (!span.continues)
            clear_pieces(later.s);
        span = next;
    }
    if (call.d_initial) {
        if (!span.continues)
            clear_pieces(later.s);
        later.put(call, channel_state_of(call, call.d_initial), 0);
    }
}

template <int F, int V>
static srnn_status start_backward(const sr_chunk_call &call, const sr_bf16 *states, float *sums,
                                  cudaStream_t stream) {
    SR_CUDA(sr_launch(channel_backward_walk<F, V>, dim3((unsigned)(call.B * call.Hkv)),
                      dim3(CHANNEL_THREADS), sizeof(backward_memory<F, V>), stream, call, states,
                      sums));
    return SRNN_OK;
}

srnn_status channel_backward(const sr_chunk_call &call, const sr_bf16 *states, float *sums,
                             cudaStream_t stream) {
    return SR_CHANNEL_START(start_backward, channel_width(call.F), channel_width(call.V), call,
                            states, sums, stream);
}

template <int F, int V> static size_t backward_bytes() {
    return sizeof(backward_memory<F, V>);
}

size_t channel_backward_bytes(int F, int V) {
    return SR_CHANNEL_START(backward_bytes, F, V);
}
