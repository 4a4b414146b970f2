/* model_folder.h: models in files: Hugging Face folders and llama2.c's .bin. */
#ifndef SR_MODEL_FILES_MODEL_FOLDER_H
#define SR_MODEL_FILES_MODEL_FOLDER_H

#include "files/path.h"
#include "files/tensor.h"
#include "model/model.h"

/* Loads a folder with config.json and model.safetensors (or model.safetensors.index.json and its
 * shards). Biases that the files hold, and a head that differs from the embedding, are used whether
 * or not the configuration mentions them. A tensor inside the model that would be left out is
 * refused; buffers and what lies outside of `model.` are not. Folders of Mamba-2 (transformers),
 * GLA, DeltaNet and Gated DeltaNet (flash-linear-attention) have names of their own, and so have
 * published families (config/published_table.c). */
srnn_status sr_model_load(sr_model **model, sr_backend *backend, const char *folder);

/* How a model is loaded. */
typedef struct sr_load_setup {
    /* Called after every tensor with the share of the numbers read; NULL: no progress. */
    void (*see)(void *context, double share);
    void *context;
    /* The weights will only be read: where all of the files are bf16 and so are the backend's
     * products, there is no float copy of matrices and embedding (sr_model_create_read_only). The
     * numbers that are computed are the same. */
    bool read_only;
} sr_load_setup;

srnn_status sr_model_load_as(sr_model **model, sr_backend *backend, const char *folder,
                             const sr_load_setup *setup);

/* The two halves of it: what model a folder holds (free with sr_model_config_free), the shapes of
 * its tensors compared with config.json, before memory is taken for them; and its weights into a
 * model made from that. */
srnn_status sr_model_load_config(sr_model_config *config, const char *folder);
srnn_status sr_model_load_weights(sr_model *model, const char *folder);

/* The weights of all tensors that a model shares, by name and shape, with the one in a folder; the
 * others stay as they are. *shared receives how many. */
srnn_status sr_model_load_shared(sr_model *model, size_t *shared, const char *folder);

/* Writes config.json and model.safetensors into an existing folder, each replaced in one step.
 * dtype: SR_DTYPE_F32, SR_DTYPE_BF16 or SR_DTYPE_F16. */
srnn_status sr_model_save(const sr_model *model, const char *folder, sr_dtype dtype);

/* One of `count` files that writers make side by side, in Hugging Face's layout of several: of the
 * weights in float those tensors whose place in the arena is in its part. Each writes its file, if
 * there are any; the first one config.json and model.safetensors.index.json too. With one part it
 * is sr_model_save. */
typedef struct sr_model_part {
    int index, count; /* 0 .. count-1 */
} sr_model_part;

srnn_status sr_model_save_part(const sr_model *model, const char *folder, sr_model_part part);

/* Whether the tensor is in the part, and the file that the part is. */
bool sr_model_part_has(sr_model_part part, const sr_model *model, const sr_tensor_spec *spec);
srnn_status sr_model_part_file(char path[SR_PATH_BYTES], const char *folder, sr_model_part part);

/* The same as sr_model_save with the names and members that others know, where one of their models
 * computes the same (sr_model_config_public). */
srnn_status sr_model_save_public(const sr_model *model, const char *folder, sr_dtype dtype);

/* llama2.c's format: float32, softmax attention, no biases. */
srnn_status sr_model_load_llama2c(sr_model **model, sr_backend *backend, const char *path);
srnn_status sr_model_save_llama2c(const sr_model *model, const char *path);

/* *V = how many tokens the model of a .bin file knows. */
srnn_status sr_model_llama2c_tokens(int *V, const char *path);

#endif
