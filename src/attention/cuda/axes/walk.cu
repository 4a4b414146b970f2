/* walk.cu: forward through a state, token by token.
 *
 * A warp owns one head of keys and values and 4 columns of its values; its lanes share the
 * features. No sum crosses warps, and there is no barrier. One more warp per head has the column of
 * the row sums, whose value is 1 and whose keys are not rotated. */
#include "attention/cuda/axes/walk.h"

#include "equation/facts.h"

enum { COLUMNS = 4 }; /* of a warp */

axes_state sr_axes_state_place(const srnn_problem *p, sr_layout *layout) {
    const srnn_attention *a = &p->attention;
    const size_t heads = (size_t)p->B * (size_t)p->Hkv;
    sr_layout measured = {};
    axes_state state = {};
    state.features = sr_feature_table_place(p, &measured).count;
    state.levels = a->levels == SRNN_LEVELS_FENWICK ? p->levels : 1;
    state.column = sr_needs_row_sum(a);
    state.head = state.levels * state.features * (p->Dv + state.column);
    const int decays = a->decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(a, p->D);
    state.numbers = (float *)sr_layout_take(layout, heads * (size_t)state.head, sizeof(float));
    state.reference =
        (double *)sr_layout_take(layout, heads * (size_t)state.levels * (size_t)decays,
                                 sizeof(double));
    return state;
}

/* What a warp owns. */
struct walk_place {
    int head, b, kv, column; /* its first column; Dv: that of the row sums */
    bool ones, used;
    const float *q, *k; /* features as it takes them */
};

SR_DEVICE walk_place place_of(const sr_axes_call &call) {
    walk_place at;
    at.head = (int)blockIdx.x;
    at.b = at.head / call.Hkv;
    at.kv = at.head % call.Hkv;
    const int own = ((int)blockIdx.y * SR_AXES_WARPS + (int)threadIdx.x / SR_WARP) * COLUMNS;
    const int groups = (call.Dv + COLUMNS - 1) / COLUMNS * COLUMNS;
    at.ones = own == groups;
    at.column = at.ones ? call.Dv : own;
    at.used = own < groups || (at.ones && call.sums_rows);
    at.q = at.ones ? call.scratch.q : call.scratch.rotated_q;
    at.k = at.ones ? call.scratch.k : call.scratch.rotated_k;
    return at;
}

/* Where feature m of level n, column c of the warp is in a state; NULL past the columns. */
SR_DEVICE float *number_at(const axes_state &state, const sr_axes_call &call, const walk_place &at,
                           int level, int64_t m, int c) {
    float *const numbers = state.numbers + at.head * state.head;
    const int64_t row = level * state.features + m;
    if (at.ones)
        return c == 0 ? numbers + state.levels * state.features * call.Dv + row : nullptr;
    return at.column + c < call.Dv ? numbers + row * call.Dv + at.column + c : nullptr;
}

/* What is remembered of feature channel f from the token before t: e^(C_t - C_(t-1)). */
SR_DEVICE float decay_factor(const sr_axes_call &call, const axes_state &state,
                             const walk_place &at, int t, int f) {
    if (call.decays == 0)
        return 1;
    const int c = call.decays == 1 ? 0 : f;
    const int64_t row = (int64_t)at.head * call.T + t;
    const double now = call.scratch.decay[row * call.decays + c];
    if (t > 0)
        return expf((float)(now - call.scratch.decay[(row - 1) * call.decays + c]));
    return call.carry.position && *call.carry.position > 0
               ? expf((float)(now -
                              state.reference[(int64_t)at.head * state.levels * call.decays + c]))
               : 1;
}

/* v of the warp's columns at token t. */
SR_DEVICE void value_columns(float (&v)[COLUMNS], const sr_axes_call &call, const walk_place &at,
                             int t) {
    const float *const row = call.scratch.v + ((int64_t)at.head * call.T + t) * call.Dv;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        v[c] = at.ones ? (c == 0 ? 1.0f : 0.0f) : at.column + c < call.Dv ? row[at.column + c] : 0;
}

