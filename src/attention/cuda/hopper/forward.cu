/* forward.cu: attention forward on Hopper: persistent kernel, TMA, warpgroup GEMMs, online softmax.
 *
 * A consumer warpgroup owns 64 queries and walks the tiles of 128 keys that they see, from the
 * diagonal backwards. For each tile:
 *
 *     GEMM                R = Q K'                     after the previous tile's GEMMs
 *     for 32 keys each    weights from R, then         the weights of the next 32 keys are computed
 *     GEMM                O += weights V               while this one runs
 *
 * The consumer warpgroups are at different points of this loop: some run GEMMs while others compute
 * exponentials.
 *
 * Online softmax with a lazy reference: exponents are taken relative to a reference near the row's
 * running maximum. It starts as the maximum of the first tile; the accumulators are rescaled to a
 * higher reference only when a row sum passes 2^24, which is rare and happens where no GEMM is in
 * flight. Rows that end in an l2 norm need no row sum; their reference is never moved. A tile fails
 * if a sum passes 2^100 within 128 keys, or if a row's length is out of the trusted range. A block
 * records which of its tiles failed and recomputes them with a true running maximum after it has
 * drawn its last tile. */
#include "attention/cuda/hopper/tiles.h"

/* How a row's exponents are kept in range: no reference, a lazy one, or the running maximum. */
enum reference_kind { REFERENCE_NONE, REFERENCE_LAZY, REFERENCE_RUNNING };

template <weight_kind kind_, reference_kind reference_, bool sums_, bool clamped_,
          bool decays_ = false>
struct forward_rule {
    static constexpr weight_kind kind = kind_;
    static constexpr reference_kind reference = reference_;
    static constexpr bool sums = sums_; /* of rows */
    static constexpr bool clamped = clamped_;
    static constexpr bool decays = decays_;
    static constexpr bool may_fail = reference == REFERENCE_LAZY;
    /* Rows end in an l2 norm, which needs no row sum: whether the reference was good follows from
     * the row's length alone. */
    static constexpr bool by_length = may_fail && !sums;
};

/* The rule by which failed tiles are recomputed: online softmax with a running maximum. */
template <class rule>
using running_rule = forward_rule<rule::kind, REFERENCE_RUNNING, true, rule::clamped, rule::decays>;

template <int D> struct forward_shape {
    static constexpr int KEYS = 128, GROUPS = D == 64 ? 3 : 2, ROWS = HOPPER_ROWS * GROUPS;
    static constexpr int STAGES = D == 64 ? 4 : 2, THREADS = HOPPER_GROUP * (GROUPS + 1);
    static constexpr int QUERY_BYTES = HOPPER_ROWS * D * 2, KEY_BYTES = KEYS * D * 2;
    /* Registers per consumer thread and per producer thread: their total is the launch
     * allocation. */
    static constexpr int MANY = D == 64 ? 160 : 232, FEW = D == 64 ? 32 : 40;
};

/* tiles drawn by one block at most: it records each of them */
enum { TILES_DRAWN = 256 };

struct drawn_tile {
    int tile, failed;
};

template <int D> struct forward_shared {
    using shape = forward_shape<D>;
    uint8_t q[2][shape::GROUPS][shape::QUERY_BYTES];
    uint8_t k[shape::STAGES][shape::KEY_BYTES];
    uint8_t v[shape::STAGES][shape::KEY_BYTES];
    float decay[shape::STAGES][shape::KEYS]; /* filled and released with the values */
    uint64_t q_full[2][shape::GROUPS], q_empty[2][shape::GROUPS];
    uint64_t k_full[shape::STAGES], k_empty[shape::STAGES];
    uint64_t v_full[shape::STAGES], v_empty[shape::STAGES];
    uint64_t ended; /* every consumer warp has finished all drawn tiles */
    row_work work[2];
    drawn_tile drawn[TILES_DRAWN];
    int failed; /* whether any of them failed */
};

/* How many tiles a warp has seen, and its stage of the ring. */
template <int D> struct forward_place {
    int n;
    ring_place<forward_shape<D>::STAGES> at;
};

/* With a decay a second producer warp fills part of each value stage and reads the work item
 * too. */
