/* shard_set.h (private): the shards of a folder while they are written. */
#ifndef SR_DATA_SHARDS_SHARD_SET_H
#define SR_DATA_SHARDS_SHARD_SET_H

#include "base/status.h"
#include "data/shards/shard.h"
#include "data/shards/split.h"

#include <jansson.h>

typedef struct sr_shard_set sr_shard_set;

/* Shards of at most `most_tokens` tokens (more if one document has more) named train-00000.tokens,
 * validation-00000.tokens and so on. */
srnn_status sr_shard_set_create(sr_shard_set **set, const char *folder, int64_t most_tokens,
                                const sr_shard_settings *settings);

/* Adds one document of at least one token. */
srnn_status sr_shard_set_append(sr_shard_set *set, sr_split split, const uint32_t *ids,
                                size_t count);

/* Completes every shard; *list receives their description for the manifest, owned by the caller. */
srnn_status sr_shard_set_finish(sr_shard_set *set, json_t **list);

/* Frees; incomplete shards are removed. */
void sr_shard_set_free(sr_shard_set *set);

/* Removes the manifest of a folder, then every shard in it, including incomplete ones of a killed
 * process. */
srnn_status sr_shard_set_remove(const char *folder);

#endif
