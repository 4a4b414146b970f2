/* backward_ordered.cu: attention backward on Hopper, between prologue and epilogue, in one kernel
 * with five GEMMs.
 *
 * Keys stay, queries pass by. Each block adds its keys' contribution to dQ to sums in global
 * memory:
 *
 *     R' = K Q',  dW' = V dN',    dV += W' dN,  dK += dR' Q,    dQ += dR K
 *
 * Results are bitwise reproducible: a counter per tile of queries fixes the order in which blocks
 * add to it. The first one stores instead of adding. A second kernel turns the sums into rows of
 * dQ. The tiles of a head are taken in one of two orders:
 *
 *     falling: last keys first; a block starts with the queries at the diagonal, ends with the last
 *     rising:  first keys first; a block starts with the last queries and ends at the diagonal
 *
 * In both orders a block that adds to a tile of queries earlier has drawn its keys earlier, which
 * rules out deadlock. Blocks that start together on a falling head do not collide, and end one
 * after the other, those with the first keys last. On a rising head blocks that start one after the
 * other do not collide, and end together. Groups of heads therefore alternate between falling and
 * rising.
 *
 * The last GEMM needs dR of both consumers, exchanged through shared memory. It is delayed by one
 * tile of queries, so that one consumer may run ahead of the other: one runs GEMMs while the other
 * computes weights. */
#include "attention/cuda/hopper/backward.h"

/* Each consumer computes half of a tile's dQ: half of its queries for D = 64, half of its columns
 * for wider heads. */
template <int D_> struct ordered_shape {
    static constexpr int D = D_, GROUPS = 2, KEYS = HOPPER_ROWS * GROUPS;
    static constexpr int QUERIES = D == 64 ? 128 : 64, STAGES = D == 64 ? 2 : 3, SLOPES = 2;
    static constexpr int THREADS = HOPPER_GROUP * (GROUPS + 1), MANY = 232, FEW = 40;
    static constexpr int KEY_BYTES = HOPPER_ROWS * D * 2, QUERY_BYTES = QUERIES * D * 2;
    static constexpr int SLOPE_BYTES = KEYS * QUERIES * 2;
    static constexpr int SUMS = 32, SUM_BYTES = SUMS * HOPPER_GROUP * 4; /* of a half */
    /* The fence between the stores of sums and the bulk copy that adds them is executed by the
     * adding thread, or by every storing thread: both are correct; the faster one was measured. */
    static constexpr bool ADDER_FENCES = D == 64;
};

template <class shape> struct ordered_shared {
    uint8_t k[shape::GROUPS][shape::KEY_BYTES];
    uint8_t v[shape::GROUPS][shape::KEY_BYTES];
    uint8_t q[shape::STAGES][shape::QUERY_BYTES];
    uint8_t d[shape::STAGES][shape::QUERY_BYTES];
    uint8_t slope[shape::SLOPES][shape::SLOPE_BYTES];         /* dR', 64 queries a row */
    float4 sum[shape::GROUPS][shape::SUMS / 4][HOPPER_GROUP]; /* of dQ, as threads have it */
    backward_row row[shape::STAGES][shape::QUERIES];
    int first[shape::STAGES][shape::QUERIES];
    int rank[shape::STAGES]; /* of the queries' tile among those that see the keys */
    uint64_t k_full, k_empty;
    uint64_t full[shape::STAGES], empty[shape::STAGES];
    uint64_t slope_full[shape::SLOPES], slope_empty[shape::SLOPES];
    uint64_t sum_full[shape::GROUPS], sum_empty[shape::GROUPS];
    key_work work;
};

struct ordered_task {
    backward_task backward;
    float *sums; /* (B, H, tiles of queries, GROUPS), each as ordered_shared.sum */
    /* the same for each: number of tiles of keys that have added; 0 at the start of the kernel */
    int *tickets;
    int query_tiles;
};

