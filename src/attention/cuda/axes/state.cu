/* state.cu: states with every axis between calls: the recurrent state, and the KV cache. */
#include "attention/cuda/axes/axes.h"
#include "attention/cuda/axes/pairs.h"
#include "attention/cuda/axes/walk.h"
#include "attention/cuda/shared/computes.h"
#include "device/device.h"
#include "equation/facts.h"

#include <stdlib.h>

/* One array of a head in a state's memory, as the plain form has it. */
struct state_piece {
    void *memory;
    size_t bytes;
};

static int decays_of(const srnn_problem *p) {
    /* only features of one number per channel have a decay per channel, so D is the core's too */
    return p->attention.decay == SRNN_DECAY_NONE ? 0 : sr_decay_numbers(&p->attention, p->D);
}

/* ---- of fixed size ---- */

static size_t recurrent_bytes(const srnn_problem *p, int64_t capacity) {
    (void)capacity;
    sr_layout layout = {};
    sr_axes_state_place(p, &layout);
    return layout.used;
}

static size_t recurrent_scratch(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, false, &layout);
    sr_feature_table_place(&plan->core, &layout);
    return layout.used;
}

static srnn_status recurrent_feed(const sr_attention_call *wanted, char *memory, int64_t capacity,
                                  sr_carry *carry) {
    (void)capacity;
    const srnn_problem *core = &wanted->plan->core;
    sr_layout layout = {(char *)wanted->plan->scratch, 0}, memory_layout = {memory, 0};
    sr_axes_call call = sr_axes_call_of(wanted, false, &layout);
    const sr_feature_table table = sr_feature_table_place(core, &layout);
    const axes_state state = sr_axes_state_place(core, &memory_layout);
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    call.carry = *carry;
    if (sr_axes_takes_one(call)) {
        SR_TRY(sr_axes_take_one(call, state, stream));
    } else {
        if (!sr_axes_walks_back(&call.a))
            SR_TRY(sr_feature_table_fill(table, core, stream));
        SR_TRY(sr_axes_settle(core, state, 0, carry->position, stream));
        SR_TRY(sr_axes_prepare(call, stream));
        SR_TRY(sr_axes_walk_forward(call, state, table, stream));
    }
    SR_TRY(sr_axes_finish(call, stream));
    return sr_axes_advance(call, stream);
}

/* The plain form: per head its numbers, then C of its last token. */
static state_piece recurrent_piece(const srnn_problem *p, char *memory, int64_t head, int which) {
    sr_layout layout = {memory, 0};
    const axes_state state = sr_axes_state_place(p, &layout);
    if (which == 0)
        return {state.numbers + head * state.head, (size_t)state.head * sizeof(float)};
    return {state.reference + head * state.levels * decays_of(p),
            (size_t)decays_of(p) * sizeof(double)};
}

static size_t recurrent_plain_bytes(const srnn_problem *p, int64_t position) {
    (void)position;
    return (size_t)p->B * (size_t)p->Hkv *
           (recurrent_piece(p, nullptr, 0, 0).bytes + recurrent_piece(p, nullptr, 0, 1).bytes);
}

enum { RECURRENT_PIECES = 2 };

static srnn_status recurrent_to_plain(char *plain, const sr_state_memory *state) {
    const srnn_problem *p = &state->plan->core;
    sr_layout layout = {state->memory, 0};
    SR_TRY(sr_axes_settle(p, sr_axes_state_place(p, &layout), state->position, nullptr,
                          sr_cuda_stream(state->plan->device)));
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * RECURRENT_PIECES; n++) {
        const state_piece piece =
            recurrent_piece(p, state->memory, n / RECURRENT_PIECES, (int)(n % RECURRENT_PIECES));
        if (piece.bytes > 0)
            SR_TRY(sr_device_copy_out(state->plan->device, plain, piece.memory, piece.bytes));
        plain += piece.bytes;
    }
    return SRNN_OK;
}

static srnn_status recurrent_from_plain(const sr_state_memory *state, const char *plain) {
    const srnn_problem *p = &state->plan->core;
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * RECURRENT_PIECES; n++) {
        const state_piece piece =
            recurrent_piece(p, state->memory, n / RECURRENT_PIECES, (int)(n % RECURRENT_PIECES));
        if (piece.bytes > 0)
            SR_TRY(sr_device_copy_in(state->plan->device, piece.memory, plain, piece.bytes));
        plain += piece.bytes;
    }
    sr_layout layout = {state->memory, 0};
    SR_TRY(sr_axes_spread(sr_axes_state_place(p, &layout), p->B * p->Hkv, decays_of(p),
                          sr_cuda_stream(state->plan->device)));
    return srnn_device_wait(state->plan->device); /* the caller may free the plain numbers */
}

/* ---- keys and values ---- */

/* What the cache keeps of all tokens, also with pool, of which rows see the last of each chunk;
 * with a window they are a ring: arrays as axes_keys has them, and room for what the delta rule
 * writes. */
