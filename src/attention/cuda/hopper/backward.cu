/* backward.cu: attention backward on Hopper, between prologue and epilogue, in two kernels.
 *
 * Every sum belongs to one consumer and has one order, so that results are bitwise reproducible.
 * With dw = <dN, v> + dR, the gradient of a weight, and dr = slope dw, that of <q, k>:
 *
 *     queries stay, keys pass by:    R = Q K',  dW = dN V',    dQ += dR K
 *     keys stay, queries pass by:    R' = K Q', dW' = V dN',   dV += W' dN,  dK += dR' Q
 *
 * The last GEMMs of a tile start 32 columns at a time, each while the weights of the next 32 are
 * computed. In the queries' kernel, as registers allow, either the first GEMMs of the next tile
 * start before these end (D = 64), or the rows that stay are held in registers (D = 128). */
#include "attention/cuda/hopper/backward.h"

#include <limits.h>

/* ---- dQ: queries stay ---- */

template <int D> struct queries_shape {
    static constexpr int KEYS = 64, GROUPS = D == 64 ? 3 : 2, ROWS = HOPPER_ROWS * GROUPS;
    static constexpr int STAGES = D == 64 ? 8 : 4, THREADS = HOPPER_GROUP * (GROUPS + 1);
    static constexpr int QUERY_BYTES = HOPPER_ROWS * D * 2, KEY_BYTES = KEYS * D * 2;
    static constexpr int MANY = D == 64 ? 160 : 232, FEW = D == 64 ? 32 : 40;
    /* Q and dN rows are held in registers, which leaves none to overlap GEMMs across tiles, nor for
     * a decay. */
    template <class rule> static constexpr bool KEPT = D == 128 && !rule::decays;
};

template <int D> struct queries_shared {
    using shape = queries_shape<D>;
    /* until a consumer has loaded them into registers */
    uint8_t q[shape::GROUPS][shape::QUERY_BYTES];
    uint8_t d[shape::GROUPS][shape::QUERY_BYTES];
    uint8_t k[shape::STAGES][shape::KEY_BYTES];
    uint8_t v[shape::STAGES][shape::KEY_BYTES];
    float decay[shape::STAGES][shape::KEYS];
    uint64_t q_full[shape::GROUPS], q_empty[shape::GROUPS];
    uint64_t full[shape::STAGES], empty[shape::STAGES];
    row_work work[2];
};

/* With a decay a second producer warp fills part of each stage and reads the work item too. */
template <int D> SR_DEVICE void queries_barriers(queries_shared<D> *shared, bool decays) {
    using shape = queries_shape<D>;
    for (int i = 0; i < shape::STAGES; i++) {
        mbarrier_init(&shared->full[i], decays ? 1 + SR_WARP : 1); /* each of its lanes */
        mbarrier_init(&shared->empty[i], 4 * shape::GROUPS);       /* one arrival a warp */
    }
    for (int group = 0; group < shape::GROUPS; group++) {
        mbarrier_init(&shared->q_full[group], 1);
        mbarrier_init(&shared->q_empty[group], decays && group == 0 ? 5 : 4);
    }
    mbarrier_init_fence();
}

/* Producer, one thread: draws tiles; loads queries with their gradients, then keys and values. */
template <int D>
SR_DEVICE void queries_produce(const backward_task &task, queries_shared<D> *shared) {
    using shape = queries_shape<D>;
    ring_place<shape::STAGES> at = {};
    for (int n = 0, i = (int)blockIdx.x;; n++) {
        const row_work work = row_work_at<shape::ROWS, shape::KEYS>(task.call, task.order, i);
        if (work.past > 0) /* prefetched, so that it is there when needed */
            i = (int)gridDim.x + atomicAdd(task.drawn, 1);
        for (int group = 0; group < shape::GROUPS; group++)
            mbarrier_wait(&shared->q_empty[group], (n & 1) ^ 1);
        shared->work[n & 1] = work; /* published by q_full */
        for (int group = 0; group < shape::GROUPS; group++) {
            const int row = work.row + HOPPER_ROWS * group;
            uint64_t *const full = &shared->q_full[group];
            if (work.past == 0 || row < 0) {
                mbarrier_arrive(full);
                continue;
            }
            mbarrier_arrive_expect(full, 2 * shape::QUERY_BYTES);
            tile_load<D, HOPPER_ROWS>(shared->q[group], &task.q, full, row, work.h, work.b);
            tile_load<D, HOPPER_ROWS>(shared->d[group], &task.d, full, row, work.h, work.b);
        }
        if (work.past == 0)
            return;
        const int head = work.h / task.call.group;
        SR_ROLLED
        for (int j = work.past - 1; j >= work.from; j--, at.advance()) {
            uint64_t *const full = &shared->full[at.stage];
            mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
            mbarrier_arrive_expect(full, 2 * shape::KEY_BYTES);
            tile_load<D, shape::KEYS>(shared->k[at.stage], &task.k, full, j * shape::KEYS, head,
                                      work.b);
            tile_load<D, shape::KEYS>(shared->v[at.stage], &task.v, full, j * shape::KEYS, head,
                                      work.b);
        }
    }
}

