/* chain_kernel.cu: products of few rows and attention of one token, one after the other in one kernel.
 *
 * A block stays on each multiprocessor. What it waits for from others comes as marked numbers, so that a task begins a
 * microsecond after the last number of the one in front is there. Weights depend on nobody: one warp of the block does
 * nothing but ask for them, tile after tile into a ring in shared memory, and is tasks ahead of the others. Three more end
 * rows, while the workers already take the weights of the next task into their registers.
 *
 * A product: a tile is four pairs of columns of the result. The other warps share the numbers of x, 64 each, and
 * multiply them with the weights of up to four tiles; the sums of the warps are added up in their order. Pairs belong
 * together: a channel and the one it turns with (rotary position), a gate and its up (SwiGLU), or neighbours. */
#include "device/cuda/attention_one.h"
#include "device/cuda/chain_tasks.h"
#include "device/cuda/check.h"
#include "device/cuda/hopper.h"

enum {
    WARPS = 16, /* that compute */
    WORKERS = WARPS * SR_WARP,
    ENDERS = 3,                                     /* warps that end rows */
    THREADS = WORKERS + SR_WARP + ENDERS * SR_WARP, /* one more warp loads */
    ROWS = SR_CHAIN_ROWS,
    TILES = 4,                  /* of a block at a time */
    COLUMNS = 8,                /* of a tile */
    GROUP = 64,                 /* numbers of x that a warp takes at a time: two halves */
    CHUNK = WARPS * GROUP,      /* that the block takes at a time */
    ROW_BYTES = CHUNK * 2 + 64, /* of a column's weights: neighbours begin in other banks */
    RING = 8,                   /* tiles that are there or on their way */
    X_STRIDE = 48,              /* of GROUP / 2 pairs, so that eight lanes read from all banks */
    HELPER_REGISTERS = 64,
    WORKER_REGISTERS = 104,
    /* Barriers: of the workers; of these and those who end rows, for one and the other half of the sums. */
    WORK = 1,
    SUMMED = 2,
    ENDED = 4,
    DONE = 6,
    MEETING = WORKERS + ENDERS * SR_WARP
};

struct chain_memory {
    alignas(16) unsigned char ring[RING][COLUMNS][ROW_BYTES];
    uint64_t full[RING], empty[RING];
    uint32_t mark;                    /* of this run */
    int64_t position[SR_CHAIN_TASKS]; /* of the new token, for tasks of attention */
    alignas(16) uint32_t x[WARPS][ROWS][X_STRIDE];
    alignas(16) float sums[2][ROWS][WARPS][TILES * COLUMNS]; /* every other round has the same */
    float squares[2][ROWS][WARPS];
    one_memory<128, WARPS> attended;
    alignas(16) sr_bf16 q[128], k[128], v[128]; /* of the new token */
    alignas(16) unsigned char list[SR_CHAIN_BYTES];
};

SR_DEVICE const sr_chain_list &list_of(const chain_memory &memory) {
    return *reinterpret_cast<const sr_chain_list *>(memory.list);
}

template <class Task> SR_DEVICE const Task &task_at(const chain_memory &memory, int number) {
    return *reinterpret_cast<const Task *>(memory.list + list_of(memory).entry[number].offset);
}

/* ---- which columns ---- */

struct column_pair {
    int first, second;
};

SR_DEVICE column_pair pair_of(const sr_chain_product &p, int pair) {
    if (p.swiglu)
        return {pair, pair + p.turned};
    if (2 * pair >= p.turned)
        return {2 * pair, 2 * pair + 1};
    const int half = p.D / 2, first = pair + pair / half * half;
    return {first, first + half};
}

/* Column n of a tile: four first ones, then their seconds. */
SR_DEVICE int column_of(const sr_chain_product &p, int tile, int n) {
    const column_pair pair = pair_of(p, tile * 4 + n % 4);
    return n < 4 ? pair.first : pair.second;
}

/* ---- weights ---- */

/* The place in the ring of the tile that is number `tile` of all, and which time round it is. */
SR_DEVICE int slot_of(int tile) {
    return tile % RING;
}

SR_DEVICE int turn_of(int tile) {
    return tile / RING % 2;
}

