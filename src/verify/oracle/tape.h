/* tape.h (private): reverse-mode differentiation in double, so that derivatives need not be written
 * by hand. Every operation appends a term with its value and its partial derivatives with respect
 * to its inputs; one pass from the end then gives the derivative of the result with respect to
 * every term. After an allocation fails, terms are meaningless and sr_tape_backward fails. */
#ifndef SR_VERIFY_ORACLE_TAPE_H
#define SR_VERIFY_ORACLE_TAPE_H

#include "base/status.h"

typedef int32_t sr_term;

typedef struct sr_tape sr_tape;

srnn_status sr_tape_create(sr_tape **tape);
void sr_tape_free(sr_tape *tape);

/* From now on sr_tape_round and sr_tape_round_back round to this many significant bits (bf16: 8,
 * float: 24), numbers that have more of them as if they were kept times `scale` (1 to 2); before
 * the first call they return their argument. */
void sr_tape_use_bits(sr_tape *tape, int bits, double scale);

/* Removes every term. */
void sr_tape_clear(sr_tape *tape);

/* A constant or an input. */
sr_term sr_tape_number(sr_tape *tape, double value);
double sr_tape_value(const sr_tape *tape, sr_term a);

sr_term sr_tape_add(sr_tape *tape, sr_term a, sr_term b);
sr_term sr_tape_subtract(sr_tape *tape, sr_term a, sr_term b);
sr_term sr_tape_multiply(sr_tape *tape, sr_term a, sr_term b);
sr_term sr_tape_divide(sr_tape *tape, sr_term a, sr_term b);

/* factor * a + constant */
sr_term sr_tape_affine(sr_tape *tape, sr_term a, double factor, double constant);

/* f(a), given its value and its slope there. */
sr_term sr_tape_function(sr_tape *tape, sr_term a, double value, double slope);

/* Rounding to a narrower type: a becomes the nearest number of the type, and so does its
 * derivative. The second function rounds the derivative only. */
sr_term sr_tape_round(sr_tape *tape, sr_term a);
sr_term sr_tape_round_back(sr_tape *tape, sr_term a);

/* Terms that are `stride` apart. */
typedef struct sr_terms {
    const sr_term *first;
    int64_t stride;
} sr_terms;

/* sum_n a_n b_n and sum_n a_n */
sr_term sr_tape_dot(sr_tape *tape, sr_terms a, sr_terms b, int64_t count);
sr_term sr_tape_sum(sr_tape *tape, sr_terms a, int64_t count);

/* sum_n a_n b_n exp(up_n - down_n) over consecutive terms */
typedef struct sr_decayed {
    const sr_term *a, *b, *up, *down;
} sr_decayed;
sr_term sr_tape_decayed_dot(sr_tape *tape, sr_decayed terms, int64_t count);

/* The derivative of sum_n weights[n] outputs[n] with respect to every term. */
srnn_status sr_tape_backward(sr_tape *tape, const sr_term *outputs, const double *weights,
                             int64_t count);
double sr_tape_derivative(const sr_tape *tape, sr_term a);

#endif
