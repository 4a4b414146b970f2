/* segments.cu: heads cut into segments that are walked in parallel: the states between them. */
#include "attention/cuda/linear/linear.h"

#include "device/cuda/check.h"
#include "device/cuda/launch.h"

enum { WARPS = SR_CHUNK_ROWS, THREADS = WARPS * SR_WARP };

sr_chunk_segments sr_chunked_segments(int heads, int group, int T, int blocks) {
    const int shortest = 2; /* chunks of a segment */
    const int chunks = (T + SR_CHUNK - 1) / SR_CHUNK;
    const int together = blocks > group ? blocks / group : 1; /* heads that are walked at a time */
    const int left = heads % together;
    int most = left > 0 ? together / left : 1;
    if (most > chunks / shortest)
        most = chunks / shortest;
    if (most <= 1)
        return {heads, group, chunks, heads, 1, chunks, nullptr, false};
    const int each = (chunks + most - 1) / most;
    return {heads, group, chunks, heads - left, (chunks + each - 1) / each, each, nullptr, false};
}

size_t sr_chunked_states(const srnn_problem *p, int group, int blocks) {
    const sr_chunk_segments segments = sr_chunked_segments(p->B * p->Hkv, group, p->T, blocks);
    return (size_t)(segments.heads - segments.whole) * (size_t)segments.count;
}

struct states_memory {
    alignas(16) sr_bf16 keys[2][SR_CHUNK_NUMBERS];
    sr_bf16 values[2][SR_CHUNK_NUMBERS];
    float factor[SR_CHUNK];
};

/* What each segment but the last adds to the state. A block of 4 warps owns one segment of one KV
 * head: cp.async copies K and V chunks, global -> shared, in two stages (the next chunk's copy
 * starts after the barrier that publishes this one); features in place; factors of the tokens
 * (decay, documents) in shared memory, barrier; each warp adds V' K to its 16 value columns of S^T
 * in registers by mma. At the end the block stores its state to the workspace, for scan_states or
 * the walk itself. */
template <bool DECAYS>
__global__ void __launch_bounds__(THREADS, 4)
    key_states(const __grid_constant__ sr_attention_view<sr_bf16> call,
               const sr_mma_alignment aligned, const sr_chunk_segments segments) {
    using Tiles = sr_chunk_tiles<THREADS>;
    SR_SHARED(states_memory, shared);
    let_next_start();
    const int head_number = segments.whole + (int)blockIdx.x / (segments.count - 1);
    const int segment = (int)blockIdx.x % (segments.count - 1), start = segment * segments.each;
    const int b = head_number / call.Hkv, kv = head_number % call.Hkv;
    const int past = call.T, tid = (int)threadIdx.x;
    const sr_chunk_head<DECAYS> head = chunk_head<DECAYS>(call, b, kv);
    const Tiles k = {head_rows(call.k, b, kv, call.D, aligned.k)};
    const Tiles v = {head_rows(call.v, b, kv, call.Dv, aligned.v)};
    const auto load = [&](int chunk) {
        k.load(shared->keys[chunk % 2], chunk * SR_CHUNK, past);
        v.load(shared->values[chunk % 2], chunk * SR_CHUNK, past);
        cp_async_commit();
    };
    sr_chunk_state<WARPS> state(warp_number());

    load(start);
    for (int chunk = start; chunk < start + segments.each; chunk++) {
        const int t0 = chunk * SR_CHUNK, last = t0 + SR_CHUNK - 1, begins = head.first[last];
        const bool differ = DECAYS || begins > t0;
        cp_async_wait<0>();
        k.features(shared->keys[chunk % 2], key_map(call, b), t0, past);
        __syncthreads(); /* tiles are ready, and no warp reads the previous ones */
        if (chunk + 1 < start + segments.each)
            load(chunk + 1);
        if (differ && tid < SR_CHUNK)
            shared->factor[tid] = head.until(last, t0 + tid);
        __syncthreads(); /* factors are ready */
        const float *const factor = differ ? shared->factor : nullptr;
        if (begins > t0) {
            Tiles::clear(shared->keys[chunk % 2], factor);
            Tiles::clear(shared->values[chunk % 2], factor);
            __syncthreads(); /* tokens that do not count are zero */
        }
        if (DECAYS || begins >= t0)
            state.multiply(head.across(t0, last, begins));
        state.add(shared->keys[chunk % 2], shared->values[chunk % 2], call.choices.sums_rows,
                  {factor, factor});
    }
    state.put(segments.state(head_number, segment + 1));
}

/* Exclusive scan over segments, in place in the workspace: turns what each segment adds into the
 * state before it. A thread owns one number of the state of one cut head and walks its segments in
 * order (from the end for the backward pass), 8 loads at a time, global -> registers -> global:
 * state = decay state + added. No barriers: threads are independent. */
template <bool DECAYS>
__global__ void scan_states(const __grid_constant__ sr_attention_view<sr_bf16> call,
                            const sr_chunk_segments segments, bool from_end) {
    constexpr int TOGETHER = 8;
    let_next_start();
    const int head_number = segments.whole + (int)blockIdx.x;
    const int at = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const sr_chunk_head<DECAYS> head =
        chunk_head<DECAYS>(call, head_number / call.Hkv, head_number % call.Hkv);
    const auto segment_of = [&](int n) { return from_end ? segments.count - 1 - n : n; };
    float before = 0;
    for (int begin = 1; begin < segments.count; begin += TOGETHER) {
        float adds[TOGETHER], factor[TOGETHER];
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            const int n = min(begin + m, segments.count - 1);
            adds[m] = segments.state(head_number, segment_of(n))[at];
            factor[m] = factor_across(head, segments, segment_of(n - 1), from_end);
        }
#pragma unroll
        for (int m = 0; m < TOGETHER; m++) {
            if (begin + m >= segments.count)
                break;
            before = counted(before, factor[m]) + adds[m];
            segments.state(head_number, segment_of(begin + m))[at] = before;
        }
    }
}

srnn_status sr_chunked_scan(const sr_attention_view<sr_bf16> &call,
                            const sr_chunk_segments &segments, bool from_end, cudaStream_t stream) {
    if (segments.count == 2 || segments.apart)
        return SRNN_OK; /* one state is its own sum; or the walk sums them */
    const dim3 grid((unsigned)(segments.heads - segments.whole), SR_STATE_NUMBERS / THREADS),
        block(THREADS);
    SR_CUDA(sr_launch(call.choices.decays ? scan_states<true> : scan_states<false>, grid, block, 0,
                      stream, call, segments, from_end));
    return SRNN_OK;
}

srnn_status sr_chunked_key_states(const sr_attention_view<sr_bf16> &call,
                                  const sr_mma_alignment &aligned,
                                  const sr_chunk_segments &segments, cudaStream_t stream) {
    const dim3 grid((unsigned)((segments.heads - segments.whole) * (segments.count - 1)));
    SR_CUDA(sr_launch(call.choices.decays ? key_states<true> : key_states<false>, grid,
                      dim3(THREADS), sizeof(states_memory), stream, call, aligned, segments));
    return sr_chunked_scan(call, segments, false, stream);
}
