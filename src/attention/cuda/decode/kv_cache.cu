/* kv_cache.cu: the KV cache: a state that holds all keys and values so far.
 *
 * In memory, per KV head: keys (capacity, D) with their features, values (capacity, Dv) with their
 * factors, decay (capacity): without padding, as in the plain form. A feed (prefill of several
 * tokens) appends its tokens, then each warp walks over a part of the keys for up to 4 rows that
 * read the same ones (split-K over the cache), and the parts are combined. Where the tokens are
 * written and how many there are is read from device memory, so that a captured feed can be
 * replayed. A full cache is grown by copying it to larger memory: see move_heads. */
#include "attention/cuda/decode/coalesce.h"

#include "attention/cuda/shared/computes.h"
#include "attention/cuda/shared/prologue.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "device/device.h"

enum {
    APPEND_THREADS = 256,
    PARTIALS_FEW = 4096, /* parts in all, unless there are more rows */
    PARTS_MOST = 64,     /* of a row */
};

/* Warps of a block: the shared memory per warp grows with the width. */
template <int WIDTH> struct shape {
    static constexpr int warps = 512 / WIDTH;
    static constexpr int threads = warps * SR_WARP;
    static constexpr int keys = warps * SR_TILE; /* keys per block and iteration */
};

template <class N>
static sr_kv_cache<N> memory_place(const srnn_problem *p, int64_t capacity, sr_layout *layout) {
    const size_t tokens = (size_t)p->B * (size_t)p->Hkv * (size_t)capacity;
    sr_kv_cache<N> memory = {};
    memory.keys = (N *)sr_layout_take(layout, tokens * (size_t)p->D, sizeof(N));
    memory.values = (N *)sr_layout_take(layout, tokens * (size_t)p->Dv, sizeof(N));
    if (p->attention.decay == SRNN_DECAY_LEARNED)
        memory.decay = (double *)sr_layout_take(layout, tokens, sizeof(double));
    memory.arrived = (int *)sr_layout_take(layout, (size_t)p->B * (size_t)p->H + 1, sizeof(int));
    memory.capacity = capacity;
    return memory;
}

/* ---- appending ---- */

/* Appends the call's T tokens to the KV cache. A thread owns one number of a token of one KV head
 * and copies it, global -> global, from k or v to position + t of the cache; the thread of column 0
 * also copies the token's decay. Nothing is read back in this kernel: attention over the cache is
 * launched after it on the same stream. */
template <class N>
__global__ void append_tokens(const __grid_constant__ sr_attention_view<N> call,
                              const sr_kv_cache<N> memory) {
    const int width = call.D + call.Dv;
    const int64_t n = (int64_t)blockIdx.x * APPEND_THREADS + threadIdx.x;
    if (n >= (int64_t)call.B * call.Hkv * call.T * width)
        return;
    const int column = (int)(n % width), t = (int)(n / width % call.T);
    const int head = (int)(n / width / call.T), b = head / call.Hkv, h = head % call.Hkv;
    const int64_t at = head * memory.capacity + call.position() + t;
    if (column < call.D)
        memory.keys[at * call.D + column] = call.k.at(b, h, t)[column];
    else
        memory.values[at * call.Dv + column - call.D] = call.v.at(b, h, t)[column - call.D];
    if (column == 0 && memory.decay)
        memory.decay[at] = call.scratch.decay[call.row_index(call.Hkv, b, h, t)];
}

/* ---- attention over the KV cache ---- */

template <int WIDTH> struct attend_memory {
    float q[SR_OWN][WIDTH + 1];
    sr_float_tile<WIDTH> tile[shape<WIDTH>::warps]; /* keys, then values */
    sr_pair_rows weights[shape<WIDTH>::warps];
};

/* The warp's tile = rows 0 .. count-1; zeros past them, and past their columns. */
template <int WIDTH, class N>
SR_DEVICE void warp_load(sr_float_tile<WIDTH> &tile, const N *rows, int columns, int count) {
    const int lane = (int)threadIdx.x % SR_WARP;
    __syncwarp();
    for (int row = 0; row < SR_TILE; row++)
#pragma unroll
        for (int column = lane; column < WIDTH; column += SR_WARP)
            tile.number[row][column] = row < count && column < columns
                                           ? to_float(rows[(int64_t)row * columns + column])
                                           : 0;
    __syncwarp();
}

/* Split-K attention over the KV cache. Block (x, y) owns rows 4 x' .. 4 x' + 3 of the group * T
 * rows of KV head x / sets (heads of one token together), and the y-th of the stretches into which
 * the capacity is cut. The block loads the queries, global -> shared, one barrier; then each warp
 * takes every warps-th tile of 32 keys of the stretch on its own: keys global -> its shared tile,
 * dot products (one key per lane), online softmax in registers, values into the same tile, weights
 * through shared memory, numerators in registers. Each warp writes its own partial (numerator, row
 * sum, running maximum) to the workspace; finish_rows combines them. */
