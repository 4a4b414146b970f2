/* tensor_names.h: what files of other programs call the tensors of a model. */
#ifndef SR_MODEL_FILES_TENSOR_NAMES_H
#define SR_MODEL_FILES_TENSOR_NAMES_H

#include "model/tensor_table.h"

enum { SR_NAME_PAIRS = 4 };

/* Beginnings of names, here and there; NULL ends a list. */
typedef struct sr_name_pair {
    const char *here, *there;
} sr_name_pair;

typedef struct sr_tensor_names {
    const char *root;                   /* in place of "model." */
    sr_name_pair whole[SR_NAME_PAIRS];  /* after the root */
    sr_name_pair layers[SR_NAME_PAIRS]; /* after "layers.N." */
} sr_tensor_names;

/* out = the name that the files have for `name`, and the other way round; cut off where it is too
 * long. Names outside of the root stay. `names` NULL: the files have ours. */
void sr_tensor_name_there(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name);
void sr_tensor_name_here(char out[SR_SPEC_NAME], const sr_tensor_names *names, const char *name);

/* What all tensors of the model begin with in the files. */
const char *sr_tensor_root(const sr_tensor_names *names);

#endif
