/* persistent.cu: the persistent decode kernel: GEMMs of few rows and attention of one token, one
 * after the other in one kernel.
 *
 * One block stays on each multiprocessor. Dependencies between blocks are marked numbers (a value
 * with the run's mark in one word), so that a task starts about a microsecond after the last number
 * of the previous one is written. Weights depend on nothing: one warp of the block only loads them,
 * tile after tile by bulk copies into a ring in shared memory, tasks ahead of the others. Three
 * more warps run epilogues of rows, while the workers already load the weights of the next task
 * into registers.
 *
 * A GEMM: a tile is four pairs of columns of the result. The worker warps share the numbers of x,
 * 64 each, and multiply them with the weights of up to four tiles; the warps' sums are added in
 * order. Pairs belong together: a channel and its RoPE partner, a gate and its up (SwiGLU), or
 * neighbours. */
#include "attention/cuda/decode/one_token.h"
#include "device/cuda/check.h"
#include "device/cuda/hopper.h"
#include "ops/cuda/decode/tasks.h"

enum {
    WARPS = 16, /* that compute */
    WORKERS = WARPS * SR_WARP,
    ENDERS = 3,                                     /* warps that run epilogues */
    THREADS = WORKERS + SR_WARP + ENDERS * SR_WARP, /* one more warp loads weights */
    ROWS = SR_DECODE_ROWS,
    TILES = 4,                  /* of a block at a time */
    COLUMNS = 8,                /* of a tile */
    GROUP = 64,                 /* numbers of x per warp and step: two halves */
    CHUNK = WARPS * GROUP,      /* numbers of x per block and step */
    ROW_BYTES = CHUNK * 2 + 64, /* of a column's weights: neighbours start in other banks */
    RING = 8,                   /* tiles that have landed or are in flight */
    X_STRIDE = 48,              /* of GROUP / 2 pairs, so that eight lanes read from all banks */
    HELPER_REGISTERS = 64,
    WORKER_REGISTERS = 104,
    /* Named barriers: of the workers; of workers and epilogue warps, for either half of the
     * sums. */
    WORK = 1,
    SUMMED = 2,
    ENDED = 4,
    DONE = 6,
    MEETING = WORKERS + ENDERS * SR_WARP
};

/* The progress of a worker warp. */
struct progress {
    int tasks, tiles, rounds;
};

struct chain_memory {
    alignas(16) unsigned char ring[RING][COLUMNS][ROW_BYTES];
    uint64_t full[RING], empty[RING];
    uint32_t mark;                 /* of this run */
    progress past[WARPS];          /* in shared memory, since tasks need all registers */
    int position[SR_DECODE_TASKS]; /* of the new token, for tasks of attention */
    alignas(16) uint32_t x[WARPS][ROWS][X_STRIDE];
    alignas(16) float sums[2][ROWS][WARPS][TILES * COLUMNS]; /* double buffered by round */
    float squares[2][ROWS][WARPS];
    one_memory<128, WARPS> attended;
    alignas(16) sr_bf16 token[3][128]; /* q, k and v of the new one */
    alignas(16) unsigned char list[SR_DECODE_BYTES];
};

SR_DEVICE const sr_decode_list &list_of(const chain_memory &memory) {
    return *reinterpret_cast<const sr_decode_list *>(memory.list);
}

template <class Task> SR_DEVICE const Task &task_at(const chain_memory &memory, int number) {
    return *reinterpret_cast<const Task *>(memory.list + list_of(memory).entry[number].offset);
}

/* ---- column pairs ---- */

struct column_pair {
    int first, second;
};

SR_DEVICE column_pair pair_of(const sr_decode_gemm &p, int pair) {
    if (p.swiglu)
        return {pair, pair + p.pair_columns};
    if (2 * pair >= p.pair_columns)
        return {2 * pair, 2 * pair + 1};
    const int half = p.D / 2, first = pair + pair / half * half;
    return {first, first + half};
}

/* Column n of a tile: four first ones, then their partners. */
SR_DEVICE int column_of(const sr_decode_gemm &p, int tile, int n) {
    const column_pair pair = pair_of(p, tile * 4 + n % 4);
    return n < 4 ? pair.first : pair.second;
}

/* ---- weights ---- */

/* The slot in the ring of tile number `tile` of all, and the parity of its pass. */
SR_DEVICE int slot_of(int tile) {
    return (int)((unsigned)tile % RING);
}

