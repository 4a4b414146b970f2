/* absent.c: the GPUs of a build without CUDA: none. */
#include "device/cuda/device.h"

srnn_status sr_cuda_device_count(int *count, const char **reason) {
    *count = 0;
    *reason = "this build has no CUDA: build it with `make cuda`";
    return SRNN_OK;
}

srnn_status sr_device_cuda_open(srnn_device **device, int index) {
    *device = NULL;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "cuda:%d: this build has no CUDA: build it with `make cuda`", index);
}

srnn_status sr_cuda_device_describe(sr_cuda_device *device, int index) {
    (void)device;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "GPU %d: this build has no CUDA", index);
}
