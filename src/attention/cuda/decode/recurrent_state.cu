/* recurrent_state.cu: the recurrent state of fixed size: sums over the keys of their features times
 * their values.
 *
 * The features are those of src/attention/cpu/shared/features.h in their order: one per multiset of
 * indices. In memory, per KV head: matrix (features, Dv), column (features) if row sums are needed,
 * in float; then the decay references of all heads. A block owns all features of one KV head and
 * some columns, and walks over the tokens of a feed one by one: no sum crosses blocks. */
#include "attention/cuda/decode/state.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/multisets.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "device/device.h"
#include "equation/facts.h"

enum {
    COLUMNS = 8,     /* per block */
    LANES = SR_WARP, /* threads that share the features */
    THREADS = COLUMNS * LANES,
    HEADS = 4, /* queries that read the state at a time */
};

/* ---- memory ---- */

struct recurrent_memory {
    float *numbers;    /* (B Hkv, features (Dv + 1 or Dv)) */
    double *reference; /* (B Hkv): C of the last token, with decay */
    int64_t head;      /* numbers of one */
};

static recurrent_memory memory_place(const srnn_problem *p, sr_layout *layout) {
    const size_t heads = (size_t)p->B * (size_t)p->Hkv;
    const size_t head = srnn_attention_state_numbers(&p->attention, p->D, p->Dv);
    recurrent_memory memory = {};
    memory.numbers = (float *)sr_layout_take(layout, heads * head, sizeof(float));
    memory.reference = (double *)sr_layout_take(layout, heads, sizeof(double));
    memory.head = (int64_t)head;
    return memory;
}

/* ---- a feed ---- */

struct step_memory {
    float key[SR_HEAD_SIZE_MAX], query[HEADS][SR_HEAD_SIZE_MAX];
    float sum[HEADS][LANES][COLUMNS];
};

/* Block (x, y) owns KV head x, columns 8 y .. 8 y + 7 of its state (column Dv is that of the row
 * sums), which stay in global memory; thread (lane, column) owns every 32nd feature of a column.
 * For each token, in order: the block loads key and up to 4 queries, global -> shared, barrier;
 * each thread updates its features, state = decay state + feature(k) v, and adds feature(q) state
 * to its sums; the sums go to shared memory, barrier; then 4 x 8 threads add the 32 lanes in order
 * and store numerators and row sums to the workspace, for finish_rows. */
template <class N>
__global__ void __launch_bounds__(THREADS, 1)
    feed_tokens(const __grid_constant__ sr_attention_view<N> call, const sr_feature_table table,
                const recurrent_memory memory, const sr_partials partials) {
    SR_SHARED(step_memory, shared);
    const int head = (int)blockIdx.x, b = head / call.Hkv, kv = head % call.Hkv;
    const int own = (int)threadIdx.x % COLUMNS, lane = (int)threadIdx.x / COLUMNS;
    const int column = (int)blockIdx.y * COLUMNS + own;
    const bool sums = memory.head > table.count * call.Dv, ones = column == call.Dv;
    const bool used = column < call.Dv || (ones && sums);
    float *const numbers = memory.numbers + head * memory.head;
    /* feature m of the column at state[m * stride] */
    float *const state = ones ? numbers + table.count * call.Dv : numbers + column;
    const int64_t stride = ones ? 1 : call.Dv;
    double before = call.choices.decays ? memory.reference[head] : 0;
    for (int t = 0; t < call.T; t++) {
        float factor = 1;
        if (call.choices.decays) {
            const double now = call.scratch.decay[call.row_index(call.Hkv, b, kv, t)];
            factor = (float)exp(now - before);
            before = now;
        }
        for (int g0 = 0; g0 < call.group; g0 += HEADS) {
            const int heads = min(HEADS, call.group - g0), h0 = kv * call.group + g0;
            __syncthreads();
            for (int d = (int)threadIdx.x; d < call.D; d += THREADS) {
                shared->key[d] = to_float(call.k.at(b, kv, t)[d]);
                for (int g = 0; g < heads; g++)
                    shared->query[g][d] = to_float(call.q.at(b, h0 + g, t)[d]) * call.score.scale;
            }
            __syncthreads();
            const float value = ones || !used ? 1 : to_float(call.v.at(b, kv, t)[column]);
            float sum[HEADS] = {};
            for (int64_t m = lane; used && m < table.count; m += LANES) {
                float x = state[m * stride];
                if (g0 == 0) {
                    x = fmaf(factor, x, feature_of(table, m, shared->key) * value);
                    state[m * stride] = x;
                }
#pragma unroll
                for (int g = 0; g < HEADS; g++)
                    if (g < heads)
                        sum[g] = fmaf(feature_of(table, m, shared->query[g]), x, sum[g]);
            }
#pragma unroll
            for (int g = 0; g < HEADS; g++)
                shared->sum[g][lane][own] = sum[g];
            __syncthreads();
            if (lane < heads && used) {
                const int64_t row = call.row_index(call.H, b, h0 + lane, t);
                float all = 0;
                for (int n = 0; n < LANES; n++)
                    all += shared->sum[lane][n][own];
                if (ones)
                    partials.sum[row] = all;
                else
                    partials.x[row * call.Dv + column] = all;
                if (column == 0) {
                    partials.maximum[row] = 0;
                    if (!sums)
                        partials.sum[row] = 0;
                }
            }
        }
    }
}

