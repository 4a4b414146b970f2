/* stream.h: a GPU that is open, as kernels see it. */
#ifndef SR_DEVICE_CUDA_STREAM_H
#define SR_DEVICE_CUDA_STREAM_H

#include "device/device.h"

#include <cuda_runtime_api.h>

/* What a srnn_device of a GPU is the beginning of. */
typedef struct sr_cuda_opened {
    srnn_device device;
    cudaStream_t stream; /* where its work goes now */
} sr_cuda_opened;

static inline cudaStream_t sr_cuda_stream(const srnn_device *device) {
    return ((const sr_cuda_opened *)device)->stream;
}

#endif
