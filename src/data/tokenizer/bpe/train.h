/* train.h: trains a byte-level BPE with GPT-2's splitting. */
#ifndef SR_DATA_TOKENIZER_BPE_TRAIN_H
#define SR_DATA_TOKENIZER_BPE_TRAIN_H

#include "data/tokenizer/bpe/word_count.h"

/* Which of two pairs that occur equally often is merged first. */
typedef enum sr_ties {
    SR_TIES_IDS = 0, /* the one with lower ids, left before right: as Hugging Face's trainer */
    SR_TIES_TEXT,    /* the one whose two texts, as bytes, sort last */
} sr_ties;

typedef struct sr_bpe_training {
    uint32_t vocab;        /* tokens in all: special ones, 256 bytes, merges */
    sr_ties ties;          /* among pairs of equal count */
    sr_word_counting text; /* texts, special tokens, threads, progress */
} sr_bpe_training;

/* Appends a tokenizer.json, which sr_tokenizer_read_json and Hugging Face's tokenizers read. Ids:
 * special tokens in the order given, the bytes in the order of the characters that represent them,
 * merges. Each merge joins the pair that occurs most often. There are fewer tokens than requested
 * if no pair is left. The result depends on the words and their counts only. */
srnn_status sr_bpe_train(sr_bytes *json, const sr_bpe_training *training);

#endif
