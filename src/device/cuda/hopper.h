/* hopper.h: the instructions of sm_90a: mbarriers, TMA (bulk tensor copies), warpgroup GEMM
 * (wgmma).
 *
 * Only files that are compiled for 90a alone include it (softrnn_hopper_objects in
 * cmake/cuda.cmake). Tiles in shared memory have rows of 128 bytes, swizzled over 8 rows (1024
 * bytes), and are aligned to 1024 bytes. */
#ifndef SR_DEVICE_CUDA_HOPPER_H
#define SR_DEVICE_CUDA_HOPPER_H

#include "device/cuda/ptx.h"

/* Up to five dimensions of bf16 in global memory, the contiguous one first, cut into boxes. */
struct sr_tensor_shape {
    int dimensions;     /* 2 .. 5 */
    uint64_t size[5];   /* numbers */
    uint64_t stride[4]; /* bytes from one to the next, of dimensions 1, 2, ...; multiples of 16 */
    uint32_t box[5];    /* numbers one copy moves; box[0] is 64: rows of 128 bytes */
};

/* The tensor map for TMA, encoded on the host; passed to a kernel by value, as a __grid_constant__
 * parameter. Numbers outside the sizes are read as zero. */
cudaError_t sr_tensor_map_encode(CUtensorMap *map, const void *data, const sr_tensor_shape *shape);

/* The descriptor of an operand this many bytes further, a multiple of 16: see wgmma_descriptor. One
 * addition. */
SR_DEVICE uint64_t wgmma_descriptor_further(uint64_t descriptor, int bytes) {
    return (descriptor & 0xffffffff00000000u) | ((uint32_t)descriptor + (uint32_t)(bytes >> 4));
}

#ifdef __CUDACC__

/* ---- mbarriers: they count arrivals and bytes; 8 bytes of shared memory each ---- */

/* A phase is over after `arrivals` arrivals and all bytes expected in it. By one thread, before a
 * fence and a barrier of the block. */
SR_DEVICE void mbarrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* Makes the initialised mbarriers visible to TMA; then __syncthreads. */
SR_DEVICE void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

SR_DEVICE void mbarrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* Arrives, and adds `bytes` to the expected bytes of this phase. */
SR_DEVICE void mbarrier_arrive_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :
                 : "r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Returns when the phase of this parity is over; parity 1 returns at once on a fresh mbarrier. */
SR_DEVICE void mbarrier_wait(uint64_t *barrier, int parity) {
    asm volatile("{\n"
                 ".reg .pred over;\n"
                 "wait%=: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@over bra done%=;\n"
                 "bra wait%=;\n"
                 "done%=:\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Orders this thread's writes to shared memory before reads of them by TMA and wgmma (async
 * proxy). */
SR_DEVICE void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* One arrival of this thread, triggered when all its cp_async_4 and cp_async_16 copies have
 * landed. */
SR_DEVICE void mbarrier_arrive_copies(uint64_t *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];"
                 :
                 : "r"(shared_address(barrier))
                 : "memory");
}

/* ---- TMA: one thread starts a bulk tensor copy, the mbarrier counts its bytes ---- */

/* A box to shared memory; `at` is the box's first number in each dimension, and may be outside. */
SR_DEVICE void tensor_load_2d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[2]) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1])
                 : "memory");
}

SR_DEVICE void tensor_load_3d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[3]) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2])
                 : "memory");
}

SR_DEVICE void tensor_load_4d(void *shared, const CUtensorMap *map, uint64_t *barrier,
                              const int (&at)[4]) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(shared_address(barrier)), "r"(at[0]), "r"(at[1]), "r"(at[2]),
                 "r"(at[3])
                 : "memory");
}

/* A box from shared to global memory; numbers outside the tensor are not written. */
SR_DEVICE void tensor_store_2d(const CUtensorMap *map, const void *shared, const int (&at)[2]) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3}], [%0];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(at[0]), "r"(at[1])
                 : "memory");
}

SR_DEVICE void tensor_store_3d(const CUtensorMap *map, const void *shared, const int (&at)[3]) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4}], [%0];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2])
                 : "memory");
}

