/* solve.cu: the delta rule over pairs: u_j = beta_j (v_j - sum_{m<j} kappa_jm u_m), and on the way
 * back r_j = d_u_j - sum_{m>j} beta_m kappa_mj r_m.
 *
 * A block owns one head and 32 columns of its values. It walks over tiles of 32 tokens, from the
 * first or from the last; a warp has 4 tokens of the tile, a lane one column. What earlier tiles
 * wrote is taken off as they pass by; then the first warp substitutes within the tile. */
#include "attention/cuda/axes/pairs.h"

template <int WIDTH> struct solve_memory {
    sr_float_tile<WIDTH> own, other;
    sr_pair_rows kappa[AXES_PAIR_WARPS];
    float error[AXES_TILE][SR_WARP + 1], known[AXES_TILE][SR_WARP + 1];
};

/* What is solved: out from right, both (B Hkv, capacity, Dv). */
struct axes_system {
    const float *right;
    float *out, *error; /* error: forward only */
    int level;
    bool from_start; /* of a state: all its tokens; else those of this call */
};

/* kappa of the warp's tokens with the lane's token of the other tile; on the way back times the
 * other's beta. Parameters, not a struct: they stay in registers. */
template <bool BACK, int WIDTH>
SR_DEVICE void lane_kappa(float (&kappa)[AXES_OWN], const sr_axes_call &call, const axes_keys &keys,
                          const axes_pass &pass, const sr_float_tile<WIDTH> &own,
                          const sr_float_tile<WIDTH> &other, int head, int64_t t, int64_t m,
                          int64_t past) {
    const int64_t base = head * keys.capacity, last = past - 1;
    const int b = head / call.Hkv, warp = (int)threadIdx.x / SR_WARP;
    const double *const decay = keys.decay + base * call.decays;
    axes_stay_decay stay = {nullptr, 1, 1};
    const double *passing = nullptr;
    if (call.decays > 0) {
        stay.first = decay + min(t, last) * call.decays;
        stay.rows = (int)max((int64_t)1, min((int64_t)AXES_OWN, past - t));
        passing = decay + min(m, last) * call.decays;
    }
    float s[AXES_OWN];
    axes_logits<BACK>(s, call, own.number + AXES_OWN * warp, other, stay, passing);
#pragma unroll
    for (int r = 0; r < AXES_OWN; r++) {
        const int64_t row = BACK ? m : t + r, key = BACK ? t + r : m;
        kappa[r] = 0;
        if (row >= past || key >= past)
            continue;
        const int64_t start = call.carry.position ? 0 : call.first[(int64_t)b * call.T + row];
        if (!axes_seen(call, pass, start, row, key))
            continue;
        const double between = call.decays == 1 ? decay[row] - decay[key] : 0;
        kappa[r] = axes_pair_of(call, true, s[r], between, 0).weight;
        if (BACK)
            kappa[r] *= keys.beta[base + row];
    }
}

/* error -= kappa times what the other tile holds. */
template <int WIDTH>
SR_DEVICE void take_off(float (&error)[AXES_OWN], const solve_memory<WIDTH> &shared) {
    const int warp = (int)threadIdx.x / SR_WARP, lane = axes_lane();
    for (int n = 0; n < AXES_TILE; n++) {
        const float known = shared.known[n][lane];
#pragma unroll
        for (int r = 0; r < AXES_OWN; r++)
            error[r] = fmaf(-shared.kappa[warp].number[r][n], known, error[r]);
    }
}

/* Substitution within the tile, by one warp: a lane has a column. Parameters, not a struct: they
 * stay in registers. */
template <bool BACK, int WIDTH>
SR_DEVICE void substitute(solve_memory<WIDTH> &shared, const sr_axes_call &call,
                          const axes_keys &keys, const axes_system &system, int head, int column,
                          int64_t t0, int64_t from, int64_t past) {
    const int lane = axes_lane();
    const int64_t base = head * keys.capacity;
    for (int n = 0; n < AXES_TILE; n++) {
        const int row = BACK ? AXES_TILE - 1 - n : n;
        const int64_t t = t0 + row;
        if (t < from || t >= past)
            continue;
        float x = shared.error[row][lane];
        for (int m = 0; m < n; m++) {
            const int other = BACK ? AXES_TILE - 1 - m : m;
            x = fmaf(-shared.kappa[row / AXES_OWN].number[row % AXES_OWN][other],
                     shared.known[other][lane], x);
        }
        const float u = BACK ? x : keys.beta[base + t] * x;
        shared.known[row][lane] = u;
        if (column >= call.Dv)
            continue;
        system.out[(base + t) * call.Dv + column] = u;
        if (!BACK && system.error)
            system.error[(base + t) * call.Dv + column] = x;
    }
}

