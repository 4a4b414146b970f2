/* form.h: the forms of a layer, as data: from which projections, convolutions and learned vectors
 * it makes what the equation reads, and what files call them.
 *
 * What a form does not mention is made as the table of operands says, and each has the convolutions
 * that its variant may lack, so that every form goes with every variant. */
#ifndef SR_MODEL_LAYER_FORM_H
#define SR_MODEL_LAYER_FORM_H

#include "equation/operands.h"
#include "model/tensor_table.h"

/* What columns of a projection are: an operand (SR_PART), or the input of another projection. */
typedef enum sr_part {
    SR_PART_NONE = 0, /* ends a list; as a source: the layer's input */
    SR_PART_RANK,     /* (rank): the narrow middle of a projection in two steps */
    SR_PART_RANK_2,   /* (rank): of another one */
    SR_PART_OPERANDS,
} sr_part;

#define SR_PART(which) (SR_PART_OPERANDS + SR_OPERAND_##which)

/* Values that a tensor starts with. */
typedef enum sr_start_rule {
    SR_START_RANGE = 0,   /* normal, of the model's initial range */
    SR_START_FAN,         /* uniform within 1 / sqrt(inputs), as torch.nn.Linear starts */
    SR_START_FAN_DEPTH,   /* the same over sqrt(layers of the model) */
    SR_START_VALUE,       /* `low` */
    SR_START_LOG_UNIFORM, /* logarithms of numbers between `low` and `high` */
    SR_START_LOG_COUNT,   /* logarithms of 1, 2, 3, .. */
    /* softplus^-1 of numbers between 0.001 and 0.1, uniform in their logarithm */
    SR_START_TIME_STEP,
    SR_START_LOG_POOL, /* logarithms of numbers between 1 and pool - 1 */
} sr_start_rule;

typedef struct sr_start {
    sr_start_rule rule;
    double low, high;
} sr_start;

typedef enum sr_form_bias {
    SR_FORM_BIAS_ASKED = 0, /* where the model's attention has biases */
    SR_FORM_BIAS_NEVER,
    SR_FORM_BIAS_ALWAYS,
} sr_form_bias;

enum {
    SR_FORM_PARTS = 6,
    SR_FORM_PROJECTIONS = 9,
    SR_FORM_CONVS = 4,
    SR_FORM_LEARNED = 6,
    SR_FORM_RULES = 8
};

typedef struct sr_form_projection {
    const char *name;         /* NULL ends the list */
    int parts[SR_FORM_PARTS]; /* side by side; those that the variant does not read are left out */
    int source;               /* the part that it is a projection of */
    sr_form_bias bias;
    sr_start start, bias_start;
} sr_form_projection;

/* A causal convolution and SiLU over parts that stand side by side in one projection. */
typedef struct sr_form_conv {
    const char *name; /* NULL ends the list */
    int parts[SR_FORM_PARTS];
    /* the part that it makes, with the variant's skip_conv taps, of the parts as they are
     * projected; SR_PART_NONE: short_conv taps, and the equation reads the parts as the convolution
     * leaves them */
    int target;
    sr_form_bias bias;
    sr_start start;
} sr_form_conv;

/* An operand that is learned itself, or the bias of one that is part of a projection without. */
typedef struct sr_form_learned {
    const char *name; /* NULL ends the list */
    sr_operand which;
    sr_start start;
    int rank, axis; /* files have it as ones but on this axis; 0: as the table of operands says */
} sr_form_learned;

/* The sizes that a new layer takes where nobody gives others, H and D being the model's. */
typedef struct sr_form_sizes {
    int heads;                          /* H times this; 0: 1 */
    int key;                            /* of q and k; 0: D times the next two */
    int key_numerator, key_denominator; /* 0: 1 */
    int rank, levels;
    bool value_rank; /* the rank is the width of a head of values */
    bool unshared;   /* a model whose heads share nothing has as many heads of q and k */
} sr_form_sizes;

typedef enum sr_form_size {
    SR_SIZE_NONE = 0, /* ends a list */
    SR_SIZE_HEADS,
    SR_SIZE_GROUPS, /* heads of what is shared */
    SR_SIZE_KEY,
    SR_SIZE_VALUE,
    SR_SIZE_RANK,
    SR_SIZE_LEVELS,
    SR_SIZE_CONV,      /* taps of short_conv */
    SR_SIZE_SKIP_CONV, /* taps of skip=conv */
} sr_form_size;

/* A size that the shape of a tensor tells once those of earlier rules are known. */
typedef struct sr_form_rule {
    sr_form_size size;
    const char *tensor;
    int axis;
} sr_form_rule;

typedef struct sr_layer_form {
    const char *prefix; /* in front of all names; NULL: nothing */
    sr_form_projection projections[SR_FORM_PROJECTIONS];
    sr_form_conv convs[SR_FORM_CONVS];
    sr_form_learned learned[SR_FORM_LEARNED];
    sr_form_projection output; /* its parts are not read */
    /* RMS norm of the input, around which the layer has a residual; NULL: none */
    const char *own_norm;
    sr_form_sizes sizes;
    sr_form_rule rules[SR_FORM_RULES];
} sr_layer_form;

/* The form that the variant asks for. */
const sr_layer_form *sr_layer_form_of(const srnn_attention *attention);

/* What the form says of an operand that is learned itself; NULL: nothing. */
const sr_form_learned *sr_form_learned_of(const sr_layer_form *form, sr_operand which);

#endif
