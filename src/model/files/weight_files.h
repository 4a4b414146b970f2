/* weight_files.h (private): the tensors of a Hugging Face folder, in one file or in shards. */
#ifndef SR_MODEL_FILES_WEIGHT_FILES_H
#define SR_MODEL_FILES_WEIGHT_FILES_H

#include "files/safetensors.h"
#include "model/files/tensor_names.h"

typedef struct sr_weight_files {
    sr_safetensors **files; /* (count), owned */
    size_t count;
    const sr_tensor_names *names; /* that they have */
} sr_weight_files;

srnn_status sr_weight_files_open(sr_weight_files *files, const char *folder,
                                 const sr_tensor_names *names);
void sr_weight_files_close(sr_weight_files *files); /* leaves { 0 } */

/* The tensor with this name, as it is here, in any of the files, or NULL. */
const sr_tensor *sr_weight_files_find(const sr_weight_files *files, const char *name);

#endif
