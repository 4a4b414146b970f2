/* document_encoder.h (private): batches of documents to batches of token ids. */
#ifndef SR_DATA_SHARDS_DOCUMENT_ENCODER_H
#define SR_DATA_SHARDS_DOCUMENT_ENCODER_H

#include "data/text/documents.h"
#include "data/tokenizer/tokenizer.h"

typedef struct sr_document_rules {
    const char *const *files; /* indexed by sr_document.file, for messages */
    const char *field;        /* the member of a JSON line that holds the text */
    bool replace_invalid;     /* bytes that are not UTF-8 become U+FFFD; else they are refused */
    int64_t end_token;        /* put after every document that is not empty, or -1: none */
} sr_document_rules;

/* Belongs to one thread at a time. */
typedef struct sr_document_encoder sr_document_encoder;

/* The tokenizer and the rules are borrowed and must outlive the encoder. */
srnn_status sr_document_encoder_create(sr_document_encoder **encoder, const sr_tokenizer *tokenizer,
                                       const sr_document_rules *rules);
void sr_document_encoder_free(sr_document_encoder *encoder);

/* Replaces the content of `tokens` by the ids of all documents; document n ends before
 * documents[n].token_end, and starts there too if it has no text. Fails with SRNN_ERR_FORMAT, the
 * file and the line. */
srnn_status sr_document_encoder_run(sr_document_encoder *encoder, sr_tokens *tokens,
                                    sr_document_batch *batch);

#endif
