/* vocabulary.h (private): the texts of all tokens by id, and the ids by text. */
#ifndef SR_DATA_TOKENIZER_VOCABULARY_H
#define SR_DATA_TOKENIZER_VOCABULARY_H

#include "data/text/buffer.h"

enum { SR_VOCABULARY_LIMIT = 1 << 24 }; /* ids a file may use; real vocabularies stay under 2^19 */

/* Some ids may have no token. */
typedef struct sr_vocabulary {
    uint32_t size;    /* one more than the largest id */
    sr_bytes texts;   /* all texts, one after the other */
    size_t *start;    /* (size) into texts; SIZE_MAX: no such token */
    uint32_t *length; /* (size) bytes */
    uint32_t *slots;  /* (mask + 1) ids hashed by text; UINT32_MAX: free */
    size_t mask;
} sr_vocabulary;

/* A vocabulary for ids below `size`, all without a token. */
srnn_status sr_vocabulary_create(sr_vocabulary *vocabulary, uint32_t size);
void sr_vocabulary_free(sr_vocabulary *vocabulary);

/* Sets the text of an id below size. Fails with SRNN_ERR_FORMAT if the id already has one. If
 * several ids have the same text, find returns the first one added. */
srnn_status sr_vocabulary_add(sr_vocabulary *vocabulary, uint32_t id, const char *text,
                              size_t bytes);

/* The id with this text, or -1. */
int64_t sr_vocabulary_find(const sr_vocabulary *vocabulary, const char *text, size_t bytes);

/* The text of an id, not terminated; NULL if there is no such token. */
const char *sr_vocabulary_text(const sr_vocabulary *vocabulary, uint32_t id, size_t *bytes);

/* A 64-bit hash of bytes (FNV-1a), the same on every machine. */
uint64_t sr_hash_bytes(const char *data, size_t bytes);

#endif
