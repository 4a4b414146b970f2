/* one_token.cu: decode of one token with a KV cache: RoPE, append, attention and position, in one
 * kernel.
 *
 * A block owns a query head and a share of the keys (split-K). Where the keys are shared, the last
 * block of a row to finish reads the others' sums from memory and combines them in a fixed
 * order. */
#include "attention/cuda/decode/one_token.h"

#include "attention/cuda/shared/rope.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"

enum {
    BLOCKS_WANTED = 132, /* in all: one per multiprocessor of a large GPU */
    WARPS_FEW_ROWS = 8,  /* of a block: a row finishes sooner with more warps, */
    WARPS_MANY_ROWS = 2, /* and all rows finish sooner with more blocks in flight */
    MANY_ROWS = 3 * BLOCKS_WANTED
};

/* Loads what another block of the kernel has written: bypasses the L1 cache. */
SR_DEVICE float load_shared_by_blocks(const float *from) {
    return *(const volatile float *)from;
}

/* One warp: writes this block's sums to the workspace; the last block of the row to arrive gets the
 * sums of all of them, and true. */
template <class N, int WIDTH>
SR_DEVICE bool share_sums(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                          const sr_partials &partials, const one_place &at, int shares,
                          key_sums<sr_warp_row<WIDTH>::count> &sums) {
    using Row = sr_warp_row<WIDTH>;
    const int64_t first = (int64_t)at.row * partials.parts, own = first + blockIdx.y;
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

/* q and k of the head's token after RoPE. */
template <class N, int WIDTH> struct alignas(16) rotated_token { N q[WIDTH], k[WIDTH]; };

/* RoPE of number c of a head of D, rounded as if it had been stored. angles (D): cosines, then
 * sines. */
template <class N> SR_DEVICE N rotated_number(const N *x, const float *angles, int c, int D) {
    const int half = D / 2;
    const bool first = c < half;
    const int partner = first ? c + half : c - half, angle = first ? c : c - half;
    const float sine = angles[half + angle];
    return from_float<N>(
        rotated(to_float(x[c]), to_float(x[partner]), angles[angle], first ? -sine : sine));
}

/* By all threads of the block: applies RoPE to q and k, into shared memory, from which they are
 * read from then on. */
template <class N, int WIDTH>
SR_DEVICE void rotate_token(rotated_token<N, WIDTH> &to, one_token<N> &token, const float *angles,
                            int D) {
    for (int c = (int)threadIdx.x; c < D; c += (int)blockDim.x) {
        to.q[c] = rotated_number(token.q, angles, c, D);
        to.k[c] = rotated_number(token.k, angles, c, D);
    }
    __syncthreads();
    token.q = to.q;
    token.k = to.k;
}

/* Decode attention. Block (x, y) owns query head x and share y of its keys. Each warp loads rounds
 * of cached keys and values, global -> registers, one round ahead, and runs an online softmax; q
 * and k of the new token get RoPE through shared memory first. After one barrier, warp 0 combines
 * the warps' sums in shared memory. With several shares it writes them to the workspace, fences,
 * and increments the row's counter: the last block combines all shares in order, runs the epilogue,
 * stores the row and resets the counter. Block y = 0 of a group's first head appends the token to
 * the KV cache. The last block of all advances the position. `recorded`, in a captured graph: cache
 * and positions were written before the graph was launched, and are read before the previous kernel
 * ends. */
template <class N, int WIDTH, int WARPS, bool EXPONENTIAL>
__global__ void __launch_bounds__(WARPS *SR_WARP, WARPS == WARPS_FEW_ROWS ? 2 : 8)
    attend_one(const __grid_constant__ sr_attention_view<N> call, const sr_kv_cache<N> memory,
               const sr_partials partials, const sr_rope_angles rope, bool recorded) {
    using Whole = sr_warp_row<WIDTH>;
    __shared__ one_memory<WIDTH, WARPS> shared;
    __shared__ rotated_token<N, WIDTH> rotated_here;
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    one_feed<N, false, EXPONENTIAL> feed = {call,
                                            memory,
                                            place_of(call, memory, (int)blockIdx.x),
                                            {}};
    one_place &at = feed.at;
    feed.token = {call.q.at(at.b, at.h, 0), call.k.at(at.b, at.kv, 0), call.v.at(at.b, at.kv, 0)};
    let_next_start();
    if (!recorded)
        wait_for_previous();
    at.position = (int)call.position();
    const float *const angles =
        rope.table ? rope.table + (int64_t)rope.positions[at.b] * call.D : nullptr;
    const one_share<WIDTH, WARPS> share(at.position, (int)blockIdx.y, (int)gridDim.y);
    const bool busy = (int)blockIdx.y < share.shares;
    key_round<N> round;
    if (busy)
        fetch_round<WIDTH>(round, feed, share.walk.first);
    if (recorded)
        wait_for_previous();
    if (angles)
        rotate_token(rotated_here, feed.token, angles, call.D);
    if (busy) {
        key_sums<8> sums;
        sums_start(sums, call.score);
        attend_keys<WIDTH>(sums, round, feed, share.walk);
        leave_sums(shared, sums, unit_of(call.score));
        if (blockIdx.y == 0 && at.h % call.group == 0)
            append_one(feed, (int)threadIdx.x, WARPS * SR_WARP);
    }
    __syncthreads();
    if (warp != 0)
        return;
    if (busy) {
        key_sums<Whole::count> all;
        add_warps(all, shared, share.warps, call.score);
        if (share.shares == 1 ||
            share_sums<N, WIDTH>(call, memory, partials, at, share.shares, all)) {
            output_one<N, WIDTH>(call, at, all);
            row_store<Whole>(call.o.at(at.b, at.h, 0), all.x, call.Dv);
        }
    }
    /* The position is advanced once every block, and every lane of this one, has read it. */
    __syncwarp();
    if (lane == 0) {
        int *const done = memory.arrived + call.B * call.H;
        if (atomicAdd(done, 1) == (int)(gridDim.x * gridDim.y) - 1) {
            *done = 0;
            *call.carry.position = at.position + 1;
        }
    }
}

template <class N, int WIDTH, int WARPS, bool EXPONENTIAL>
static srnn_status start(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                         const sr_partials &partials, const sr_rope_angles &rope,
                         const srnn_device *device) {
    const bool early = sr_cuda_facts(device)->capability_major >= 9;
    SR_CUDA(sr_launch_early(early, attend_one<N, WIDTH, WARPS, EXPONENTIAL>,
                            dim3((unsigned)(call.B * call.H), (unsigned)partials.parts),
                            dim3(WARPS * SR_WARP), 0, sr_cuda_stream(device), call, memory,
                            partials, rope, sr_cuda_coalesces_graph(device)));
    return SRNN_OK;
}

template <class N, int WARPS, bool EXPONENTIAL>
static srnn_status start_width(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                               const sr_partials &partials, const sr_rope_angles &rope,
                               const srnn_device *device) {
    const int width = max(call.D, call.Dv);
    if (width <= 64)
        return start<N, 64, WARPS, EXPONENTIAL>(call, memory, partials, rope, device);
    if (width <= 128)
        return start<N, 128, WARPS, EXPONENTIAL>(call, memory, partials, rope, device);
    return start<N, 256, WARPS, EXPONENTIAL>(call, memory, partials, rope, device);
}

template <class N, int WARPS>
static srnn_status start_rule(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                              const sr_partials &partials, const sr_rope_angles &rope,
                              const srnn_device *device) {
    if (sr_is_exponential(call.score, memory))
        return start_width<N, WARPS, true>(call, memory, partials, rope, device);
    return start_width<N, WARPS, false>(call, memory, partials, rope, device);
}

template <class N>
srnn_status sr_attend_one(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                          sr_partials partials, const sr_rope_angles &rope,
                          const srnn_device *device) {
    const int rows = call.B * call.H;
    partials.parts = min(max(BLOCKS_WANTED / rows, 1), (int)SR_ONE_PARTS);
    return rows < MANY_ROWS ? start_rule<N, WARPS_FEW_ROWS>(call, memory, partials, rope, device)
                            : start_rule<N, WARPS_MANY_ROWS>(call, memory, partials, rope, device);
}

template srnn_status sr_attend_one(const sr_attention_view<float> &, const sr_kv_cache<float> &,
                                   sr_partials, const sr_rope_angles &, const srnn_device *);
template srnn_status sr_attend_one(const sr_attention_view<sr_bf16> &, const sr_kv_cache<sr_bf16> &,
                                   sr_partials, const sr_rope_angles &, const srnn_device *);
