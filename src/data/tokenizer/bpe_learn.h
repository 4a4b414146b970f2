/* bpe_learn.h: which pairs of tokens to merge, learned from counted words. */
#ifndef SR_DATA_TOKENIZER_BPE_LEARN_H
#define SR_DATA_TOKENIZER_BPE_LEARN_H

#include "data/tokenizer/vocabulary.h"
#include "data/tokenizer/word_count.h"

typedef struct sr_merges {
    uint32_t (*pairs)[2]; /* (count) ids of the left and the right token */
    size_t count;
} sr_merges;

/* `vocabulary`, with room for `vocab` ids, holds `next` tokens, as raw bytes; byte_ids[b] is the
 * token of byte b. Adds tokens until it is full or no pair is left. The caller frees
 * merges->pairs. */
srnn_status sr_bpe_learn(sr_merges *merges, sr_vocabulary *vocabulary, uint32_t next,
                         const uint32_t byte_ids[256], const sr_word_counts *words,
                         sr_progress *progress, void *context);

#endif