template <int D> SR_DEVICE void forward_barriers(forward_shared<D> *shared, bool decays) {
    using shape = forward_shape<D>;
    for (int i = 0; i < shape::STAGES; i++) {
        mbarrier_init(&shared->k_full[i], 1);
        mbarrier_init(&shared->v_full[i], decays ? 1 + SR_WARP : 1); /* each of its lanes */
        mbarrier_init(&shared->k_empty[i], 4 * shape::GROUPS);       /* one arrival a warp */
        mbarrier_init(&shared->v_empty[i], 4 * shape::GROUPS);
    }
    for (int slot = 0; slot < 2; slot++)
        for (int group = 0; group < shape::GROUPS; group++) {
            mbarrier_init(&shared->q_full[slot][group], 1);
            mbarrier_init(&shared->q_empty[slot][group], decays && group == 0 ? 5 : 4);
        }
    mbarrier_init(&shared->ended, 4 * shape::GROUPS);
    mbarrier_init_fence();
    shared->failed = 0;
}

/* ---- tiles that failed ---- */

template <int D> SR_DEVICE void note_failure(forward_shared<D> *shared, int n) {
    atomicExch(&shared->drawn[n].failed, 1);
    atomicExch(&shared->failed, 1);
}

/* Whether any tile is recomputed; valid once all consumers have finished. */
template <int D> SR_DEVICE bool some_failed(forward_shared<D> *shared) {
    mbarrier_wait(&shared->ended, 0);
    return shared->failed != 0;
}

/* ---- the producer: one thread ---- */

/* Loads queries, keys and values of a tile by TMA; an empty `work` only signals the end. */
template <int D>
SR_DEVICE void produce_tile(const forward_task &task, forward_shared<D> *shared,
                            forward_place<D> &place, const row_work &work) {
    using shape = forward_shape<D>;
    const int slot = place.n & 1, parity = place.n >> 1 & 1;
    auto &at = place.at;
    place.n++;
    for (int group = 0; group < shape::GROUPS; group++)
        mbarrier_wait(&shared->q_empty[slot][group], parity ^ 1);
    shared->work[slot] = work; /* published by q_full */
    for (int group = 0; group < shape::GROUPS; group++) {
        const int row = work.row + HOPPER_ROWS * group;
        uint64_t *const full = &shared->q_full[slot][group];
        if (work.past == 0 || row < 0) {
            mbarrier_arrive(full);
            continue;
        }
        mbarrier_arrive_expect(full, shape::QUERY_BYTES);
        tile_load<D, HOPPER_ROWS>(shared->q[slot][group], &task.q, full, row, work.h, work.b);
    }
    const int head = work.h / task.call.group;
    SR_ROLLED
    for (int j = work.past - 1; j >= work.from; j--, at.advance()) {
        mbarrier_wait(&shared->k_empty[at.stage], at.parity ^ 1);
        mbarrier_arrive_expect(&shared->k_full[at.stage], shape::KEY_BYTES);
        tile_load<D, shape::KEYS>(shared->k[at.stage], &task.k, &shared->k_full[at.stage],
                                  j * shape::KEYS, head, work.b);
        mbarrier_wait(&shared->v_empty[at.stage], at.parity ^ 1);
        mbarrier_arrive_expect(&shared->v_full[at.stage], shape::KEY_BYTES);
        tile_load<D, shape::KEYS>(shared->v[at.stage], &task.v, &shared->v_full[at.stage],
                                  j * shape::KEYS, head, work.b);
    }
}

/* The last block to stop drawing resets the tile scheduler's counters to zero for the next call. */
SR_DEVICE void end_drawing(int *counters) {
    __threadfence();
    if (atomicAdd(&counters[FORWARD_ENDED], 1) == (int)gridDim.x - 1)
        counters[FORWARD_DRAWN] = counters[FORWARD_ENDED] = 0;
}

/* Loads those of the `drawn` tiles that failed a second time. */
template <int D>
SR_DEVICE void produce_failed(const forward_task &task, forward_shared<D> *shared,
                              forward_place<D> &place, int drawn) {
    using shape = forward_shape<D>;
    for (int n = 0; n < drawn; n++)
        if (shared->drawn[n].failed)
            produce_tile(task, shared, place,
                         row_work_at<shape::ROWS, shape::KEYS>(task.call, task.order,
                                                               shared->drawn[n].tile));
    produce_tile(task, shared, place, {});
}

