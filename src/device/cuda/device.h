/* device.h: the GPUs of this machine, and one of them as a device. */
#ifndef SR_DEVICE_CUDA_DEVICE_H
#define SR_DEVICE_CUDA_DEVICE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sr_cuda_device {
    char name[256];
    size_t memory_bytes;
    int multiprocessors;
    int capability_major, capability_minor; /* compute capability: 9, 0 is Hopper */
} sr_cuda_device;

/* *count = the GPUs that can be used; 0 where there is no GPU or no driver for one, and then *reason (static
 * text, or NULL) says which. */
srnn_status sr_cuda_device_count(int *count, const char **reason);

/* Facts about GPU number `index`, 0 .. count-1. */
srnn_status sr_cuda_device_describe(sr_cuda_device *device, int index);

/* What kernels of an open device are started with: its stream (a cudaStream_t), on the GPU that is made the
 * calling thread's; and its facts. */
struct CUstream_st *sr_cuda_stream(const srnn_device *device);
const sr_cuda_device *sr_cuda_facts(const srnn_device *device);

#ifdef __cplusplus
}
#endif

#endif