/* Writes the decay's share of the keys' exponents to each stage; another warp. */
template <int D>
SR_DEVICE void queries_produce_decay(const backward_task &task, queries_shared<D> *shared) {
    using shape = queries_shape<D>;
    ring_place<shape::STAGES> at = {};
    for (int n = 0;; n++) {
        mbarrier_wait(&shared->q_full[0], n & 1);
        const row_work work = shared->work[n & 1];
        warp_arrive(&shared->q_empty[0]);
        if (work.past == 0)
            return;
        const decay_since since(task.call, work.b, work.h / task.call.group, work.row);
        SR_ROLLED
        for (int j = work.past - 1; j >= work.from; j--, at.advance()) {
            decay_stage<shape::KEYS> keys;
            keys.ask(since, j * shape::KEYS);
            mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
            keys.store(shared->decay[at.stage]);
            mbarrier_arrive(&shared->full[at.stage]);
        }
    }
}

/* Consumer: dQ of 64 queries; s and d become weights and gradients of logits in registers. */
template <int D, class rule>
SR_DEVICE void queries_consume(const backward_task &task, queries_shared<D> *shared, int group) {
    using shape = queries_shape<D>;
    constexpr bool KEPT = shape::template KEPT<rule>;
    const hopper_view &call = task.call;
    const score_numbers numbers = score_numbers_of<rule::kind>(call.score);
    ring_place<shape::STAGES> at = {};
    float s[shape::KEYS / 2], d[shape::KEYS / 2], dq[D / 2];
    uint32_t q_rows[D / 4], d_rows[D / 4], dr[shape::KEYS / 4];
    for (int n = 0;; n++) {
        mbarrier_wait(&shared->q_full[group], n & 1);
        const row_work work = of_warp(shared->work[n & 1]);
        if (work.past == 0)
            return;
        const int row = work.row + HOPPER_ROWS * group;
        const int mine = row < 0 ? work.from : row_work_past<shape::KEYS>(call, row);
        if (KEPT && row >= 0) {
            tile_fragments<D>(q_rows, shared->q[group]);
            tile_fragments<D>(d_rows, shared->d[group]);
        }
        if (KEPT || row < 0)
            warp_arrive(&shared->q_empty[group]);
        SR_ROLLED
        for (int j = work.past - 1; j >= mine; j--, at.advance()) { /* only later rows see them */
            mbarrier_wait(&shared->full[at.stage], at.parity);
            warp_arrive(&shared->empty[at.stage]);
        }
        if (row < 0)
            continue;
        backward_row rows[2];
        float dot[2] = {};
        SR_UNROLL
        for (int half = 0; half < 2; half++) {
            const int t = min(row + fragment_row() + 8 * half, call.T - 1);
            const int64_t index = call.row_index(call.H, work.b, work.h, t);
            rows[half] = {backward_scale<rule::kind>(call.scratch.row_scale[index]),
                          call.scratch.d_row_sum[index]};
            if (rule::decays)
                rows[half].scale -= decay_since(call, work.b, work.h / call.group, work.row).at(t);
        }
        SR_UNROLL
        for (int i = 0; i < D / 2; i++)
            dq[i] = 0;
        for (int j = mine - 1; j >= work.from; j--) {
            mbarrier_wait(&shared->full[at.stage], at.parity);
            wgmma_fence();
            if (KEPT) {
                multiply_rows<D, shape::KEYS>(s, q_rows, shared->k[at.stage]);
                multiply_rows<D, shape::KEYS>(d, d_rows, shared->v[at.stage]);
            } else {
                multiply_rows<D, shape::KEYS>(s, shared->q[group], shared->k[at.stage]);
                multiply_rows<D, shape::KEYS>(d, shared->d[group], shared->v[at.stage]);
            }
            wgmma_commit();
            wgmma_wait<0>();
            wgmma_settle(s);
            wgmma_settle(d);
            wgmma_settle(dq);
            const bool diagonal = j == mine - 1;
            if (!diagonal)
                warp_arrive(&shared->empty[at.before()]);
            /* the number of the first row's own key, or none of them */
            const int own =
                diagonal ? row + fragment_row() - j * shape::KEYS - fragment_column() : INT_MIN;
            if (rule::clamped && !rule::decays && call.score.capped)
                cap_gradients(s, d, call.score,
                              [&](int i) { return rows[fragment_half(i)].d_row_sum; });
            const float hidden = hidden_logit<rule::kind>();
            if (diagonal) {
                const int past = row + fragment_row() - j * shape::KEYS - fragment_column();
                const int high[2] = {past, past + 8};
                mask_past(s, high, {hidden, hidden});
                if (rule::kind == WEIGHT_LINEAR) /* whose slope is 1 even where hidden */
                    mask_past(d, high, {-rows[0].d_row_sum, -rows[1].d_row_sum});
            }
            if (j * shape::KEYS < work.latest) {
                const int from = j * shape::KEYS + fragment_column(), t = row + fragment_row();
                const int low[2] = {row_work_first(call, work, t) - from,
                                    row_work_first(call, work, t + 8) - from};
                mask_before(s, low, {hidden, hidden});
                if (rule::kind == WEIGHT_LINEAR)
                    mask_before(d, low, {-rows[0].d_row_sum, -rows[1].d_row_sum});
            }
            if (rule::kind == WEIGHT_POLYNOMIAL) {
                SR_UNROLL
                for (int i = 0; i < shape::KEYS / 2; i++)
                    differentiate_polynomial(s[i], d[i], rows[fragment_half(i)], numbers.limit,
                                             call.score);
            }
            SR_UNROLL
            for (int part = 0; part < shape::KEYS / 32; part++) {
                SR_UNROLL
                for (int i = 16 * part; i < 16 * part + 16; i += 2) {
                    const int half = fragment_half(i);
                    float2 of = {};
                    if (rule::decays)
                        of = *reinterpret_cast<const float2 *>(
                            &shared->decay[at.stage][i / 4 * 8 + fragment_column()]);
                    const float along[2] = {differentiate<rule>(s[i], d[i], rows[half], numbers,
                                                                of.x),
                                            differentiate<rule>(s[i + 1], d[i + 1], rows[half],
                                                                numbers, of.y)};
                    if (rule::decays) {
                        const int column = i / 4 * 8 - 8 * half;
                        dot[half] += column == own ? 0 : along[0];
                        dot[half] += column + 1 == own ? 0 : along[1];
                    }
                    dr[i / 2] = pack_bf16(d[i], d[i + 1]);
                }
                wgmma_fence();
                multiply_columns<D, shape::KEYS>(dq, dr + 8 * part, shared->k[at.stage], 2 * part);
                multiply_columns<D, shape::KEYS>(dq, dr + 8 * part + 4, shared->k[at.stage],
                                                 2 * part + 1);
            }
            wgmma_commit();
            if (KEPT) {
                wgmma_wait<0>();
                wgmma_settle(dq);
            }
            at.advance();
        }
        wgmma_wait<0>();
        wgmma_settle(dq);
        if (!KEPT)
            warp_arrive(&shared->q_empty[group]);
        warp_arrive(&shared->empty[at.before()]);
        store_feature_rows<D>(call.d_q, call.raw_q, dq, call, work.b, work.h, row);
        if (rule::decays)
            store_dots(call.scratch.row_dot + call.row_index(call.H, work.b, work.h, 0), dot, row,
                       call.T);
    }
}

