/* problem.h (private): checks and defaults that plans and states share. */
#ifndef SR_ATTENTION_PROBLEM_H
#define SR_ATTENTION_PROBLEM_H

#include "attention/kernel.h"

#include "base/status.h"

/* Fills in what 0 stands for (Hkv, Dv, threads, chunk, state_limit) and checks the rest. */
srnn_status sr_problem_fill(srnn_problem *problem);

/* plan->core from plan->problem. */
void sr_plan_fill_core(srnn_plan *plan);

/* "float", "double", "bf16". */
const char *sr_element_name(srnn_dtype dtype);

/* Takes plan->first and plan->host_first (one array where the device is the host) for B*T tokens,
 * and plan->counters. */
srnn_status sr_plan_take_first(srnn_plan *plan);

/* Gives back everything that a plan holds, but not the plan. */
void sr_plan_clear(srnn_plan *plan);

/* SRNN_OK if a filled problem may use a fixed-size state; else the reason. */
srnn_status sr_problem_check_state(const srnn_problem *problem);

/* SRNN_OK if the levels reach over a document of this many tokens. */
srnn_status sr_problem_check_length(const srnn_problem *problem, int64_t tokens);

/* SRNN_OK if every operand that the variant reads is there, and if tensors have all strides or
 * none; the same of gradients, of which none need be there, and of the output or its gradient. */
srnn_status sr_problem_check_operands(const srnn_operands *in, const srnn_problem *problem);
srnn_status sr_problem_check_gradients(const srnn_operands *gradients, const srnn_problem *problem);
srnn_status sr_problem_check_output(srnn_tensor o, const srnn_problem *problem, const char *name);

/* The same tensor with its strides filled in: contiguous (B, heads, T, width) where they were 0. */
srnn_tensor sr_problem_stride(srnn_tensor tensor, const srnn_problem *problem, int64_t heads,
                              int64_t width);
srnn_operands sr_problem_stride_operands(const srnn_operands *in, const srnn_problem *problem);

#endif
