/* outputs.cu: gates per channel, in chunks, backward: the gradients of queries, keys, gates
 * and betas, every chunk by itself. With S^ the state before a span and R~ the gradient of that
 * after it, both times their weight up to the anchor, G_ij = <dN_i, U_j> and H_ij = -<dV_i, U_j>
 * (write=add: 0), for the pairs of a level:
 *
 *     dq^_i = S^ dN_i + sum_j G_ij k~_j           dq_i = dq^_i times the factor of q^_i
 *     dk^_i = -S^ dV_i + sum_j H_ij k~_j          dk = dk^ and dk~ times their factors
 *     dk~_j = R~ U_j + sum_i G_ij q^_i + H_ij k^_i
 *     dbeta_i = <dV_i, U_i> / beta_i^2
 *
 * The gate of a channel of token t gets the share of the channel in all pairs i >= t > j. With
 *     y_i = q^_i dq^_i + k^_i dk^_i - k~_i dk~_i
 * the sum of y from t on is that of the pairs with i among those rows less that of the pairs with j
 * among them:
 *     d_gate_t = sum of y from t on + the pairs of later i and any j up to the end of the span;
 * the last are those of j in the span, the sum of what k~ dk~ has from R~, and of j before it,
 * <S^, R~>. What cancels is made of the same numbers in float. Pairs that no gate of the span lies
 * between are left out of these sums, i = j and those of later i and the last j: where gates forget
 * nearly everything, they are all that is not small. No sum runs over more than a chunk, so that
 * errors do not add up along the sequence. */
#include "attention/cuda/chunks/channel/channel.h"
#include "device/cuda/check.h"

enum { SLICE = SR_CHUNK, SIDES = CHANNEL_WARPS / SR_CHUNK_STRIPS };

/* Where a block is; this and the span are in shared memory, since registers are scarce. */
struct outputs_at {
    int b, head, chunk;

    /* Head g of the group. */
    SR_DEVICE int query(const sr_chunk_call &call, int g) const {
        return head * call.group + g;
    }
    /* The warp's first row; its first column / 8 of `pieces`. */
    SR_DEVICE int own() const {
        return 16 * (delta_thread() / SR_WARP % SR_CHUNK_STRIPS);
    }
    SR_DEVICE int side() const {
        return delta_thread() / SR_WARP / SR_CHUNK_STRIPS;
    }
};

/* A span, and whether a state before it, and the gradient of one after it, are not zero. */
struct outputs_span {
    sr_chunk_span span;
    bool state, later;
    int range; /* channel_range of its gates */
};

template <int F, bool DELTA> struct outputs_memory {
    static constexpr int kinds = DELTA ? 2 : 1;
    channel_tiles<F> tiles;                 /* exponents become y */
    sr_bf16 d_numerators[SR_CHUNK * SLICE]; /* of 64 value columns at a time */
    sr_bf16 d_values[DELTA ? SR_CHUNK * SLICE : 8];
    sr_bf16 used[SR_CHUNK * SLICE];             /* U */
    sr_bf16 state[SLICE * F], later[SLICE * F]; /* S^', R~' */
    union {
        sr_bf16 pairs[kinds][SR_CHUNK_SQUARE]; /* G, H below the diagonal */
        channel_totals<F> d_totals;            /* of y, for each 8 tokens */
    };
    alignas(8) float both[F];        /* <S^, R~> */
    float until[SR_CHUNK_STRIPS][F]; /* what k~ dk~ has from R~, for 16 rows */
    float diagonal[kinds][SR_CHUNK]; /* G_ii, -H_ii */
    outputs_at at;
    outputs_span what;
};

/* What a warp has of 16 rows and half of their columns, in the layout of sums of mma: gradients of
 * queries, one head at a time, and of keys, and y. */
template <int F> struct outputs_rows {
    static constexpr int pieces = F / 8 / SIDES;
    float d_q[pieces][4], d_k[pieces][4], y[pieces][4];
};

/* ---- copies ---- */

