/* learn.h (private): learns BPE merges from word counts. */
#ifndef SR_DATA_TOKENIZER_BPE_LEARN_H
#define SR_DATA_TOKENIZER_BPE_LEARN_H

#include "data/tokenizer/bpe/train.h"
#include "data/tokenizer/vocabulary.h"

typedef struct sr_merges {
    uint32_t (*pairs)[2]; /* (count) ids of the left and the right token */
    size_t count;
} sr_merges;

typedef struct sr_bpe_learning {
    const uint32_t *byte_ids; /* (256) the token of each byte */
    const sr_word_counts *words;
    sr_ties ties;
    sr_progress *progress; /* may be NULL */
    void *context;
} sr_bpe_learning;

/* `vocabulary` has capacity for `vocab` ids and holds `next` tokens as raw bytes. Adds tokens until
 * it is full or no pair is left. The caller frees merges->pairs. */
srnn_status sr_bpe_learn(sr_merges *merges, sr_vocabulary *vocabulary, uint32_t next,
                         const sr_bpe_learning *learning);

#endif