/* dQ. Persistent kernel: a block owns tiles of ROWS queries of one head, drawn from task.drawn. The
 * producer thread copies Q and dN of the tile by TMA into shared memory (one slot per consumer),
 * then K and V tiles into a ring of STAGES, from the diagonal backwards, ordered by `full` and
 * `empty` mbarriers; with a decay, warp 1 adds the keys' exponents to each stage. Each consumer
 * owns 64 queries: wgmma R = Q K' and dW = dN V' into registers, dR from them and from the row
 * scalars (global memory), wgmma dQ += dR K from registers. dQ stays in registers until the last
 * tile and is stored once, by its owner, with the inverse RoPE applied. */
template <int D, class rule>
__global__ void __launch_bounds__(queries_shape<D>::THREADS, 1)
    queries_kernel(const __grid_constant__ backward_task task) {
    using shape = queries_shape<D>;
    SR_SHARED(queries_shared<D>, shared);
    if (threadIdx.x == 0)
        queries_barriers(shared, rule::decays);
    __syncthreads();
    if (threadIdx.x < HOPPER_GROUP) {
        registers_decrease<shape::FEW>();
        if (threadIdx.x == 0)
            queries_produce<D>(task, shared);
        if (rule::decays && threadIdx.x / SR_WARP == 1)
            queries_produce_decay<D>(task, shared);
    } else {
        registers_increase<shape::MANY>();
        queries_consume<D, rule>(task, shared, consumer());
    }
}