template <class shape> SR_DEVICE void ordered_barriers(ordered_shared<shape> *shared) {
    const int warps = 4 * shape::GROUPS; /* of consumers */
    for (int i = 0; i < shape::STAGES; i++) {
        mbarrier_init(&shared->full[i],
                      1 + SR_WARP); /* the bulk copies, and each lane's small ones */
        mbarrier_init(&shared->empty[i], warps);
    }
    for (int i = 0; i < shape::SLOPES; i++) {
        mbarrier_init(&shared->slope_full[i], warps);
        mbarrier_init(&shared->slope_empty[i], warps);
    }
    for (int group = 0; group < shape::GROUPS; group++) {
        mbarrier_init(&shared->sum_full[group], 4);
        mbarrier_init(&shared->sum_empty[group], 1);
    }
    mbarrier_init(&shared->k_full, 1);
    /* Each thread that reads the work item: consumers, and one adding thread each. */
    mbarrier_init(&shared->k_empty, HOPPER_GROUP * shape::GROUPS + shape::GROUPS);
    mbarrier_init_fence();
}

/* ---- the producer, and the threads that add to dQ ---- */

/* Whether a head's keys are taken from the first on, and its queries from the last backwards. */
SR_DEVICE bool ordered_rises(const ordered_task &task, int head) {
    const sr_tile_order &order = task.backward.order;
    return (((order.heads - 1) / order.heads_a_group - head / order.heads_a_group) & 1) == 0;
}

/* The query tiles that see a tile of keys, in the order of the walk. */
struct ordered_queries {
    int from, past;
    bool rises; /* keys in rising order; queries then descend */
    bool whole; /* the batch row is one document */

    SR_DEVICE int count() const {
        return past - from;
    }
    SR_DEVICE int at(int i) const {
        return rises ? past - 1 - i : from + i;
    }
};

template <class shape>
SR_DEVICE ordered_queries ordered_queries_of(const ordered_task &task, const key_work &work) {
    const hopper_view &call = task.backward.call;
    return {work.key / shape::QUERIES, work.past,
            ordered_rises(task, work.b * call.Hkv + work.head),
            call.first[(int64_t)work.b * call.T + call.T - 1] == 0};
}

template <class shape> SR_DEVICE key_work ordered_work_at(const ordered_task &task, int i) {
    const hopper_view &call = task.backward.call;
    const sr_tile_order &order = task.backward.order;
    if (i >= tile_count(order))
        return {};
    const sr_tile_place at = tile_place(order, i);
    const int b = at.head / call.Hkv;
    const int key =
        (ordered_rises(task, at.head) ? at.rank : order.tiles - 1 - at.rank) * shape::KEYS;
    const int last = min(call.T, key + shape::KEYS) - 1;
    return {b, at.head - b * call.Hkv, key,
            key_work_past<shape::QUERIES>(call, b, key / shape::QUERIES, last)};
}

/* Queries and gradients of numerators by TMA; row scalars and document starts by cp.async. */
template <class shape>
SR_DEVICE void ordered_produce_queries(const ordered_task &task, ordered_shared<shape> *shared,
                                       const key_work &work, ring_place<shape::STAGES> &at) {
    const hopper_view &call = task.backward.call;
    const ordered_queries queries = ordered_queries_of<shape>(task, work);
    const int lane = (int)threadIdx.x;
    for (int h = 0; h < call.group; h++) {
        const int head = work.head * call.group + h;
        SR_ROLLED
        for (int i = 0; i < queries.count(); i++, at.advance()) {
            uint64_t *const full = &shared->full[at.stage];
            const int j = queries.at(i), query = j * shape::QUERIES;
            mbarrier_wait(&shared->empty[at.stage], at.parity ^ 1);
            if (lane == 0) {
                shared->rank[at.stage] = j - queries.from;
                mbarrier_arrive_expect(full, 2 * shape::QUERY_BYTES);
                tile_load<shape::D, shape::QUERIES>(shared->q[at.stage], &task.backward.q, full,
                                                    query, head, work.b);
                tile_load<shape::D, shape::QUERIES>(shared->d[at.stage], &task.backward.d, full,
                                                    query, head, work.b);
            }
            SR_ROLLED
            for (int r = lane; r < shape::QUERIES; r += SR_WARP) {
                const int wanted = query + r, t = min(wanted, call.T - 1);
                /* nothing past the end: a weight of one for zeros */
                const int bytes = wanted < call.T ? 4 : 0;
                backward_row *const to = &shared->row[at.stage][r];
                const int64_t row = call.row_index(call.H, work.b, head, t);
                cp_async_4(&to->scale, call.scratch.row_scale + row, bytes);
                cp_async_4(&to->d_row_sum, call.scratch.d_row_sum + row, bytes);
                cp_async_4(&shared->first[at.stage][r], call.first + (int64_t)work.b * call.T + t);
            }
            mbarrier_arrive_copies(full);
        }
    }
}