/* The loading warp: the weights of one tile for numbers `first` .. of x. */
SR_DEVICE void load_tile(const sr_chain_product &p, int tile, int first, chain_memory &memory,
                         int number) {
    const int lane = (int)threadIdx.x % SR_WARP, bytes = min((int)CHUNK, p.K - first) * 2;
    const int slot = slot_of(number);
    mbarrier_wait(&memory.empty[slot], turn_of(number) ^ 1);
    if (lane == 0)
        mbarrier_arrive_expect(&memory.full[slot], COLUMNS * bytes);
    __syncwarp();
    if (lane < COLUMNS) {
        const int64_t column = min(column_of(p, tile, lane), p.N - 1);
        bulk_load(memory.ring[slot][lane], (const sr_bf16 *)p.weight + column * p.K + first, bytes,
                  &memory.full[slot]);
    }
}

/* In the order in which `multiply` takes them. */
SR_DEVICE void load_all(chain_memory &memory) {
    int number = 0;
    for (int n = 0; n < list_of(memory).count; n++) {
        if (list_of(memory).entry[n].kind != SR_CHAIN_PRODUCT)
            continue;
        const sr_chain_product_task &task = task_at<sr_chain_product_task>(memory, n);
        for (int round = (int)blockIdx.x; round < task.tiles; round += TILES * (int)gridDim.x)
            for (int first = 0; first < task.of.K; first += CHUNK)
                for (int i = 0; i < TILES; i++)
                    if (round + i * (int)gridDim.x < task.tiles)
                        load_tile(task.of, round + i * (int)gridDim.x, first, memory, number++);
    }
}

/* A worker's part of the next tile, and the warp needs it no more: those of group number `warp`, in halves; lanes 4 g ..
 * have column g. `there`: whether x has such a group. */
SR_DEVICE void take_tile(uint4 (&weights)[2], bool there, chain_memory &memory, int number) {
    const int slot = slot_of(number);
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    mbarrier_wait(&memory.full[slot], turn_of(number));
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (there)
            weights[half] = *reinterpret_cast<const uint4 *>(
                &memory.ring[slot][lane / 4][warp * GROUP * 2 + half * GROUP + lane % 4 * 16]);
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(&memory.empty[slot]);
}

/* ---- reading and writing rows ---- */

SR_DEVICE float load_plain(const sr_chain_place &place, int64_t row, int64_t column) {
    const int64_t at = row * place.stride + column;
    return place.dtype == SRNN_BF16 ? to_float(((const sr_bf16 *)place.data)[at])
                                    : ((const float *)place.data)[at];
}

/* Row `row` alone. */
SR_DEVICE sr_chain_source row_of(sr_chain_source source, int row) {
    const int64_t bytes = source.plain.dtype == SRNN_BF16 ? 2 : 4;
    if (source.marked)
        source.marked += row * source.marked_stride;
    else
        source.plain.data = (char *)source.plain.data + row * source.plain.stride * bytes;
    return source;
}

/* x[row] = columns `column` (even) and the next of the first `rows` rows, once they are there. Lanes that want none say
 * so; all lanes of the warp come together. */
template <int COUNT>
SR_DEVICE void load_pairs(float (&x)[COUNT][2], const sr_chain_source &source, int rows,
                          int64_t column, bool wanted, uint32_t mark) {
    if (!source.marked) {
#pragma unroll
        for (int row = 0; row < COUNT; row++)
            if (row < rows && wanted) {
                x[row][0] = load_plain(source.plain, row, column);
                x[row][1] = load_plain(source.plain, row, column + 1);
            }
        return;
    }
    for (;;) {
        bool there = true;
#pragma unroll
        for (int row = 0; row < COUNT; row++) {
            if (row >= rows || !wanted)
                continue;
            sr_marked two[2];
            load_marked(two, source.marked + row * source.marked_stride + column);
            there = there && two[0].mark == mark && two[1].mark == mark;
            x[row][0] = two[0].number;
            x[row][1] = two[1].number;
        }
        if (warp_ballot(there) == SR_FULL_WARP)
            return;
        wait_a_moment();
    }
}

SR_DEVICE void store_row(const sr_chain_target &target, int64_t row, int64_t column, float number,
                         uint32_t mark) {
    store_marked(target.marked + row * target.marked_stride + column, number, mark);
    const int64_t at = row * target.plain.stride + column;
    if (!target.plain.data)
        return;
    if (target.plain.dtype == SRNN_BF16)
        store_number((sr_bf16 *)target.plain.data + at, number);
    else
        store_number((float *)target.plain.data + at, number);
}

/* ---- the end of a product ---- */

