/* rows.h (private): 128 rows of a block read the state of order 2 before, or after, their
 * segment. */
#ifndef SR_ATTENTION_CUDA_ORDER2_ROWS_H
#define SR_ATTENTION_CUDA_ORDER2_ROWS_H

#include "attention/cuda/order2/order2.h"

enum { STAGES = 3 }; /* in flight or being read */

/* A warp has two times 16 rows, which share what they read; of short rows 16, since more warps hide
 * more latency than sharing saves. */
template <int WIDTH> struct sr_order2_shape {
    static constexpr int HALVES = WIDTH <= 16 ? 1 : 2, WARP_ROWS = 16 * HALVES;
    static constexpr int THREADS = SR_ORDER2_ROWS / WARP_ROWS * SR_WARP;
};

/* The rows of a block: t0 .. of the segment that begins and ends there. */
struct sr_order2_block {
    int b, head, t0; /* head: of the rows */
    int segment, begin, end;
};

SR_BOTH int expanded_blocks(int T) {
    return (T + SR_ORDER2_ROWS - 1) / SR_ORDER2_ROWS;
}

SR_DEVICE sr_order2_block expanded_block(const sr_attention_view<sr_bf16> &call, int heads,
                                         const sr_order2 &expanded) {
    const int blocks = expanded_blocks(call.T);
    const int t0 = (int)blockIdx.x % blocks * SR_ORDER2_ROWS, row = (int)blockIdx.x / blocks;
    const int segment = t0 / expanded.segment, begin = segment * expanded.segment;
    return {row / heads, row % heads, t0, segment, begin, min(begin + expanded.segment, call.T)};
}

/* The first key of the segment that rows of queries see. */
SR_DEVICE int seen_from(const sr_chunk_head<true> &head, const sr_order2_block &at) {
    return max(at.begin, head.first[at.t0]);
}

/* Past the last query of the segment that sees rows of keys. */
SR_DEVICE int seen_to(const sr_chunk_head<true> &head, const sr_order2_block &at) {
    return other_documents(head, at.t0 + SR_ORDER2_ROWS, at.end);
}

/* Starts the cp.async copy of a stage of the state, as it lies in memory; by all threads. */
SR_DEVICE void load_state(sr_bf16 *tile, const sr_bf16 *state, const sr_order2 &expanded,
                          int stage) {
    const int first = stage * SR_STAGE_GROUPS;
    const int count = min((int)SR_STAGE_GROUPS, expanded.groups() - first);
    const sr_bf16 *const rows = state + (int64_t)first * SR_GROUP_NUMBERS;
    for (int n = (int)threadIdx.x; n < count * (SR_GROUP_NUMBERS / 8); n += (int)blockDim.x)
        cp_async_16(tile + sr_tile<SR_CHUNK>::offset(n / 8, n % 8), rows + 8 * n);
}

/* w = c0 + c1 w + c2 w^2. */
SR_DEVICE float order_two(const float *coefficient, float w) {
    return fmaf(fmaf(coefficient[2], w, coefficient[1]), w, coefficient[0]);
}

/* (x, x) of one of two bf16. */
SR_DEVICE uint32_t twice(uint32_t pair, int which) {
    return which ? (pair & 0xffff0000u) | pair >> 16 : (pair & 0xffffu) | pair << 16;
}

/* Four consecutive numbers in each of 16 rows, over the four lanes that have a row: as the A
 * fragment for a group of one tile. */
struct sr_rotation {
    uint32_t a[4];

    /* From 16 rows of a tile, the numbers 8 `eights` after their own, modulo 16. */
    SR_DEVICE void load(const sr_bf16 *tile, int eights) {
        const int q = (int)threadIdx.x % 4, chunk = (q / 2 + eights) % 2;
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const sr_bf16 *const from =
                tile + sr_tile<16>::offset(piece_row(row), chunk) + q % 2 * 4;
            const uint2 four = *reinterpret_cast<const uint2 *>(from);
            a[row] = four.x;
            a[2 + row] = four.y;
        }
    }

    /* Rotates by one: each number becomes the next, modulo 16. */
    SR_DEVICE void rotate() {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const uint32_t next = shuffle(a[row], sr_rotation::next_lane());
            a[row] = a[row] >> 16 | a[2 + row] << 16;
            a[2 + row] = a[2 + row] >> 16 | next << 16;
        }
    }

    static SR_DEVICE int next_lane(int distance = 1) {
        const int lane = (int)threadIdx.x % SR_WARP;
        return lane / 4 * 4 + (lane + distance) % 4;
    }
};

