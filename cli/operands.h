/* operands.h: the operands of an attention call by number: names, shapes, and who uses them. */
#ifndef SR_CLI_OPERANDS_H
#define SR_CLI_OPERANDS_H

#include "softrnn.h"

typedef enum operand {
    OPERAND_Q,
    OPERAND_K,
    OPERAND_V,
    OPERAND_VALUE_GATE,
    OPERAND_OUTPUT_GATE,
    OPERAND_DECAY,
    OPERAND_NORM_WEIGHT,
    OPERAND_NORM_BIAS,
    OPERAND_VALUE_POWER,
} operand;

enum { OPERANDS = OPERAND_VALUE_POWER + 1, OPERAND_RANK_MAX = 4 };

typedef struct operand_shape {
    int rank;
    int64_t sizes[OPERAND_RANK_MAX];
} operand_shape;

/* As the members of srnn_operands: "q", "value_gate". */
const char *operand_name(operand which);

/* True if the variant reads it. */
bool operand_used(const srnn_attention *attention, operand which);

/* Its shape in a problem with all sizes given (no zero stands for a default). */
operand_shape operand_shape_in(const srnn_problem *problem, operand which);

/* The shape of the output. */
operand_shape output_shape_in(const srnn_problem *problem);

int64_t shape_elements(const operand_shape *shape);

/* The type of its numbers: the problem's, or, of learned vectors, the one in which those are summed. */
srnn_dtype operand_dtype(const srnn_problem *problem, operand which);

/* Puts contiguous data in its place. */
void operand_place(srnn_operands *operands, operand which, void *data);

#endif
