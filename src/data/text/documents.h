/* documents.h (private): the documents of text files, one after the other, in batches.
 *
 * A .jsonl or .ndjson file (also compressed: .jsonl.gz, .jsonl.zst, .jsonl.xz) has one document per
 * line. Any other file is text: a line <|endoftext|> separates documents, and the newline before
 * such a line belongs to it. Empty lines of the former and empty documents of the latter are
 * skipped. */
#ifndef SR_DATA_TEXT_DOCUMENTS_H
#define SR_DATA_TEXT_DOCUMENTS_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_document {
    size_t begin, bytes; /* in the batch's text */
    int64_t line;        /* of the file, from 1: where it starts */
    int64_t byte;        /* of the file, decompressed, from 0: where it starts */
    int64_t number;      /* over all files, from 0 */
    int file;            /* index in the list of files */
    bool is_json;        /* a line of JSON, which the encoder parses */
    size_t token_end;    /* set by sr_document_encoder_run */
} sr_document;

/* { 0 } is empty; free with sr_document_batch_free. */
typedef struct sr_document_batch {
    sr_bytes text;
    sr_document *documents; /* (count) */
    size_t count, capacity;
} sr_document_batch;

void sr_document_batch_free(sr_document_batch *batch);

typedef struct sr_document_reader sr_document_reader;

/* Reads `files` in this order; the names are borrowed. A document of more than `most_bytes` bytes
 * is refused, so that memory is bounded. */
srnn_status sr_document_reader_create(sr_document_reader **reader, const char *const *files,
                                      int count, size_t most_bytes);
void sr_document_reader_free(sr_document_reader *reader);

/* Replaces the batch's content by the next documents: about a megabyte, or one larger document. An
 * empty batch means the end. */
srnn_status sr_document_reader_next(sr_document_reader *reader, sr_document_batch *batch);

/* Bytes of all files read so far, before decompression. */
int64_t sr_document_reader_position(const sr_document_reader *reader);

#endif
