/* hopper.h (private): chunked linear attention with Hopper's warpgroup GEMMs (wgmma) and TMA.
 *
 * The walks are those of linear/linear.h, for heads of 64 numbers and weights that do not decay. A
 * block is one warpgroup and walks the chunks of a head. Tiles are copied by TMA, one mbarrier for
 * all of a chunk; features are computed in place; every GEMM is one of 64 x 64 x 64, by all four
 * warps together. The state stays in registers as float sums, and in shared memory in bf16, as it
 * was before the chunk. The other resident blocks of the multiprocessor hide the latency of one. */
#ifndef SR_ATTENTION_CUDA_LINEAR_HOPPER_H
#define SR_ATTENTION_CUDA_LINEAR_HOPPER_H

#include "attention/cuda/hopper/hopper.h"
#include "attention/cuda/linear/linear.h"
#include "device/cuda/hopper.h"
#include "device/cuda/launch.h"

enum { CHUNK_THREADS = 128, CHUNK_TILE_BYTES = SR_CHUNK_NUMBERS * (int)sizeof(sr_bf16) };

/* Resident blocks of the walks per multiprocessor; forward for plain rows and for others. */
enum {
    HOPPER_PLAIN_BLOCKS = 5,
    HOPPER_FORWARD_BLOCKS = 4,
    HOPPER_QUERY_BLOCKS = 4,
    HOPPER_KEY_BLOCKS = 4
};

/* Up to this many segments of a head are summed where their states are read, without a scan. */
enum { HOPPER_SEGMENTS_APART = 8 };

/* The segments of a walk of which a multiprocessor has `blocks` resident blocks. */
static inline sr_chunk_segments hopper_chunked_segments(const sr_attention_view<sr_bf16> &call,
                                                        int group, int blocks,
                                                        const sr_chunk_workspace &workspace) {
    sr_chunk_segments segments =
        sr_chunked_segments(call.B * call.Hkv, group, call.T, blocks * workspace.multiprocessors);
    segments.states = workspace.states;
    segments.apart = segments.count <= HOPPER_SEGMENTS_APART;
    return segments;
}

/* Whether their shared memory fits; each block takes 1 KiB more. */
SR_BOTH constexpr bool chunk_blocks_fit(size_t bytes, int blocks) {
    return (bytes + 1024) * (size_t)blocks <= 228 * 1024;
}

struct chunk_task {
    CUtensorMap q, k, v, d; /* d: gradients of numerators, backward */
    sr_attention_view<sr_bf16> call;
    sr_mma_alignment aligned;
    sr_chunk_segments segments;
};

srnn_status hopper_chunked_forward(const sr_attention_view<sr_bf16> &call,
                                   const sr_mma_alignment &aligned,
                                   const sr_chunk_workspace &workspace, cudaStream_t stream);

srnn_status hopper_chunked_backward_queries(const sr_attention_view<sr_bf16> &call,
                                            const sr_mma_alignment &aligned,
                                            const sr_chunk_workspace &workspace,
                                            cudaStream_t stream);
/* For call.group == 1: each head of queries has its own keys. */
srnn_status hopper_chunked_backward_keys(const sr_attention_view<sr_bf16> &call,
                                         const sr_mma_alignment &aligned,
                                         const sr_chunk_workspace &workspace, cudaStream_t stream);

/* The tensor map of a head's chunks. */
static inline cudaError_t chunk_map_encode(CUtensorMap *map, const sr_strided<const sr_bf16> &from,
                                           const sr_attention_view<sr_bf16> &call, int heads) {
    const uint64_t number = sizeof(sr_bf16);
    const sr_tensor_shape shape = {4,
                                   {SR_CHUNK, (uint64_t)call.T, (uint64_t)heads, (uint64_t)call.B},
                                   {(uint64_t)from.time * number, (uint64_t)from.head * number,
                                    (uint64_t)from.batch * number},
                                   {SR_CHUNK, SR_CHUNK, 1, 1}};
    return sr_tensor_map_encode(map, from.data, &shape);
}

