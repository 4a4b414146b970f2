/* tokenizer.h: text to token ids and back.
 *
 *     sr_tokenizer *tokenizer;
 *     sr_encoder *encoder;
 *     sr_tokens tokens = {0};
 *     SR_TRY(sr_tokenizer_load(&tokenizer, "model/tokenizer.json"));
 *     SR_TRY(sr_encoder_create(&encoder, tokenizer));
 *     SR_TRY(sr_encoder_encode(encoder, &tokens, text, strlen(text)));
 *
 * A tokenizer is immutable and may be shared by threads; an encoder or a decoder belongs to one
 * thread at a time. The ids depend on the text only. */
#ifndef SR_DATA_TOKENIZER_TOKENIZER_H
#define SR_DATA_TOKENIZER_TOKENIZER_H

#include "data/text/buffer.h"

#include <stdbool.h>

typedef struct sr_tokenizer sr_tokenizer;
typedef struct sr_encoder sr_encoder;
typedef struct sr_decoder sr_decoder;

/* ---- Making one ---- */

/* `name` is "bytes" (the built-in one), a file *.json, *.json.gz, *.model or *.bin, or a folder
 * with tokenizer.json, tokenizer.json.gz, tokenizer.model or tokenizer.bin, tried in this order. An
 * unsupported feature fails with SRNN_ERR_UNSUPPORTED and is named. */
srnn_status sr_tokenizer_load(sr_tokenizer **tokenizer, const char *name);

/* The built-in one: ids 0..255 are the bytes, 256 is <|endoftext|>, which is BOS and EOS. */
enum { SR_BYTE_TOKENS = 257 };
srnn_status sr_tokenizer_create_bytes(sr_tokenizer **tokenizer);

/* From the content of a file; `name` appears in error messages only. */
srnn_status sr_tokenizer_read_json(sr_tokenizer **tokenizer, const char *data, size_t bytes,
                                   const char *name);
srnn_status sr_tokenizer_read_sentencepiece(sr_tokenizer **tokenizer, const char *data,
                                            size_t bytes, const char *name);
srnn_status sr_tokenizer_read_llama2c(sr_tokenizer **tokenizer, const char *data, size_t bytes,
                                      const char *name);

/* Encoders and decoders made from it must be freed first. */
void sr_tokenizer_free(sr_tokenizer *tokenizer);

/* ---- Asking ---- */

/* "bytes", "byte-level BPE", "BPE", "SentencePiece BPE" or "llama2.c". Static text. */
const char *sr_tokenizer_kind(const sr_tokenizer *tokenizer);

/* One more than the largest id. */
uint32_t sr_tokenizer_vocab_size(const sr_tokenizer *tokenizer);

/* The id that starts or ends a document, or -1 if the tokenizer has none, or prepends several
 * tokens. */
int64_t sr_tokenizer_bos(const sr_tokenizer *tokenizer);
int64_t sr_tokenizer_eos(const sr_tokenizer *tokenizer);

/* A hash of the (uncompressed) file content: the same for the same file. */
uint64_t sr_tokenizer_hash(const sr_tokenizer *tokenizer);

/* True for control ids that represent no text (BOS, EOS, unknown, ...). */
bool sr_tokenizer_is_special(const sr_tokenizer *tokenizer, uint32_t id);

/* The text of a token as written in its file, owned by the tokenizer; NULL if there is no such
 * id. */
const char *sr_tokenizer_token(const sr_tokenizer *tokenizer, uint32_t id, size_t *bytes);

/* ---- Text to ids ---- */

srnn_status sr_encoder_create(sr_encoder **encoder, const sr_tokenizer *tokenizer);
void sr_encoder_free(sr_encoder *encoder);

/* Appends the ids of `text`, any bytes at all, to `tokens`; adds no BOS or EOS. Special tokens
 * written in the text become their ids if the tokenizer's file says so (tokenizer.json). Bytes that
 * are not UTF-8 become byte tokens, each by itself, or the unknown token if there are none. */
srnn_status sr_encoder_encode(sr_encoder *encoder, sr_tokens *tokens, const char *text,
                              size_t bytes);

/* The same for a text that comes in pieces of a few kilobytes or more: feed appends the ids that
 * are certain, finish the rest, and begins a new text. Text is held back from the last place on
 * where it can be cut: between a letter (a-z) and a space or newline, if that leaves the ids of the
 * 512 bytes on either side as they are. A text without such places is held whole. */
srnn_status sr_encoder_feed(sr_encoder *encoder, sr_tokens *tokens, const char *text, size_t bytes);
srnn_status sr_encoder_finish(sr_encoder *encoder, sr_tokens *tokens);

/* ---- Ids to text ---- */

/* Appends the text of all ids. An id out of range fails with SRNN_ERR_ARGUMENT. Special tokens are
 * written as their text (control pieces of SentencePiece and llama2.c: as nothing). */
srnn_status sr_tokenizer_decode(const sr_tokenizer *tokenizer, sr_bytes *text, const uint32_t *ids,
                                size_t count);

/* The same one id at a time. The text after each push never ends inside a character; incomplete
 * bytes are held back until a later push, or written as they are by finish. To continue a text,
 * push the ids before it too and discard their text: the first token of a text may lose its
 * space. */
srnn_status sr_decoder_create(sr_decoder **decoder, const sr_tokenizer *tokenizer);
void sr_decoder_free(sr_decoder *decoder);
srnn_status sr_decoder_push(sr_decoder *decoder, sr_bytes *text, uint32_t id);

/* Appends the bytes held back and starts a new text. */
srnn_status sr_decoder_finish(sr_decoder *decoder, sr_bytes *text);

#endif