SR_DEVICE int parity_of(int tile) {
    return (int)((unsigned)tile / RING % 2);
}

/* The loading warp: bulk-copies the weights of one tile for numbers `first` .. of x. */
SR_DEVICE void load_tile(const sr_decode_gemm &p, int tile, int first, chain_memory &memory,
                         int number) {
    const int lane = (int)(threadIdx.x % SR_WARP), bytes = min((int)CHUNK, p.K - first) * 2;
    const int slot = slot_of(number);
    mbarrier_wait(&memory.empty[slot], parity_of(number) ^ 1);
    if (lane == 0)
        mbarrier_arrive_expect(&memory.full[slot], COLUMNS * bytes);
    __syncwarp();
    if (lane < COLUMNS) {
        const int64_t column = min(column_of(p, tile, lane), p.N - 1);
        bulk_load(memory.ring[slot][lane], (const sr_bf16 *)p.weight + column * p.K + first, bytes,
                  &memory.full[slot]);
    }
}

/* In the order in which the workers consume them. */
SR_DEVICE void load_all(chain_memory &memory) {
    int number = 0;
    for (int n = 0; n < list_of(memory).count; n++) {
        if (list_of(memory).entry[n].kind != SR_DECODE_GEMM)
            continue;
        const sr_decode_gemm_task &task = task_at<sr_decode_gemm_task>(memory, n);
        for (int round = (int)blockIdx.x; round < task.tiles; round += TILES * (int)gridDim.x)
            for (int first = 0; first < task.of.K; first += CHUNK)
                for (int i = 0; i < TILES; i++)
                    if (round + i * (int)gridDim.x < task.tiles)
                        load_tile(task.of, round + i * (int)gridDim.x, first, memory, number++);
    }
}

/* Loads a worker's part of the next tile and releases it: numbers of group `warp`, in halves; lanes
 * 4 g .. have column g. `there`: whether x has such a group. */
