/* probe.h: a random attention problem, run by any kernel and compared with the double oracle.
 * Shared by verify, bench and the tests. */
#ifndef SR_VERIFY_PROBE_H
#define SR_VERIFY_PROBE_H

#include "verify/call.h"

#include <stdbool.h>

/* Allocates the arrays and fills operands and d_o from the seed. Float and double probes of one
 * seed hold the same numbers. */
srnn_status probe_create(attention_call *run, const srnn_problem *problem, uint64_t seed);

/* The same with the data of another probe of the same sizes: drawing them again takes longer than
 * most calls. */
srnn_status probe_copy(attention_call *run, const srnn_problem *problem,
                       const attention_call *from);

/* Forward through srnn_state_feed in pieces of random length; the state is saved and loaded between
 * pieces. */
srnn_status probe_feed(attention_call *run, uint64_t seed);

/* The same token by token in one state, as generation does; a piece of `piece` tokens follows every
 * 10th one (0: none). */
srnn_status probe_feed_tokens(attention_call *run, int piece);

/* A double probe, computed by the oracle, which is not a kernel. `oracle` must be freed. Its
 * operands are those of probe_create with this seed or, if these are so close to a clamp that float
 * may fall on the other side, those of another seed. For about half of all lengths T some gates of
 * a decay forget everything before them. */
srnn_status probe_oracle(attention_call *oracle, const srnn_problem *problem, uint64_t seed);

/* The relative errors of one run: of the gradient of each operand that has one, then of the
 * output. */
enum { PROBE_OUTPUT = SR_OPERANDS, PROBE_TENSORS };

typedef struct probe_errors {
    double of[PROBE_TENSORS];
} probe_errors;

/* Norm of the difference divided by the norm of the oracle; NaN if either has one. Gradients that
 * cancel are measured against a fraction of the gradient of v; without `gradients` their errors are
 * 0. */
probe_errors probe_errors_of(const attention_call *run, const attention_call *oracle,
                             bool gradients);

/* The largest of them; NaN if one is. */
double probe_worst(const probe_errors *errors);

/* The errors of a plain computation in the problem's dtype, by the oracle; `oracle` is the exact
 * result. */
srnn_status probe_plain_errors(probe_errors *errors, const srnn_problem *problem,
                               const attention_call *oracle);

/* The largest errors of plain computations that keep their numbers at other scales, which round as
 * much but other numbers up and down; {0}: of none yet. Of a tensor of many numbers all lose the
 * same. A gradient that is one number per head, a sum over all tokens, has an error of either sign
 * and any size: of two computations that round alike, one is off by more than twice the other's
 * error in 20 % of all problems of two heads, by more than twice the largest of n others in
 * 24 / ((n+1)(n+2)(n+3)(n+4)). If the form is chunked or recurrent, and the variant has a state,
 * these computations read a state in the problem's dtype, an operand of products like the others:
 * where a query is nearly orthogonal to the keys in it, weights are far smaller than what they are
 * sums of. */
typedef struct probe_plain {
    probe_errors worst;
    int count;
} probe_plain;

/* Whether every tensor is within `limit`, or within probe_plain_limit of its largest plain error.
 * Adds plain computations until it is, 32 at most. */
srnn_status probe_is_plain(bool *is, probe_plain *plain, const probe_errors *errors, double limit,
                           const srnn_problem *problem, const attention_call *oracle);

/* The unavoidable error of each tensor: the largest of plain computations in float, at several
 * scales, and of exact ones on operands that are half an ulp off. Where terms cancel, as those of
 * one key do before a norm over the row, no order of summation helps. One such row may dominate a
 * gradient, and one plain computation may happen to round well there. Neither kind is enough: exact
 * computations have no part of a gradient along a row that its norm divides by its length, whatever
 * their operands. If the form is chunked or recurrent, and the score a series or a power, also a
 * quarter of the errors of exact computations with a state that is off like that. */
srnn_status probe_find_losses(probe_errors *losses, const srnn_problem *problem,
                              const attention_call *oracle);

/* Whether every tensor is within the limit, or within sixteen times its unavoidable error and 1e-3.
 * Numbers that are not finite never pass. */
bool probe_is_excused(const probe_errors *errors, const probe_errors *losses, double limit);

/* Runs the oracle on the operands of a double call. */
srnn_status probe_oracle_run(attention_call *oracle);

/* A valid combination of all axes of the equation, each at its default half of the time. */
srnn_attention probe_attention(uint64_t seed);

/* The error of the output; the largest error of a gradient. */
double probe_output_error(const attention_call *run, const attention_call *oracle);
double probe_gradient_error(const attention_call *run, const attention_call *oracle);

/* The largest error that passes for a form of a problem, by dtype. If the error of the plain
 * computation is known, bf16 passes up to probe_plain_limit of it instead. */
double probe_limit(const srnn_problem *problem, srnn_form form);
double probe_plain_limit(double plain_error);

#endif
