/* gradients.cu: additive writes with levels: gradients, each chunk by itself.
 *
 * With D_ij = scale e^(C_i - C_j), w_ij = level_i D_ij <q_i, k_j>, G_ij = level_i D_ij <dN_i, v_j>,
 * and S_z and R_z the states and gradients that the chunk reads, with what gates leave of them:
 *     dq_i = sum_z level_i[7 + z] scale before_i S_z dN_i + sum_j G_ij k_j
 *     dk_j = until_j sum_z R_z v_j + sum_i G_ij q_i
 *     dv_j = until_j sum_z R_z' k_j + sum_i w_ij dN_i
 *     d_level_i[7 + z] = scale before_i <q_i, S_z dN_i>
 * and inside the chunk the sum of D_ij <q_i, k_j> <dN_i, v_j> over the keys of a level. The gate
 * between tokens t - 1 and t gets the sum of w_ij dw_ij over i >= t > j: inside the chunk, sums of
 * rows less sums of columns, without i = j; from other chunks, the sums from t on of level_i
 * d_level_i and those before t of what dk_j has from R, times k_j. What chunks of the same node add
 * to that follows in gates.cu from the sums over whole chunks. */
#include "attention/cuda/chunks/levels/tree.h"
#include "device/cuda/check.h"

/* A warp has 16 rows of a chunk and one of two sides of each 64 columns. */
enum { SIDES = 2, WARPS = SIDES * SR_CHUNK_STRIPS, THREADS = WARPS * SR_WARP };
enum { PIECES = SR_CHUNK / 8 / SIDES };

/* Sums of w dw: over rows; over columns of 16 rows; what comes from R; and over the whole chunk of
 * what comes from each S_z, and by warps from each R_z. */
struct tree_gradients_sums {
    float rows[SR_CHUNK], columns[SR_CHUNK_STRIPS][SR_CHUNK], from_later[SIDES][SR_CHUNK];
    float of_queries[TREE_NODES], of_keys[WARPS][TREE_NODES];
};

/* The chunk that a block is at. In shared memory, since registers are scarce. */
struct tree_gradients_place {
    int b, head, window;
    int t0, past; /* the next chunk begins there; all do before this */
    tree_chunk chunk;

    /* The warp's first row; the first of its columns of slice n. */
    SR_DEVICE int own() const {
        return of_warp(16 * ((thread_again() / SR_WARP + window) % SR_CHUNK_STRIPS));
    }
    static SR_DEVICE int side() {
        return of_warp(thread_again() / SR_WARP / SR_CHUNK_STRIPS);
    }
    static SR_DEVICE int column(int n) {
        return SR_CHUNK * n + 8 * PIECES * side();
    }
};

template <int F, int V> struct tree_gradients_memory {
    alignas(16) sr_bf16 queries[SR_CHUNK * F];
    sr_bf16 keys[SR_CHUNK * F];
    sr_bf16 values[SR_CHUNK * V];
    sr_bf16 gradients[SR_CHUNK * V];                              /* of numerators */
    sr_bf16 ring[2][SR_CHUNK_SQUARE];                             /* tiles of R, then of S */
    sr_bf16 weights[SR_CHUNK_SQUARE], d_weights[SR_CHUNK_SQUARE]; /* w, G */
    tree_gradients_place at;
    tree_reads before, later;
    sr_chunk_tokens tokens;
    float levels[SR_CHUNK][TREE_LEVELS], d_levels[SIDES][SR_CHUNK][TREE_LEVELS];
    tree_gradients_sums sums;
};

template <class Numbers> SR_DEVICE void zero_all(Numbers &numbers) {
    float *const to = reinterpret_cast<float *>(&numbers);
    for (int n = (int)threadIdx.x; n < (int)(sizeof numbers / sizeof(float)); n += THREADS)
        to[n] = 0;
}

/* The tiles of all R, part after part; then for each query head those of each part of S, state
 * after state; through the ring. */