static axes_keys cache_place(const srnn_problem *p, int64_t capacity, sr_layout *layout) {
    const size_t entries = (size_t)p->B * (size_t)p->Hkv * (size_t)capacity;
    const size_t D = (size_t)p->D, Dv = (size_t)p->Dv;
    const bool delta = p->attention.write == SRNN_WRITE_DELTA;
    axes_keys keys = {};
    float *const plain = (float *)sr_layout_take(layout, entries * D, sizeof(float));
    keys.plain = keys.rotated = plain;
    if (p->attention.position == SRNN_POSITION_ROPE_FEATURES)
        keys.rotated = (float *)sr_layout_take(layout, entries * D, sizeof(float));
    keys.values = (float *)sr_layout_take(layout, entries * Dv, sizeof(float));
    keys.decay = (double *)sr_layout_take(layout, entries * (size_t)decays_of(p), sizeof(double));
    if (delta) {
        keys.beta = (float *)sr_layout_take(layout, entries, sizeof(float));
        keys.u = (float *)sr_layout_take(layout, entries * Dv, sizeof(float));
    }
    keys.capacity = capacity;
    keys.ring = p->attention.window > 0;
    return keys;
}

/* Rows of an array of this call behind those that the cache has. A thread copies one number,
 * global -> global; the slot wraps around with a window. */
template <class N>
__global__ void append_rows(const __grid_constant__ sr_axes_call call, N *to, const N *from,
                            int width, int64_t capacity) {
    const int64_t n = axes_thread();
    if (n >= (int64_t)call.B * call.Hkv * call.T * width)
        return;
    const int64_t head = n / width / call.T, t = n / width % call.T;
    const int64_t token = call.position() + t, slot = call.a.window ? token % capacity : token;
    to[(head * capacity + slot) * width + n % width] = from[n];
}

template <class N>
static srnn_status append(const sr_axes_call &call, const N *to, const N *from, int width,
                          int64_t capacity, cudaStream_t stream) {
    if (!to || !from || width == 0)
        return SRNN_OK;
    AXES_START(append_rows<N>, (int64_t)call.B * call.Hkv * call.T * width, call, (N *)to, from,
               width, capacity);
    return SRNN_OK;
}

static size_t cache_bytes(const srnn_problem *p, int64_t capacity) {
    sr_layout layout = {};
    cache_place(p, capacity, &layout);
    return layout.used;
}

static size_t cache_scratch(const srnn_plan *plan) {
    sr_layout layout = {};
    sr_axes_scratch_place(plan, false, &layout);
    return layout.used;
}

static srnn_status cache_feed(const sr_attention_call *wanted, char *memory, int64_t capacity,
                              sr_carry *carry) {
    sr_layout layout = {(char *)wanted->plan->scratch, 0}, memory_layout = {memory, 0};
    sr_axes_call call = sr_axes_call_of(wanted, false, &layout);
    const axes_keys keys = cache_place(&wanted->plan->core, capacity, &memory_layout);
    const sr_axes_scratch &s = call.scratch;
    cudaStream_t stream = sr_cuda_stream(wanted->plan->device);
    call.carry = *carry;
    SR_TRY(sr_axes_prepare(call, stream));
    SR_TRY(append(call, keys.plain, (const float *)s.k, call.F, capacity, stream));
    if (call.rotated)
        SR_TRY(append(call, keys.rotated, (const float *)s.rotated_k, call.F, capacity, stream));
    SR_TRY(append(call, keys.values, (const float *)s.v, call.Dv, capacity, stream));
    SR_TRY(append(call, keys.decay, (const double *)s.decay, call.decays, capacity, stream));
    SR_TRY(append(call, keys.beta, (const float *)s.beta, 1, capacity, stream));
    SR_TRY(sr_axes_pairs_forward(call, keys, stream));
    SR_TRY(sr_axes_finish(call, stream));
    return sr_axes_advance(call, stream);
}

/* The plain form, that of the CPU: per head the arrays in this order, of all tokens, with pool of
 * the last ones of chunks, with a window of those that the next token could see; what the delta
 * rule writes is double there. */
enum { CACHE_PIECES = 6, CACHE_U = CACHE_PIECES - 1 };

static int64_t entries_of(const srnn_problem *p, int64_t tokens) {
    return p->attention.pool ? tokens / p->attention.pool : sr_keys_seen(&p->attention, tokens);
}

/* One array, and the bytes of a token in it; 0: the variant has none. */
static state_piece cache_piece(const srnn_problem *p, const axes_keys &keys, int which) {
    const size_t D = (size_t)p->D * sizeof(float), Dv = (size_t)p->Dv * sizeof(float);
    const bool rotated = p->attention.position == SRNN_POSITION_ROPE_FEATURES;
    const bool delta = p->attention.write == SRNN_WRITE_DELTA;
    switch (which) {
    case 0:
        return {(float *)keys.plain, D};
    case 1:
        return {(float *)keys.rotated, rotated ? D : 0};
    case 2:
        return {(float *)keys.values, Dv};
    case 3:
        return {(double *)keys.decay, (size_t)decays_of(p) * sizeof(double)};
    case 4:
        return {(float *)keys.beta, delta ? sizeof(float) : 0};
    default:
        return {keys.u, delta ? Dv : 0};
    }
}

