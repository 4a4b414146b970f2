/* check.h: a failed CUDA call becomes a status. */
#ifndef SR_DEVICE_CUDA_CHECK_H
#define SR_DEVICE_CUDA_CHECK_H

#include "base/status.h"

#include <cuda_runtime_api.h>

/* Every CUDA call goes through this: SR_CUDA(cudaMalloc(&data, bytes)); */
#define SR_CUDA(call)                                                                         \
    do {                                                                                      \
        cudaError_t sr_cuda_error = (call);                                                   \
        if (sr_cuda_error != cudaSuccess)                                                     \
            return sr_fail(sr_cuda_error == cudaErrorMemoryAllocation ? SRNN_ERR_MEMORY       \
                                                                      : SRNN_ERR_UNSUPPORTED, \
                           "CUDA: %s: %s", #call, cudaGetErrorString(sr_cuda_error));         \
    } while (0)

#endif
