/* operands.h: the table of operands: which of them a descriptor reads, their shapes, and how a
 * layer learns them. Checks, strides, layer tensors, files, gradient tests and the list of learned
 * tensors follow from it. A new operand is a member of srnn_operands, an enumerator and a row
 * here. */
#ifndef SR_EQUATION_OPERANDS_H
#define SR_EQUATION_OPERANDS_H

#include "softrnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order in which layers store their learned tensors. */
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

/* The sizes that shapes consist of. */
typedef enum sr_extent {
    SR_EXTENT_ONE,
    SR_EXTENT_H,
    SR_EXTENT_HKV,
    SR_EXTENT_D,
    SR_EXTENT_DV,
    SR_EXTENT_LEVELS,
    SR_EXTENT_WIDER, /* the larger of D and Dv */
    /* Determined by the variant: */
    SR_EXTENT_HQ,          /* heads of q: H, or Hkv where q and k are shared */
    SR_EXTENT_HV,          /* heads of v: Hkv, or H there */
    SR_EXTENT_GATE,        /* width of an output gate: 1 or Dv */
    SR_EXTENT_DECAY,       /* width of a decay: 1 or D */
    SR_EXTENT_DECAY_HEADS, /* heads that have a decay: those of v, or of k */
    SR_EXTENT_WRITE,       /* width of a write gate: 1 or Dv */
    SR_EXTENT_DT,          /* width of dt_bias: 1 or D */
    SR_EXTENT_SKIP,        /* width of the skip's weight: 1, D or Dv */
    SR_EXTENT_NORM,        /* heads with their own norm weights: 1 or H */
} sr_extent;

/* How a layer computes an operand. */
typedef enum sr_origin {
    SR_ORIGIN_INPUTS,     /* q, k, v: by the layer's own rules */
    SR_ORIGIN_PROJECTION, /* by a linear layer of its input: weight (heads, C) and bias (heads) */
    SR_ORIGIN_LEARNED,    /* it is a parameter */
} sr_origin;

typedef struct sr_operand_row {
    const char *name; /* name of the member of srnn_operands, and in files of heads */
    size_t offset;    /* offset of the member: a srnn_tensor, or a pointer for parameters */
    sr_extent heads;  /* a tensor is (B, heads, T, width), without width if that is 1; */
    sr_extent width;  /* a parameter is (heads, width), without dimensions of 1 */
    sr_origin origin;
    const char *file; /* name of the learned tensor in the reference's checkpoints */
    double initial;   /* initial value of a parameter */
    int file_rank;    /* dimensions in files: 1; 2: (heads, width); 4: (1, width, 1, 1) */
} sr_operand_row;

const sr_operand_row *sr_operand_at(sr_operand which);

/* True if the variant reads it. */
bool sr_operand_used(sr_operand which, const srnn_attention *attention);

/* True for an array over positions, with strides; false for a parameter. */
bool sr_operand_is_tensor(sr_operand which);

/* The size in a problem with all sizes set (no zero defaults). */
int64_t sr_extent_in(sr_extent extent, const srnn_problem *problem);

typedef struct sr_shape {
    int rank;
    int64_t sizes[SR_OPERAND_RANK];
} sr_shape;

/* The shapes of an operand and of the output, and the number of elements of a shape. */
sr_shape sr_operand_shape(sr_operand which, const srnn_problem *problem);
sr_shape sr_output_shape(const srnn_problem *problem);
int64_t sr_shape_numbers(const sr_shape *shape);

/* Its dtype: the problem's, or, for parameters, the type of sums. */
srnn_dtype sr_operand_dtype(sr_operand which, const srnn_problem *problem);

/* Gets and sets its data in a set of operands; set makes it contiguous. */
void *sr_operand_data(sr_operand which, const srnn_operands *operands);
void sr_operand_place(sr_operand which, srnn_operands *operands, void *data);

/* The tensor itself; only where sr_operand_is_tensor. */
srnn_tensor sr_operand_tensor(sr_operand which, const srnn_operands *operands);
void sr_operand_set_tensor(sr_operand which, srnn_operands *operands, srnn_tensor tensor);

#ifdef __cplusplus
}
#endif

#endif