static inline cudaError_t chunk_task_make(chunk_task *task, const sr_attention_view<sr_bf16> &call,
                                          const sr_mma_alignment &aligned,
                                          const sr_chunk_segments &segments) {
    *task = {};
    task->call = call;
    task->aligned = aligned;
    task->segments = segments;
    cudaError_t error = chunk_map_encode(&task->q, call.q, call, call.H);
    if (error == cudaSuccess)
        error = chunk_map_encode(&task->k, call.k, call, call.Hkv);
    if (error == cudaSuccess)
        error = chunk_map_encode(&task->v, call.v, call, call.Hkv);
    if (error == cudaSuccess && call.d_numerator.data)
        error = chunk_map_encode(&task->d, call.d_numerator, call, call.H);
    return error;
}

/* Launches a walk; by programmatic dependent launch if kernels before it compute the states of its
 * segments. Those start when everything before them is over, and read nothing that a walk writes:
 * heads that are not cut are walked concurrently with them, and the blocks of segments call
 * wait_for_previous before they read a state. */
static inline cudaError_t chunk_walk_start(void (*walk)(const chunk_task), const chunk_task &task,
                                           size_t shared_bytes, cudaStream_t stream) {
    return sr_launch_early(task.segments.count > 1, walk, dim3((unsigned)task.segments.blocks()),
                           dim3(CHUNK_THREADS), shared_bytes, stream, task);
}

/* ---- tiles ---- */

/* Features of all rows of a tile, of which a thread has pieces; `scale` as in sr_chunk_tiles. */
using chunk_tiles = sr_chunk_tiles<CHUNK_THREADS>;
SR_DEVICE chunk_tiles chunk_pieces() {
    return {{nullptr, 0, SR_CHUNK, true}};
}

/* Zeroes rows of a tile that are not `kept`: see sr_chunk_tiles::clear. By all threads, between
 * barriers. */
template <class Kept> SR_DEVICE void clear_rows(sr_bf16 *tile, const Kept &kept) {
#pragma unroll 1
    for (int n = 0; n < chunk_tiles::pieces; n++) {
        const int at = n * chunk_tiles::apart;
        if (!kept(chunk_tiles::row() + at))
            store_vector(chunk_tiles::place(tile) + at * SR_CHUNK, sr_vector<sr_bf16>{});
    }
}

/* The first row of this warp, and this thread's first row and column of 64 x 64 accumulators, in
 * the layout of device/cuda/hopper.h. */
SR_DEVICE int warp_row() {
    return thread_again() / SR_WARP * 16;
}
SR_DEVICE int sums_row() {
    return warp_row() + thread_again() % SR_WARP / 4;
}
SR_DEVICE int sums_column() {
    return 2 * (thread_again() % 4);
}

/* The mbarrier for the TMA copies of a chunk, the first of which is `chunk`: the parity of a phase
 * is that of its chunk. By one thread, before a barrier of the block. */
SR_DEVICE void chunk_barrier_init(uint64_t *full, int chunk) {
    mbarrier_init(full, 1);
    mbarrier_init_fence();
    if (chunk % 2 != 0)
        mbarrier_arrive(full);
}

/* ---- GEMMs ---- */

typedef float chunk_sums[SR_CHUNK / 8][4]; /* a thread's share of 64 x 64 numbers */
SR_DEVICE float (&flat(chunk_sums &c))[SR_CHUNK / 2] {
    return reinterpret_cast<float(&)[SR_CHUNK / 2]>(c);
}

/* How an operand's tile is contiguous: along the dimension that is summed over, or across it; and
 * bytes to the next 16 of the sum. */
enum contiguous { ALONG = 0, ACROSS = 1 };
SR_BOTH constexpr int next_sixteen(contiguous how) {
    return how == ALONG ? 32 : 16 * SR_CHUNK * (int)sizeof(sr_bf16);
}