/* Of a slice of values: rows of tokens, and of the transposed states. */
template <int F, bool DELTA>
SR_DEVICE void load_slice(outputs_memory<F, DELTA> *shared, const sr_chunk_call &call,
                          const channel_places &places, int g, int slice) {
    const outputs_at &at = shared->at;
    const outputs_span &what = shared->what;
    constexpr int THREADS = CHANNEL_THREADS, tile = SLICE * F;
    const int head = at.b * call.Hkv + at.head, slices = channel_slices(call), v0 = SLICE * slice;
    chunk_load<SLICE, THREADS>(shared->d_numerators,
                               chunk_rows(call.d_numerator, at.b, at.query(call, g), call.V, v0),
                               what.span);
    if constexpr (DELTA) {
        chunk_load<SLICE, THREADS>(shared->d_values,
                                   chunk_rows(call.d_v, at.b, at.head, call.V, v0), what.span);
        channel_copy_rows<SLICE, THREADS>(shared->used,
                                          channel_chunk<const sr_bf16>(places.used, call, head,
                                                                       at.chunk,
                                                                       slices * SR_CHUNK_SQUARE) +
                                              slice * SR_CHUNK_SQUARE,
                                          what.span);
    } else
        chunk_load<SLICE, THREADS>(shared->used, chunk_rows(call.v, at.b, at.head, call.V, v0),
                                   what.span);
    if (what.state)
        channel_copy<tile, THREADS>(shared->state,
                                    channel_chunk<const sr_bf16>(places.states, call, head,
                                                                 at.chunk, slices * tile) +
                                        slice * tile);
    if (what.later)
        channel_copy<tile, THREADS>(shared->later,
                                    channel_chunk<const sr_bf16>(places.d_states, call, head,
                                                                 at.chunk, slices * tile) +
                                        slice * tile);
}

/* ---- from products of scaled rows to gradients ---- */

/* The numbers of a tile in a row, from an even column on. */
template <int F> SR_DEVICE float2 word_at(const sr_bf16 *tile, int row, int column) {
    return unpack_bf16(*reinterpret_cast<const uint32_t *>(
        tile + sr_tile<F>::offset(row, column / 8) + column % 8));
}

/* use(n, e, pair, row, column) for each two of the warp's sums, numbers e and e + 1 of piece n;
 * `pair`: those of a tile. */
template <int F, class Use>
SR_DEVICE void each_pair(const outputs_at &at, const sr_bf16 *tile, const Use &use) {
    constexpr int P = outputs_rows<F>::pieces;
    const int lane = delta_lane(), first = at.own() + lane / 4;
    const int begin = 8 * at.side() * P + 2 * (lane % 4);
#pragma unroll
    for (int n = 0; n < P; n++)
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            const int row = first + 4 * e, column = begin + 8 * n;
            use(n, e, word_at<F>(tile, row, column), row, column);
        }
}

/* Gradients of rows that were scaled by 2^x, from those of the scaled rows: d += factor 2^x c, y +=
 * the scaled rows times c. `diagonal` (NULL: none): the rows of writers times these numbers are
 * added to c for d alone. Parameters, not a struct: they stay in registers. */
template <int F, bool DELTA, int P>
SR_DEVICE void take_readers(float (&d)[P][4], float (&y)[P][4], const float (&c)[P][4],
                            outputs_memory<F, DELTA> *shared, const sr_bf16 *tile, float factor,
                            const float *diagonal, const channel_level &level) {
    each_pair<F>(shared->at, tile, [&](int n, int e, float2 own, int row, int column) {
        const float2 x = channel_exp2(shared->tiles.gates.pair(row, column)) * factor;
        float2 all = make_float2(c[n][e], c[n][e + 1]);
        y[n][e] = fmaf(own.x, all.x, y[n][e]);
        y[n][e + 1] = fmaf(own.y, all.y, y[n][e + 1]);
        if (diagonal)
            all = all + word_at<F>(shared->tiles.writers, row, column) * diagonal[row];
        const bool counts = level.reads(row);
        d[n][e] += counts ? x.x * all.x : 0;
        d[n][e + 1] += counts ? x.y * all.y : 0;
    });
}

