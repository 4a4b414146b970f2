/* backward_dqk.cu: chunked attention of order 2, dQ and dK.
 *
 * What the state contributes to the gradient of a query is, up to coefficients, sum_a q_a <dN, S_a>
 * with the gradient dN of its numerator: rows of dN, times one number of the query, times a block
 * of the state. For keys it is the same with values in place of dN and the state of queries after
 * the segment. For one tile, the gradient of each product of two numbers of the query is <dN, its
 * row of the state>, and each of the two gets it times the other. */
#include "attention/cuda/order2/rows.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

/* Rows of queries (keys), of gradients of numerators (values). A stage has 128 rows of the state,
 * or 64 keys and values (queries, gradients of numerators and row scalars). */
template <int WIDTH> struct gradient_memory {
    alignas(16) sr_bf16 x[SR_ORDER2_ROWS * WIDTH];
    sr_bf16 w[SR_ORDER2_ROWS * SR_CHUNK];
    sr_bf16 stage[STAGES][2][SR_CHUNK_NUMBERS];
    float scales[STAGES][SR_CHUNK], d_row_sums[STAGES][SR_CHUNK];
};

/* The 64 tokens of a stage that rows pair with; row scalars only where they are queries. */
struct pair_stage {
    const sr_bf16 *y, *u;
    const float *scales, *d_row_sums;
    int t0;
};

/* Starts the cp.async copy of the stage of numbers 8 `eight` .. by tile b: rows of the state, of
 * which only one of (a, b) and (b, a) is stored. */
SR_DEVICE void load_products(sr_bf16 *tile, const sr_bf16 *state, int eight, int b) {
    const int a = eight / 2, low = min(a, b), high = max(a, b);
    const sr_bf16 *const pair = state + (high * (high + 1) / 2 + low) * 16 * SR_GROUP_NUMBERS;
    for (int n = (int)threadIdx.x; n < SR_STAGE_GROUPS * (SR_GROUP_NUMBERS / 8);
         n += (int)blockDim.x) {
        const int row = n / 8, of_a = eight % 2 * 8 + row / 16, of_b = row % 16;
        const int group = a <= b ? of_a : of_b, inside = a <= b ? of_b : of_a;
        cp_async_16(tile + sr_tile<SR_CHUNK>::offset(row, n % 8),
                    pair + (group * 16 + inside) * SR_CHUNK + n % 8 * 8);
    }
}

/* Gradients of the numbers from those of the products of one tile: as C, in the order of
 * sr_rotation. */
struct rotated_gradients {
    sr_rotation own, rotated;
    /* of the first number of products, and the second, which rotates with it */
    float early[2][4], late[2][4];

    SR_DEVICE explicit rotated_gradients(const sr_bf16 *tile) {
        own.load(tile, 0);
        rotated.load(tile, 0);
#pragma unroll
        for (int n = 0; n < 8; n++)
            early[n / 4][n % 4] = late[n / 4][n % 4] = 0;
    }

    /* d: the gradients of the products of a group. */
    SR_DEVICE void add(const float (&d)[2][4]) {
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float2 first = unpack_bf16(own.a[2 * n + row]);
                const float2 second = unpack_bf16(rotated.a[2 * n + row]);
                float *const to = early[n] + 2 * row, *const other = late[n] + 2 * row;
                to[0] = fmaf(second.x, d[n][2 * row], to[0]);
                to[1] = fmaf(second.y, d[n][2 * row + 1], to[1]);
                other[0] = fmaf(first.x, d[n][2 * row], other[0]);
                other[1] = fmaf(first.y, d[n][2 * row + 1], other[1]);
            }
    }
    SR_DEVICE void rotate() {
        rotated.rotate();
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float next = shuffle(late[0][2 * row], sr_rotation::next_lane());
            late[0][2 * row] = late[0][2 * row + 1];
            late[0][2 * row + 1] = late[1][2 * row];
            late[1][2 * row] = late[1][2 * row + 1];
            late[1][2 * row + 1] = next;
        }
    }

    /* After eight rotations: C, in the order of numbers. */
    SR_DEVICE void put(float (&c)[2][4]) const {
        const int lane = (int)threadIdx.x % SR_WARP, from = lane / 4 * 4 + lane % 4 / 2;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float lower = early[0][e] + shuffle(late[0][e], sr_rotation::next_lane(2));
            const float upper = early[1][e] + shuffle(late[1][e], sr_rotation::next_lane(2));
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float even = shuffle(lower, from + 2 * n), odd = shuffle(upper, from + 2 * n);
                c[n][e] = lane % 2 == 0 ? even : odd;
            }
        }
    }
};