/* The rows of a warp in shared memory. */
template <int WIDTH> struct sr_order2_numbers {
    static constexpr int HALVES = sr_order2_shape<WIDTH>::HALVES;
    const sr_bf16 *tile;

    /* The A fragment of 16 numbers of the rows. */
    SR_DEVICE void load(uint32_t (&a)[HALVES][4], int k) const {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            load_a<WIDTH>(a[half], tile, 16 * half, k);
    }

    /* Eight numbers of each of the lane's rows, from number 8 `eight` on. */
    SR_DEVICE void load_numbers(sr_vector<uint32_t> (&number)[HALVES][2], int eight) const {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int row = 0; row < 2; row++)
                number[half][row] = load_vector(reinterpret_cast<const uint32_t *>(
                    tile + sr_tile<WIDTH>::offset(16 * half + piece_row(row), eight)));
    }

    /* w = dot products of the rows with 16 of another tile. */
    SR_DEVICE void scores(float (&w)[HALVES][SR_PIECE], const sr_bf16 *other, int at) const {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < SR_PIECE; e++)
                w[half][e] = 0;
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++) {
            uint32_t a[HALVES][4], b[4];
            load(a, k);
            load_b<WIDTH>(b, other, at, k);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                mma_m16n8k16(w[half], a[half], b);
                mma_m16n8k16(w[half] + 4, a[half], b + 2);
            }
        }
    }
};

