/* rounded.h (private): the flash kernel with products of bf16 numbers, for one level: SR_ISA are its
 * vectors, SR_ROUNDED what multiplies. */
#ifndef SR_ATTENTION_CPU_ROUNDED_ROUNDED_H
#define SR_ATTENTION_CPU_ROUNDED_ROUNDED_H

#include "attention/cpu/shared/real.h"
#include "attention/kernel.h"

#define SR_LEVEL(name) SR_EXPAND3(name, SR_ROUNDED, f32)

#define rounded_forward          SR_LEVEL(sr_rounded_forward)
#define rounded_forward_scratch  SR_LEVEL(sr_rounded_forward_scratch)
#define rounded_backward         SR_LEVEL(sr_rounded_backward)
#define rounded_backward_scratch SR_LEVEL(sr_rounded_backward_scratch)

size_t rounded_forward_scratch(const srnn_plan *plan);
srnn_status rounded_forward(const sr_attention_call *call);

size_t rounded_backward_scratch(const srnn_plan *plan);
srnn_status rounded_backward(const sr_attention_call *call);

#endif
