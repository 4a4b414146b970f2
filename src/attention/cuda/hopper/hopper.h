/* hopper.h (private): the attention kernels of Hopper GPUs, in bf16. */
#ifndef SR_ATTENTION_CUDA_HOPPER_HOPPER_H
#define SR_ATTENTION_CUDA_HOPPER_HOPPER_H

#include "attention/kernel.h"

extern const sr_attention_kernel sr_cuda_attention_hopper;

/* The same forward; backward in one kernel, for long sequences, with more workspace. */
extern const sr_attention_kernel sr_cuda_attention_hopper_ordered;

/* The chunked form of linear scores with heads of 64 numbers and no decay; other calls fall back to
 * the chunked kernel. */
extern const sr_attention_kernel sr_cuda_attention_hopper_chunked;

#endif
