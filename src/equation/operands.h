/* operands.h: the one table of what the equation reads: which operands a descriptor has, their
 * shapes, and how a layer learns them.
 *
 * Checks, strides, layer tensors, files, gradient tests and the list of learned tensors follow from
 * it. A new operand is a member of srnn_operands, an enumerator and a row here. */
#ifndef SR_EQUATION_OPERANDS_H
#define SR_EQUATION_OPERANDS_H

#include "softrnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order in which layers keep what they learn for them. */
typedef enum sr_operand {
    SR_OPERAND_Q,
    SR_OPERAND_K,
    SR_OPERAND_V,
    SR_OPERAND_OUTPUT_GATE,
    SR_OPERAND_VALUE_GATE,
    SR_OPERAND_DECAY,
    SR_OPERAND_WRITE_GATE,
    SR_OPERAND_ERASE_GATE,
    SR_OPERAND_REMOVAL_KEY,
    SR_OPERAND_REMOVAL_GATE,
    SR_OPERAND_LEVEL_GATE,
    SR_OPERAND_POOL_GATE,
    SR_OPERAND_SKIP,
    SR_OPERAND_NORM_WEIGHT,
    SR_OPERAND_NORM_BIAS,
    SR_OPERAND_VALUE_POWER,
    SR_OPERAND_A_LOG,
    SR_OPERAND_DT_BIAS,
    SR_OPERAND_SKIP_WEIGHT,
    SR_OPERAND_LEVEL_SCALE,
    SR_OPERAND_SINKS,
} sr_operand;

enum { SR_OPERANDS = SR_OPERAND_SINKS + 1, SR_OPERAND_RANK = 4 };

/* Sizes that shapes are made of. */
typedef enum sr_extent {
    SR_EXTENT_ONE,
    SR_EXTENT_H,
    SR_EXTENT_HKV,
    SR_EXTENT_D,
    SR_EXTENT_DV,
    SR_EXTENT_LEVELS,
    SR_EXTENT_WIDER, /* the larger of D and Dv */
    /* What the variant decides: */
    SR_EXTENT_HQ,          /* heads of q: H, or Hkv where q and k are shared */
    SR_EXTENT_HV,          /* heads of v: Hkv, or H there */
    SR_EXTENT_GATE,        /* numbers of an output gate: 1 or Dv */
    SR_EXTENT_DECAY,       /* of a decay: 1 or D */
    SR_EXTENT_DECAY_HEADS, /* that have one: those of v, or of k */
    SR_EXTENT_WRITE,       /* of a write gate: 1 or Dv */
    SR_EXTENT_DT,          /* of dt_bias: 1 or D */
    SR_EXTENT_SKIP,        /* of a weight of the skip: 1, D or Dv */
    SR_EXTENT_NORM,        /* heads that a norm has its own weights for: 1 or H */
} sr_extent;

/* Where a layer has it from. */
typedef enum sr_origin {
    SR_ORIGIN_INPUTS,     /* q, k, v: the layer's own business */
    SR_ORIGIN_PROJECTION, /* a linear layer of its input: weight (heads, C) and bias (heads) */
    SR_ORIGIN_LEARNED,    /* it is learned itself */
} sr_origin;

typedef struct sr_operand_row {
    const char *name; /* of the member of srnn_operands, and in files of heads */
    size_t offset;    /* of the member: a srnn_tensor, or a pointer for what is learned itself */
    sr_extent heads;  /* a tensor is (B, heads, T, width), without width if that is one; */
    sr_extent width;  /* what is learned itself is (heads, width), without a one */
    sr_origin origin;
    const char *file; /* of what is learned, as the reference's checkpoints call it */
    double initial;   /* of what is learned itself */
    int file_rank; /* 1; 2 where the file has it as (heads, width), 4 where as (1, width, 1, 1) */
} sr_operand_row;

const sr_operand_row *sr_operand_at(sr_operand which);

/* True if the variant reads it. */
bool sr_operand_used(sr_operand which, const srnn_attention *attention);

/* True for an array over positions, with strides; false for what is learned itself. */
bool sr_operand_is_tensor(sr_operand which);

/* The size in a problem with all sizes given (no zero stands for a default). */
int64_t sr_extent_in(sr_extent extent, const srnn_problem *problem);

typedef struct sr_shape {
    int rank;
    int64_t sizes[SR_OPERAND_RANK];
} sr_shape;

/* The shapes of an operand and of the output, and how many numbers a shape has. */
sr_shape sr_operand_shape(sr_operand which, const srnn_problem *problem);
sr_shape sr_output_shape(const srnn_problem *problem);
int64_t sr_shape_numbers(const sr_shape *shape);

/* The type of its numbers: the problem's, or, of what is learned itself, the one in which those are
 * summed. */
srnn_dtype sr_operand_dtype(sr_operand which, const srnn_problem *problem);

/* Where its numbers are in a set of operands; and putting them there, contiguous. */
void *sr_operand_data(sr_operand which, const srnn_operands *operands);
void sr_operand_place(sr_operand which, srnn_operands *operands, void *data);

/* The tensor itself; only where sr_operand_is_tensor. */
srnn_tensor sr_operand_tensor(sr_operand which, const srnn_operands *operands);
void sr_operand_set_tensor(sr_operand which, srnn_operands *operands, srnn_tensor tensor);

#ifdef __cplusplus
}
#endif

#endif
