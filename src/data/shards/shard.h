/* shard.h: a sequence of tokens, cut into documents, in a file that is mapped into memory.
 *
 * A shard file, little-endian:
 *     64 bytes   header: magic "SRTOKENS", u32 version, u32 bytes per token (2 or 4), u64 tokens,
 *                u64 documents, u64 hash of the tokenizer, u32 vocabulary, u32 end-of-document id
 *                plus 1 (0: none), u32 CRC-32 of the tokens, u32 CRC-32 of the index, u32 zero,
 *                u32 CRC-32 of the 60 bytes before
 *     tokens     then zeros up to a multiple of 8 bytes
 *     index      documents + 1 increasing u64: document n holds tokens index[n] .. index[n+1]-1;
 *                the first is 0, the last the number of tokens
 */
#ifndef SR_DATA_SHARDS_SHARD_H
#define SR_DATA_SHARDS_SHARD_H

#include "files/file.h"

#include <stdint.h>

/* Tokens to read. Several threads may read one shard at a time. */
typedef struct sr_shard {
    const void *tokens; /* (token_count) of `width` bytes each */
    int width;          /* 1, 2 or 4 */
    int64_t token_count;
    const uint64_t *starts; /* (document_count + 1), from 0 to token_count, increasing */
    int64_t document_count;
    uint32_t vocab;          /* every token must be less; checked by sr_shard_read */
    int64_t end_token;       /* ends every document, or -1: none does */
    uint64_t tokenizer_hash; /* 0: not known */
    uint32_t token_crc;      /* of a shard file: as stored, see sr_shard_verify; else computed */
    uint32_t index_crc;      /* the same; 0 if the file has no index */
    sr_mapping mapping;      /* the file, or { 0 } */
    void *owned;             /* owned memory that `tokens` or `starts` point into, or NULL */
    char *path;              /* for messages */
} sr_shard;

/* Opens a shard file. Everything but the tokens is checked now, the tokens as they are read. */
srnn_status sr_shard_open(sr_shard *shard, const char *path);

/* The same from memory (aligned to 8 bytes), which must outlive the shard. */
srnn_status sr_shard_parse(sr_shard *shard, const void *bytes, size_t size, const char *name);

/* How a file without an index separates documents. */
typedef enum sr_boundary {
    SR_BOUNDARY_NONE = 0, /* the file is one document */
    SR_BOUNDARY_AFTER,    /* the token ends a document, as nanoGPT writes it */
    SR_BOUNDARY_BEFORE,   /* the token starts a document, as llm.c writes it */
} sr_boundary;

typedef struct sr_bin_settings {
    sr_boundary boundary;
    uint32_t token; /* the id that marks a boundary */
    uint32_t vocab; /* 0: 65536, or 128256 for tokens of 32 bits */
} sr_bin_settings;

/* Opens a .bin file: llm.c's (a header of 256 int32: 20240520, 1, number of tokens, for uint16, or
 * 20240801, 7, number of tokens, for uint32) or nanoGPT's (no header, uint16). */
srnn_status sr_shard_open_bin(sr_shard *shard, const char *path, const sr_bin_settings *settings);

/* A text as one document whose bytes are the tokens, as for the tokenizer "bytes". The text is
 * copied. */
srnn_status sr_shard_from_text(sr_shard *shard, const char *text, size_t bytes);

/* Leaves { 0 }, which may be closed again. */
void sr_shard_close(sr_shard *shard);

/* Fails if the file has been truncated since it was opened: `tokens` and `starts` must then not be
 * read. */
srnn_status sr_shard_check(const sr_shard *shard);

/* ids = tokens begin .. begin+count-1, which must exist. Fails with SRNN_ERR_FORMAT on a token that
 * is not in the vocabulary. */
srnn_status sr_shard_read(const sr_shard *shard, int32_t *ids, int64_t begin, int64_t count);

/* The document that token `token` belongs to. */
int64_t sr_shard_document_of(const sr_shard *shard, int64_t token);

/* Reads every token: its checksum and its range. */
srnn_status sr_shard_verify(const sr_shard *shard);

/* ---- Writing ---- */

typedef struct sr_shard_settings {
    uint32_t vocab;    /* up to 65536: 2 bytes per token, else 4 */
    int64_t end_token; /* ends every document, or -1 */
    uint64_t tokenizer_hash;
} sr_shard_settings;

typedef struct sr_shard_writer sr_shard_writer;

/* The file is renamed to its name when it is complete. */
srnn_status sr_shard_writer_create(sr_shard_writer **writer, const char *path,
                                   const sr_shard_settings *settings);

/* Appends one document of at least one token. */
srnn_status sr_shard_writer_append(sr_shard_writer *writer, const uint32_t *ids, size_t count);

int64_t sr_shard_writer_tokens(const sr_shard_writer *writer);
int64_t sr_shard_writer_documents(const sr_shard_writer *writer);

/* Completes the file; it must hold a document. After that the writer can only be freed. */
srnn_status sr_shard_writer_finish(sr_shard_writer *writer);

/* Frees; an unfinished file is removed. */
void sr_shard_writer_free(sr_shard_writer *writer);

#endif