SR_DEVICE void take_tile(uint4 (&weights)[2], bool there, chain_memory &memory, int number) {
    const int slot = slot_of(number);
    const int warp = (int)(threadIdx.x / SR_WARP), lane = (int)(threadIdx.x % SR_WARP);
    mbarrier_wait(&memory.full[slot], parity_of(number));
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

/* Whether there is such a row, of MOST at most. One row is the main case and is compiled for
 * itself, since the instructions of all warps of a block add up. */
template <int MOST> SR_DEVICE bool has_row(int rows, int row) {
    return MOST == 1 || row < rows;
}

SR_DEVICE float load_plain(const sr_decode_place &place, int64_t row, int64_t column) {
    const int64_t at = row * place.stride + column;
    return place.dtype == SRNN_BF16 ? to_float(((const sr_bf16 *)place.data)[at])
                                    : ((const float *)place.data)[at];
}

/* The copy that this block reads. */
SR_DEVICE const sr_marked *marked_of(const sr_decode_source &source, int rows) {
    return source.marked + ((int)blockIdx.x & (source.copies - 1)) * rows * source.marked_stride;
}

/* Row `row` alone, of `rows`. */
SR_DEVICE sr_decode_source row_of(sr_decode_source source, int rows, int row) {
    const int64_t bytes = source.plain.dtype == SRNN_BF16 ? 2 : 4;
    if (source.marked) {
        source.marked = marked_of(source, rows) + row * source.marked_stride;
        source.copies = 1;
    } else {
        source.plain.data = (char *)source.plain.data + row * source.plain.stride * bytes;
    }
    return source;
}

/* x[chunk][row] = columns `column` + chunk * CHUNK (even) and the next of the first `rows` rows,
 * polled until their marks are right; chunks that start at `end` or later are skipped. All lanes of
 * the warp together. */
template <int CHUNKS, int COUNT>
SR_DEVICE void load_pairs(float (&x)[CHUNKS][COUNT][2], const sr_decode_source &source, int rows,
                          int column, int end, uint32_t mark) {
    if (!source.marked) {
#pragma unroll
        for (int n = 0; n < 2 * CHUNKS * COUNT; n++) {
            const int row = n / 2 % COUNT, at = column + n / 2 / COUNT * CHUNK;
            if (has_row<COUNT>(rows, row) && at < end)
                x[n / 2 / COUNT][row][n % 2] = load_plain(source.plain, row, at + n % 2);
        }
        return;
    }
    const sr_marked *const own = marked_of(source, COUNT == 1 ? 1 : rows) + column;
    for (;;) {
        bool there = true;
#pragma unroll
        for (int n = 0; n < CHUNKS * COUNT; n++) {
            const int row = n % COUNT, at = column + n / COUNT * CHUNK;
            if (!has_row<COUNT>(rows, row) || at >= end)
                continue;
            sr_marked two[2];
            load_marked(two, own + row * source.marked_stride + n / COUNT * CHUNK);
            there = there && two[0].mark == mark && two[1].mark == mark;
            x[n / COUNT][row][0] = two[0].number;
            x[n / COUNT][row][1] = two[1].number;
        }
        if (warp_ballot(there) == SR_FULL_WARP)
            return;
        wait_a_moment();
    }
}

/* Where the copies of a number of a target's row are written. */
struct number_copies {
    sr_marked *first;
    int64_t step;
    int count;
};

SR_DEVICE number_copies copies_of(const sr_decode_target &target, int rows, int row, int column) {
    return {target.marked + row * target.marked_stride + column,
            (int64_t)rows * target.marked_stride, target.copies};
}

SR_DEVICE void store_copies(const number_copies &copies, float number, uint32_t mark) {
    sr_marked *to = copies.first;
#pragma unroll
    for (int copy = 0; copy < SR_DECODE_COPIES; copy++, to += copies.step)
        if (copy < copies.count)
            store_marked(to, number, mark);
}

SR_DEVICE void store_copies_of_two(const number_copies &copies, const float (&two)[2],
                                   uint32_t mark) {
    sr_marked *to = copies.first;
#pragma unroll
    for (int copy = 0; copy < SR_DECODE_COPIES; copy++, to += copies.step)
        if (copy < copies.count)
            store_marked_two(to, two, mark);
}

SR_DEVICE void store_plain(const sr_decode_place &place, int row, int column, float number) {
    const int64_t at = row * place.stride + column;
    if (!place.data)
        return;
    if (place.dtype == SRNN_BF16)
        store_number((sr_bf16 *)place.data + at, number);
    else
        store_number((float *)place.data + at, number);
}

/* ---- epilogue of a GEMM ---- */

/* What a lane of an epilogue warp loads before the sums are ready: which column of d its column of
 * the round becomes, and how. */
struct column_end {
    int column; /* negative: none */
    bool swiglu;
    float addend, cosine, sine;
    float inverse, epsilon; /* of the norm: 1 / K; 0: none */
    number_copies to;
};

SR_DEVICE column_end column_end_of(const sr_decode_gemm_task &task, int first_tile, int row,
                                   uint32_t mark) {
    const sr_decode_gemm &p = task.of;
    const int lane = (int)(threadIdx.x % SR_WARP);
    const int tile = first_tile + lane / COLUMNS * (int)gridDim.x, n = lane % COLUMNS;
    const int pair = tile * 4 + n % 4;
    column_end end = {-1, p.swiglu, 0, 1, 0, p.norm ? 1 / (float)p.K : 0, p.epsilon, {}};
    if (tile < task.tiles && pair < task.pairs && column_of(p, tile, n) < p.N)
        end.column = !p.swiglu ? column_of(p, tile, n) : n < 4 ? pair : -1;
    if (task.c.marked || task.c.plain.data) {
        float two[1][1][2] = {};
        load_pairs(two, row_of(task.c, p.M, row), 1, end.column / 2 * 2, end.column + 1, mark);
        end.addend = end.column % 2 == 0 ? two[0][0][0] : two[0][0][1];
    }
    if (!p.swiglu && end.column >= 0 && end.column < p.pair_columns) {
        const float *const angles = p.angles + (int64_t)p.positions[row] * p.D;
        end.cosine = angles[pair % (p.D / 2)];
        end.sine = angles[p.D / 2 + pair % (p.D / 2)];
        end.sine = n < 4 ? -end.sine : end.sine;
    }
    end.to = copies_of(task.d, p.M, row, end.column);
    return end;
}

/* The warp finishes a row, a lane a column. */
SR_DEVICE void end_row(const sr_decode_gemm_task &task, const column_end &end, int row,
                       const chain_memory &memory, int parity) {
    const int lane = (int)(threadIdx.x % SR_WARP);
    float sum = 0, squares = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        sum += memory.sums[parity][row][w][lane];
    if (end.inverse > 0) {
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            squares += memory.squares[parity][row][w];
        sum *= rsqrt_fast(fmaf(squares, end.inverse, end.epsilon));
    }
    const float other = shuffle_xor(sum, COLUMNS / 2);
    if (end.column < 0)
        return;
    const float number = end.swiglu ? other * sum * reciprocal_fast(1 + exp2_fast(-sum * SR_LOG2_E))
                                    : fmaf(sum, end.cosine, fmaf(other, end.sine, end.addend));
    store_copies(end.to, number, memory.mark);
    store_plain(task.d.plain, row, end.column, number);
}

/* The epilogue warps: they prefetch what they need, and then wait for the workers' sums. */
SR_DEVICE void end_all(chain_memory &memory) {
    const int own = (int)(threadIdx.x - WORKERS) / SR_WARP - 1;
    int rounds = 0;
    for (int n = 0; n < list_of(memory).count; n++) {
        if (list_of(memory).entry[n].kind != SR_DECODE_GEMM)
            continue;
        const sr_decode_gemm_task &task = task_at<sr_decode_gemm_task>(memory, n);
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

/* ---- a GEMM ---- */

/* Where the warp's numbers of x start, for one chunk or two. */
struct warp_columns {
    int first;
    float2 norm[2]; /* the lane's weights of the norm, per chunk */
};

/* `norm` is loaded before the first wait. */
template <int CHUNKS> SR_DEVICE warp_columns columns_of(const sr_decode_gemm &p, int first) {
    warp_columns columns = {first + (int)(threadIdx.x / SR_WARP) * GROUP,
                            {make_float2(1, 1), make_float2(1, 1)}};
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        if (p.norm && columns.first + chunk * CHUNK < p.K)
            columns.norm[chunk] = *reinterpret_cast<const float2 *>(
                p.norm + columns.first + chunk * CHUNK + 2 * (threadIdx.x % SR_WARP));
    return columns;
}

/* x[chunk][half] = the lane's part of 64 numbers of x, times the norm's weights, as the B fragment;
 * squares[row] += their squares. */
template <int CHUNKS, int MOST>
SR_DEVICE void take_x(uint4 (&x)[CHUNKS][2], float (&squares)[MOST],
                      const sr_decode_gemm_task &task, chain_memory &memory,
                      const warp_columns &columns) {
    const int warp = (int)(threadIdx.x / SR_WARP), lane = (int)(threadIdx.x % SR_WARP);
    float numbers[CHUNKS][MOST][2] = {};
    load_pairs(numbers, task.x, task.of.M, columns.first + 2 * lane, task.of.K, memory.mark);
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        __syncwarp(); /* all lanes have read the previous contents */
#pragma unroll
        for (int row = 0; row < MOST; row++) {
            if (!has_row<MOST>(task.of.M, row))
                continue;
            const float first = numbers[chunk][row][0], second = numbers[chunk][row][1];
            squares[row] = fmaf(first, first, fmaf(second, second, squares[row]));
            memory.x[warp][row][lane] =
                pack_bf16(first * columns.norm[chunk].x, second * columns.norm[chunk].y);
        }
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            x[chunk][half] = make_uint4(0, 0, 0, 0);
            if (lane / 4 < (MOST == 1 ? 1 : task.of.M))
                x[chunk][half] = *reinterpret_cast<const uint4 *>(
                    &memory.x[warp][lane / 4][half * GROUP / 4 + lane % 4 * 4]);
        }
    }
}

/* The columns of two tiles times the rows of x, of which the instruction has eight; the order of
 * numbers of x within a fragment is the same for all three. */
SR_DEVICE void multiply_piece(float (&c)[4], const uint4 &tile, const uint4 &next, const uint4 &x) {
    const uint32_t low[4] = {tile.x, next.x, tile.y, next.y}, x_low[2] = {x.x, x.y};
    const uint32_t high[4] = {tile.z, next.z, tile.w, next.w}, x_high[2] = {x.z, x.w};
    mma_m16n8k16(c, low, x_low);
    mma_m16n8k16(c, high, x_high);
}

/* A warp's sums of a round: c[pair] of two tiles, in the accumulator layout. */
template <int MOST> struct round_sums { float c[TILES / 2][4], squares[MOST]; };

/* Stores the warp's sums over its numbers of x to shared memory: column g of a tile is in lanes 4 g
 * .., with two rows each. */
template <int MOST>
SR_DEVICE void leave_round(chain_memory &memory, int parity, const round_sums<MOST> &sums,
                           const sr_decode_gemm &p) {
    const int warp = (int)(threadIdx.x / SR_WARP), lane = (int)(threadIdx.x % SR_WARP);
#pragma unroll
    for (int odd = 0; odd < min(MOST, 2); odd++) {
        const int row = lane % 4 * 2 + odd;
        if (row < (MOST == 1 ? 1 : p.M))
#pragma unroll
            for (int tile = 0; tile < TILES; tile++)
                memory.sums[parity][row][warp][tile * COLUMNS + lane / 4] =
                    sums.c[tile / 2][tile % 2 * 2 + odd];
    }
#pragma unroll
    for (int row = 0; row < MOST; row++)
        if (has_row<MOST>(p.M, row) && p.norm) {
            const float sum = warp_sum(sums.squares[row]);
            if (lane == 0)
                memory.squares[parity][row][warp] = sum;
        }
}

/* One tile alone: loads two chunks of x at a time, so that their latencies overlap. `number`: tiles
 * consumed by the block; updated. */
template <int MOST>
SR_DEVICE void multiply_alone(round_sums<MOST> &sums, const sr_decode_gemm_task &task,
                              chain_memory &memory, int &number) {
    const int K = task.of.K;
    for (int first = 0; first < K; first += 2 * CHUNK) {
        const warp_columns columns = columns_of<2>(task.of, first);
        uint4 weights[2][2] = {}, x[2][2];
        take_tile(weights[0], columns.first < K, memory, number++);
        if (first + CHUNK < K)
            take_tile(weights[1], columns.first + CHUNK < K, memory, number++);
        take_x(x, sums.squares, task, memory, columns);
#pragma unroll
        for (int piece = 0; piece < 4; piece++)
            multiply_piece(sums.c[0], weights[piece / 2][piece % 2], make_uint4(0, 0, 0, 0),
                           x[piece / 2][piece % 2]);
    }
}

/* `tiles` tiles at a time. */
template <int MOST>
SR_DEVICE void multiply_tiles(round_sums<MOST> &sums, const sr_decode_gemm_task &task,
                              chain_memory &memory, int &number, int tiles) {
    const int K = task.of.K;
    for (int first = 0; first < K; first += CHUNK) {
        const warp_columns columns = columns_of<1>(task.of, first);
        uint4 weights[TILES][2] = {}, x[1][2];
#pragma unroll
        for (int i = 0; i < TILES; i++)
            if (i < tiles)
                take_tile(weights[i], columns.first < K, memory, number++);
        if (columns.first >= K)
            continue;
        take_x(x, sums.squares, task, memory, columns);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < TILES; i += 2)
                if (i < tiles)
                    multiply_piece(sums.c[i / 2], weights[i][half], weights[i + 1][half],
                                   x[0][half]);
    }
}

