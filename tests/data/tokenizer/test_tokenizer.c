/* test_tokenizer.c: encoding follows the formats, and decoding inverts it. */
#include "base/random.h"
#include "data/text/unicode.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/bpe/train.h"
#include "test.h"
#include "tokenizer_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_ids(const sr_tokenizer *tokenizer, const char *text, const char *expected) {
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    char got[1024] = "";
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, strlen(text)), SRNN_OK);
    for (size_t i = 0; i < tokens.count; i++) {
        size_t bytes;
        const char *token = sr_tokenizer_token(tokenizer, tokens.ids[i], &bytes);
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", i ? "|" : "", (int)bytes,
                 token);
    }
    assert_string_equal(got, expected);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
}

static void expect_token(const sr_tokenizer *tokenizer, uint32_t id, const char *text) {
    size_t bytes;
    const char *token = sr_tokenizer_token(tokenizer, id, &bytes);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(token, text, bytes);
}

/* ---- Round trips ---- */

/* Random bytes or characters, but never the mark of SentencePiece, which represents a space. */
static size_t random_text(char *text, uint64_t number, bool unicode) {
    static const uint32_t ends[] = {0x80, 0x80, 0x250, 0x3000, 0x10000, 0x110000};
    size_t bytes = 0, length = sr_random_below(1, number, 0, 12);
    for (size_t i = 1; i <= length; i++) {
        uint64_t bits = sr_random_bits(1, number, i);
        if (!unicode) {
            text[bytes++] = (char)(bits >> 8);
            continue;
        }
        uint32_t character = (uint32_t)(bits >> 8) % ends[bits % 6];
        if (character >= 0xD800 && character < 0xE000)
            character = ' ';
        bytes += sr_utf8_encode(text + bytes, character);
    }
    char *mark = memmem(text, bytes, "\xE2\x96\x81", 3);
    if (mark)
        *mark = ' ';
    return bytes;
}

static void check_round_trips(const sr_tokenizer *tokenizer, uint64_t first, uint64_t cases) {
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    sr_bytes decoded = {0};
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    for (uint64_t i = first; i < first + cases; i++) {
        char text[64];
        size_t bytes = random_text(text, i, i & 1);
        tokens.count = decoded.count = 0;
        if (sr_encoder_encode(encoder, &tokens, text, bytes) != SRNN_OK ||
            sr_tokenizer_decode(tokenizer, &decoded, tokens.ids, tokens.count) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
        if (decoded.count != bytes || (bytes && memcmp(decoded.data, text, bytes) != 0))
            fail_msg("%s: case %llu does not come back", sr_tokenizer_kind(tokenizer),
                     (unsigned long long)i);
    }
    sr_bytes_free(&decoded);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
}

static void decoding_undoes_encoding(void **state) {
    (void)state;
    sr_tokenizer *tokenizers[5];
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizers[0]), SRNN_OK);
    tokenizers[1] = sample_byte_level();
    tokenizers[2] = sample_sentencepiece();
    tokenizers[3] = sample_llama2c();
    tokenizers[4] = sample_json();
    for (uint64_t i = 0; i < 5; i++) {
        check_round_trips(tokenizers[i], i * 200000, 200000);
        sr_tokenizer_free(tokenizers[i]);
    }
}

/* The ids of a text that is fed in pieces of this many bytes and a few more; the most that a piece
 * gave before the end, 0 if the whole text was held. */
static size_t check_fed(const sr_tokenizer *tokenizer, const char *text, size_t bytes,
                        size_t piece) {
    sr_encoder *encoder;
    sr_tokens whole = {0}, fed = {0};
    size_t most = 0;
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &whole, text, bytes), SRNN_OK);
    for (int round = 0; round < 2; round++) {
        fed.count = 0;
        for (size_t at = 0, count; at < bytes; at += count) {
            const size_t before = fed.count;
            count = piece + at % 7 < bytes - at ? piece + at % 7 : bytes - at;
            assert_int_equal(sr_encoder_feed(encoder, &fed, text + at, count), SRNN_OK);
            most = fed.count - before > most ? fed.count - before : most;
        }
        assert_int_equal(sr_encoder_finish(encoder, &fed), SRNN_OK);
        assert_int_equal(fed.count, whole.count);
        assert_memory_equal(fed.ids, whole.ids, whole.count * sizeof *whole.ids);
    }
    sr_tokens_free(&fed);
    sr_tokens_free(&whole);
    sr_encoder_free(encoder);
    return most;
}