/* The same for keys that were scaled by 2^(all - x), which y has with the other sign; row `last`
 * not at all. Parameters as above. */
template <int F, bool DELTA, int P>
SR_DEVICE void take_writers(float (&d)[P][4], float (&y)[P][4], const float (&c)[P][4],
                            outputs_memory<F, DELTA> *shared, const float *diagonal, int last,
                            const channel_level &level) {
    each_pair<F>(shared->at, shared->tiles.writers,
                 [&](int n, int e, float2 own, int row, int column) {
                     const float2 ends =
                         *reinterpret_cast<const float2 *>(shared->tiles.all + column);
                     const float2 x = channel_exp2(ends - shared->tiles.gates.pair(row, column));
                     float2 all = make_float2(c[n][e], c[n][e + 1]);
                     const bool gated = row != last;
                     y[n][e] = fmaf(-own.x, gated ? all.x : 0, y[n][e]);
                     y[n][e + 1] = fmaf(-own.y, gated ? all.y : 0, y[n][e + 1]);
                     if (diagonal)
                         all = all + word_at<F>(shared->tiles.queries, row, column) * diagonal[row];
                     const bool counts = level.writes(row);
                     d[n][e] += counts ? x.x * all.x : 0;
                     d[n][e + 1] += counts ? x.y * all.y : 0;
                 });
}

/* ---- what gates have from the state after the span ---- */

/* until += the sums over the warp's rows but `last` of C times the writers. */
template <int F, bool DELTA, int P>
SR_DEVICE void add_until(outputs_memory<F, DELTA> *shared, const float (&c)[P][4], int last) {
    const outputs_at &at = shared->at;
    float2 sum[P] = {};
    each_pair<F>(at, shared->tiles.writers, [&](int n, int e, float2 own, int row, int) {
        if (row != last)
            sum[n] = sum[n] + own * make_float2(c[n][e], c[n][e + 1]);
    });
    const int lane = delta_lane();
#pragma unroll
    for (int n = 0; n < P; n++) {
#pragma unroll
        for (int mask = 4; mask < SR_WARP; mask *= 2) {
            sum[n].x += shuffle_xor(sum[n].x, mask);
            sum[n].y += shuffle_xor(sum[n].y, mask);
        }
        if (lane < 4) {
            float *const to = shared->until[at.own() / 16] + 8 * (at.side() * P + n) + 2 * lane;
            to[0] += sum[n].x;
            to[1] += sum[n].y;
        }
    }
}

/* both += <S^, R~> of the slice; a warp has an eighth of the features. */
template <int F, bool DELTA> SR_DEVICE void add_both(outputs_memory<F, DELTA> *shared) {
    constexpr int WORDS = F / 2 / CHANNEL_WARPS;
    const int lane = delta_lane(), column = 2 * (WORDS * channel_group() + lane % WORDS);
    float2 sum = {0, 0};
#pragma unroll 4
    for (int row = lane / WORDS; row < SLICE; row += SR_WARP / WORDS)
        sum = sum + word_at<F>(shared->state, row, column) * word_at<F>(shared->later, row, column);
#pragma unroll
    for (int mask = WORDS; mask < SR_WARP; mask *= 2) {
        sum.x += shuffle_xor(sum.x, mask);
        sum.y += shuffle_xor(sum.y, mask);
    }
    if (lane < WORDS) {
        shared->both[column] += sum.x;
        shared->both[column + 1] += sum.y;
    }
}

/* ---- pairs ---- */

/* G or H of the warp's rows, every second block. */
struct outputs_pairs {
    enum { BLOCKS = SR_CHUNK_STRIPS / SIDES };
    float w[BLOCKS][2][4];