template <int F, int V> struct tree_gradients_tiles {
    const sr_chunk_call &call;
    const tree_shape &shape;
    const tree_arrays &tree;
    tree_gradients_memory<F, V> *shared;
    int n; /* the next */

    SR_DEVICE void start(int which) const {
        const int count = shape.parts * shape.slices, of_later = shared->later.count * count;
        const int states = shared->before.count;
        const sr_bf16 *from;
        int window, part, slice;
        if (which < of_later) {
            window = shared->later.node[which / count].window;
            part = which % count / shape.slices;
            slice = which % shape.slices;
            from = tree.later;
        } else {
            const int of_states = which - of_later;
            if (of_states >= states * count * call.group)
                return;
            window = shared->before.node[of_states / shape.slices % states].window;
            part = of_states / shape.slices / states % shape.parts;
            slice = of_states % shape.slices;
            from = tree.states;
        }
        from += shape.tile(call, shared->at.b, shared->at.head, window, part, slice);
        sr_bf16 *const to = shared->ring[which % 2];
        const int own = 8 * thread_again();
#pragma unroll
        for (int at = 0; at < SR_CHUNK_SQUARE; at += 8 * THREADS)
            cp_async_16(to + at + own, from + at + own);
        cp_async_commit();
    }

    /* By all threads: the next tile, complete; the previous one is no longer read. */
    SR_DEVICE const sr_bf16 *take() {
        cp_async_wait<0>();
        __syncthreads();
        start(n + 1);
        return shared->ring[n++ % 2];
    }
};

/* The products of rows own .. of a tile with C, its columns from `column` on: all four lanes of a
 * row get its sum. */
template <int WIDTH>
SR_DEVICE void rows_dot(float (&dot)[2], const float (&c)[PIECES][4], const sr_bf16 *tile, int own,
                        int column) {
    const int lane = lane_again();
    dot[0] = dot[1] = 0;
#pragma unroll
    for (int e = 0; e < 4 * PIECES; e += 2) {
        const sr_bf16 *const at =
            tile + sr_tile<WIDTH>::offset(own + sum_row(e, lane), column / 8 + e / 4) +
            2 * (lane % 4);
        const float2 pair = unpack_bf16(*reinterpret_cast<const uint32_t *>(at));
        dot[e % 4 / 2] += fmaf(c[e / 4][e % 4], pair.x, c[e / 4][e % 4 + 1] * pair.y);
    }
    dot[0] = quad_sum(dot[0]);
    dot[1] = quad_sum(dot[1]);
}

/* w and G of a piece of 16 rows and 16 keys from their dot products, to shared memory; what its
 * columns get, and its rows for each level: one, or 0 to 4 where rows and keys are the SAME tokens.
 * Parameters, not a struct: they stay in registers. */
template <bool SAME, int F, int V>
SR_DEVICE void weigh_piece(float (&w)[2][4], float (&d)[2][4], tree_gradients_memory<F, V> *shared,
                           int own, int at, float scale, bool gates) {
    const int lane = lane_again(), apart = tree_level(own, at);
    float both[2][4]; /* w dw, without the level's weight */
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const int j = at + sum_column(4 * (m / 2) + m % 2, lane);
        float of_column = 0;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int e = 2 * half + m % 2, i = own + sum_row(e, lane);
            const bool hidden = SAME && j > i;
            const float decay = hidden ? 0 : scale * (gates ? shared->tokens.between(i, j) : 1);
            const float level = hidden ? 0 : shared->levels[i][SAME ? tree_level(i, j) : apart];
            const float weight = hidden ? 0 : w[m / 2][e] * decay;
            both[m / 2][e] = weight * d[m / 2][e];
            of_column += SAME && j == i ? 0 : level * both[m / 2][e];
            w[m / 2][e] = weight * level;
            d[m / 2][e] *= decay * level;
        }
        if (!gates)
            continue;
