/* generic.cu: attention in float for plain pairs of every shape, without tensor cores: the
 * reference for the fast kernels of a GPU.
 *
 * A block owns 32 rows that stay, and walks over tiles of 32 rows that pass by; a warp has 4 of
 * those that stay, a lane one of those that pass by. Backward in two kernels, dQ and dK with dV,
 * each of which owns the rows that it writes: results are bitwise reproducible. */
#include "attention/cuda/generic/generic.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/lanes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "equation/facts.h"

enum { TILE = SR_TILE, OWN = SR_OWN, WARPS = TILE / OWN, THREADS = WARPS * SR_WARP };

typedef sr_attention_view<float> view;

/* Rows t0 .. t0+31 of a head; rows outside from .. past-1 and columns past the end are zero. By the
 * whole block. Parameters, not a struct: they stay in registers. */
template <int WIDTH>
SR_DEVICE void tile_load(sr_float_tile<WIDTH> &to, const float *rows, int64_t stride, int columns,
                         int t0, int from, int past) {
    for (int n = (int)threadIdx.x; n < TILE * WIDTH; n += THREADS) {
        const int row = n / WIDTH, column = n % WIDTH, t = t0 + row;
        const bool there = t >= from && t < past && column < columns;
        to.number[row][column] = there ? rows[t * stride + column] : 0;
    }
}

/* ---- scores ---- */

/* C_i - C_j of KV head h in the unit in which the score adds it. */
SR_DEVICE float decay_between(const view &call, int b, int h, int i, int j) {
    if (!call.choices.decays)
        return 0;
    const double *const decay = call.scratch.decay + call.row_index(call.Hkv, b, h, 0);
    return (float)((decay[i] - decay[j]) * (double)call.score.decay_unit);
}

/* w' of a row and its derivative by r, without the factor slope_unit. */
struct sr_pair_gradient {
    float weight, slope;
};

/* What turns w into w': the saved maximum, and a, or minus its logarithm. They are kept apart
 * because their sum would round off what is left of large logits. */
struct sr_row_shift {
    float maximum, scale;
};

SR_DEVICE sr_pair_gradient pair_gradient(const sr_score_rule &rule, float r, float decay,
                                         sr_row_shift row) {
    const float x = clamp_dot(rule, r);
    sr_pair_gradient pair = {};
    switch (rule.kind) {
    case SR_CLASS_EXPONENTIAL:
        pair.weight = pair.slope =
            exp2f(fmaf(fmaf(x + decay, rule.scale, -row.maximum), SR_LOG2_E, -row.scale));
        break;
    case SR_CLASS_POLYNOMIAL:
        pair.weight = row.scale * exp2f(decay) * polynomial_weight(rule, x);
        pair.slope = row.scale * exp2f(decay) * polynomial_slope(rule, x);
        break;
    case SR_CLASS_LONG: {
        const float shift = fmaf(row.maximum, SR_LOG2_E, row.scale - decay);
        pair.weight = signed_exp2(long_log(rule, x, 0), shift);
        pair.slope = signed_exp2(long_log(rule, x, 1), shift);
        break;
    }
    }
    if (rule.clamped && r > rule.clamp)
        pair.slope = 0;
    return pair;
}

/* ---- forward ---- */

/* Epilogue of a row by one warp. */
template <int WIDTH>
SR_DEVICE void finish_row(const view &call, const sr_running<WIDTH> &rows, int r, int b, int h,
                          int t) {
    using Row = sr_warp_row<WIDTH>;
    const int64_t at = call.row_index(call.H, b, h, t);
    float sum = call.choices.sums_rows ? warp_sum(rows.sum[r]) : 0;
    const float maximum = rows.maximum[r] == -INFINITY ? 0 : rows.maximum[r];
    const float unit = call.score.kind == SR_CLASS_EXPONENTIAL ? call.score.scale : SR_LN_2;
    /* The maximum is rounded when it is saved: sums relative to it are corrected by the same
     * rounding. */
    const float saved = maximum * unit, rounded = expf(fmaf(maximum, unit, -saved));
    float x[Row::count];
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        x[m] = rows.x[r][m] * rounded;
    sum *= rounded;
    if (call.numerator)
        row_store<Row>(call.numerator + at * call.Dv, x, call.Dv);
    if (call.numerator && threadIdx.x % SR_WARP == 0) {
        call.row_sum[at] = sum;
        call.maximum[at] = saved;
    }
    row_output<Row>(x, call, row_facts(call, b, h, t, sum, saved));
    row_store<Row>(call.o.at(b, h, t), x, call.Dv);
}

template <int WIDTH> struct forward_memory {
    sr_float_tile<WIDTH> q, k, v;
    sr_pair_rows weights[WARPS];
};