    SR_DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
            clear_pieces(w[n]);
    }
    /* use(n, column) for each block n of the warp, from this column on. */
    template <class Use> static SR_DEVICE void each(const outputs_at &at, const Use &use) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
            const int column = 16 * (at.side() + SIDES * n);
            if (column <= at.own())
                use(n, column);
        }
    }

    /* Those of a slice of values; `rows`: of dN or dV. */
    SR_DEVICE void add(const sr_bf16 *rows, const sr_bf16 *used, const outputs_at &at) {
        each(at, [&](int n, int column) {
            multiply_by_rows<SLICE, SLICE, SLICE>(w[n], rows, at.own(), 0, used, column);
        });
    }

    /* To shared memory: below the diagonal times `sign`, and the diagonal. */
    SR_DEVICE void publish(sr_bf16 *pairs, float sign, float *diagonal, const outputs_at &at) {
        each(at, [&](int n, int column) {
            const int lane = delta_lane(), own = at.own();
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const int i = own + sum_row(e, lane), j = column + sum_column(e, lane);
                float &x = w[n][e / 4][e % 4];
                if (i == j)
                    diagonal[i] = x;
                x = i > j ? sign * x : 0;
            }
            pieces_to_tile<SR_CHUNK>(pairs + own * SR_CHUNK, w[n], column / 8);
        });
    }
};

/* ---- products ---- */

/* What gradients have of a level: from states with a slice of values, from pairs, or from both. */
struct outputs_part {
    bool states, pairs;
    bool first_head; /* the first query head of the group: that of keys too */
};

template <int F, bool DELTA>
SR_DEVICE void take_part(outputs_rows<F> &rows, outputs_memory<F, DELTA> *shared,
                         const sr_chunk_call &call, const outputs_part &part,
                         const channel_level &level) {
    const outputs_at &at = shared->at;
    const outputs_span &what = shared->what;
    constexpr int P = outputs_rows<F>::pieces;
    const int own = at.own(), begin = at.side() * P;
    const bool keys = DELTA && part.first_head, state = part.states && what.state;
    const float *const diagonal =
        part.pairs && level.has_diagonal() ? shared->diagonal[0] : nullptr;
    const channel_tiles<F> &tiles = shared->tiles;
    int last = -1;
    float c[P][4];
    clear_pieces(c);
    if (state)
        multiply_by_columns<SLICE, F>(c, shared->d_numerators, own, 0, shared->state, begin);
    if (part.pairs)
        channel_multiply_rows<F>(c, shared->pairs[0], own, tiles.writers, begin, level);
    take_readers<F>(rows.d_q, rows.y, c, shared, tiles.queries, call.scale, diagonal, level);
    clear_pieces(c);
    if constexpr (DELTA)
        if (keys) {
            if (state)
                multiply_by_columns<SLICE, F>(c, shared->d_values, own, 0, shared->state, begin);
#pragma unroll
            for (int e = 0; e < 4 * P; e++)
                c[e / 4][e % 4] = -c[e / 4][e % 4];
            if (part.pairs)
                channel_multiply_rows<F>(c, shared->pairs[1], own, tiles.writers, begin, level);
            take_readers<F>(rows.d_k, rows.y, c, shared, tiles.readers, 1, nullptr, level);
            clear_pieces(c);
        }
    if (part.states && what.later && part.first_head) {
        last = what.span.past - 1 - what.span.t0;
        multiply_by_columns<SLICE, F>(c, shared->used, own, 0, shared->later, begin);
        add_until(shared, c, last);
        if (what.state)
            add_both(shared);
    }
    if (part.pairs) {
        channel_multiply_columns<F>(c, shared->pairs[0], own, tiles.queries, begin, level);
        if constexpr (DELTA)
            if (keys)
                channel_multiply_columns<F>(c, shared->pairs[1], own, tiles.readers, begin, level);
    }
    take_writers<F>(rows.d_k, rows.y, c, shared, diagonal, last, level);
}

/* ---- gates ---- */

enum { KIND_RATE, KIND_BIAS, KINDS };

/* What a thread's tokens add to the gradients of a_log and dt_bias, for two channels. */
struct gate_sums {
    float2 of[KINDS];
};

