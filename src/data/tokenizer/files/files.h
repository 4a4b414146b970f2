/* files.h (private): resolves a tokenizer's name to its files. */
#ifndef SR_DATA_TOKENIZER_FILES_FILES_H
#define SR_DATA_TOKENIZER_FILES_FILES_H

#include "base/status.h"
#include "files/path.h"

#include <stdbool.h>
#include <stddef.h>

#define SR_TOKENIZER_CONFIG "tokenizer_config.json"

bool sr_tokenizer_is_built_in(const char *name);

/* The file that sr_tokenizer_load reads for `name`, which is not built in. */
srnn_status sr_tokenizer_find_file(char path[SR_PATH_BYTES], const char *name);

/* The file names searched in a folder, in order; NULL past the end. */
const char *sr_tokenizer_file_name(size_t index);

/* Which of these names a copy of the file gets; NULL if it is not a tokenizer. */
const char *sr_tokenizer_name_of_copy(const char *path);

/* The tokenizer_config.json next to the file; false if there is none or it does not apply. */
bool sr_tokenizer_config_of(char config[SR_PATH_BYTES], const char *path);

#endif