template <class N, int WIDTH>
__global__ void __launch_bounds__(shape<WIDTH>::threads, 1)
    attend_kept(const __grid_constant__ sr_attention_view<N> call, const sr_kv_cache<N> memory,
                const sr_partials partials, int64_t stretch) {
    using Row = sr_warp_row<WIDTH>;
    SR_SHARED(attend_memory<WIDTH>, shared);
    const int warp = (int)threadIdx.x / SR_WARP, lane = (int)threadIdx.x % SR_WARP;
    const int rows_in_all = call.group * call.T, sets = (rows_in_all + SR_OWN - 1) / SR_OWN;
    const int head = (int)blockIdx.x / sets, b = head / call.Hkv, kv = head % call.Hkv;
    const int row0 = (int)blockIdx.x % sets * SR_OWN;
    const int64_t position = call.position();
    const int last = min(row0 + SR_OWN, rows_in_all) - 1;
    const int64_t past = min((int64_t)(blockIdx.y + 1) * stretch, position + last / call.group + 1);
    for (int n = (int)threadIdx.x; n < SR_OWN * WIDTH; n += shape<WIDTH>::threads) {
        const int row = min(row0 + n / WIDTH, last), column = n % WIDTH;
        const int h = kv * call.group + row % call.group;
        shared->q[n / WIDTH][column] =
            column < call.D ? to_float(call.q.at(b, h, row / call.group)[column]) : 0;
    }
    __syncthreads();
    sr_running<WIDTH> rows;
    running_start(rows, call.score);
    sr_float_tile<WIDTH> &tile = shared->tile[warp];
    for (int64_t key = blockIdx.y * stretch + warp * SR_TILE; key < past;
         key += shape<WIDTH>::keys) {
        const int64_t at = head * memory.capacity + key, j = key + lane;
        const int count = (int)min((int64_t)SR_TILE, past - key);
        float dot[SR_OWN], weight[SR_OWN];
        warp_load(tile, memory.keys + at * call.D, call.D, count);
        dots(dot, shared->q, tile, call.D);
#pragma unroll
        for (int r = 0; r < SR_OWN; r++) {
            const int t = min(row0 + r, last) / call.group;
            float decay = 0;
            if (memory.decay && j < past)
                decay = (float)((call.scratch.decay[call.row_index(call.Hkv, b, kv, t)] -
                                 memory.decay[at + lane]) *
                                (double)call.score.decay_unit);
            weight[r] = weigh(rows, r, call.score, j < past && j <= position + t, dot[r], decay);
        }
        warp_load(tile, memory.values + at * call.Dv, call.Dv, count);
        pairs_store(shared->weights[warp], weight);
        __syncwarp();
        add_rows(rows.x, shared->weights[warp], tile);
    }
#pragma unroll
    for (int r = 0; r < SR_OWN; r++) {
        const int row = row0 + r, h = kv * call.group + row % call.group;
        if (row > last)
            continue;
        const int64_t at = call.row_index(call.H, b, h, row / call.group) * partials.parts +
                           (int)blockIdx.y * shape<WIDTH>::warps + warp;
        row_store<Row>(partials.x + at * call.Dv, rows.x[r], call.Dv);
        const float sum = warp_sum(rows.sum[r]);
        if (lane == 0) {
            partials.sum[at] = sum;
            partials.maximum[at] = rows.maximum[r];
        }
    }
}

/* ---- a feed ---- */

/* The number of stretches into which the capacity is cut: enough to occupy the GPU, few where there
 * are many rows. */
static int stretches_of(const srnn_problem *p, int64_t capacity, int warps) {
    const int64_t rows = (int64_t)p->B * p->H * p->T, keys = (int64_t)warps * SR_TILE;
    int64_t most = PARTIALS_FEW / warps / rows;
    if (most > PARTS_MOST / warps)
        most = PARTS_MOST / warps;
    const int64_t wanted = (capacity + keys - 1) / keys;
    return (int)(most < 1 ? 1 : most < wanted ? most : wanted);
}

static int warps_of(const srnn_problem *p) {
    const int width = p->D > p->Dv ? p->D : p->Dv;
    return width <= 64 ? shape<64>::warps : width <= 128 ? shape<128>::warps : shape<256>::warps;
}