/* Words of the samples and random characters, lines and special tokens among them. */
static size_t mixed_text(char *text, size_t bytes, uint64_t seed) {
    static const char *const words[] = {" the",
                                        " low",
                                        "er",
                                        "\n",
                                        "\n\n",
                                        "  ",
                                        " lowest",
                                        "'s",
                                        "Zw\xC3\xB6lf",
                                        "<|sep|>",
                                        " 12",
                                        ".",
                                        "\xF0\x9F\x98\x80",
                                        "\xFF",
                                        "a",
                                        "<s>"};
    size_t at = 0;
    for (uint64_t n = 0; at + 16 < bytes; n++) {
        const char *word = words[sr_random_below(seed, 1, n, 16)];
        memcpy(text + at, word, strlen(word));
        at += strlen(word);
    }
    return at;
}

static void feeding_gives_the_ids_of_the_whole(void **state) {
    (void)state;
    enum { BYTES = 40000 };
    char *text = malloc(BYTES);
    sr_tokenizer *tokenizers[5];
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizers[0]), SRNN_OK);
    tokenizers[1] = sample_byte_level();
    tokenizers[2] = sample_sentencepiece();
    tokenizers[3] = sample_llama2c();
    tokenizers[4] = sample_json();
    for (uint64_t i = 0; i < 5; i++) {
        const size_t bytes = mixed_text(text, BYTES, i);
        assert_true(check_fed(tokenizers[i], text, bytes, 200) > 0);
        assert_true(check_fed(tokenizers[i], text, bytes, 3000) > 0);
        sr_tokenizer_free(tokenizers[i]);
    }
    free(text);
}

/* Where each space is inside of a symbol, there is no cut: the text is held whole. */
static void text_that_cannot_be_cut(void **state) {
    (void)state;
    enum { TIMES = 1500 };
    sr_tokenizer *tokenizer;
    sr_bytes file = {0}, text = {0};
    sample_sentencepiece_symbol_file(&file, "er\xE2\x96\x81the");
    assert_int_equal(sr_tokenizer_read_sentencepiece(&tokenizer, file.data, file.count, "symbol"),
                     SRNN_OK);
    for (int i = 0; i < TIMES; i++)
        assert_int_equal(sr_bytes_append(&text, "er the", 6), SRNN_OK);
    assert_int_equal(check_fed(tokenizer, text.data, text.count, 1000), 0);
    sr_tokenizer_free(tokenizer);
    sr_bytes_free(&file);
    sr_bytes_free(&text);
}

/* Every push gives whole characters only, and all pushes together give the text. */
static void streaming_keeps_characters_whole(void **state) {
    (void)state;
    static const char text[] = "Zwölf 日本語 😀 <|sep|>\xF0\x9F\x98 end\xE2";
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_decoder *decoder;
    sr_tokens tokens = {0};
    sr_bytes decoded = {0};
    assert_int_equal(sr_tokenizer_create_bytes(&tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_decoder_create(&decoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, sizeof text - 1), SRNN_OK);
    for (int round = 0; round < 2; round++) {
        decoded.count = 0;
        for (size_t i = 0; i < tokens.count; i++) {
            assert_int_equal(sr_decoder_push(decoder, &decoded, tokens.ids[i]), SRNN_OK);
            assert_int_equal(sr_utf8_cut_suffix(decoded.data, decoded.count), 0);
        }
        assert_int_equal(decoded.count, sizeof text - 2);
        assert_int_equal(sr_decoder_finish(decoder, &decoded), SRNN_OK);
        assert_int_equal(decoded.count, sizeof text - 1);
        assert_memory_equal(decoded.data, text, decoded.count);
    }
    assert_int_equal(sr_decoder_push(decoder, &decoded, 257), SRNN_ERR_ARGUMENT);
    sr_bytes_free(&decoded);
    sr_tokens_free(&tokens);
    sr_decoder_free(decoder);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
}

/* ---- Merging ---- */

typedef struct naive_symbol {
    size_t start, bytes;
} naive_symbol;

/* SentencePiece's BPE by its definition: join the neighbours whose text is the best piece, leftmost
 * first. */
static size_t naive_merge(naive_symbol *symbols, size_t count, const char *text) {
    for (;;) {
        size_t best = SIZE_MAX, best_piece = SAMPLE_PIECES;
        for (size_t i = 0; i + 1 < count; i++) {
            size_t bytes = symbols[i].bytes + symbols[i + 1].bytes;
            for (size_t p = 0; p < best_piece; p++) {
                if (strlen(sample_pieces[p]) == bytes &&
                    !memcmp(sample_pieces[p], text + symbols[i].start, bytes)) {
                    best = i;
                    best_piece = p;
                }
            }
        }
        if (best == SIZE_MAX)
            return count;
        symbols[best].bytes += symbols[best + 1].bytes;
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
    }
}

/* The ids of a text written with _ for spaces, the first of which is the dummy prefix. */
static size_t naive_ids(uint32_t *ids, const char *text, size_t bytes) {
    naive_symbol symbols[600];
    size_t count = 0, total = 0;
    for (size_t i = 0; i < bytes; i++)
        symbols[count++] = (naive_symbol){i, 1};
    count = naive_merge(symbols, count, text);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = (unsigned char)text[symbols[i].start] + 3u; /* a byte */
        for (uint32_t p = 0; p < SAMPLE_PIECES; p++)
            if (strlen(sample_pieces[p]) == symbols[i].bytes &&
                !memcmp(sample_pieces[p], text + symbols[i].start, symbols[i].bytes))
                id = SAMPLE_FIRST + p;
        ids[total++] = id;
    }
    return total;
}

