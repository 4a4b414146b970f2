/* source_open.h: opens a source by name. */
#ifndef SR_DATA_ROWS_SOURCE_OPEN_H
#define SR_DATA_ROWS_SOURCE_OPEN_H

#include "data/rows/shuffle.h"

typedef struct sr_source_settings {
    uint64_t seed;
    int T;                  /* tokens per row; synthetic tasks have their own length */
    sr_token_layout layout; /* not for synthetic tasks */
    bool whole;             /* the tokens after the last full row form a row too: for evaluation */

    /* A text file or a .bin file has no splits. For a folder of shards, the validation split may be
     * another folder, of which all documents are used. A synthetic task takes none. */
    const char *validation;  /* data of the same kind to use as the validation split, or NULL */
    double validation_share; /* text without such a file: this fraction at its end, 0 .. 1 */
    sr_half validation_half; /* not for synthetic tasks, whose rows are endless */
    sr_bin_settings bin;
} sr_source_settings;

/* Opens, tried in this order:
 *     a synthetic task   recall:pairs=8
 *     a folder           that `softrnn data prepare` made
 *     a file *.bin       of tokens, as nanoGPT or llm.c writes it
 *     any other file     of text, plain or compressed, whose bytes are the tokens */
srnn_status sr_source_open(sr_source **source, const char *where,
                           const sr_source_settings *settings);

/* The same for text in memory, which is copied. */
srnn_status sr_source_open_text(sr_source **source, const char *text, size_t bytes,
                                const sr_source_settings *settings);

#endif
