/* tensor_names.h: what files of other programs call the tensors of a model. */
#ifndef SR_MODEL_FILES_TENSOR_NAMES_H
#define SR_MODEL_FILES_TENSOR_NAMES_H

#include "model/tensor_table.h"

enum { SR_NAME_PAIRS = 12, SR_ALIASES = 3, SR_CONSTANTS = 2, SR_JOINED = 6, SR_JOINED_PARTS = 4 };

/* Beginnings of names, here and there; NULL ends a list. */
typedef struct sr_name_pair {
    const char *here, *there;
} sr_name_pair;

/* How many equal groups of rows a joined tensor consists of. */
typedef enum sr_joined_groups {
    SR_JOINED_ONE = 0,
    SR_JOINED_HEADS,     /* one for each query head of the layer */
    SR_JOINED_KEY_HEADS, /* one for each group of heads that share */
} sr_joined_groups;

/* Tensors of a layer that files hold as one: in every group the rows of the first part, then those
 * of the second, and so on. Names end before ".weight" or ".bias". */
typedef struct sr_joined_tensor {
    /* One name, or one for each part where files may cut the whole elsewhere than here. With %d it
     * stands for one tensor for each row of the part. NULL ends the list. */
    const char *there[SR_JOINED_PARTS];
    const char *here[SR_JOINED_PARTS];
    sr_joined_groups groups;
    bool transposed; /* matrices of experts, see transposed.h */
} sr_joined_tensor;

/* Of layers of one kind, after "layers.N.". */
typedef struct sr_layer_names {
    sr_name_pair pairs[SR_NAME_PAIRS];
    sr_joined_tensor joined[SR_JOINED];
} sr_layer_names;

/* A single number that files of a layer hold and that never changes; NULL ends a list. */
typedef struct sr_layer_constant {
    const char *name; /* after "layers.N." */
    float value;
} sr_layer_constant;

typedef struct sr_tensor_names {
    const char *root;                  /* in place of "model." */
    sr_name_pair whole[SR_NAME_PAIRS]; /* after the root */
    sr_layer_names layers;
    /* of layers with a recurrent form, where `layers` says nothing of them */
    sr_layer_names linear;
    sr_name_pair aliases[SR_ALIASES]; /* parts of names there, and what some files have instead */
    sr_layer_constant constants[SR_CONSTANTS];
} sr_tensor_names;

/* Bytes of "model.layers.N." at the start of one of softrnn's own names, with *layer = N; 0:
 * there is none. */
size_t sr_tensor_layer_prefix(const char *name, int *layer);

/* out = the name that the files have for `name`; cut off where it is too long. Names outside of the
 * root stay. `names` NULL: the files have ours. `linear`: whether the tensor's layer is one of
 * those. */
void sr_tensor_name_there(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name,
                          bool linear);

/* out = the name with alias number `alias` of `names` in it; false: the name has no such part. */
bool sr_tensor_name_alias(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name,
                          int alias);

/* What all tensors of the model begin with in the files. */
const char *sr_tensor_root(const sr_tensor_names *names);

#endif
