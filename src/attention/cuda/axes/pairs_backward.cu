/* pairs_backward.cu: the gradients of the parallel form with every axis.
 *
 * Two kernels for each walk over pairs: one owns 32 queries and writes what belongs to them, one
 * owns 32 keys. Both find the same bits for a pair, and add the products of weights and gradients
 * in double: what a decay gets is a difference of such sums of rows and of columns. */
#include "attention/cuda/axes/pairs.h"

/* One double for each pair of a row of the warp and one that passes by. */
struct pair_doubles {
    double number[AXES_OWN][SR_TILE + 1];
};

template <int WIDTH> struct backward_memory {
    sr_float_tile<WIDTH> q, d_out, k, v;
    sr_pair_rows dot[AXES_PAIR_WARPS];      /* <q, k>, then the weight with its level */
    sr_pair_rows gradient[AXES_PAIR_WARPS]; /* <d_out, v>, then that of <q, k> */
    pair_doubles product[AXES_PAIR_WARPS];  /* sums of weights times their gradients */
};

/* Where a block stands: its head of queries, and the number of its head of keys in (B, Hkv). The
 * warp's rows are own, own + step .. */
struct pairs_place {
    int b, h, kv, own, step, lane, warp;
};

SR_DEVICE const double *decay_of(const sr_axes_call &call, int kv, int t) {
    return call.scratch.decay + ((int64_t)kv * call.T + min(t, call.T - 1)) * call.decays;
}

/* d_level of row i, whose pairs with the lanes have the levels `level` (-1: none) and these
 * gradients: sums over the lanes, level by level. */
SR_DEVICE void add_levels(float *d_level, int level, float gradient) {
    const int high = (int)warp_maximum((float)level);
    const int low = -(int)warp_maximum(level < 0 ? -1e9f : -(float)level);
    for (int n = max(low, 0); n <= high; n++) {
        const float sum = warp_sum(level == n ? gradient : 0);
        if (axes_lane() == 0)
            d_level[n] += sum;
    }
}

/* From the dot products of the lane's pairs to weights and gradients of <q, k>. The warp's rows,
 * from `own` on, are queries and the lane's, `other`, is a key; or, if keys stay, the other way
 * round. keys: of whichever are keys. */
template <bool KEYS_STAY, int WIDTH>
SR_DEVICE void pairs_gradients(backward_memory<WIDTH> &shared, const sr_axes_call &call,
                               const axes_pass &pass, const pairs_place &at, int other,
                               const axes_key_tile &keys) {
#pragma unroll 1 /* series would take too many registers at a time */
    for (int r = 0; r < AXES_OWN; r++) {
        const int own = at.own + r * at.step;
        const int i = KEYS_STAY ? other : own, j = KEYS_STAY ? own : other;
        const int row_t = min(i, call.T - 1), start = call.start(at.b, row_t);
        const int64_t row = call.row(pass.heads, at.b, at.h, row_t);
        float &dot = shared.dot[at.warp].number[r][at.lane];
        float &gradient = shared.gradient[at.warp].number[r][at.lane];
        float weight = 0, slope = 0, d_level = 0;
        int level = -1;
        if (i < call.T && keys.has(call, i, j) && axes_seen(call, pass, start, i, j)) {
            const double between =
                call.decays == 1 ? *decay_of(call, at.kv, i) - *decay_of(call, at.kv, j) : 0;
            const axes_pair pair = axes_pair_of(call, pass.kappa, dot, between,
                                                pass.kappa ? 0 : call.saved_maximum[row]);
            float factor = 1;
            if (pass.d_row_sum)
                gradient += (float)pass.d_row_sum[row];
            if (call.scratch.level && !pass.kappa) {
                level = axes_level_of(pass, start, i, j);
                factor = call.scratch.level[row * call.levels + level];
                d_level = pair.weight * gradient;
            }
            weight = pair.weight * factor;
            slope = pair.slope == 0 ? 0 : pair.slope * (factor * gradient);
            const float product =
                call.decay_in_logits ? slope * (dot * pair.inside) : weight * gradient;
            shared.product[at.warp].number[r][at.lane] += (double)product;
            slope *= pair.inside;
        }
        dot = weight;
        gradient = slope;
        if (!KEYS_STAY && pass.d_level)
            add_levels(pass.d_level + row * call.levels, level, d_level);
    }
    __syncwarp();
}