/* Adds the lanes' parts and stores what a row of queries has read. */
SR_DEVICE void store_read(const sr_axes_call &call, const walk_place &at, int64_t row,
                          float (&y)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        y[c] = warp_sum(y[c]);
    if (axes_lane() != 0)
        return;
    if (at.ones)
        call.scratch.row_sum[row] = y[0];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        if (!at.ones && at.column + c < call.Dv)
            call.scratch.numerator[row * call.Dv + at.column + c] = y[c];
}

/* Linear scores without levels: the state is in registers, lane l has features l, l + 32, ... */
template <int ROWS>
__global__ void __launch_bounds__(SR_AXES_THREADS, 1)
    walk_registers(const __grid_constant__ sr_axes_call call,
                   const __grid_constant__ axes_state state) {
    const walk_place at = place_of(call);
    const int lane = axes_lane();
    if (!at.used)
        return;
    float S[ROWS][COLUMNS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int f = r * SR_WARP + lane;
            const float *const from =
                call.carry.position && f < call.F ? number_at(state, call, at, 0, f, c) : nullptr;
            if (from)
                S[r][c] = *from;
        }
    for (int t = 0; t < call.T; t++) {
        const int64_t token = (int64_t)at.head * call.T + t;
        const bool fresh = !call.carry.position && call.start(at.b, t) == t;
        float k[ROWS], u[COLUMNS];
        value_columns(u, call, at, t);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int f = r * SR_WARP + lane;
            k[r] = f < call.F ? at.k[token * call.F + f] : 0;
            const float e = fresh || f >= call.F ? 0 : decay_factor(call, state, at, t, f);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                S[r][c] = fresh ? 0 : S[r][c] * e;
        }
        if (call.delta && !at.ones) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                float known = 0;
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    known = fmaf(k[r], S[r][c], known);
                u[c] = call.scratch.beta[token] * (u[c] - warp_sum(known));
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLUMNS; c++)
                S[r][c] = fmaf(k[r], u[c], S[r][c]);
        for (int g = 0; g < call.group; g++) {
            const int64_t row = call.row(call.H, at.b, at.kv * call.group + g, t);
            float y[COLUMNS] = {};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const int f = r * SR_WARP + lane;
                const float q = f < call.F ? at.q[row * call.F + f] : 0;
#pragma unroll
                for (int c = 0; c < COLUMNS; c++)
                    y[c] = fmaf(q, S[r][c], y[c]);
            }
            store_read(call, at, row, y);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            const int f = r * SR_WARP + lane;
            float *const to =
                call.carry.position && f < call.F ? number_at(state, call, at, 0, f, c) : nullptr;
            if (to)
                *to = S[r][c];
        }
}

/* ---- the state in memory: levels, series ---- */

/* Before the token at this place of its document: the level that takes in all lower ones. */
SR_DEVICE void merge_levels(const axes_state &state, const sr_axes_call &call, const walk_place &at,
                            int64_t place) {
    const int into = min(__ffs((int)place), state.levels - 1);
    for (int64_t m = axes_lane(); m < state.features; m += SR_WARP)
        for (int c = 0; c < COLUMNS; c++) {
            float sum = 0;
            if (!number_at(state, call, at, 0, m, c))
                continue;
            for (int level = 0; level < into; level++) {
                float *const number = number_at(state, call, at, level, m, c);
                sum += *number;
                *number = 0;
            }
            *number_at(state, call, at, into, m, c) = sum;
        }
}

/* True if level n of the state holds something for the token at this place, or is written by it. */
SR_DEVICE bool is_active(int level, int64_t place) {
    return level == 0 || (place >> (level - 1) & 1) != 0;
}