static size_t cache_plain_bytes(const srnn_problem *p, int64_t position) {
    size_t bytes = 0;
    for (int which = 0; which < CACHE_PIECES; which++)
        bytes += cache_piece(p, {}, which).bytes * (which == CACHE_U ? 2 : 1);
    return (size_t)p->B * (size_t)p->Hkv * (size_t)entries_of(p, position) * bytes;
}

/* Copies between the entries of one array of a head and `bytes`, where they lie without gaps; out,
 * or in. */
static srnn_status copy_entries(const sr_state_memory *state, state_piece piece, int64_t head,
                                char *out, const char *in) {
    const srnn_problem *p = &state->plan->core;
    srnn_device *device = state->plan->device;
    const int64_t pool = p->attention.pool, entries = entries_of(p, state->position);
    const bool apart = pool || p->attention.window; /* entries do not lie together */
    const int64_t runs = apart ? entries : 1, first = state->position - entries;
    const size_t bytes = piece.bytes * (size_t)(apart ? 1 : entries);
    for (int64_t n = 0; bytes > 0 && n < runs; n++) {
        const int64_t token = pool ? (n + 1) * pool - 1 : apart ? first + n : 0;
        const int64_t slot = head * state->capacity + (apart ? token % state->capacity : 0);
        char *const place = (char *)piece.memory + (size_t)slot * piece.bytes;
        if (out)
            SR_TRY(sr_device_copy_out(device, out + (size_t)n * bytes, place, bytes));
        else
            SR_TRY(sr_device_copy_in(device, place, in + (size_t)n * bytes, bytes));
    }
    return SRNN_OK;
}

/* Calls copy_entries for the arrays of all heads, through `widened` where the types differ. */
static srnn_status copy_cache(const sr_state_memory *state, float *widened, char *out,
                              const char *in) {
    const srnn_problem *p = &state->plan->core;
    sr_layout layout = {state->memory, 0};
    const axes_keys keys = cache_place(p, state->capacity, &layout);
    const size_t entries = (size_t)entries_of(p, state->position), u = entries * (size_t)p->Dv;
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * CACHE_PIECES; n++) {
        const int which = (int)(n % CACHE_PIECES);
        const state_piece piece = cache_piece(p, keys, which);
        const bool widens = which == CACHE_U && piece.bytes > 0;
        for (size_t i = 0; widens && in && i < u; i++) {
            double number;
            memcpy(&number, in + i * sizeof number, sizeof number);
            widened[i] = (float)number;
        }
        SR_TRY(copy_entries(state, piece, n / CACHE_PIECES, out && widens ? (char *)widened : out,
                            widens ? (const char *)widened : in));
        for (size_t i = 0; widens && out && i < u; i++) {
            const double number = (double)widened[i];
            memcpy(out + i * sizeof number, &number, sizeof number);
        }
        if (widens && in)
            SR_TRY(srnn_device_wait(state->plan->device)); /* before the buffer is used again */
        const size_t bytes = entries * piece.bytes * (widens ? 2 : 1);
        out = out ? out + bytes : nullptr;
        in = in ? in + bytes : nullptr;
    }
    return SRNN_OK;
}

static srnn_status move_cache(const sr_state_memory *state, char *out, const char *in) {
    const srnn_problem *p = &state->plan->core;
    const bool delta = p->attention.write == SRNN_WRITE_DELTA;
    void *widened;
    SR_TRY(sr_alloc(&widened,
                    delta ? (size_t)entries_of(p, state->position) * (size_t)p->Dv + 1 : 1,
                    sizeof(float)));
    const srnn_status status = copy_cache(state, (float *)widened, out, in);
    free(widened);
    return status;
}

static srnn_status cache_to_plain(char *plain, const sr_state_memory *state) {
    return move_cache(state, plain, nullptr);
}

static srnn_status cache_from_plain(const sr_state_memory *state, const char *plain) {
    SR_TRY(move_cache(state, nullptr, plain));
    return srnn_device_wait(state->plan->device); /* the caller may free the plain numbers */
}

#define RECURRENT(dtype)                                                                       \
    {                                                                                          \
        dtype, true, SR_CUDA_STATE, recurrent_bytes, recurrent_scratch, recurrent_feed,        \
            recurrent_plain_bytes, recurrent_to_plain, recurrent_from_plain, nullptr, nullptr, \
    }
#define CACHE(dtype)                                                               \
    {                                                                              \
        dtype, false, SR_CUDA_EVERYTHING, cache_bytes, cache_scratch, cache_feed,  \
            cache_plain_bytes, cache_to_plain, cache_from_plain, nullptr, nullptr, \
    }

const sr_state_kernel sr_cuda_axes_recurrent_f32 = RECURRENT(SRNN_F32);
const sr_state_kernel sr_cuda_axes_recurrent_bf16 = RECURRENT(SRNN_BF16);
const sr_state_kernel sr_cuda_axes_kv_cache_f32 = CACHE(SRNN_F32);
const sr_state_kernel sr_cuda_axes_kv_cache_bf16 = CACHE(SRNN_BF16);