/* x[r] += gradients times the tile's rows; with a decay per channel, times that too, and the
 * products with the warp's own rows to `decay`. Parameters, not a struct: they stay in
 * registers. */
template <bool KEYS_STAY, int WIDTH>
SR_DEVICE void add_gradients(float (&x)[AXES_OWN][WIDTH / SR_WARP],
                             double (&decay)[AXES_OWN][WIDTH / SR_WARP], const sr_axes_call &call,
                             const pairs_place &at, const sr_pair_rows &gradient,
                             const float (*stays)[WIDTH + 1], const sr_float_tile<WIDTH> &comes,
                             int t0, int step = 1) {
    using Row = sr_warp_row<WIDTH>;
    if (call.decays < 2) {
        add_rows(x, gradient, comes);
        return;
    }
    for (int n = 0; n < AXES_TILE; n++)
#pragma unroll
        for (int m = 0; m < Row::count; m++) {
            const int c = Row::column(m);
            const float y = comes.number[n][c];
            const double other = c < call.decays ? decay_of(call, at.kv, t0 + n * step)[c] : 0;
#pragma unroll
            for (int r = 0; r < AXES_OWN; r++) {
                const float g = gradient.number[r][n];
                if (g == 0 || c >= call.decays)
                    continue;
                const double own = decay_of(call, at.kv, at.own + r * at.step)[c];
                const float e = expf((float)(KEYS_STAY ? other - own : own - other));
                x[r][m] = fmaf(g * e, y, x[r][m]);
                decay[r][m] += (double)(g * (stays[r][c] * y) * e);
            }
        }
}

/* Adds what a row of the warp has found to its place. */
template <int WIDTH>
SR_DEVICE void row_add(float *to, const float (&x)[WIDTH / SR_WARP], int columns) {
    using Row = sr_warp_row<WIDTH>;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        if (Row::column(m) < columns)
            to[Row::column(m)] += x[m];
}

/* The same of the decay's gradients, with their sign: of one number, or per channel. */
template <int WIDTH>
SR_DEVICE void decay_add(double *to, const sr_axes_call &call, double product,
                         const double (&channels)[WIDTH / SR_WARP], double sign) {
    using Row = sr_warp_row<WIDTH>;
    const double all = warp_sum(product);
    if (call.decays == 1 && axes_lane() == 0)
        *to += sign * all;
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        if (call.decays > 1 && Row::column(m) < call.decays)
            to[Row::column(m)] += sign * channels[m];
}

SR_DEVICE void products_clear(pair_doubles &to) {
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++)
        to.number[r][axes_lane()] = 0;
}

/* The dot products of the warp's rows with the lane's, into shared memory. */
template <bool KEYS_STAY, int WIDTH>
SR_DEVICE void lane_dots(backward_memory<WIDTH> &shared, const sr_axes_call &call,
                         const axes_pass &pass, const pairs_place &at, int other) {
    const sr_float_tile<WIDTH> &stays = KEYS_STAY ? shared.k : shared.q;
    const sr_float_tile<WIDTH> &comes = KEYS_STAY ? shared.q : shared.k;
    const sr_float_tile<WIDTH> &stays_v = KEYS_STAY ? shared.v : shared.d_out;
    const sr_float_tile<WIDTH> &comes_v = KEYS_STAY ? shared.d_out : shared.v;
    const int rows = (call.T - at.own + at.step - 1) / at.step;
    axes_stay_decay stay = {nullptr, max(1, min((int)AXES_OWN, rows)), at.step};
    const double *passing = nullptr;
    if (call.decays > 0) {
        stay.first = decay_of(call, at.kv, at.own);
        passing = decay_of(call, at.kv, other);
    }
    float dot[AXES_OWN];
    axes_logits<KEYS_STAY>(dot, call, stays.number + AXES_OWN * at.warp, comes, stay, passing);
    pairs_store(shared.dot[at.warp], dot);
    if (pass.d_out)
        dots(dot, stays_v.number + AXES_OWN * at.warp, comes_v, call.Dv);
#pragma unroll
    for (int r = 0; !pass.d_out && r < AXES_OWN; r++)
        dot[r] = 0;
    pairs_store(shared.gradient[at.warp], dot);
}

