/* oracle.h (private): the equation of docs/VARIANTS.md in double, term by term, to judge kernels
 * by.
 *
 * It shares no line with what it judges: not the facts derived from a descriptor, nor the
 * mathematics of scores, features, gates and norms, nor any derivative (a tape finds them). It
 * takes O(T^2 D) time and memory, for small problems. */
#ifndef SR_VERIFY_ORACLE_ORACLE_H
#define SR_VERIFY_ORACLE_ORACLE_H

#include "base/status.h"

/* o (B, H, T, Dv) and, where `gradients` is not NULL, the gradient of sum(o * d_o) by every operand
 * that has data in `gradients`. Everything is double and contiguous, every size of the problem
 * given; the problem's form, kernel and device do not matter. With the number type bf16 or float it
 * computes as a plain program of matrix products would: sums are exact, but what enters a product
 * or leaves one is rounded to it (operands, features, values with their factors, weights,
 * numerators, outputs), and so are the derivatives by these and by the logits. */
srnn_status sr_oracle_run(double *o, const srnn_operands *gradients, const double *d_o,
                          const srnn_problem *problem, const srnn_operands *in);

/* The same, and how near anything came to an edge where the equation's slope jumps (a clamp, the
 * least that a normaliser is): the least distance as a part of where the edge is. What stands
 * exactly there does not count; infinity: nothing has an edge. */
srnn_status sr_oracle_run_clear(double *o, const srnn_operands *gradients, const double *d_o,
                                const srnn_problem *problem, const srnn_operands *in,
                                double *clearance);

/* In double, but as through a state of floats, for series and powers that have one: every product
 * of n numbers of a key that stands in it is half a unit of float's last place off, up or down by
 * the seed. No order of summation knows the answer better than that: (q k)^n may be small where the
 * products that it is the sum of are not. */
srnn_status sr_oracle_run_state(double *o, const srnn_operands *gradients, const double *d_o,
                                const srnn_problem *problem, const srnn_operands *in,
                                uint64_t seed);

#endif
