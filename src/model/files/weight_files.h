/* weight_files.h (private): the tensors of a Hugging Face folder, in one file or in shards. */
#ifndef SR_MODEL_FILES_WEIGHT_FILES_H
#define SR_MODEL_FILES_WEIGHT_FILES_H

#include "files/safetensors.h"

typedef struct sr_weight_files {
    sr_safetensors **files; /* (count), owned */
    size_t count;
} sr_weight_files;

srnn_status sr_weight_files_open(sr_weight_files *files, const char *folder);
void sr_weight_files_close(sr_weight_files *files); /* leaves { 0 } */

/* The tensor with this name in any of the files, or NULL. */
const sr_tensor *sr_weight_files_find(const sr_weight_files *files, const char *name);

#endif
