/* cooperative.h: co-resident blocks, emulated; see ../cooperative.h. */
#ifndef SR_DEVICE_CUDA_EMULATOR_COOPERATIVE_H
#define SR_DEVICE_CUDA_EMULATOR_COOPERATIVE_H

#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SR_EMULATOR_CLUSTER = 8 }; /* blocks, at most */

/* Queues the kernel; its blocks will be co-resident, each on a host thread: `size` neighbours at a
 * time (0: all of them). */
cudaError_t sr_emulator_launch_together(const sr_emulated_kernel *kernel, int size,
                                        cudaStream_t stream);

/* Co-resident blocks. */
typedef struct sr_emulated_party {
    const bool *failed; /* whether one of the kernel's blocks has */
    int blocks, arrived;
    uint32_t met;                               /* number of completed barriers */
    unsigned char *shared[SR_EMULATOR_CLUSTER]; /* memory of the first of them */
} sr_emulated_party;

/* sr_emulator_block_run of number `number` of them, on its own host thread. */
bool sr_emulator_block_run_among(const sr_emulated_kernel *kernel, uint3 block, bool late,
                                 sr_emulated_party *party, int number);

/* ---- called by the threads of a kernel ---- */

/* Lets other warps of the block proceed, and other blocks; fails on a timeout. */
void sr_emulator_pause(void);

/* Eight bytes that blocks share; not a race. */
void sr_emulator_word_store(void *to, uint64_t word);
uint64_t sr_emulator_word_load(const void *from);

/* The barrier of a cluster, and a load from another block of it. */
void sr_emulator_cluster_barrier(void);
float sr_emulator_cluster_load(const float *shared, int block);

/* A bulk copy to shared memory. */
void sr_emulator_bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier);

#ifdef __cplusplus
}

/* The parameters of CUDA's launch, and the kernel's. */
template <class... P>
cudaError_t sr_launch_clusters(int size, void (*kernel)(P...), dim3 grid, dim3 block,
                               size_t shared_bytes, cudaStream_t stream,
                               typename sr_as_declared<P>::type... arguments) {
    using call = sr_emulated_call<P...>;
    void *memory = nullptr;
    if (posix_memalign(&memory, 64, sizeof(call)) != 0)
        return cudaErrorMemoryAllocation;
    new (memory) call{kernel, std::tuple<P...>(arguments...)};
    const sr_emulated_kernel queued = {
        "of blocks that run together", call::run, memory, grid, block, shared_bytes};
    return sr_emulator_launch_together(&queued, size, stream);
}

template <class... P>
cudaError_t sr_launch_together(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, typename sr_as_declared<P>::type... arguments) {
    return sr_launch_clusters<P...>(0, kernel, grid, block, shared_bytes, stream, arguments...);
}

SR_DEVICE void cluster_barrier() {
    sr_emulator_cluster_barrier();
}

SR_DEVICE void cluster_leave() {
    sr_emulator_cluster_barrier();
}

SR_DEVICE float cluster_load(const float *shared, int block) {
    return sr_emulator_cluster_load(shared, block);
}

SR_DEVICE void store_marked(sr_marked *to, float number, uint32_t mark) {
    const sr_marked marked = {number, mark};
    uint64_t word;
    memcpy(&word, &marked, sizeof word);
    sr_emulator_word_store(to, word);
}

SR_DEVICE void store_marked_two(sr_marked *to, const float (&two)[2], uint32_t mark) {
    store_marked(to, two[0], mark);
    store_marked(to + 1, two[1], mark);
}

SR_DEVICE void load_marked(sr_marked (&two)[2], const sr_marked *from) {
    for (int i = 0; i < 2; i++) {
        const uint64_t word = sr_emulator_word_load(from + i);
        memcpy(&two[i], &word, sizeof word);
    }
}

SR_DEVICE void wait_a_moment() {
    sr_emulator_pause();
}

SR_DEVICE void prefetch(const void *) {
}

SR_DEVICE void bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier) {
    sr_emulator_bulk_load(shared, global, bytes, barrier);
}
#endif

#endif
