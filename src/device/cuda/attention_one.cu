/* attention_one.cu: one more token for a state that keeps keys and values: appended, attended to, and counted, in one kernel.
 *
 * A block has a query head and a share of the keys. Lanes take eight numbers of a key each, so that a warp has several
 * keys at a time and 16 bytes a lane; each group of lanes adds up what its keys give, then the groups of a warp, the warps
 * of the block and, where the keys are shared, the blocks: the last of a row to be done, which finds the others' sums in
 * memory. All in a fixed order. */
#include "device/cuda/attention_states.h"

#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"

enum {
    WARPS = 8,
    THREADS = WARPS * SR_WARP,
    TOGETHER = 2,       /* keys that a group of lanes loads at a time */
    BLOCKS_WANTED = 132 /* in all: one on each multiprocessor of a large GPU */
};

/* What some of the keys give: weights relative to 2^maximum. */
template <int COUNT> struct key_sums { float maximum, sum, x[COUNT]; };

template <int COUNT> SR_DEVICE void sums_start(key_sums<COUNT> &sums, const sr_score_rule &rule) {
    sums = {};
    sums.maximum = rule.maximum ? -INFINITY : 0;
}

template <int COUNT> SR_DEVICE void sums_scale(key_sums<COUNT> &sums, float factor) {
    sums.sum *= factor;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] *= factor;
}

/* Adds one key and its value. */
template <int COUNT>
SR_DEVICE void sums_take(key_sums<COUNT> &sums, const sr_score_rule &rule, float dot, float decay,
                         const float (&value)[COUNT]) {
    const sr_signed_log s = weight_before(rule, dot, decay);
    float weight = s.log2;
    if (rule.kind != SR_CLASS_POLYNOMIAL) {
        const float unit = unit_of(rule);
        if (rule.maximum && s.log2 > sums.maximum) {
            sums_scale(sums, exp2f((sums.maximum - s.log2) * unit));
            sums.maximum = s.log2;
        }
        const float shift = sums.maximum == -INFINITY ? 0 : sums.maximum;
        weight = exp2f((s.log2 - shift) * unit);
        weight = s.negative ? -weight : weight;
    }
    sums.sum += weight;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] = fmaf(weight, value[m], sums.x[m]);
}

/* Adds what other keys give. */
template <int COUNT>
SR_DEVICE void sums_add(key_sums<COUNT> &sums, const key_sums<COUNT> &other, float unit) {
    const float maximum = fmaxf(sums.maximum, other.maximum);
    const float factor = other.maximum == maximum ? 1 : exp2f((other.maximum - maximum) * unit);
    if (sums.maximum != maximum)
        sums_scale(sums, exp2f((sums.maximum - maximum) * unit));
    sums.maximum = maximum;
    sums.sum = fmaf(factor, other.sum, sums.sum);
#pragma unroll
    for (int m = 0; m < COUNT; m++)
        sums.x[m] = fmaf(factor, other.x[m], sums.x[m]);
}

/* Over the groups of the warp; right in the first. */
template <class Row> SR_DEVICE void warp_sums(key_sums<Row::count> &sums, float unit) {
    for (int mask = SR_WARP / 2; mask >= Row::lanes; mask /= 2) {
        key_sums<Row::count> other;
        other.maximum = shuffle_xor(sums.maximum, mask);
        other.sum = shuffle_xor(sums.sum, mask);
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            other.x[m] = shuffle_xor(sums.x[m], mask);
        sums_add(sums, other, unit);
    }
}

template <int WIDTH> struct one_memory {
    float x[WARPS][WIDTH], sum[WARPS], maximum[WARPS];
    bool last;
};

/* The head that a block has, and its share of the keys. */
struct one_place {
    int b, h, kv;
    int64_t row, position,
        cache; /* of (B, H); of the new token; where the kv head's tokens begin */
};