#pragma unroll
        for (int mask = 4; mask < SR_WARP; mask *= 2)
            of_column += shuffle_xor(of_column, mask);
        if (lane < 4)
            shared->sums.columns[own / 16][j] += of_column;
    }
    pieces_to_tile<SR_CHUNK>(shared->weights + own * SR_CHUNK, w, at / 8);
    pieces_to_tile<SR_CHUNK>(shared->d_weights + own * SR_CHUNK, d, at / 8);
    float(&of_levels)[SR_CHUNK][TREE_LEVELS] = shared->d_levels[shared->at.side()];
#pragma unroll 1
    for (int level = SAME ? 0 : apart; level <= (SAME ? 4 : apart); level++) {
        float sums[2] = {};
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const int i = own + sum_row(e, lane), j = at + sum_column(e, lane);
            sums[e % 4 / 2] += !SAME || tree_level(i, j) == level ? both[e / 4][e % 4] : 0;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float all = quad_sum(sums[half]);
            if (lane % 4 == 0)
                of_levels[own + sum_row(2 * half, lane)][level] += all;
        }
    }
}

/* w and G of rows own .. of a chunk, pieces of 16 keys up to their own, every second piece for each
 * of the two warps that share them. */
template <int F, int V>
SR_DEVICE void weigh_pairs(tree_gradients_memory<F, V> *shared, float scale, bool gates) {
    const int own = shared->at.own(), side = shared->at.side();
#pragma unroll 1
    for (int at = 16 * side; at <= own; at += 16 * SIDES) {
        float w[2][4] = {}, d[2][4] = {};
        multiply_by_rows<F, F, F>(w, shared->queries, own, 0, shared->keys, at);
        multiply_by_rows<V, V, V>(d, shared->gradients, own, 0, shared->values, at);
        if (at == own)
            weigh_piece<true>(w, d, shared, own, at, scale, gates);
        else
            weigh_piece<false>(w, d, shared, own, at, scale, gates);
    }
}

/* C += x, rows times their factors in shared memory and all times one. */
SR_DEVICE void add_scaled(float (&c)[PIECES][4], const float (&x)[PIECES][4], const float *rows,
                          float also) {
    const int lane = lane_again();
    const float factor[2] = {also * rows[sum_row(0, lane)], also * rows[sum_row(2, lane)]};
#pragma unroll
    for (int e = 0; e < 4 * PIECES; e++)
        c[e / 4][e % 4] = fmaf(x[e / 4][e % 4], factor[e % 4 / 2], c[e / 4][e % 4]);
}

/* What dk and dv have from R. */
template <int F, int V>
SR_DEVICE void read_later(float (&d_k)[F / SR_CHUNK][PIECES][4],
                          float (&d_v)[V / SR_CHUNK][PIECES][4], const tree_shape &shape,
                          tree_gradients_memory<F, V> *shared, tree_gradients_tiles<F, V> &tiles,
                          bool gates) {
    const tree_gradients_place &at = shared->at;
    const int own = at.own(), warp = of_warp(thread_again() / SR_WARP);
    float *const from_later = shared->sums.from_later[at.side()] + own;
#pragma unroll 1
    for (int n = 0; n < shared->later.count; n++) {
        const float *const until = shared->tokens.until + own;
        float sum = 0;
#pragma unroll
        for (int part = 0; part < F / SR_CHUNK; part++) {
            float x[PIECES][4];
            clear_pieces(x);
            if (part >= shape.parts)
                continue;
#pragma unroll
            for (int slice = 0; slice < V / SR_CHUNK; slice++) {
                if (slice >= shape.slices)
                    continue;
                const sr_bf16 *const later = tiles.take();
                float y[PIECES][4];
                clear_pieces(y);
                multiply_by_rows<F, SR_CHUNK, SR_CHUNK>(y, shared->keys, own,
                                                        SR_CHUNK_STRIPS * part, later,
                                                        8 * PIECES * at.side());
                add_scaled(d_v[slice], y, until, shared->later.node[n].factor);
                multiply_by_columns<V, SR_CHUNK>(x, shared->values, own, SR_CHUNK_STRIPS * slice,
                                                 later, PIECES * at.side());
            }
            const float of_node = shared->later.node[n].factor;
            add_scaled(d_k[part], x, until, of_node);
            if (!gates)
                continue;
            const int lane = lane_again();
            float dot[2];
            rows_dot<F>(dot, x, shared->keys, own, at.column(part));
#pragma unroll
            for (int half = 0; half < 2; half++)
                if (lane % 4 == 0) {
                    const int row = sum_row(2 * half, lane);
                    dot[half] *= of_node * until[row];
                    from_later[row] += dot[half];
                    sum += dot[half];
                }
        }
        if (!gates)
            continue;
        sum = warp_sum(sum);
        if (thread_again() % SR_WARP == 0)
            shared->sums.of_keys[warp][shared->later.node[n].z] += sum;
    }
}

