/* manifest.h: the description of a folder of prepared data: contents and origin. */
#ifndef SR_DATA_SHARDS_MANIFEST_H
#define SR_DATA_SHARDS_MANIFEST_H

#include "base/status.h"
#include "data/shards/split.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define SR_MANIFEST_NAME "data.json"

typedef struct sr_manifest_shard {
    const char *file; /* a name inside the folder */
    sr_split split;
    int64_t tokens, documents;
} sr_manifest_shard;

/* Strings belong to `root`, whose other members are for readers and for reproducing the data. */
typedef struct sr_manifest {
    char *folder;
    const char *tokenizer; /* a file inside the folder, or the name of a built-in tokenizer */
    bool tokenizer_is_built_in;
    const char *tokenizer_kind;
    uint64_t tokenizer_hash;
    uint32_t vocab;
    int64_t end_token;         /* ends every document, or -1 */
    sr_manifest_shard *shards; /* (shard_count) */
    int64_t shard_count;
    json_t *root;
} sr_manifest;

srnn_status sr_manifest_read(sr_manifest *manifest, const char *folder);

/* Leaves { 0 }, which may be freed again. */
void sr_manifest_free(sr_manifest *manifest);

#endif
