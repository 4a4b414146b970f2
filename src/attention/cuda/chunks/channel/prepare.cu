/* prepare.cu: gates per channel, in chunks: scaled rows, scores and the solved triangle of
 * every chunk by itself. */
#include "attention/cuda/chunks/channel/channel.h"
#include "device/cuda/check.h"

enum { SOLVERS = 4, SOLVER_THREADS = SOLVERS * SR_WARP };

/* The warps that find P, the last of the block: all but the solvers; and blocks of pairs of each
 * warp. */
template <bool DELTA> struct prepare_shape {
    static constexpr int warps = DELTA ? CHANNEL_WARPS - SOLVERS : CHANNEL_WARPS;
    static constexpr int pieces = (SR_DELTA_BLOCKS + warps - 1) / warps;
    static_assert(!DELTA || warps == SOLVERS, "A has as many warps as P");
};

struct prepare_at {
    int b, query, head, chunk; /* head: of keys and values */
    bool leads;                /* the first query head of the group */
};

/* Where the block is has its place here, since registers are scarce. */
template <int F, bool DELTA> struct prepare_memory {
    channel_tiles<F> tiles;
    alignas(128) sr_bf16 scores[SR_DELTA_PAIRS];
    sr_bf16 solved[DELTA ? SR_DELTA_PAIRS : 8];
    /* blocks of A, transposed; and others, as lanes have the sums */
    float diagonal[DELTA ? SR_DELTA_STEPS * SR_DELTA_SOLVE_BLOCK : 4];
    float4 below[DELTA ? SR_DELTA_BLOCKS : 1][2][SR_WARP];
    float beta[SR_CHUNK];
    prepare_at at;
    sr_chunk_span span;
};

/* Of pairs and betas: those of a chunk are used together, and what is no number in one document
 * must not reach another. Rows keep it for their own document. */
SR_DEVICE float finite(float x) {
    return fabsf(x) < 3e38f ? x : 0;
}

/* ---- the solved triangle: four warps ---- */

/* The warp's blocks of A to shared memory. */
template <int PIECES, class Memory>
SR_DEVICE void put_pairs(Memory *shared, float (&w)[PIECES][2][4], int warp) {
    const int lane = delta_lane();
#pragma unroll
    for (int n = 0; n < PIECES; n++) {
        const int block = warp + SOLVERS * n;
        if (block >= SR_DELTA_BLOCKS)
            continue;
        const channel_block at = channel_block_of(block);
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[n][e / 4][e % 4] *= shared->beta[at.row + sum_row(e, lane)];
        if (at.row == at.column) {
            float *const to = shared->diagonal + at.row / 16 * SR_DELTA_SOLVE_BLOCK;
#pragma unroll
            for (int e = 0; e < 8; e++)
                to[sum_column(e, lane) * SR_DELTA_SOLVE_STRIDE + sum_row(e, lane)] =
                    w[n][e / 4][e % 4];
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float own[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                own[e] = bits_float(to_tf32(w[n][half][e]));
            shared->below[block][half][lane] = make_float4(own[0], own[1], own[2], own[3]);
        }
    }
}

/* Column J of X. */
template <int J, class Memory> SR_DEVICE void solve_column(Memory *shared) {
    const int lane = delta_lane();
    delta_solve_column<J>(shared->solved, [&](float(&a)[2][4], int i, int m) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float4 own = shared->below[delta_block(i, m)][half][lane];
            a[half][0] = own.x;
            a[half][1] = own.y;
            a[half][2] = own.z;
            a[half][3] = own.w;
        }
    });
}

/* X from A, to memory; warps 0 .. 3. */
template <class Memory> SR_DEVICE void solve(Memory *shared, sr_bf16 *to, int warp) {
    const int own = delta_lane() % 16;
    float x[16];
    delta_invert(x, shared->diagonal + warp * SR_DELTA_SOLVE_BLOCK, own);
    if (delta_lane() < 16)
        delta_store_row(shared->solved + delta_pairs_at(warp, warp), x, own);
    named_barrier_sync(1, SOLVER_THREADS); /* diagonal blocks are ready */
    if (warp == 0)
        solve_column<0>(shared);
    else if (warp == 1)
        solve_column<1>(shared);
    else if (warp == 2)
        solve_column<2>(shared);
    named_barrier_sync(1, SOLVER_THREADS); /* all blocks are ready */
    for (int n = 8 * delta_thread(); n < SR_DELTA_PAIRS; n += 8 * SOLVER_THREADS)
        store_vector(to + n, load_vector(shared->solved + n));
}

