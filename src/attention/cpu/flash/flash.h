/* flash.h (private): forward and backward of the flash kernel for one number type and instruction
 * set. */
#ifndef SR_ATTENTION_CPU_FLASH_FLASH_H
#define SR_ATTENTION_CPU_FLASH_FLASH_H

#include "attention/cpu/shared/prologue.h"
#include "attention/kernel.h"

#define flash_forward          SR_ISA_REAL(sr_flash_forward)
#define flash_forward_scratch  SR_ISA_REAL(sr_flash_forward_scratch)
#define flash_feed             SR_ISA_REAL(sr_flash_feed)
#define flash_feed_scratch     SR_ISA_REAL(sr_flash_feed_scratch)
#define flash_backward         SR_ISA_REAL(sr_flash_backward)
#define flash_backward_scratch SR_ISA_REAL(sr_flash_backward_scratch)

size_t flash_forward_scratch(const srnn_plan *plan);
srnn_status flash_forward(const sr_attention_call *call);

/* Like forward, for the next plan->problem.T tokens, against a KV cache with room for `capacity`
 * tokens, to which the call's keys and values are appended. */
size_t flash_feed_scratch(const srnn_plan *plan);
srnn_status flash_feed(const sr_attention_call *call, char *cache, int64_t capacity,
                       sr_carry *carry);

size_t flash_backward_scratch(const srnn_plan *plan);
srnn_status flash_backward(const sr_attention_call *call);

#endif
