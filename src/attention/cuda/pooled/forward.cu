/* forward.cu: pooled attention forward: query rows stay in registers; their own averages, then
 * those of slots pass by. */
#include "attention/cuda/pooled/pooled.h"

enum { WARPS = 4, THREADS = WARPS * SR_WARP, ROWS = 16 * WARPS, KEYS = 64 };

template <int WIDTH> constexpr size_t shared_bytes() {
    return (size_t)(ROWS + 4 * KEYS) * WIDTH * sizeof(sr_bf16);
}

/* 16 query rows of a warp, and their accumulators. */
template <int WIDTH> struct query_rows {
    static constexpr int P = WIDTH / 8;

    const sr_pooled &p;
    int t; /* first row */
    sr_seen_range seen[2];
    sr_operand<WIDTH, true> q;
    float o[P][4];            /* numerators */
    float sum[2], maximum[2]; /* online softmax; sum: the lane's share */

    SR_DEVICE query_rows(const sr_pooled &p_, int b, int t_) : p(p_), t(t_) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            seen[half] = seen_range(p, b, t + piece_row(half));
            sum[half] = 0;
            maximum[half] = p.score.maximum ? -INFINITY : 0;
        }
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[n][e] = 0;
    }

    /* Raises the maxima by those of s, and divides what was added up so far. */
    template <int COUNT> SR_DEVICE void raise_maxima(const float (&s)[COUNT][4]) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = maximum[half];
#pragma unroll
            for (int n = 0; n < COUNT; n++)
                largest = fmaxf(largest, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
            largest = quad_maximum(largest);
            const float before = maximum[half];
            const float factor =
                exp2_fast((before - (largest == -INFINITY ? 0 : largest)) * p.score.scale_log2);
            maximum[half] = largest;
            sum[half] *= factor;
#pragma unroll
            for (int n = 0; n < P; n++) {
                o[n][2 * half] *= factor;
                o[n][2 * half + 1] *= factor;
            }
        }
    }

    /* Pairs with 8 COUNT keys, rows `at` .. of a tile. sees(row, key) of a pair. */
    template <int COUNT, class Sees>
    SR_DEVICE void visit(const sr_bf16 *keys, const sr_bf16 *values, int at, const Sees &sees) {
        float s[COUNT][4] = {};
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
            uint32_t a[4];
            q.get(a, k);
#pragma unroll
            for (int n = 0; n < COUNT; n += 2) {
                uint32_t b[4];
                load_b<WIDTH>(b, keys, at + 8 * n, k);
                mma_m16n8k16(s[n], a, b);
                mma_m16n8k16(s[n + 1], a, b + 2);
            }
        }
#pragma unroll
        for (int n = 0; n < COUNT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = sees(e / 2, 8 * n + piece_column(e % 2)) ? clamp_dot(p.score, s[n][e])
                                                                   : -INFINITY;
        if (p.score.maximum)
            raise_maxima(s);
#pragma unroll
        for (int n = 0; n < COUNT; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float largest = maximum[e / 2];
                const float shift = largest == -INFINITY ? 0 : largest * p.score.scale_log2;
                s[n][e] = exp2_fast(fmaf(s[n][e], p.score.scale_log2, -shift));
                sum[e / 2] += s[n][e];
            }
#pragma unroll
        for (int n = 0; n < COUNT; n += 2) {
            uint32_t a[4];
            pack_a(a, s[n], s[n + 1]);
            multiply_rows<WIDTH>(o, a, values, at + 8 * n);
        }
    }

    /* Stores numerators through the warp's own 16 rows of a tile, row sums and maxima. */
    SR_DEVICE void finish(int b, int h, sr_bf16 *tile) {
        const sr_head_rows<sr_bf16> out = {p.numerator.row(b, h, 0), p.numerator.time, p.D, true};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float all = quad_sum(sum[half]);
            const int i = t + piece_row(half);
            if (threadIdx.x % 4 != 0 || i >= p.T)
                continue;
            const int64_t row = p.row(p.H, b, h, i);
            p.row_sum[row] = all;
            p.maximum[row] = maximum[half] == -INFINITY ? 0 : maximum[half] * p.score.scale;
        }
        tile_store<WIDTH>(out, o, tile, t, p.T);
    }
};

