/* ptx.h: the instructions of ../ptx.h, emulated; that file documents them. */
#ifndef SR_EMULATOR_PTX_H
#define SR_EMULATOR_PTX_H

#include "device/cuda/emulator/warp.h"

/* ---- mma and its operands ---- */

SR_DEVICE void mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b) {
    sr_emulated_mma operand = {c, a, b};
    sr_emulator_collect(sr_emulator_mma_bf16, &operand, "mma_m16n8k16");
}

SR_DEVICE uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    const float2 x = unpack_bf16(a), y = unpack_bf16(b);
    return pack_bf16(x.x * y.x, x.y * y.y);
}

SR_DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, const uint32_t *b) {
    sr_emulated_mma operand = {c, a, b};
    sr_emulator_collect(sr_emulator_mma_tf32, &operand, "mma_m16n8k8_tf32");
}

SR_DEVICE uint32_t to_tf32(float x) {
    const uint32_t bits = float_bits(x);
    if ((bits & 0x7fffffffu) >= 0x7f800000u)
        return bits;
    return (bits + 0x1000u) & 0xffffe000u;
}

SR_DEVICE void ldmatrix_x4(uint32_t *fragment, const void *row) {
    sr_emulated_matrices operand = {fragment, const_cast<void *>(row), 4};
    sr_emulator_collect(sr_emulator_matrices_load, &operand, "ldmatrix_x4");
}

SR_DEVICE void ldmatrix_x4_transposed(uint32_t *fragment, const void *row) {
    sr_emulated_matrices operand = {fragment, const_cast<void *>(row), 4};
    sr_emulator_collect(sr_emulator_matrices_load_transposed, &operand, "ldmatrix_x4_transposed");
}

SR_DEVICE void ldmatrix_x2(uint32_t *fragment, const void *row) {
    sr_emulated_matrices operand = {fragment, const_cast<void *>(row), 2};
    sr_emulator_collect(sr_emulator_matrices_load, &operand, "ldmatrix_x2");
}

SR_DEVICE void ldmatrix_x2_transposed(uint32_t *fragment, const void *row) {
    sr_emulated_matrices operand = {fragment, const_cast<void *>(row), 2};
    sr_emulator_collect(sr_emulator_matrices_load_transposed, &operand, "ldmatrix_x2_transposed");
}

SR_DEVICE void stmatrix_x4(void *row, const uint32_t *fragment) {
    sr_emulated_matrices operand = {const_cast<uint32_t *>(fragment), row, 4};
    sr_emulator_collect(sr_emulator_matrices_store, &operand, "stmatrix_x4");
}

SR_DEVICE void stmatrix_x4_transposed(void *row, const uint32_t *fragment) {
    sr_emulated_matrices operand = {const_cast<uint32_t *>(fragment), row, 4};
    sr_emulator_collect(sr_emulator_matrices_store_transposed, &operand, "stmatrix_x4_transposed");
}

/* ---- asynchronous copies ---- */

SR_DEVICE void cp_async_16(void *shared, const void *global, int bytes = 16) {
    sr_emulator_copy(shared, global, 16, bytes);
}

SR_DEVICE void cp_async_4(void *shared, const void *global, int bytes = 4) {
    sr_emulator_copy(shared, global, 4, bytes);
}

SR_DEVICE void cp_async_commit() {
    sr_emulator_copy_commit();
}

template <int pending> SR_DEVICE void cp_async_wait() {
    sr_emulator_copy_wait(pending);
}

/* ---- functions ---- */

/* Subnormals are flushed to zero. */
SR_DEVICE float flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

SR_DEVICE float exp2_fast(float x) {
    return flushed(exp2f(flushed(x)));
}

/* With the largest error that the GPU may have: 2^-22, absolute or relative. */
SR_DEVICE float log2_fast(float x) {
    const float y = log2f(flushed(x)), size = fabsf(y) < 1 ? 1 : fabsf(y);
    const bool more = float_bits(x) * 2654435761u >> 31;
    return size < INFINITY ? y + (more ? size : -size) * 0x1p-22f : y;
}

SR_DEVICE float reciprocal_fast(float x) {
    return flushed(1 / flushed(x));
}

SR_DEVICE float rsqrt_fast(float x) {
    return rsqrtf(flushed(x));
}

SR_DEVICE float tanh_fast(float x) {
    return tanhf(x);
}

/* ---- shuffles ---- */

SR_DEVICE int thread_again() {
    return (int)threadIdx.x;
}

/* value of lane `from`. */
template <class T> static inline T sr_emulator_shuffle_from(T value, int from, const char *name) {
    static_assert(sizeof value == 4 || sizeof value == 8, "numbers of 4 or 8 bytes");
    sr_emulated_shuffle operand = {0, from};
    memcpy(&operand.value, &value, sizeof value);
    sr_emulator_collect(sr_emulator_shuffle, &operand, name);
    memcpy(&value, &operand.value, sizeof value);
    return value;
}

template <class T> SR_DEVICE T shuffle_xor(T value, int mask) {
    return sr_emulator_shuffle_from(value, sr_emulated_thread->lane ^ mask, "shuffle_xor");
}

template <class T> SR_DEVICE T shuffle(T value, int lane) {
    return sr_emulator_shuffle_from(value, lane, "shuffle");
}

SR_DEVICE int of_warp(int x) {
    return shuffle(x, 0);
}

template <class T> SR_DEVICE T shuffle_down(T value, int distance) {
    const int lane = sr_emulated_thread->lane, from = lane + distance;
    return sr_emulator_shuffle_from(value, from < SR_WARP ? from : lane, "shuffle_down");
}

template <class T> SR_DEVICE T shuffle_up(T value, int distance) {
    const int lane = sr_emulated_thread->lane, from = lane - distance;
    return sr_emulator_shuffle_from(value, from >= 0 ? from : lane, "shuffle_up");
}

SR_DEVICE uint32_t warp_ballot(bool truth) {
    sr_emulated_vote operand = {0, truth};
    sr_emulator_collect(sr_emulator_vote, &operand, "warp_ballot");
    return operand.ballot;
}

SR_DEVICE void named_barrier_sync(int id, int threads) {
    sr_emulator_barrier(id, threads, true, "named_barrier_sync");
}

SR_DEVICE void named_barrier_arrive(int id, int threads) {
    sr_emulator_barrier(id, threads, false, "named_barrier_arrive");
}

/* ---- programmatic dependent launch: no kernel starts early ---- */

SR_DEVICE void wait_for_previous() {
}

SR_DEVICE void let_next_start() {
}

#endif