/* Gradients of the gates of two rows, d, of two channels each, become those of their numbers z. */
SR_DEVICE void numbers_backward(gate_sums &sums, float2 (&d)[2], const float (&z)[4],
                                const chunk_gate_head &rule) {
    float gradient[4] = {d[0].x, d[0].y, d[1].x, d[1].y}, rate[4] = {};
    rule.backward(gradient, rate, z);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        d[n] = make_float2(gradient[2 * n], gradient[2 * n + 1]);
        sums.of[KIND_RATE] = sums.of[KIND_RATE] + make_float2(rate[2 * n], rate[2 * n + 1]);
        sums.of[KIND_BIAS] = sums.of[KIND_BIAS] + d[n];
    }
}

/* d is 0 where the gate, as an exponent of 2, is below SR_CHANNEL_LEAST. */
SR_DEVICE void limit_gate(float2 &d, float2 logarithm) {
    d.x = logarithm.x * SR_LOG2_E < SR_CHANNEL_LEAST ? 0 : d.x;
    d.y = logarithm.y * SR_LOG2_E < SR_CHANNEL_LEAST ? 0 : d.y;
}

/* Where a thread's gradients of gates go: its two channels of the rows of its group. Addresses and
 * bounds are found once, not for every row. */
struct gate_rows {
    float *logarithms; /* of row 0; NULL: `numbers` */
    sr_bf16 *numbers;  /* of row 0; NULL: not wanted */
    int64_t apart;     /* from row to row of numbers */
    int from, past;    /* rows that are the span's, where the channels exist */
    int acts;          /* the first row before which a gate acts */
    int later;         /* its number is that of the row this many before */
    int first;         /* the first row whose gate has a number */
    int last;          /* the row whose number has no gate, or -1 */

    SR_DEVICE gate_rows(const sr_chunk_call &call, const outputs_at &at, const sr_chunk_span &span,
                        int channel) {
        const sr_chunk_numbers &gates = call.gates;
        const int t0 = span.t0 + CHANNEL_ROWS * channel_group();
        logarithms = call.gate
                         ? call.d_gate + call.row(call.Hkv, at.b, at.head, t0) * call.F + channel
                         : nullptr;
        numbers = gates.d_numbers.data ? gates.d_numbers.row(at.b, at.head, t0) + channel : nullptr;
        apart = gates.d_numbers.time;
        from = span.from - t0;
        past = channel < call.F ? span.past - t0 : 0;
        acts = channel_from(span) - t0;
        later = gates.later;
        first = later - t0;
        last = later > 0 ? call.T - 1 - t0 : -1;
    }
    SR_DEVICE bool exists(int row) const {
        return row >= from && row < past;
    }
    SR_DEVICE bool counts(int row) const {
        return row >= acts && row < past;
    }
    /* The gradient of the gate before a row, or of its number. */
    SR_DEVICE void put(const sr_chunk_call &call, int row, float2 d) const {
        if (logarithms) {
            *reinterpret_cast<float2 *>(logarithms + row * call.F) = d;
            return;
        }
        if (!numbers)
            return;
        sr_bf16 *const to = numbers + row * apart;
        if (row >= first)
            *reinterpret_cast<uint32_t *>(to - later * apart) = pack_bf16(d.x, d.y);
        if (row == last)
            *reinterpret_cast<uint32_t *>(to) = 0;
    }
};

/* The sums of all warps of a span, added to those of the chunk; a thread owns a channel. */
template <int F>
SR_DEVICE void store_sums(const sr_chunk_call &call, const outputs_at &at,
                          const sr_chunk_span &span, const channel_gates<F> &sums) {
    const int channel = delta_thread(), chunks = chunk_count(call.T);
    if (channel >= call.F)
        return;
#pragma unroll
    for (int kind = 0; kind < KINDS; kind++) {
        const int64_t chunk = (int64_t)at.b * chunks + at.chunk;
        float *const to = call.gates.sums + ((chunk * KINDS + kind) * call.Hkv + at.head) * call.F;
        float sum = span.from > span.t0 ? to[channel] : 0;
        for (int group = 0; group < CHANNEL_WARPS; group++)
            sum += sums.number[sums.place(CHANNEL_ROWS * group + kind, channel)];
        to[channel] = sum;
    }
}

