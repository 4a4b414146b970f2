/* encoder.c: text to token ids: added tokens, normalizer, splitter, merges. */
#include "data/tokenizer/parts.h"

#include "base/memory.h"
#include "data/text/unicode.h"

#include <stdlib.h>
#include <string.h>

/* Most pieces are words seen before: one cache line holds a word and its ids. */
enum { CACHE_BITS = 15, CACHED_BYTES = 30, CACHED_IDS = 8 };

typedef struct cached {
    uint8_t bytes; /* 0: free */
    uint8_t count;
    char text[CACHED_BYTES];
    uint32_t ids[CACHED_IDS];
} cached;

struct sr_encoder {
    const sr_tokenizer *tokenizer;
    sr_tokens out;      /* the caller's; held here to avoid false sharing */
    bool after_unknown; /* the last id of this piece is the unknown token */
    bool met_unknown;   /* the ids of a piece then depend on the piece before it */
    sr_matcher *matcher;
    bool continues; /* the text to encode is the rest of another */
    sr_bytes held;  /* of sr_encoder_feed: text that is not encoded yet */
    bool begun;     /* some of the fed text is encoded */
    sr_bytes normalized[2];
    sr_split_run split;
    sr_bpe_scratch merge;
    sr_bytes word; /* a piece in the vocabulary's encoding */
    cached *cache; /* (1 << CACHE_BITS) by hash of the text */
};

static srnn_status take_piece(void *context, const char *piece, size_t bytes);

static srnn_status fill(sr_encoder *encoder, const sr_tokenizer *tokenizer) {
    encoder->tokenizer = tokenizer;
    SR_TRY(sr_matcher_create(&encoder->matcher));
    encoder->split.splitter = &tokenizer->splitter;
    encoder->split.matcher = encoder->matcher;
    encoder->split.take = take_piece;
    encoder->split.context = encoder;
    return sr_alloc_zero((void **)&encoder->cache, (size_t)1 << CACHE_BITS, sizeof(cached));
}

srnn_status sr_encoder_create(sr_encoder **encoder, const sr_tokenizer *tokenizer) {
    *encoder = NULL;
    sr_encoder *made;
    SR_TRY(sr_alloc_zero((void **)&made, 1, sizeof *made));
    srnn_status status = fill(made, tokenizer);
    if (status != SRNN_OK)
        sr_encoder_free(made);
    else
        *encoder = made;
    return status;
}

void sr_encoder_free(sr_encoder *encoder) {
    if (!encoder)
        return;
    sr_matcher_free(encoder->matcher);
    for (size_t i = 0; i < 2; i++)
        sr_bytes_free(&encoder->normalized[i]);
    for (size_t i = 0; i < SR_SPLIT_STEPS; i++)
        sr_bytes_free(&encoder->split.texts[i]);
    sr_bpe_scratch_free(&encoder->merge);
    sr_bytes_free(&encoder->word);
    sr_bytes_free(&encoder->held);
    free(encoder->cache);
    free(encoder);
}

/* The cache slot of a text of 1 to CACHED_BYTES bytes. */
static cached *cache_slot(const sr_encoder *encoder, const char *text, size_t bytes) {
    uint64_t words[4] = {0};
    memcpy(words, text, bytes);
    uint64_t hash = (words[0] ^ bytes) * 0x9E3779B97F4A7C15u;
    hash = ((hash ^ hash >> 29) + words[1]) * 0xBF58476D1CE4E5B9u;
    hash =
        ((hash ^ hash >> 31) + words[2] + (words[3] << 8 | words[3] >> 56)) * 0x94D049BB133111EBu;
    return &encoder->cache[hash >> (64 - CACHE_BITS)];
}

static void remember(cached *slot, const char *text, size_t bytes, const uint32_t *ids,
                     size_t count) {
    slot->bytes = (uint8_t)bytes;
    slot->count = (uint8_t)count;
    memcpy(slot->text, text, bytes);
    memcpy(slot->ids, ids, count * sizeof *ids);
}

/* ---- The first symbols of a piece ---- */

static srnn_status push_unknown(sr_encoder *encoder) {
    uint32_t unknown = encoder->tokenizer->bpe.unknown;
    return unknown == SR_NO_SYMBOL ? SRNN_OK : sr_tokens_push(&encoder->merge.symbols, unknown);
}