/* C to columns `column` .. of the rows of a head. */
SR_DEVICE void store_columns(const sr_chunk_rows &rows, const tree_gradients_place &at, int h,
                             const float (&c)[PIECES][4], int column, int columns) {
    store_pieces<PIECES>({rows.row(at.b, h, 0) + column, rows.time, columns - column, true}, c,
                         at.own(), at.chunk.span);
}

/* dq of query head h, from all S and from the chunk's own keys, and what levels have from S. */
template <int F, int V>
SR_DEVICE void query_gradients(const sr_chunk_call &call, const tree_shape &shape,
                               tree_gradients_memory<F, V> *shared,
                               tree_gradients_tiles<F, V> &tiles, int h) {
    const tree_gradients_place &at = shared->at;
    const int own = at.own(), side = at.side();
#pragma unroll 1
    for (int part = 0; part < shape.parts; part++) {
        float c[PIECES][4];
        clear_pieces(c);
#pragma unroll 1
        for (int n = 0; n < shared->before.count; n++) {
            float x[PIECES][4], dot[2];
            clear_pieces(x);
#pragma unroll 1
            for (int slice = 0; slice < shape.slices; slice++)
                multiply_by_columns<V, SR_CHUNK>(x, shared->gradients, own, SR_CHUNK_STRIPS * slice,
                                                 tiles.take(), PIECES * side);
            rows_dot<F>(dot, x, shared->queries, own, at.column(part));
            const int lane = lane_again(), level = TREE_INSIDE + shared->before.node[n].z;
            const float of_node = call.scale * shared->before.node[n].factor;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int i = own + sum_row(2 * half, lane);
                const float before = of_node * shared->tokens.before[i];
                const float factor = before * shared->levels[i][level];
                if (lane % 4 == 0)
                    shared->d_levels[side][i][level] += before * dot[half];
#pragma unroll
                for (int e = 0; e < 4 * PIECES; e++)
                    if (e % 4 / 2 == half)
                        c[e / 4][e % 4] = fmaf(x[e / 4][e % 4], factor, c[e / 4][e % 4]);
            }
        }
        const int lane = lane_again();
#pragma unroll 1
        for (int k = 0; k <= own; k += 16) {
            uint32_t a[4];
            load_a<SR_CHUNK>(a, shared->d_weights, own, k / 16, lane);
            multiply_rows<F>(c, a, shared->keys, k, at.column(part) / 16, lane);
        }
        if (call.d_q.data)
            store_columns(call.d_q, at, h, c, at.column(part), call.F);
    }
}