template <int D, class rule>
SR_DEVICE void forward_produce(const forward_task &task, forward_shared<D> *shared) {
    using shape = forward_shape<D>;
    forward_place<D> place = {};
    const int tiles = tile_count(task.order);
    for (int i = (int)blockIdx.x; i < tiles;) {
        const row_work work = row_work_at<shape::ROWS, shape::KEYS>(task.call, task.order, i);
        shared->drawn[place.n] = {i, 0};
        i = tiles;
        if (place.n + 1 < TILES_DRAWN) /* prefetched, so that it is there when needed */
            i = (int)gridDim.x + atomicAdd(&task.counters[FORWARD_DRAWN], 1);
        produce_tile(task, shared, place, work);
    }
    const int drawn = place.n;
    end_drawing(task.counters);
    produce_tile(task, shared, place, {});
    if constexpr (rule::may_fail)
        if (some_failed(shared))
            produce_failed(task, shared, place, drawn);
}

/* Writes the decay's share of the keys' exponents to each stage; one warp. */
template <int D>
SR_DEVICE void produce_decay(const forward_task &task, forward_shared<D> *shared,
                             forward_place<D> &place) {
    using shape = forward_shape<D>;
    auto &at = place.at;
    for (;;) {
        const int slot = place.n & 1, parity = place.n >> 1 & 1;
        place.n++;
        mbarrier_wait(&shared->q_full[slot][0], parity);
        const row_work work = shared->work[slot];
        warp_arrive(&shared->q_empty[slot][0]);
        if (work.past == 0)
            return;
        const decay_since since(task.call, work.b, work.h / task.call.group, work.row);
        SR_ROLLED
        for (int j = work.past - 1; j >= work.from; j--, at.advance()) {
            decay_stage<shape::KEYS> keys;
            keys.ask(since, j * shape::KEYS);
            mbarrier_wait(&shared->v_empty[at.stage], at.parity ^ 1);
            keys.store(shared->decay[at.stage]);
            mbarrier_arrive(&shared->v_full[at.stage]);
        }
    }
}

template <int D, class rule>
SR_DEVICE void forward_produce_decay(const forward_task &task, forward_shared<D> *shared) {
    forward_place<D> place = {};
    produce_decay(task, shared, place);
    if (rule::may_fail && some_failed(shared))
        produce_decay(task, shared, place);
}

/* ---- online softmax: references and rescaling ---- */

/* A consumer's accumulators: two rows in each thread. */
template <int D> struct forward_sums {
    float numerator[D / 2];
    float reference[2]; /* weights are divided by 2^reference */
    float sum[2];       /* this thread's share of the row sum */
};

SR_DEVICE void row_maximum(float (&most)[2], const float (&s)[64]) {
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        most[half] = s[2 * half];
        SR_UNROLL
        for (int n = 2 * half; n < 64; n += 4)
            most[half] = fmaxf(fmaxf(most[half], s[n]), s[n + 1]);
        most[half] = quad_maximum(most[half]);
    }
}

/* Rescales the online softmax: moves the reference, and multiplies row sum and numerator by 2^(old
 * - new). */
template <int D> SR_DEVICE void move_reference(forward_sums<D> &sums, const float (&reference)[2]) {
    float factor[2];
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        factor[half] = exp2_fast(sums.reference[half] - reference[half]);
        sums.reference[half] = reference[half];
        sums.sum[half] *= factor[half];
    }
    SR_UNROLL
    for (int n = 0; n < D / 2; n++)
        sums.numerator[n] *= factor[fragment_half(n)];
}

/* Lazy rescaling, in the block's tile n: once a row sum is large, the reference is raised by its
 * log2. */
template <int D>
SR_DEVICE void raise_reference(forward_sums<D> &sums, forward_shared<D> *shared, int n) {
    if (warp_ballot(fmaxf(sums.sum[0], sums.sum[1]) > 0x1p24f) == 0)
        return;
    float reference[2];
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        const float bits = log2_fast(fmaxf(1, quad_maximum(sums.sum[half])));
        if (!(bits < 100))
            note_failure(shared, n);
        reference[half] = sums.reference[half] + bits;
    }
    move_reference(sums, reference);
}

/* The first reference: the maximum of the first tile. */
template <int D>
SR_DEVICE void begin_reference(forward_sums<D> &sums, const float (&s)[64],
                               const score_numbers &numbers) {
    float most[2];
    row_maximum(most, s);
    sums.reference[0] = fminf(most[0], numbers.limit) * numbers.factor;
    sums.reference[1] = fminf(most[1], numbers.limit) * numbers.factor;
}