/* ---- dK and dV: keys stay ---- */

/* Three consumer warpgroups hide each other's latency where registers allow: not with wide heads,
 * nor with a decay. */
template <int D_, class rule> struct keys_shape {
    static constexpr int D = D_, QUERIES = 64, GROUPS = D == 64 && !rule::decays ? 3 : 2;
    static constexpr int ROWS = HOPPER_ROWS * GROUPS, THREADS = HOPPER_GROUP * (GROUPS + 1);
    static constexpr int STAGES = GROUPS == 3 ? 6 : D == 64 ? 8 : 3;
    static constexpr int KEY_BYTES = HOPPER_ROWS * D * 2, QUERY_BYTES = QUERIES * D * 2;
    static constexpr int MANY = GROUPS == 3 ? 160 : 232, FEW = GROUPS == 3 ? 32 : 40;
    static constexpr weight_kind KIND = rule::kind;
};

template <class shape> struct keys_shared {
    uint8_t k[2][shape::GROUPS][shape::KEY_BYTES];
    uint8_t v[2][shape::GROUPS][shape::KEY_BYTES];
    uint8_t q[shape::STAGES][shape::QUERY_BYTES];
    uint8_t d[shape::STAGES][shape::QUERY_BYTES];
    backward_row row[shape::STAGES][shape::QUERIES];
    int first[shape::STAGES][shape::QUERIES];
    int rank[shape::STAGES]; /* of the queries' tile among those that see the keys */
    uint64_t k_full[2][shape::GROUPS], k_empty[2][shape::GROUPS];
    uint64_t full[shape::STAGES], empty[shape::STAGES];
    key_work work[2];
};

template <class shape> SR_DEVICE void keys_barriers(keys_shared<shape> *shared) {
    for (int i = 0; i < shape::STAGES; i++) {
        mbarrier_init(&shared->full[i],
                      1 + SR_WARP); /* the bulk copies, and each lane's small ones */
        mbarrier_init(&shared->empty[i], 4 * shape::GROUPS);
    }
    for (int slot = 0; slot < 2; slot++)
        for (int group = 0; group < shape::GROUPS; group++) {
            mbarrier_init(&shared->k_full[slot][group], 1);
            /* two more producers */
            mbarrier_init(&shared->k_empty[slot][group], group == 0 ? 6 : 4);
        }
    mbarrier_init_fence();
}

template <class shape> SR_DEVICE key_work key_work_at(const backward_task &task, int i) {
    const hopper_view &call = task.call;
    if (i >= tile_count(task.order))
        return {};
    const sr_tile_place at = tile_place(task.order, i);
    const int b = at.head / call.Hkv, key = at.rank * shape::ROWS;
    const int last = min(call.T, key + shape::ROWS) - 1;
    return {b, at.head - b * call.Hkv, key,
            key_work_past<shape::QUERIES>(call, b, key / shape::QUERIES, last)};
}