/* Tiles `round`, `round` + blocks, ...: a division would be slower. */
SR_DEVICE int tiles_of_round(const sr_decode_gemm_task &task, int round) {
    int tiles = 1;
#pragma unroll
    for (int i = 1; i < TILES; i++)
        tiles += round + i * (int)gridDim.x < task.tiles;
    return tiles;
}

/* The next task of a warp. */
enum next_task {
    NEXT_NONE,
    NEXT_ROW, /* a GEMM of one row */
    NEXT_ROWS,
    NEXT_SOFTMAX_64,
    NEXT_SOFTMAX_128,
    NEXT_ATTENTION_64,
    NEXT_ATTENTION_128
};

SR_DEVICE next_task task_of_warp(const chain_memory &memory) {
    const int number = memory.past[thread_again() / SR_WARP].tasks;
    if (number == list_of(memory).count)
        return NEXT_NONE;
    if (list_of(memory).entry[number].kind == SR_DECODE_GEMM)
        return task_at<sr_decode_gemm_task>(memory, number).of.M == 1 ? NEXT_ROW : NEXT_ROWS;
    const sr_decode_attention_task &task = task_at<sr_decode_attention_task>(memory, number);
    if (sr_decode_width(task.call.D, task.call.Dv) == 64)
        return task.softmax ? NEXT_SOFTMAX_64 : NEXT_ATTENTION_64;
    return task.softmax ? NEXT_SOFTMAX_128 : NEXT_ATTENTION_128;
}