/* The rows of a warp. */
template <int WIDTH, bool FROM_END> struct gradient_rows {
    static constexpr int P = WIDTH / 8, K = WIDTH / 16, V = SR_CHUNK / 16;
    static constexpr int HALVES = sr_order2_shape<WIDTH>::HALVES;
    sr_order2_numbers<WIDTH> x;
    const sr_bf16 *w; /* the warp's, in shared memory */
    uint32_t rows[HALVES][V][4];
    float c[HALVES][P][4];
    float d_row_sum[HALVES][2]; /* of rows that are queries */
    int t;
    bool documents; /* a document begins in the segment, where these rows could see it */

    SR_DEVICE void open(const sr_bf16 *x_tile, const sr_bf16 *w_tile, int row) {
        x = {x_tile};
        w = w_tile;
        t = row;
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int n = 0; n < P * 4; n++)
                c[half][n / 4][n % 4] = 0;
    }

    /* Once the tiles have landed: the rows that states are multiplied with. */
    SR_DEVICE void load_rows() {
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int k = 0; k < V; k++)
                load_a<SR_CHUNK>(rows[half][k], w, 16 * half, k);
    }

    /* Numbers 8 `eight` .. of x times rows, by tile b; that of a tile with itself counts twice. */
    SR_DEVICE void read_products(const sr_bf16 *state, int eight, int b) {
        sr_vector<uint32_t> number[HALVES][2];
        x.load_numbers(number, eight);
        const uint32_t count = eight / 2 == b ? 0x40004000u : 0x3f803f80u; /* 2 or 1 */
#pragma unroll
        for (int n = 0; n < HALVES * 8; n++) {
            uint32_t &pair = number[n / 8][n / 4 % 2].number[n % 4];
            pair = multiply_bf16(pair, count);
        }
#pragma unroll
        for (int m = 0; m < 8; m++)
#pragma unroll
            for (int k = 0; k < V; k++) {
                uint32_t columns[4];
                load_b<SR_CHUNK>(columns, state, 16 * m, k);
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    uint32_t a[4];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        a[e] = multiply_bf16(rows[half][k][e],
                                             twice(number[half][e % 2].number[m / 2], m % 2));
                    add(half, b, a, columns);
                }
            }
    }

    /* COUNT groups of one tile. */
    template <int COUNT>
    SR_DEVICE void read_rotated(rotated_gradients &gradients, const sr_bf16 *state) const {
#pragma unroll
        for (int m = 0; m < COUNT; m++) {
            float d[2][4] = {};
#pragma unroll
            for (int k = 0; k < V; k++) {
                uint32_t columns[4];
                load_b<SR_CHUNK>(columns, state, 16 * m, k);
                mma_m16n8k16(d[0], rows[0][k], columns);
                mma_m16n8k16(d[1], rows[0][k], columns + 2);
            }
            gradients.add(d);
            if (COUNT == SR_STAGE_GROUPS) /* not after the last one */
                gradients.rotate();
        }
    }

    /* The columns of tile b += A times two pieces of columns. b is a compile-time constant. */
    SR_DEVICE void add(int half, int b, const uint32_t (&a)[4], const uint32_t (&columns)[4]) {
        mma_m16n8k16(c[half][2 * b], a, columns);
        mma_m16n8k16(c[half][2 * b + 1], a, columns + 2);
    }

    /* The state's rows of order 1, and those of the row sums. */
    SR_DEVICE void read_keys(const sr_bf16 *state, int tiles, const float *key, float coefficient) {
#pragma unroll
        for (int b = 0; b < K; b++) {
            if (b >= tiles)
                continue;
#pragma unroll
            for (int k = 0; k < V; k++) {
                uint32_t columns[4];
                load_b<SR_CHUNK>(columns, state, 16 * b, k);
#pragma unroll
                for (int half = 0; half < HALVES; half++)
                    add(half, b, rows[half][k], columns);
            }
            float sums[HALVES][SR_PIECE] = {};
            for (int k = 0; k < tiles; k++) {
                uint32_t columns[4], a[HALVES][4];
                x.load(a, k);
                load_b<SR_CHUNK>(columns, state, 16 * (tiles + b), k);
#pragma unroll
                for (int half = 0; half < HALVES; half++) {
                    mma_m16n8k16(sums[half], a[half], columns);
                    mma_m16n8k16(sums[half] + 4, a[half], columns + 2);
                }
            }
#pragma unroll
            for (int half = 0; half < HALVES; half++)
#pragma unroll
                for (int e = 0; e < SR_PIECE; e++) {
                    const float of_row = FROM_END ? 1 : d_row_sum[half][e / 2 % 2];
                    const float sum =
                        fmaf(2, sums[half][e], coefficient * key[16 * b + piece_column(e)]);
                    float &to = c[half][2 * b + e / 4][e % 4];
                    to = fmaf(of_row, sum, to);
                }
        }
    }

    /* The accumulators so far times factor_of(row). */
    template <class Factor> SR_DEVICE void scale(const Factor &factor_of) {
#pragma unroll
        for (int n = 0; n < 2 * HALVES; n++)
            scale_row(c[n / 2], n % 2, factor_of(t + 8 * n + piece_row(0)));
    }

    /* d = dot products of the rows with 16 of a tile. */
    SR_DEVICE void row_products(float (&d)[HALVES][SR_PIECE], const sr_bf16 *tile, int at) const {
#pragma unroll
        for (int k = 0; k < V; k++) {
            uint32_t columns[4], a[4];
            load_b<SR_CHUNK>(columns, tile, at, k);
#pragma unroll
            for (int half = 0; half < HALVES; half++) {
                load_a<SR_CHUNK>(a, w, 16 * half, k); /* reloaded: registers are scarce here */
                mma_m16n8k16(d[half], a, columns);
                mma_m16n8k16(d[half] + 4, a, columns + 2);
            }
        }
    }

    /* Pairs with 16 rows `at` .. of the stage. */
    SR_DEVICE void visit(const sr_chunk_head<true> &head, const float *slope,
                         const pair_stage &stage, int at) {
        float r[HALVES][SR_PIECE], d[HALVES][SR_PIECE] = {};
        uint32_t a[HALVES][4];
        const int other = stage.t0 + at;
        x.scores(r, stage.y, at);
        row_products(d, stage.u, at);
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            const int row = t + 16 * half;
            const bool seen = FROM_END ? other >= row : other <= row;
#pragma unroll
            for (int e = 0; e < SR_PIECE; e++) {
                const int column = at + piece_column(e);
                const float d_weight =
                    d[half][e] + (FROM_END ? stage.d_row_sums[column] : d_row_sum[half][e / 2 % 2]);
                const float by = fmaf(slope[1], r[half][e], slope[0]) * d_weight;
                d[half][e] = FROM_END ? by * stage.scales[column] : by;
            }
            decay_pairs(d[half], head, row, other, FROM_END ? -1 : 1);
            if (FROM_END)
                hide_queries(d[half], head, row, other, documents);
            else
                hide_keys(d[half], head, row, other, documents);
#pragma unroll
            for (int e = 0; e < SR_PIECE; e++)
                if (HALVES > 1 && !seen) /* only here: a decay backwards may be infinite */
                    d[half][e] = 0;
            pack_piece(a[half], d[half]);
        }