/* A block owns 32 queries of one head, last tiles first; warp w owns 4 of them. All threads load Q,
 * then K and V tiles of 32 keys, global -> shared, one stage: a barrier before the load (no warp
 * still reads) and one after it. Each lane computes the dot products of its key with the warp's 4
 * queries, online softmax in registers over the warp (running maximum by shuffles), weights through
 * shared memory, numerators += weights V in registers. The epilogue stores each row once. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 1) forward_rows(const __grid_constant__ view call) {
    SR_SHARED(forward_memory<WIDTH>, shared);
    const int tiles = (call.T + TILE - 1) / TILE, head = (int)blockIdx.x / tiles;
    const int b = head / call.H, h = head % call.H, kv = h / call.group;
    const int t0 = (tiles - 1 - (int)blockIdx.x % tiles) * TILE, past = min(t0 + TILE, call.T);
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    const int32_t *const first = call.first + (int64_t)b * call.T;
    sr_running<WIDTH> rows;
    running_start(rows, call.score);
    tile_load(shared->q, call.q.at(b, h, 0), call.q.time, call.D, t0, t0, past);
    for (int key = first[t0] / TILE * TILE; key < past; key += TILE) {
        __syncthreads(); /* no warp reads the previous tiles */
        tile_load(shared->k, call.k.at(b, kv, 0), call.k.time, call.D, key, first[t0], past);
        tile_load(shared->v, call.v.at(b, kv, 0), call.v.time, call.Dv, key, first[t0], past);
        __syncthreads();
        const int j = key + lane;
        float dot[OWN], weight[OWN];
        dots(dot, shared->q.number + OWN * warp, shared->k, call.D);
#pragma unroll
        for (int r = 0; r < OWN; r++) {
            const int i = min(t0 + OWN * warp + r, call.T - 1);
            weight[r] = weigh(rows, r, call.score, j >= first[i] && j <= i, dot[r],
                              decay_between(call, b, kv, i, min(j, call.T - 1)));
        }
        pairs_store(shared->weights[warp], weight);
        __syncwarp();
        add_rows(rows.x, shared->weights[warp], shared->v);
    }
#pragma unroll
    for (int r = 0; r < OWN; r++)
        if (t0 + OWN * warp + r < call.T)
            finish_row(call, rows, r, b, h, t0 + OWN * warp + r);
}

/* ---- backward ---- */

template <int WIDTH> struct backward_memory {
    sr_float_tile<WIDTH> q, d_numerator, k, v;
    sr_pair_rows dot[WARPS];      /* <q, k>, then w' */
    sr_pair_rows gradient[WARPS]; /* <d_numerator, v>, then the gradient of r but for slope_unit */
    sr_pair_rows product[WARPS];  /* the sum of w' times its gradient */
};

SR_DEVICE void pairs_clear(sr_pair_rows &to) {
    const float zero[OWN] = {};
    pairs_store(to, zero);
}

/* From the dot products of the lane's pairs to weights and gradients of logits. The warp's rows,
 * from `own` on, are queries of head h and the lane's, `other`, is a key; or, if keys stay, the
 * other way round. */
template <bool KEYS_STAY, int WIDTH>
SR_DEVICE void pairs_backward(backward_memory<WIDTH> &shared, const view &call, int b, int h,
                              int own, int other) {
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
#pragma unroll 1 /* the long score would take too many registers at a time */
    for (int r = 0; r < OWN; r++) {
        const int i = KEYS_STAY ? other : own + r, j = KEYS_STAY ? own + r : other;
        const int64_t at = call.row_index(call.H, b, h, min(i, call.T - 1));
        float &dot = shared.dot[warp].number[r][lane];
        float &gradient = shared.gradient[warp].number[r][lane];
        sr_pair_gradient pair = {};
        if (i < call.T && j <= i && j >= call.first[(int64_t)b * call.T + i]) {
            const float decay = decay_between(call, b, h / call.group, i, j);
            pair = pair_gradient(call.score, dot, decay,
                                 {call.maximum[at], call.scratch.row_scale[at]});
            gradient += call.scratch.d_row_sum[at];
            shared.product[warp].number[r][lane] += pair.weight * gradient;
        }
        dot = pair.weight;
        gradient = pair.slope == 0 ? 0 : gradient * pair.slope;
    }
    __syncwarp();
}