SR_DEVICE void tensor_store_4d(const CUtensorMap *map, const void *shared, const int (&at)[4]) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group "
                 "[%1, {%2, %3, %4, %5}], [%0];" ::"r"(shared_address(shared)),
                 "l"(map), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3])
                 : "memory");
}

/* Commits a group of this thread's stores; waits until at most `pending` groups still read shared
 * memory; until at most `pending` are not yet written. */
SR_DEVICE void tensor_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

template <int pending> SR_DEVICE void tensor_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

template <int pending> SR_DEVICE void tensor_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

/* ---- bulk copies without a tensor map: one thread starts one; tensor_store_commit and the waits
 * count these too. Addresses and bytes are multiples of 16 ---- */

SR_DEVICE void bulk_store(void *global, const void *shared, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

/* Reduction: adds, number by number, to global memory. */
SR_DEVICE void bulk_add(float *global, const float *shared, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
                 :
                 : "l"(global), "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

/* ---- ordered additions: blocks store and add to the same memory by bulk copies, in a fixed order
 * given by a counter. By one thread ---- */

/* Whether the counter has reached `mine`; then all earlier additions are visible. A block that
 * polls relies on the blocks before it being resident. */
SR_DEVICE bool ticket_is_due(const int *ticket, int mine) {
    int now;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(ticket) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    return now == mine;
}

/* After tensor_store_wait: advances the counter to the next block's number. */
SR_DEVICE void ticket_pass(int *ticket, int next) {
    asm volatile("fence.proxy.async;" ::: "memory");
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(ticket), "r"(next) : "memory");
}

/* ---- warpgroup GEMM (wgmma): four warps, 128 threads, together ---- */

/* Orders register accesses before wgmma; once before each batch. */
SR_DEVICE void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Commits a batch. */
SR_DEVICE void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most `pending` batches are in flight. */
template <int pending> SR_DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* After a wait: keeps the compiler from reading these accumulators earlier. */
template <int count> SR_DEVICE void wgmma_settle(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* threadIdx.x, read here: values derived from it are not computed early and kept in registers
 * across a loop that has none to spare. */
SR_DEVICE int thread_index_again() {
    int index;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
    return index;
}

/* setmaxnreg: gives registers back, or takes them; the total is that of the launch. A multiple of
 * 8. */
template <int registers> SR_DEVICE void registers_decrease() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> SR_DEVICE void registers_increase() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* The descriptor of an operand in shared memory. Contiguous along the summed dimension: lead_bytes
 * is ignored, + 32 bytes is 16 further. Transposed (contiguous along the other dimension): + 2048
 * bytes is 16 further in the sum, and lead_bytes is the distance between pieces of 64 contiguous
 * numbers. */
SR_DEVICE uint64_t wgmma_descriptor(const void *shared, int lead_bytes = 16) {
    uint32_t address = shared_address(shared);
    /* else the compiler keeps a loop's descriptors in registers */
    asm volatile("" : "+r"(address));
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(lead_bytes >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The same for a tile of 16 columns, rows of 32 bytes swizzled over 8 rows (two by four), aligned
 * to 256 bytes; transposed, + 512 bytes is 16 further in the sum. */
SR_DEVICE uint64_t wgmma_descriptor_16(const void *shared) {
    uint32_t address = shared_address(shared);
    asm volatile("" : "+r"(address));
    return (uint64_t)((address & 0x3ffffu) >> 4) | (uint64_t)(256 >> 4) << 16 |
           (uint64_t)(256 >> 4) << 32 | (uint64_t)3 << 62;
}

#define SR_REGISTERS_4 "%0, %1, %2, %3"
#define SR_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define SR_REGISTERS_32                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SR_REGISTERS_64                                                                       \
    SR_REGISTERS_32                                                                           \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, " \
    "%49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SR_REGISTERS_96                                                                       \
    SR_REGISTERS_64                                                                           \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, " \
    "%81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SR_REGISTERS_128                                                                           \
    SR_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
                    "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "     \
                    "%121, %122, %123, %124, %125, %126, %127"
#define SR_SUMS_8(i)                                                                            \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define SR_SUMS_4(i)   "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SR_SUMS_32(i)  SR_SUMS_8(i), SR_SUMS_8(i + 8), SR_SUMS_8(i + 16), SR_SUMS_8(i + 24)
#define SR_SUMS_64(i)  SR_SUMS_32(i), SR_SUMS_32(i + 32)
#define SR_SUMS_96(i)  SR_SUMS_64(i), SR_SUMS_32(i + 64)
#define SR_SUMS_128(i) SR_SUMS_64(i), SR_SUMS_64(i + 64)

/* wgmma: d (64 x N) = A (64 x 16) B (16 x N), or d += where `add`; thread 32 w + lane of the
 * warpgroup holds of d the rows 16 w + g and 16 w + g + 8, d[4 j .. 4 j + 3] as the C of ptx.h for
 * columns 8 j .. 8 j + 7. Both operands are in shared memory; transpose_x = 0: contiguous along the
 * sum, 1: contiguous along the rows of A, the columns of B. */
template <int N, int transpose_a, int transpose_b>
SR_DEVICE void wgmma_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
    static_assert(N == 8 || N == 64 || N == 128 || N == 192 || N == 256, "no such product here");
    if constexpr (N == 8)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %6, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {" SR_REGISTERS_4
                     "}, %4, %5, add, 1, 1, %7, %8;\n}"
                     : SR_SUMS_4(0)
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));
    else if constexpr (N == 64)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SR_REGISTERS_32
                     "}, %32, %33, add, 1, 1, %35, %36;\n}"
                     : SR_SUMS_32(0)
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));
    else if constexpr (N == 128)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SR_REGISTERS_64
                     "}, %64, %65, add, 1, 1, %67, %68;\n}"
                     : SR_SUMS_64(0)
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));
    else if constexpr (N == 192)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %98, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" SR_REGISTERS_96
                     "}, %96, %97, add, 1, 1, %99, %100;\n}"
                     : SR_SUMS_96(0)
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));
    else
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SR_REGISTERS_128
                     "}, %128, %129, add, 1, 1, %131, %132;\n}"
                     : SR_SUMS_128(0)
                     : "l"(a), "l"(b), "r"(add), "n"(transpose_a), "n"(transpose_b));
}

