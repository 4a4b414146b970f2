/* walk_backward.cu: linear scores through a state, backward.
 *
 * A block owns one head of keys and values and 32 columns of its values, a warp 4 of them with the
 * state and its gradient R in registers; one more block per head has the column of the row sums. A
 * first walk keeps the state before every chunk of 32 tokens; then, from the last chunk to the
 * first, those before its tokens are made once more, and R walks back over them. Sums over columns
 * are added over the warps in order through shared memory, over blocks by the last kernel. Gates
 * get their gradients directly, <R, state>: no sums of rows and columns cancel. */
#include "attention/cuda/axes/walk.h"

#include "equation/facts.h"

enum { COLUMNS = 4, SLICE = COLUMNS * SR_AXES_WARPS, CHUNK = 32 };

static int slices_of(const srnn_problem *p) {
    return (p->Dv + SLICE - 1) / SLICE + (sr_needs_row_sum(&p->attention) ? 1 : 0);
}

axes_walk_scratch sr_axes_walk_place(const srnn_plan *plan, sr_layout *layout) {
    const srnn_problem *p = &plan->core;
    axes_walk_scratch s = {};
    if (!sr_axes_walks_back(&p->attention))
        return s;
    const int decays = p->attention.decay == SRNN_DECAY_NONE
                           ? 0
                           : sr_decay_numbers(&p->attention, plan->problem.D);
    const size_t slices = (size_t)slices_of(p), tokens = (size_t)p->B * (size_t)p->T;
    const size_t q_rows = tokens * (size_t)p->H, k_rows = tokens * (size_t)p->Hkv;
    const size_t warps = (size_t)p->B * (size_t)p->Hkv * slices * SR_AXES_WARPS;
    const size_t state = (size_t)p->D * COLUMNS, chunks = ((size_t)p->T + CHUNK - 1) / CHUNK;
    s.chunks = (float *)sr_layout_take(layout, warps * chunks * state, sizeof(float));
    s.tokens = (float *)sr_layout_take(layout, warps * CHUNK * state, sizeof(float));
    s.d_q = (float *)sr_layout_take(layout, slices * q_rows * (size_t)p->D, sizeof(float));
    s.d_k = (float *)sr_layout_take(layout, slices * k_rows * (size_t)p->D, sizeof(float));
    s.d_gate = (double *)sr_layout_take(layout, slices * k_rows * (size_t)decays, sizeof(double));
    s.d_beta = (float *)sr_layout_take(layout, slices * k_rows, sizeof(float));
    return s;
}

/* What a warp owns. */
struct back_place {
    int head, b, kv, slice, column;
    bool ones;
    const float *q, *k;
};

SR_DEVICE back_place place_of(const sr_axes_call &call) {
    back_place at;
    at.head = (int)blockIdx.x;
    at.b = at.head / call.Hkv;
    at.kv = at.head % call.Hkv;
    at.slice = (int)blockIdx.y;
    at.ones = at.slice == (call.Dv + SLICE - 1) / SLICE;
    at.column = at.slice * SLICE + (int)threadIdx.x / SR_WARP * COLUMNS;
    at.q = at.ones ? call.scratch.q : call.scratch.rotated_q;
    at.k = at.ones ? call.scratch.k : call.scratch.rotated_k;
    return at;
}

/* Numbers of a row (n) of the warp's columns; of the row sums, one number, the first warp's. */
SR_DEVICE void columns_of(float (&x)[COLUMNS], const sr_axes_call &call, const back_place &at,
                          const float *row, float ones) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        x[c] = at.ones                   ? (c == 0 && threadIdx.x < SR_WARP ? ones : 0.0f)
               : at.column + c < call.Dv ? row[at.column + c]
                                         : 0;
}

SR_DEVICE float decay_factor(const sr_axes_call &call, int64_t token, bool fresh, int f) {
    if (fresh || call.decays == 0)
        return 1;
    const int c = call.decays == 1 ? 0 : f;
    return expf((float)(call.scratch.decay[token * call.decays + c] -
                        call.scratch.decay[(token - 1) * call.decays + c]));
}

/* A token as the walk meets it. */
template <int ROWS> struct walk_token {
    float k[ROWS], e[ROWS]; /* the lane's features; what is kept of the state */
    float u[COLUMNS], error[COLUMNS];
    float beta;
};