/* What a lane of the warp that ends a row knows before the sums are there: its column of the round's, and what becomes
 * of the sum. */
struct column_end {
    int pair;
    int column; /* negative: none */
    float addend, cosine, sine;
};

SR_DEVICE column_end column_end_of(const sr_chain_product_task &task, int first_tile, int row,
                                   uint32_t mark) {
    const sr_chain_product &p = task.of;
    const int lane = (int)threadIdx.x % SR_WARP;
    const int tile = first_tile + lane / COLUMNS * (int)gridDim.x, n = lane % COLUMNS;
    column_end end = {tile * 4 + n % 4, -1, 0, 1, 0};
    if (tile < task.tiles && end.pair < task.pairs && column_of(p, tile, n) < p.N)
        end.column = column_of(p, tile, n);
    if (task.c.marked || task.c.plain.data) {
        float two[1][2] = {};
        load_pairs(two, row_of(task.c, row), 1, max(end.column, 0) / 2 * 2, end.column >= 0, mark);
        end.addend = end.column % 2 == 0 ? two[0][0] : two[0][1];
    }
    if (!p.swiglu && end.column >= 0 && end.column < p.turned) {
        const float *const angles = p.angles + (int64_t)p.positions[row] * p.D;
        end.cosine = angles[end.pair % (p.D / 2)];
        end.sine = angles[p.D / 2 + end.pair % (p.D / 2)];
        end.sine = n < 4 ? -end.sine : end.sine;
    }
    return end;
}

/* The warp ends a row, a lane a column. */
SR_DEVICE void end_row(const sr_chain_product_task &task, const column_end &end, int row,
                       const chain_memory &memory, int parity) {
    const int lane = (int)threadIdx.x % SR_WARP;
    const uint32_t mark = memory.mark;
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        sum += memory.sums[parity][row][w][lane];
        if (task.of.norm)
            squares += memory.squares[parity][row][w];
    }
    if (task.of.norm)
        sum *= 1 / sqrtf(squares / (float)task.of.K + task.of.epsilon);
    const float other = shuffle_xor(sum, COLUMNS / 2);
    if (end.column < 0 || (task.of.swiglu && lane % COLUMNS >= 4))
        return;
    if (task.of.swiglu)
        store_row(task.d, row, end.pair, other * sum / (1 + expf(-sum)), mark);
    else
        store_row(task.d, row, end.column, fmaf(sum, end.cosine, fmaf(other, end.sine, end.addend)),
                  mark);
}

/* The warps that end rows: they look ahead for what they need, and then wait for the workers' sums. */
SR_DEVICE void end_all(chain_memory &memory) {
    const int own = (int)(threadIdx.x - WORKERS) / SR_WARP - 1;
    int rounds = 0;
    for (int n = 0; n < list_of(memory).count; n++) {
        if (list_of(memory).entry[n].kind != SR_CHAIN_PRODUCT)
            continue;
        const sr_chain_product_task &task = task_at<sr_chain_product_task>(memory, n);
        for (int round = (int)blockIdx.x; round < task.tiles; round += TILES * (int)gridDim.x) {
            const int parity = rounds++ % 2;
            for (int row = own; row == own || row < task.of.M; row += ENDERS) {
                column_end end = {};
                if (row < task.of.M)
                    end = column_end_of(task, round, row, memory.mark);
                if (row == own)
                    named_barrier_sync(SUMMED + parity, MEETING);
                if (row < task.of.M)
                    end_row(task, end, row, memory, parity);
            }
            named_barrier_arrive(ENDED + parity, MEETING);
        }
    }
    named_barrier_arrive(DONE, MEETING);
}

/* ---- a product ---- */

/* a[half] = the lane's part of 64 numbers of x from `column` on, times the norm's weights, as the instruction wants it;
 * squares[row] += theirs. */
SR_DEVICE void take_x(uint4 (&a)[2], float (&squares)[ROWS], const sr_chain_product_task &task,
                      chain_memory &memory, int column, float2 norm) {
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    float x[ROWS][2] = {};
    load_pairs(x, task.x, task.of.M, column + 2 * lane, true, memory.mark);
    __syncwarp(); /* all have read what stood there */
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        squares[row] = fmaf(x[row][0], x[row][0], fmaf(x[row][1], x[row][1], squares[row]));
        if (row < task.of.M)
            memory.x[warp][row][lane] = pack_bf16(x[row][0] * norm.x, x[row][1] * norm.y);
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        a[half] = make_uint4(0, 0, 0, 0);
        if (lane / 4 < task.of.M)
            a[half] = *reinterpret_cast<const uint4 *>(
                &memory.x[warp][lane / 4][half * GROUP / 4 + lane % 4 * 4]);
    }
}