/* Producer warp: draws tiles; loads keys and values by TMA. */
template <class shape>
SR_DEVICE void keys_produce(const backward_task &task, keys_shared<shape> *shared) {
    for (int n = 0, i = (int)blockIdx.x;; n++) {
        const int slot = n & 1;
        const key_work work = key_work_at<shape>(task, i);
        int drawn = 0; /* prefetched, so that it is there when needed */
        if (threadIdx.x == 0 && work.past > 0)
            drawn = (int)gridDim.x + atomicAdd(task.drawn, 1);
        for (int group = 0; group < shape::GROUPS; group++)
            mbarrier_wait(&shared->k_empty[slot][group], (n >> 1 & 1) ^ 1);
        if (threadIdx.x == 0)
            shared->work[slot] = work; /* published by k_full */
        for (int group = 0; group < shape::GROUPS && threadIdx.x == 0; group++) {
            uint64_t *const full = &shared->k_full[slot][group];
            const int key = work.key + HOPPER_ROWS * group;
            if (work.past == 0) {
                mbarrier_arrive(full);
                continue;
            }
            mbarrier_arrive_expect(full, 2 * shape::KEY_BYTES);
            tile_load<shape::D, HOPPER_ROWS>(shared->k[slot][group], &task.k, full, key, work.head,
                                             work.b);
            tile_load<shape::D, HOPPER_ROWS>(shared->v[slot][group], &task.v, full, key, work.head,
                                             work.b);
        }
        if (work.past == 0)
            return;
        i = shuffle(drawn, 0);
    }
}

/* Producer thread: loads queries and gradients of numerators by TMA. */
template <class shape>
SR_DEVICE void keys_produce_queries(const backward_task &task, keys_shared<shape> *shared) {
    ring_place<shape::STAGES> at = {};
    for (int n = 0;; n++) {
        const int slot = n & 1;
        mbarrier_wait(&shared->k_full[slot][0], n >> 1 & 1);
        const key_work work = shared->work[slot];
        mbarrier_arrive(&shared->k_empty[slot][0]);
        if (work.past == 0)
            return;
        for (int h = 0; h < task.call.group; h++)
            SR_ROLLED
        for (int j = work.key / shape::QUERIES; j < work.past; j++, at.advance()) {
            uint64_t *const full = &shared->full[at.stage];
            const int head = work.head * task.call.group + h, query = j * shape::QUERIES;
            mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
            shared->rank[at.stage] = j - work.key / shape::QUERIES;
            mbarrier_arrive_expect(full, 2 * shape::QUERY_BYTES);
            tile_load<shape::D, shape::QUERIES>(shared->q[at.stage], &task.q, full, query, head,
                                                work.b);
            tile_load<shape::D, shape::QUERIES>(shared->d[at.stage], &task.d, full, query, head,
                                                work.b);
        }
    }
}

/* Producer warp: loads the queries' row scalars and document starts by cp.async. */
template <class shape>
SR_DEVICE void keys_produce_rows(const backward_task &task, keys_shared<shape> *shared) {
    const hopper_view &call = task.call;
    const int lane = (int)threadIdx.x % SR_WARP;
    ring_place<shape::STAGES> at = {};
    for (int n = 0;; n++) {
        const int slot = n & 1;
        mbarrier_wait(&shared->k_full[slot][0], n >> 1 & 1);
        const key_work work = shared->work[slot];
        warp_arrive(&shared->k_empty[slot][0]);
        if (work.past == 0)
            return;
        for (int h = 0; h < call.group; h++) {
            const int64_t row = call.row_index(call.H, work.b, work.head * call.group + h, 0);
            SR_ROLLED
            for (int j = work.key / shape::QUERIES; j < work.past; j++, at.advance()) {
                mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
                SR_ROLLED
                for (int i = lane; i < shape::QUERIES; i += SR_WARP) {
                    const int wanted = j * shape::QUERIES + i, t = min(wanted, call.T - 1);
                    /* nothing past the end: a weight of one for zeros */
                    const int bytes = wanted < call.T ? 4 : 0;
                    backward_row *const to = &shared->row[at.stage][i];
                    cp_async_4(&to->scale, call.scratch.row_scale + row + t, bytes);
                    cp_async_4(&to->d_row_sum, call.scratch.d_row_sum + row + t, bytes);
                    cp_async_4(&shared->first[at.stage][i],
                               call.first + (int64_t)work.b * call.T + t);
                }
                mbarrier_arrive_copies(&shared->full[at.stage]);
            }
        }
    }
}

/* The same with a decay, which is added to the row scale: C of the query counted from the first key
 * on. */
