/* device.h: the GPUs of this machine. */
#ifndef SR_DEVICE_CUDA_DEVICE_H
#define SR_DEVICE_CUDA_DEVICE_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sr_cuda_device {
    char name[256];
    size_t memory_bytes;
    int multiprocessors;
    int capability_major, capability_minor; /* compute capability: 9, 0 is Hopper */
} sr_cuda_device;

/* *count = the GPUs that can be used; 0 where there is no GPU or no driver for one. */
srnn_status sr_cuda_device_count(int *count);

/* Facts about GPU number `index`, 0 .. count-1. */
srnn_status sr_cuda_device_describe(sr_cuda_device *device, int index);

#ifdef __cplusplus
}
#endif

#endif