/* Rows g (the upper half of the instruction's rows is none) times eight columns; which numbers of x meet is for the two
 * of them to agree upon. */
SR_DEVICE void multiply_piece(float (&c)[4], const uint4 &x, const uint4 &weights) {
    const uint32_t first[4] = {x.x, 0, x.y, 0}, second[4] = {x.z, 0, x.w, 0};
    const uint32_t low[2] = {weights.x, weights.y}, high[2] = {weights.z, weights.w};
    mma_m16n8k16(c, first, low);
    mma_m16n8k16(c, second, high);
}

/* The warp's sums over its numbers of x, into shared memory. */
SR_DEVICE void leave_round(chain_memory &memory, int parity, const float (&c)[TILES][4],
                           const float (&squares)[ROWS], const sr_chain_product &p) {
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    if (lane / 4 < p.M)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            float *const to = &memory.sums[parity][lane / 4][warp][tile * COLUMNS + lane % 4 * 2];
            *reinterpret_cast<float2 *>(to) = make_float2(c[tile][0], c[tile][1]);
        }
#pragma unroll
    for (int row = 0; row < ROWS; row++)
        if (row < p.M && p.norm) {
            const float sum = warp_sum(squares[row]);
            if (lane == 0)
                memory.squares[parity][row][warp] = sum;
        }
}

/* `tiles`, `rounds`: how many the block has had. */
SR_DEVICE void multiply(const sr_chain_product_task &task, chain_memory &memory, int &tiles,
                        int &rounds) {
    const int warp = (int)threadIdx.x / SR_WARP;
    for (int round = (int)blockIdx.x; round < task.tiles; round += TILES * (int)gridDim.x) {
        float c[TILES][4] = {}, squares[ROWS] = {};
        for (int first = 0; first < task.of.K; first += CHUNK) {
            const bool there = first + warp * GROUP < task.of.K;
            const int column = first + warp * GROUP;
            uint4 weights[TILES][2] = {}, x[2];
            float2 norm = make_float2(1, 1); /* asked for before anything is waited for */
            if (there && task.of.norm)
                norm = *reinterpret_cast<const float2 *>(task.of.norm + column +
                                                         2 * (threadIdx.x % SR_WARP));
#pragma unroll
            for (int i = 0; i < TILES; i++)
                if (round + i * (int)gridDim.x < task.tiles)
                    take_tile(weights[i], there, memory, tiles++);
            if (!there)
                continue;
            take_x(x, squares, task, memory, column, norm);
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int i = 0; i < TILES; i++)
                    if (round + i * (int)gridDim.x < task.tiles)
                        multiply_piece(c[i], x[half], weights[i][half]);
        }
        const int parity = rounds % 2;
        if (rounds++ >= 2)
            named_barrier_sync(ENDED + parity, MEETING);
        leave_round(memory, parity, c, squares, task.of);
        named_barrier_arrive(SUMMED + parity, MEETING);
    }
}

/* ---- attention ---- */

/* The head's row of `width` numbers of sequence b, by one warp. */
SR_DEVICE void take_row(sr_bf16 *to, const sr_chain_source &source, int b, int head, int width,
                        uint32_t mark) {
    const int lane = (int)threadIdx.x % SR_WARP;
    const sr_chain_source row = row_of(source, b);
    for (int first = 0; first < width; first += 2 * SR_WARP) {
        const int column = first + 2 * lane;
        float x[1][2] = {};
        load_pairs(x, row, 1, head * width + column, column < width, mark);
        if (column < width) {
            to[column] = to_bf16(x[0][0]);
            to[column + 1] = to_bf16(x[0][1]);
        }
    }
}

/* Brings keys and values of the block's share nearer while the new token is being made. */
template <int WIDTH>
SR_DEVICE void fetch_share(const sr_chain_attention_task &task, const one_place &at,
                           const key_walk &walk) {
    using Row = sr_eight_row<WIDTH>;
    for (int64_t from = walk.first; from < at.position; from += walk.step)
#pragma unroll
        for (int i = 0; i < SR_ONE_TOGETHER; i++) {
            const int64_t key = at.cache + from + i * Row::rows + Row::row();
            const int column = Row::column(0);
            if (key >= at.cache + at.position)
                continue;
            if (column < task.call.D)
                prefetch(task.memory.keys + key * task.call.D + column);
            if (column < task.call.Dv)
                prefetch(task.memory.values + key * task.call.Dv + column);
        }
}