/* The gradient of a row of features, `sum`, to that of q or k. */
template <int WIDTH>
SR_DEVICE void store_feature_gradient(const view &call, const float (&sum)[WIDTH / SR_WARP],
                                      const float *raw, float *gradient) {
    using Row = sr_warp_row<WIDTH>;
    float x[Row::count], g[Row::count];
    row_load<Row>(x, raw, call.D);
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        g[m] = sum[m] * call.score.slope_unit;
    row_feature_backward<Row>(g, x, call.choices.feature);
    row_store<Row>(gradient, g, call.D);
}

/* dQ. A block owns 32 queries of one head; warp w owns 4 of them. Q and d_numerator are loaded
 * once, then K and V tiles of 32 keys, global -> shared, between two barriers each. Each lane
 * computes <q, k> and <d_numerator, v> of its key with the warp's 4 queries, through the warp's
 * part of shared memory into gradients of logits, and the warp accumulates dQ += dS K in registers,
 * stored once at the end with the feature map's backward; with a decay, row_dot too. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 1) backward_queries(const __grid_constant__ view call) {
    SR_SHARED(backward_memory<WIDTH>, shared);
    const int tiles = (call.T + TILE - 1) / TILE, head = (int)blockIdx.x / tiles;
    const int b = head / call.H, h = head % call.H, kv = h / call.group;
    const int t0 = (tiles - 1 - (int)blockIdx.x % tiles) * TILE, past = min(t0 + TILE, call.T);
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    const int from = call.first[(int64_t)b * call.T + t0];
    float d_q[OWN][WIDTH / SR_WARP] = {};
    pairs_clear(shared->product[warp]);
    tile_load(shared->q, call.q.at(b, h, 0), call.q.time, call.D, t0, t0, past);
    tile_load(shared->d_numerator, call.d_numerator.at(b, h, 0), call.d_numerator.time, call.Dv, t0,
              t0, past);
    for (int key = from / TILE * TILE; key < past; key += TILE) {
        __syncthreads();
        tile_load(shared->k, call.k.at(b, kv, 0), call.k.time, call.D, key, from, past);
        tile_load(shared->v, call.v.at(b, kv, 0), call.v.time, call.Dv, key, from, past);
        __syncthreads();
        float dot[OWN];
        dots(dot, shared->q.number + OWN * warp, shared->k, call.D);
        pairs_store(shared->dot[warp], dot);
        dots(dot, shared->d_numerator.number + OWN * warp, shared->v, call.Dv);
        pairs_store(shared->gradient[warp], dot);
        pairs_backward<false>(*shared, call, b, h, t0 + OWN * warp, key + lane);
        add_rows(d_q, shared->gradient[warp], shared->k);
    }
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        const int t = t0 + OWN * warp + r;
        if (t >= call.T)
            continue;
        const float product = warp_sum(shared->product[warp].number[r][lane]);
        if (call.scratch.row_dot && lane == 0)
            call.scratch.row_dot[call.row_index(call.H, b, h, t)] = product;
        if (call.d_q.data)
            store_feature_gradient<WIDTH>(call, d_q[r], call.raw_q.at(b, h, t),
                                          call.d_q.at(b, h, t));
    }
}

/* dV from the gradient of factor * v. */
template <int WIDTH>
SR_DEVICE void store_value_gradient(const view &call, const float (&sum)[WIDTH / SR_WARP], int b,
                                    int kv, int t) {
    using Row = sr_warp_row<WIDTH>;
    const int64_t at = call.row_index(call.Hkv, b, kv, t);
    float d[Row::count], v[Row::count];
#pragma unroll
    for (int m = 0; m < Row::count; m++)
        d[m] = sum[m];
    if (call.scratch.value_factor) {
        row_load<Row>(v, call.v.at(b, kv, t), call.Dv);
        const float dot = row_dot<Row>(v, d);
        const bool first_lane = threadIdx.x % SR_WARP == 0;
        if (first_lane)
            call.scratch.value_dot[at] = dot;
        if (first_lane && call.choices.value_gate && call.d_value_gate.data)
            *call.d_value_gate.at(b, kv, t) =
                dot * (1 - sigmoid(to_float(*call.value_gate.at(b, kv, t))));
        row_multiply<Row>(d, call.scratch.value_factor[at]);
    }
    if (call.d_v.data)
        row_store<Row>(call.d_v.at(b, kv, t), d, call.Dv);
}