static void check_naive(sr_encoder *encoder, uint64_t number, size_t length) {
    char marked[600] = "_", text[600];
    uint32_t expected[600];
    for (size_t i = 1; i <= length; i++)
        marked[i] = "_aaabbbcccdefx"[sr_random_below(2, number, i, 14)];
    for (size_t i = 0; i < length; i++)
        text[i] = marked[i + 1] == '_' ? ' ' : marked[i + 1];
    size_t count = naive_ids(expected, marked, length + 1);
    sr_tokens tokens = {0};
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, length), SRNN_OK);
    if (tokens.count != count || memcmp(tokens.ids, expected, count * sizeof *expected) != 0)
        fail_msg("case %llu of %zu letters differs", (unsigned long long)number, length);
    sr_tokens_free(&tokens);
}

/* "ef" is a piece, "e" and "f" are not: characters without a token merge too. */
static void merges_like_the_definition(void **state) {
    (void)state;
    sr_tokenizer *tokenizers[2] = {sample_sentencepiece(), sample_llama2c()};
    for (size_t t = 0; t < 2; t++) {
        sr_encoder *encoder;
        assert_int_equal(sr_encoder_create(&encoder, tokenizers[t]), SRNN_OK);
        for (uint64_t i = 0; i < 3000; i++)
            check_naive(encoder, i, 1 + i % 40);
        for (uint64_t i = 0; i < 60; i++)
            check_naive(encoder, 5000 + i, 300 + i * 4);
        sr_encoder_free(encoder);
        sr_tokenizer_free(tokenizers[t]);
    }
}

static void long_pieces_take_no_square(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    sr_tokenizer *tokenizer = sample_byte_level();
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    sr_bytes decoded = {0};
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "thefox"[sr_random_below(3, 0, i, 6)]; /* one word: would take seconds in
                                                          * quadratic time */
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, BYTES), SRNN_OK);
    assert_int_equal(sr_tokenizer_decode(tokenizer, &decoded, tokens.ids, tokens.count), SRNN_OK);
    assert_int_equal(decoded.count, BYTES);
    assert_memory_equal(decoded.data, text, BYTES);
    assert_true(tokens.count < BYTES);
    free(text);
    sr_bytes_free(&decoded);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
}

