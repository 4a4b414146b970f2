/* pooled.h (private): the kernel for pooled keys, for one number type and instruction set. */
#ifndef SR_ATTENTION_CPU_POOLED_POOLED_H
#define SR_ATTENTION_CPU_POOLED_POOLED_H

#include "attention/cpu/shared/real.h"
#include "attention/kernel.h"

#define pooled_forward  SR_ISA_REAL(sr_pooled_forward)
#define pooled_backward SR_ISA_REAL(sr_pooled_backward)
#define pooled_scratch  SR_ISA_REAL(sr_pooled_scratch)

size_t pooled_scratch(const srnn_plan *plan);
srnn_status pooled_forward(const sr_attention_call *call);
srnn_status pooled_backward(const sr_attention_call *call);

#endif
