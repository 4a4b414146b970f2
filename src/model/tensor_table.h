/* tensor_table.h: a list of learned tensors: name, shape, initialiser, place in an arena.
 *
 * Parameters, gradients, optimiser state, file order and the printout all follow from it. */
#ifndef SR_MODEL_TENSOR_TABLE_H
#define SR_MODEL_TENSOR_TABLE_H

#include "ops/backend.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum sr_initialiser {
    SR_INIT_CONSTANT = 0, /* size */
    SR_INIT_NORMAL,       /* mean 0, standard deviation the model's initial range */
    SR_INIT_NORMAL_OF,    /* mean 0, standard deviation size */
    SR_INIT_UNIFORM,      /* between -size and size */
    SR_INIT_LOG_UNIFORM,  /* logarithms of numbers between low and size */
    SR_INIT_LOG_COUNT,    /* logarithms of 1, 2, 3, .. */
    /* softplus^-1 of numbers between 0.001 and 0.1, uniform in their logarithm */
    SR_INIT_TIME_STEP,
    SR_INIT_ORTHOGONAL, /* a matrix whose rows or columns have length size, at right angles */
    SR_INIT_SHIFT,      /* 1 - (n/count)^low */
    SR_INIT_CURVE,      /* of `curve` */
} sr_initialiser;

/* from + linear (p - 1/2) + zigzag z|z| + power p^exponent of number n, with p from 0 to 1 over all
 * numbers and z from -1 to 1 over each `width` of them. */
typedef struct sr_curve {
    double from, linear, zigzag, power, exponent;
    int width;
} sr_curve;

enum { SR_SPEC_NAME = 96, SR_SPEC_RANK = 4 };

typedef struct sr_tensor_spec {
    char name[SR_SPEC_NAME]; /* "model.layers.0.self_attn.q_proj.weight" */
    int rank;
    int64_t shape[SR_SPEC_RANK];
    sr_initialiser initialiser;
    double size, low; /* of the initialiser, but of SR_INIT_NORMAL */
    sr_curve curve;
    bool undecayed; /* its authors train it without weight decay */
    int slot;       /* what it is to its layer */
    int layer;      /* which that is; meaningless outside of layers */
    size_t count;   /* numbers: the product of the shape */
    size_t start;   /* first number in the arena, a multiple of 16 */
} sr_tensor_spec;

typedef struct sr_tensor_table {
    sr_tensor_spec *specs; /* (count), owned */
    size_t count, capacity;
    size_t numbers; /* in the whole arena, gaps included */
} sr_tensor_table;

/* Appends a copy of the spec, with count and start worked out. Fails if sizes overflow. */
srnn_status sr_tensor_table_add(sr_tensor_table *table, const sr_tensor_spec *spec);
void sr_tensor_table_free(sr_tensor_table *table); /* leaves { 0 } */

/* The row with this name, or NULL. */
const sr_tensor_spec *sr_tensor_table_find(const sr_tensor_table *table, const char *name);

/* ranges (at most count of them) = the places in the arena of tensors without weight decay, in
 * order; returns how many there are. */
size_t sr_tensor_table_undecayed(sr_number_range *ranges, const sr_tensor_table *table);

/* Numbers that are learned, gaps not counted. */
size_t sr_tensor_table_learned(const sr_tensor_table *table);

/* out (count) = the tensor's initial values. They depend on its name and the seed, not on its place
 * in a table, so that models that differ in other tensors start equal in this one, nor on `threads`
 * (0: every core). */
void sr_tensor_initialise(float *out, const sr_tensor_spec *spec, double range, uint64_t seed,
                          int threads);

#endif