template <class shape>
SR_DEVICE void keys_produce_decaying(const backward_task &task, keys_shared<shape> *shared) {
    const hopper_view &call = task.call;
    const int lane = (int)threadIdx.x % SR_WARP;
    ring_place<shape::STAGES> at = {};
    for (int n = 0;; n++) {
        const int slot = n & 1;
        mbarrier_wait(&shared->k_full[slot][0], n >> 1 & 1);
        const key_work work = shared->work[slot];
        warp_arrive(&shared->k_empty[slot][0]);
        if (work.past == 0)
            return;
        const decay_since since(call, work.b, work.head, work.key);
        for (int h = 0; h < call.group; h++) {
            const int64_t row = call.row_index(call.H, work.b, work.head * call.group + h, 0);
            SR_ROLLED
            for (int j = work.key / shape::QUERIES; j < work.past; j++, at.advance()) {
                decay_stage<shape::QUERIES> queries;
                backward_row rows[shape::QUERIES / SR_WARP];
                int first[shape::QUERIES / SR_WARP];
                queries.ask(since, j * shape::QUERIES);
                SR_UNROLL
                for (int i = 0; i < shape::QUERIES / SR_WARP; i++) {
                    const int t = j * shape::QUERIES + i * SR_WARP + lane;
                    const int64_t there = row + min(t, call.T - 1);
                    first[i] = call.first[(int64_t)work.b * call.T + min(t, call.T - 1)];
                    rows[i] = {1e30F, 0}; /* past the end: no weight, no gradient */
                    if (t < call.T)
                        rows[i] = {backward_scale<shape::KIND>(call.scratch.row_scale[there]) -
                                       queries.of[i],
                                   call.scratch.d_row_sum[there]};
                }
                mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
                SR_UNROLL
                for (int i = 0; i < shape::QUERIES / SR_WARP; i++) {
                    shared->row[at.stage][i * SR_WARP + lane] = rows[i];
                    shared->first[at.stage][i * SR_WARP + lane] = first[i];
                }
                mbarrier_arrive(&shared->full[at.stage]);
            }
        }
    }
}

/* The weights of a tile, 32 queries at a time, and the GEMMs dV += W' dN and dK += dR' Q. */
template <int D, class rule>
SR_DEVICE void keys_weigh_and_multiply(keys_sums<D> &sums,
                                       keys_tile<keys_shape<D, rule>::QUERIES> &tile,
                                       const keys_shared<keys_shape<D, rule>> *shared, int stage,
                                       const score_numbers &numbers) {
    constexpr int QUERIES = keys_shape<D, rule>::QUERIES;
    const backward_row *row = shared->row[stage] + fragment_column();
    SR_UNROLL
    for (int part = 0; part < QUERIES / 32; part++) {
        const uint32_t *w = tile.w + 8 * part, *dr = tile.dr + 8 * part;
        keys_rows rows; /* loaded late: registers are scarce */
        rows.ask(row, part);
        keys_weigh<D, rule>(sums, tile, part, rows, numbers);
        wgmma_fence();
        multiply_columns<D, QUERIES>(sums.dv, w, shared->d[stage], 2 * part);
        multiply_columns<D, QUERIES>(sums.dv, w + 4, shared->d[stage], 2 * part + 1);
        wgmma_fence();
        multiply_columns<D, QUERIES>(sums.dk, dr, shared->q[stage], 2 * part);
        multiply_columns<D, QUERIES>(sums.dk, dr + 4, shared->q[stage], 2 * part + 1);
    }
    wgmma_commit();
}

