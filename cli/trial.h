/* trial.h: a random attention problem, run by any kernel and compared with the double oracle.
 * Shared by verify, bench and the tests. */
#ifndef SR_CLI_TRIAL_H
#define SR_CLI_TRIAL_H

#include "operands.h"

/* The arrays of one problem: what goes in, what comes out. Contiguous, of the problem's dtype. */
typedef struct trial {
    srnn_problem problem;     /* sizes all given; offsets are the caller's */
    void *operand[OPERANDS];  /* NULL where the variant has no use for it */
    void *gradient[OPERANDS]; /* beside every operand */
    void *o, *d_o;            /* (B, H, T, Dv) */
} trial;

/* Allocates the arrays and fills operands and d_o from the seed. Float and double trials of one
 * seed hold the same numbers. Zero Hkv and Dv are replaced by their defaults. */
srnn_status trial_create(trial *run, const srnn_problem *problem, uint64_t seed);

/* Leaves { 0 }, which may be freed again. */
void trial_free(trial *run);

/* The operands, and their gradients, as the library takes them. */
srnn_operands trial_operands(const trial *run);
srnn_operands trial_gradients(const trial *run);

/* Forward only: o. */
srnn_status trial_forward(trial *run);

/* Forward and backward: o and the gradients. */
srnn_status trial_forward_backward(trial *run);

/* Forward through srnn_state_feed in pieces of random length, the state saved and loaded between
 * two of them. */
srnn_status trial_feed(trial *run, uint64_t seed);

/* A double trial with the same numbers, run by the generic kernel. `oracle` must be freed. */
srnn_status trial_oracle(trial *oracle, const srnn_problem *problem, uint64_t seed);

/* Norm of the difference by norm of the oracle; absolute (root mean square) where the oracle
 * vanishes. NaN if either has one. The worst of the gradients for the second. */
double trial_output_error(const trial *run, const trial *oracle);
double trial_gradient_error(const trial *run, const trial *oracle);

#endif
