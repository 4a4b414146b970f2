/* tensor_source.h (private): where the numbers of a tensor lie in files that may join several of
 * them. */
#ifndef SR_MODEL_FILES_TENSOR_SOURCE_H
#define SR_MODEL_FILES_TENSOR_SOURCE_H

#include "files/tensor.h"
#include "model/config/config.h"
#include "model/files/transposed.h"

/* One or more tensors of the files end to end; of every group of `stride` numbers of that, `count`
 * from `first` on are the tensor's. */
typedef struct sr_tensor_source {
    const sr_tensor_names *names;
    const sr_tensor_spec *spec;
    const sr_joined_tensor *joined; /* NULL: the tensor is alone in one of the files */
    int part;                       /* which of joined->here it is */
    const char *suffix;             /* of its name after that: ".weight" */
    bool linear;
    int files; /* tensors end to end */
    int64_t groups, stride, first, count;
} sr_tensor_source;

/* True if the files hold one tensor for each row of this one. */
bool sr_tensor_source_is_indexed(const sr_tensor_source *source);

/* True if they hold it transposed; and how. */
bool sr_tensor_source_is_transposed(const sr_tensor_source *source);
sr_transposed sr_tensor_source_transposed(const sr_tensor_source *source);

/* Of a row of the table of a model. */
sr_tensor_source sr_tensor_source_of(const sr_tensor_spec *spec, const sr_model_config *config,
                                     const sr_tensor_table *table);

/* out = the name of tensor `file` of the files; its shape, if written by us. Returns its rank. */
void sr_tensor_source_name(char out[SR_SPEC_NAME], const sr_tensor_source *source, int file);
int sr_tensor_source_shape(int64_t shape[SR_SPEC_RANK], const sr_tensor_source *source);

/* Fails unless a tensor of the files has the shape that the source implies. */
srnn_status sr_tensor_source_check(const sr_tensor_source *source, const sr_tensor *tensor,
                                   const char *folder);

/* True if one tensor of the files holds this one and others. */
bool sr_tensor_source_is_shared(const sr_tensor_source *source);

#endif
