/* pairs_forward.cu: the parallel form with every axis: numerators and row sums pair by pair.
 *
 * A block owns 32 rows of one head, a warp 4 of them; tiles of 32 keys pass by, one key per lane. A
 * first walk finds what the weights of each row are divided by, where a variant allows that; the
 * others add them up. Rows are written by the warp that owns them. */
#include "attention/cuda/axes/pairs.h"

template <int WIDTH> struct rows_memory {
    sr_float_tile<WIDTH> q, k, v;
    sr_pair_rows weights[AXES_PAIR_WARPS];
};

/* Where a block, and the lanes of it, stand. */
struct rows_place {
    int b, h, kv, t0, own, lane;
    int64_t offset, from, past; /* of keys: the first row's number, those that the tile may see */
};

SR_DEVICE rows_place place_of(const sr_axes_call &call, const axes_pass &pass) {
    const int tiles = (call.T + AXES_TILE - 1) / AXES_TILE, head = (int)blockIdx.x / tiles;
    rows_place at;
    at.b = head / pass.heads;
    at.h = head % pass.heads;
    at.kv = at.b * call.Hkv + at.h / pass.group;
    at.t0 = (tiles - 1 - (int)blockIdx.x % tiles) * AXES_TILE;
    at.own = at.t0 + AXES_OWN * ((int)threadIdx.x / SR_WARP);
    at.lane = axes_lane();
    at.offset = call.position();
    at.from = call.start(at.b, at.t0);
    if (call.a.window)
        at.from = max(at.from, at.offset + at.t0 - call.a.window + 1);
    at.past = at.offset + min(at.t0 + AXES_TILE, call.T);
    return at;
}

/* C of token t of the call for the head of keys. */
SR_DEVICE const double *query_decay(const sr_axes_call &call, int kv, int t) {
    return call.scratch.decay + ((int64_t)kv * call.T + min(t, call.T - 1)) * call.decays;
}

/* The lane's logits with the warp's rows and C_i - C_j, for key j; s of unseen pairs is garbage.
 * Parameters, not a struct: they stay in registers. */
template <int WIDTH>
SR_DEVICE void lane_logits(float (&s)[AXES_OWN], double (&between)[AXES_OWN],
                           const sr_axes_call &call, const axes_pass &pass, const rows_place &at,
                           const rows_memory<WIDTH> &shared, int64_t j) {
    const double *other = nullptr;
    axes_stay_decay stay = {nullptr, max(1, min((int)AXES_OWN, call.T - at.own)), 1};
    if (call.decays > 0) {
        const int64_t last = max(at.from, min(j, at.past - 1));
        const int64_t slot = pass.ring ? last % pass.capacity : last;
        other = pass.decay + (at.kv * pass.capacity + slot) * call.decays;
        stay.first = query_decay(call, at.kv, at.own);
    }
    axes_logits<false>(s, call, shared.q.number + (at.own - at.t0), shared.k, stay, other);
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++)
        between[r] = call.decays == 1 ? *query_decay(call, at.kv, at.own + r) - *other : 0;
}

