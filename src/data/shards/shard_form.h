/* shard_form.h (private): the header of a shard file, shared by its reader and its writer. */
#ifndef SR_DATA_SHARDS_SHARD_FORM_H
#define SR_DATA_SHARDS_SHARD_FORM_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "shards are mapped as they are: this needs a little-endian machine"
#endif

#define SR_SHARD_MAGIC "SRTOKENS"
enum { SR_SHARD_VERSION = 1 };

typedef struct sr_shard_header {
    char magic[8];
    uint32_t version;
    uint32_t width;
    uint64_t tokens;
    uint64_t documents;
    uint64_t tokenizer_hash;
    uint32_t vocab;
    uint32_t end_token_plus_1;
    uint32_t token_crc;
    uint32_t index_crc;
    uint32_t zero;
    uint32_t header_crc; /* of all fields before */
} sr_shard_header;

_Static_assert(sizeof(sr_shard_header) == 64, "the header has no holes");

/* Zeros between tokens and index. */
static inline uint64_t sr_shard_padding(uint64_t token_bytes) {
    return (8 - token_bytes % 8) % 8;
}

#endif