/* wgmma: d (64 x N) = A B, or d += where `add`, summed over 64. */
template <int N, contiguous A, contiguous B>
SR_DEVICE void multiply_tiles(float (&d)[N / 2], const sr_bf16 *a, const sr_bf16 *b, bool add) {
    const uint64_t left = wgmma_descriptor(a), right = wgmma_descriptor(b);
#pragma unroll
    for (int c = 0; c < SR_CHUNK / 16; c++)
        wgmma_shared<N, A, B>(d, wgmma_descriptor_further(left, c * next_sixteen(A)),
                              wgmma_descriptor_further(right, c * next_sixteen(B)), add || c > 0);
}

/* The same with A in registers, two numbers in each; B is contiguous across. */
SR_DEVICE void multiply_packed(chunk_sums &d, const uint32_t (&a)[SR_CHUNK / 4], const sr_bf16 *b) {
    const uint64_t right = wgmma_descriptor(b);
#pragma unroll
    for (int c = 0; c < SR_CHUNK / 16; c++)
        wgmma_registers<SR_CHUNK, ACROSS>(flat(d), a + 4 * c,
                                          wgmma_descriptor_further(right, c * next_sixteen(ACROSS)),
                                          1);
}

SR_DEVICE void pack_sums(uint32_t (&a)[SR_CHUNK / 4], const chunk_sums &w) {
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 8; n++) {
        a[2 * n] = pack_bf16(w[n][0], w[n][1]);
        a[2 * n + 1] = pack_bf16(w[n][2], w[n][3]);
    }
}

/* Issues GEMMs and waits for them; their accumulators need wgmma_settle. */
template <class Start> SR_DEVICE void products(const Start &start) {
    wgmma_fence();
    start();
    wgmma_commit();
    wgmma_wait<0>();
}

/* ---- masks ---- */

/* Weight 0 for keys (columns) after their query (row), and for keys before the query's document,
 * where one begins inside. */
SR_DEVICE void hide_keys_of_chunk(chunk_sums &w, const sr_chunk_head<false> &head, int t0,
                                  bool documents) {
    const int apart = sums_row() - sums_column();
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = 8 * n + e % 2 - e / 2 * 8 > apart ? 0 : w[n][e];
    if (!documents)
        return;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int first = head.first[min(t0 + sums_row() + 8 * half, head.T - 1)];
        const int before = first - t0 - sums_column();
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] = e / 2 == half && 8 * n + e % 2 < before ? 0 : w[n][e];
    }
}

/* Past the last query of the chunk that sees key t0 + row; there is at least one. `first` never
 * falls. */
SR_DEVICE int seen_until(const sr_chunk_head<false> &head, int t0, int row) {
    int sees = row, past = SR_CHUNK;
#pragma unroll 1
    while (past - sees > 1) {
        const int middle = (sees + past) / 2;
        if (head.first[min(t0 + middle, head.T - 1)] <= t0 + row)
            sees = middle;
        else
            past = middle;
    }
    return past;
}

/* The same for queries (columns) before their key (row), and for queries whose documents begin
 * after it. */
SR_DEVICE void hide_queries_of_chunk(chunk_sums &w, const sr_chunk_head<false> &head, int t0,
                                     bool documents) {
    const int apart = sums_row() - sums_column();
#pragma unroll
    for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = 8 * n + e % 2 - e / 2 * 8 < apart ? 0 : w[n][e];
    if (!documents)
        return;
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const int past = seen_until(head, t0, sums_row() + 8 * half) - sums_column();
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                w[n][e] = e / 2 == half && 8 * n + e % 2 >= past ? 0 : w[n][e];
    }
}

/* ---- the recurrent state ---- */

/* z = sum_j k_j, as GEMMs of 64 x 8 whose pairs of columns add up to it: a thread has two of its
 * numbers. They are kept in shared memory, since registers are scarce. */
struct chunk_ones {
    float z[2][CHUNK_THREADS];

    SR_DEVICE void get(float (&to)[4]) const {
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[e] = e % 2 == 0 ? sum(e / 2) : 0;
    }
    SR_DEVICE void put(const float (&from)[4]) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            z[half][threadIdx.x] = from[2 * half] + from[2 * half + 1];
    }
    SR_DEVICE float sum(int half) const {
        return z[half][threadIdx.x];
    }
};