/* The bytes as byte tokens; one unknown token if one of them has none. */
static srnn_status push_bytes(sr_encoder *encoder, const char *text, size_t bytes) {
    const uint32_t *byte_symbol = encoder->tokenizer->bpe.byte_symbol;
    for (size_t i = 0; i < bytes; i++)
        if (byte_symbol[(unsigned char)text[i]] == SR_NO_SYMBOL)
            return push_unknown(encoder);
    for (size_t i = 0; i < bytes; i++)
        SR_TRY(sr_tokens_push(&encoder->merge.symbols, byte_symbol[(unsigned char)text[i]]));
    return SRNN_OK;
}

static srnn_status first_symbols(sr_encoder *encoder, const char *piece, size_t bytes) {
    const sr_bpe *bpe = &encoder->tokenizer->bpe;
    encoder->merge.symbols.count = 0;
    size_t length;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character;
        length = bpe->byte_level ? 0 : sr_utf8_decode(&character, piece + at, bytes - at);
        uint32_t symbol = length ? sr_bpe_character_symbol(bpe, character) : SR_NO_SYMBOL;
        length = length ? length : 1;
        if (symbol != SR_NO_SYMBOL)
            SR_TRY(sr_tokens_push(&encoder->merge.symbols, symbol));
        else
            SR_TRY(push_bytes(encoder, piece + at, length));
    }
    return SRNN_OK;
}

/* ---- The ids of a piece ---- */

static srnn_status emit_id(sr_encoder *encoder, uint32_t id) {
    bool unknown = id == encoder->tokenizer->bpe.unknown;
    encoder->met_unknown |= unknown;
    if (unknown && encoder->after_unknown && encoder->tokenizer->bpe.fuse_unknown)
        return SRNN_OK;
    encoder->after_unknown = unknown;
    return sr_tokens_push(&encoder->out, id);
}

/* A character that is not a token itself and was not merged into one. */
static srnn_status emit_plain(sr_encoder *encoder, uint32_t symbol) {
    const sr_bpe *bpe = &encoder->tokenizer->bpe;
    char text[4];
    size_t bytes = sr_utf8_encode(text, bpe->plain_characters[symbol - bpe->tokens]);
    encoder->merge.symbols.count = 0;
    SR_TRY(push_bytes(encoder, text, bytes));
    for (size_t i = 0; i < encoder->merge.symbols.count; i++)
        SR_TRY(emit_id(encoder, encoder->merge.symbols.ids[i]));
    return SRNN_OK;
}

static srnn_status emit_symbols(sr_encoder *encoder) {
    const sr_bpe *bpe = &encoder->tokenizer->bpe;
    const sr_tokens *symbols = &encoder->merge.symbols;
    if (bpe->plain_count == 0) {
        for (size_t i = 0; i < symbols->count; i++)
            SR_TRY(emit_id(encoder, symbols->ids[i]));
        return SRNN_OK;
    }
    sr_tokens merged = *symbols; /* emit_plain needs the scratch symbols */
    encoder->merge.symbols = (sr_tokens){0};
    srnn_status status = SRNN_OK;
    for (size_t i = 0; status == SRNN_OK && i < merged.count; i++)
        status = merged.ids[i] < bpe->tokens ? emit_id(encoder, merged.ids[i])
                                             : emit_plain(encoder, merged.ids[i]);
    sr_tokens_free(&encoder->merge.symbols);
    encoder->merge.symbols = merged;
    return status;
}

/* The model's token for the whole piece, or -1. */
static srnn_status whole_token(sr_encoder *encoder, int64_t *id, const char *piece, size_t bytes) {
    const sr_tokenizer *tokenizer = encoder->tokenizer;
    *id = -1;
    encoder->word.count = 0;
    for (size_t i = 0; tokenizer->bpe.byte_level && i < bytes; i++) {
        char text[4];
        size_t length = sr_utf8_encode(text, sr_character_of_byte((unsigned char)piece[i]));
        SR_TRY(sr_bytes_append(&encoder->word, text, length));
    }
    if (tokenizer->bpe.byte_level) {
        piece = encoder->word.data;
        bytes = encoder->word.count;
    }
    int64_t found = sr_vocabulary_find(&tokenizer->vocabulary, piece, bytes);
    if (found >= 0 && !tokenizer->added_only[found])
        *id = found;
    return SRNN_OK;
}