/* Gradients of gates from y, in the place of exponents, by all threads as they scale rows; with a
 * barrier. Gates that a level limited, in blocks of 8 tokens, have none. */
template <int F, bool DELTA>
SR_DEVICE void store_gates(const sr_chunk_call &call, outputs_memory<F, DELTA> *shared) {
    const outputs_at &at = shared->at;
    const sr_chunk_span &span = shared->what.span;
    const int range = shared->what.range;
    channel_gates<F> &y = shared->tiles.gates;
    const chunk_gate_head rule(call.gates.rule, at.head);
    sr_bf16 *const numbers = shared->tiles.writers;
    if (!call.gate)
        channel_load_numbers<F>(numbers, call, at.b, at.head, span);
    cp_async_commit();
#pragma unroll
    for (int s = 0; s < F / 64; s++) {
        float2 sum = {0, 0};
#pragma unroll
        for (int n = CHANNEL_ROWS - 1; n >= 0; n--) {
            sum = sum + y.at(s, n);
            y.at(s, n) = sum;
        }
        shared->d_totals.put(s, sum);
    }
    cp_async_wait<0>();
    __syncthreads(); /* totals are ready, and the warp's numbers of gates */
#pragma unroll
    for (int s = 0; s < F / 64; s++) {
        const float2 bias = channel_bias(call, at.head, s);
        const int channel = channel_of(s);
        const auto get = [&](const float *x) {
            return *reinterpret_cast<const float2 *>(x + channel);
        };
        float2 later = get(shared->both), all = {0, 0};
#pragma unroll
        for (int group = 0; group < CHANNEL_WARPS; group++)
            all = all + shared->tiles.totals.get(group, s);
        later = range == SR_CHUNK ? later : later * channel_exp2(all);
#pragma unroll
        for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
            later = later + get(shared->until[strip]);
#pragma unroll
        for (int group = CHANNEL_WARPS - 1; group > 0; group--)
            if (group > channel_group())
                later = later + shared->d_totals.get(group, s);
        gate_sums sums = {};
        const gate_rows out(call, at, span, channel);
#pragma unroll 1
        for (int begin = 0; begin < CHANNEL_ROWS; begin += 2) {
            float2 d[2];
#pragma unroll
            for (int n = 0; n < 2; n++)
                d[n] = out.counts(begin + n) ? y.at(s, begin + n) + later : make_float2(0, 0);
            if (range == CHANNEL_ROWS) {
                float2 a[2] = {};
                if (call.gate) {
                    const int64_t place = call.row(call.Hkv, at.b, at.head, span.t0) * call.F;
                    const int row = CHANNEL_ROWS * channel_group() + begin;
#pragma unroll
                    for (int n = 0; n < 2; n++)
                        if (out.exists(begin + n))
                            a[n] = *reinterpret_cast<const float2 *>(
                                call.gate + place + (int64_t)(row + n) * call.F + channel);
                } else
                    channel_logarithms<F>(a, numbers, rule, call, bias, s, begin, span);
                limit_gate(d[0], a[0]);
                limit_gate(d[1], a[1]);
            }
            if (!call.gate) {
                float z[4];
                channel_numbers<F>(z, numbers, bias, s, begin);
                numbers_backward(sums, d, z, rule);
            }
#pragma unroll
            for (int n = 0; n < 2; n++)
                if (out.exists(begin + n))
                    out.put(call, begin + n, d[n]);
        }
        if (call.gates.sums) { /* the warp's own rows of y are not read any more */
            y.at(s, KIND_RATE) = sums.of[KIND_RATE];
            y.at(s, KIND_BIAS) = sums.of[KIND_BIAS];
        }
    }
    if (call.gates.sums) {
        __syncthreads(); /* the warps' sums are ready */
        store_sums(call, at, span, y);
    }
}