/* The same with A in registers, each warp's 16 rows as the A of ptx.h. */
template <int N, int transpose_b>
SR_DEVICE void wgmma_registers(float (&d)[N / 2], const uint32_t *a, uint64_t b, int add) {
    static_assert(N == 16 || N == 64 || N == 128 || N == 192 || N == 256, "no such product here");
    if constexpr (N == 16)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %13, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {" SR_REGISTERS_8
                     "}, {%8, %9, %10, %11}, %12, add, 1, 1, %14;\n}"
                     : SR_SUMS_8(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                       "n"(transpose_b));
    else if constexpr (N == 64)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" SR_REGISTERS_32
                     "}, {%32, %33, %34, %35}, %36, add, 1, 1, %38;\n}"
                     : SR_SUMS_32(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                       "n"(transpose_b));
    else if constexpr (N == 128)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SR_REGISTERS_64
                     "}, {%64, %65, %66, %67}, %68, add, 1, 1, %70;\n}"
                     : SR_SUMS_64(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                       "n"(transpose_b));
    else if constexpr (N == 192)
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %101, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {" SR_REGISTERS_96
                     "}, {%96, %97, %98, %99}, %100, add, 1, 1, %102;\n}"
                     : SR_SUMS_96(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                       "n"(transpose_b));
    else
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %133, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SR_REGISTERS_128
                     "}, {%128, %129, %130, %131}, %132, add, 1, 1, %134;\n}"
                     : SR_SUMS_128(0)
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),
                       "n"(transpose_b));
}

#undef SR_REGISTERS_4
#undef SR_REGISTERS_8
#undef SR_REGISTERS_32
#undef SR_REGISTERS_64
#undef SR_REGISTERS_96
#undef SR_REGISTERS_128
#undef SR_SUMS_4
#undef SR_SUMS_8
#undef SR_SUMS_32
#undef SR_SUMS_64
#undef SR_SUMS_96
#undef SR_SUMS_128

#else
#include "device/cuda/emulator/hopper.h"
#endif

#endif