static srnn_status merge_piece(sr_encoder *encoder, const char *piece, size_t bytes) {
    if (encoder->tokenizer->bpe.ignore_merges) {
        int64_t id;
        SR_TRY(whole_token(encoder, &id, piece, bytes));
        if (id >= 0)
            return emit_id(encoder, (uint32_t)id);
    }
    SR_TRY(first_symbols(encoder, piece, bytes));
    SR_TRY(sr_bpe_merge(&encoder->tokenizer->bpe, &encoder->merge));
    return emit_symbols(encoder);
}

static srnn_status encode_piece(sr_encoder *encoder, const char *piece, size_t bytes) {
    if (bytes > CACHED_BYTES)
        return merge_piece(encoder, piece, bytes);
    cached *slot = cache_slot(encoder, piece, bytes);
    if (slot->bytes == bytes && !memcmp(slot->text, piece, bytes)) {
        SR_TRY(sr_tokens_reserve(&encoder->out, CACHED_IDS));
        memcpy(encoder->out.ids + encoder->out.count, slot->ids, sizeof slot->ids);
        encoder->out.count += slot->count;
        encoder->after_unknown = false;
        return SRNN_OK;
    }
    size_t before = encoder->out.count;
    encoder->met_unknown = false;
    SR_TRY(merge_piece(encoder, piece, bytes));
    size_t count = encoder->out.count - before;
    if (count > 0 && count <= CACHED_IDS && !encoder->met_unknown)
        remember(slot, piece, bytes, encoder->out.ids + before, count);
    return SRNN_OK;
}

/* Cuts a piece where no merge can cross, so that its words can be cached. */
static srnn_status take_piece(void *context, const char *piece, size_t bytes) {
    sr_encoder *encoder = context;
    const sr_bpe *bpe = &encoder->tokenizer->bpe;
    encoder->after_unknown = false;
    if (!bpe->cuttable)
        return encode_piece(encoder, piece, bytes);
    size_t start = 0, length;
    uint32_t before = UINT32_MAX;
    for (size_t at = 0; at < bytes; at += length) {
        uint32_t character = UINT32_MAX;
        length = sr_utf8_decode(&character, piece + at, bytes - at);
        if (at > start && !sr_bpe_are_neighbours(bpe, before, character)) {
            SR_TRY(encode_piece(encoder, piece + start, at - start));
            start = at;
        }
        before = character;
        length = length ? length : 1;
    }
    return encode_piece(encoder, piece + start, bytes - start);
}

/* ---- A whole text ---- */

/* `start`: this is the start of the text, or of the rest of one. */
static srnn_status encode_segment(sr_encoder *encoder, const char *text, size_t bytes, bool start) {
    const sr_tokenizer *tokenizer = encoder->tokenizer;
    const bool first = start && !encoder->continues;
    SR_TRY(sr_normalizer_run(&tokenizer->normalizer, encoder->matcher, encoder->normalized, &text,
                             &bytes, start && encoder->continues));
    sr_added_match match = {0};
    size_t done = 0;
    while (sr_added_next(&tokenizer->added_normalized, text, bytes, &match)) {
        const size_t plain = match.start - done;
        SR_TRY(sr_splitter_run(&encoder->split, text + done, plain, first && done == 0));
        SR_TRY(sr_tokens_push(&encoder->out, match.id));
        done = match.end;
    }
    return sr_splitter_run(&encoder->split, text + done, bytes - done, first && done == 0);
}

static srnn_status encode_bytes(sr_tokens *tokens, const char *text, size_t bytes) {
    SR_TRY(sr_tokens_reserve(tokens, bytes));
    for (size_t i = 0; i < bytes; i++)
        tokens->ids[tokens->count++] = (unsigned char)text[i];
    return SRNN_OK;
}

static srnn_status encode_text(sr_encoder *encoder, const char *text, size_t bytes) {
    const sr_tokenizer *tokenizer = encoder->tokenizer;
    sr_added_match match = {0};
    size_t done = 0;
    while (sr_added_next(&tokenizer->added, text, bytes, &match)) {
        if (match.start > done)
            SR_TRY(encode_segment(encoder, text + done, match.start - done, done == 0));
        SR_TRY(sr_tokens_push(&encoder->out, match.id));
        done = match.end;
    }
    if (done == bytes)
        return SRNN_OK;
    return encode_segment(encoder, text + done, bytes - done, done == 0);
}