/* What dk and dv have from the chunk's own queries. */
template <int F, int V>
SR_DEVICE void visit_queries(float (&d_k)[F / SR_CHUNK][PIECES][4],
                             float (&d_v)[V / SR_CHUNK][PIECES][4],
                             const tree_gradients_memory<F, V> *shared) {
    const tree_gradients_place &at = shared->at;
    const int lane = lane_again(), own = at.own();
#pragma unroll 1
    for (int row = own; row < SR_CHUNK; row += 16) {
        uint32_t a[4];
        load_a_columns<SR_CHUNK>(a, shared->d_weights, row, own / 16, lane);
#pragma unroll
        for (int part = 0; part < F / SR_CHUNK; part++)
            multiply_rows<F>(d_k[part], a, shared->queries, row, at.column(part) / 16, lane);
        load_a_columns<SR_CHUNK>(a, shared->weights, row, own / 16, lane);
#pragma unroll
        for (int slice = 0; slice < V / SR_CHUNK; slice++)
            multiply_rows<V>(d_v[slice], a, shared->gradients, row, at.column(slice) / 16, lane);
    }
}

/* The gradients of levels of query head h, and the sums of w dw of its rows: by all threads, after
 * a barrier, with one inside. The weights of levels are overwritten. */
template <int F, int V>
SR_DEVICE void store_levels(const sr_chunk_call &call, tree_gradients_memory<F, V> *shared, int h) {
    const sr_chunk_span &span = shared->at.chunk.span;
    float *const to = call.d_level + call.row(call.H, shared->at.b, h, span.t0) * call.levels;
    for (int n = (int)threadIdx.x; n < SR_CHUNK * TREE_LEVELS; n += THREADS) {
        const int row = n / TREE_LEVELS, level = n % TREE_LEVELS;
        const float d = shared->d_levels[0][row][level] + shared->d_levels[1][row][level];
        if (level < call.levels && row < span.past - span.t0)
            to[row * call.levels + level] = d;
        shared->levels[row][level] *= d;
    }
    __syncthreads(); /* w dw of all rows and levels are ready */
    const int warp = chunk_warp(), lane = (int)threadIdx.x % SR_WARP;
    if (warp < 2) {
        float sum = 0;
        for (int level = 1; level < TREE_LEVELS; level++)
            sum += shared->levels[threadIdx.x][level];
        shared->sums.rows[threadIdx.x] += sum;
        return;
    }
    for (int z = warp - 2; z < TREE_NODES; z += WARPS - 2) {
        const float sum = warp_sum(shared->levels[lane][TREE_INSIDE + z] +
                                   shared->levels[lane + SR_WARP][TREE_INSIDE + z]);
        if (lane == 0)
            shared->sums.of_queries[z] += sum;
    }
}

/* Gradients of the gates of a chunk from its sums, two tokens for each lane, and its sums for other
 * chunks of the same node. One warp. */
SR_DEVICE void store_gates(const sr_chunk_call &call, const tree_gradients_sums &sums,
                           const tree_gradients_place &at, const tree_shape &shape,
                           const tree_arrays &tree) {
    const int lane = (int)threadIdx.x % SR_WARP;
    const sr_chunk_span &span = at.chunk.span;
    sr_chunk_pair earlier, later; /* sums up to a token */
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = 2 * lane + n;
        earlier.x[n] = sums.from_later[0][t] + sums.from_later[1][t];
        later.x[n] = sums.rows[t];
        for (int strip = 0; strip < SR_CHUNK_STRIPS; strip++)
            later.x[n] -= sums.columns[strip][t];
    }
    const sr_chunk_pair own_earlier = earlier, own_later = later;
    earlier.sum_up();
    const float all_later = later.sum_up();
    float *const to = call.d_gate + call.row(call.Hkv, at.b, at.head, 0);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = span.t0 + 2 * lane + n;
        const float sum =
            (earlier.x[n] - own_earlier.x[n]) + (all_later - later.x[n] + own_later.x[n]);
        if (t < span.past)
            to[t] = t == span.t0 && !span.continues ? 0 : sum;
    }
    const int window = span.t0 / SR_CHUNK;
    const int64_t number = shape.number(call, at.b, at.head, window) * TREE_NODES + lane;
    if (lane >= TREE_NODES)
        return;
    if (span.continues)
        tree.of_queries[number] = sums.of_queries[lane];
    if (window + 1 == shape.windows)
        return;
    float sum = 0;
    for (int warp = 0; warp < WARPS; warp++)
        sum += sums.of_keys[warp][lane];
    if (span.past - span.t0 == SR_CHUNK && span.past < call.T &&
        call.first[(int64_t)at.b * call.T + span.past] < span.past)
        tree.of_keys[number + TREE_NODES] = sum;
}