/* Decays one level, and adds feature(k) u^T, u being the token's value or the delta rule's.
 * Parameters, not a struct: they stay in registers. */
SR_DEVICE void write_level(const axes_state &state, const sr_feature_table &table,
                           const sr_axes_call &call, const walk_place &at, int level, int t,
                           bool fresh) {
    const int64_t token = (int64_t)at.head * call.T + t;
    const float *const key = at.k + token * call.F;
    float u[COLUMNS], known[COLUMNS] = {};
    value_columns(u, call, at, t);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        u[c] = level == 0 ? u[c] : 0;
    for (int64_t m = axes_lane(); m < state.features; m += SR_WARP) {
        const float k = feature_of(table, m, key);
        const float e = fresh ? 0 : decay_factor(call, state, at, t, call.decays > 1 ? (int)m : 0);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float *const number = number_at(state, call, at, level, m, c);
            if (!number)
                continue;
            *number = fresh ? 0 : *number * e;
            known[c] = fmaf(k, *number, known[c]);
        }
    }
    const bool erases = call.delta && !at.ones;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        const float all = warp_sum(known[c]);
        if (erases)
            u[c] = call.scratch.beta[token] * (u[c] - all);
    }
    for (int64_t m = axes_lane(); (erases || level == 0) && m < state.features; m += SR_WARP) {
        const float k = feature_of(table, m, key);
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            float *const number = number_at(state, call, at, level, m, c);
            if (number)
                *number = fmaf(k, u[c], *number);
        }
    }
}

/* For states that do not fit registers. A warp owns COLUMNS columns of the state of one head, in
 * global memory, and lane l every 32nd feature from l on. It walks the tokens in order: merges
 * levels, decays the state and writes the token, then sums q times the state over the lanes by
 * shuffles for every query head of the group and stores the result. Warps share nothing. */
__global__ void walk_memory(const __grid_constant__ sr_axes_call call,
                            const __grid_constant__ axes_state state,
                            const __grid_constant__ sr_feature_table table) {
    const walk_place at = place_of(call);
    if (!at.used)
        return;
    for (int t = 0; t < call.T; t++) {
        const int64_t place = call.place(at.b, t);
        const bool fresh = place == 0;
        if (state.levels > 1 && !fresh)
            merge_levels(state, call, at, place);
        for (int level = 0; level < state.levels; level++)
            if (fresh || is_active(level, place))
                write_level(state, table, call, at, level, t, fresh);
        for (int g = 0; g < call.group; g++) {
            const int64_t row = call.row(call.H, at.b, at.kv * call.group + g, t);
            float y[COLUMNS] = {};
            for (int level = 0; level < state.levels; level++) {
                if (!is_active(level, place))
                    continue;
                const float factor =
                    call.levels > 0 ? call.scratch.level[row * call.levels + level] : 1;
                for (int64_t m = axes_lane(); m < state.features; m += SR_WARP) {
                    const float q = factor * feature_of(table, m, at.q + row * call.F);
#pragma unroll
                    for (int c = 0; c < COLUMNS; c++) {
                        const float *const number = number_at(state, call, at, level, m, c);
                        if (number)
                            y[c] = fmaf(q, *number, y[c]);
                    }
                }
            }
            store_read(call, at, row, y);
        }
    }
}

/* A thread owns a number: C of the last token, after all warps have read the old one. */
__global__ void set_references(const __grid_constant__ sr_axes_call call,
                               const __grid_constant__ axes_state state) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.decays)
        return;
    const int64_t head = n / call.decays;
    for (int level = 0; level < state.levels; level++)
        state.reference[(head * state.levels + level) * call.decays + n % call.decays] =
            call.scratch.decay[((head + 1) * call.T - 1) * call.decays + n % call.decays];
}

/* A thread owns a number of a level but the lowest: decays it in global memory to the state's
 * present, or clears it where the level is empty. */
