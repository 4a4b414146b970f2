/* ptx.h: PTX instructions that CUDA C++ has no name for, Ampere and newer; Hopper's are in
 * hopper.h.
 *
 * Fragments are those of the PTX ISA. With lane = 4 g + i (g the lane's group, i its place in the
 * group):
 *
 *     A, 16 x 16 bf16, a[0..3]: row g, columns 2i 2i+1; row g+8, those columns;
 *                               row g, columns 2i+8 2i+9; row g+8, those columns
 *     B, 16 x 8 bf16,  b[0..1]: rows 2i 2i+1 of column g; rows 2i+8 2i+9 of column g
 *     C, 16 x 8 float, c[0..3]: row g, columns 2i 2i+1; row g+8, columns 2i 2i+1
 *
 * Collective functions are called by all 32 lanes of a warp together. Pointers to shared memory are
 * generic pointers. */
#ifndef SR_DEVICE_CUDA_PTX_H
#define SR_DEVICE_CUDA_PTX_H

#include "device/cuda/platform.h"

#define SR_FULL_WARP 0xffffffffu
#define SR_WARP      32

#ifdef __CUDACC__

/* A generic pointer as an address in the shared state space. */
SR_DEVICE uint32_t shared_address(const void *shared) {
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* c += A B, bf16 with float sums; collective. */
SR_DEVICE void mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* a * b of two pairs of bf16. */
SR_DEVICE uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t product;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    return product;
}

/* c += A B in tf32: the last 13 bits of the floats are ignored; collective. A, 16 x 8, a[0..3]: row
 * g column i; row g+8 column i; row g column i+4; row g+8 column i+4. B, 8 x 8, b[0..1]: row i
 * column g; row i+4 column g. */
SR_DEVICE void mma_m16n8k8_tf32(float *c, const uint32_t *a, const uint32_t *b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* The nearest tf32, ties away from zero, as the bits of a float. */
SR_DEVICE uint32_t to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

/* Four 8 x 8 matrices of 16-bit numbers; collective. Lane 8 m + r names row r (16 bytes) of matrix
 * m; fragment[m] is then row g, columns 2i 2i+1 of it. */
SR_DEVICE void ldmatrix_x4(uint32_t *fragment, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same, each matrix transposed: fragment[m] is rows 2i 2i+1 of column g. */
SR_DEVICE void ldmatrix_x4_transposed(uint32_t *fragment, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Two matrices: the addresses of lanes 0 .. 15 count. */
SR_DEVICE void ldmatrix_x2(uint32_t *fragment, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(shared_address(row))
                 : "memory");
}

SR_DEVICE void ldmatrix_x2_transposed(uint32_t *fragment, const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(fragment[0]), "=r"(fragment[1])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The inverse of ldmatrix_x4: lane 8 m + r names where row r of matrix m goes; collective. */
SR_DEVICE void stmatrix_x4(void *row, const uint32_t *fragment) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(shared_address(row)), "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]),
                   "r"(fragment[3])
                 : "memory");
#else
    const int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++) {
        const unsigned long long at =
            __shfl_sync(SR_FULL_WARP, (unsigned long long)row, 8 * m + lane / 4);
        ((uint32_t *)at)[lane % 4] = fragment[m];
    }
#endif
}

/* The same, each matrix transposed: the inverse of ldmatrix_x4_transposed. */
SR_DEVICE void stmatrix_x4_transposed(void *row, const uint32_t *fragment) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(shared_address(row)), "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]),
                   "r"(fragment[3])
                 : "memory");
#else
    const int lane = threadIdx.x % 32;
    for (int m = 0; m < 4; m++)
        for (int e = 0; e < 2; e++) {
            const unsigned long long at =
                __shfl_sync(SR_FULL_WARP, (unsigned long long)row, 8 * m + 2 * (lane % 4) + e);
            ((uint16_t *)at)[lane / 4] = (uint16_t)(fragment[m] >> 16 * e);
        }
#endif
}

/* Starts a copy of 16 bytes from global to shared memory, both addresses multiples of 16. Only the
 * first `bytes` (0 .. 16) are read; the rest becomes zero. */
SR_DEVICE void cp_async_16(void *shared, const void *global, int bytes = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
}

/* The same for 4 bytes. */
SR_DEVICE void cp_async_4(void *shared, const void *global, int bytes = 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes)
                 : "memory");
}

/* Commits a group of this thread's copies. */
SR_DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's groups are in flight; visible to other threads
 * after a barrier. */
template <int pending> SR_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/* 2^x, log2 x, 1/x, 1/sqrt x and tanh x to about 22 (tanh: 11) bits; subnormals are flushed to
 * zero. */
SR_DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SR_DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SR_DEVICE float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SR_DEVICE float rsqrt_fast(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

SR_DEVICE float tanh_fast(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* threadIdx.x, read each time: values derived from it are recomputed in each iteration of a loop
 * and take no registers in between. */
SR_DEVICE int thread_again() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* The value of lane `lane` ^ mask, of lane `lane`, of the lane `distance` above or below (at the
 * warp's end: its own); collective. T has 4 or 8 bytes. */
template <class T> SR_DEVICE T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(SR_FULL_WARP, value, mask);
}

template <class T> SR_DEVICE T shuffle(T value, int lane) {
    return __shfl_sync(SR_FULL_WARP, value, lane);
}

/* A number that is the same in all lanes of a warp, made uniform for the compiler. */
SR_DEVICE int of_warp(int x) {
    return shuffle(x, 0);
}

template <class T> SR_DEVICE T shuffle_down(T value, int distance) {
    return __shfl_down_sync(SR_FULL_WARP, value, distance);
}

template <class T> SR_DEVICE T shuffle_up(T value, int distance) {
    return __shfl_up_sync(SR_FULL_WARP, value, distance);
}

/* Bit l: lane l's truth; collective. */
SR_DEVICE uint32_t warp_ballot(bool truth) {
    return __ballot_sync(SR_FULL_WARP, truth);
}

/* Named barrier `id` (1 .. 15; 0 is __syncthreads) among `threads` threads of the block, a multiple
 * of 32. */
SR_DEVICE void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Arrives as one of those threads, without waiting. */
SR_DEVICE void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* In a kernel of sr_launch_early: waits until the previous kernel is over, and makes all its writes
 * visible. Pointers to them must not be const __restrict__, or their loads may move ahead of
 * this. */
SR_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* This block allows the next kernel to start, if it is launched early. Never in a kernel that
 * writes weights, which the next ones read before they wait. */
SR_DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else
#include "device/cuda/emulator/ptx.h"
#endif

/* Over the four lanes of a group, and over a warp: every lane gets the same bits. */
template <class T> SR_DEVICE T quad_sum(T x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

SR_DEVICE float quad_maximum(float x) {
    x = fmaxf(x, shuffle_xor(x, 1));
    return fmaxf(x, shuffle_xor(x, 2));
}

template <class T> SR_DEVICE T warp_sum(T x) {
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x += shuffle_xor(x, mask);
    return x;
}

SR_DEVICE float warp_maximum(float x) {
    for (int mask = SR_WARP / 2; mask > 0; mask /= 2)
        x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

#endif
