/* test_tokenizer_real.c: known ids of known tokenizers, and a known training. Reads the folder that
 * SOFTRNN_REAL_DATA names; without it these tests are skipped. */
#include "data/tokenizer/bpe/train.h"
#include "data/tokenizer/tokenizer.h"
#include "files/file.h"
#include "test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *real_path(char path[512], const char *name) {
    const char *folder = getenv("SOFTRNN_REAL_DATA");
    if (!folder)
        skip();
    snprintf(path, 512, "%s/tokenizers/%s", folder, name);
    return path;
}

static void open_real(sr_mapping *file, const char *name) {
    char path[512];
    if (sr_mapping_open(file, real_path(path, name)) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
}

/* Compares one input with one line of ids. */
static void check_vector(sr_encoder *encoder, const char *text, size_t bytes, const char *line) {
    sr_tokens tokens = {0};
    char *end;
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, bytes), SRNN_OK);
    for (size_t i = 0; i < tokens.count; i++) {
        unsigned long expected = strtoul(line, &end, 10);
        if (end == line || expected != tokens.ids[i])
            fail_msg("\"%.*s\": id %zu is %u, not %lu", (int)bytes, text, i, tokens.ids[i],
                     expected);
        line = end;
    }
    if (line[strspn(line, " ")] != '\n')
        fail_msg("\"%.*s\": ids are missing", (int)bytes, text);
    sr_tokens_free(&tokens);
}

/* A long text that is fed in pieces has the ids of the whole. */
static void check_fed(const char *tokenizer_name) {
    enum { BYTES = 200000, PIECE = 4093 };
    char path[512];
    sr_mapping text;
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_tokens whole = {0}, fed = {0};
    open_real(&text, "../text/wikitext2_valid.txt");
    const char *data = (const char *)text.data;
    if (sr_tokenizer_load(&tokenizer, real_path(path, tokenizer_name)) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &whole, data, BYTES), SRNN_OK);
    for (size_t at = 0; at < BYTES; at += PIECE) {
        const size_t rest = BYTES - at;
        assert_int_equal(sr_encoder_feed(encoder, &fed, data + at, rest < PIECE ? rest : PIECE),
                         SRNN_OK);
        assert_true(at < PIECE || fed.count > at / 8); /* most of it was not held */
    }
    assert_int_equal(sr_encoder_finish(encoder, &fed), SRNN_OK);
    assert_int_equal(fed.count, whole.count);
    assert_memory_equal(fed.ids, whole.ids, whole.count * sizeof *whole.ids);
    sr_tokens_free(&fed);
    sr_tokens_free(&whole);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
    sr_mapping_close(&text);
}

static void texts_in_pieces(void **state) {
    (void)state;
    check_fed("gpt2/tokenizer.json");
    check_fed("llama2/tokenizer.model");
    check_fed("llama2/tokenizer.bin");
    check_fed("llama3/tokenizer.json.gz");
    check_fed("mistral/tokenizer.json.gz");
}

static void check_vectors(const char *tokenizer_name, const char *vectors) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    char path[512], name[128];
    sr_mapping inputs, outputs;
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    snprintf(name, sizeof name, "vectors/%s.inp", vectors);
    open_real(&inputs, name);
    snprintf(name, sizeof name, "vectors/%s.out", vectors);
    open_real(&outputs, name);
    if (sr_tokenizer_load(&tokenizer, real_path(path, tokenizer_name)) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    char *lines = strndup((const char *)outputs.data, outputs.bytes), *line = lines;
    const char *text = (const char *)inputs.data, *end = text + inputs.bytes;
    size_t count = 0;
    while (text < end) {
        const char *next = memmem(text, (size_t)(end - text), separator, sizeof separator - 1);
        if (!next)
            break;
        check_vector(encoder, text, (size_t)(next - text), line);
        line = strchr(line, '\n') + 1;
        text = next + sizeof separator - 1;
        count++;
    }
    assert_true(count > 40);
    free(lines);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
    sr_mapping_close(&inputs);
    sr_mapping_close(&outputs);
}

static void gpt2_ids(void **state) {
    (void)state;
    check_vectors("gpt2/tokenizer.json", "ggml-vocab-gpt-2.gguf");
}

static void llama2_ids(void **state) {
    (void)state;
    check_vectors("llama2/tokenizer.model", "ggml-vocab-llama-spm.gguf");
    check_vectors("llama2/tokenizer.bin", "ggml-vocab-llama-spm.gguf");
}