/* dK and dV. A block owns 32 keys of one KV head; warp w owns 4 of them. K and V are loaded once,
 * then, head by head of the group, tiles of 32 queries and their d_numerator from the diagonal
 * onwards while documents still see the keys, global -> shared, between two barriers each. Each
 * lane has one query; dK += dS' Q and dV += W' dN accumulate in the warp's registers in this fixed
 * order and are stored once at the end. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 1) backward_keys(const __grid_constant__ view call) {
    SR_SHARED(backward_memory<WIDTH>, shared);
    const int tiles = (call.T + TILE - 1) / TILE, head = (int)blockIdx.x / tiles;
    const int b = head / call.Hkv, kv = head % call.Hkv, key = (int)blockIdx.x % tiles * TILE;
    const int past = min(key + TILE, call.T);
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    const int32_t *const first = call.first + (int64_t)b * call.T;
    float d_k[OWN][WIDTH / SR_WARP] = {}, d_v[OWN][WIDTH / SR_WARP] = {};
    pairs_clear(shared->product[warp]);
    tile_load(shared->k, call.k.at(b, kv, 0), call.k.time, call.D, key, key, past);
    tile_load(shared->v, call.v.at(b, kv, 0), call.v.time, call.Dv, key, key, past);
    for (int h = kv * call.group; h < (kv + 1) * call.group; h++)
        for (int t0 = key; t0 < call.T && first[t0] < past; t0 += TILE) {
            __syncthreads();
            tile_load(shared->q, call.q.at(b, h, 0), call.q.time, call.D, t0, t0, call.T);
            tile_load(shared->d_numerator, call.d_numerator.at(b, h, 0), call.d_numerator.time,
                      call.Dv, t0, t0, call.T);
            __syncthreads();
            float dot[OWN];
            dots(dot, shared->k.number + OWN * warp, shared->q, call.D);
            pairs_store(shared->dot[warp], dot);
            dots(dot, shared->v.number + OWN * warp, shared->d_numerator, call.Dv);
            pairs_store(shared->gradient[warp], dot);
            pairs_backward<true>(*shared, call, b, h, key + OWN * warp, t0 + lane);
            add_rows(d_k, shared->gradient[warp], shared->q);
            add_rows(d_v, shared->dot[warp], shared->d_numerator);
        }
#pragma unroll
    for (int r = 0; r < OWN; r++) {
        const int t = key + OWN * warp + r;
        if (t >= call.T)
            continue;
        const float product = warp_sum(shared->product[warp].number[r][lane]);
        if (call.scratch.column_dot && lane == 0)
            call.scratch.column_dot[call.row_index(call.Hkv, b, kv, t)] = product;
        if (call.d_k.data)
            store_feature_gradient<WIDTH>(call, d_k[r], call.raw_k.at(b, kv, t),
                                          call.d_k.at(b, kv, t));
        store_value_gradient<WIDTH>(call, d_v[r], b, kv, t);
    }
}

/* ---- calls ---- */

/* START(kernel, memory, heads): kernel<WIDTH> with memory<WIDTH>, one block per 32 rows of each
 * head. */
#define START(kernel, memory, heads)                                                         \
    do {                                                                                     \
        const int width = max(call.D, call.Dv), tiles = (call.T + TILE - 1) / TILE;          \
        const dim3 grid((unsigned)(call.B * (heads)*tiles)), block(THREADS);                 \
        if (width <= 64)                                                                     \
            SR_CUDA(sr_launch(kernel<64>, grid, block, sizeof(memory<64>), stream, call));   \
        else if (width <= 128)                                                               \
            SR_CUDA(sr_launch(kernel<128>, grid, block, sizeof(memory<128>), stream, call)); \
        else                                                                                 \
            SR_CUDA(sr_launch(kernel<256>, grid, block, sizeof(memory<256>), stream, call)); \
    } while (0)

static srnn_status forward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const view call = sr_attention_forward_view<float>(wanted, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_attention_prepare(call, stream));
    START(forward_rows, forward_memory, call.H);
    return SRNN_OK;
}

static srnn_status backward(const sr_attention_call *wanted) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0};
    const view call = sr_attention_backward_view<float>(wanted, &layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_attention_prepare(call, stream));
    SR_TRY(sr_attention_outputs_backward(call, stream));
    START(backward_queries, backward_memory, call.H);
    START(backward_keys, backward_memory, call.Hkv);
    return sr_attention_inputs_backward(call, stream);
}

static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<float>(plan, &layout);
    return layout.used;
}

static const char COMPUTES[] = SR_CUDA_SCORES SR_CUDA_DECAY SR_CUDA_ROWS;

/* A block of the backward pass needs the most shared memory. */
static bool fits(const srnn_problem *p) {
    const size_t bytes =
        p->D <= 128 && p->Dv <= 128 ? sizeof(backward_memory<128>) : sizeof(backward_memory<256>);
    return bytes <= sr_cuda_facts(p->device)->shared_bytes;
}

const sr_attention_kernel sr_cuda_attention_generic = {
    "generic", SRNN_FORM_PARALLEL, SRNN_F32, COMPUTES, fits,
    nullptr,   scratch_bytes,      forward,  backward, false,
};