/* ---- what all warps store of a span ---- */

/* The rows of a span from a tile, as they lie. */
template <int F>
SR_DEVICE void store_tile(sr_bf16 *to, const sr_bf16 *tile, const sr_chunk_span &span) {
#pragma unroll 2
    for (int n = delta_thread(); n < SR_CHUNK * F / 8; n += CHANNEL_THREADS) {
        const int t = span.t0 + n / (F / 8);
        if (t >= span.from && t < span.past)
            store_vector(to + 8 * n, load_vector(tile + 8 * n));
    }
}

/* The factors of a state's features; `middle`: the anchor is the middle of the span's gates, not
 * its ends. */
template <int F>
SR_DEVICE void store_factors(float *to, const channel_totals<F> &totals, const sr_chunk_span &span,
                             int T, bool middle) {
    const int f = delta_thread();
    if (f >= F)
        return;
    const float all = totals.all(f), half = middle ? exp2_fast(0.5f * all) : 1;
    if (span.from == span.t0)
        to[CHANNEL_BEFORE * F + f] = half;
    if (span.past == min(span.t0 + SR_CHUNK, T)) {
        to[CHANNEL_BETWEEN * F + f] = middle ? 1 : exp2_fast(all);
        to[CHANNEL_AFTER * F + f] = half;
    }
}

template <int F>
SR_DEVICE void store_span(const sr_chunk_call &call, const channel_places &places,
                          const prepare_at &at, const channel_tiles<F> &tiles,
                          const sr_chunk_span &span, bool middle) {
    constexpr int tile = SR_CHUNK * F;
    const int head = at.b * call.Hkv + at.head;
    store_tile<F>(channel_chunk(places.queries, call, at.b * call.H + at.query, at.chunk, tile),
                  tiles.queries, span);
    if (!at.leads)
        return;
    if (call.delta)
        store_tile<F>(channel_chunk(places.readers, call, head, at.chunk, tile), tiles.readers,
                      span);
    store_tile<F>(channel_chunk(places.writers, call, head, at.chunk, tile), tiles.writers, span);
    store_factors<F>(channel_chunk(places.factors, call, head, at.chunk, CHANNEL_FACTORS * F),
                     tiles.totals, span, call.T, middle);
}

/* ---- a span ---- */

/* The warp's blocks of A or P, in registers. */
template <bool DELTA> struct prepare_pairs { float w[prepare_shape<DELTA>::pieces][2][4]; };

/* Level by level the tiles of a span, and their products: A by warps 0 .. 3, P by the others, or
 * all without the delta rule; then the last tiles to memory. */
template <int F, bool DELTA>
SR_DEVICE void prepare_span(prepare_pairs<DELTA> &pairs, const sr_chunk_call &call,
                            const channel_places &places, prepare_memory<F, DELTA> *shared) {
    using Shape = prepare_shape<DELTA>;
    channel_tiles<F> &tiles = shared->tiles;
    const prepare_at &at = shared->at;
    const sr_chunk_span &span = shared->span;
    const int warp = chunk_warp();
    const bool scores = !DELTA || warp >= SOLVERS, multiplies = scores || at.leads;
    int range = 0;
    channel_level level = {0, 0, false};
#pragma unroll 1
    for (;;) {
        tiles.load(call, at.b, at.query, at.head, span);
        cp_async_commit();
        cp_async_wait<0>();
        __syncwarp(); /* gates are ready */
        tiles.sum_up(call, at.head, span);
        __syncthreads(); /* rows and totals are ready */
        if (range == 0) {
            range = channel_range(tiles.totals);
            level = channel_first_level(range);
        } else
            level = channel_next_level(level, range);
        channel_factors<F> factors;
        factors.open(tiles.gates, tiles.totals, level);
        tiles.template scale_rows<false, DELTA>(factors, call.scale);
        __syncthreads(); /* tiles are ready */
        if (multiplies)
#pragma unroll
            for (int n = 0; n < Shape::pieces; n++) {
                const int block = warp % Shape::warps + Shape::warps * n;
                const channel_block place = channel_block_of(block);
                if (block >= SR_DELTA_BLOCKS || !level.visits(place.row, place.column))
                    continue;
                float x[2][4];
                channel_pairs(x, tiles, scores, place.row, place.column, level);
#pragma unroll
                for (int e = 0; e < 8; e++)
                    pairs.w[n][e / 4][e % 4] += finite(x[e / 4][e % 4]);
            }
        if (level.state)
            break;
        __syncthreads(); /* no warp reads tiles */
    }
    store_span(call, places, at, tiles, span, range == SR_CHUNK);
}