/* Marks are ordered by class in linear time: this would take minutes in quadratic time. */
static void runs_of_marks_take_no_square(void **state) {
    (void)state;
    enum { MARKS = 200000 };
    static const char above[] = "\u0301", below[] = "\u0316";
    sr_bytes text = {0}, normal = {0};
    assert_int_equal(sr_bytes_append(&text, "ao", 2), SRNN_OK);
    for (size_t i = 0; i < 2 * MARKS; i++)
        assert_int_equal(sr_bytes_append(&text, i < MARKS ? above : below, 2), SRNN_OK);
    assert_int_equal(sr_unicode_normalize(&normal, text.data, text.count, SR_UNICODE_NFC), SRNN_OK);
    assert_int_equal(normal.count, text.count - 1); /* \u00f3 for two of the characters */
    assert_memory_equal(normal.data, "a\u00f3\u0316", 5);
    assert_memory_equal(normal.data + 3 + 2 * MARKS, above, 2);
    normal.count = 0;
    assert_int_equal(sr_unicode_normalize(&normal, text.data, text.count, SR_UNICODE_NFD), SRNN_OK);
    assert_int_equal(normal.count, text.count);
    assert_memory_equal(normal.data, "ao\u0316", 4);
    sr_bytes_free(&text);
    sr_bytes_free(&normal);
}

/* Characters newer than Unicode 9 are unchanged, and nothing is composed across them. */
static void normal_forms_are_those_of_unicode_9(void **state) {
    (void)state;
    static const struct {
        sr_unicode_form form;
        const char *text, *normal;
    } cases[] = {
        {SR_UNICODE_NFC, "a\u0301", "\u00e1"},
        {SR_UNICODE_NFC, "a\u0898\u0301", "a\u0898\u0301"},
        {SR_UNICODE_NFD, "a\u0301\u0eba", "a\u0301\u0eba"},
        {SR_UNICODE_NFC, "\U00011935\U00011930", "\U00011935\U00011930"},
        {SR_UNICODE_NFKC, "\u32ff\u32fe", "\u32ff\u30f2"},
        {SR_UNICODE_NFKD, "\U0001e030\u00e1", "\U0001e030a\u0301"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_bytes normal = {0};
        assert_int_equal(sr_unicode_normalize(&normal, cases[i].text, strlen(cases[i].text),
                                              cases[i].form),
                         SRNN_OK);
        assert_int_equal(normal.count, strlen(cases[i].normal));
        assert_memory_equal(normal.data, cases[i].normal, normal.count);
        sr_bytes_free(&normal);
    }
}

/* ---- Added tokens and steps ---- */

static void byte_fallback_model(void **state) {
    (void)state;
    sr_tokenizer *tokenizer = sample_json();
    expect_ids(tokenizer, "", "");
    expect_ids(tokenizer, "abc", "▁ab|c");
    expect_ids(tokenizer, " abc", "▁|▁ab|c");
    expect_ids(tokenizer, "dé", "▁|d|<0xC3>|<0xA9>");
    expect_ids(tokenizer, "a<s>ab</s>", "▁a|<s>|▁ab|</s>");
    expect_ids(tokenizer, "d\xFF", "▁|d|<0xFF>");
    assert_int_equal(sr_tokenizer_bos(tokenizer), 1);
    assert_int_equal(sr_tokenizer_eos(tokenizer), 2);
    assert_true(sr_tokenizer_is_special(tokenizer, 0));
    assert_false(sr_tokenizer_is_special(tokenizer, 3));
    expect_token(tokenizer, SAMPLE_FIRST + 3, "bc");
    sr_tokenizer_free(tokenizer);
}

static void steps_of_a_file(void **state) {
    (void)state;
    static const struct {
        const char *fields, *text, *ids;
    } cases[] = {
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true}", "ab", "Ġ|ab"},
        {"\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}", "ab ab",
         "ab|Ġ|ab"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"1\"}, "
         "\"behavior\": \"Removed\"}",
         "a1b1ab", "a|b|ab"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, "
         "\"behavior\": \"MergedWithPrevious\"}",
         "abab", "a|b|a|b"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, "
         "\"behavior\": \"MergedWithNext\"}",
         "abab", "ab|ab"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[ab]+\"}, "
         "\"behavior\": \"Removed\", \"invert\": true}",
         "1ab1ab", "ab|ab"},
        {"\"pre_tokenizer\": {\"type\": \"Digits\", \"individual_digits\": true}", "ab11",
         "ab|1|1"},
        {"\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"▁\", "
         "\"prepend_scheme\": \"first\"}",
         "ab ab", "▁|ab|▁|ab"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(?=b)\"}, "
         "\"behavior\": \"Isolated\"}",
         "ab1ab", "a|b|1|a|b"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"1*\"}, "
         "\"behavior\": \"MergedWithPrevious\"}",
         "ab11ab", "a|b|1|1|a|b"},
        {"\"normalizer\": {\"type\": \"NFKC\"}", "ａｂ", "ab"},
        {"\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"\\\\s+\"}, "
         "\"content\": \"1\"}",
         "ab \n\tab", "ab|1|ab"},
        {"\"added_tokens\": [{\"id\": 6, \"content\": \"<x>\", \"lstrip\": true, \"rstrip\": "
         "true}]",
         "ab <x>  ab", "ab|<x>|ab"},
        {"\"added_tokens\": [{\"id\": 6, \"content\": \"ba\", \"single_word\": true}]",
         "aba ba1 ba", "ab|ab|a|1|ba"},
        {"\"added_tokens\": [{\"id\": 6, \"content\": \"<x\"}, {\"id\": 7, \"content\": \"<x>\"}]",
         "<x><xa", "<x>|<x|a"},
        {"\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"▁\"}, \"added_tokens\": [{\"id\": "
         "6, \"content\": \"11\", \"normalized\": true}]",
         "11a", "11|a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_bytes file = {0};
        sr_tokenizer *tokenizer;
        sample_frame_file(&file, cases[i].fields);
        if (sr_tokenizer_read_json(&tokenizer, file.data, file.count, "steps") != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
        expect_ids(tokenizer, cases[i].text, cases[i].ids);
        sr_tokenizer_free(tokenizer);
        sr_bytes_free(&file);
    }
}

/* A piece is taken as a whole only if it is a token of the model itself. */
static void added_tokens_are_not_the_models(void **state) {
    (void)state;
    static const char file[] =
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"ba\", \"single_word\": true}], "
        "\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"bb\": 2}, \"merges\": [], "
        "\"ignore_merges\": true}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": "
        "{\"String\": \"_\"}, \"behavior\": \"Removed\"}}";
    sr_tokenizer *tokenizer;
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file, sizeof file - 1, "x"), SRNN_OK);
    expect_ids(tokenizer, "_ba_bb_.ba", "b|a|bb|ba");
    sr_tokenizer_free(tokenizer);
}