/* A block owns 32 queries of one head: their gradients, those of their levels and of C_i. A warp
 * has 4 of the queries. Their rows go global -> shared once; then tiles of 32 keys and values go
 * global -> shared between barriers, one key per lane, and gradients add up in registers, which
 * are added to global memory at the end. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    backward_rows(const __grid_constant__ sr_axes_call call,
                  const __grid_constant__ axes_pass pass) {
    SR_SHARED(backward_memory<WIDTH>, shared);
    const int tiles = (call.T + AXES_TILE - 1) / AXES_TILE, head = (int)blockIdx.x / tiles;
    const int t0 = (tiles - 1 - (int)blockIdx.x % tiles) * AXES_TILE;
    const int warp = (int)threadIdx.x / SR_WARP, b = head / pass.heads, h = head % pass.heads;
    const int kv = b * call.Hkv + h / pass.group, own = t0 + AXES_OWN * warp;
    const pairs_place at = {b, h, kv, own, 1, axes_lane(), warp};
    const int past = min(t0 + AXES_TILE, call.T);
    const int from = max(call.start(b, t0), call.a.window ? t0 - call.a.window + 1 : 0);
    float d_q[AXES_OWN][WIDTH / SR_WARP] = {};
    double decay[AXES_OWN][WIDTH / SR_WARP] = {};
    products_clear(shared->product[warp]);
    axes_tile_load(shared->q, pass.queries + call.row(pass.heads, b, h, 0) * call.F, call.F, t0, t0,
                   past);
    if (pass.d_out)
        axes_tile_load(shared->d_out, pass.d_out + call.row(pass.heads, b, h, 0) * call.Dv, call.Dv,
                       t0, t0, past);
    for (axes_key_tiles keys(call, b, t0, from, past); keys.more(); keys.next()) {
        const axes_key_tile &tile = keys.tile;
        const int key = (int)tile.first, other = (int)tile.key(at.lane);
        __syncthreads();
        axes_tile_load(shared->k, pass.keys + (int64_t)at.kv * call.T * call.F, call.F, key, from,
                       tile.past, 0, tile.step);
        if (pass.d_out)
            axes_tile_load(shared->v, pass.values + (int64_t)at.kv * call.T * call.Dv, call.Dv, key,
                           from, tile.past, 0, tile.step);
        __syncthreads();
        lane_dots<false>(*shared, call, pass, at, other);
        pairs_gradients<false>(*shared, call, pass, at, other, tile);
        add_gradients<false>(d_q, decay, call, at, shared->gradient[warp],
                             shared->q.number + AXES_OWN * warp, shared->k, key, tile.step);
    }
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++) {
        const int t = at.own + r;
        if (t >= call.T)
            continue;
        const int64_t row = call.row(pass.heads, b, h, t);
        if (pass.row_decay)
            decay_add<WIDTH>(pass.row_decay + row * call.decays, call,
                             shared->product[warp].number[r][at.lane], decay[r], 1);
        row_add<WIDTH>(pass.d_queries + row * call.F, d_q[r], call.F);
    }
}

/* The gradients of a tile of keys of one head, those of their values and of C_j. Heads of the
 * group, and tiles of queries from the first key on, pass by in order. By all threads of a block.
 * Parameters, not a struct: they stay in registers. */
