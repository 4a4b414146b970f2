/* document_encoder.c: batches of documents to batches of token ids. */
#include "data/shards/document_encoder.h"

#include "base/memory.h"
#include "data/text/json_repair.h"
#include "data/text/unicode.h"
#include "files/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct sr_document_encoder {
    const sr_document_rules *rules;
    sr_encoder *encoder;
    sr_bytes repaired, repaired_json;
};

srnn_status sr_document_encoder_create(sr_document_encoder **encoder, const sr_tokenizer *tokenizer,
                                       const sr_document_rules *rules) {
    sr_document_encoder *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    created->rules = rules;
    srnn_status status = sr_encoder_create(&created->encoder, tokenizer);
    if (status != SRNN_OK) {
        free(created);
        return status;
    }
    *encoder = created;
    return SRNN_OK;
}

void sr_document_encoder_free(sr_document_encoder *encoder) {
    if (!encoder)
        return;
    sr_encoder_free(encoder->encoder);
    sr_bytes_free(&encoder->repaired);
    sr_bytes_free(&encoder->repaired_json);
    free(encoder);
}

static srnn_status refuse_byte(const sr_document_encoder *encoder, const sr_document *document,
                               const char *text, size_t at) {
    int64_t line = document->line;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return SR_FAIL(SRNN_ERR_FORMAT,
                   "%s:%lld: byte %lld (0x%02x) is not UTF-8; repair the file, or let such bytes "
                   "be replaced",
                   encoder->rules->files[document->file], (long long)line,
                   (long long)(document->byte + (int64_t)at), (unsigned char)text[at]);
}

/* Makes *text valid UTF-8, in the encoder's memory if it has to be changed. */
static srnn_status make_valid(sr_document_encoder *encoder, const sr_document *document,
                              const char **text, size_t *bytes) {
    size_t valid = sr_utf8_valid_prefix(*text, *bytes);
    if (valid == *bytes)
        return SRNN_OK;
    if (!encoder->rules->replace_invalid)
        return refuse_byte(encoder, document, *text, valid);
    encoder->repaired.count = 0;
    const char *from = *text;
    size_t left = *bytes;
    for (;;) {
        SR_TRY(sr_bytes_append(&encoder->repaired, from, valid));
        if (valid == left)
            break;
        SR_TRY(sr_bytes_append(&encoder->repaired, "\xef\xbf\xbd", 3));
        from += valid + 1;
        left -= valid + 1;
        valid = sr_utf8_valid_prefix(from, left);
    }
    *text = encoder->repaired.data;
    *bytes = encoder->repaired.count;
    return SRNN_OK;
}

/* *root is NULL, and *error says why, if the line is not JSON even after repairs. */
static srnn_status parse_json(sr_document_encoder *encoder, json_t **root, json_error_t *error,
                              const char *line, size_t bytes) {
    json_error_t unused;
    sr_bytes *repaired = &encoder->repaired_json;
    if (!sr_json_scan(root, error, line, bytes, JSON_ALLOW_NUL))
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory to read a line");
    if (*root)
        return SRNN_OK;
    SR_TRY(sr_json_repair(repaired, line, bytes, encoder->rules->replace_invalid));
    if (!sr_json_scan(root, &unused, repaired->data, repaired->count, JSON_ALLOW_NUL))
        return SR_FAIL(SRNN_ERR_MEMORY, "no memory to read a line");
    return SRNN_OK;
}

static srnn_status encode_json(sr_document_encoder *encoder, sr_tokens *tokens,
                               const sr_document *document, const char *line, size_t bytes) {
    const char *file = encoder->rules->files[document->file], *field = encoder->rules->field;
    json_error_t error;
    json_t *root;
    SR_TRY(parse_json(encoder, &root, &error, line, bytes));
    if (!root)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s:%lld: column %d: %s", file, (long long)document->line,
                       error.column, error.text);
    json_t *text = json_object_get(root, field);
    srnn_status status;
    if (json_is_string(text))
        status = sr_encoder_encode(encoder->encoder, tokens, json_string_value(text),
                                   json_string_length(text));
    else
        status = SR_FAIL(SRNN_ERR_FORMAT, "%s:%lld: the line has no text member \"%s\"", file,
                         (long long)document->line, field);
    json_decref(root);
    return status;
}

static srnn_status encode(sr_document_encoder *encoder, sr_tokens *tokens,
                          const sr_document *document, const char *text) {
    size_t bytes = document->bytes, before = tokens->count;
    SR_TRY(make_valid(encoder, document, &text, &bytes));
    if (document->is_json)
        SR_TRY(encode_json(encoder, tokens, document, text, bytes));
    else
        SR_TRY(sr_encoder_encode(encoder->encoder, tokens, text, bytes));
    if (encoder->rules->end_token >= 0 && tokens->count > before)
        SR_TRY(sr_tokens_push(tokens, (uint32_t)encoder->rules->end_token));
    return SRNN_OK;
}

srnn_status sr_document_encoder_run(sr_document_encoder *encoder, sr_tokens *tokens,
                                    sr_document_batch *batch) {
    tokens->count = 0;
    for (size_t n = 0; n < batch->count; n++) {
        sr_document *document = &batch->documents[n];
        SR_TRY(encode(encoder, tokens, document, batch->text.data + document->begin));
        document->token_end = tokens->count;
    }
    return SRNN_OK;
}