/* Two tokens in front of a text are not one BOS. */
static void several_tokens_in_front_are_no_bos(void **state) {
    (void)state;
    static const char fields[] =
        "\"added_tokens\": [{\"id\": 6, \"content\": \"<s>\", \"special\": true}], "
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
        "{\"id\": \"<s>\", \"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"a\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": "
        "{\"<s>\": {\"id\": \"<s>\", \"ids\": [6], \"tokens\": [\"<s>\"]}, \"a\": {\"id\": \"a\", "
        "\"ids\": [0], \"tokens\": [\"a\"]}}}";
    sr_bytes file = {0};
    sr_tokenizer *tokenizer;
    sample_frame_file(&file, fields);
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file.data, file.count, "x"), SRNN_OK);
    assert_int_equal(sr_tokenizer_bos(tokenizer), -1);
    sr_tokenizer_free(tokenizer);
    sr_bytes_free(&file);
}

/* As the sentencepiece package: only a piece with a mark in front loses a space. */
static void the_first_piece_loses_its_mark(void **state) {
    (void)state;
    static const struct {
        uint32_t ids[3];
        size_t count;
        const char *text;
    } cases[] = {
        {{0}, 1, " \xE2\x81\x87 "},          /* unknown */
        {{3 + ' ', SAMPLE_FIRST}, 2, "  a"}, /* a byte, "_a" */
        {{SAMPLE_FIRST, SAMPLE_FIRST}, 2, "a a"},
        {{1, SAMPLE_FIRST + 6}, 2, " "},             /* BOS, "__" */
        {{SAMPLE_FIRST + 8, SAMPLE_FIRST}, 2, " a"}, /* "_", "_a" */
    };
    sr_tokenizer *tokenizer = sample_sentencepiece();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_bytes text = {0};
        assert_int_equal(sr_tokenizer_decode(tokenizer, &text, cases[i].ids, cases[i].count),
                         SRNN_OK);
        assert_int_equal(text.count, strlen(cases[i].text));
        assert_memory_equal(text.data, cases[i].text, text.count);
        sr_bytes_free(&text);
    }
    sr_tokenizer_free(tokenizer);
}