#pragma unroll
        for (int b = 0; b < K; b++) {
            uint32_t columns[4];
            load_b_rows<WIDTH>(columns, stage.y, at, b);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                add(half, b, a[half], columns);
        }
    }
};

/* For queries: returns row_scale; with a decay also stores sum_j w'_ij dw'_ij = <dN, sum_j w' v> +
 * d_row_sum sum_j w'. */
SR_DEVICE float finish_query(const sr_attention_view<sr_bf16> &call, int b, int h, int i) {
    using Row = sr_quad_row<SR_CHUNK>;
    const int inside = min(i, call.T - 1);
    const int64_t at = call.row_index(call.H, b, h, inside);
    const float scale = call.scratch.row_scale[at];
    if (!call.choices.decays)
        return scale;
    float x[Row::count], d[Row::count];
    row_load<Row>(x, call.numerator + at * call.Dv, call.Dv);
    row_load<Row>(d, call.d_numerator.at(b, h, inside), call.Dv);
    float dot = fmaf(call.scratch.d_row_sum[at], call.row_sum[at], row_dot<Row>(x, d));
    row_load<Row>(x, lost_numerators(call) + at * call.Dv, call.Dv);
    dot += row_dot<Row>(x, d);
    if (threadIdx.x % 4 == 0 && i < call.T)
        call.scratch.row_dot[at] = scale * dot;
    return scale;
}

