/* attention_kernels.cu: which attention kernels a GPU has. */
#include "device/cuda/attention_kernels.h"

#include "device/cuda/attention_generic.h"
#include "device/cuda/attention_mma.h"

const sr_attention_kernel *const *sr_cuda_attention_kernels(void) {
    static const sr_attention_kernel *const kernels[] = {&sr_cuda_attention_mma,
                                                         &sr_cuda_attention_generic, nullptr};
    return kernels;
}

const sr_state_kernel *sr_cuda_state_kernel(srnn_dtype dtype, bool fixed) {
    (void)dtype, (void)fixed;
    return nullptr;
}