/* Producer warp: draws tiles of keys, the next one only when all queries of the current one are in
 * flight (other blocks may depend on it). Loads keys and values, then queries. */
template <class shape>
SR_DEVICE void ordered_produce(const ordered_task &task, ordered_shared<shape> *shared) {
    ring_place<shape::STAGES> at = {};
    for (int n = 0;; n++) {
        int i = 0;
        if (threadIdx.x == 0)
            i = atomicAdd(task.backward.drawn, 1);
        const key_work work = ordered_work_at<shape>(task, shuffle(i, 0));
        mbarrier_wait(&shared->k_empty, (n & 1) ^ 1);
        if (threadIdx.x == 0) {
            shared->work = work; /* published by k_full */
            mbarrier_arrive_expect(&shared->k_full,
                                   work.past > 0 ? 2 * shape::GROUPS * shape::KEY_BYTES : 0);
        }
        if (work.past == 0)
            return;
        for (int group = 0; group < shape::GROUPS && threadIdx.x == 0; group++) {
            const int key = work.key + HOPPER_ROWS * group;
            tile_load<shape::D, HOPPER_ROWS>(shared->k[group], &task.backward.k, &shared->k_full,
                                             key, work.head, work.b);
            tile_load<shape::D, HOPPER_ROWS>(shared->v[group], &task.backward.v, &shared->k_full,
                                             key, work.head, work.b);
        }
        ordered_produce_queries<shape>(task, shared, work, at);
    }
}

/* Half of a tile's sums, and how many tiles of keys add to it before this one. */
struct ordered_ticket {
    int64_t half;
    int number;
};

/* For the i-th tile of queries, over all heads that see the keys. */
template <class shape>
SR_DEVICE ordered_ticket ordered_ticket_at(const ordered_task &task, const key_work &work,
                                           const ordered_queries &queries, int i) {
    const hopper_view &call = task.backward.call;
    const int h = i / queries.count(), j = queries.at(i - h * queries.count());
    const int64_t head = (int64_t)work.b * call.H + work.head * call.group + h;
    const int first = j * shape::QUERIES, here = work.key / shape::KEYS;
    int number = (first + shape::QUERIES - 1) / shape::KEYS - here;
    if (queries.rises) /* a load only with documents: it delays other blocks */
        number =
            here - (queries.whole ? 0 : call.first[(int64_t)work.b * call.T + first] / shape::KEYS);
    return {(head * task.query_tiles + j) * shape::GROUPS, number};
}

/* Adds a consumer's halves to dQ in global memory, in the fixed order of the counters. One thread
 * per consumer; the next counter is polled while the bulk copy reads shared memory. */
