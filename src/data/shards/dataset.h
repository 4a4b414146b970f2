/* dataset.h: the shards of one split as one long sequence of tokens. */
#ifndef SR_DATA_SHARDS_DATASET_H
#define SR_DATA_SHARDS_DATASET_H

#include "data/shards/shard.h"
#include "data/shards/split.h"

/* Read-only after creation; several threads may read it. Neither tokens nor documents depend on how
 * they are spread over shards. */
typedef struct sr_dataset {
    sr_shard *shards; /* (shard_count) */
    int64_t shard_count;
    int64_t *token_starts;    /* (shard_count + 1): the number of the shard's first token */
    int64_t *document_starts; /* (shard_count + 1): the number of its first document */
    int64_t token_count, document_count;
    uint32_t vocab;
    int64_t end_token; /* ends every document, or -1 */
} sr_dataset;

/* Opens a folder that `softrnn data prepare` made. A split without documents gives an empty
 * dataset.
 */
srnn_status sr_dataset_open(sr_dataset *dataset, const char *folder, sr_split split);

/* The same for all documents of the folder, regardless of split. */
srnn_status sr_dataset_open_all(sr_dataset *dataset, const char *folder);

/* From shards with the same tokenizer and vocabulary; takes ownership of them, also on failure. */
srnn_status sr_dataset_create(sr_dataset *dataset, sr_shard *shards, int64_t count);

/* Extends `hash` (base/hash.h) by the checksums of its shards (sum), or by the sizes and times of
 * their files (stamp). */
uint64_t sr_dataset_sum(const sr_dataset *dataset, uint64_t hash);
uint64_t sr_dataset_stamp(const sr_dataset *dataset, uint64_t hash);

/* Reads every token: fails unless the checksums are right. */
srnn_status sr_dataset_verify(const sr_dataset *dataset);

/* Leaves { 0 }, which may be freed again. */
void sr_dataset_free(sr_dataset *dataset);

/* ids = tokens begin .. begin+count-1, which must exist. */
srnn_status sr_dataset_read(const sr_dataset *dataset, int32_t *ids, int64_t begin, int64_t count);

/* First token and number of tokens of a document. Fails if its shard has been truncated
 * meanwhile. */
srnn_status sr_dataset_document(const sr_dataset *dataset, int64_t document, int64_t *begin,
                                int64_t *count);

/* The document that a token belongs to. */
int64_t sr_dataset_document_of(const sr_dataset *dataset, int64_t token);

#endif