/* ---- a span ---- */

template <int F>
SR_DEVICE void store_rows(const sr_chunk_rows &to, int h, const float (&c)[F / 8 / SIDES][4],
                          const sr_chunk_call &call, const outputs_at &at,
                          const sr_chunk_span &span) {
    constexpr int P = outputs_rows<F>::pieces;
    const int column = 8 * at.side() * P;
    if (to.data)
        store_pieces<P>({to.row(at.b, h, 0) + column, to.time, call.F - column, true}, c, at.own(),
                        span);
}

/* use(first) with each slice of values in shared memory, from the one that is there; or only
 * that. Parameters, not a struct: they stay in registers. */
template <int F, bool DELTA, class Use>
SR_DEVICE void each_slice(bool all, int &resident, outputs_memory<F, DELTA> *shared,
                          const sr_chunk_call &call, const channel_places &places, int g,
                          const Use &use) {
#pragma unroll 1
    for (int n = 0; n == 0 || (all && n < channel_slices(call)); n++) {
        if (n > 0) {
            resident = resident + 1 < channel_slices(call) ? resident + 1 : 0;
            __syncthreads(); /* no warp reads the slice before */
            load_slice(shared, call, places, g, resident);
            cp_async_commit();
            cp_async_wait<0>();
            __syncthreads(); /* the slice is there */
        }
        use(n == 0);
    }
}

/* Gradients of betas from the products <dV_i, U_i>; a thread owns a token. */
SR_DEVICE void store_betas(const sr_chunk_call &call, const outputs_at &at,
                           const sr_chunk_span &span, const float *products) {
    const int row = delta_thread(), t = span.t0 + row;
    if (row >= SR_CHUNK || t < span.from || t >= span.past)
        return;
    const int64_t token = call.row(call.Hkv, at.b, at.head, t);
    const float beta = delta_beta(call.beta[token]);
    call.d_beta[token] = products[row] / beta / beta;
}

/* All gradients of a span: for each query head of the group, level by level, rows scaled; barrier;
 * with the first level G and H, for all slices of values; barrier; products, with the last level
 * those with states too, for all slices. */
template <int F, bool DELTA>
SR_DEVICE void span_outputs(outputs_memory<F, DELTA> *shared, const sr_chunk_call &call,
                            const channel_places &places) {
    const outputs_at &at = shared->at;
    const outputs_span &what = shared->what;
    channel_tiles<F> &tiles = shared->tiles;
    const sr_chunk_span &span = what.span;
    outputs_rows<F> rows;
    clear_pieces(rows.d_k);
    clear_pieces(rows.y);
    for (int n = delta_thread(); n < F; n += CHANNEL_THREADS) {
#pragma unroll
        for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
            shared->until[strip][n] = 0;
        shared->both[n] = 0;
    }
    clear_pieces(rows.d_q);
    channel_level level = {0, 0, true}; /* of the query head before */
    int resident = 0;
#pragma unroll 1
    for (int g = 0; g < call.group;) {
        const bool first = level.state;
        __syncthreads(); /* no warp reads what the copies replace */
        tiles.load(call, at.b, at.query(call, g), at.head, span);
        cp_async_commit();
        if (first) {
            resident = 0;
            load_slice(shared, call, places, g, resident);
        }
        cp_async_commit();
        cp_async_wait<1>();
        __syncwarp(); /* gates are ready */
        tiles.sum_up(call, at.head, span);
        __syncthreads(); /* rows and totals are ready */
        const int range = first ? channel_range(tiles.totals) : what.range;
        level = first ? channel_first_level(range) : channel_next_level(level, range);
        if (first && threadIdx.x == 0)
            shared->what.range = range;
        {
            channel_factors<F> factors;
            factors.open(tiles.gates, tiles.totals, level);
            tiles.template scale_rows<true, DELTA>(factors, call.scale);
        }
        cp_async_wait<0>();
        __syncthreads(); /* tiles and the first slice are ready */
        if (first) {
            const int kinds = DELTA && g == 0 ? 2 : 1;
#pragma unroll 1
            for (int kind = 0; kind < kinds; kind++) {
                outputs_pairs pairs;
                pairs.clear();
                each_slice(true, resident, shared, call, places, g, [&](bool) {
                    pairs.add(DELTA && kind ? shared->d_values : shared->d_numerators, shared->used,
                              at);
                });
                pairs.publish(shared->pairs[kind], kind ? -1 : 1, shared->diagonal[kind], at);
            }
            __syncthreads(); /* G and H are ready */
            if constexpr (DELTA)
                if (kinds == 2)
                    store_betas(call, at, span, shared->diagonal[1]);
        }
        each_slice(level.state, resident, shared, call, places, g, [&](bool here) {
            take_part(rows, shared, call, {level.state, here, g == 0}, level);
        });
        if (level.state) {
            store_rows<F>(call.d_q, at.query(call, g), rows.d_q, call, at, span);
            clear_pieces(rows.d_q);
            g++;
        }
    }
    store_rows<F>(call.d_k, at.head, rows.d_k, call, at, span);
    each_pair<F>(at, tiles.queries, [&](int n, int e, float2, int row, int column) {
        tiles.gates.pair(row, column) = make_float2(rows.y[n][e], rows.y[n][e + 1]);
    });
    __syncthreads(); /* y is ready; no warp reads pairs */
    store_gates(call, shared);
}

