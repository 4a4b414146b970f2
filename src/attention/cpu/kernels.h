/* kernels.h (private): the attention kernels of the CPU. */
#ifndef SR_ATTENTION_CPU_KERNELS_H
#define SR_ATTENTION_CPU_KERNELS_H

#include "attention/kernel.h"

/* The instruction set is chosen at the first call and does not change afterwards. */
extern const sr_attention_kernels sr_cpu_attention;

#endif
