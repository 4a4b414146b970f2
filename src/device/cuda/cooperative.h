/* cooperative.h: kernels whose blocks are co-resident (all of them, or those of a cluster), and
 * data exchange between the blocks. */
#ifndef SR_DEVICE_CUDA_COOPERATIVE_H
#define SR_DEVICE_CUDA_COOPERATIVE_H

#include "device/cuda/launch.h"
#include "device/cuda/ptx.h"

/* A number with the step to which it belongs, so that another block sees in one load whether it has
 * been written. */
struct alignas(8) sr_marked {
    float number;
    uint32_t mark;
};

#ifdef __CUDACC__

/* sr_launch (launch.h) for a kernel whose blocks synchronise: a cooperative launch, all blocks are
 * resident or none. */
template <class... P>
cudaError_t sr_launch_together(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                               cudaStream_t stream, typename sr_as_declared<P>::type... arguments) {
    void *addresses[] = {(void *)&arguments..., nullptr};
    const void *function = reinterpret_cast<const void *>(kernel);
    const cudaError_t error = sr_allow_shared(function, shared_bytes);
    if (error != cudaSuccess)
        return error;
    return cudaLaunchCooperativeKernel(function, grid, block, addresses, shared_bytes, stream);
}

/* Hopper: sr_launch_early for a kernel whose blocks run in clusters of `size` neighbours in x, of
 * which grid.x has a multiple: 1, 2, 4 or 8. The parameters of CUDA's launch, and the kernel's. */
template <class... P>
cudaError_t sr_launch_clusters(int size, void (*kernel)(P...), dim3 grid, dim3 block,
                               size_t shared_bytes, cudaStream_t stream,
                               typename sr_as_declared<P>::type... arguments) {
    sr_launch_attributes attributes = {};
    cudaLaunchAttribute &cluster = attributes.attribute[attributes.count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)size;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    sr_attribute_early(&attributes);
    return sr_launch_with<P...>(attributes, kernel, grid, block, shared_bytes, stream,
                                arguments...);
}

/* Barrier over all threads of all blocks of the cluster; orders their writes to shared memory
 * before their reads. */
SR_DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* The last barrier: this block's shared memory stays valid until all blocks have read it. Orders
 * nothing. */
SR_DEVICE void cluster_leave() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* Loads from the shared memory of block number `block` of the cluster, at the address of *shared
 * here. No block may end before the others have read: cluster_leave. */
SR_DEVICE float cluster_load(const float *shared, int block) {
    float number;
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %1, %2;\n"
                 "ld.shared::cluster.f32 %0, [there];\n"
                 "}"
                 : "=f"(number)
                 : "r"(shared_address(shared)), "r"(block)
                 : "memory");
    return number;
}

/* One block stores a number, or two neighbours (aligned to 16 bytes), and another polls two until
 * their marks match. Orders nothing else. */
SR_DEVICE void store_marked(sr_marked *to, float number, uint32_t mark) {
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(float_bits(number)),
                 "r"(mark)
                 : "memory");
}

SR_DEVICE void store_marked_two(sr_marked *to, const float (&two)[2], uint32_t mark) {
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %2};" ::"l"(to),
                 "r"(float_bits(two[0])), "r"(mark), "r"(float_bits(two[1]))
                 : "memory");
}

SR_DEVICE void load_marked(sr_marked (&two)[2], const sr_marked *from) {
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(two[0].number), "=r"(two[0].mark), "=f"(two[1].number), "=r"(two[1].mark)
                 : "l"(from)
                 : "memory");
}

/* Between two polls. */
SR_DEVICE void wait_a_moment() {
}

/* Prefetches the 128 bytes at this address into the L2 cache. */
SR_DEVICE void prefetch(const void *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/* Hopper: `bytes` from global to shared memory, all three multiples of 16; one thread starts it,
 * the mbarrier (hopper.h) counts the bytes. */
SR_DEVICE void bulk_load(void *shared, const void *global, int bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

#else
#include "device/cuda/emulator/cooperative.h"
#endif

#endif