template <class shape>
SR_DEVICE void ordered_add(const ordered_task &task, ordered_shared<shape> *shared, int group) {
    int parity = 0;
    for (int n = 0;; n++) {
        mbarrier_wait(&shared->k_full, n & 1);
        const key_work work = shared->work;
        mbarrier_arrive(&shared->k_empty);
        if (work.past == 0)
            return;
        const ordered_queries queries = ordered_queries_of<shape>(task, work);
        const int tiles = queries.count() * task.backward.call.group;
        ordered_ticket ticket = ordered_ticket_at<shape>(task, work, queries, 0);
        bool come = false;
        SR_ROLLED
        for (int i = 0; i < tiles; i++, parity ^= 1) {
            int *const counter = task.tickets + ticket.half + group;
            float *const to = task.sums + (ticket.half + group) * (shape::SUM_BYTES / 4);
            const int number = ticket.number;
            while (!come)
                come = ticket_is_due(counter, number);
            mbarrier_wait(&shared->sum_full[group], parity);
            if (shape::ADDER_FENCES)
                fence_proxy_async();
            if (number > 0)
                bulk_add(to, &shared->sum[group][0][0].x, shape::SUM_BYTES);
            else
                bulk_store(to, shared->sum[group], shape::SUM_BYTES);
            tensor_store_commit();
            come = false;
            if (i + 1 < tiles) {
                ticket = ordered_ticket_at<shape>(task, work, queries, i + 1);
                come = ticket_is_due(task.tickets + ticket.half + group, ticket.number);
            }
            tensor_store_wait_read<0>();
            mbarrier_arrive(&shared->sum_empty[group]);
            tensor_store_wait<0>();
            ticket_pass(counter, number + 1);
        }
    }
}

/* ---- consumers ---- */

/* Stores 32 queries of dR' of this consumer's keys to shared memory, for the GEMMs of both. */
template <class shape>
SR_DEVICE void ordered_store_slopes(uint8_t *to, const uint32_t *dr, int part) {
    const int thread = thread_index_again(), lane = thread % SR_WARP;
    const int row = (thread - HOPPER_GROUP) / SR_WARP * 16 + lane % 16;
    SR_UNROLL
    for (int i = 0; i < 2; i++) { /* pieces of 16 bytes are swizzled over 8 rows */
        const int piece = 4 * part + 2 * i + lane / 16;
        stmatrix_x4(to + (piece / 8 * shape::KEYS + row) * HOPPER_ROW_BYTES +
                        (piece % 8 ^ lane % 8) * 16,
                    dr + 4 * i);
    }
}

/* For a tile that sees none of these keys. */
template <class shape> SR_DEVICE void ordered_clear_slopes(uint8_t *to, int group) {
    uint4 *const mine = reinterpret_cast<uint4 *>(to + group * HOPPER_ROWS * HOPPER_ROW_BYTES) +
                        thread_index_again() % HOPPER_GROUP;
    SR_UNROLL
    for (int i = 0; i < HOPPER_ROWS * HOPPER_ROW_BYTES / 16 / HOPPER_GROUP; i++)
        mine[i * HOPPER_GROUP] = make_uint4(0, 0, 0, 0);
}

/* The weights of a tile, 32 queries at a time, and the GEMMs dV += W' dN and dK += dR' Q; `rows`
 * holds the row scalars of the first 32. Parameters, not a struct: they stay in registers. */
template <class shape, class rule>
SR_DEVICE void ordered_weigh_and_multiply(keys_sums<shape::D> &sums,
                                          keys_tile<shape::QUERIES> &tile, keys_rows &rows,
                                          ordered_shared<shape> *shared, int stage, int slope,
                                          const score_numbers &numbers) {
    constexpr int D = shape::D, QUERIES = shape::QUERIES;
    SR_UNROLL
    for (int part = 0; part < QUERIES / 32; part++) {
        const uint32_t *w = tile.w + 8 * part, *dr = tile.dr + 8 * part;
        keys_weigh<D, rule>(sums, tile, part, rows, numbers);
        if (part + 1 < QUERIES / 32)
            rows.ask(shared->row[stage] + fragment_column(), part + 1);
        ordered_store_slopes<shape>(shared->slope[slope], dr, part);
        wgmma_fence();
        multiply_columns<D, QUERIES>(sums.dv, w, shared->d[stage], 2 * part);
        multiply_columns<D, QUERIES>(sums.dv, w + 4, shared->d[stage], 2 * part + 1);
        wgmma_fence();
        multiply_columns<D, QUERIES>(sums.dk, dr, shared->q[stage], 2 * part);
        multiply_columns<D, QUERIES>(sums.dk, dr + 4, shared->q[stage], 2 * part + 1);
    }
    wgmma_commit();
}