/* Epilogue: 16 rows of C to memory. */
template <int WIDTH, bool FROM_END>
SR_DEVICE void store_gradients(const sr_attention_view<sr_bf16> &call, const sr_rows_place &place,
                               float (&c)[WIDTH / 8][4], sr_bf16 *tile, bool aligned) {
    using Row = sr_quad_row<WIDTH>;
    const auto &raw = FROM_END ? call.raw_k : call.raw_q;
    const auto &to = FROM_END ? call.d_k : call.d_q;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = place.t + piece_row(half);
        float d[Row::count];
        row_of(d, c, half);
        if (!FROM_END)
            row_multiply<Row>(d, finish_query(call, place.b, place.h, i));
        feature_gradient<Row>(d, raw.at(place.b, place.h, min(i, call.T - 1)), call);
        set_row(c, d, half);
    }
    if (to.data)
        tile_store<WIDTH>(head_rows(to, place.b, place.h, call.D, aligned), c, tile, place.t,
                          call.T);
}

/* What a block pairs with: keys and values of the segment up to its rows; or queries and gradients
 * of numerators from its rows on, of all heads that share the keys. */
template <int WIDTH, bool FROM_END> struct pair_stream {
    static constexpr int THREADS = sr_order2_shape<WIDTH>::THREADS;
    const sr_attention_view<sr_bf16> &call;
    const sr_mma_alignment &aligned;
    gradient_memory<WIDTH> &memory;
    sr_order2_block at;
    /* for rows of queries: the first key of the segment; for rows of keys: past its last query */
    int seen;

    SR_DEVICE int kv() const {
        return FROM_END ? at.head : at.head / call.group;
    }
    SR_DEVICE int stages() const {
        const int from = first(0);
        const int to = FROM_END ? seen : min(at.t0 + SR_ORDER2_ROWS, call.T);
        return (to - from + SR_CHUNK - 1) / SR_CHUNK * (FROM_END ? call.group : 1);
    }
    SR_DEVICE int first(int n) const {
        return FROM_END ? at.t0 + n / call.group * SR_CHUNK : (seen / SR_CHUNK + n) * SR_CHUNK;
    }

    /* Starts the copy of stage n to a place. */
    SR_DEVICE void load(int n, int place) {
        const int from = first(n), past = FROM_END ? seen : call.T, b = at.b;
        if (!FROM_END) {
            tile_load<WIDTH, SR_CHUNK, THREADS>(memory.stage[place][0],
                                                head_rows(call.k, b, kv(), call.D, aligned.k), from,
                                                seen, past);
            tile_load<SR_CHUNK, SR_CHUNK, THREADS>(memory.stage[place][1],
                                                   head_rows(call.v, b, kv(), call.Dv, aligned.v),
                                                   from, seen, past);
            return;
        }
        const int h = kv() * call.group + n % call.group;
        const int64_t row = call.row_index(call.H, b, h, 0);
        tile_load<WIDTH, SR_CHUNK, THREADS>(memory.stage[place][0],
                                            head_rows(call.q, b, h, call.D, aligned.q), from, 0,
                                            past);
        tile_load<SR_CHUNK, SR_CHUNK, THREADS>(memory.stage[place][1],
                                               head_rows(call.d_numerator, b, h, call.Dv,
                                                         aligned.d_numerator),
                                               from, 0, past);
        load_row_numbers(memory.scales[place], call.scratch.row_scale + row, from, past);
        load_row_numbers(memory.d_row_sums[place], call.scratch.d_row_sum + row, from, past);
    }

    SR_DEVICE void load_rows() {
        const int b = at.b, past = call.T, t0 = at.t0;
        const auto x = FROM_END ? head_rows(call.k, b, at.head, call.D, aligned.k)
                                : head_rows(call.q, b, at.head, call.D, aligned.q);
        const auto w = FROM_END
                           ? head_rows(call.v, b, at.head, call.Dv, aligned.v)
                           : head_rows(call.d_numerator, b, at.head, call.Dv, aligned.d_numerator);
        tile_load<WIDTH, SR_ORDER2_ROWS, THREADS>(memory.x, x, t0, 0, past);
        tile_load<SR_CHUNK, SR_ORDER2_ROWS, THREADS>(memory.w, w, t0, 0, past);
    }
};

