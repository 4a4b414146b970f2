/* model_open.h: a model, and its tokenizer, from whatever a user names. */
#ifndef SR_TRAIN_MODEL_OPEN_H
#define SR_TRAIN_MODEL_OPEN_H

#include "data/tokenizer/tokenizer.h"
#include "model/files/model_folder.h"

#include <stdbool.h>

/* `where` is a folder in Hugging Face layout, a run's folder (its last checkpoint), or a llama2.c
 * .bin file. */
srnn_status sr_model_open(sr_model **model, sr_backend *backend, const char *where);

/* The same with another attention (as --attention of a run has it), which must take just the
 * tensors that the model has. */
srnn_status sr_model_open_as(sr_model **model, sr_backend *backend, const char *where,
                             const char *attention);

/* True if the name is of a llama2.c .bin file. */
bool sr_model_is_bin(const char *where);

/* name = the folder or file of the tokenizer that lies beside a model (beside a .bin file of 512
 * tokens tok512.bin or tok512.model, too); "" if there is none. Fails if one beside a .bin file has
 * another number of tokens, unless the model has just those of the bytes: then it is as if there
 * were none. */
srnn_status sr_model_tokenizer_beside(char name[SR_PATH_BYTES], const char *model);

/* The named tokenizer; if `name` is NULL the one beside the model, or the bytes for a model that
 * has just their tokens. */
srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V);

#endif
