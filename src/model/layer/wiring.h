/* wiring.h: a form with a variant and sizes put into it: which columns of which array each
 * projection, convolution and operand of a layer has. Tensors, forward, backward and feeding by
 * pieces all walk these lists. */
#ifndef SR_MODEL_LAYER_WIRING_H
#define SR_MODEL_LAYER_WIRING_H

#include "model/layer/form.h"

/* Parts of a projection that may be multiplied by a number (Falcon-H1), in the order of its
 * config.json. */
enum { SR_PART_FACTORS = 5 }; /* output gate, v, k, q, decay */

/* The sizes of an attention layer. */
typedef struct sr_layer_dims {
    int C;      /* width of the model */
    int H, Hkv; /* heads; heads of what a group of them shares */
    int D, Dv;  /* widths of a head of keys and of values; Dv 0: D */
    int rank;   /* of projections in two steps; 0: none here */
    int levels; /* of a variant with levels; 0: the equation's own */
    int layers; /* of the model; 0: 1 */
    int layer;  /* its number in the model, from 0 */
    bool later; /* an earlier layer of the model has the first values that this one mixes in */
    bool qkv_bias, o_bias;
    bool conv_unbiased;                   /* convolutions that always have a bias have none */
    double part_factors[SR_PART_FACTORS]; /* of columns of projections; 0: 1 */
    double norm_epsilon;                  /* of qk_norm */
    bool norm_is_minus_one;               /* its weights are stored as w - 1 */
} sr_layer_dims;

enum { SR_WIRE_PROJECTIONS = SR_FORM_PROJECTIONS + SR_OPERANDS, SR_WIRE_LINEARS = 16 };

/* What a tensor is to its layer. */
typedef enum sr_layer_slot {
    SR_LAYER_PROJECTIONS, /* a weight and a bias for each */
    SR_LAYER_CONVS = SR_LAYER_PROJECTIONS + 2 * SR_WIRE_PROJECTIONS, /* the same */
    SR_LAYER_OUTPUT = SR_LAYER_CONVS + 2 * SR_FORM_CONVS,            /* the same, of one */
    SR_LAYER_OWN_NORM = SR_LAYER_OUTPUT + 2,
    SR_LAYER_QK_NORM,                       /* one weight of q, one of k */
    SR_LAYER_SHIFTS = SR_LAYER_QK_NORM + 2, /* vectors of token shifts */
    SR_LAYER_KEY_SCALE = SR_LAYER_SHIFTS + SR_FORM_SHIFTS,
    SR_LAYER_KEY_GATE,
    SR_LAYER_SPATIAL,  /* of Avey, whose blocks have the first projection and the output too */
    SR_LAYER_OPERANDS, /* one for each that is learned itself, or the bias of a part */
    SR_LAYER_SLOTS = SR_LAYER_OPERANDS + SR_OPERANDS,
} sr_layer_slot;

static inline sr_layer_slot sr_layer_operand_slot(sr_operand which) {
    return (sr_layer_slot)(SR_LAYER_OPERANDS + (int)which);
}

/* Columns of a matrix. */
typedef struct sr_columns {
    int64_t first, count;
} sr_columns;

/* A projection with a tensor of its own. */
typedef struct sr_wire_projection {
    const char *name;
    sr_layer_slot weight; /* its bias follows */
    bool bias;
    sr_start start, bias_start;
    sr_columns to;   /* of `projected` */
    bool from_input; /* else from these columns of `projected`, */
    sr_columns from;
    bool shared; /* another projection or operand reads them too */
    int shift;   /* the token shift of its input, from 1; 0: none */
    sr_path_activation activation;
    bool undecayed;
} sr_wire_projection;

/* Some rows of a projection's weight, as one product: parts with a bias of their own stand
 * alone. */
typedef struct sr_wire_linear {
    int projection;
    int64_t row; /* the first, of the weight */
    sr_columns to;
    int bias; /* slot, or -1 */
} sr_wire_linear;

typedef struct sr_wire_conv {
    const char *name;
    sr_layer_slot weight; /* its bias follows */
    bool bias;
    sr_start start;
    int width;
    bool plain;          /* without SiLU */
    sr_columns from, to; /* of `projected`; of `convolved` */
    bool shared;         /* `from` has other readers */
} sr_wire_conv;

/* The norm of q or of k. */
typedef struct sr_wire_norm {
    const char *name; /* of its weight; NULL: there is none */
    sr_layer_slot weight;
    sr_columns from, to; /* of `projected`; of `convolved` */
    int64_t groups;      /* that are normalised each, side by side in those columns */
} sr_wire_norm;

/* Columns of `projected` that are multiplied by a number. */
typedef struct sr_wire_factor {
    sr_columns at;
    float factor;
} sr_wire_factor;

/* Where an operand over positions stands. */
typedef struct sr_wire_place {
    bool there, convolved; /* else in `projected` */
    sr_columns at;
    int64_t width; /* of a head */
} sr_wire_place;

typedef struct sr_layer_wiring {
    const sr_layer_form *form;
    sr_wire_projection projections[SR_WIRE_PROJECTIONS]; /* those of the input come first */
    int projection_count, input_count;
    sr_wire_linear linears[SR_WIRE_LINEARS]; /* in the same order */
    int linear_count, input_linears;
    sr_wire_conv convs[SR_FORM_CONVS];
    int conv_count;
    sr_wire_factor factors[SR_PART_FACTORS];
    int factor_count;
    sr_wire_norm norms[2]; /* of q and of k */
    sr_wire_place places[SR_OPERANDS];
    int64_t learned[SR_OPERANDS]; /* numbers of what is learned itself, 0: not there */
    bool part_bias[SR_OPERANDS];  /* the operand's columns have a bias of their own */
    int64_t projected, convolved; /* columns */
    int64_t output;               /* columns of the equation's output, H * Dv */
    int shift_count;              /* token shifts of the input */
    /* Where keys are made of what is projected (sr_layer_form): the columns of `projected` of k, v,
     * the removal gate and how much of the first values is taken, count 0 in the first layer; the
     * equation's k, v and removal key are in `convolved`. */
    sr_columns raw_key, raw_value, removal_gate, value_mix;
} sr_layer_wiring;

/* True if later layers of the variant mix in the values of the first. */
bool sr_layer_mixes_values(const srnn_attention *attention);

/* The equation's sizes for a layer, B and T being 1. */
srnn_problem sr_layer_problem(const srnn_attention *attention, const sr_layer_dims *dims);

/* Channels of a head that RoPE rotates. */
int sr_layer_rope_width(const srnn_attention *attention, int D);

/* Fails where the variant needs what the form cannot make. */
srnn_status sr_layer_wire(sr_layer_wiring *wiring, const srnn_attention *attention,
                          const sr_layer_dims *dims);

#endif
