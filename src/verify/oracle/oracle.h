/* oracle.h (private): the equation of docs/VARIANTS.md in double, term by term: the reference for
 * all kernels. It shares no code with them: neither the facts derived from a descriptor, nor the
 * mathematics of scores, features, gates and norms, nor any derivative (a tape computes these).
 * Values that it does not declare are refused. It takes O(T^2 D) time and memory, so problems must
 * be small. */
#ifndef SR_VERIFY_ORACLE_ORACLE_H
#define SR_VERIFY_ORACLE_ORACLE_H

#include "base/status.h"

/* o (B, H, T, Dv) and, unless `gradients` is NULL, the gradient of sum(o * d_o) with respect to
 * every operand that has data in `gradients`. Everything is double and contiguous, and every size
 * of the problem must be set; its form, kernel and device are ignored. With dtype bf16 or float it
 * simulates a plain program of matrix products: sums are exact, but inputs and outputs of products
 * are rounded (operands, features, values with their factors, what the delta rule writes, weights,
 * numerators, outputs), and so are the derivatives with respect to these and to the logits. */
srnn_status sr_oracle_run(double *o, const srnn_operands *gradients, const double *d_o,
                          const srnn_problem *problem, const srnn_operands *in);

/* The same, and the clearance: how close any number came to a kink, where the slope of the equation
 * jumps (a clamp, the lower bound of a normaliser), relative to the position of the kink. Numbers
 * exactly at a kink do not count; infinity: no kink. */
srnn_status sr_oracle_run_clear(double *o, const srnn_operands *gradients, const double *d_o,
                                const srnn_problem *problem, const srnn_operands *in,
                                double *clearance);

/* Other computations that round as much. With dtype bf16 or float the plain program keeps its
 * numbers times `scale`, 1 to 2, as kernels do that take another maximum out of a row: as many
 * roundings, of the same sizes, of other numbers up and down. Unless state_seed is 0, earlier
 * tokens are read from a state, and every product of n numbers of a key that it holds is half an
 * ulp of bf16 (with float and double: of float) off, up or down depending on the seed. No order of
 * summation is more accurate than that: (q k)^n may be small where the products it sums are not.
 * Seven parameters: those of every run, and the two that make it another one. */
srnn_status sr_oracle_run_rounded(double *o, const srnn_operands *gradients, const double *d_o,
                                  const srnn_problem *problem, const srnn_operands *in,
                                  double scale, uint64_t state_seed);

#endif
