/* chunked.h (private): the chunked and recurrent forms for one number type and instruction set. */
#ifndef SR_ATTENTION_CPU_CHUNKED_CHUNKED_H
#define SR_ATTENTION_CPU_CHUNKED_CHUNKED_H

#include "attention/cpu/shared/prologue.h"
#include "attention/kernel.h"

#define chunked_forward          SR_ISA_REAL(sr_chunked_forward)
#define chunked_forward_scratch  SR_ISA_REAL(sr_chunked_forward_scratch)
#define chunked_feed             SR_ISA_REAL(sr_chunked_feed)
#define chunked_state_bytes      SR_ISA_REAL(sr_chunked_state_bytes)
#define chunked_backward         SR_ISA_REAL(sr_chunked_backward)
#define chunked_backward_scratch SR_ISA_REAL(sr_chunked_backward_scratch)

size_t chunked_forward_scratch(const srnn_plan *plan);
srnn_status chunked_forward(const sr_attention_call *call);

size_t chunked_backward_scratch(const srnn_plan *plan);
srnn_status chunked_backward(const sr_attention_call *call);

/* Like forward, for the next plan->problem.T tokens of sequences. Reads and updates their states,
 * (B, Hkv) of them in one block, and their running sums. All bytes zero is the state before the
 * first token. `capacity` is ignored: the state has a fixed size. */
srnn_status chunked_feed(const sr_attention_call *call, char *states, int64_t capacity,
                         sr_carry *carry);

/* Bytes of the state of one kv head, padding included. */
size_t chunked_state_bytes(const srnn_problem *problem);

#endif