template <int WIDTH>
SR_DEVICE void key_gradients(backward_memory<WIDTH> *shared, const sr_axes_call &call,
                             const axes_pass &pass, int kv, const axes_key_tile &keys) {
    const int key = (int)keys.first, past = (int)keys.past, step = keys.step;
    const int warp = (int)threadIdx.x / SR_WARP, b = kv / call.Hkv;
    const int h0 = kv % call.Hkv * pass.group;
    pairs_place at = {b, h0, kv, key + AXES_OWN * warp * step, step, axes_lane(), warp};
    float d_k[AXES_OWN][WIDTH / SR_WARP] = {}, d_v[AXES_OWN][WIDTH / SR_WARP] = {};
    double decay[AXES_OWN][WIDTH / SR_WARP] = {};
    __syncthreads(); /* no warp reads the keys before */
    products_clear(shared->product[warp]);
    axes_tile_load(shared->k, pass.keys + (int64_t)kv * call.T * call.F, call.F, key, key, past, 0,
                   step);
    if (pass.d_out)
        axes_tile_load(shared->v, pass.values + (int64_t)kv * call.T * call.Dv, call.Dv, key, key,
                       past, 0, step);
    for (at.h = h0; at.h < h0 + pass.group; at.h++)
        for (int t0 = key / AXES_TILE * AXES_TILE;
             t0 < (keys.own ? past : call.T) && call.start(b, t0) < past &&
             (!call.a.window || t0 - call.a.window < past - 1);
             t0 += AXES_TILE) {
            __syncthreads();
            const int64_t head = call.row(pass.heads, b, at.h, 0);
            axes_tile_load(shared->q, pass.queries + head * call.F, call.F, t0, t0, call.T);
            if (pass.d_out)
                axes_tile_load(shared->d_out, pass.d_out + head * call.Dv, call.Dv, t0, t0, call.T);
            __syncthreads();
            lane_dots<true>(*shared, call, pass, at, t0 + at.lane);
            pairs_gradients<true>(*shared, call, pass, at, t0 + at.lane, keys);
            add_gradients<true>(d_k, decay, call, at, shared->gradient[warp],
                                shared->k.number + AXES_OWN * warp, shared->q, t0);
            if (pass.d_values)
                add_rows(d_v, shared->dot[warp], shared->d_out);
        }
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++) {
        const int t = at.own + r * step;
        if (t >= past)
            continue;
        const int64_t row = (int64_t)kv * call.T + t;
        if (pass.column_decay)
            decay_add<WIDTH>(pass.column_decay + row * call.decays, call,
                             shared->product[warp].number[r][at.lane], decay[r], -1);
        row_add<WIDTH>(pass.d_keys + row * call.F, d_k[r], call.F);
        if (pass.d_values)
            row_add<WIDTH>(pass.d_values + row * call.Dv, d_v[r], call.Dv);
    }
}

/* A block owns 32 keys of one head of keys and values, which are loaded into shared memory once;
 * tiles of 32 queries that see them pass through shared memory, and gradients add up in registers.
 * With pool they are seen by their own rows alone. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    backward_columns(const __grid_constant__ sr_axes_call call,
                     const __grid_constant__ axes_pass pass) {
    SR_SHARED(backward_memory<WIDTH>, shared);
    const int tiles = (call.T + AXES_TILE - 1) / AXES_TILE, kv = (int)blockIdx.x / tiles;
    const int key = (int)blockIdx.x % tiles * AXES_TILE, past = min(key + AXES_TILE, call.T);
    key_gradients<WIDTH>(shared, call, pass, kv, {key, past, 1, call.a.pool > 0});
}

/* With pool: a block owns the last tokens of chunks among 32 chunks of tokens, which later rows
 * see, document by document; memory as in backward_columns. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    backward_chunks(const __grid_constant__ sr_axes_call call,
                    const __grid_constant__ axes_pass pass) {
    SR_SHARED(backward_memory<WIDTH>, shared);
    const int pool = call.a.pool, each = AXES_TILE * pool, tiles = (call.T + each - 1) / each;
    const int kv = (int)blockIdx.x / tiles, b = kv / call.Hkv;
    const int begin = (int)blockIdx.x % tiles * each, end = min(begin + each, call.T);
    for (int t = begin; t < end;) {
        const int start = call.start(b, t);
        int past = end, last = t; /* the document's last token known, and one that is not */
        while (past - last > 1 && call.start(b, past - 1) != start) {
            const int middle = (last + past) / 2;
            if (call.start(b, middle) == start)
                last = middle;
            else
                past = middle;
        }
        const int first = t + (pool - 1 - (t - start) % pool);
        if (first < past)
            key_gradients<WIDTH>(shared, call, pass, kv, {first, past, pool, false});
        t = past;
    }
}

size_t sr_axes_pairs_shared_bytes(int width) {
    return width <= 64    ? sizeof(backward_memory<64>)
           : width <= 128 ? sizeof(backward_memory<128>)
                          : sizeof(backward_memory<256>);
}

static srnn_status run_pass(const sr_axes_call &call, const axes_pass &pass, cudaStream_t stream) {
    const int tiles = (call.T + AXES_TILE - 1) / AXES_TILE;
    const dim3 rows((unsigned)(call.B * pass.heads * tiles));
    const dim3 columns((unsigned)(call.B * call.Hkv * tiles));
    AXES_BY_WIDTH(backward_rows, backward_memory, rows, call, pass);
    AXES_BY_WIDTH(backward_columns, backward_memory, columns, call, pass);
    if (call.a.pool == 0)
        return SRNN_OK;
    const int each = AXES_TILE * call.a.pool;
    const dim3 chunks((unsigned)(call.B * call.Hkv * ((call.T + each - 1) / each)));
    AXES_BY_WIDTH(backward_chunks, backward_memory, chunks, call, pass);
    return SRNN_OK;
}

