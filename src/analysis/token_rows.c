/* token_rows.c: a text or a source of tokens as rows of one length, one after the other. */
#include "analysis/token_rows.h"

#include "base/memory.h"
#include "data/text/input.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 1 << 16 };

static const char separator[] = "<|endoftext|>\n";

struct sr_token_rows {
    int T;

    /* Of a text: */
    sr_input *input;
    sr_encoder *encoder;
    int32_t bos;
    sr_bytes text;    /* read but not encoded yet */
    sr_tokens tokens; /* encoded but not returned yet */
    bool ended;

    /* Of a source: */
    const sr_source *source;
    int64_t *offsets; /* (T + 1) */
    sr_split split;
    int64_t row;
};

static srnn_status create(sr_token_rows **rows, int T) {
    void *memory;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **rows));
    *rows = memory;
    (*rows)->T = T;
    return SRNN_OK;
}

static srnn_status push_bos(sr_token_rows *rows) {
    return rows->bos >= 0 ? sr_tokens_push(&rows->tokens, (uint32_t)rows->bos) : SRNN_OK;
}

static srnn_status start_text(sr_token_rows *rows, const char *path,
                              const sr_tokenizer *tokenizer) {
    SR_TRY(sr_input_open(&rows->input, path));
    SR_TRY(sr_encoder_create(&rows->encoder, tokenizer));
    return push_bos(rows);
}

srnn_status sr_token_rows_open_text(sr_token_rows **rows, const char *path,
                                    const sr_tokenizer *tokenizer, int32_t bos, int T) {
    SR_TRY(create(rows, T));
    (*rows)->bos = bos;
    const srnn_status status = start_text(*rows, path, tokenizer);
    if (status != SRNN_OK) {
        sr_token_rows_free(*rows);
        *rows = NULL;
    }
    return status;
}

srnn_status sr_token_rows_open_source(sr_token_rows **rows, const sr_source *source) {
    void *memory;
    SR_TRY(create(rows, source->T));
    (*rows)->source = source;
    (*rows)->split = source->rows[SR_SPLIT_VALIDATION] > 0 ? SR_SPLIT_VALIDATION : SR_SPLIT_TRAIN;
    const srnn_status status = sr_alloc(&memory, (size_t)source->T + 1, sizeof(int64_t));
    if (status != SRNN_OK) {
        sr_token_rows_free(*rows);
        *rows = NULL;
        return status;
    }
    (*rows)->offsets = memory;
    return SRNN_OK;
}

void sr_token_rows_free(sr_token_rows *rows) {
    if (!rows)
        return;
    sr_input_free(rows->input);
    sr_encoder_free(rows->encoder);
    sr_bytes_free(&rows->text);
    sr_tokens_free(&rows->tokens);
    free(rows->offsets);
    free(rows);
}

int sr_token_rows_length(const sr_token_rows *rows) {
    return rows->T;
}

/* Encodes the first `bytes` of the text and drops them. */
static srnn_status encode(sr_token_rows *rows, size_t bytes) {
    const char *text = rows->text.data;
    for (size_t at = 0; at < bytes;) {
        const char *end = memmem(text + at, bytes - at, separator, strlen(separator));
        const size_t length = end ? (size_t)(end - text) - at : bytes - at;
        SR_TRY(sr_encoder_encode(rows->encoder, &rows->tokens, text + at, length));
        at += length;
        if (end) {
            SR_TRY(push_bos(rows));
            at += strlen(separator);
        }
    }
    rows->text.count -= bytes;
    memmove(rows->text.data, text + bytes, rows->text.count);
    return SRNN_OK;
}

/* Reads one more block and encodes it to the end of its last line, so that no word is cut. */
static srnn_status read_block(sr_token_rows *rows) {
    size_t got;
    SR_TRY(sr_bytes_reserve(&rows->text, BLOCK_BYTES));
    SR_TRY(sr_input_read(rows->input, rows->text.data + rows->text.count, BLOCK_BYTES, &got));
    rows->text.count += got;
    rows->ended = got == 0;
    const char *newline =
        rows->text.count ? memrchr(rows->text.data, '\n', rows->text.count) : NULL;
    const bool all = rows->ended || (!newline && rows->text.count >= BLOCK_BYTES);
    if (all)
        return encode(rows, rows->text.count);
    return newline ? encode(rows, (size_t)(newline - rows->text.data) + 1) : SRNN_OK;
}

static srnn_status next_of_text(sr_token_rows *rows, int32_t *ids, int32_t *targets, bool *more) {
    const size_t T = (size_t)rows->T;
    sr_tokens *tokens = &rows->tokens;
    while (tokens->count < T + 1 && !rows->ended)
        SR_TRY(read_block(rows));
    *more = tokens->count >= T + 1;
    if (!*more)
        return SRNN_OK;
    for (size_t t = 0; t < T; t++) {
        ids[t] = (int32_t)tokens->ids[t];
        targets[t] = (int32_t)tokens->ids[t + 1];
    }
    tokens->count -= T;
    memmove(tokens->ids, tokens->ids + T, tokens->count * sizeof *tokens->ids);
    return SRNN_OK;
}

srnn_status sr_token_rows_next(sr_token_rows *rows, int32_t *ids, int32_t *targets, bool *more) {
    if (!rows->source)
        return next_of_text(rows, ids, targets, more);
    *more = rows->row < rows->source->rows[rows->split];
    if (!*more)
        return SRNN_OK;
    sr_batch batch = {.B = 1, .ids = ids, .targets = targets, .offsets = rows->offsets};
    return sr_source_batch(rows->source, &batch, rows->split, rows->row++);
}
