/* parts.h (private): the parts of a tokenizer, for the files of this module. */
#ifndef SR_DATA_TOKENIZER_PARTS_H
#define SR_DATA_TOKENIZER_PARTS_H

#include "data/tokenizer/added.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/splitter.h"
#include "data/tokenizer/tokenizer.h"

/* The bytes of all ids, one after the other. */
typedef struct sr_id_texts {
    sr_bytes texts;
    size_t *start; /* (size + 1) into texts */
} sr_id_texts;

/* How ids become text. Each id has its bytes; these rules apply to the whole text. */
typedef struct sr_decoding {
    sr_id_texts ids;
    sr_id_texts first;  /* of an id at the start of a text; start is NULL if that is the same */
    size_t strip_count; /* this many copies of strip at the start of a text are dropped */
    sr_bytes strip;
    sr_bytes strip_mark; /* if not empty, only tokens that start with this lose a copy, one each */
    bool spaced;         /* a space between any two tokens */
} sr_decoding;

enum { SR_SEVERAL = -2 }; /* instead of an id: several ids */

struct sr_tokenizer {
    const char *kind; /* static */
    uint64_t hash;
    int64_t bos, eos; /* -1: none; bos may be SR_SEVERAL */
    sr_vocabulary vocabulary;
    bool *special;    /* (vocabulary.size) */
    bool *added_only; /* (vocabulary.size) ids that the model itself does not have */

    /* Encoding, in the order of the steps. The byte tokenizer has none of them. */
    sr_added added; /* searched in the raw text */
    sr_normalizer normalizer;
    sr_added added_normalized; /* searched in the normalised text */
    sr_splitter splitter;
    sr_bpe bpe;

    sr_decoding decoding;
};

/* An empty tokenizer for ids below `size`. */
srnn_status sr_tokenizer_create(sr_tokenizer **tokenizer, const char *kind, uint32_t size);

/* The byte that byte-level BPE represents by this character, or -1; and the inverse. */
int sr_byte_of_character(uint32_t character);
uint32_t sr_character_of_byte(unsigned char byte);

/* The byte of a token such as <0x0A>, or -1. */
int sr_byte_of_token(const char *text, size_t bytes);

/* Prefixes the detail of the last failure with a file name; returns `status`. */
srnn_status sr_fail_in(srnn_status status, const char *name);

/* Sets the bytes that an id decodes to; call it for ids 0, 1, 2, ... in order. */
srnn_status sr_id_texts_add(sr_id_texts *texts, uint32_t id, const char *text, size_t bytes);

#endif
