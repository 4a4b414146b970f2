/* model_open.h: a model from whatever a user names. */
#ifndef SR_CLI_MODEL_OPEN_H
#define SR_CLI_MODEL_OPEN_H

#include "model/checkpoint.h"

/* `where` is a folder in Hugging Face layout, a run's folder (its last checkpoint), or a llama2.c
 * .bin file. */
srnn_status model_open(sr_model **model, sr_backend *backend, const char *where);

/* *where = the folder or file to look for a tokenizer in when none was named: the model's folder,
 * or the folder of its file. free() it. */
srnn_status model_tokenizer_place(char **where, const char *model);

#endif
