/* shared.cu: additive writes with a gate per head, in chunks: gradients where heads share queries
 * and keys (Mamba-2), each chunk by itself.
 *
 * As gradients.cu, for heads h with queries q and keys k in common, whose values count f_j times:
 * with D_ij = scale e^(C_i - C_j) f_j of a head,
 *     dq_i = sum over heads of scale before_i S dN_i + sum_j (sum over heads of G_ij) k_j
 *     dk_j = sum over heads of until_j f_j R v_j + sum_i (sum over heads of G_ij) q_i
 *     dv_j = until_j f_j R' k_j + sum_i w_ij dN_i + skip dN_j
 * so that q k' is found once for all heads, the products of G with keys and queries are made once,
 * and gradients of queries and keys are added up in registers. */
#include "attention/cuda/chunks/head/slice.h"
#include "device/cuda/check.h"

enum { PAIR_BLOCKS = SR_CHUNK_STRIPS * (SR_CHUNK_STRIPS + 1) / 2 };

/* 16 x 16 pairs of a lower triangle, as lanes have sums of mma. */
struct shared_pairs {
    float4 half[PAIR_BLOCKS][2][SR_WARP];

    /* Of rows own .. and columns at ... */
    static SR_DEVICE int block(int own, int at) {
        return own / 16 * (own / 16 + 1) / 2 + at / 16;
    }
    SR_DEVICE void put(const float (&w)[2][4], int own, int at, int lane) {
#pragma unroll
        for (int n = 0; n < 2; n++)
            half[block(own, at)][n][lane] = make_float4(w[n][0], w[n][1], w[n][2], w[n][3]);
    }
    SR_DEVICE void get(float (&w)[2][4], int own, int at, int lane) const {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float4 x = half[block(own, at)][n][lane];
            w[n][0] = x.x;
            w[n][1] = x.y;
            w[n][2] = x.z;
            w[n][3] = x.w;
        }
    }
};

template <int F> struct shared_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    /* of one head */
    sr_bf16 values[SR_CHUNK_SQUARE];
    sr_bf16 gradients[SR_CHUNK_SQUARE];               /* of numerators */
    sr_bf16 state[SR_CHUNK * F], later[SR_CHUNK * F]; /* tiles of S, of R */
    sr_bf16 weights[SR_CHUNK_SQUARE];                 /* w; at last the sum of G */
    shared_pairs products, d_pairs;                   /* scale q k'; the sum of G */
    gradients_place at;
    sr_chunk_tokens tokens;
    gradients_sums sums;
    float values_dot[SIDES][SR_CHUNK]; /* <v, dv> by halves of a row */
};

/* The heads of a block: of those that share row head `shared` of q and k, numbers first .. end-1.
 * Heads that share are side by side, or as far apart as there are row heads. */
struct shared_heads {
    int shared, first, end, part, parts;

    SR_DEVICE int head(const sr_chunk_call &call, int n) const {
        return call.q_share == 1 ? shared + n * call.q_heads : shared * call.q_share + n;
    }
    /* Where the block's sums go, among gradients of q and k. */
    SR_DEVICE int out() const {
        return shared * parts + part;
    }
};

/* products = scale q k' of the warp's blocks, which no other warp reads; d_pairs = 0. */
template <int F> SR_DEVICE void multiply_pairs(shared_memory<F> *shared, float scale) {
    const int lane = lane_again(), own = shared->at.own(), side = shared->at.side();
    const float none[2][4] = {};
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {};
        multiply_by_rows<F, F, F>(w, shared->queries, own, 0, shared->keys, at);
#pragma unroll
        for (int e = 0; e < 8; e++)
            w[e / 4][e % 4] *= scale;
        shared->products.put(w, own, at, lane);
        shared->d_pairs.put(none, own, at, lane);
    }
}

/* w of a head, of the warp's blocks, to shared memory; d_pairs += G; and sums of w dw. */
template <int F> SR_DEVICE void weigh_head(shared_memory<F> *shared, float scale) {
    const int lane = lane_again(), own = shared->at.own(), side = shared->at.side();
    const sr_chunk_tokens &tokens = shared->tokens;
    float of_rows[2] = {};
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4], d[2][4] = {}, sum[2][4];
        multiply_by_rows<SR_CHUNK, SR_CHUNK, SR_CHUNK>(d, shared->gradients, own, 0, shared->values,
                                                       at);
        shared->products.get(w, own, at, lane);
        shared->d_pairs.get(sum, own, at, lane);
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const int j = at + sum_column(4 * (m / 2) + m % 2, lane);
            float of_column = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float &weight = w[m / 2][2 * half + m % 2], &d_weight = d[m / 2][2 * half + m % 2];
                const int i = own + sum_row(2 * half, lane);
                const float decay = j > i ? 0 : tokens.between(i, j);
                weight = j > i ? 0 : weight * decay;
                const float both = j == i ? 0 : weight * d_weight;
                sum[m / 2][2 * half + m % 2] += j > i ? 0 : scale * decay * d_weight;
                of_rows[half] += both;
                of_column += both;
            }