/* What the logarithms of each row's weights are reduced by: the largest, or what the largest logit
 * implies. For the queries of `pass`, and raised to it if there is one already. A block owns 32
 * queries, a warp 4: queries go global -> shared once, then tiles of 32 keys between barriers, one
 * key per lane; the maxima of lanes are combined by shuffles, and lane 0 stores a row's. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    row_maxima(const __grid_constant__ sr_axes_call call, const __grid_constant__ axes_pass pass,
               bool again) {
    SR_SHARED(rows_memory<WIDTH>, shared);
    const rows_place at = place_of(call, pass);
    const bool exponential = call.a.score == SRNN_SCORE_EXP;
    float largest[AXES_OWN];
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++)
        largest[r] = exponential ? -INFINITY : 0;
    axes_tile_load(shared->q, pass.queries + call.row(pass.heads, at.b, at.h, 0) * call.F, call.F,
                   at.t0, at.t0, call.T);
    for (axes_key_tiles keys(call, at.b, at.t0, at.from, at.past); keys.more(); keys.next()) {
        const axes_key_tile &tile = keys.tile;
        __syncthreads();
        axes_tile_load(shared->k, pass.keys + at.kv * pass.capacity * call.F, call.F, tile.first,
                       at.from, tile.past, pass.ring ? pass.capacity : 0, tile.step);
        __syncthreads();
        const int64_t j = tile.key(at.lane);
        float s[AXES_OWN];
        double between[AXES_OWN];
        lane_logits(s, between, call, pass, at, *shared, j);
#pragma unroll
        for (int r = 0; r < AXES_OWN; r++) {
            const int t = min(at.own + r, call.T - 1);
            const int64_t i = at.offset + t;
            if (!tile.has(call, i, j) || !axes_seen(call, pass, call.start(at.b, t), i, j))
                continue;
            const bool logits = call.decay_in_logits && call.decays == 1;
            const double x = (double)s[r] * (logits ? exp(between[r]) : 1);
            double slope;
            const double clamped = axes_logit(call, false, x, &slope);
            const double decay = call.decay_in_logits ? 0 : between[r];
            largest[r] = fmaxf(largest[r], (float)(exponential ? clamped + decay : fabs(clamped)));
        }
    }
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++) {
        const float most = warp_maximum(largest[r]);
        if (at.own + r >= call.T || at.lane != 0)
            continue;
        float *const out = call.scratch.maximum + call.row(call.H, at.b, at.h, at.own + r);
        double found = exponential ? (double)most
                                   : sr_score_log_scale(call.a.score, call.a.order, (double)most);
        if (found == -INFINITY)
            found = 0;
        *out = again ? fmaxf(*out, (float)found) : (float)found;
    }
}

/* Adds weights times values to the numerators, and weights to the row sums. Blocks and warps as
 * above: per tile, keys and values go global -> shared; each lane computes the weights of its key,
 * which pass through shared memory, and then owns columns of the 4 numerators, in registers. They
 * are added to global memory at the end. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    forward_pairs(const __grid_constant__ sr_axes_call call,
                  const __grid_constant__ axes_pass pass) {
    using Row = sr_warp_row<WIDTH>;
    SR_SHARED(rows_memory<WIDTH>, shared);
    const rows_place at = place_of(call, pass);
    const int warp = (int)threadIdx.x / SR_WARP;
    float x[AXES_OWN][WIDTH / SR_WARP] = {}, sum[AXES_OWN] = {};
    axes_tile_load(shared->q, pass.queries + call.row(pass.heads, at.b, at.h, 0) * call.F, call.F,
                   at.t0, at.t0, call.T);
    for (axes_key_tiles keys(call, at.b, at.t0, at.from, at.past); keys.more(); keys.next()) {
        const axes_key_tile &tile = keys.tile;
        __syncthreads();
        axes_tile_load(shared->k, pass.keys + at.kv * pass.capacity * call.F, call.F, tile.first,
                       at.from, tile.past, pass.ring ? pass.capacity : 0, tile.step);
        if (pass.values)
            axes_tile_load(shared->v, pass.values + at.kv * pass.capacity * call.Dv, call.Dv,
                           tile.first, at.from, tile.past, pass.ring ? pass.capacity : 0,
                           tile.step);
        __syncthreads();
        const int64_t j = tile.key(at.lane);
        float s[AXES_OWN], weight[AXES_OWN];
        double between[AXES_OWN];
        lane_logits(s, between, call, pass, at, *shared, j);
#pragma unroll
        for (int r = 0; r < AXES_OWN; r++) {
            const int t = min(at.own + r, call.T - 1);
            const int64_t start = call.start(at.b, t), i = at.offset + t;
            const int64_t row = call.row(call.H, at.b, at.h, t);
            weight[r] = 0;
            if (!tile.has(call, i, j) || !axes_seen(call, pass, start, i, j))
                continue;
            weight[r] =
                axes_pair_of(call, false, s[r], between[r], call.scratch.maximum[row]).weight;
            if (call.scratch.level)
                weight[r] *=
                    call.scratch.level[row * call.levels + axes_level_of(pass, start, i, j)];
            sum[r] += weight[r];
        }
        if (!pass.values)
            continue;
        pairs_store(shared->weights[warp], weight);
        __syncwarp();
        add_rows(x, shared->weights[warp], shared->v);
    }
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++) {
        const int t = at.own + r;
        const float all = warp_sum(sum[r]);
        if (t >= call.T)
            continue;
        const int64_t row = call.row(call.H, at.b, at.h, t);
        if (pass.sums && at.lane == 0)
            call.scratch.row_sum[row] += all;
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            if (pass.values && Row::column(m) < call.Dv)
                call.scratch.numerator[row * call.Dv + Row::column(m)] += x[r][m];
    }
}

static srnn_status find_maxima(const sr_axes_call &call, const axes_keys &keys, axes_pass pass,
                               dim3 grid, cudaStream_t stream) {
    if (!call.invariant || call.a.score == SRNN_SCORE_LINEAR)
        return SRNN_OK;
    pass.queries = call.scratch.q;
    pass.keys = keys.plain;
    AXES_BY_WIDTH(row_maxima, rows_memory, grid, call, pass, false);
    if (!call.rotated)
        return SRNN_OK;
    pass.queries = call.scratch.rotated_q;
    pass.keys = keys.rotated;
    AXES_BY_WIDTH(row_maxima, rows_memory, grid, call, pass, true);
    return SRNN_OK;
}

/* Number of levels of pairs within this many tokens. */
static int levels_in(const sr_axes_call &call, const axes_keys &keys) {
    int levels = 1;
    while (levels < call.levels && (int64_t)1 << (levels - 1) < keys.capacity)
        levels++;
    return levels;
}