/* The warp has finished a task, and this many tiles and rounds in all. */
SR_DEVICE next_task move_on(chain_memory &memory, int tiles, int rounds) {
    progress &past = memory.past[thread_again() / SR_WARP];
    __syncwarp();
    if (thread_again() % SR_WARP == 0)
        past = {past.tasks + 1, tiles, rounds};
    __syncwarp();
    return task_of_warp(memory);
}

/* Not inlined, and neither is attention: each has all registers for itself, and returns which task
 * comes next. */
template <int MOST> static __device__ __noinline__ next_task multiply() {
    SR_SHARED(chain_memory, shared); /* not an argument: its address is constant */
    chain_memory &memory = *shared;
    const progress &past = memory.past[threadIdx.x / SR_WARP];
    const sr_decode_gemm_task &task = task_at<sr_decode_gemm_task>(memory, past.tasks);
    int tiles = past.tiles, rounds = past.rounds;
    const int blocks = (int)gridDim.x;
    for (int round = (int)blockIdx.x; round < task.tiles; round += TILES * blocks) {
        round_sums<MOST> sums = {};
        if (round + blocks >= task.tiles && task.of.K > CHUNK)
            multiply_alone(sums, task, memory, tiles);
        else
            multiply_tiles(sums, task, memory, tiles, tiles_of_round(task, round));
        const int parity = rounds % 2;
        if (rounds++ >= 2)
            named_barrier_sync(ENDED + parity, MEETING);
        leave_round(memory, parity, sums, task.of);
        named_barrier_arrive(SUMMED + parity, MEETING);
    }
    return move_on(memory, tiles, rounds);
}