/* As the sentencepiece package: spaces inside a user-defined symbol stay, later ones are
 * removed. */
static void symbols_keep_their_spaces(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        /* symbol, text, tokens with "_" for marks */
        {"  ", "ab  cc", "_ab|__|cc"},
        {"  ", "ab   cc", "_ab|__|cc"},
        {"  ", "  ab", "_ab"},
        {"  ", "ab  ", "_ab"},
        {"  ", "  ", ""},
        {"zz", "ab  cc", "_ab|_|cc"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sr_bytes file = {0}, expected = {0};
        sr_tokenizer *tokenizer;
        sample_sentencepiece_symbol_file(&file, cases[i][0]);
        sample_spaced(&expected, cases[i][2], "\xE2\x96\x81");
        assert_int_equal(sr_bytes_append(&expected, "", 1), SRNN_OK);
        assert_int_equal(sr_tokenizer_read_sentencepiece(&tokenizer, file.data, file.count,
                                                         "symbols"),
                         SRNN_OK);
        expect_ids(tokenizer, cases[i][1], expected.data);
        sr_tokenizer_free(tokenizer);
        sr_bytes_free(&file);
        sr_bytes_free(&expected);
    }
}

/* Added tokens that are searched in the normalised text contain its marks, and decode
 * accordingly. */
static void normalised_added_tokens_keep_their_spaces(void **state) {
    (void)state;
    static const char *const texts[] = {"a<s>b <s> c", " <s>", "<s> a", "a <s> <s>  b", "<s>"};
    sr_bytes file = {0};
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sample_json_file(&file);
    for (char *at = file.data;
         (at = memmem(at, file.count - (size_t)(at - file.data), "false", 5));)
        memcpy(at, "true ", 5); /* "normalized" */
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file.data, file.count, "added"), SRNN_OK);
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        sr_tokens tokens = {0};
        sr_bytes text = {0};
        assert_int_equal(sr_encoder_encode(encoder, &tokens, texts[i], strlen(texts[i])), SRNN_OK);
        assert_int_equal(sr_tokenizer_decode(tokenizer, &text, tokens.ids, tokens.count), SRNN_OK);
        assert_int_equal(text.count, strlen(texts[i]));
        assert_memory_equal(text.data, texts[i], text.count);
        sr_tokens_free(&tokens);
        sr_bytes_free(&text);
    }
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
    sr_bytes_free(&file);
}

/* A piece that begins with an unknown character, whose token was fused with the one before, must
 * not be cached without it. Such a piece needs a character that is a neighbour only by hash
 * collision. */
static void cache_keeps_unknown_tokens(void **state) {
    (void)state;
    static const char file[] =
        "{\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, \"vocab\": "
        "{\"<unk>\": 0, \"a\": 1, \"b\": 2, \"ab\": 3, \"ba\": 4, \"aa\": 5, \"bb\": 6}, "
        "\"merges\": [\"a b\", \"b a\", \"a a\", \"b b\"]}}";
    static const char *const merged[] = {"ab", "ba", "aa", "bb"};
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    sr_bpe bpe;
    char text[12];
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file, sizeof file - 1, "x"), SRNN_OK);
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_bpe_create(&bpe, 7, 4, 2), SRNN_OK);
    for (size_t i = 0; i < 4; i++)
        sr_bpe_note_neighbours(&bpe, merged[i], 2);
    uint32_t odd = 0x10000;
    while (!sr_bpe_are_neighbours(&bpe, odd, 'a') || sr_bpe_are_neighbours(&bpe, odd, odd))
        assert_true(++odd < 0x110000);
    size_t bytes = sr_utf8_encode(text, odd);
    sr_utf8_encode(text + bytes, odd);
    text[2 * bytes] = 'a';
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, 2 * bytes + 1), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text + bytes, bytes + 1), SRNN_OK);
    const uint32_t expected[] = {0, 1, 0, 1};
    assert_int_equal(tokens.count, 4);
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    sr_bpe_free(&bpe);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
}

/* ---- Training ---- */