template <int F, int V>
SR_DEVICE void load_queries(const sr_chunk_call &call, tree_gradients_memory<F, V> *shared, int h) {
    const tree_gradients_place &at = shared->at;
    const sr_chunk_span &span = at.chunk.span;
    chunk_load<F, THREADS>(shared->queries, chunk_rows(call.q, at.b, call.query_head(h), call.F),
                           span);
    chunk_load<V, THREADS>(shared->gradients, chunk_rows(call.d_numerator, at.b, h, call.V), span);
    cp_async_commit();
    tree_load_levels<THREADS>(&shared->levels[0][0], call, at.b, h, span);
    zero_all(shared->d_levels);
}

/* One chunk: see tree_gradients_chunks. */
template <int F, int V>
SR_DEVICE void chunk_gradients(const sr_chunk_call &call, const tree_shape &shape,
                               const tree_arrays &tree, tree_gradients_memory<F, V> *shared) {
    const tree_gradients_place &at = shared->at;
    const tree_row row = tree_row_of(call, at.b);
    const bool gates = call.decays > 0;
    const int warp = chunk_warp();
    chunk_load<F, THREADS>(shared->keys, chunk_rows(call.k, at.b, call.key_head(at.head), call.F),
                           at.chunk.span);
    chunk_load<V, THREADS>(shared->values, chunk_rows(call.v, at.b, at.head, call.V),
                           at.chunk.span);
    load_queries(call, shared, at.head * call.group);
    const int64_t number = shape.number(call, at.b, at.head, 0);
    if (warp == 0) {
        sr_chunk_gates of_span;
        of_span.open(gates ? call.gate + call.row(call.Hkv, at.b, at.head, 0) : nullptr,
                     at.chunk.span);
        of_span.publish(shared->tokens);
    } else if (warp == 1) {
        tree_find<false>(&shared->before, call, tree, row, at.chunk, number);
    } else if (warp == 2) {
        tree_find<true>(&shared->later, call, tree, row, at.chunk, number);
    }
    zero_all(shared->sums);
    float d_k[F / SR_CHUNK][PIECES][4], d_v[V / SR_CHUNK][PIECES][4];
#pragma unroll
    for (int part = 0; part < F / SR_CHUNK; part++)
        clear_pieces(d_k[part]);
#pragma unroll
    for (int slice = 0; slice < V / SR_CHUNK; slice++)
        clear_pieces(d_v[slice]);
    cp_async_wait<0>();
    __syncthreads(); /* rows, weights, lists of states and zeros are ready */
    tree_gradients_tiles<F, V> tiles = {call, shape, tree, shared, 0};
    tiles.start(0);
    read_later<F, V>(d_k, d_v, shape, shared, tiles, gates);
    for (int g = 0; g < call.group; g++) {
        if (g > 0) {
            __syncthreads(); /* no warp reads the queries before and their weights */
            load_queries(call, shared, at.head * call.group + g);
            cp_async_wait<0>();
            __syncthreads(); /* queries are ready */
        }
        weigh_pairs(shared, call.scale, gates);
        __syncthreads(); /* weights are ready */
        query_gradients<F, V>(call, shape, shared, tiles, at.head * call.group + g);
        visit_queries<F, V>(d_k, d_v, shared);
        __syncthreads(); /* gradients of levels are ready */
        store_levels(call, shared, at.head * call.group + g);
    }
#pragma unroll
    for (int part = 0; part < F / SR_CHUNK; part++)
        if (call.d_k.data)
            store_columns(call.d_k, at, at.head, d_k[part], at.column(part), call.F);
#pragma unroll
    for (int slice = 0; slice < V / SR_CHUNK; slice++)
        if (call.d_v.data)
            store_columns(call.d_v, at, at.head, d_v[slice], at.column(slice), call.V);
    if (!gates)
        return;
    __syncthreads(); /* sums are ready */
    if (warp == 0)
        store_gates(call, shared->sums, at, shape, tree);
}