/* One warp: this block's sums for the first block of the row. */
template <class Row>
SR_DEVICE void store_partial(sr_marked *to, const key_sums<Row::count> &sums, int Dv,
                             uint32_t mark) {
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        if (Row::column(m) < Dv)
            store_marked(to + Row::column(m), sums.x[m], mark);
    if (Row::column(0) == 0) {
        store_marked(to + sr_chain_partial(Dv) - 2, sums.sum, mark);
        store_marked(to + sr_chain_partial(Dv) - 1, sums.maximum, mark);
    }
}

/* Adds those of `count` other blocks, in their order. */
template <class Row>
SR_DEVICE void add_partials(key_sums<Row::count> &all, const sr_marked *from, int count,
                            const sr_chain_attention_task &task, uint32_t mark) {
    constexpr int OTHERS = SR_ONE_PARTS - 1;
    const int lane = (int)threadIdx.x % SR_WARP, Dv = task.call.Dv, size = sr_chain_partial(Dv);
    const sr_chain_source source = {from, size, {}};
    float own[1][2] = {{0, -INFINITY}}; /* sum and maximum of other block number `lane` */
    load_pairs(own, source, 1, (int64_t)lane * size + size - 2, lane < count, mark);
    const float before = all.maximum, unit = unit_of(task.call.score);
    float factor = lane < count ? 1 : 0, scale = 1;
    if (task.call.score.maximum) {
        all.maximum = fmaxf(before, warp_maximum(own[0][1]));
        factor = own[0][1] == -INFINITY ? 0 : exp2f((own[0][1] - all.maximum) * unit);
        scale = before == -INFINITY ? 0 : exp2f((before - all.maximum) * unit);
    }
    sums_scale(all, scale);
    for (int other = 0; other < count; other++)
        all.sum = fmaf(shuffle(factor, other), shuffle(own[0][0], other), all.sum);
#pragma unroll
    for (int m = 0; m < Row::count; m += 2) {
        float x[OTHERS][2] = {};
        load_pairs(x, source, count, Row::column(m), Row::column(m) < Dv, mark);
#pragma unroll
        for (int other = 0; other < OTHERS; other++) {
            const float share = shuffle(factor, other);
            all.x[m] = fmaf(share, x[other][0], all.x[m]);
            all.x[m + 1] = fmaf(share, x[other][1], all.x[m + 1]);
        }
    }
}

/* The first warp, when the warps have left their sums. */
template <int WIDTH>
SR_DEVICE void end_head(const sr_chain_attention_task &task, const chain_memory &memory,
                        const one_place &at, int part, const one_share<WIDTH, WARPS> &share) {
    using Row = sr_warp_row<WIDTH>;
    const uint32_t mark = memory.mark;
    const sr_attention_view<sr_bf16> &call = task.call;
    sr_marked *const partials =
        task.partials + at.row * task.parts * (int64_t)sr_chain_partial(call.Dv);
    key_sums<Row::count> all;
    add_warps(all, reinterpret_cast<const one_memory<WIDTH, WARPS> &>(memory.attended), share.warps,
              call.score);
    if (part > 0) {
        store_partial<Row>(partials + part * sr_chain_partial(call.Dv), all, call.Dv, mark);
        return;
    }
    if (share.shares > 1)
        add_partials<Row>(all, partials + sr_chain_partial(call.Dv), share.shares - 1, task, mark);
    output_one<sr_bf16, WIDTH>(call, at, all);
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        if (Row::column(m) < call.Dv)
            store_row(task.o, at.b, at.h * call.Dv + Row::column(m), all.x[m], mark);
}