/* A block of eight warps owns a chunk of a head of keys and values. A warp has 16 rows of results
 * and half of their columns, and of scaled tiles 8 rows. Spans are computed one after the other:
 * tiles by cp.async global -> shared, scaled in place, products in registers, and gradients from
 * registers to global memory. */
template <int F, bool DELTA>
__global__ void __launch_bounds__(CHANNEL_THREADS, F == 64 ? 2 : 1)
    channel_outputs(const __grid_constant__ sr_chunk_call call,
                    const __grid_constant__ channel_places places) {
    using Memory = outputs_memory<F, DELTA>;
    SR_SHARED(Memory, shared);
    if (threadIdx.x == 0) {
        const int chunks = chunk_count(call.T), index = (int)blockIdx.x;
        shared->at = {index / chunks, (int)blockIdx.y, index % chunks};
        shared->what.span.past = index % chunks * SR_CHUNK;
    }
    do {
        __syncthreads(); /* no warp reads the span before */
        if (threadIdx.x == 0) {
            const int b = shared->at.b;
            const int32_t *const first = call.first + (int64_t)b * call.T;
            const sr_chunk_span span = chunk_spans(call, b).after(shared->what.span.past);
            shared->what.span = span;
            shared->what.state = span.continues;
            shared->what.later =
                span.past < call.T ? first[span.past] < span.past : call.d_final != nullptr;
        }
        __syncthreads(); /* the span is known */
        span_outputs(shared, call, places);
    } while (shared->what.span.past < min((shared->at.chunk + 1) * SR_CHUNK, call.T));
}

template <int F, bool DELTA>
static srnn_status start(const sr_chunk_call &call, const channel_places &places,
                         cudaStream_t stream) {
    SR_CUDA(sr_launch(channel_outputs<F, DELTA>,
                      dim3((unsigned)(call.B * chunk_count(call.T)), (unsigned)call.Hkv),
                      dim3(CHANNEL_THREADS), sizeof(outputs_memory<F, DELTA>), stream, call,
                      places));
    return SRNN_OK;
}

template <int F>
static srnn_status start_any(const sr_chunk_call &call, const channel_places &places,
                             cudaStream_t stream) {
    return call.delta ? start<F, true>(call, places, stream)
                      : start<F, false>(call, places, stream);
}

srnn_status sr_channel_outputs(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream) {
    return SR_CHANNEL_START(start_any, call.F, call, places, stream);
}

template <int F> static size_t bytes() {
    return sizeof(outputs_memory<F, true>);
}

size_t sr_channel_bytes(int F) {
    return SR_CHANNEL_START(bytes, F);
}