/* The running maximum over all tiles so far; rescales at every tile. */
template <int D>
SR_DEVICE void follow_maximum(forward_sums<D> &sums, const float (&s)[64],
                              const score_numbers &numbers) {
    float most[2];
    row_maximum(most, s);
    const float reference[2] = {fmaxf(fminf(most[0], numbers.limit) * numbers.factor,
                                      sums.reference[0]),
                                fmaxf(fminf(most[1], numbers.limit) * numbers.factor,
                                      sums.reference[1])};
    move_reference(sums, reference);
}

/* ---- weights ---- */

template <class rule>
SR_DEVICE float weigh(float r, float reference, const score_numbers &numbers) {
    if (rule::clamped)
        r = fminf(r, numbers.limit);
    if (rule::kind == WEIGHT_LINEAR)
        return r * numbers.factor;
    if (rule::kind == WEIGHT_SQUARE) /* r is the weight already */
        return r;
    if (rule::decays) /* r is the exponent already */
        return exp2_fast(r - reference);
    return exp2_fast(rule::reference == REFERENCE_NONE ? r * numbers.factor
                                                       : fmaf(r, numbers.factor, -reference));
}

/* Turns logits into exponents, less the decay of their keys; `decay` starts at this thread's first
 * column. */
SR_DEVICE void decay_logits(float (&s)[64], const float *decay, const score_numbers &numbers) {
    if (numbers.limit < INFINITY) {
        SR_UNROLL
        for (int n = 0; n < 64; n++)
            s[n] = fminf(s[n], numbers.limit);
    }
    SR_UNROLL
    for (int n = 0; n < 64; n += 4) {
        const float2 of = *reinterpret_cast<const float2 *>(decay + 2 * n);
        s[n] = fmaf(s[n], numbers.factor, -of.x);
        s[n + 1] = fmaf(s[n + 1], numbers.factor, -of.y);
        s[n + 2] = fmaf(s[n + 2], numbers.factor, -of.x);
        s[n + 3] = fmaf(s[n + 3], numbers.factor, -of.y);
    }
}

/* Turns logits into weights, their squares with the decay; the others as above. */
SR_DEVICE void weigh_squares(float (&s)[64], const float *decay, const float (&reference)[2],
                             const score_numbers &numbers) {
    SR_UNROLL
    for (int n = 0; n < 64; n += 2) {
        const float2 of = *reinterpret_cast<const float2 *>(decay + n / 4 * 8);
        const float from = -reference[fragment_half(n)];
        s[n] *= s[n] * numbers.factor * exp2_fast(fminf(from - of.x, SQUARE_EXPONENT_MOST));
        s[n + 1] *= s[n + 1] * numbers.factor * exp2_fast(fminf(from - of.y, SQUARE_EXPONENT_MOST));
    }
}

/* Evaluates the polynomial, or the sigmoid, of 16 logits; hidden ones get weight 0. A loop
 * between GEMMs would serialise them: this runs before all GEMMs of a tile. */
SR_DEVICE void weigh_polynomial(float *s, float limit, const sr_score_rule &score) {
    float w[16];
    if (score.sigmoid) { /* of a hidden one: 0 */
        SR_UNROLL
        for (int n = 0; n < 16; n++)
            s[n] = sigmoid_weight(score, fminf(s[n], limit));
        return;
    }
    SR_UNROLL
    for (int n = 0; n < 16; n++) {
        s[n] = fminf(s[n], limit);
        w[n] = score.coefficient[score.degree];
    }
    for (int term = score.degree - 1; term >= 0; term--) {
        const float next = score.coefficient[term];
        SR_UNROLL
        for (int n = 0; n < 16; n++)
            w[n] = fmaf(w[n], s[n], next);
    }
    SR_UNROLL
    for (int n = 0; n < 16; n++)
        s[n] = s[n] == -INFINITY ? 0 : w[n];
}

