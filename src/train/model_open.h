/* model_open.h: a model, and its tokenizer, opened by name: folder, run or .bin file. */
#ifndef SR_TRAIN_MODEL_OPEN_H
#define SR_TRAIN_MODEL_OPEN_H

#include "data/tokenizer/tokenizer.h"
#include "model/files/model_folder.h"

#include <stdbool.h>

/* `where` is a folder in Hugging Face layout, a run's folder (its last checkpoint), or a llama2.c
 * .bin file. */
srnn_status sr_model_open(sr_model **model, sr_backend *backend, const char *where,
                          const sr_load_setup *setup); /* NULL: { 0 } */

/* The same with another attention (as in --attention of a run), which must take exactly the tensors
 * that the model has. */
srnn_status sr_model_open_as(sr_model **model, sr_backend *backend, const char *where,
                             const char *attention, const sr_load_setup *setup);

/* True if this is the name of a llama2.c .bin file. */
bool sr_model_is_bin(const char *where);

/* name = the folder or file of the tokenizer next to a model; for a .bin file with 512 tokens also
 * tok512.bin or tok512.model. "" if there is none. Fails if a tokenizer next to a .bin file has
 * another vocabulary size, unless the model's vocabulary is the bytes: then name = "". */
srnn_status sr_model_tokenizer_path(char name[SR_PATH_BYTES], const char *model);

/* The named tokenizer. If `name` is NULL: the one next to the model, or the byte tokenizer for a
 * model whose vocabulary is the bytes. */
srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V);

#endif
