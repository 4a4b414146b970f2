/* launch.h: starting a kernel, and its shared memory.
 *
 *     __global__ void scale(float *x, float factor, int64_t count);
 *     SR_CUDA(sr_launch(scale, dim3(blocks), dim3(256), 0, stream, x, 0.5f, count));
 */
#ifndef SR_DEVICE_CUDA_LAUNCH_H
#define SR_DEVICE_CUDA_LAUNCH_H

#include "device/cuda/platform.h"

/* More dynamic shared memory than this needs cudaFuncSetAttribute. */
#define SR_SHARED_BYTES_FREE (48 * 1024)

/* Hides a parameter from deduction, so that arguments convert to what the kernel takes. */
template <class T> struct sr_as_declared { using type = T; };

#ifdef __CUDACC__

/* SR_SHARED(type, name): in a kernel, the dynamic shared memory as `type *name`; aligned to 1024
 * bytes. */
extern __shared__ __align__(1024) unsigned char sr_shared_memory[];
#define SR_SHARED(type, name) type *const name = reinterpret_cast<type *>(sr_shared_memory)

/* Allows the kernel this much dynamic shared memory. */
static inline cudaError_t sr_allow_shared(const void *function, size_t bytes) {
    if (bytes <= SR_SHARED_BYTES_FREE)
        return cudaSuccess;
    return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Launches kernel(arguments...) on the stream. Failures while it runs are reported by the next
 * wait. */
template <class... P>
cudaError_t sr_launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                      cudaStream_t stream, typename sr_as_declared<P>::type... arguments) {
    void *addresses[] = {(void *)&arguments..., nullptr};
    const void *function = reinterpret_cast<const void *>(kernel);
    const cudaError_t error = sr_allow_shared(function, shared_bytes);
    if (error != cudaSuccess)
        return error;
    return cudaLaunchKernel(function, grid, block, addresses, shared_bytes, stream);
}

/* Attributes of a launch. */
struct sr_launch_attributes {
    cudaLaunchAttribute attribute[2];
    unsigned count;
};

/* Programmatic dependent launch: the kernel may start before the previous one is over. */
static inline void sr_attribute_early(sr_launch_attributes *attributes) {
    cudaLaunchAttribute &attribute = attributes->attribute[attributes->count++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
}

/* sr_launch with attributes. The parameters of CUDA's launch, and the kernel's. */
template <class... P>
cudaError_t sr_launch_with(sr_launch_attributes attributes, void (*kernel)(P...), dim3 grid,
                           dim3 block, size_t shared_bytes, cudaStream_t stream,
                           typename sr_as_declared<P>::type... arguments) {
    void *addresses[] = {(void *)&arguments..., nullptr};
    const void *function = reinterpret_cast<const void *>(kernel);
    const cudaError_t error = sr_allow_shared(function, shared_bytes);
    if (error != cudaSuccess)
        return error;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes.attribute;
    config.numAttrs = attributes.count;
    return cudaLaunchKernelExC(&config, function, addresses);
}

/* The same, and if `early` (Hopper and newer) by programmatic dependent launch: the kernel may
 * start before the previous one is over, once each block of that has called let_next_start. Until
 * it has called wait_for_previous (ptx.h), which every thread must, it reads only what the previous
 * kernels have not written, and writes nothing. The parameters of CUDA's launch, and the
 * kernel's. */
template <class... P>
cudaError_t sr_launch_early(bool early, void (*kernel)(P...), dim3 grid, dim3 block,
                            size_t shared_bytes, cudaStream_t stream,
                            typename sr_as_declared<P>::type... arguments) {
    sr_launch_attributes attributes = {};
    if (early)
        sr_attribute_early(&attributes);
    return sr_launch_with<P...>(attributes, kernel, grid, block, shared_bytes, stream,
                                arguments...);
}

#else
#include "device/cuda/emulator/launch.h"
#endif

#endif