/* ---- the delta rule ---- */

/* From r: gradients of beta and v; r becomes those of what beta multiplies, as the pass over pairs
 * of keys takes them: less beta r. A warp owns a row: lanes read and write its numbers in global
 * memory, and the sum over the row is made by shuffles. */
__global__ void write_rows_backward(const __grid_constant__ sr_axes_call call,
                                    const __grid_constant__ axes_keys keys, float *r, int level) {
    const int64_t n = axes_warp();
    if (n >= (int64_t)call.B * call.Hkv * call.T)
        return;
    const axes_row at = axes_row_of(n, call.Hkv, call.T);
    const float beta = call.scratch.beta[n];
    const bool written = axes_is_written(level, call.place(at.b, at.t));
    double dot = 0;
    for (int d = axes_lane(); d < call.Dv; d += SR_WARP) {
        const float own = r[n * call.Dv + d];
        dot += (double)own * (double)keys.error[n * call.Dv + d];
        if (written)
            call.scratch.d_v[n * call.Dv + d] += beta * own;
        r[n * call.Dv + d] = -beta * own;
    }
    dot = warp_sum(dot);
    if (axes_lane() == 0)
        call.scratch.d_beta[n] += (float)dot;
}

/* One level of the delta rule: of the weights that read what it writes, then of the rule itself. */
static srnn_status level_backward(const sr_axes_call &call, const axes_keys &keys, axes_pass pass,
                                  float *d_u, float *r, cudaStream_t stream) {
    const int64_t rows = (int64_t)call.B * call.Hkv * call.T;
    SR_TRY(sr_axes_solve(call, keys, pass.level, stream));
    SR_CUDA(cudaMemsetAsync(d_u, 0, (size_t)(rows * call.Dv) * sizeof(float), stream));
    pass.values = keys.u;
    pass.d_values = d_u;
    SR_TRY(run_pass(call, pass, stream));
    SR_TRY(sr_axes_solve_backward(call, keys, pass.level, r, d_u, stream));
    AXES_START_WARPS(write_rows_backward, rows, call, keys, r, pass.level);
    axes_pass own = pass;
    own.queries = keys.rotated;
    own.heads = call.Hkv;
    own.group = 1;
    own.kappa = true;
    own.d_out = r;
    own.d_queries = own.d_keys;
    own.d_values = nullptr;
    own.row_decay = own.column_decay;
    own.d_level = nullptr;
    return run_pass(call, own, stream);
}

srnn_status sr_axes_pairs_backward(const sr_axes_call &call, const axes_keys &keys, float *d_u,
                                   float *r, cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    axes_pass pass = {};
    pass.queries = s.q;
    pass.keys = keys.plain;
    pass.decay = keys.decay;
    pass.capacity = keys.capacity;
    pass.heads = call.H;
    pass.group = call.group;
    pass.level = -1;
    pass.d_row_sum = s.d_row_sum;
    pass.d_queries = s.d_q;
    pass.d_keys = s.d_k;
    pass.row_decay = s.row_decay;
    pass.column_decay = s.column_decay;
    pass.d_level = s.d_level;
    const bool both = !call.delta && !call.rotated;
    if (both) {
        pass.values = keys.values;
        pass.d_out = s.d_numerator;
        pass.d_values = s.d_v;
    }
    if (both || call.sums_rows)
        SR_TRY(run_pass(call, pass, stream));
    if (both)
        return SRNN_OK;
    pass.queries = s.rotated_q;
    pass.keys = keys.rotated;
    pass.d_queries = s.d_rotated_q;
    pass.d_keys = s.d_rotated_k;
    pass.d_row_sum = nullptr;
    pass.d_out = s.d_numerator;
    pass.values = keys.values;
    pass.d_values = s.d_v;
    if (!call.delta)
        return run_pass(call, pass, stream);
    for (int level = call.levels > 0 ? 0 : -1; level < call.levels; level++) {
        if (level > 0 && (int64_t)1 << (level - 1) >= call.T)
            break;
        pass.level = level;
        SR_TRY(level_backward(call, keys, pass, d_u, r, stream));
        if (level < 0)
            break;
    }
    return SRNN_OK;
}
