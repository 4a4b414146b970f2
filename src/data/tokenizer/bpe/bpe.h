/* bpe.h (private): the merge machine: symbols of a piece of text, merged pair by pair, best rank
 * first.
 *
 * Symbols are token ids; symbols from `tokens` on are characters that occur inside tokens but are
 * not tokens themselves. Read-only once the tables are filled. */
#ifndef SR_DATA_TOKENIZER_BPE_BPE_H
#define SR_DATA_TOKENIZER_BPE_BPE_H

#include "data/tokenizer/vocabulary.h"

#include <stdbool.h>

#define SR_NO_SYMBOL UINT32_MAX

typedef struct sr_bpe_pair {
    uint64_t key;    /* left symbol in the high half, right in the low; UINT64_MAX: free slot */
    uint32_t rank;   /* lower merges first; among equals the leftmost */
    uint32_t merged; /* symbol */
} sr_bpe_pair;

typedef struct sr_bpe_character {
    uint32_t character; /* UINT32_MAX: free slot */
    uint32_t symbol;
} sr_bpe_character;

typedef struct sr_bpe {
    bool byte_level;           /* the first symbols are bytes, not characters */
    bool ignore_merges;        /* a piece that is a token is not split */
    bool fuse_unknown;         /* neighbouring unknown characters become one unknown token */
    bool cuttable;             /* a piece may be cut between characters that no token has side by
                                * side */
    uint32_t tokens;           /* symbols below this are token ids */
    uint32_t unknown;          /* for characters without a symbol; SR_NO_SYMBOL: they are dropped */
    uint32_t byte_symbol[256]; /* the token of a byte, or SR_NO_SYMBOL */
    uint32_t ascii_symbol[128];
    sr_bpe_character *characters; /* (character_mask + 1) hashed */
    size_t character_mask, character_count;
    uint32_t *plain_characters; /* (plain_count) the characters of the symbols from `tokens` on */
    size_t plain_count;
    sr_bpe_pair *pairs; /* (pair_mask + 1) hashed */
    size_t pair_mask, pair_count;
    uint64_t *neighbours; /* bit set: some token has two adjacent characters with this hash */
} sr_bpe;

/* Empty tables for this many pairs and characters. */
srnn_status sr_bpe_create(sr_bpe *bpe, uint32_t tokens, size_t pairs, size_t characters);
void sr_bpe_free(sr_bpe *bpe);

/* If a pair is added twice the first rank is used. */
void sr_bpe_add_pair(sr_bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged);
void sr_bpe_add_character(sr_bpe *bpe, uint32_t character, uint32_t symbol);

/* What two symbols merge to; NULL if they do not. */
const sr_bpe_pair *sr_bpe_find_pair(const sr_bpe *bpe, uint32_t left, uint32_t right);

/* The symbol of a character, or SR_NO_SYMBOL. */
uint32_t sr_bpe_character_symbol(const sr_bpe *bpe, uint32_t character);

/* Records the adjacent characters of this token. */
void sr_bpe_note_neighbours(sr_bpe *bpe, const char *text, size_t bytes);

/* False only if no token has these two characters side by side, so that no merge can join them. */
bool sr_bpe_are_neighbours(const sr_bpe *bpe, uint32_t left, uint32_t right);

/* Fills characters, pairs and neighbours from tokens with scores instead of a list of merges: two
 * symbols merge if their joined text is a token, highest score first (SentencePiece, llama2.c).
 * Tokens with mergeable[id] == false are ignored. */
srnn_status sr_bpe_create_scored(sr_bpe *bpe, const sr_vocabulary *vocabulary,
                                 const float *scores /* (size) */,
                                 const bool *mergeable /* (size) */);

/* Memory for merging, reused from piece to piece. { 0 } is empty. */
typedef struct sr_bpe_scratch {
    sr_tokens symbols; /* in: the symbols of a piece; out: the merged symbols */
    sr_tokens ranks, previous, next;
    uint64_t *heap;
    size_t heap_count, heap_capacity;
} sr_bpe_scratch;

/* Merges scratch->symbols in place, in O(n log n). */
srnn_status sr_bpe_merge(const sr_bpe *bpe, sr_bpe_scratch *scratch);
void sr_bpe_scratch_free(sr_bpe_scratch *scratch);

#endif