__global__ void settle_numbers(const axes_state state, int heads, int Dv, int decays,
                               int64_t position, const int64_t *on_device) {
    const int columns = Dv + state.column, upper = state.levels - 1;
    const int64_t n = axes_thread(), m = n % state.features;
    const int column = (int)(n / state.features % columns);
    const int level = 1 + (int)(n / state.features / columns % upper);
    const int64_t head = n / state.features / columns / upper;
    if (head >= heads)
        return;
    const int64_t tokens = on_device ? *on_device : position, row = level * state.features + m;
    float *const numbers = state.numbers + head * state.head;
    float *const number = column == Dv ? numbers + state.levels * state.features * Dv + row
                                       : numbers + row * Dv + column;
    const double *const now = state.reference + head * state.levels * decays + (decays > 1 ? m : 0);
    const bool active = tokens > 0 && is_active(level, tokens - 1);
    const float e = active && decays > 0 ? expf((float)(now[0] - now[level * decays])) : 1;
    *number = active ? *number * e : 0;
}

/* A thread owns C of a gate of a head: copies it from the lowest level to the others, in global
 * memory. */
__global__ void spread_references(const axes_state state, int heads, int decays) {
    const int64_t n = axes_thread(), head = n / decays;
    if (head >= heads)
        return;
    double *const now = state.reference + head * state.levels * decays + n % decays;
    for (int level = 1; level < state.levels; level++)
        now[level * decays] = now[0];
}

srnn_status sr_axes_spread(const axes_state &state, int heads, int decays, cudaStream_t stream) {
    if (decays > 0 && state.levels > 1)
        AXES_START(spread_references, (int64_t)heads * decays, state, heads, decays);
    return SRNN_OK;
}

srnn_status sr_axes_settle(const srnn_problem *p, const axes_state &state, int64_t position,
                           const int64_t *on_device, cudaStream_t stream) {
    const int decays =
        p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
    const int64_t heads = (int64_t)p->B * p->Hkv;
    if (state.levels == 1)
        return SRNN_OK;
    AXES_START(settle_numbers, heads * (state.levels - 1) * (p->Dv + state.column) * state.features,
               state, (int)heads, p->Dv, decays, position, on_device);
    return sr_axes_spread(state, (int)heads, decays, stream);
}

bool sr_axes_walks_back(const srnn_attention *a) {
    return a->score == SRNN_SCORE_LINEAR && a->levels == SRNN_LEVELS_NONE;
}

srnn_status sr_axes_walk_forward(const sr_axes_call &call, const axes_state &state,
                                 const sr_feature_table &table, cudaStream_t stream) {
    const size_t rows = (size_t)call.B * (size_t)call.H * (size_t)call.T;
    const int groups = (call.Dv + COLUMNS - 1) / COLUMNS + 1;
    const dim3 grid((unsigned)(call.B * call.Hkv), axes_blocks(groups, SR_AXES_WARPS));
    const dim3 block(SR_AXES_THREADS);
    SR_CUDA(cudaMemsetAsync(call.scratch.row_sum, 0, rows * sizeof(float), stream));
    SR_CUDA(cudaMemsetAsync(call.scratch.maximum, 0, rows * sizeof(float), stream));
    if (!sr_axes_walks_back(&call.a))
        SR_CUDA(sr_launch(walk_memory, grid, block, 0, stream, call, state, table));
    else if (call.F <= 64)
        SR_CUDA(sr_launch(walk_registers<2>, grid, block, 0, stream, call, state));
    else if (call.F <= 128)
        SR_CUDA(sr_launch(walk_registers<4>, grid, block, 0, stream, call, state));
    else
        SR_CUDA(sr_launch(walk_registers<8>, grid, block, 0, stream, call, state));
    if (call.carry.position && call.decays > 0)
        AXES_START(set_references, (int64_t)call.B * call.Hkv * call.decays, call, state);
    return SRNN_OK;
}