template <bool BACK, int WIDTH>
SR_DEVICE void solve(solve_memory<WIDTH> *shared, const sr_axes_call &call, const axes_keys &keys,
                     const axes_system &system) {
    const int head = (int)blockIdx.x, b = head / call.Hkv, lane = axes_lane();
    const int warp = (int)threadIdx.x / SR_WARP, column = (int)blockIdx.y * SR_WARP + lane;
    const int64_t position = call.position(), past = position + call.T;
    const int64_t from = system.from_start ? 0 : position, base = head * keys.capacity;
    const float *const key_rows = keys.rotated + base * call.F;
    axes_pass pass = {};
    pass.kappa = true;
    pass.level = system.level;
    const int64_t tiles = (past - from / AXES_TILE * AXES_TILE + AXES_TILE - 1) / AXES_TILE;
    for (int64_t step = 0; step < tiles; step++) {
        const int64_t t0 =
            from / AXES_TILE * AXES_TILE + (BACK ? tiles - 1 - step : step) * AXES_TILE;
        const int64_t t = t0 + AXES_OWN * warp;
        float error[AXES_OWN], kappa[AXES_OWN];
        __syncthreads(); /* what the last tile wrote, and no one reads its memory */
        axes_tile_load(shared->own, key_rows, call.F, t0, 0, past);
#pragma unroll
        for (int r = 0; r < AXES_OWN; r++) {
            const int64_t own = t + r;
            bool there = own >= from && own < past && column < call.Dv;
            if (!BACK && there)
                there = axes_is_written(system.level,
                                        own - (call.carry.position
                                                   ? 0
                                                   : call.first[(int64_t)b * call.T + own]));
            error[r] = there ? system.right[(base + own) * call.Dv + column] : 0;
        }
        /* other tiles that a token of this one sees, or that see it */
        int64_t other = BACK ? t0 + AXES_TILE
                             : call.start(b, (int)max((int64_t)0, min(t0, past - 1) - position)) /
                                   AXES_TILE * AXES_TILE;
        if (call.carry.position)
            other = BACK ? other : 0;
        for (; BACK ? other < past : other < t0; other += AXES_TILE) {
            if (BACK && call.first[(int64_t)b * call.T + other] >= t0 + AXES_TILE)
                break;
            __syncthreads();
            axes_tile_load(shared->other, key_rows, call.F, other, 0, past);
            for (int n = (int)threadIdx.x; n < AXES_TILE * SR_WARP; n += AXES_PAIR_THREADS) {
                const int64_t row = other + n / SR_WARP;
                const int c = (int)blockIdx.y * SR_WARP + n % SR_WARP;
                shared->known[n / SR_WARP][n % SR_WARP] =
                    row < past && c < call.Dv ? system.out[(base + row) * call.Dv + c] : 0;
            }
            __syncthreads();
            lane_kappa<BACK>(kappa, call, keys, pass, shared->own, shared->other, head, t,
                             other + lane, past);
            pairs_store(shared->kappa[warp], kappa);
            __syncwarp();
            take_off(error, *shared);
        }
        __syncthreads();
        lane_kappa<BACK>(kappa, call, keys, pass, shared->own, shared->own, head, t, t0 + lane,
                         past);
        pairs_store(shared->kappa[warp], kappa);
        for (int r = 0; r < AXES_OWN; r++)
            shared->error[AXES_OWN * warp + r][lane] = error[r];
        /* tokens of the tile that were there before */
        for (int n = (int)threadIdx.x; n < AXES_TILE * SR_WARP; n += AXES_PAIR_THREADS) {
            const int64_t row = t0 + n / SR_WARP;
            const int c = (int)blockIdx.y * SR_WARP + n % SR_WARP;
            shared->known[n / SR_WARP][n % SR_WARP] =
                row < from && c < call.Dv ? system.out[(base + row) * call.Dv + c] : 0;
        }
        __syncthreads();
        if (warp == 0)
            substitute<BACK>(*shared, call, keys, system, head, column, t0, from, past);
    }
}

/* Forward substitution of the delta rule. Block (x, y) owns head x of the values and 32 columns, a
 * lane each, and walks the tiles of tokens from first to last. Per tile: its keys go global ->
 * shared and its right-hand sides into registers; for every earlier tile its keys and solved rows
 * go global -> shared, barrier, and each warp subtracts kappa times these rows from its own tokens;
 * then, after a barrier, warp 0 solves the tile itself token by token and stores it for later
 * tiles. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    solve_forward(const __grid_constant__ sr_axes_call call, const __grid_constant__ axes_keys keys,
                  const __grid_constant__ axes_system system) {
    SR_SHARED(solve_memory<WIDTH>, shared);
    solve<false>(shared, call, keys, system);
}

/* The same with the transposed system, for gradients: a block walks its tiles from last to first,
 * each reduced by the later tiles that see it; memory as above. */
template <int WIDTH>
__global__ void __launch_bounds__(AXES_PAIR_THREADS, 1)
    solve_back(const __grid_constant__ sr_axes_call call, const __grid_constant__ axes_keys keys,
               const __grid_constant__ axes_system system) {
    SR_SHARED(solve_memory<WIDTH>, shared);
    solve<true>(shared, call, keys, system);
}

srnn_status sr_axes_solve(const sr_axes_call &call, const axes_keys &keys, int level,
                          cudaStream_t stream) {
    const axes_system system = {keys.values, keys.u, keys.error, level, level >= 0};
    const dim3 grid((unsigned)(call.B * call.Hkv), axes_blocks(call.Dv, SR_WARP));
    AXES_BY_WIDTH(solve_forward, solve_memory, grid, call, keys, system);
    return SRNN_OK;
}

srnn_status sr_axes_solve_backward(const sr_axes_call &call, const axes_keys &keys, int level,
                                   float *r, const float *d_u, cudaStream_t stream) {
    const axes_system system = {d_u, r, nullptr, level, true};
    const dim3 grid((unsigned)(call.B * call.Hkv), axes_blocks(call.Dv, SR_WARP));
    AXES_BY_WIDTH(solve_back, solve_memory, grid, call, keys, system);
    return SRNN_OK;
}