/* dq (64 x 64) = dR K, this consumer's half. */
template <class shape>
SR_DEVICE void ordered_multiply_slopes(float (&dq)[shape::SUMS], const uint8_t *slope,
                                       const ordered_shared<shape> *shared, int half) {
    const uint64_t left =
        wgmma_descriptor(slope + (shape::D == 64 ? half * shape::KEYS * HOPPER_ROW_BYTES : 0));
    const uint64_t right = wgmma_descriptor(
        shared->k[0] + (shape::D == 64 ? 0 : half * HOPPER_ROWS * HOPPER_ROW_BYTES));
    wgmma_fence();
    SR_UNROLL
    for (int c = 0; c < shape::KEYS / 16; c++)
        wgmma_shared<64, 1, 1>(dq, wgmma_descriptor_further(left, c * 16 * HOPPER_ROW_BYTES),
                               wgmma_descriptor_further(right, c / 4 * shape::KEY_BYTES +
                                                                   c % 4 * 16 * HOPPER_ROW_BYTES),
                               c != 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_settle(dq);
}

/* Passes dQ to the adding thread; with two slope stages the stage is also the parity of the
 * sums. */
template <class shape>
SR_DEVICE void ordered_hand_over(const float (&dq)[shape::SUMS], ordered_shared<shape> *shared,
                                 int group, int parity) {
    const int thread = thread_index_again() % HOPPER_GROUP;
    mbarrier_wait(&shared->sum_empty[group], parity ^ 1);
    SR_UNROLL
    for (int i = 0; i < shape::SUMS / 4; i++)
        shared->sum[group][i][thread] =
            make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]);
    if (!shape::ADDER_FENCES)
        fence_proxy_async();
    warp_arrive(&shared->sum_full[group]);
}

