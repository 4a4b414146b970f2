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
    SR_PART_RANK_2,   /* (rank): of another one, and of two more */
    SR_PART_RANK_3,
    SR_PART_RANK_4,
    SR_PART_VALUE_MIX, /* (numbers of v): how much of the first layer's values a later one takes */
    SR_PART_OPERANDS,
} sr_part;

#define SR_PART(which) (SR_PART_OPERANDS + SR_OPERAND_##which)

/* What the columns of a projection go through. */
typedef enum sr_path_activation {
    SR_PATH_NONE = 0,
    SR_PATH_TANH,
    SR_PATH_SIGMOID,
} sr_path_activation;

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
    SR_START_LOG_POOL,   /* logarithms of numbers between 1 and pool - 1 */
    SR_START_FAN_PART,   /* as SR_START_FAN, times `low` */
    SR_START_ORTHOGONAL, /* rows or columns of length `low` at right angles */
    /* Of channel n of C in layer l of L, with r = 1 - l/L, lin = n/(C-1) - 1/2 and z from -1 to 1
     * over the channels of a head: */
    SR_START_SHIFT,  /* 1 - (n/C)^(low r) */
    SR_START_CURVE,  /* low + high lin */
    SR_START_ZIGZAG, /* -0.19 + 0.3 z|z| + 0.4 lin */
    SR_START_DECAY,  /* -5.5 + 6 (n/(C-1))^(1 + (l/(L-1))^0.3) + 2.5 z|z| */
    SR_START_DEPTH,  /* ((l+1)/L)^low */
} sr_start_rule;

typedef struct sr_start {
    sr_start_rule rule;
    double low, high;
} sr_start;

typedef enum sr_form_bias {
    SR_FORM_BIAS_OF_MODEL = 0, /* where the model's attention has biases */
    SR_FORM_BIAS_NEVER,
    SR_FORM_BIAS_ALWAYS,
} sr_form_bias;

enum {
    SR_FORM_PARTS = 6,
    SR_FORM_PROJECTIONS = 11,
    SR_FORM_SHIFTS = 6,
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
    int shift; /* the number, from 1, of the token shift that its input goes through; 0: none */
    sr_path_activation activation; /* of its columns */
    bool undecayed;                /* its authors train it without weight decay */
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
    /* In files it has `rank` axes, all of length one but `axis`, or, with axis -1, the shape
     * (heads, width); rank 0: that of the table of operands. */
    int rank, axis;
} sr_form_learned;

/* The default sizes of a new layer, H and D being the model's. */
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

/* A size that follows from a tensor's shape once those of earlier rules are known. */
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
    /* Token shifts: the input h becomes h + (the h of the token before - h) times a vector. */
    const char *shifts[SR_FORM_SHIFTS];
    /* RWKV-7's keys and values: two vectors make the removal key and the key of what is projected,
     * and from the second layer on the first one's values are mixed in; NULL: as projected. */
    const char *key_scale, *key_gate;
    sr_form_sizes sizes;
    sr_form_rule rules[SR_FORM_RULES];
} sr_layer_form;

/* The form of the variant's layer. */
const sr_layer_form *sr_layer_form_of(const srnn_attention *attention);

/* What the form says of an operand that is learned itself; NULL: nothing. */
const sr_form_learned *sr_form_learned_of(const sr_layer_form *form, sr_operand which);

#endif
