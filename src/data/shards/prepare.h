/* prepare.h: text files to a folder of token shards. */
#ifndef SR_DATA_SHARDS_PREPARE_H
#define SR_DATA_SHARDS_PREPARE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sr_prepare_progress {
    int64_t read_bytes, input_bytes; /* of the files as they are, compressed or not */
    int64_t text_bytes;              /* of documents so far */
    int64_t documents[2];            /* in each sr_split */
    int64_t tokens[2];
    int64_t empty_documents; /* without text, in neither split */
} sr_prepare_progress;

typedef struct sr_prepare_settings {
    const char *tokenizer;     /* as sr_tokenizer_load takes it; copied into the folder */
    const char *folder;        /* created if missing */
    const char *const *inputs; /* (input_count); see documents.h for their formats */
    int input_count;
    const char *field;      /* of JSON lines; NULL: "text" */
    double validation;      /* fraction of the documents in the validation split, 0 .. 1 */
    uint64_t seed;          /* selects those documents */
    int64_t shard_tokens;   /* most tokens in a shard; 0: 100 million */
    int64_t document_bytes; /* a longer document is refused; 0: 256 MiB */
    bool without_end;       /* no end-of-text token after documents */
    bool replace_invalid;   /* bytes that are not UTF-8 become U+FFFD; else they are refused */
    bool overwrite;         /* replace what the folder holds; else a folder with data is refused */
    int threads;            /* 0: all cores. The result does not depend on it */

    /* Called from time to time, from any thread but never from two at a time; false stops the work
     * with SRNN_ERR_INTERRUPTED. May be NULL. */
    bool (*progress)(void *context, const sr_prepare_progress *progress);
    void *context;
} sr_prepare_settings;

/* Memory does not grow with the size of the files. If it fails or is stopped, no shard is left; if
 * the process is killed, the folder has no manifest and is not data. *done may be NULL. */
srnn_status sr_prepare(const sr_prepare_settings *settings, sr_prepare_progress *done);

#endif