/* dQ (rows are queries, state before the segment), or FROM_END dK (rows are keys, state after it).
 * A block owns 128 rows of one head; a warp 16 or 32 of them. cp.async copies its rows and their dN
 * (or V) once, then stages of 128 rows of the state and then of 64 tokens of the segment (K and V,
 * or Q, dN and row scalars, head by head of the group), global -> shared, in three places: each
 * wait and barrier frees the place that is loaded two stages ahead. Each warp multiplies the state
 * by its rows times their own numbers (mma, products in registers), scales by the decay across the
 * segment, then adds masked pairs of the segment. Accumulators stay in registers; after a last
 * barrier each warp stores its rows once, through a freed stage. */
template <int WIDTH, bool FROM_END>
__global__ void __launch_bounds__(sr_order2_shape<WIDTH>::THREADS, 2)
    expanded_gradients(const __grid_constant__ sr_attention_view<sr_bf16> call,
                       const __grid_constant__ sr_mma_alignment aligned, const sr_order2 expanded) {
    using memory = gradient_memory<WIDTH>;
    using shape = sr_order2_shape<WIDTH>;
    constexpr int HALVES = shape::HALVES;
    SR_SHARED(memory, shared);
    const sr_order2_block at = expanded_block(call, FROM_END ? call.Hkv : call.H, expanded);
    pair_stream<WIDTH, FROM_END> pairs = {call, aligned, *shared, at, 0};
    const int past = call.T, t0 = at.t0, tiles = expanded.tiles;
    const int head_number = at.b * call.Hkv + pairs.kv();
    const sr_chunk_head<true> head = chunk_head<true>(call, at.b, pairs.kv());
    const sr_bf16 *const state = expanded.state(head_number, at.segment);
    pairs.seen = FROM_END ? seen_to(head, at) : seen_from(head, at);
    /* Stages of products of the state, tile by tile of the gradients; one of its other rows; those
     * of pairs. */
    const bool counts = FROM_END ? at.end < past && head.first[at.end] < t0 + SR_ORDER2_ROWS
                                 : at.begin > 0 && head.first[t0] < at.begin;
    const int each = 2 * tiles,
              products = counts && WIDTH > 16 && expanded.pairs > 0 ? each * tiles : 0;
    const int of_state = !counts ? 0 : WIDTH <= 16 ? expanded.stages() : products + 1;
    const auto load = [&](int n) {
        sr_bf16 *const stage = shared->stage[n % STAGES][0];
        if (n < products)
            load_products(stage, state, n % each, n / each);
        else if (n < of_state)
            load_state(stage, state, expanded, WIDTH <= 16 ? n : 2 * expanded.pairs);
        else if (n < of_state + pairs.stages())
            pairs.load(n - of_state, n % STAGES);
        cp_async_commit();
    };
    int stage = 0;
    const auto next = [&]() {
        cp_async_wait<1>();
        __syncthreads(); /* the stage is ready, and no warp reads the one before */
        load(stage + 2);
        return shared->stage[stage++ % STAGES][0];
    };
    const int own = warp_number() * shape::WARP_ROWS;
    gradient_rows<WIDTH, FROM_END> rows;
    rows.open(shared->x + own * WIDTH, shared->w + own * SR_CHUNK, t0 + own);
    rows.documents = FROM_END ? head.first[at.end - 1] > rows.t
                              : head.first[min(rows.t + shape::WARP_ROWS, past) - 1] > at.begin;
    if (!FROM_END)
#pragma unroll
        for (int half = 0; half < HALVES; half++)
#pragma unroll
            for (int row = 0; row < 2; row++)
                rows.d_row_sum[half][row] = call.scratch.d_row_sum[call.row_index(
                    call.H, at.b, at.head, min(rows.t + 16 * half + piece_row(row), past - 1))];

    pairs.load_rows();
    load(0);
    load(1);
    cp_async_wait<1>();
    __syncthreads(); /* rows are ready */
    rows.load_rows();
    if (counts) {
        const sr_bf16 *other; /* the stage of the rows of order 1, and where they begin */
        if constexpr (WIDTH > 16) {
#pragma unroll
            for (int b = 0; b < WIDTH / 16; b++)
                if (b * each < products)
#pragma unroll 1
                    for (int eight = 0; eight < each; eight++)
                        rows.read_products(next(), eight, b);
            other = next();
        } else if (expanded.pairs > 0) {
            rotated_gradients gradients(rows.x.tile);
            rows.template read_rotated<SR_STAGE_GROUPS>(gradients, next());
            other = next();
            rows.template read_rotated<SR_ROTATION_GROUPS - SR_STAGE_GROUPS>(gradients, other);
            gradients.put(rows.c[0]);
            other += (SR_ROTATION_GROUPS - SR_STAGE_GROUPS) * SR_GROUP_NUMBERS;
        } else {
            other = next();
        }
        rows.read_keys(other, tiles, expanded.vectors(head_number, at.segment) + SR_CHUNK,
                       call.score.coefficient[1]);
        rows.scale([&](int t) {
            return FROM_END ? head.from_after(at.end, min(t, past - 1))
                            : head.from_before(at.begin, t);
        });
    }
#pragma unroll 1
    for (int n = 0; n < pairs.stages(); n++) {
        const int place = stage % STAGES;
        const sr_bf16 *const tiles_there = next();
        const pair_stage with = {tiles_there, tiles_there + SR_CHUNK_NUMBERS, shared->scales[place],
                                 shared->d_row_sums[place], pairs.first(n)};
#pragma unroll 1
        for (int m = 0; m < SR_CHUNK; m += 16)
            if (FROM_END ? with.t0 + m >= rows.t : with.t0 + m < rows.t + shape::WARP_ROWS)
                rows.visit(head, call.score.slope, with, m);
    }
    __syncthreads(); /* no warp reads a stage any more */
#pragma unroll
    for (int half = 0; half < HALVES; half++)
        if (rows.t + 16 * half < past)
            store_gradients<WIDTH, FROM_END>(call, {at.b, at.head, rows.t + 16 * half},
                                             rows.c[half],
                                             shared->stage[0][0] + (own + 16 * half) * SR_CHUNK,
                                             FROM_END ? aligned.d_k : aligned.d_q);
}