/* The weights of a tile, 32 keys at a time, and their GEMM with its values: O += W V. */
template <int D, class rule>
SR_DEVICE void weigh_and_multiply(forward_sums<D> &sums, float (&s)[64], uint32_t (&w)[32],
                                  const uint8_t *values, const score_numbers &numbers,
                                  const sr_score_rule &score) {
    constexpr int KEYS = forward_shape<D>::KEYS;
    if (rule::kind == WEIGHT_POLYNOMIAL) {
        SR_UNROLL
        for (int part = 0; part < 4; part++)
            weigh_polynomial(s + 16 * part, numbers.limit, score);
    }
    SR_UNROLL
    for (int part = 0; part < 4; part++) {
        uint32_t *const some = w + 8 * part;
        SR_UNROLL
        for (int n = 0; n < 16; n += 2) {
            const int half = fragment_half(n);
            float x = s[16 * part + n], y = s[16 * part + n + 1];
            if (rule::kind != WEIGHT_POLYNOMIAL) {
                x = weigh<rule>(x, sums.reference[half], numbers);
                y = weigh<rule>(y, sums.reference[half], numbers);
            }
            if (rule::sums)
                sums.sum[half] += x + y;
            some[n / 2] = pack_bf16(x, y);
        }
        wgmma_fence();
        multiply_columns<D, KEYS>(sums.numerator, some, values, 2 * part);
        multiply_columns<D, KEYS>(sums.numerator, some + 4, values, 2 * part + 1);
    }
    wgmma_commit();
}

/* ---- a consumer ---- */

/* x: the numerator in, its l2-normalised row out. Returns whether it can be trusted: no weight was
 * too large, and the row is well above the floor of its length, for which a row sum would be
 * needed. */
template <int D>
SR_DEVICE bool row_by_length(float (&x)[D / 4], const hopper_view &call, const sr_row_facts &row) {
    using Row = sr_quad_row<D>;
    const sr_row_scalars s = row_scalars(call.choices, row);
    const float square = row_dot<Row>(x, x), before = s.gate / s.denominator;
    const float unit = sr_norm_length_factor(call.choices.norm, D);
    row_multiply<Row>(x, s.post * unit / sqrtf(square));
    return square < 0x1p120f && before * before * square > 0x1p-30f;
}

/* The same for a row without gates. */
template <int D> SR_DEVICE bool plain_by_length(float (&x)[D / 4]) {
    using Row = sr_quad_row<D>;
    const float square = row_dot<Row>(x, x);
    row_multiply<Row>(x, 1 / sqrtf(square));
    return square < 0x1p120f && square > 0x1p-30f;
}

/* Saves a finished row for the backward pass; x: the numerator. */
template <int D>
SR_DEVICE void save_row(const float (&x)[D / 4], const hopper_view &call, int64_t index, float sum,
                        float maximum, bool write) {
    fragment_store<D>(call.numerator + index * D, x, write);
    if (write && threadIdx.x % 4 == 0) {
        call.row_sum[index] = sum;
        call.maximum[index] = maximum * SR_LN_2;
    }
}

/* Epilogue: writes the outputs of finished rows and what the backward pass needs; false where a
 * lazy reference failed. Plain rows, the common case, take no branches: each would cost more than
 * what it saves. */
template <int D, class rule, bool plain>
SR_DEVICE bool forward_finish(const hopper_view &call, const forward_sums<D> &sums,
                              const row_work &work, int row) {
    using Row = sr_quad_row<D>;
    bool good = true;
    SR_UNROLL
    for (int half = 0; half < 2; half++) {
        const int t = row + fragment_row() + 8 * half, there = min(t, call.T - 1);
        const bool write = t < call.T;
        const float sum = rule::by_length ? 1 : quad_sum(sums.sum[half]);
        float maximum = sums.reference[half];
        if (rule::decays)
            maximum =
                rule::reference == REFERENCE_NONE
                    ? 0
                    : maximum + decay_since(call, work.b, work.h / call.group, work.row).at(t);
        float x[D / 4];
        fragment_take<D>(x, sums.numerator, half);
        if (call.numerator)
            save_row<D>(x, call, call.row_index(call.H, work.b, work.h, there),
                        rule::by_length || rule::sums ? sum : 0, maximum, write);
        bool trusted = sum < 0x1p100f;
        if constexpr (plain && rule::by_length)
            trusted = plain_by_length<D>(x);
        else if constexpr (plain)
            row_multiply<Row>(x, 1 / sum_denominator(call.choices, sum));
        else {
            const sr_row_facts facts =
                row_facts(call, work.b, work.h, there, sum, maximum * SR_LN_2);
            if (rule::by_length)
                trusted = row_by_length<D>(x, call, facts);
            else
                row_output<Row>(x, call, facts);
        }
        good = good && (trusted || !write);
        fragment_store<D>(call.o.at(work.b, work.h, there), x, write);
    }
    return good || !rule::may_fail;
}

/* What is known about a tile of keys at compile time. Most tiles are visible to all rows of a
 * consumer: these have their own, shortest loop. */