/* A block owns 64 query rows of a head, a warp 16 of them. cp.async copies the queries and the
 * rows' own averages, then tiles of 64 slots up to the last one that a row sees, global -> shared
 * with swizzled rows, in two stages: after the wait and the barrier for stage n, the copy of tile
 * n + 1 starts. A warp first pairs its rows with the 16 averages of the same tokens, of which each
 * row sees one; then with every slot: mma Q K', mask, online softmax, mma W V in registers. It
 * stores its rows once, through its part of the query tile. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    pooled_rows_forward(const __grid_constant__ sr_pooled p) {
    SR_SHARED(sr_bf16, shared);
    sr_bf16 *const q_tile = shared, *const stages = shared + ROWS * WIDTH;
    const int tiles = (p.T + ROWS - 1) / ROWS, head = (int)blockIdx.x / tiles;
    const int b = head / p.H, h = head % p.H, kv = h / p.group;
    const int t0 = ((int)blockIdx.x % tiles) * ROWS, past = min(t0 + ROWS, p.T);
    const sr_pooled_slots slots = pooled_slots(p, b, t0, past, KEYS);
    const int own = (int)threadIdx.x / SR_WARP * 16;
    const auto load = [&](int n) {
        sr_bf16 *const k = stages + n % 2 * 2 * KEYS * WIDTH, *const v = k + KEYS * WIDTH;
        const bool seen = n > 0;
        const int from = seen ? slots.first + (n - 1) * KEYS : t0, end = seen ? slots.past : past;
        tile_load<WIDTH, KEYS, THREADS>(k, pooled_rows(seen ? p.seen_k : p.k, b, kv, p.D), from,
                                        from, end);
        tile_load<WIDTH, KEYS, THREADS>(v, pooled_rows(seen ? p.seen_v : p.v, b, kv, p.D), from,
                                        from, end);
        cp_async_commit();
    };
    tile_load<WIDTH, ROWS, THREADS>(q_tile, pooled_rows(p.q, b, p.query_head(h), p.D), t0, t0,
                                    past);
    load(0);
    query_rows<WIDTH> rows(p, b, t0 + own);
    for (int n = 0; n <= slots.tiles; n++) {
        const sr_bf16 *const k = stages + n % 2 * 2 * KEYS * WIDTH, *const v = k + KEYS * WIDTH;
        cp_async_wait<0>();
        __syncthreads(); /* this tile has landed, and no warp reads the other */
        if (n < slots.tiles)
            load(n + 1);
        if (n == 0) {
            rows.q.open(q_tile, own);
            rows.template visit<2>(k, v, own,
                                   [&](int half, int key) { return key == piece_row(half); });
            continue;
        }
        const int32_t *const last = p.last + (int64_t)b * p.slots + slots.first + (n - 1) * KEYS;
        const int count = slots.past - slots.first - (n - 1) * KEYS;
        rows.template visit<KEYS / 8>(k, v, 0, [&](int half, int key) {
            return key < count && rows.seen[half].has(last[key]);
        });
    }
    if (rows.t < p.T)
        rows.finish(b, h, q_tile + own * WIDTH);
}

template <int WIDTH> static srnn_status start(const sr_pooled &p, cudaStream_t stream) {
    const int64_t blocks = (int64_t)p.B * p.H * ((p.T + ROWS - 1) / ROWS);
    SR_CUDA(sr_launch(pooled_rows_forward<WIDTH>, dim3((unsigned)blocks), dim3(THREADS),
                      shared_bytes<WIDTH>(), stream, p));
    return SRNN_OK;
}

srnn_status sr_pooled_forward(const sr_pooled &pooled, cudaStream_t stream) {
    return SR_POOLED_START(start, pooled, stream);
}