/* Consumer: dK and dV of 64 keys; queries of all heads of the group pass by. */
template <int D, class rule>
SR_DEVICE void keys_consume(const backward_task &task, keys_shared<keys_shape<D, rule>> *shared,
                            int group) {
    using shape = keys_shape<D, rule>;
    const hopper_view &call = task.call;
    const score_numbers numbers = score_numbers_of<rule::kind>(call.score);
    ring_place<shape::STAGES> at = {};
    keys_sums<D> sums;
    keys_tile<shape::QUERIES> tile;
    for (int n = 0;; n++) {
        const int slot = n & 1;
        mbarrier_wait(&shared->k_full[slot][group], n >> 1 & 1);
        if (shared->work[slot].past == 0)
            return;
        SR_UNROLL
        for (int i = 0; i < D / 2; i++)
            sums.dk[i] = sums.dv[i] = 0;
        sums.dot[0] = sums.dot[1] = sums.decay[0] = sums.decay[1] = 0;
        if (rule::decays) {
            const key_work work = shared->work[slot];
            const decay_since since(call, work.b, work.head, work.key);
            const int key = work.key + HOPPER_ROWS * group + fragment_row();
            sums.decay[0] = since.at(key);
            sums.decay[1] = since.at(key + 8);
        }
        const int tiles =
            of_warp(shared->work[slot].past - shared->work[slot].key / shape::QUERIES);
        for (int left = tiles * call.group; left > 0; left--, at.advance()) {
            mbarrier_wait(&shared->full[at.stage], at.parity);
            if (shared->rank[at.stage] >= group) { /* else these queries see only earlier keys */
                wgmma_fence();
                multiply_rows<D, shape::QUERIES>(tile.s, shared->k[slot][group],
                                                 shared->q[at.stage]);
                multiply_rows<D, shape::QUERIES>(tile.d, shared->v[slot][group],
                                                 shared->d[at.stage]);
                wgmma_commit();
                wgmma_wait<0>();
                wgmma_settle(tile.s);
                wgmma_settle(tile.d);
                if (rule::clamped && !rule::decays && call.score.capped) {
                    const backward_row *row = shared->row[at.stage] + fragment_column();
                    cap_gradients(tile.s, tile.d, call.score,
                                  [&](int i) { return row[8 * (i / 4) + (i & 1)].d_row_sum; });
                }
                const int key = shared->work[slot].key + HOPPER_ROWS * group;
                if (rule::decays)
                    sums.own = shared->rank[at.stage] == group ? fragment_row() - fragment_column()
                                                               : INT_MIN;
                if (shared->rank[at.stage] == group)
                    keys_mask_later<rule::kind>(tile.s, tile.d, 0, shared->row[at.stage]);
                if (shared->first[at.stage][shape::QUERIES - 1] > key)
                    keys_mask_earlier<rule::kind>(tile.s, tile.d, key, shared->first[at.stage],
                                                  shared->row[at.stage]);
                if (rule::kind == WEIGHT_POLYNOMIAL) {
                    SR_UNROLL
                    for (int i = 0; i < shape::QUERIES / 2; i++)
                        differentiate_polynomial(
                            tile.s[i], tile.d[i],
                            shared->row[at.stage][8 * (i / 4) + (i & 1) + fragment_column()],
                            numbers.limit, call.score);
                }
                keys_weigh_and_multiply<D, rule>(sums, tile, shared, at.stage, numbers);
                wgmma_wait<0>();
                wgmma_settle(sums.dk);
                wgmma_settle(sums.dv);
            }
            warp_arrive(&shared->empty[at.stage]);
        }
        const key_work work = shared->work[slot]; /* reloaded: there were no registers to keep it */
        const int key = work.key + HOPPER_ROWS * group;
        warp_arrive(&shared->k_empty[slot][group]);
        if (key < call.T) {
            store_feature_rows<D>(call.d_k, call.raw_k, sums.dk, call, work.b, work.head, key);
            store_value_rows<D>(sums.dv, call, work.b, work.head, key);
            if (rule::decays)
                store_dots(call.scratch.column_dot + call.row_index(call.Hkv, work.b, work.head, 0),
                           sums.dot, key, call.T);
        }
    }
}

/* dK and dV. Persistent kernel: a block owns tiles of ROWS keys of one KV head, drawn from
 * task.drawn. Three producers: warp 0 draws tiles and copies K and V by TMA into one of two slots;
 * thread 64 copies Q and dN tiles of every head of the group by TMA into a ring of STAGES, from the
 * diagonal onwards; warp 1 fills the row scalars and document starts of the same stages (cp.async,
 * or through registers with a decay). `full` and `empty` mbarriers order them. Each consumer owns
 * 64 keys: wgmma R' = K Q' and dW' = V dN' into registers, then dV += W' dN and dK += dR' Q,
 * accumulated in registers over all heads and tiles in a fixed order and stored once at the end. */