SR_DEVICE void place_block(tree_gradients_place &at, const sr_chunk_call &call,
                           const tree_shape &shape) {
    const int head = (int)blockIdx.x / shape.windows;
    at.b = head / call.Hkv;
    at.head = head % call.Hkv;
    at.window = (int)blockIdx.x % shape.windows;
    at.t0 = tree_row_of(call, at.b).chunk_from(at.window);
    at.past = min(SR_CHUNK * (at.window + 1), call.T);
}

/* A block owns a head of keys and values, and the chunks of documents that begin in a window: one,
 * unless documents begin there. cp.async copies the rows of q, k, v and dN, and the tiles of R and
 * S, global -> shared, tile after tile through a ring of two. What dk and dv have from R; for each
 * query head the weights w and their gradients G in bf16 in shared memory, barrier, dq from S and
 * G, stored, and what dk and dv have from G and w, and what levels get, stored; then dk and dv, and
 * gradients of gates from sums in shared memory. A warp has 16 rows and half the columns of dq, dk
 * and dv, in registers. */
template <int F, int V>
__global__ void __launch_bounds__(THREADS, F + V <= 192 ? 2 : 1)
    tree_gradients_chunks(const __grid_constant__ sr_chunk_call call,
                          const __grid_constant__ tree_shape shape,
                          const __grid_constant__ tree_arrays tree) {
    using Memory = tree_gradients_memory<F, V>;
    SR_SHARED(Memory, shared);
    if (threadIdx.x == 0)
        place_block(shared->at, call, shape);
    __syncthreads(); /* the window is known */
    while (shared->at.t0 < shared->at.past) {
        if (threadIdx.x == 0)
            shared->at.chunk = tree_row_of(call, shared->at.b).chunk(shared->at.t0);
        __syncthreads(); /* the chunk is known */
        chunk_gradients<F, V>(call, shape, tree, shared);
        __syncthreads(); /* no warp reads the chunk any more */
        if (threadIdx.x == 0)
            shared->at.t0 = shared->at.chunk.span.past;
        __syncthreads(); /* the next one is known */
    }
}

template <int F, int V>
static srnn_status start_gradients(const sr_chunk_call &call, const tree_arrays &tree,
                                   cudaStream_t stream) {
    const tree_shape shape = tree_shape_of(call);
    SR_CUDA(sr_launch(tree_gradients_chunks<F, V>,
                      dim3((unsigned)(call.B * call.Hkv * shape.windows)), dim3(THREADS),
                      sizeof(tree_gradients_memory<F, V>), stream, call, shape, tree));
    return SRNN_OK;
}

srnn_status tree_gradients(const sr_chunk_call &call, const tree_arrays &tree,
                           cudaStream_t stream) {
    const bool wide = tree_width(call.V) == 128;
    if (tree_width(call.F) == 64)
        return wide ? start_gradients<64, 128>(call, tree, stream)
                    : start_gradients<64, 64>(call, tree, stream);
    return wide ? start_gradients<128, 128>(call, tree, stream)
                : start_gradients<128, 64>(call, tree, stream);
}

size_t tree_gradients_bytes(int F, int V) {
    const bool wide = tree_width(V) == 128;
    if (tree_width(F) == 64)
        return wide ? sizeof(tree_gradients_memory<64, 128>)
                    : sizeof(tree_gradients_memory<64, 64>);
    return wide ? sizeof(tree_gradients_memory<128, 128>) : sizeof(tree_gradients_memory<128, 64>);
}
