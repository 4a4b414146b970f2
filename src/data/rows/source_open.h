/* source_open.h: a source from what a user names. */
#ifndef SR_DATA_ROWS_SOURCE_OPEN_H
#define SR_DATA_ROWS_SOURCE_OPEN_H

#include "data/rows/shuffle.h"

typedef struct sr_source_settings {
    uint64_t seed;
    int T;                  /* tokens per row; a synthetic task has its own length */
    sr_token_layout layout; /* not for synthetic tasks */
    bool whole;             /* the tokens behind the last full row are a row too: for evaluation */

    /* A file of text or a .bin file has no splits of its own. Where the data is a folder of shards,
     * the validation split may be that of another folder: all its documents. A synthetic task takes
     * none. */
    const char *validation;  /* data of the same kind that is the validation split, or NULL */
    double validation_share; /* text, without such a file: the last share of it, 0 .. 1 */
    sr_half validation_half; /* not for synthetic tasks, whose rows never end */
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