/* Consumer: dK and dV of 64 keys, and half of each query tile's dQ contribution, one tile late. */
template <int D, class rule>
SR_DEVICE void ordered_consume(const ordered_task &task, ordered_shared<ordered_shape<D>> *shared) {
    using shape = ordered_shape<D>;
    const hopper_view &call = task.backward.call;
    const score_numbers numbers = score_numbers_of<rule::kind>(call.score);
    const int group = consumer();
    ring_place<shape::STAGES> at = {};
    ring_place<shape::SLOPES> slope = {};
    keys_sums<D> sums;
    keys_tile<shape::QUERIES> tile;
    float dq[shape::SUMS];
    for (int n = 0;; n++) {
        mbarrier_wait(&shared->k_full, n & 1);
        if (shared->work.past == 0)
            return;
        SR_UNROLL
        for (int i = 0; i < D / 2; i++)
            sums.dk[i] = sums.dv[i] = 0;
        sums.dot[0] = sums.dot[1] = sums.decay[0] = sums.decay[1] = 0;
        const int tiles =
            of_warp((shared->work.past - shared->work.key / shape::QUERIES) * call.group);
        for (int i = 0; i < tiles; i++, at.advance()) {
            mbarrier_wait(&shared->full[at.stage], at.parity);
            const int behind = HOPPER_ROWS * group - shared->rank[at.stage] * shape::QUERIES;
            if (shape::QUERIES > HOPPER_ROWS || behind < shape::QUERIES) {
                wgmma_fence();
                multiply_rows<D, shape::QUERIES>(tile.s, shared->k[group], shared->q[at.stage]);
                multiply_rows<D, shape::QUERIES>(tile.d, shared->v[group], shared->d[at.stage]);
                wgmma_commit();
                keys_rows rows; /* and all other loads that can overlap */
                rows.ask(shared->row[at.stage] + fragment_column(), 0);
                const int key = shared->work.key + HOPPER_ROWS * group;
                const bool cut = shared->first[at.stage][shape::QUERIES - 1] > key;
                wgmma_wait<0>();
                wgmma_settle(tile.s);
                wgmma_settle(tile.d);
                if (rule::clamped && call.score.capped) {
                    const backward_row *row = shared->row[at.stage] + fragment_column();
                    cap_gradients(tile.s, tile.d, call.score,
                                  [&](int m) { return row[8 * (m / 4) + (m & 1)].d_row_sum; });
                }
                if (behind > -HOPPER_ROWS || cut) {
                    keys_mask_later<rule::kind>(tile.s, tile.d, behind, shared->row[at.stage]);
                    keys_mask_earlier<rule::kind>(tile.s, tile.d, key, shared->first[at.stage],
                                                  shared->row[at.stage]);
                }
                mbarrier_wait(&shared->slope_empty[slope.stage], slope.parity ^ 1);
                if (i > 0) /* the other consumer's part of the previous tile */
                    mbarrier_wait(&shared->slope_full[slope.before()], slope.parity_before());
                ordered_weigh_and_multiply<shape, rule>(sums, tile, rows, shared, at.stage,
                                                        slope.stage, numbers);
            } else { /* the first tile of each head, which sees only earlier keys */
                mbarrier_wait(&shared->slope_empty[slope.stage], slope.parity ^ 1);
                if (i > 0)
                    mbarrier_wait(&shared->slope_full[slope.before()], slope.parity_before());
                ordered_clear_slopes<shape>(shared->slope[slope.stage], group);
            }
            fence_proxy_async();
            warp_arrive(&shared->slope_full[slope.stage]);
            if (i > 0) {
                ordered_multiply_slopes<shape>(dq, shared->slope[slope.before()], shared, group);
                wgmma_settle(sums.dk);
                wgmma_settle(sums.dv);
                warp_arrive(&shared->slope_empty[slope.before()]);
                warp_arrive(&shared->empty[at.stage]);
                ordered_hand_over<shape>(dq, shared, group, slope.before());
            } else {
                wgmma_wait<0>();
                wgmma_settle(sums.dk);
                wgmma_settle(sums.dv);
                warp_arrive(&shared->empty[at.stage]);
            }
            slope.advance();
        }
        mbarrier_wait(&shared->slope_full[slope.before()], slope.parity_before());
        ordered_multiply_slopes<shape>(dq, shared->slope[slope.before()], shared, group);
        warp_arrive(&shared->slope_empty[slope.before()]);
        const key_work work = shared->work; /* reloaded: there were no registers to keep it */
        const int key = work.key + HOPPER_ROWS * group;
        mbarrier_arrive(&shared->k_empty);
        ordered_hand_over<shape>(dq, shared, group, slope.before());
        if (key < call.T) {
            store_feature_rows<D>(call.d_k, call.raw_k, sums.dk, call, work.b, work.head, key);
            store_value_rows<D>(sums.dv, call, work.b, work.head, key);
        }
    }
}

/* dQ, dK and dV. Persistent kernel: a block owns tiles of 128 keys of one KV head, drawn in order
 * from the counter. Producer warp 0 copies K and V by TMA, then Q and dN tiles by TMA and row
 * scalars by cp.async into a ring of STAGES. Each of two consumer warpgroups owns 64 keys: wgmma R'
 * and dW' into registers, dR' to shared memory (two stages), wgmma dV and dK from registers; one
 * tile later, once `slope_full` shows both halves of dR', wgmma of its half of dQ, written to
 * shared memory. Threads 32 and 64 bulk-add those halves to dQ's sums in global memory, each when
 * the tile's counter reaches the block's number in the fixed order, then advance the counter. dK
 * and dV are stored once at the end. */
template <int D, class rule>
__global__ void __launch_bounds__(ordered_shape<D>::THREADS, 1)
    ordered_kernel(const __grid_constant__ ordered_task task) {
    using shape = ordered_shape<D>;
    SR_SHARED(ordered_shared<shape>, shared);
    if (threadIdx.x == 0)
        ordered_barriers(shared);
    __syncthreads();
    if (threadIdx.x < HOPPER_GROUP) {
        registers_decrease<shape::FEW>();
        if (threadIdx.x < SR_WARP)
            ordered_produce<shape>(task, shared);
        else if (threadIdx.x == SR_WARP || threadIdx.x == 2 * SR_WARP)
            ordered_add<shape>(task, shared, (int)threadIdx.x / SR_WARP - 1);
    } else {
        registers_increase<shape::MANY>();
        ordered_consume<D, rule>(task, shared);
    }
}