/* What the keys number first, first + step, ... give, as they stand in memory; the last one is the new token itself. */
template <class N, int WIDTH>
SR_DEVICE void attend_keys(key_sums<8> &sums, const sr_attention_view<N> &call,
                           const sr_kept_memory<N> &memory, const one_place &at, int64_t first,
                           int64_t step) {
    using Row = sr_eight_row<WIDTH>;
    float q[8];
    row_load<Row>(q, call.q.at(at.b, at.h, 0), call.D);
    for (int64_t from = first; from <= at.position; from += step) {
        float k[TOGETHER][8], v[TOGETHER][8];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t key = min(from + i * Row::rows + Row::row(), at.position);
            const bool is_new = key == at.position;
            row_load<Row>(
                k[i], is_new ? call.k.at(at.b, at.kv, 0) : memory.keys + (at.cache + key) * call.D,
                call.D);
            row_load<Row>(v[i],
                          is_new ? call.v.at(at.b, at.kv, 0)
                                 : memory.values + (at.cache + key) * call.Dv,
                          call.Dv);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int64_t key = from + i * Row::rows + Row::row();
            const float dot = row_dot<Row>(q, k[i]);
            float decay = 0;
            if (memory.decay && key < at.position)
                decay = (float)((call.scratch.decay[call.row_index(call.Hkv, at.b, at.kv, 0)] -
                                 memory.decay[at.cache + key]) *
                                (double)call.score.decay_unit);
            if (key <= at.position)
                sums_take(sums, call.score, dot, decay, v[i]);
        }
    }
}

/* Puts the new token behind the others; nobody reads it there in this kernel. */
template <class N, int WIDTH>
SR_DEVICE void append_one(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                          const one_place &at) {
    const int64_t to = at.cache + at.position;
    for (int c = (int)threadIdx.x; c < call.D; c += THREADS)
        memory.keys[to * call.D + c] = call.k.at(at.b, at.kv, 0)[c];
    for (int c = (int)threadIdx.x; c < call.Dv; c += THREADS)
        memory.values[to * call.Dv + c] = call.v.at(at.b, at.kv, 0)[c];
    if (threadIdx.x == 0 && memory.decay)
        memory.decay[to] = call.scratch.decay[call.row_index(call.Hkv, at.b, at.kv, 0)];
}

/* One warp: the row's output from the sums of all its keys. */
template <class N, int WIDTH>
SR_DEVICE void output_one(const sr_attention_view<N> &call, const one_place &at,
                          key_sums<sr_warp_row<WIDTH>::count> &sums) {
    using Row = sr_warp_row<WIDTH>;
    const float unit = unit_of(call.score);
    const float saved = sums.maximum == -INFINITY ? 0 : sums.maximum * unit * SR_LN_2;
    row_output<Row>(sums.x, call, row_facts(call, at.b, at.h, 0, sums.sum, saved));
    row_store<Row>(call.o.at(at.b, at.h, 0), sums.x, call.Dv);
}

/* What another block of the kernel has written: not from the first cache. */
SR_DEVICE float load_shared_by_blocks(const float *from) {
    return *(const volatile float *)from;
}

/* One warp: leaves this block's sums for the last block of the row, which gets those of all of them; true for it. */
template <class N, int WIDTH>
SR_DEVICE bool share_sums(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                          const sr_partials &partials, const one_place &at, int shares,
                          key_sums<sr_warp_row<WIDTH>::count> &sums) {
    using Row = sr_warp_row<WIDTH>;
    const int64_t first = at.row * partials.parts, own = first + blockIdx.y;
    const int lane = (int)threadIdx.x % SR_WARP;
    const float unit = unit_of(call.score);
    row_store<Row>(partials.x + own * call.Dv, sums.x, call.Dv);
    if (lane == 0) {
        partials.sum[own] = sums.sum;
        partials.maximum[own] = sums.maximum;
    }
    __threadfence();
    __syncwarp();
    int before = 0;
    if (lane == 0)
        before = atomicAdd(memory.arrived + at.row, 1);
    if (shuffle(before, 0) != shares - 1)
        return false;
    __threadfence();
    sums_start(sums, call.score);
    for (int part = 0; part < shares; part++) {
        key_sums<Row::count> some;
        some.maximum = load_shared_by_blocks(partials.maximum + first + part);
        some.sum = load_shared_by_blocks(partials.sum + first + part);
#pragma unroll
        for (int m = 0; m < Row::count; m++)
            some.x[m] =
                Row::column(m) < call.Dv
                    ? load_shared_by_blocks(partials.x + (first + part) * call.Dv + Row::column(m))
                    : 0;
        sums_add(sums, some, unit);
    }
    if (lane == 0)
        memory.arrived[at.row] = 0;
    return true;
}