enum tile_kind {
    TILE_DIAGONAL, /* the first; it may hold other documents too */
    TILE_WHOLE,    /* visible to all rows */
    TILE_OLDER,    /* before the diagonal; it may hold other documents */
    TILE_ANY
};
template <tile_kind kind> using known_kind = std::integral_constant<tile_kind, kind>;

/* The consumer's rows. */
struct forward_rows {
    int slot, group; /* of its queries */
    int row;         /* the first */
    int diagonal;    /* the tile of keys of which they see a part */
    int n;           /* number of the tile within the block */
};

/* One tile of keys, from j * KEYS on. The GEMM with the previous tile's values is in flight on
 * entry, except for the first tile; this tile's is in flight on return. Parameters, not a struct:
 * they stay in registers. */
template <int D, class rule, tile_kind kind>
SR_DEVICE void forward_tile(const hopper_view &call, forward_shared<D> *shared,
                            forward_place<D> &place, forward_sums<D> &sums, float (&s)[64],
                            uint32_t (&w)[32], const score_numbers &numbers, const row_work &work,
                            const forward_rows &rows, int j) {
    using shape = forward_shape<D>;
    const bool diagonal = kind == TILE_DIAGONAL || (kind == TILE_ANY && j == rows.diagonal);
    auto &at = place.at;
    mbarrier_wait(&shared->k_full[at.stage], at.parity);
    wgmma_fence();
    multiply_rows<D, shape::KEYS>(s, shared->q[rows.slot][rows.group], shared->k[at.stage]);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(s);
    wgmma_settle(sums.numerator);
    warp_arrive(&shared->k_empty[at.stage]);
    if (!diagonal)
        warp_arrive(&shared->v_empty[at.before()]);
    if (rule::clamped && call.score.capped)
        cap_logits(s, call.score);
    if (rule::decays) {
        mbarrier_wait(&shared->v_full[at.stage], at.parity);
        const float *const decay = shared->decay[at.stage] + fragment_column();
        if (rule::kind == WEIGHT_SQUARE)
            weigh_squares(s, decay, sums.reference, numbers);
        else
            decay_logits(s, decay, numbers);
    }
    const float hidden = hidden_logit<rule::kind>();
    if (diagonal) {
        const int past = rows.row + fragment_row() - j * shape::KEYS - fragment_column();
        static_assert(shape::KEYS == 2 * HOPPER_ROWS, "rows are in one half of the tile");
        mask_past<32, 64>(s, {past, past + 8}, {hidden, hidden});
        if (rows.row % shape::KEYS == 0) /* else they see all of the first half */
            mask_past<0, 32>(s, {past, past + 8}, {hidden, hidden});
    }
    if (kind != TILE_WHOLE && j * shape::KEYS < work.latest) {
        const int from = j * shape::KEYS + fragment_column(), t = rows.row + fragment_row();
        mask_before(s,
                    {row_work_first(call, work, t) - from,
                     row_work_first(call, work, t + 8) - from},
                    {hidden, hidden});
    }
    const score_numbers of_exponent = rule::decays ? score_numbers{1, INFINITY} : numbers;
    if (rule::reference == REFERENCE_RUNNING)
        follow_maximum(sums, s, of_exponent);
    else if (rule::reference == REFERENCE_LAZY && diagonal)
        begin_reference(sums, s, of_exponent);
    else if (rule::reference == REFERENCE_LAZY && rule::sums)
        raise_reference(sums, shared, rows.n);
    mbarrier_wait(&shared->v_full[at.stage], at.parity);
    weigh_and_multiply<D, rule>(sums, s, w, shared->v[at.stage], numbers, call.score);
    at.advance();
}