template <bool FROM_END>
static srnn_status start(const sr_attention_view<sr_bf16> &call, const sr_mma_alignment &aligned,
                         const sr_order2 &expanded, cudaStream_t stream) {
    const int heads = call.B * (FROM_END ? call.Hkv : call.H);
    const dim3 grid((unsigned)(heads * expanded_blocks(call.T)));
    if (call.D <= 16)
        SR_CUDA(sr_launch(expanded_gradients<16, FROM_END>, grid,
                          dim3(sr_order2_shape<16>::THREADS), sizeof(gradient_memory<16>), stream,
                          call, aligned, expanded));
    else
        SR_CUDA(sr_launch(expanded_gradients<64, FROM_END>, grid,
                          dim3(sr_order2_shape<64>::THREADS), sizeof(gradient_memory<64>), stream,
                          call, aligned, expanded));
    return SRNN_OK;
}

srnn_status sr_order2_backward_queries(const sr_attention_view<sr_bf16> &call,
                                       const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                       cudaStream_t stream) {
    return start<false>(call, aligned, expanded, stream);
}

srnn_status sr_order2_backward_keys(const sr_attention_view<sr_bf16> &call,
                                    const sr_mma_alignment &aligned, const sr_order2 &expanded,
                                    cudaStream_t stream) {
    return start<true>(call, aligned, expanded, stream);
}