/* Decays S, which then is what the token finds, and computes what it writes. */
template <int ROWS>
SR_DEVICE void meet_token(walk_token<ROWS> &x, float (&S)[ROWS][COLUMNS], const sr_axes_call &call,
                          const back_place &at, int t, bool decayed) {
    const int64_t token = (int64_t)at.head * call.T + t;
    const bool fresh = call.start(at.b, t) == t, delta = call.delta && !at.ones;
    columns_of(x.error, call, at, call.scratch.v + token * call.Dv, 1);
    x.beta = delta ? call.scratch.beta[token] : 1;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int f = r * SR_WARP + axes_lane();
        x.k[r] = f < call.F ? at.k[token * call.F + f] : 0;
        x.e[r] = f < call.F ? decay_factor(call, token, fresh, f) : 0;
#pragma unroll
        for (int c = 0; !decayed && c < COLUMNS; c++)
            S[r][c] = fresh ? 0 : S[r][c] * x.e[r];
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float known = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            known = fmaf(x.k[r], S[r][c], known);
        known = warp_sum(known);
        if (delta)
            x.error[c] -= known;
        x.u[c] = x.beta * x.error[c];
    }
}

template <int ROWS>
SR_DEVICE void write_token(float (&S)[ROWS][COLUMNS], const walk_token<ROWS> &x) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            S[r][c] = fmaf(x.k[r], x.u[c], S[r][c]);
}

/* Where a warp keeps its state number n; each lane reads what it wrote. */
template <int ROWS> SR_DEVICE void state_store(float *to, const float (&S)[ROWS][COLUMNS], int F) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            if (r * SR_WARP + axes_lane() < F)
                to[(r * SR_WARP + axes_lane()) * COLUMNS + c] = S[r][c];
}

template <int ROWS> SR_DEVICE void state_load(float (&S)[ROWS][COLUMNS], const float *from, int F) {
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int c = 0; c < COLUMNS; c++)
            S[r][c] =
                r * SR_WARP + axes_lane() < F ? from[(r * SR_WARP + axes_lane()) * COLUMNS + c] : 0;
}

struct back_memory {
    float part[SR_AXES_WARPS][SR_WARP * 8]; /* of a row of features */
    double gate[SR_AXES_WARPS][SR_WARP * 8];
    float beta[SR_AXES_WARPS];
};

/* to (F) = the sum of the warps' parts of a row of features. By the whole block. */
template <int ROWS>
SR_DEVICE void add_row(back_memory *shared, float *to, const float (&part)[ROWS], int F) {
    const int warp = (int)threadIdx.x / SR_WARP;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        shared->part[warp][r * SR_WARP + axes_lane()] = part[r];
    __syncthreads();
    for (int f = (int)threadIdx.x; f < F; f += SR_AXES_THREADS) {
        float sum = 0;
        for (int w = 0; w < SR_AXES_WARPS; w++)
            sum += shared->part[w][f];
        to[f] = sum;
    }
    __syncthreads();
}

/* The same of gradients of gates, one per channel or one in all, and of beta. */
template <int ROWS>
SR_DEVICE void add_gates(back_memory *shared, const sr_axes_call &call,
                         const axes_walk_scratch &scratch, int64_t row, const float (&gate)[ROWS],
                         float beta) {
    const int warp = (int)threadIdx.x / SR_WARP;
    double all = 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        all += (double)gate[r];
        shared->gate[warp][r * SR_WARP + axes_lane()] = (double)gate[r];
    }
    if (call.decays == 1) {
        all = warp_sum(all);
        __syncwarp();
        if (axes_lane() == 0)
            shared->gate[warp][0] = all;
    }
    if (axes_lane() == 0)
        shared->beta[warp] = beta;
    __syncthreads();
    for (int f = (int)threadIdx.x; f < call.decays; f += SR_AXES_THREADS) {
        double sum = 0;
        for (int w = 0; w < SR_AXES_WARPS; w++)
            sum += shared->gate[w][f];
        scratch.d_gate[row * call.decays + f] = sum;
    }
    if (threadIdx.x == 0) {
        float sum = 0;
        for (int w = 0; w < SR_AXES_WARPS; w++)
            sum += shared->beta[w];
        scratch.d_beta[row] = sum;
    }
    __syncthreads();
}