/* Llama-3 and Mistral, and characters of Unicode 15 and 16: as encoded by the Python package. */
static void ids_of_the_package(void **state) {
    (void)state;
    static const struct {
        const char *tokenizer, *text, *ids;
    } cases[] = {
        {"llama3/tokenizer.json.gz", "a1 \U00010d402'S", "64 16 220 172 238 113 222 17 13575\n"},
        {"llama3/tokenizer.json.gz", "\U00031350\U0001e030 \u00bd\u2003!\n\n x",
         "172 109 235 238 172 252 222 108 220 27154 116503 2268 865\n"},
        {"llama3/tokenizer.json.gz", "don't  \u1c89\U0001fae9 1234\r\n",
         "15357 956 220 87189 110 231 9468 104 102 220 4513 19 319\n"},
        {"mistral/tokenizer.json.gz", "a1 \U00010d402'S",
         "264 28740 28705 243 147 184 131 28750 28742 28735\n"},
        {"mistral/tokenizer.json.gz", "\U00031350\U0001e030 \u00bd\u2003!\n\n x",
         "28705 243 180 144 147 243 161 131 179 28705 29039 229 131 134 28808 13 13 1318\n"},
        {"mistral/tokenizer.json.gz", "don't  \u1c89\U0001fae9 1234\r\n",
         "949 28742 28707 259 228 181 140 243 162 174 172 28705 28740 28750 28770 28781 28801 "
         "13\n"},
        {"gpt2/tokenizer.json", "a1 \U00010d402'S", "64 16 220 172 238 113 222 17 6 50\n"},
        {"gpt2/tokenizer.json", "\U00031350\U0001e030 \u00bd\u2003!\n\n x",
         "172 109 235 238 172 252 222 108 25208 447 225 0 628 2124\n"},
        {"gpt2/tokenizer.json", "don't  \u1c89\U0001fae9 1234\r\n",
         "9099 470 220 28053 110 231 8582 104 102 1105 2682 201 198\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        sr_tokenizer *tokenizer;
        sr_encoder *encoder;
        if (sr_tokenizer_load(&tokenizer, real_path(path, cases[i].tokenizer)) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
        assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
        check_vector(encoder, cases[i].text, strlen(cases[i].text), cases[i].ids);
        sr_encoder_free(encoder);
        sr_tokenizer_free(tokenizer);
    }
}

static void check_trained(const json_t *model, const sr_mapping *merges, const json_t *vocab) {
    const char *line = (const char *)merges->data;
    const json_t *list = json_object_get(model, "merges");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *end = memchr(line, '\n', merges->bytes - (size_t)(line - (char *)merges->data));
        size_t bytes = end ? (size_t)(end - line) : strlen(line);
        const char *merge = json_string_value(json_array_get(list, i));
        if (strlen(merge) != bytes || memcmp(merge, line, bytes) != 0)
            fail_msg("merge %zu is \"%s\", not \"%.*s\"", i, merge, (int)bytes, line);
        line += bytes + 1;
    }
    assert_int_equal(line - (const char *)merges->data, merges->bytes);
    assert_true(json_equal(json_object_get(model, "vocab"), vocab));
}

static void training_gives_the_reference(void **state) {
    (void)state;
    sr_mapping corpus, merges, vocab;
    open_real(&corpus, "bpe-training/corpus.en");
    open_real(&merges, "bpe-training/train-bpe-reference-merges.txt");
    open_real(&vocab, "bpe-training/train-bpe-reference-vocab.json");
    const sr_text texts[] = {{(const char *)corpus.data, corpus.bytes}};
    const char *const special[] = {"<|endoftext|>"};
    const sr_bpe_training training = {
        .vocab = 500,
        .ties = SR_TIES_TEXT,
        .text = {.texts = texts, .text_count = 1, .special = special, .special_count = 1}};
    sr_bytes json = {0};
    assert_int_equal(sr_bpe_train(&json, &training), SRNN_OK);
    json_t *root = json_loadb(json.data, json.count, 0, NULL);
    json_t *expected = json_loadb((const char *)vocab.data, vocab.bytes, 0, NULL);
    assert_non_null(root);
    assert_non_null(expected);
    check_trained(json_object_get(root, "model"), &merges, expected);
    json_decref(root);
    json_decref(expected);
    sr_bytes_free(&json);
    sr_mapping_close(&corpus);
    sr_mapping_close(&merges);
    sr_mapping_close(&vocab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpt2_ids),
        cmocka_unit_test(llama2_ids),
        cmocka_unit_test(texts_in_pieces),
        cmocka_unit_test(ids_of_the_package),
        cmocka_unit_test(training_gives_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