#pragma unroll
            for (int mask = 4; mask < SR_WARP; mask *= 2)
                of_column += shuffle_xor(of_column, mask);
            if (lane < 4)
                shared->sums.columns[own / 16][j] += of_column;
        }
        shared->d_pairs.put(sum, own, at, lane);
        pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float all = quad_sum(of_rows[half]);
        if (lane % 4 == 0)
            shared->sums.rows[side][own + sum_row(2 * half, lane)] += all;
    }
}

/* What dq and dk have from a head's S and R. */
template <int F>
SR_DEVICE void read_states(float (&d_q)[F / SR_CHUNK][PIECES][4],
                           float (&d_k)[F / SR_CHUNK][PIECES][4], const sr_chunk_call &call,
                           shared_memory<F> *shared) {
    const gradients_place &at = shared->at;
    const int own = at.own(), side = at.side();
    const sr_chunk_tokens &tokens = shared->tokens;
    float from_state[2] = {}, from_later[2] = {};
    /* sum += the rows times the part's tile of S or R, times factors of rows */
    const auto take = [&](float(&sum)[PIECES][4], float(&dot)[2], const sr_bf16 *rows,
                          const sr_bf16 *tile, const float *factor, float also, const sr_bf16 *of,
                          int part) {
        float c[PIECES][4], products[2] = {};
        clear_pieces(c);
        multiply_by_columns<SR_CHUNK, SR_CHUNK>(c, rows, own, 0, tile + part * SR_CHUNK_SQUARE,
                                                PIECES * side);
        row_words<F>(own, at.column(part)).add_dots(products, c, of);
        const int lane = lane_again();
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float weight = factor[own + sum_row(2 * half, lane)] * also;
            dot[half] = fmaf(weight, products[half], dot[half]);
#pragma unroll
            for (int n = 0; n < PIECES; n++) {
                sum[n][2 * half] = fmaf(weight, c[n][2 * half], sum[n][2 * half]);
                sum[n][2 * half + 1] = fmaf(weight, c[n][2 * half + 1], sum[n][2 * half + 1]);
            }
        }
    };
#pragma unroll
    for (int part = 0; part < F / SR_CHUNK; part++) {
        if (at.reads_state)
            take(d_q[part], from_state, shared->gradients, shared->state, tokens.before, call.scale,
                 shared->queries, part);
        if (at.reads_later)
            take(d_k[part], from_later, shared->values, shared->later, tokens.until, 1,
                 shared->keys, part);
    }
    add_row_dots(shared->sums.from_state[side], from_state, own);
    add_row_dots(shared->sums.from_later[side], from_later, own);
    if (!at.reads_state || !at.reads_later)
        return;
    const float both = warp_sum(tile_dot<SR_CHUNK * F>(shared->state, shared->later));
    if (threadIdx.x % SR_WARP == 0)
        shared->sums.both[threadIdx.x / SR_WARP] = both;
}

/* What the whole of G gives dq and dk, once for all heads. */
template <int F>
SR_DEVICE void visit_pairs(float (&d_q)[F / SR_CHUNK][PIECES][4],
                           float (&d_k)[F / SR_CHUNK][PIECES][4], shared_memory<F> *shared) {
    const gradients_place &at = shared->at;
    const int lane = lane_again(), own = at.own();
#pragma unroll 1
    for (int block = 16 * at.side(); block <= own; block += 16 * SIDES) {
        float d[2][4];
        shared->d_pairs.get(d, own, block, lane);
        pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, d, block / 8);
    }
    __syncthreads(); /* the sum of G is ready */
#pragma unroll 1
    for (int k = 0; k < SR_CHUNK; k += 16) {
        uint32_t a[4];
        if (k <= own) {
            load_a<SR_CHUNK>(a, shared->weights, own, k / 16, lane);
#pragma unroll
            for (int part = 0; part < F / SR_CHUNK; part++)
                multiply_rows<F>(d_q[part], a, shared->keys, k, at.column(part) / 16, lane);
        }
        if (k >= own) {
            load_a_columns<SR_CHUNK>(a, shared->weights, k, own / 16, lane);
#pragma unroll
            for (int part = 0; part < F / SR_CHUNK; part++)
                multiply_rows<F>(d_k[part], a, shared->queries, k, at.column(part) / 16, lane);
        }
    }
}

