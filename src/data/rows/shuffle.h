/* shuffle.h: the rows of a dataset, reshuffled every epoch. */
#ifndef SR_DATA_ROWS_SHUFFLE_H
#define SR_DATA_ROWS_SHUFFLE_H

#include "data/rows/source.h"
#include "data/shards/dataset.h"

typedef enum sr_token_layout {
    SR_ROWS_STREAM = 0, /* rows of T+1 tokens cut from the whole sequence, documents ignored */
    SR_ROWS_PACKED,     /* the same rows with document boundaries marked; the last token of a
                         * document has no target, as the next document does not depend on it */
    SR_ROWS_DOCUMENT,   /* the first T+1 tokens of a document, then padding without targets */
} sr_token_layout;

/* Which rows of the validation split are used. The halves are disjoint, for every seed. */
typedef enum sr_half { SR_HALF_ALL = 0, SR_HALF_FIRST, SR_HALF_SECOND } sr_half;

typedef struct sr_shuffle_settings {
    uint64_t seed;
    int T;
    sr_token_layout layout;
    bool whole; /* stream, packed: the tokens after the last full row form a row too, padded without
                 * targets */
    sr_half validation_half;
} sr_shuffle_settings;

/* A source of the rows of both datasets (the second may be empty): each row once per epoch, in a
 * new order every epoch. Takes ownership of the datasets, also on failure, and leaves { 0 }. */
srnn_status sr_shuffle_create(sr_source **source, sr_dataset datasets[SR_SPLITS],
                              const sr_shuffle_settings *settings);

#endif