/* Rows X of a warp: accumulators C of columns by weights, and the lane's share of the row sums. */
template <int WIDTH> struct sr_order2_rows {
    static constexpr int P = SR_CHUNK / 8, HALVES = sr_order2_shape<WIDTH>::HALVES;
    sr_order2_numbers<WIDTH> x;
    float c[HALVES][P][4], sum[HALVES][2];
    int t;          /* the first row */
    bool documents; /* a document begins in the segment, where these rows could see it */

    SR_DEVICE sr_order2_rows(const sr_bf16 *tile, int row) : x{tile}, t(row), documents(true) {
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            sum[half][0] = sum[half][1] = 0;
#pragma unroll
            for (int n = 0; n < P * 4; n++)
                c[half][n / 4][n % 4] = 0;
        }
    }

    /* C += A times 16 rows of a tile. */
    SR_DEVICE void multiply(const uint32_t (&a)[HALVES][4], const sr_bf16 *tile, int row) {
#pragma unroll
        for (int n = 0; n < P; n += 2) {
            uint32_t b[4];
            load_b_rows<SR_CHUNK>(b, tile, row, n / 2);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                mma_m16n8k16(c[half][n], a[half], b);
                mma_m16n8k16(c[half][n + 1], a[half], b + 2);
            }
        }
    }

    /* 128 features: tile b of the rows times eight of their numbers, the lower or upper of tile
     * a. */
    SR_DEVICE void read_products(const sr_bf16 *state, const sr_tile_pair &pair, int upper) {
        uint32_t own[HALVES][4];
        sr_vector<uint32_t> number[HALVES][2];
        x.load(own, pair.b);
        x.load_numbers(number, 2 * pair.a + upper);
#pragma unroll
        for (int m = 0; m < 8; m++) {
            uint32_t a[HALVES][4];
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[half][e] = multiply_bf16(own[half][e],
                                               twice(number[half][e % 2].number[m / 2], m % 2));
            multiply(a, state, 16 * m);
        }
    }

    /* Groups of one tile: numbers times those `first` .. places after them; first is 0 or 8. */
    template <int COUNT> SR_DEVICE void read_rotated(const sr_bf16 *state, int first) {
        sr_rotation own, rotated;
        own.load(x.tile, 0);
        rotated.load(x.tile, first / 8);
#pragma unroll 2
        for (int m = 0; m < COUNT; m++) {
            uint32_t a[1][4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[0][e] = multiply_bf16(own.a[e], rotated.a[e]);
            multiply(a, state, 16 * m);
            rotated.rotate();
        }
    }

    /* The state's rows of order 1: by values, and by keys for the row sums. */
    SR_DEVICE void read_keys(const sr_bf16 *state, int tiles, bool sums) {
#pragma unroll 1
        for (int k = 0; k < tiles; k++) {
            uint32_t own[HALVES][4];
            x.load(own, k);
            multiply(own, state, 16 * k);
            if (sums)
                read_sums(state, tiles, k);
        }
    }

    /* sum += <q, Z q>, the part with numbers of tile k on the right. */
    SR_DEVICE void read_sums(const sr_bf16 *state, int tiles, int k) {
        float w[HALVES][SR_PIECE] = {};
        uint32_t own[HALVES][4];
        for (int row = 0; row < tiles; row++) {
            uint32_t b[4];
            x.load(own, row);
            load_b_rows<SR_CHUNK>(b, state, 16 * (tiles + row), k);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                mma_m16n8k16(w[half], own[half], b);
                mma_m16n8k16(w[half] + 4, own[half], b + 2);
            }
        }
        x.load(own, k);
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int e = 0; e < SR_PIECE; e += 2) {
                const float2 pair = unpack_bf16(own[half][e / 2]);
                float &all = sum[half][e / 2 % 2];
                all = fmaf(pair.x, w[half][e], fmaf(pair.y, w[half][e + 1], all));
            }
    }

    /* Orders 0 and 1, from the vectors, which are never rounded. */
    SR_DEVICE void read_vectors(const float *vectors, const float *coefficient, int tiles) {
        const float *const value = vectors + 2 * (threadIdx.x % 4);
        const float *const key = value + SR_CHUNK;
        const float count = threadIdx.x % 4 == 0 ? coefficient[0] * vectors[2 * SR_CHUNK] : 0;
#pragma unroll
        for (int n = 0; n < P; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float all = coefficient[0] * value[8 * n + e];
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    c[half][n][e] += all;
                    c[half][n][2 + e] += all;
                }
            }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            sum[half][0] += count;
            sum[half][1] += count;
        }
#pragma unroll 1
        for (int k = 0; k < tiles; k++) {
            uint32_t own[HALVES][4];
            x.load(own, k);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float2 pair = unpack_bf16(own[half][e]);
                    const float *const z = key + 16 * k + e / 2 * 8;
                    sum[half][e % 2] += coefficient[1] * fmaf(pair.x, z[0], pair.y * z[1]);
                }
        }
    }

    /* Stage number n of the state. */
    SR_DEVICE void read(const sr_attention_view<sr_bf16> &call, const sr_order2 &expanded,
                        const sr_bf16 *stage, int n, const float *vectors) {
        const int products = expanded.product_groups(), left = products % SR_STAGE_GROUPS;
        if (n < products / SR_STAGE_GROUPS) {
            if constexpr (WIDTH <= 16)
                read_rotated<SR_STAGE_GROUPS>(stage, 0);
            else
                read_products(stage, tile_pair(n / 2), n % 2);
            return;
        }
        if constexpr (WIDTH <= 16)
            if (left > 0)
                read_rotated<SR_ROTATION_GROUPS - SR_STAGE_GROUPS>(stage, SR_STAGE_GROUPS);
        read_keys(stage + left * SR_GROUP_NUMBERS, expanded.tiles, call.choices.sums_rows);
        read_vectors(vectors, call.score.coefficient, expanded.tiles);
    }

    /* The accumulators so far times factor_of(row). */
    template <class Factor> SR_DEVICE void scale(const Factor &factor_of) {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float factor = factor_of(t + 16 * half + piece_row(row));
                sum[half][row] = counted(sum[half][row], factor);
                scale_row(c[half], row, factor);
            }
    }
};

#endif