/* ---- attention ---- */

/* Loads q (0), k (1) or v (2) of the new token and the head; one warp. */
SR_DEVICE void take_row(chain_memory &memory, const sr_decode_attention_task &task,
                        const one_place &at, int which) {
    const int lane = (int)(threadIdx.x % SR_WARP), head = which == 0 ? at.h : at.kv;
    const int width = which == 2 ? task.call.Dv : task.call.D;
    const sr_decode_source row = row_of(task.token[which], task.call.B, at.b);
    for (int first = 0; first < width; first += 2 * SR_WARP) {
        const int column = first + 2 * lane;
        float x[1][1][2] = {};
        load_pairs(x, row, 1, head * width + column, (head + 1) * width, memory.mark);
        if (column < width)
            reinterpret_cast<uint32_t *>(memory.token[which])[column / 2] =
                pack_bf16(x[0][0][0], x[0][0][1]);
    }
}

/* One warp: writes this block's sums for the first block of the row. */
template <int WIDTH>
SR_DEVICE void store_partial(sr_marked *to, const key_sums<sr_warp_row<WIDTH>::count> &sums, int Dv,
                             uint32_t mark) {
    using Row = sr_warp_row<WIDTH>;
#pragma unroll
    for (int m = 0; m < Row::count; m += 2) {
        const float two[2] = {sums.x[m], sums.x[m + 1]};
        if (Row::column(m) < Dv)
            store_marked_two(to + Row::column(m), two, mark);
    }
    const float row[2] = {sums.sum, sums.maximum};
    if (Row::column(0) == 0)
        store_marked_two(to + WIDTH, row, mark);
}

/* A lane's part of the partial results of other blocks: sum and maximum of number `lane`, and two
 * columns of each. */
struct other_sums {
    float own[2], x[SR_ONE_PARTS - 1][2];
};

/* Polls until all marks are right; `column` negative: none. */
template <int WIDTH>
SR_DEVICE void load_others(other_sums &others, const sr_marked *from, int count, int column,
                           uint32_t mark) {
    constexpr int SIZE = sr_decode_partial(WIDTH);
    const int lane = (int)(threadIdx.x % SR_WARP);
    others = {};
    others.own[1] = -INFINITY;
    for (;;) {
        sr_marked two[2];
        bool there = true;
        if (lane < count) {
            load_marked(two, from + lane * SIZE + WIDTH);
            there = two[0].mark == mark && two[1].mark == mark;
            others.own[0] = two[0].number;
            others.own[1] = two[1].number;
        }
#pragma unroll
        for (int other = 0; other < SR_ONE_PARTS - 1; other++) {
            if (other >= count || column < 0)
                continue;
            load_marked(two, from + column + other * SIZE);
            there = there && two[0].mark == mark && two[1].mark == mark;
            others.x[other][0] = two[0].number;
            others.x[other][1] = two[1].number;
        }
        if (warp_ballot(there) == SR_FULL_WARP)
            return;
        wait_a_moment();
    }
}