/* S^T (values x keys), and z in shared memory. */
struct chunk_state {
    chunk_sums s;
    chunk_ones &ones;

    SR_DEVICE explicit chunk_state(chunk_ones &place) : ones(place) {
        clear();
    }

    SR_DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 2; n++)
            flat(s)[n] = 0;
        wgmma_settle(flat(s)); /* zero before the wgmma fence, not after it */
        ones.put({0, 0, 0, 0});
    }

    /* Loads the state before `segment` of head `number`, in a walk forwards or from the end: one of
     * segments.states, or the sum of some, in the order of sr_chunked_scan. The state is zero
     * before. */
    template <int WARPS>
    SR_DEVICE void get(const sr_chunk_segments &segments, const sr_chunk_head<false> &head,
                       int number, int segment, bool from_end) {
        wait_for_previous();
        const auto walked = [&](int n) { return from_end ? segments.count - 1 - n : n; };
        const int last = walked(segment);
#pragma unroll 1
        for (int n = segments.apart ? 1 : last; n <= last; n++) {
            if (factor_across(head, segments, walked(n - 1), from_end) == 0)
                clear();
            add<WARPS>(segments.state(number, walked(n)));
        }
    }

    /* Adds a state in the layout of sr_chunk_state<WARPS>. */
    template <int WARPS> SR_DEVICE void add(const float *numbers) {
        constexpr int P = sr_chunk_state<WARPS>::P, THREADS = WARPS * SR_WARP;
        const int thread = (int)threadIdx.x;
        float z[4] = {};
#pragma unroll
        for (int n = 0; n < SR_CHUNK / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] += numbers[(4 * (n % P) + e) * THREADS + n / P * CHUNK_THREADS + thread];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int key = sums_row() + 8 * half, e = key % 16 / 8 * 2 + key % 2;
            z[2 * half] =
                ones.sum(half) + numbers[(4 * P + e) * THREADS + key / 16 * SR_WARP + key % 8 / 2];
        }
        ones.put(z);
    }

    /* S^T += V' K of a chunk, together with the GEMMs of `more`; the pairs of rows of `counts` are
     * the weights of the keys in z. */
    template <class More>
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, const sr_bf16 *counts,
                       const More &more) {
        float z[4];
        ones.get(z);
        wgmma_settle(z); /* as above */
        products([&] {
            multiply_tiles<8, ACROSS, ALONG>(z, keys, counts, true);
            multiply_tiles<SR_CHUNK, ACROSS, ACROSS>(flat(s), values, keys, true);
            more();
        });
        wgmma_settle(flat(s));
        wgmma_settle(z);
        ones.put(z);
    }
    SR_DEVICE void add(const sr_bf16 *keys, const sr_bf16 *values, const sr_bf16 *counts) {
        add(keys, values, counts, [] {});
    }

    /* Publishes the state in bf16: `tile` (values, keys) = S^T. */
    SR_DEVICE void publish(sr_bf16 *tile) const {
        pieces_to_tile<SR_CHUNK>(tile + warp_row() * SR_CHUNK, s);
    }
};

/* Stores a number to the rows 2 i and 2 i + 1 of column `column` of a tile of 8 rows: its bf16
 * value, and the rounding error. */
SR_DEVICE void pair_store(sr_bf16 *tile, int column, int i, float x) {
    const sr_bf16 high = to_bf16(x), low = to_bf16(x - to_float(high));
    tile[sr_tile<SR_CHUNK>::offset(2 * i, column / 8) + column % 8] = high;
    tile[sr_tile<SR_CHUNK>::offset(2 * i + 1, column / 8) + column % 8] = low;
}

/* Column `threadIdx.x` % 64 of a tile of 8 rows = pairs of x. By all threads. */
SR_DEVICE void pair_column(sr_bf16 *tile, float x) {
    const int column = (int)threadIdx.x % SR_CHUNK, i = (int)threadIdx.x / SR_CHUNK;
    pair_store(tile, column, 2 * i, x);
    pair_store(tile, column, 2 * i + 1, x);
}

#endif
