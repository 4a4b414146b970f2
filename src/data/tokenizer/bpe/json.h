/* json.h (private): writes a byte-level BPE as a tokenizer.json. */
#ifndef SR_DATA_TOKENIZER_BPE_JSON_H
#define SR_DATA_TOKENIZER_BPE_JSON_H

#include "data/tokenizer/bpe/learn.h"

typedef struct sr_bpe_json {
    const sr_vocabulary *vocabulary; /* tokens as raw bytes, without gaps */
    const sr_merges *merges;
    uint32_t special_first, special_count; /* the ids of special tokens, consecutive */
} sr_bpe_json;

/* Appends a tokenizer.json with GPT-2's splitting, which sr_tokenizer_read_json and Hugging Face's
 * tokenizers read. */
srnn_status sr_bpe_json_write(sr_bytes *json, const sr_bpe_json *file);

#endif