/* Rows that read the token's state: gradients of queries, and R. Parameters, not a struct: they
 * stay in registers. */
template <int ROWS>
SR_DEVICE void read_backward(back_memory *shared, float (&R)[ROWS][COLUMNS],
                             const float (&S)[ROWS][COLUMNS], const walk_token<ROWS> &x,
                             const sr_axes_call &call, const axes_walk_scratch &scratch,
                             const back_place &at, int t) {
    for (int g = 0; g < call.group; g++) {
        const int64_t row = call.row(call.H, at.b, at.kv * call.group + g, t);
        float d[COLUMNS], d_q[ROWS];
        columns_of(d, call, at, call.scratch.d_numerator + row * call.Dv,
                   (float)call.scratch.d_row_sum[row]);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int f = r * SR_WARP + axes_lane();
            const float q = f < call.F ? at.q[row * call.F + f] : 0;
            d_q[r] = 0;
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                d_q[r] = fmaf(fmaf(x.k[r], x.u[c], S[r][c]), d[c], d_q[r]);
                R[r][c] = fmaf(q, d[c], R[r][c]);
            }
        }
        const int64_t rows = (int64_t)call.B * call.H * call.T;
        add_row(shared, scratch.d_q + (at.slice * rows + row) * call.F, d_q, call.F);
    }
}

/* The token's write: gradients of its key, value, beta and gates; R before it. Parameters, not a
 * struct: they stay in registers. */
template <int ROWS>
SR_DEVICE void write_backward(back_memory *shared, float (&R)[ROWS][COLUMNS],
                              const float (&S)[ROWS][COLUMNS], const walk_token<ROWS> &x,
                              const sr_axes_call &call, const axes_walk_scratch &scratch,
                              const back_place &at, int t) {
    const int64_t token = (int64_t)at.head * call.T + t, rows = (int64_t)call.B * call.Hkv * call.T;
    const bool fresh = call.start(at.b, t) == t, delta = call.delta && !at.ones;
    float d_u[COLUMNS], d_k[ROWS], d_gate[ROWS], d_beta = 0;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float sum = 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sum = fmaf(x.k[r], R[r][c], sum);
        d_u[c] = warp_sum(sum);
        d_beta = fmaf(d_u[c], x.error[c], d_beta);
        d_u[c] *= x.beta; /* of the error, or of the value itself */
        if (!at.ones && axes_lane() == 0 && at.column + c < call.Dv)
            call.scratch.d_v[token * call.Dv + at.column + c] = d_u[c];
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        d_k[r] = d_gate[r] = 0;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            d_k[r] = fmaf(R[r][c], x.u[c], d_k[r]);
            if (delta) {
                d_k[r] = fmaf(-S[r][c], d_u[c], d_k[r]);
                R[r][c] = fmaf(-x.k[r], d_u[c], R[r][c]);
            }
            d_gate[r] = fmaf(R[r][c], S[r][c], d_gate[r]);
            R[r][c] = fresh ? 0 : R[r][c] * x.e[r];
        }
    }
    add_row(shared, scratch.d_k + (at.slice * rows + token) * call.F, d_k, call.F);
    add_gates(shared, call, scratch, at.slice * rows + token, d_gate, delta ? d_beta : 0);
}

/* Block (x, y) owns slice y of the columns of head x; a warp COLUMNS of them, with the state S and
 * its gradient R in registers, features over lanes. A first pass over all tokens stores S before
 * each chunk, registers -> workspace. Then, from the last chunk to the first: S is reloaded, the
 * chunk is run again with S before each token stored, and its tokens are walked backwards, where
 * gradients of q, k and gates are summed over the warps through shared memory, in order. */