srnn_status sr_encoder_encode(sr_encoder *encoder, sr_tokens *tokens, const char *text,
                              size_t bytes) {
    if (!encoder->tokenizer->bpe.pairs)
        return encode_bytes(tokens, text, bytes);
    encoder->split.valid = sr_utf8_valid_prefix(text, bytes) == bytes;
    encoder->out = *tokens;
    srnn_status status = encode_text(encoder, text, bytes);
    *tokens = encoder->out;
    return status;
}

/* ---- A text that comes in pieces ---- */

/* A cut is tried out on this many bytes on either side of it, at this many places. */
enum { CUT_CONTEXT = 512, CUT_TRIES = 64 };

static srnn_status encode_rest(sr_encoder *encoder, sr_tokens *tokens, const char *text,
                               size_t bytes) {
    encoder->continues = true;
    srnn_status status = sr_encoder_encode(encoder, tokens, text, bytes);
    encoder->continues = false;
    return status;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_inside_character(char c) {
    return ((unsigned char)c & 0xC0) == 0x80;
}

/* Whether the text around `at` has the same ids in one piece (ids[0]) and in two (ids[1]). */
static srnn_status try_cut(bool *same, sr_encoder *encoder, sr_tokens ids[2], size_t at) {
    const char *text = encoder->held.data;
    size_t from = at < CUT_CONTEXT ? 0 : at - CUT_CONTEXT, to = at + CUT_CONTEXT;
    while (from < at && is_inside_character(text[from]))
        from++;
    while (to > at && is_inside_character(text[to]))
        to--;
    ids[0].count = ids[1].count = 0;
    SR_TRY(encode_rest(encoder, &ids[0], text + from, to - from));
    SR_TRY(encode_rest(encoder, &ids[1], text + from, at - from));
    SR_TRY(encode_rest(encoder, &ids[1], text + at, to - at));
    *same =
        ids[0].count == ids[1].count &&
        (ids[0].count == 0 || !memcmp(ids[0].ids, ids[1].ids, ids[0].count * sizeof *ids[0].ids));
    return SRNN_OK;
}

/* *at = where the held text can be cut, as far back as possible; 0: nowhere. */
static srnn_status find_cut(size_t *at, sr_encoder *encoder) {
    const sr_bytes *held = &encoder->held;
    sr_tokens ids[2] = {{0}};
    srnn_status status = SRNN_OK;
    bool same = false;
    *at = held->count > CUT_CONTEXT ? held->count - CUT_CONTEXT : 1;
    for (int tries = 0; status == SRNN_OK && !same && tries < CUT_TRIES && --*at > 0;) {
        const char next = held->data[*at];
        if ((next != ' ' && next != '\n') || !is_letter(held->data[*at - 1]))
            continue;
        status = try_cut(&same, encoder, ids, *at);
        tries++;
    }
    *at = same ? *at : 0;
    for (int i = 0; i < 2; i++)
        sr_tokens_free(&ids[i]);
    return status;
}

/* Encodes the first bytes that are held. */
static srnn_status encode_held(sr_encoder *encoder, sr_tokens *tokens, size_t bytes) {
    sr_bytes *held = &encoder->held;
    SR_TRY(encoder->begun ? encode_rest(encoder, tokens, held->data, bytes)
                          : sr_encoder_encode(encoder, tokens, held->data, bytes));
    encoder->begun = true;
    held->count -= bytes;
    memmove(held->data, held->data + bytes, held->count);
    return SRNN_OK;
}

srnn_status sr_encoder_feed(sr_encoder *encoder, sr_tokens *tokens, const char *text,
                            size_t bytes) {
    size_t at;
    if (!encoder->tokenizer->bpe.pairs)
        return encode_bytes(tokens, text, bytes);
    SR_TRY(sr_bytes_append(&encoder->held, text, bytes));
    SR_TRY(find_cut(&at, encoder));
    return at ? encode_held(encoder, tokens, at) : SRNN_OK;
}

srnn_status sr_encoder_finish(sr_encoder *encoder, sr_tokens *tokens) {
    if (encoder->held.count)
        SR_TRY(encode_held(encoder, tokens, encoder->held.count));
    encoder->begun = false;
    return SRNN_OK;
}
