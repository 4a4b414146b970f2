/* call.h: the arrays of one attention call, allocated together, and the call itself. */
#ifndef SR_VERIFY_CALL_H
#define SR_VERIFY_CALL_H

#include "equation/operands.h"

/* The words for srnn_form, in its order; ends in NULL. */
extern const char *const form_words[];

/* The arrays of a call: contiguous, of the problem's dtype (see sr_operand_dtype). */
typedef struct call_arrays {
    void *operand[SR_OPERANDS];  /* NULL: not read by the variant */
    void *gradient[SR_OPERANDS]; /* one per operand */
    void *o, *d_o;               /* (B, H, T, Dv) */
} call_arrays;

/* The arrays of a call: inputs, outputs. */
typedef struct attention_call {
    srnn_problem problem; /* all sizes set; the caller sets offsets */
    call_arrays host;
    /* copies in device memory; on the CPU the host arrays themselves */
    call_arrays device;
    const char *kernel; /* name of the kernel that ran last: static text */
    srnn_form form;
} attention_call;

/* Allocates the arrays, zeroed. Zero Hkv and Dv are replaced by their defaults. */
srnn_status call_create(attention_call *call, const srnn_problem *problem);

/* Leaves { 0 }, which may be freed again. */
void call_free(attention_call *call);

/* Copies inputs to the device, outputs back to the host; a no-op on the CPU. */
srnn_status call_send(attention_call *call);
srnn_status call_fetch(attention_call *call);

/* The operands and their gradients in device memory, as the library takes them. */
srnn_operands call_operands(const attention_call *call);
srnn_operands call_gradients(const attention_call *call);

/* Forward only: o. Sent and fetched. */
srnn_status call_forward(attention_call *call);

/* Forward and backward: o and the gradients. Sent and fetched. */
srnn_status call_forward_backward(attention_call *call);

#endif