template <int D, class rule>
__global__ void __launch_bounds__(keys_shape<D, rule>::THREADS, 1)
    keys_kernel(const __grid_constant__ backward_task task) {
    using shape = keys_shape<D, rule>;
    SR_SHARED(keys_shared<shape>, shared);
    if (threadIdx.x == 0)
        keys_barriers(shared);
    __syncthreads();
    if (threadIdx.x < HOPPER_GROUP) {
        registers_decrease<shape::FEW>();
        if (threadIdx.x < SR_WARP)
            keys_produce<shape>(task, shared);
        else if (threadIdx.x < 2 * SR_WARP && rule::decays)
            keys_produce_decaying<shape>(task, shared);
        else if (threadIdx.x < 2 * SR_WARP)
            keys_produce_rows<shape>(task, shared);
        else if (threadIdx.x == 2 * SR_WARP)
            keys_produce_queries<shape>(task, shared);
    } else {
        registers_increase<shape::MANY>();
        keys_consume<D, rule>(task, shared, consumer());
    }
}

/* ---- launching ---- */

typedef void backward_function(const backward_task);

struct backward_kernels {
    backward_function *queries, *keys;
    int key_rows, key_queries, key_threads; /* of a block of keys, and of a tile that passes by */
    size_t key_bytes;                       /* of shared memory */
};

template <int D, class rule> static backward_kernels backward_pair() {
    using shape = keys_shape<D, rule>;
    return {queries_kernel<D, rule>, keys_kernel<D, rule>, shape::ROWS,
            shape::QUERIES,          shape::THREADS,       sizeof(keys_shared<shape>)};
}

template <int D> static backward_kernels backward_choose(const hopper_view &call) {
    const sr_score_rule &score = call.score;
    switch (weight_kind_of(score)) {
    case WEIGHT_LINEAR:
        return backward_pair<D, backward_rule<WEIGHT_LINEAR, false>>();
    case WEIGHT_SQUARE: /* is a polynomial until a decay makes it one */
    case WEIGHT_POLYNOMIAL:
        if constexpr (D == 64) /* wider ones lack a few registers */
            if (call.choices.decays)
                return backward_pair<D, backward_rule<WEIGHT_SQUARE, false, true>>();
        return is_line(score) ? backward_pair<D, backward_rule<WEIGHT_LINEAR, true>>()
                              : backward_pair<D, backward_rule<WEIGHT_POLYNOMIAL, true>>();
    case WEIGHT_EXP:
        break;
    }
    if (call.choices.decays)
        return backward_pair<D, backward_rule<WEIGHT_EXP, true, true>>();
    return is_bounded(score) ? backward_pair<D, backward_rule<WEIGHT_EXP, true>>()
                             : backward_pair<D, backward_rule<WEIGHT_EXP, false>>();
}

template <int D>
static cudaError_t backward(const hopper_view &call, int *counters, int multiprocessors,
                            cudaStream_t stream) {
    using by_query = queries_shape<D>;
    const backward_kernels kernels = backward_choose<D>(call);
    const int64_t bytes = (int64_t)call.T * D * 4;
    backward_task task = {};
    task.call = call;
    task.order = tile_order(call.B * call.H, (call.T + by_query::ROWS - 1) / by_query::ROWS, bytes,
                            call.group);
    task.drawn = counters;
    cudaError_t error = cudaMemsetAsync(counters, 0, HOPPER_COUNTERS * sizeof *counters, stream);
    if (error == cudaSuccess)
        error = backward_maps(&task, HOPPER_ROWS, by_query::KEYS);
    if (error == cudaSuccess && (call.d_q.data || call.choices.decays))
        error = sr_launch(kernels.queries, backward_grid(task.order, multiprocessors),
                          dim3(by_query::THREADS), sizeof(queries_shared<D>), stream, task);
    task.order = tile_order(call.B * call.Hkv, (call.T + kernels.key_rows - 1) / kernels.key_rows,
                            bytes * call.group, 1);
    task.drawn = counters + 1;
    if (error == cudaSuccess)
        error = backward_maps(&task, kernels.key_queries, HOPPER_ROWS);
    if (error == cudaSuccess)
        error = sr_launch(kernels.keys, backward_grid(task.order, multiprocessors),
                          dim3((unsigned)kernels.key_threads), kernels.key_bytes, stream, task);
    return error;
}

cudaError_t hopper_backward(const hopper_view &call, int *counters, int multiprocessors,
                            cudaStream_t stream) {
    return call.D == 64 ? backward<64>(call, counters, multiprocessors, stream)
                        : backward<128>(call, counters, multiprocessors, stream);
}