template <int D, class rule>
SR_DEVICE void forward_consume(const hopper_view &call, forward_shared<D> *shared,
                               forward_place<D> &place, int group, bool plain) {
    using shape = forward_shape<D>;
    const score_numbers numbers = score_numbers_of<rule::kind>(call.score);
    auto &at = place.at;
    forward_sums<D> sums;
    float s[64];
    uint32_t w[32];
    for (;; place.n++) {
        const int slot = place.n & 1;
        mbarrier_wait(&shared->q_full[slot][group], place.n >> 1 & 1);
        const row_work work = of_warp(shared->work[slot]);
        if (work.past == 0) {
            warp_arrive(&shared->q_empty[slot][group]);
            place.n++;
            return;
        }
        const int row = work.row + HOPPER_ROWS * group;
        const int mine = row < 0 ? work.from : row_work_past<shape::KEYS>(call, row);
        SR_ROLLED
        for (int j = work.past - 1; j >= mine; j--, at.advance()) { /* only later rows see them */
            mbarrier_wait(&shared->k_full[at.stage], at.parity);
            mbarrier_wait(&shared->v_full[at.stage], at.parity);
            warp_arrive(&shared->k_empty[at.stage]);
            warp_arrive(&shared->v_empty[at.stage]);
        }
        if (row < 0) {
            warp_arrive(&shared->q_empty[slot][group]);
            continue;
        }
        sums.sum[0] = sums.sum[1] = 0;
        sums.reference[0] = sums.reference[1] = rule::reference == REFERENCE_NONE ? 0 : -INFINITY;
        if (rule::decays && rule::reference == REFERENCE_NONE) {
            const decay_since since(call, work.b, work.h / call.group, work.row);
            sums.reference[0] = -since.at(row + fragment_row());
            sums.reference[1] = -since.at(row + fragment_row() + 8);
        }
        SR_UNROLL
        for (int i = 0; i < D / 2; i++)
            sums.numerator[i] = 0;
        const forward_rows rows = {slot, group, row, mine - 1, place.n};
        const auto tile = [&](auto kind, int j) {
            forward_tile<D, rule, decltype(kind)::value>(call, shared, place, sums, s, w, numbers,
                                                         work, rows, j);
        };
        int j = mine - 1;
        if constexpr (rule::decays && D == 64) { /* registers are short */
            for (; j >= work.from; j--)
                tile(known_kind<TILE_ANY>{}, j);
        } else {
            tile(known_kind<TILE_DIAGONAL>{}, j--);
            if (rule::reference != REFERENCE_RUNNING) /* which is rare */
                for (; j >= work.from && j * shape::KEYS >= work.latest; j--)
                    tile(known_kind<TILE_WHOLE>{}, j);
            for (; j >= work.from; j--)
                tile(known_kind<TILE_OLDER>{}, j);
        }
        warp_arrive(&shared->q_empty[slot][group]);
        wgmma_wait<0>();
        wgmma_settle(sums.numerator);
        warp_arrive(&shared->v_empty[at.before()]);
        const bool good = rule::may_fail && plain
                              ? forward_finish<D, rule, true>(call, sums, work, row)
                              : forward_finish<D, rule, false>(call, sums, work, row);
        if (!good)
            note_failure(shared, place.n);
    }
}

/* All drawn tiles, then those that failed. */
template <int D, class rule>
SR_DEVICE void forward_consume_all(const forward_task &task, forward_shared<D> *shared, int group) {
    forward_place<D> place = {};
    forward_consume<D, rule>(task.call, shared, place, group,
                             task.plain == (rule::by_length ? PLAIN_LENGTH : PLAIN_SUM));
    if constexpr (rule::may_fail) {
        warp_arrive(&shared->ended);
        if (some_failed(shared))
            forward_consume<D, running_rule<rule>>(task.call, shared, place, group, false);
    }
}

/* Persistent kernel: one block per multiprocessor, with a producer warpgroup and GROUPS consumer
 * warpgroups. A block owns tiles of ROWS queries of one head, drawn from the tile scheduler's
 * counter. The producer thread copies by TMA, global -> shared: the queries into one of two slots,
 * then K and V tiles into a ring of STAGES; mbarriers `full` (bytes have landed) and `empty` (all
 * consumer warps have read) order both sides. With a decay, warp 1 adds the keys' exponents to each
 * V stage. Each consumer owns 64 queries: wgmma Q K' from shared memory into registers, mask,
 * online softmax, wgmma W V from registers into its accumulators, then the epilogue stores its
 * output rows. No two blocks add to the same sum. Failed tiles are repeated at the end, after the
 * `ended` mbarrier. */
template <int D, class rule>
__global__ void __launch_bounds__(forward_shape<D>::THREADS, 1)
    forward_kernel(const __grid_constant__ forward_task task) {
    using shape = forward_shape<D>;
    SR_SHARED(forward_shared<D>, shared);
    if (threadIdx.x == 0)
        forward_barriers(shared, rule::decays);
    wait_for_previous(); /* which may have drawn from the same counters */
    let_next_start();
    __syncthreads();
    if (threadIdx.x < HOPPER_GROUP) {
        registers_decrease<shape::FEW>();
        if (threadIdx.x == 0)
            forward_produce<D, rule>(task, shared);
        if (rule::decays && threadIdx.x / SR_WARP == 1)
            forward_produce_decay<D, rule>(task, shared);
    } else {
        registers_increase<shape::MANY>();
        forward_consume_all<D, rule>(task, shared, consumer());
    }
}

