/* token_rows.h: a text or a source of tokens as rows of one length, one after the other, in
 * constant memory. */
#ifndef SR_ANALYSIS_TOKEN_ROWS_H
#define SR_ANALYSIS_TOKEN_ROWS_H

#include "data/rows/source.h"
#include "data/tokenizer/tokenizer.h"

#include <stdbool.h>

typedef struct sr_token_rows sr_token_rows;

/* Rows of T tokens of a text, plain or compressed. `bos` (-1: none) begins it and every document
 * after a line <|endoftext|>. The tokenizer must outlive the rows. */
srnn_status sr_token_rows_open_text(sr_token_rows **rows, const char *path,
                                    const sr_tokenizer *tokenizer, int32_t bos, int T);

/* The rows of a source's validation split, or of its training split if there is none, each once.
 * The source must outlive the rows. */
srnn_status sr_token_rows_open_source(sr_token_rows **rows, const sr_source *source);

void sr_token_rows_free(sr_token_rows *rows);

int sr_token_rows_length(const sr_token_rows *rows);

/* The next row: ids (T) and targets (T), -1 where none is counted. *more is false, and nothing is
 * written, when less than a whole row is left. */
srnn_status sr_token_rows_next(sr_token_rows *rows, int32_t *ids, int32_t *targets, bool *more);

#endif