/* ---- dQ rows from the sums ---- */

/* A warpgroup owns 64 queries of one head: reads their dQ sums from global memory in the
 * accumulator layout in which they were added, applies the feature's backward and the inverse RoPE,
 * and stores bf16 rows. Each number is read and written by one thread; no shared memory. */
template <int D>
__global__ void __launch_bounds__(HOPPER_GROUP)
    ordered_rows(const hopper_view call, const float *sums, int tiles) {
    const int head = (int)blockIdx.x / tiles, tile = (int)blockIdx.x % tiles;
    const int b = head / call.H;
    const float4 *from = reinterpret_cast<const float4 *>(sums) +
                         (int64_t)blockIdx.x * (HOPPER_ROWS * D / 4) + threadIdx.x;
    float dq[D / 2];
    if (tile * HOPPER_ROWS >= call.T)
        return;
    SR_UNROLL
    for (int i = 0; i < D / 8; i++) {
        const float4 four = from[i * HOPPER_GROUP];
        dq[4 * i] = four.x;
        dq[4 * i + 1] = four.y;
        dq[4 * i + 2] = four.z;
        dq[4 * i + 3] = four.w;
    }
    store_feature_rows<D>(call.d_q, call.raw_q, dq, call, b, head - b * call.H, tile * HOPPER_ROWS);
}

/* ---- launching ---- */

typedef void ordered_function(const ordered_task);

template <int D> static ordered_function *ordered_choose(const hopper_view &call) {
    return is_bounded(call.score) ? ordered_kernel<D, backward_rule<WEIGHT_EXP, true>>
                                  : ordered_kernel<D, backward_rule<WEIGHT_EXP, false>>;
}

template <int D>
static cudaError_t ordered(const hopper_view &call, const hopper_sums &memory, int multiprocessors,
                           cudaStream_t stream) {
    using shape = ordered_shape<D>;
    const int key_tiles = (call.T + shape::KEYS - 1) / shape::KEYS;
    const int query_tiles = (call.T + shape::QUERIES - 1) / shape::QUERIES;
    const int rows = query_tiles * (shape::QUERIES / HOPPER_ROWS);
    ordered_task task = {};
    task.backward.call = call;
    /* What concurrently running blocks read and add to takes at most half of the L2 cache. */
    task.backward.order =
        tile_order(call.B * call.Hkv, key_tiles, (int64_t)call.T * D * 16 * call.group, 1);
    task.backward.drawn = memory.drawn;
    task.sums = memory.sums;
    task.tickets = memory.tickets;
    task.query_tiles = query_tiles;
    cudaError_t error = cudaMemsetAsync(memory.drawn, 0, sizeof(int), stream);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(memory.tickets, 0,
                                (size_t)call.B * (size_t)call.H * (size_t)query_tiles *
                                    shape::GROUPS * sizeof(int),
                                stream);
    if (error == cudaSuccess)
        error = backward_maps(&task.backward, shape::QUERIES, HOPPER_ROWS);
    if (error == cudaSuccess)
        error =
            sr_launch(ordered_choose<D>(call), backward_grid(task.backward.order, multiprocessors),
                      dim3(shape::THREADS), sizeof(ordered_shared<shape>), stream, task);
    if (error == cudaSuccess)
        error = sr_launch(ordered_rows<D>, dim3((unsigned)(call.B * call.H * rows)),
                          dim3(HOPPER_GROUP), 0, stream, call, memory.sums, rows);
    return error;
}

cudaError_t hopper_backward_ordered(const hopper_view &call, const hopper_sums &memory,
                                    int multiprocessors, cudaStream_t stream) {
    return call.D == 64 ? ordered<64>(call, memory, multiprocessors, stream)
                        : ordered<128>(call, memory, multiprocessors, stream);
}