/* One span: see head_shared_chunk. */
template <int F>
SR_DEVICE void span_gradients(const sr_chunk_call &call, shared_memory<F> *shared,
                              const shared_heads &heads, const head_states &before,
                              const head_states &later) {
    const gradients_place &at = shared->at;
    float d_q[F / SR_CHUNK][PIECES][4], d_k[F / SR_CHUNK][PIECES][4];
#pragma unroll
    for (int part = 0; part < F / SR_CHUNK; part++) {
        clear_pieces(d_q[part]);
        clear_pieces(d_k[part]);
    }
    chunk_load<F, THREADS>(shared->queries, chunk_rows(call.q, at.b, heads.shared, call.F),
                           at.span);
    chunk_load<F, THREADS>(shared->keys, chunk_rows(call.k, at.b, heads.shared, call.F), at.span);
    cp_async_commit();
    sr_chunk_gates gates; /* of warp 0 */
    const auto load = [&](int n) {
        const int h = heads.head(call, n);
        load_head<F>(call, shared, h, before, later);
        if (threadIdx.x < SR_WARP)
            head_open_gates(gates, call, at.b, h, at.span);
    };
    load(heads.first);
    cp_async_wait<1>();
    __syncthreads(); /* queries and keys are ready */
    multiply_pairs(shared, call.scale);
#pragma unroll 1
    for (int n = heads.first; n < heads.end; n++) {
        const int h = heads.head(call, n);
        if (threadIdx.x < SR_WARP)
            head_publish_gates(gates, shared->tokens, call, at.b, h, at.span);
        shared->sums.clear();
        if (threadIdx.x < SR_CHUNK)
            shared->values_dot[0][threadIdx.x] = shared->values_dot[1][threadIdx.x] = 0;
        cp_async_wait<0>();
        __syncthreads(); /* the head's tiles, gates and zeroes are ready */
        weigh_head(shared, call.scale);
        read_states<F>(d_q, d_k, call, shared);
        __syncthreads(); /* weights are ready */
        value_gradients<F>(call, shared, h);
        __syncthreads(); /* no warp reads the head's tiles; its sums are complete */
        if (n + 1 < heads.end)
            load(n + 1);
        store_sums(call, shared, h);
        __syncthreads(); /* nor its sums */
    }
    visit_pairs<F>(d_q, d_k, shared);
#pragma unroll
    for (int part = 0; part < F / SR_CHUNK; part++) {
        if (call.d_q.data)
            store_columns(call.d_q, at, heads.out(), d_q[part], at.column(part), call.F);
        if (call.d_k.data)
            store_columns(call.d_k, at, heads.out(), d_k[part], at.column(part), call.F);
    }
}

/* A block owns a chunk of some heads that share queries and keys, and visits its spans, the last
 * first: one, unless documents begin inside. cp.async copies the rows of q and k, global -> shared,
 * once, then head by head those of v and dN and the tiles of S and R. For each head, between
 * barriers: weights w to shared memory and the sum of G there, what dq and dk have from S and R;
 * dv, stored; sums for gates and factors of values, stored. At last what the sum of G gives dq and
 * dk, which are stored. A warp has 16 rows and half the columns of dq, dk and dv, in registers;
 * another block of the multiprocessor computes while tiles are copied. */
template <int F>
__global__ void __launch_bounds__(THREADS, 2)
    head_shared_chunk(const __grid_constant__ sr_chunk_call call,
                      const __grid_constant__ head_states before,
                      const __grid_constant__ head_states later) {
    using Memory = shared_memory<F>;
    SR_SHARED(Memory, shared);
    const int chunks = chunk_count(call.T), parts = call.parts, sharing = call.H / call.q_heads;
    const int each = (sharing + parts - 1) / parts, index = (int)blockIdx.x / parts;
    const int row = index / chunks, t0 = (index - row * chunks) * SR_CHUNK;
    const int part = (int)blockIdx.x % parts, end = min(t0 + SR_CHUNK, call.T);
    const shared_heads heads = {row % call.q_heads, part * each, min(part * each + each, sharing),
                                part, parts};
    for (int past = end; past > t0; past = shared->at.span.from) {
        __syncthreads(); /* no warp reads the previous span */
        if (threadIdx.x == 0) {
            shared->at.b = row / call.q_heads;
            place_span(shared->at, call, past, end);
        }
        __syncthreads(); /* the span is known */
        span_gradients<F>(call, shared, heads, before, later);
    }
}

template <int F>
static srnn_status start(const sr_chunk_call &call, const head_states &before,
                         const head_states &later, cudaStream_t stream) {
    SR_CUDA(sr_launch(head_shared_chunk<F>,
                      dim3((unsigned)(call.B * call.q_heads * chunk_count(call.T) * call.parts)),
                      dim3(THREADS), sizeof(shared_memory<F>), stream, call, before, later));
    return SRNN_OK;
}

srnn_status head_shared_gradients(const sr_chunk_call &call, const head_states &before,
                                  const head_states &later, cudaStream_t stream) {
    return head_width(call.F) == 64 ? start<64>(call, before, later, stream)
                                    : start<128>(call, before, later, stream);
}

size_t head_shared_bytes(int F) {
    return head_width(F) == 64 ? sizeof(shared_memory<64>) : sizeof(shared_memory<128>);
}
