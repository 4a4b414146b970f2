/* model_open.h: a model, and its tokenizer, from whatever a user names. */
#ifndef SR_TRAIN_MODEL_OPEN_H
#define SR_TRAIN_MODEL_OPEN_H

#include "data/tokenizer/tokenizer.h"
#include "model/files/model_folder.h"

#include <stdbool.h>

/* `where` is a folder in Hugging Face layout, a run's folder (its last checkpoint), or a llama2.c
 * .bin file. */
srnn_status sr_model_open(sr_model **model, sr_backend *backend, const char *where);

/* True if the name is of a llama2.c .bin file. */
bool sr_model_is_bin(const char *where);

/* folder = where the tokenizer lies that is beside a model; "" if there is none. Fails if one beside a .bin file has
 * another number of tokens, unless the model has just those of the bytes: then it is as if there were none. */
srnn_status sr_model_tokenizer_folder(char folder[SR_PATH_BYTES], const char *model);

/* The named tokenizer; if `name` is NULL the one beside the model, or the bytes for a model that has just their tokens. */
srnn_status sr_model_open_tokenizer(sr_tokenizer **tokenizer, const char *name, const char *model,
                                    int V);

#endif