/* Block (x, y): query head x of all, share y of its keys. */
template <class N, int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    attend_one(const __grid_constant__ sr_attention_view<N> call, const sr_kept_memory<N> memory,
               const sr_partials partials) {
    using Row = sr_eight_row<WIDTH>;
    using Whole = sr_warp_row<WIDTH>;
    __shared__ one_memory<WIDTH> shared;
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    constexpr int each = Row::rows * TOGETHER, keys = WARPS * each; /* of a warp, of a block */
    const float unit = unit_of(call.score);
    one_place at = {};
    at.row = blockIdx.x;
    at.b = (int)blockIdx.x / call.H;
    at.h = (int)blockIdx.x % call.H;
    at.kv = at.h / call.group;
    at.cache = ((int64_t)at.b * call.Hkv + at.kv) * memory.capacity;
    let_next_start();
    wait_for_previous();
    at.position = call.position();
    /* As many blocks share the keys as have some in the first round. */
    const int shares = (int)min((int64_t)gridDim.y, at.position / keys + 1);
    const bool busy = (int)blockIdx.y < shares;
    if (busy) {
        key_sums<8> sums;
        sums_start(sums, call.score);
        attend_keys<N, WIDTH>(sums, call, memory, at, (int64_t)blockIdx.y * keys + warp * each,
                              (int64_t)shares * keys);
        warp_sums<Row>(sums, unit);
        if (Row::row() == 0) {
#pragma unroll
            for (int m = 0; m < 8; m++)
                shared.x[warp][Row::column(m)] = sums.x[m];
            shared.sum[warp] = sums.sum;
            shared.maximum[warp] = sums.maximum;
        }
        if (blockIdx.y == 0 && at.h % call.group == 0)
            append_one<N, WIDTH>(call, memory, at);
    }
    __syncthreads();
    if (warp != 0)
        return;
    if (busy) {
        key_sums<Whole::count> all;
        sums_start(all, call.score);
        for (int part = 0; part < WARPS; part++) {
            key_sums<Whole::count> some;
            some.maximum = shared.maximum[part];
            some.sum = shared.sum[part];
#pragma unroll
            for (int m = 0; m < Whole::count; m++)
                some.x[m] = shared.x[part][Whole::column(m)];
            sums_add(all, some, unit);
        }
        if (shares == 1 || share_sums<N, WIDTH>(call, memory, partials, at, shares, all))
            output_one<N, WIDTH>(call, at, all);
    }
    /* The position moves on when every block, and every lane of this one, has read it. */
    __syncwarp();
    if (lane == 0) {
        int *const done = memory.arrived + call.B * call.H;
        if (atomicAdd(done, 1) == (int)(gridDim.x * gridDim.y) - 1) {
            *done = 0;
            *call.carry.position = at.position + 1;
        }
    }
}

template <class N, int WIDTH>
static srnn_status start(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                         const sr_partials &partials, const srnn_device *device) {
    const bool early = sr_cuda_facts(device)->capability_major >= 9;
    SR_CUDA(sr_launch_early(early, attend_one<N, WIDTH>,
                            dim3((unsigned)(call.B * call.H), (unsigned)partials.parts),
                            dim3(THREADS), 0, sr_cuda_stream(device), call, memory, partials));
    return SRNN_OK;
}

template <class N>
srnn_status sr_attend_one(const sr_attention_view<N> &call, const sr_kept_memory<N> &memory,
                          sr_partials partials, const srnn_device *device) {
    const int width = max(call.D, call.Dv), wanted = BLOCKS_WANTED / (call.B * call.H);
    partials.parts = min(max(wanted, 1), (int)SR_ONE_PARTS);
    if (width <= 64)
        return start<N, 64>(call, memory, partials, device);
    if (width <= 128)
        return start<N, 128>(call, memory, partials, device);
    return start<N, 256>(call, memory, partials, device);
}

template srnn_status sr_attend_one(const sr_attention_view<float> &, const sr_kept_memory<float> &,
                                   sr_partials, const srnn_device *);
template srnn_status sr_attend_one(const sr_attention_view<sr_bf16> &,
                                   const sr_kept_memory<sr_bf16> &, sr_partials,
                                   const srnn_device *);