/* P of the warps that found it, through shared memory. */
template <int F, bool DELTA>
SR_DEVICE void store_scores(prepare_memory<F, DELTA> *shared, const prepare_pairs<DELTA> &pairs,
                            sr_bf16 *to, int warp) {
    using Shape = prepare_shape<DELTA>;
    constexpr int threads = Shape::warps * SR_WARP, first = CHANNEL_THREADS - threads;
    const int lane = delta_lane();
#pragma unroll
    for (int n = 0; n < Shape::pieces; n++) {
        const int block = warp % Shape::warps + Shape::warps * n;
        if (block < SR_DELTA_BLOCKS)
            delta_store_block(shared->scores + 256 * block, pairs.w[n], lane);
    }
    named_barrier_sync(2, threads); /* P is ready */
    for (int n = 8 * (delta_thread() - first); n < SR_DELTA_PAIRS; n += 8 * threads)
        store_vector(to + n, load_vector(shared->scores + n));
}

/* A block of eight warps owns a chunk of a query head, and that of its keys if it leads the group.
 * For each span: tiles and their products, in registers; then X by warps 0 .. 3, P to memory by the
 * others, or all without the delta rule. */
template <int F, bool DELTA>
__global__ void __launch_bounds__(CHANNEL_THREADS, F == 64 ? DELTA ? 3 : 4 : 1)
    channel_prepare(const __grid_constant__ sr_chunk_call call,
                    const __grid_constant__ channel_places places) {
    using Memory = prepare_memory<F, DELTA>;
    SR_SHARED(Memory, shared);
    const int chunks = chunk_count(call.T), index = (int)blockIdx.x, query = (int)blockIdx.y;
    const int head = query / call.group, warp = chunk_warp();
    if (threadIdx.x == 0) {
        shared->at = {index / chunks, query, head, index % chunks, query == head * call.group};
        shared->span.past = index % chunks * SR_CHUNK;
    }
    if (DELTA && query == head * call.group && threadIdx.x < SR_CHUNK) {
        const int t = index % chunks * SR_CHUNK + (int)threadIdx.x;
        const int64_t row = call.row(call.Hkv, index / chunks, head, t);
        shared->beta[threadIdx.x] = t < call.T ? finite(delta_beta(call.beta[row])) : 0;
    }
    prepare_pairs<DELTA> pairs;
#pragma unroll
    for (int n = 0; n < prepare_shape<DELTA>::pieces; n++)
        clear_pieces(pairs.w[n]);
    const prepare_at &at = shared->at;
    const sr_chunk_span &span = shared->span;
    do {
        __syncthreads(); /* no warp reads the span before */
        if (threadIdx.x == 0)
            shared->span = chunk_spans(call, at.b).after(span.past);
        __syncthreads(); /* the span is known */
        prepare_span(pairs, call, places, shared);
    } while (span.past < min((at.chunk + 1) * SR_CHUNK, call.T));
    if (!DELTA || warp >= SOLVERS) {
        store_scores(shared, pairs,
                     channel_chunk(places.scores, call, at.b * call.H + at.query, at.chunk,
                                   SR_DELTA_PAIRS),
                     warp);
        return;
    }
    if constexpr (DELTA)
        if (at.leads) {
            put_pairs(shared, pairs.w, warp);
            named_barrier_sync(1, SOLVER_THREADS); /* A is ready */
            solve(shared,
                  channel_chunk(places.solved, call, at.b * call.Hkv + at.head, at.chunk,
                                SR_DELTA_PAIRS),
                  warp);
        }
}

template <int F>
static srnn_status start(const sr_chunk_call &call, const channel_places &places,
                         cudaStream_t stream) {
    const dim3 grid((unsigned)(call.B * chunk_count(call.T)), (unsigned)call.H);
    if (call.delta)
        SR_CUDA(sr_launch(channel_prepare<F, true>, grid, dim3(CHANNEL_THREADS),
                          sizeof(prepare_memory<F, true>), stream, call, places));
    else
        SR_CUDA(sr_launch(channel_prepare<F, false>, grid, dim3(CHANNEL_THREADS),
                          sizeof(prepare_memory<F, false>), stream, call, places));
    return SRNN_OK;
}

srnn_status sr_channel_prepare(const sr_chunk_call &call, const channel_places &places,
                               cudaStream_t stream) {
    return SR_CHANNEL_START(start, call.F, call, places, stream);
}