/* Combines the online softmax of `count` other blocks, in order. */
template <int WIDTH>
SR_DEVICE void add_partials(key_sums<sr_warp_row<WIDTH>::count> &all, const sr_marked *from,
                            int count, const sr_decode_attention_task &task, uint32_t mark) {
    using Row = sr_warp_row<WIDTH>;
    const float unit = unit_of(task.call.score);
    float factor = 0; /* of block number `lane` */
#pragma unroll
    for (int m = 0; m < Row::count; m += 2) {
        other_sums others;
        load_others<WIDTH>(others, from, count, Row::column(m) < task.call.Dv ? Row::column(m) : -1,
                           mark);
        if (m == 0) {
            const float before = all.maximum, now = fmaxf(before, warp_maximum(others.own[1]));
            const bool scaled = task.call.score.maximum;
            factor = others.own[1] == -INFINITY ? 0 : exp2f((others.own[1] - now) * unit);
            factor = scaled ? factor : 1;
            all.maximum = scaled ? now : before;
            sums_scale(all, !scaled ? 1 : before == -INFINITY ? 0 : exp2f((before - now) * unit));
            all.sum += warp_sum(factor * others.own[0]);
        }
#pragma unroll
        for (int other = 0; other < SR_ONE_PARTS - 1; other++) {
            const float share = shuffle(factor, other);
            all.x[m] = fmaf(share, others.x[other][0], all.x[m]);
            all.x[m + 1] = fmaf(share, others.x[other][1], all.x[m + 1]);
        }
    }
}

/* The first warp, once the warps have stored their sums: combines, and runs the epilogue. */
template <int WIDTH, bool SOFTMAX>
SR_DEVICE void end_head(const sr_decode_attention_task &task, const chain_memory &memory,
                        const one_place &at, int part, const one_share<WIDTH, WARPS> &share) {
    using Row = sr_warp_row<WIDTH>;
    const uint32_t mark = memory.mark;
    const sr_attention_view<sr_bf16> &call = task.call;
    constexpr int SIZE = sr_decode_partial(WIDTH);
    sr_marked *const partials = task.partials + at.row * task.parts * SIZE;
    key_sums<Row::count> all;
    add_warps(all, reinterpret_cast<const one_memory<WIDTH, WARPS> &>(memory.attended), share.warps,
              call.score);
    if (part > 0) {
        store_partial<WIDTH>(partials + part * SIZE, all, call.Dv, mark);
        return;
    }
    if (share.shares > 1)
        add_partials<WIDTH>(all, partials + SIZE, share.shares - 1, task, mark);
    if constexpr (SOFTMAX)
        row_multiply<Row>(all.x, reciprocal_fast(all.sum + call.choices.epsilon));
    else
        output_one<sr_bf16, WIDTH>(call, at, all);
#pragma unroll
    for (int m = 0; m < Row::count; m += 2)
        if (Row::column(m) < call.Dv) {
            const int column = at.h * call.Dv + Row::column(m);
            const float two[2] = {all.x[m], all.x[m + 1]};
            store_copies_of_two(copies_of(task.o, call.B, at.b, column), two, mark);
            store_plain(task.o.plain, at.b, column, two[0]);
            store_plain(task.o.plain, at.b, column + 1, two[1]);
        }
}

/* SOFTMAX: as in the task. */
template <int WIDTH, bool SOFTMAX> static __device__ __noinline__ next_task attend() {
    SR_SHARED(chain_memory, shared);
    chain_memory &memory = *shared;
    const sr_decode_attention_task &task =
        task_at<sr_decode_attention_task>(memory, memory.past[thread_again() / SR_WARP].tasks);
    const sr_attention_view<sr_bf16> &call = task.call;
    for (int unit = (int)blockIdx.x; unit < call.B * call.H * task.parts; unit += (int)gridDim.x) {
        const int part = unit & (task.parts - 1), warp = thread_again() / SR_WARP;
        one_place at = place_of(call, task.memory, unit >> (__ffs(task.parts) - 1));
        at.position = memory.position[memory.past[warp].tasks];
        const one_share<WIDTH, WARPS> share(at.position, part, task.parts);
        if (part >= share.shares)
            continue;
        const one_feed<sr_bf16, true, SOFTMAX> feed = {
            call, task.memory, at, {memory.token[0], memory.token[1], memory.token[2]}};
        key_round<sr_bf16> round; /* loads issued while the new token is computed */
        fetch_round<WIDTH>(round, feed, share.walk.first);
        /* no warp needs the previous token any more */
        named_barrier_sync(WORK, WORKERS);
        if (warp < 3)
            take_row(memory, task, at, warp);
        named_barrier_sync(WORK, WORKERS);
        key_sums<8> sums;
        sums_start(sums, call.score);
        attend_keys<WIDTH>(sums, round, feed, share.walk);
        leave_sums(reinterpret_cast<one_memory<WIDTH, WARPS> &>(memory.attended), sums,
                   unit_of(call.score));
        named_barrier_sync(WORK, WORKERS);
        if (warp > 0 && part == 0 && at.h % call.group == 0)
            append_one(feed, (int)threadIdx.x - SR_WARP, WORKERS - SR_WARP);
        if (warp == 0)
            end_head<WIDTH, SOFTMAX>(task, memory, at, part, share);
    }
    const progress &past = memory.past[thread_again() / SR_WARP];
    return move_on(memory, past.tiles, past.rounds);
}

