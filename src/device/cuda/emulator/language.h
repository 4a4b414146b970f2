/* language.h: CUDA's additions to C++, for an ordinary C++ compiler. */
#ifndef SR_EMULATOR_LANGUAGE_H
#define SR_EMULATOR_LANGUAGE_H

#include "device/cuda/emulator/block.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
/* A block's threads share one host thread, and no two concurrent blocks do. */
#define __shared__ static thread_local

#define threadIdx (sr_emulated_thread->index)
#define blockIdx  (sr_emulated_thread->block)
#define blockDim  (sr_emulated_thread->block_size)
#define gridDim   (sr_emulated_thread->grid_size)

/* ---- waiting ---- */

static inline void __syncthreads() {
    sr_emulator_barrier(0, 0, true, "__syncthreads");
}

static inline void __syncwarp() {
    sr_emulator_collect(sr_emulator_nothing, nullptr, "__syncwarp");
}

/* Blocks run one after the other, or on separate host threads: a fence has nothing to order. */
static inline void __threadfence() {
    __asm__ volatile("" ::: "memory");
}

static inline void __threadfence_block() {
}

/* ---- numbers ---- */

#define SR_EMULATOR_BITS(name, to, from)         \
    static inline to name(from x) {              \
        to y;                                    \
        static_assert(sizeof x == sizeof y, ""); \
        memcpy(&y, &x, sizeof y);                \
        return y;                                \
    }
SR_EMULATOR_BITS(__float_as_uint, unsigned int, float)
SR_EMULATOR_BITS(__float_as_int, int, float)
SR_EMULATOR_BITS(__uint_as_float, float, unsigned int)
SR_EMULATOR_BITS(__int_as_float, float, int)
SR_EMULATOR_BITS(__double_as_longlong, long long, double)
SR_EMULATOR_BITS(__longlong_as_double, double, long long)
#undef SR_EMULATOR_BITS

#define SR_EMULATOR_EXTREMES(type)           \
    static inline type min(type x, type y) { \
        return y < x ? y : x;                \
    }                                        \
    static inline type max(type x, type y) { \
        return x < y ? y : x;                \
    }
SR_EMULATOR_EXTREMES(int)
SR_EMULATOR_EXTREMES(unsigned int)
SR_EMULATOR_EXTREMES(long)
SR_EMULATOR_EXTREMES(unsigned long)
SR_EMULATOR_EXTREMES(long long)
SR_EMULATOR_EXTREMES(unsigned long long)
#undef SR_EMULATOR_EXTREMES

static inline float min(float x, float y) {
    return fminf(x, y);
}

static inline float max(float x, float y) {
    return fmaxf(x, y);
}

static inline double min(double x, double y) {
    return fmin(x, y);
}

static inline double max(double x, double y) {
    return fmax(x, y);
}

static inline float rsqrtf(float x) {
    return (float)(1.0 / sqrt((double)x));
}

static inline double rsqrt(double x) {
    return 1.0 / sqrt(x);
}

/* Names that the C library uses for something else. */
#define __expf  expf
#define __logf  logf
#define __log2f log2f
#define __sinf  sinf
#define __cosf  cosf
#define __powf  powf

static inline float __fdividef(float x, float y) {
    return x / y;
}

static inline float __frcp_rn(float x) {
    return 1.0f / x;
}

static inline float __fsqrt_rn(float x) {
    return sqrtf(x);
}

static inline float __fadd_rn(float x, float y) {
    return x + y;
}

static inline float __fmul_rn(float x, float y) {
    return x * y;
}

static inline float __fmaf_rn(float x, float y, float z) {
    return fmaf(x, y, z);
}

static inline float __saturatef(float x) {
    return fminf(fmaxf(x, 0), 1);
}

static inline int __popc(unsigned int x) {
    return __builtin_popcount(x);
}

static inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz((unsigned int)x);
}

static inline int __ffs(int x) {
    return __builtin_ffs(x);
}

template <class T> static inline T __ldg(const T *from) {
    return *from;
}

template <class T> static inline T __ldcs(const T *from) {
    return *from;
}

template <class T> static inline T __ldcg(const T *from) {
    return *from;
}

template <class T> static inline void __stcs(T *to, T x) {
    *to = x;
}

template <class T> static inline void __stcg(T *to, T x) {
    *to = x;
}

/* ---- atomic functions: they return the old value ---- */

/* Concurrent ones are not a race. */
#define SR_EMULATOR_ATOMIC __attribute__((no_sanitize("thread")))

template <class T> SR_EMULATOR_ATOMIC static inline T atomicAdd(T *to, T x) {
    T before, after;
    __atomic_load(to, &before, __ATOMIC_RELAXED);
    do {
        after = before + x;
    } while (
        !__atomic_compare_exchange(to, &before, &after, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    return before;
}

template <class T> SR_EMULATOR_ATOMIC static inline T atomicMax(T *to, T x) {
    T before;
    __atomic_load(to, &before, __ATOMIC_RELAXED);
    while (before < x &&
           !__atomic_compare_exchange(to, &before, &x, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return before;
}

template <class T> SR_EMULATOR_ATOMIC static inline T atomicMin(T *to, T x) {
    T before;
    __atomic_load(to, &before, __ATOMIC_RELAXED);
    while (x < before &&
           !__atomic_compare_exchange(to, &before, &x, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return before;
}

template <class T> SR_EMULATOR_ATOMIC static inline T atomicExch(T *to, T x) {
    T before;
    __atomic_exchange(to, &x, &before, __ATOMIC_SEQ_CST);
    return before;
}

template <class T> SR_EMULATOR_ATOMIC static inline T atomicCAS(T *to, T expected, T x) {
    __atomic_compare_exchange(to, &expected, &x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return expected;
}

/* ---- the toolkit's typed forms ---- */

template <class T> static inline cudaError_t cudaMalloc(T **memory, size_t bytes) {
    return cudaMalloc(reinterpret_cast<void **>(memory), bytes);
}

template <class T> static inline cudaError_t cudaMallocHost(T **memory, size_t bytes) {
    return cudaMallocHost(reinterpret_cast<void **>(memory), bytes);
}

template <class T>
static inline cudaError_t cudaHostAlloc(T **memory, size_t bytes, unsigned int flags) {
    return cudaHostAlloc(reinterpret_cast<void **>(memory), bytes, flags);
}

static inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event) {
    return cudaStreamWaitEvent(stream, event, 0);
}

static inline cudaError_t cudaEventRecord(cudaEvent_t event) {
    return cudaEventRecord(event, nullptr);
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, nullptr);
}

static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph) {
    return cudaGraphInstantiate(executable, graph, 0);
}

#endif