/* A call, so that products need not keep registers for it. */
template <int WIDTH> static __device__ __noinline__ void attend(chain_memory &memory, int number) {
    const sr_chain_attention_task &task = task_at<sr_chain_attention_task>(memory, number);
    const uint32_t mark = memory.mark;
    const sr_attention_view<sr_bf16> &call = task.call;
    const int warp = (int)threadIdx.x / SR_WARP;
    for (int unit = (int)blockIdx.x; unit < call.B * call.H * task.parts; unit += (int)gridDim.x) {
        const int part = unit % task.parts;
        one_place at = place_of(call, task.memory, unit / task.parts);
        at.position = memory.position[number];
        const one_share<WIDTH, WARPS> share(at.position, part, task.parts);
        if (part >= share.shares)
            continue;
        fetch_share<WIDTH>(task, at, share.walk);
        named_barrier_sync(WORK, WORKERS); /* nobody needs the token before any more */
        if (warp == 0)
            take_row(memory.q, task.q, at.b, at.h, call.D, mark);
        else if (warp == 1)
            take_row(memory.k, task.k, at.b, at.kv, call.D, mark);
        else if (warp == 2)
            take_row(memory.v, task.v, at.b, at.kv, call.Dv, mark);
        named_barrier_sync(WORK, WORKERS);
        const one_token<sr_bf16> token = {memory.q, memory.k, memory.v};
        key_sums<8> sums;
        sums_start(sums, call.score);
        attend_keys<sr_bf16, WIDTH>(sums, call, task.memory, at, token, share.walk);
        leave_sums(reinterpret_cast<one_memory<WIDTH, WARPS> &>(memory.attended), sums,
                   unit_of(call.score));
        if (part == 0 && at.h % call.group == 0)
            append_one(call, task.memory, at, token, WORKERS);
        named_barrier_sync(WORK, WORKERS);
        if (warp == 0)
            end_head<WIDTH>(task, memory, at, part, share);
    }
}

/* ---- all of it ---- */

/* When all blocks are done, positions and the mark move on. */
SR_DEVICE void end_run(const chain_memory &memory, sr_chain_state *state) {
    const sr_chain_list &list = list_of(memory);
    named_barrier_sync(DONE, MEETING);
    if (threadIdx.x != 0 || atomicAdd(&state->done, 1) != (int)gridDim.x - 1)
        return;
    state->done = 0;
    state->mark = memory.mark + 1 == 0 ? 1 : memory.mark + 1;
    for (int n = 0; n < list.count; n++)
        if (list.entry[n].kind == SR_CHAIN_ATTENTION)
            ++*task_at<sr_chain_attention_task>(memory, n).call.carry.position;
}

SR_DEVICE void work(chain_memory &memory) {
    int tiles = 0, rounds = 0;
    for (int n = 0; n < list_of(memory).count; n++) {
        if (list_of(memory).entry[n].kind == SR_CHAIN_PRODUCT) {
            multiply(task_at<sr_chain_product_task>(memory, n), memory, tiles, rounds);
            continue;
        }
        const sr_chain_attention_task &task = task_at<sr_chain_attention_task>(memory, n);
        if (max(task.call.D, task.call.Dv) <= 64)
            attend<64>(memory, n);
        else
            attend<128>(memory, n);
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    run_chain(const sr_chain_list *list, sr_chain_state *state) {
    SR_SHARED(chain_memory, memory);
    const int pieces = list->bytes / 16;
    for (int n = (int)threadIdx.x; n < pieces; n += THREADS)
        reinterpret_cast<uint4 *>(memory->list)[n] = reinterpret_cast<const uint4 *>(list)[n];
    if (threadIdx.x == 0) {
        memory->mark = state->mark;
        for (int slot = 0; slot < RING; slot++) {
            mbarrier_init(&memory->full[slot], 1);
            mbarrier_init(&memory->empty[slot], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    /* Read once, while everything is being fetched anyway. */
    for (int n = (int)threadIdx.x; n < list_of(*memory).count; n += THREADS)
        if (list_of(*memory).entry[n].kind == SR_CHAIN_ATTENTION)
            memory->position[n] = task_at<sr_chain_attention_task>(*memory, n).call.position();
    __syncthreads();
    if (threadIdx.x >= WORKERS) {
        registers_decrease<HELPER_REGISTERS>();
        if (threadIdx.x < WORKERS + SR_WARP)
            load_all(*memory);
        else
            end_all(*memory);
        return;
    }
    registers_increase<WORKER_REGISTERS>();
    work(*memory);
    end_run(*memory, state);
}

srnn_status sr_chain_launch(const sr_chain_list *list, sr_chain_state *state, int blocks,
                            cudaStream_t stream) {
    static_assert(sizeof(chain_memory) <= 227 * 1024, "what a block of Hopper has");
    SR_CUDA(sr_launch_together(run_chain, dim3((unsigned)blocks), dim3(THREADS),
                               sizeof(chain_memory), stream, list, state));
    return SRNN_OK;
}