/* A thread owns one KV head: stores the decay of the last token as the new reference, in a launch
 * of its own after all blocks have read the old one. */
template <class N>
__global__ void set_references(const __grid_constant__ sr_attention_view<N> call,
                               const recurrent_memory memory) {
    const int head = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (head < call.B * call.Hkv)
        memory.reference[head] = call.scratch.decay[(int64_t)head * call.T + call.T - 1];
}

template <class N> static size_t scratch_bytes(const srnn_plan *plan) {
    const srnn_problem *p = &plan->problem;
    sr_layout layout = {};
    sr_attention_scratch_place<N>(plan, &layout);
    sr_partials_place(p, (int64_t)p->B * p->H * p->T, &layout);
    sr_feature_table_place(p, &layout);
    return layout.used;
}

static unsigned blocks_for(int64_t count, int64_t each) {
    return (unsigned)((count + each - 1) / each);
}

template <class N>
static srnn_status feed(const sr_attention_call *wanted, char *bytes, int64_t capacity,
                        sr_carry *carry) {
    (void)capacity;
    const srnn_problem *p = &wanted->plan->problem;
    const srnn_attention *a = &p->attention;
    sr_layout layout = {(char *)wanted->plan->scratch, 0}, memory_layout = {bytes, 0};
    sr_attention_view<N> call = sr_attention_forward_view<N>(wanted, &layout);
    sr_partials partials = sr_partials_place(p, (int64_t)p->B * p->H * p->T, &layout);
    const sr_feature_table table = sr_feature_table_place(p, &layout);
    const recurrent_memory memory = memory_place(p, &memory_layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    partials.parts = 1;
    call.carry = *carry;
    SR_TRY(sr_attention_prepare(call, stream));
    SR_TRY(sr_feature_table_fill(table, p, stream));
    const int columns = p->Dv + (sr_needs_row_sum(a) ? 1 : 0);
    SR_CUDA(sr_launch(feed_tokens<N>, dim3((unsigned)(p->B * p->Hkv), blocks_for(columns, COLUMNS)),
                      dim3(THREADS), sizeof(step_memory), stream, call, table, memory, partials));
    if (call.choices.decays)
        SR_CUDA(sr_launch(set_references<N>, dim3(blocks_for((int64_t)p->B * p->Hkv, THREADS)),
                          dim3(THREADS), 0, stream, call, memory));
    return sr_partials_finish(call, partials, stream);
}

/* ---- the plain form: per head its numbers, then its reference ---- */

static size_t memory_bytes(const srnn_problem *p, int64_t capacity) {
    (void)capacity;
    sr_layout layout = {};
    memory_place(p, &layout);
    return layout.used;
}

static size_t reference_bytes(const srnn_problem *p) {
    return p->attention.decay == SRNN_DECAY_LEARNED ? sizeof(double) : 0;
}

static size_t head_bytes(const srnn_problem *p) {
    return srnn_attention_state_numbers(&p->attention, p->D, p->Dv) * sizeof(float);
}

static size_t plain_bytes(const srnn_problem *p, int64_t position) {
    (void)position;
    return (size_t)p->B * (size_t)p->Hkv * (head_bytes(p) + reference_bytes(p));
}

static srnn_status to_plain(char *plain, const sr_state_memory *state) {
    const srnn_problem *p = &state->plan->problem;
    srnn_device *device = state->plan->device;
    sr_layout layout = {state->memory, 0};
    const recurrent_memory memory = memory_place(p, &layout);
    for (int64_t head = 0; head < (int64_t)p->B * p->Hkv; head++) {
        SR_TRY(
            sr_device_copy_out(device, plain, memory.numbers + head * memory.head, head_bytes(p)));
        plain += head_bytes(p);
        if (reference_bytes(p) > 0)
            SR_TRY(sr_device_copy_out(device, plain, memory.reference + head, sizeof(double)));
        plain += reference_bytes(p);
    }
    return SRNN_OK;
}

static srnn_status from_plain(const sr_state_memory *state, const char *plain) {
    const srnn_problem *p = &state->plan->problem;
    srnn_device *device = state->plan->device;
    sr_layout layout = {state->memory, 0};
    const recurrent_memory memory = memory_place(p, &layout);
    for (int64_t head = 0; head < (int64_t)p->B * p->Hkv; head++) {
        SR_TRY(
            sr_device_copy_in(device, memory.numbers + head * memory.head, plain, head_bytes(p)));
        plain += head_bytes(p);
        if (reference_bytes(p) > 0)
            SR_TRY(sr_device_copy_in(device, memory.reference + head, plain, sizeof(double)));
        plain += reference_bytes(p);
    }
    return srnn_device_wait(device); /* the caller may free the plain numbers */
}

const sr_state_kernel sr_cuda_state_recurrent_f32 = {
    SRNN_F32,
    true,
    SR_CUDA_RECURRENT_STATE,
    memory_bytes,
    scratch_bytes<float>,
    feed<float>,
    plain_bytes,
    to_plain,
    from_plain,
    nullptr,
    nullptr,
};
const sr_state_kernel sr_cuda_state_recurrent_bf16 = {
    SRNN_BF16,
    true,
    SR_CUDA_RECURRENT_STATE,
    memory_bytes,
    scratch_bytes<sr_bf16>,
    feed<sr_bf16>,
    plain_bytes,
    to_plain,
    from_plain,
    nullptr,
    nullptr,
};
