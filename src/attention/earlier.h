/* earlier.h: attention in blocks of keys: those of the queries' own tokens first, by the ordinary
 * calls, then those of earlier parts of the rows, which other ranks have. A block is computed where
 * the queries are, or where the keys are; then the queries are visitors there. */
#ifndef SR_ATTENTION_EARLIER_H
#define SR_ATTENTION_EARLIER_H

#include "attention/kernel.h"

/* The axis whose value needs more of earlier keys than the keys, values and value gates that
 * travel; NULL: blocks of them can be added one after the other. */
const char *sr_attention_earlier_refusal(const srnn_attention *attention);

/* Fails where the plan's kernel or variant does not take earlier keys. */
srnn_status sr_plan_check_earlier(const srnn_plan *plan);

/* Adds the keys and (gated) values of `in` to o and to what forward saved (not NULL). With keys
 * that no query sees it makes o anew from what is saved. */
srnn_status sr_attention_earlier_forward(srnn_plan *plan, srnn_tensor o, const srnn_operands *in,
                                         void *saved, const sr_earlier_keys *earlier);

/* After all of them: writes the gradients of the keys, values and value gates of `in`, what they
 * add to that of q, and once more those of everything else but decays. */
srnn_status sr_attention_earlier_backward(srnn_plan *plan, const srnn_operands *gradients,
                                          srnn_tensor d_o, const srnn_operands *in,
                                          const void *saved, const sr_earlier_keys *earlier);

/* srnn_attention_backward, which also leaves in d_saved, as forward saved them, the gradients of
 * numerators and row sums, and the maxima: what visitors need. */
srnn_status sr_attention_sums_backward(srnn_plan *plan, const srnn_operands *gradients,
                                       srnn_tensor d_o, const srnn_operands *in, const void *saved,
                                       void *d_saved);

/* From now on running sums of output gates begin as in sr_part_sums. */
void sr_plan_take_sums(srnn_plan *plan, const double *before, double *d_before);

/* From now on calls with the part's own keys leave C as in sr_part_decays. */
void sr_plan_leave_decays(srnn_plan *plan, double *own, double *end);

/* The gradients of the decays of `in`, and of what is learned of them, from those of C. */
srnn_status sr_attention_decays_backward(srnn_plan *plan, const srnn_operands *gradients,
                                         const srnn_operands *in, const void *saved,
                                         const double *d_own, const double *d_end);

/* Visitors: `in` has the queries of another rank, and this rank's keys and values. Forward saves
 * their sums over these keys alone. Backward writes the gradients of q, k, v and value gates
 * alone, from d_saved as above. */
srnn_status sr_attention_visitors_forward(srnn_plan *plan, const srnn_operands *in, void *saved,
                                          const sr_earlier_keys *earlier);
srnn_status sr_attention_visitors_backward(srnn_plan *plan, const srnn_operands *gradients,
                                           const srnn_operands *in, const void *d_saved,
                                           const sr_earlier_keys *earlier);

#endif