/* ---- launching: programmatic dependent launch hides the start behind the previous kernel ---- */

typedef void forward_function(const forward_task);

template <int D> static forward_function *forward_choose_decaying(const hopper_view &call) {
    if (call.score.maximum)
        return forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_LAZY, true, false, true>>;
    return call.choices.sums_rows
               ? forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_NONE, true, false, true>>
               : forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_NONE, false, false, true>>;
}

/* The rules that kernels are compiled for, fastest first. */
template <int D> static forward_function *forward_choose(const hopper_view &call) {
    const sr_score_rule &score = call.score;
    switch (weight_kind_of(score)) {
    case WEIGHT_LINEAR:
        return forward_kernel<D, forward_rule<WEIGHT_LINEAR, REFERENCE_NONE, true, false>>;
    case WEIGHT_SQUARE: /* is a polynomial until a decay makes it one */
    case WEIGHT_POLYNOMIAL:
        if constexpr (D == 64)
            if (call.choices.decays)
                return forward_kernel<
                    D, forward_rule<WEIGHT_SQUARE, REFERENCE_NONE, true, false, true>>;
        return forward_kernel<D, forward_rule<WEIGHT_POLYNOMIAL, REFERENCE_NONE, true, true>>;
    case WEIGHT_EXP:
        break;
    }
    if (call.choices.decays)
        return forward_choose_decaying<D>(call);
    if (!score.maximum)
        return call.choices.sums_rows
                   ? forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_NONE, true, true>>
                   : forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_NONE, false, true>>;
    if (call.choices.floor_follows_rows && call.choices.normaliser != SRNN_NORMALISER_ROW_SUM_MIN1)
        return is_bounded(score)
                   ? forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_LAZY, false, true>>
                   : forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_LAZY, false, false>>;
    if (is_bounded(score))
        return forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_LAZY, true, true>>;
    return forward_kernel<D, forward_rule<WEIGHT_EXP, REFERENCE_LAZY, true, false>>;
}

static plain_end plain_end_of(const sr_choices &c) {
    if (c.output_gate != SRNN_GATE_NONE || c.post_gate || c.sink != SRNN_SINK_NONE)
        return PLAIN_NOT;
    if (c.normaliser == SRNN_NORMALISER_ROW_SUM && c.norm == SRNN_NORM_NONE)
        return PLAIN_SUM;
    return c.normaliser == SRNN_NORMALISER_NONE && c.norm == SRNN_NORM_L2 && c.epsilon == 0
               ? PLAIN_LENGTH
               : PLAIN_NOT;
}

/* One block per multiprocessor, or more where a block could not record all its tiles. */
static int forward_blocks(int tiles, int multiprocessors) {
    const int least = (tiles + TILES_DRAWN - 1) / TILES_DRAWN;
    const int most = tiles < multiprocessors ? tiles : multiprocessors;
    return least > most ? least : most;
}

template <int D>
static cudaError_t forward(const hopper_view &call, int *counters, int multiprocessors,
                           cudaStream_t stream) {
    using shape = forward_shape<D>;
    forward_task task = {};
    task.call = call;
    task.order = tile_order(call.B * call.H, (call.T + shape::ROWS - 1) / shape::ROWS,
                            (int64_t)call.T * D * 4, call.group);
    task.counters = counters;
    task.plain = plain_end_of(call.choices);
    cudaError_t error = tile_map_encode(&task.q, call.q, call, call.H, HOPPER_ROWS);
    if (error == cudaSuccess)
        error = tile_map_encode(&task.k, call.k, call, call.Hkv, shape::KEYS);
    if (error == cudaSuccess)
        error = tile_map_encode(&task.v, call.v, call, call.Hkv, shape::KEYS);
    if (error != cudaSuccess)
        return error;
    const int blocks = forward_blocks(tile_count(task.order), multiprocessors);
    return sr_launch_early(true, forward_choose<D>(call), dim3((unsigned)blocks),
                           dim3(shape::THREADS), sizeof(forward_shared<D>), stream, task);
}

cudaError_t hopper_forward(const hopper_view &call, int *counters, int multiprocessors,
                           cudaStream_t stream) {
    return call.D == 64 ? forward<64>(call, counters, multiprocessors, stream)
                        : forward<128>(call, counters, multiprocessors, stream);
}
