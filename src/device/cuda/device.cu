/* device.cu: the GPUs of this machine. */
#include "device/cuda/device.h"

#include "device/cuda/check.h"

#include <stdio.h>

srnn_status sr_cuda_device_count(int *count) {
    *count = 0;
    cudaError_t error = cudaGetDeviceCount(count);
    /* A machine without a GPU or a driver is not a failure. */
    if (error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver) {
        *count = 0;
        cudaGetLastError(); /* takes the error back, so that it is not seen again later */
        return SRNN_OK;
    }
    SR_CUDA(error);
    return SRNN_OK;
}

srnn_status sr_cuda_device_describe(sr_cuda_device *device, int index) {
    cudaDeviceProp facts;
    SR_CUDA(cudaGetDeviceProperties(&facts, index));
    *device = {};
    snprintf(device->name, sizeof device->name, "%s", facts.name);
    device->memory_bytes = facts.totalGlobalMem;
    device->multiprocessors = facts.multiProcessorCount;
    device->capability_major = facts.major;
    device->capability_minor = facts.minor;
    return SRNN_OK;
}
