/* tokenizer_samples.h: small tokenizers in every format, made in memory. */
#ifndef SR_TESTS_TOKENIZER_SAMPLES_H
#define SR_TESTS_TOKENIZER_SAMPLES_H

#include "data/tokenizer/tokenizer.h"

/* The scored tokens that the SentencePiece and the llama2.c sample share, best first. Their ids
 * follow unknown, BOS, EOS and the 256 bytes. "_" represents a space. */
extern const char *const sample_pieces[];
enum { SAMPLE_PIECES = 14, SAMPLE_FIRST = 259 };

void sample_sentencepiece_file(sr_bytes *file);
void sample_llama2c_file(sr_bytes *file);

/* The SentencePiece sample that removes extra white space, with one additional user-defined
 * symbol. */
void sample_sentencepiece_symbol_file(sr_bytes *file, const char *symbol);

/* Replaces every _ in a text by `space`. */
void sample_spaced(sr_bytes *out, const char *text, const char *space);

/* BPE with byte fallback, as of Llama-2, with the same tokens. */
void sample_json_file(sr_bytes *file);

/* A byte-level BPE of 400 tokens trained on a few sentences; special: <|endoftext|> and <|sep|>. */
void sample_byte_level_file(sr_bytes *file);

/* Made from these; fails the test if they cannot be read. */
sr_tokenizer *sample_sentencepiece(void);
sr_tokenizer *sample_llama2c(void);
sr_tokenizer *sample_json(void);
sr_tokenizer *sample_byte_level(void);

/* A tokenizer.json with a tiny byte-level model around the given fields, such as
 * "\"normalizer\": {...}". */
void sample_frame_file(sr_bytes *file, const char *fields);

#endif