static void training_ignores_threads(void **state) {
    (void)state;
    enum { BYTES = 3 << 20 };
    char *text = malloc(BYTES);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "etaoin shr\n dluc'm5 "[sr_random_below(4, 0, i, 20)];
    const sr_text texts[] = {{text, BYTES}};
    const char *const special[] = {"<|endoftext|>"};
    sr_bytes files[3] = {{0}};
    for (int i = 0; i < 3; i++) {
        const sr_bpe_training training = {.vocab = 300,
                                          .text = {.texts = texts,
                                                   .text_count = 1,
                                                   .special = special,
                                                   .special_count = 1,
                                                   .threads = i + 1}};
        assert_int_equal(sr_bpe_train(&files[i], &training), SRNN_OK);
        assert_int_equal(files[i].count, files[0].count);
        assert_memory_equal(files[i].data, files[0].data, files[0].count);
    }
    for (int i = 0; i < 3; i++)
        sr_bytes_free(&files[i]);
    free(text);
}

/* aab aab ab: (a, b) occurs 3 times, then (a, ab) twice. Special tokens separate words. */
static void training_counts_pairs(void **state) {
    (void)state;
    static const char text[] = "aab\naab<x>ab<x>a<x>b<x>a<x>b<x>a<x>b";
    const sr_text texts[] = {{text, sizeof text - 1}};
    const char *const special[] = {"<x>"};
    const sr_bpe_training training = {
        .vocab = 1000,
        .text = {.texts = texts, .text_count = 1, .special = special, .special_count = 1}};
    sr_bytes file = {0};
    sr_tokenizer *tokenizer;
    assert_int_equal(sr_bpe_train(&file, &training), SRNN_OK);
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file.data, file.count, "trained"), SRNN_OK);
    assert_int_equal(sr_tokenizer_vocab_size(tokenizer), 259); /* no third pair is left */
    expect_token(tokenizer, 0, "<x>");
    expect_token(tokenizer, 1, "!");
    expect_token(tokenizer, 257, "ab");
    expect_token(tokenizer, 258, "aab");
    expect_ids(tokenizer, "aab<x>b", "aab|<x>|b");
    sr_tokenizer_free(tokenizer);
    sr_bytes_free(&file);
    const sr_bpe_training tiny = {.vocab = 256, .text = training.text};
    assert_int_equal(sr_bpe_train(&file, &tiny), SRNN_ERR_ARGUMENT);
}

/* b c d, each pair once: lower ids first, as Hugging Face's trainer; or the text that sorts
 * last. */
static void ties_have_an_order(void **state) {
    (void)state;
    static const char text[] = "bcd\nxa";
    static const char *const first[] = {"bc", "xa"};
    const sr_text texts[] = {{text, sizeof text - 1}};
    for (int ties = SR_TIES_IDS; ties <= SR_TIES_TEXT; ties++) {
        const sr_bpe_training training = {.vocab = 257,
                                          .ties = (sr_ties)ties,
                                          .text = {.texts = texts, .text_count = 1}};
        sr_bytes file = {0};
        sr_tokenizer *tokenizer;
        assert_int_equal(sr_bpe_train(&file, &training), SRNN_OK);
        assert_int_equal(sr_tokenizer_read_json(&tokenizer, file.data, file.count, "trained"),
                         SRNN_OK);
        expect_token(tokenizer, 256, first[ties]);
        sr_tokenizer_free(tokenizer);
        sr_bytes_free(&file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_undoes_encoding),
        cmocka_unit_test(feeding_gives_the_ids_of_the_whole),
        cmocka_unit_test(text_that_cannot_be_cut),
        cmocka_unit_test(streaming_keeps_characters_whole),
        cmocka_unit_test(merges_like_the_definition),
        cmocka_unit_test(long_pieces_take_no_square),
        cmocka_unit_test(runs_of_marks_take_no_square),
        cmocka_unit_test(normal_forms_are_those_of_unicode_9),
        cmocka_unit_test(byte_fallback_model),
        cmocka_unit_test(steps_of_a_file),
        cmocka_unit_test(added_tokens_are_not_the_models),
        cmocka_unit_test(several_tokens_in_front_are_no_bos),
        cmocka_unit_test(the_first_piece_loses_its_mark),
        cmocka_unit_test(symbols_keep_their_spaces),
        cmocka_unit_test(normalised_added_tokens_keep_their_spaces),
        cmocka_unit_test(cache_keeps_unknown_tokens),
        cmocka_unit_test(training_ignores_threads),
        cmocka_unit_test(training_counts_pairs),
        cmocka_unit_test(ties_have_an_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
