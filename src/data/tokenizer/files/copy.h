/* copy.h: copies a tokenizer's files next to the data encoded with it. */
#ifndef SR_DATA_TOKENIZER_FILES_COPY_H
#define SR_DATA_TOKENIZER_FILES_COPY_H

#include "base/status.h"

#include <stdbool.h>

typedef struct sr_tokenizer_copy {
    char *source;     /* the file, owned: free() it; NULL: the tokenizer is built in */
    const char *name; /* of the copy in a folder, or of the built-in tokenizer */
} sr_tokenizer_copy;

/* Finds the file that sr_tokenizer_load loads for `name`, which must stay valid. */
srnn_status sr_tokenizer_copy_find(sr_tokenizer_copy *copy, const char *name);

/* Copies it into a folder under a name that sr_tokenizer_load finds there, together with its
 * tokenizer_config.json; files that would be found instead are removed. No-op for a built-in
 * tokenizer, or if the file is in the folder already. */
srnn_status sr_tokenizer_copy_write(const sr_tokenizer_copy *copy, const char *folder);

/* True if sr_tokenizer_load finds one in a folder. */
bool sr_tokenizer_is_in(const char *folder);

/* Finds and copies the tokenizer `name` into `folder`, unless it is built in. */
srnn_status sr_tokenizer_copy_into(const char *folder, const char *name);

/* The built-in byte tokenizer as files that Hugging Face's packages read: a byte-level BPE without
 * merges. The ids are the same; <|endoftext|> in a text becomes its id. */
srnn_status sr_tokenizer_write_bytes(const char *folder);

/* Removes what sr_tokenizer_load would find in a folder. */
srnn_status sr_tokenizer_copy_remove(const char *folder);

#endif