/* ---- the kernel ---- */

/* When all blocks are done, positions and the mark are advanced. */
SR_DEVICE void end_run(const chain_memory &memory, sr_decode_state *state) {
    const sr_decode_list &list = list_of(memory);
    named_barrier_sync(DONE, MEETING);
    if (threadIdx.x != 0 || atomicAdd(&state->done, 1) != (int)gridDim.x - 1)
        return;
    state->done = 0;
    state->mark = memory.mark + 1 == 0 ? 1 : memory.mark + 1;
    for (int n = 0; n < list.count; n++)
        if (list.entry[n].kind == SR_DECODE_ATTENTION)
            ++*task_at<sr_decode_attention_task>(memory, n).call.carry.position;
}

SR_DEVICE void work(const chain_memory &memory) {
    next_task next = task_of_warp(memory);
    while (next != NEXT_NONE)
        next = next == NEXT_ROW            ? multiply<1>()
               : next == NEXT_SOFTMAX_64   ? attend<64, true>()
               : next == NEXT_SOFTMAX_128  ? attend<128, true>()
               : next == NEXT_ROWS         ? multiply<ROWS>()
               : next == NEXT_ATTENTION_64 ? attend<64, false>()
                                           : attend<128, false>();
}

/* Persistent kernel: one block per multiprocessor runs every task of the list in order. The list
 * goes global -> shared first. Then warps specialise: one loads weights by bulk copies into a ring
 * of 8 tiles (mbarriers `full` and `empty`), in the order of consumption; three run epilogues; 16
 * workers compute. In a GEMM a block owns every gridDim.x-th tile; each worker polls its 64 numbers
 * of x (marked, global -> shared -> fragments), multiplies by mma.sync and stores its sums to
 * shared memory (two buffers, named barriers SUMMED and ENDED); an epilogue warp adds the 16 warps'
 * sums in order and writes marked copies for later tasks. In attention a block owns a head and a
 * share of the KV cache; shares are combined by the head's first block, in order. The last block to
 * finish advances positions and the mark. */
static __global__ void __launch_bounds__(THREADS, 1)
    run_chain(const sr_decode_list *list, sr_decode_state *state) {
    SR_SHARED(chain_memory, memory);
    const int pieces = list->bytes / 16;
    for (int n = (int)threadIdx.x; n < pieces; n += THREADS)
        reinterpret_cast<uint4 *>(memory->list)[n] = reinterpret_cast<const uint4 *>(list)[n];
    if (threadIdx.x == 0) {
        memory->mark = state->mark;
        for (int warp = 0; warp < WARPS; warp++)
            memory->past[warp] = {};
        for (int slot = 0; slot < RING; slot++) {
            mbarrier_init(&memory->full[slot], 1);
            mbarrier_init(&memory->empty[slot], WARPS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    /* Read once, while other loads are in flight anyway. */
    for (int n = (int)threadIdx.x; n < list_of(*memory).count; n += THREADS)
        if (list_of(*memory).entry[n].kind == SR_DECODE_ATTENTION)
            memory->position[n] =
                (int)task_at<sr_decode_attention_task>(*memory, n).call.position();
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

srnn_status sr_decode_launch(const sr_decode_list *list, sr_decode_state *state, int blocks,
                             cudaStream_t stream) {
    static_assert(sizeof(chain_memory) <= 227 * 1024, "what a block of Hopper has");
    SR_CUDA(sr_launch_together(run_chain, dim3((unsigned)blocks), dim3(THREADS),
                               sizeof(chain_memory), stream, list, state));
    return SRNN_OK;
}