/* Parts of all rows of a feed of T tokens, or of fewer. */
static int64_t partials_most(const srnn_problem *p) {
    const int64_t least = (int64_t)p->B * p->H * p->T * warps_of(p);
    static_assert(PARTIALS_FEW % SR_ONE_PARTS == 0, "few rows of one token have room");
    return least > PARTIALS_FEW ? least : (int64_t)PARTIALS_FEW;
}

template <class N> static size_t scratch_bytes(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_attention_scratch_place<N>(plan, &layout);
    sr_partials_place(&plan->problem, partials_most(&plan->problem), &layout);
    return layout.used;
}

template <class N, int WIDTH>
static srnn_status attend(const sr_attention_view<N> &call, const sr_kv_cache<N> &memory,
                          const sr_partials &partials, int stretches, cudaStream_t stream) {
    const int64_t keys = shape<WIDTH>::keys;
    const int64_t blocks = (memory.capacity + keys - 1) / keys;
    const int64_t stretch = (blocks + stretches - 1) / stretches * keys;
    const int sets = (call.group * call.T + SR_OWN - 1) / SR_OWN;
    SR_CUDA(sr_launch(attend_kept<N, WIDTH>,
                      dim3((unsigned)(call.B * call.Hkv * sets), (unsigned)stretches),
                      dim3(shape<WIDTH>::threads), sizeof(attend_memory<WIDTH>), stream, call,
                      memory, partials, stretch));
    return SRNN_OK;
}

/* RoPE of a single token is applied as it is read, unless features are computed from it first;
 * small batches go into the decode queue, whose GEMMs apply RoPE. */
static bool applies_rope(const srnn_problem *p, int T) {
    return T == 1 && p->B > SR_DECODE_ROWS && p->attention.feature == SRNN_FEATURE_IDENTITY;
}

template <class N>
static srnn_status feed(const sr_attention_call *wanted, char *memory_bytes, int64_t capacity,
                        sr_carry *carry) {
    const srnn_problem *p = &wanted->plan->problem;
    sr_layout layout = {(char *)wanted->plan->scratch, 0}, memory_layout = {memory_bytes, 0};
    sr_attention_view<N> call = sr_attention_forward_view<N>(wanted, &layout);
    sr_partials partials = sr_partials_place(p, partials_most(p), &layout);
    const sr_kv_cache<N> memory = memory_place<N>(p, capacity, &memory_layout);
    const int stretches = stretches_of(p, capacity, warps_of(p));
    const int64_t numbers = (int64_t)p->B * p->Hkv * p->T * (p->D + p->Dv);
    partials.parts = stretches * warps_of(p);
    call.carry = *carry;
    if constexpr (sizeof(N) == sizeof(sr_bf16))
        if (sr_coalesce_attention(wanted->plan->device, call, memory))
            return SRNN_OK;
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    SR_TRY(sr_attention_prepare(call, stream));
    if (p->T == 1)
        return sr_attend_one(call, memory, partials, wanted->rope, wanted->plan->device);
    SR_CUDA(sr_launch(append_tokens<N>,
                      dim3((unsigned)((numbers + APPEND_THREADS - 1) / APPEND_THREADS)),
                      dim3(APPEND_THREADS), 0, stream, call, memory));
    const int width = max(p->D, p->Dv);
    if (width <= 64)
        SR_TRY((attend<N, 64>(call, memory, partials, stretches, stream)));
    else if (width <= 128)
        SR_TRY((attend<N, 128>(call, memory, partials, stretches, stream)));
    else
        SR_TRY((attend<N, 256>(call, memory, partials, stretches, stream)));
    return sr_partials_finish(call, partials, stream);
}

/* ---- growing the KV cache ---- */

/* Growth of the KV cache: copies each head's `length` numbers to larger memory, where heads are
 * to_stride apart instead of from_stride. A block owns 256 consecutive numbers of one head, one per
 * thread, global -> global; source and destination do not overlap. sr_state_reserve
 * (attention/state.c) allocates the larger memory and frees the old one. */
template <class T>
__global__ void move_heads(T *to, const T *from, int64_t to_stride, int64_t from_stride,
                           int64_t length) {
    const int64_t blocks = (length + APPEND_THREADS - 1) / APPEND_THREADS; /* of a head */
    const int64_t head = blockIdx.x / blocks;
    const int64_t n = blockIdx.x % blocks * APPEND_THREADS + threadIdx.x;
    if (n < length)
        to[head * to_stride + n] = from[head * from_stride + n];
}