template <int ROWS>
__global__ void __launch_bounds__(SR_AXES_THREADS, 1)
    walk_back(const __grid_constant__ sr_axes_call call,
              const __grid_constant__ axes_walk_scratch scratch) {
    SR_SHARED(back_memory, shared);
    const back_place at = place_of(call);
    const int chunks = (call.T + CHUNK - 1) / CHUNK, size = call.F * COLUMNS;
    const int64_t warp =
        ((int64_t)at.head * gridDim.y + at.slice) * SR_AXES_WARPS + threadIdx.x / SR_WARP;
    float *const before = scratch.chunks + warp * chunks * size;
    float *const inside = scratch.tokens + warp * CHUNK * size;
    float S[ROWS][COLUMNS] = {}, R[ROWS][COLUMNS] = {};
    walk_token<ROWS> x;
    for (int t = 0; t < call.T; t++) {
        if (t % CHUNK == 0)
            state_store(before + t / CHUNK * size, S, call.F);
        meet_token(x, S, call, at, t, false);
        write_token(S, x);
    }
    for (int chunk = chunks - 1; chunk >= 0; chunk--) {
        const int from = chunk * CHUNK, past = min(from + CHUNK, call.T);
        state_load(S, before + chunk * size, call.F);
        for (int t = from; t < past; t++) {
            meet_token(x, S, call, at, t, false);
            state_store(inside + (t - from) * size, S, call.F);
            write_token(S, x);
        }
        for (int t = past - 1; t >= from; t--) {
            state_load(S, inside + (t - from) * size, call.F);
            meet_token(x, S, call, at, t, true);
            read_backward(shared, R, S, x, call, scratch, at, t);
            write_backward(shared, R, S, x, call, scratch, at, t);
        }
    }
}

/* ---- sums over slices: a thread owns a number ---- */

/* out += numbers `from` .. past-1 of (slices, count). A thread owns one number: reads the slices
 * in order, stores the sum. */
__global__ void add_slices(float *out, const float *parts, int64_t count, int from, int past) {
    const int64_t n = axes_thread();
    if (n >= count)
        return;
    float sum = out[n];
    for (int slice = from; slice < past; slice++)
        sum += parts[slice * count + n];
    out[n] = sum;
}

/* The share of the state that a token keeps is its own gate, or if learned the one before. A
 * thread owns one gate: reads the slices in order, adds in double, stores once. */
__global__ void add_gate_slices(const __grid_constant__ sr_axes_call call, const double *parts,
                                int slices) {
    const int64_t n = axes_thread(), count = (int64_t)call.B * call.Hkv * call.T * call.decays;
    if (n >= count)
        return;
    const axes_row at = axes_row_of(n / call.decays, call.Hkv, call.T);
    const bool learned = call.a.decay == SRNN_DECAY_LEARNED;
    const int t = learned ? at.t + 1 : at.t;
    double sum = 0;
    for (int slice = 0; t < call.T && call.start(at.b, t) != t && slice < slices; slice++)
        sum += parts[slice * count + n + (learned ? call.decays : 0)];
    call.scratch.d_gate[n] = sum;
}

srnn_status sr_axes_walk_backward(const sr_axes_call &call, const axes_walk_scratch &scratch,
                                  cudaStream_t stream) {
    const int values = (call.Dv + SLICE - 1) / SLICE, slices = values + (call.sums_rows ? 1 : 0);
    const int64_t tokens = (int64_t)call.B * call.T;
    const int64_t q = tokens * call.H * call.F, k = tokens * call.Hkv * call.F;
    const dim3 grid((unsigned)(call.B * call.Hkv), (unsigned)slices), block(SR_AXES_THREADS);
    const sr_axes_scratch &s = call.scratch;
    const size_t bytes = sizeof(back_memory);
    if (call.F <= 64)
        SR_CUDA(sr_launch(walk_back<2>, grid, block, bytes, stream, call, scratch));
    else if (call.F <= 128)
        SR_CUDA(sr_launch(walk_back<4>, grid, block, bytes, stream, call, scratch));
    else
        SR_CUDA(sr_launch(walk_back<8>, grid, block, bytes, stream, call, scratch));
    AXES_START(add_slices, q, s.d_rotated_q, scratch.d_q, q, 0, values);
    AXES_START(add_slices, k, s.d_rotated_k, scratch.d_k, k, 0, values);
    AXES_START(add_slices, q, s.d_q, scratch.d_q, q, values, slices);
    AXES_START(add_slices, k, s.d_k, scratch.d_k, k, values, slices);
    if (call.delta)
        AXES_START(add_slices, tokens * call.Hkv, s.d_beta, scratch.d_beta, tokens * call.Hkv, 0,
                   values);
    if (call.decays > 0)
        AXES_START(add_gate_slices, tokens * call.Hkv * call.decays, call, scratch.d_gate, slices);
    return SRNN_OK;
}