/* With the delta rule: of each level, what it writes and what rows read of that. */
static srnn_status read_writes(const sr_axes_call &call, const axes_keys &keys, axes_pass pass,
                               dim3 grid, cudaStream_t stream) {
    const int levels = call.levels > 0 ? levels_in(call, keys) : 0;
    pass.values = keys.u;
    for (int level = levels > 0 ? 0 : -1; level < levels; level++) {
        pass.level = level;
        SR_TRY(sr_axes_solve(call, keys, level, stream));
        AXES_BY_WIDTH(forward_pairs, rows_memory, grid, call, pass);
        if (level < 0)
            break;
    }
    return SRNN_OK;
}

srnn_status sr_axes_pairs_forward(const sr_axes_call &call, const axes_keys &keys,
                                  cudaStream_t stream) {
    const sr_axes_scratch &s = call.scratch;
    const size_t rows = (size_t)call.B * (size_t)call.H * (size_t)call.T;
    const dim3 grid((unsigned)(call.B * call.H * ((call.T + AXES_TILE - 1) / AXES_TILE)));
    axes_pass pass = {};
    pass.decay = keys.decay;
    pass.capacity = keys.capacity;
    pass.ring = keys.ring;
    pass.heads = call.H;
    pass.group = call.group;
    pass.level = -1;
    SR_CUDA(cudaMemsetAsync(s.numerator, 0, rows * (size_t)call.Dv * sizeof(float), stream));
    SR_CUDA(cudaMemsetAsync(s.row_sum, 0, rows * sizeof(float), stream));
    SR_CUDA(cudaMemsetAsync(s.maximum, 0, rows * sizeof(float), stream));
    SR_TRY(find_maxima(call, keys, pass, grid, stream));
    pass.queries = s.q;
    pass.keys = keys.plain;
    pass.sums = true;
    if (!call.delta && !call.rotated)
        pass.values = keys.values;
    if (call.sums_rows || pass.values)
        AXES_BY_WIDTH(forward_pairs, rows_memory, grid, call, pass);
    if (pass.values)
        return SRNN_OK;
    pass.queries = s.rotated_q;
    pass.keys = keys.rotated;
    pass.sums = false;
    if (call.delta)
        return read_writes(call, keys, pass, grid, stream);
    pass.values = keys.values;
    AXES_BY_WIDTH(forward_pairs, rows_memory, grid, call, pass);
    return SRNN_OK;
}