template <class T>
static srnn_status start_move(T *to, const T *from, const sr_state_memory *larger,
                              const sr_state_memory *state, int64_t width) {
    const srnn_problem *p = &state->plan->problem;
    const int64_t length = state->position * width;
    const int64_t blocks = (length + APPEND_THREADS - 1) / APPEND_THREADS;
    if (length == 0)
        return SRNN_OK;
    SR_CUDA(sr_launch(move_heads<T>, dim3((unsigned)(p->B * p->Hkv * blocks)), dim3(APPEND_THREADS),
                      0, sr_cuda_stream(state->plan->device), to, from, larger->capacity * width,
                      state->capacity * width, length));
    return SRNN_OK;
}

/* Copies keys, values and decay of a full KV cache to the `larger` one. */
template <class N>
static srnn_status move_kv_cache(const sr_state_memory *larger, const sr_state_memory *state) {
    const srnn_problem *p = &state->plan->problem;
    sr_layout from_layout = {state->memory, 0}, to_layout = {larger->memory, 0};
    const sr_kv_cache<N> from = memory_place<N>(p, state->capacity, &from_layout);
    const sr_kv_cache<N> to = memory_place<N>(p, larger->capacity, &to_layout);
    SR_TRY(start_move<N>(to.keys, from.keys, larger, state, p->D));
    SR_TRY(start_move<N>(to.values, from.values, larger, state, p->Dv));
    return from.decay ? start_move<double>(to.decay, from.decay, larger, state, 1) : SRNN_OK;
}

/* ---- the plain form ---- */

template <class N> static size_t memory_bytes(const srnn_problem *p, int64_t capacity) {
    sr_layout layout = {};
    memory_place<N>(p, capacity, &layout);
    return layout.used;
}

template <class N> static size_t plain_bytes(const srnn_problem *p, int64_t position) {
    const size_t decay = p->attention.decay == SRNN_DECAY_LEARNED ? sizeof(double) : 0;
    return (size_t)p->B * (size_t)p->Hkv * (size_t)position *
           ((size_t)(p->D + p->Dv) * sizeof(N) + decay);
}

/* The arrays of a head's KV cache in the order of the plain form. */
struct kv_cache_piece {
    char *memory;
    size_t bytes;
};

template <class N>
static kv_cache_piece piece_of(const sr_state_memory *state, int64_t head, int which) {
    const srnn_problem *p = &state->plan->problem;
    sr_layout layout = {state->memory, 0};
    const sr_kv_cache<N> memory = memory_place<N>(p, state->capacity, &layout);
    const int64_t first = head * state->capacity, tokens = state->position;
    switch (which) {
    case 0:
        return {(char *)(memory.keys + first * p->D), (size_t)(tokens * p->D) * sizeof(N)};
    case 1:
        return {(char *)(memory.values + first * p->Dv), (size_t)(tokens * p->Dv) * sizeof(N)};
    default:
        return {(char *)(memory.decay + first), memory.decay ? (size_t)tokens * sizeof(double) : 0};
    }
}

enum { PIECES = 3 };

template <class N> static srnn_status to_plain(char *plain, const sr_state_memory *state) {
    const srnn_problem *p = &state->plan->problem;
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * PIECES; n++) {
        const kv_cache_piece piece = piece_of<N>(state, n / PIECES, (int)(n % PIECES));
        if (piece.bytes > 0)
            SR_TRY(sr_device_copy_out(state->plan->device, plain, piece.memory, piece.bytes));
        plain += piece.bytes;
    }
    return SRNN_OK;
}

template <class N> static srnn_status from_plain(const sr_state_memory *state, const char *plain) {
    const srnn_problem *p = &state->plan->problem;
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * PIECES; n++) {
        const kv_cache_piece piece = piece_of<N>(state, n / PIECES, (int)(n % PIECES));
        if (piece.bytes > 0)
            SR_TRY(sr_device_copy_in(state->plan->device, piece.memory, plain, piece.bytes));
        plain += piece.bytes;
    }
    return srnn_device_wait(state->plan->device); /* the caller may free the plain numbers */
}

const sr_state_kernel sr_cuda_state_kv_cache_f32 = {
    SRNN_F32,
    false,
    SR_CUDA_KV_CACHE,
    memory_bytes<float>,
    scratch_bytes<float>,
    feed<float>,
    plain_bytes<float>,
    to_plain<float>,
    from_plain<float>,
    move_kv_cache<float>,
    applies_rope,
};
const sr_state_kernel sr_cuda_state_kv_cache_bf16 = {
    SRNN_BF16,
    false,
    SR_CUDA_KV_CACHE,
    memory_bytes<sr_bf16>,
    scratch_bytes<sr_bf16>,
    feed<sr_bf16>,
    plain_bytes<sr_bf16>,
    to_plain<sr_bf16>,
    from_plain<sr_bf16>,
    move_kv_cache<sr_bf16>,
    applies_rope,
};
