/* test_tokenizer_files.c: unsupported features and errors of tokenizer files are named; damaged
 * files are refused. */
#include "data/tokenizer/files/copy.h"
#include "test.h"
#include "tokenizer_samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static void expect_refused(const char *fields, srnn_status status, const char *named) {
    sr_bytes file = {0};
    sr_tokenizer *tokenizer;
    sample_frame_file(&file, fields);
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file.data, file.count, "f.json"), status);
    assert_null(tokenizer);
    if (!strstr(srnn_error_detail(), named) || !strstr(srnn_error_detail(), "f.json"))
        fail_msg("\"%s\" does not name %s and f.json", srnn_error_detail(), named);
    sr_bytes_free(&file);
}

static void unsupported_things_are_named(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"truncation\": {\"max_length\": 5}", "truncation"},
        {"\"new_thing\": 1", "new_thing"},
        {"\"normalizer\": {\"type\": \"Lowercase\"}", "Lowercase"},
        {"\"normalizer\": {\"type\": \"Prepend\", \"prepend\": \"x\", \"odd\": 1}", "odd"},
        {"\"pre_tokenizer\": {\"type\": \"Whitespace\"}", "Whitespace"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": "
         "\"Odd\"}",
         "Odd"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\h\"}, "
         "\"behavior\": \"Isolated\"}",
         "\\h"},
        {"\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
         "\"ByteLevel\"}, {\"type\": \"Digits\"}]}",
         "Digits"},
        {"\"post_processor\": {\"type\": \"BertProcessing\"}", "BertProcessing"},
        {"\"decoder\": {\"type\": \"WordPiece\"}", "WordPiece"},
        {"\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"odd\": true}]", "odd"},
        /* Hugging Face's tokenizers would give these the id 6. */
        {"\"added_tokens\": [{\"id\": 0, \"content\": \"x\"}]", "the next one, 6"},
        {"\"added_tokens\": [{\"id\": 9, \"content\": \"x\"}]", "the next one, 6"},
        {"\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"1*\"}, "
         "\"content\": \"x\"}",
         "match nothing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i][0], SRNN_ERR_UNSUPPORTED, cases[i][1]);
}

static void wrong_things_are_named(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"normalizer\": 7", "normalizer"},
        {"\"added_tokens\": 7", "added_tokens"},
        {"\"added_tokens\": [{\"id\": 9, \"content\": \"ab\"}]", "\"ab\""},
        {"\"added_tokens\": [{\"id\": 99999999999, \"content\": \"x\"}]", "token id"},
        {"\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": "
         "\"Isolated\"}",
         "regular expression"},
        {"\"x\": 1, \"x\": 2", "duplicate"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused(cases[i][0], SRNN_ERR_FORMAT, cases[i][1]);
}

static void expect_model_refused(const char *model, const char *named) {
    char file[1024];
    sr_tokenizer *tokenizer;
    int bytes = snprintf(file, sizeof file, "{\"model\": %s}", model);
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, file, (size_t)bytes, "f.json"),
                     SRNN_ERR_UNSUPPORTED);
    if (!strstr(srnn_error_detail(), named))
        fail_msg("%s", srnn_error_detail());
}

/* Models whose ids depend on how the Python package happens to handle the unknown token. */
static void odd_unknown_tokens_are_refused(void **state) {
    (void)state;
    expect_model_refused("{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [], "
                         "\"unk_token\": \"a\"}",
                         "which is a character");
    expect_model_refused("{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
                         "\"merges\": [\"a b\"], \"unk_token\": \"ab\"}",
                         "merge 0 with the unk_token");
    expect_model_refused("{\"type\": \"BPE\", \"vocab\": {\"<unk>\": 0, \"<0xE2>\": 1}, "
                         "\"merges\": [], \"unk_token\": \"<unk>\", \"byte_fallback\": true}",
                         "byte_fallback");
}

static void long_added_tokens_are_refused(void **state) {
    (void)state;
    char fields[1400], token[1100] = "";
    memset(token, 'a', 1025);
    snprintf(fields, sizeof fields, "\"added_tokens\": [{\"id\": 6, \"content\": \"%s\"}]", token);
    expect_refused(fields, SRNN_ERR_LIMIT, "1025 bytes");
}

/* A well-formed file of an unsupported kind is not called malformed. */
static void kinds_are_named(void **state) {
    (void)state;
    static const char nul[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\\u0000\": 0}}}";
    static const unsigned char unigram[] = {2 << 3 | 2, 2, 3 << 3, 1};
    sr_tokenizer *tokenizer;
    sr_bytes file = {0};
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, nul, sizeof nul - 1, "f.json"),
                     SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "U+0000"));
    assert_null(strstr(srnn_error_detail(), "not JSON"));
    sample_sentencepiece_file(&file);
    assert_int_equal(sr_bytes_append(&file, (const char *)unigram, sizeof unigram), SRNN_OK);
    assert_int_equal(sr_tokenizer_read_sentencepiece(&tokenizer, file.data, file.count, "t.model"),
                     SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "t.model: a unigram model"));
    sr_bytes_free(&file);
}

typedef srnn_status read_function(sr_tokenizer **, const char *, size_t, const char *);

/* Every prefix is refused or is a tokenizer; nothing is read past the end. */
static void check_prefixes(void (*write)(sr_bytes *), read_function *read, size_t step) {
    sr_bytes file = {0};
    write(&file);
    for (size_t bytes = 0; bytes < file.count; bytes += step) {
        char *copy = malloc(bytes + 1);
        sr_tokenizer *tokenizer;
        assert_non_null(copy);
        memcpy(copy, file.data, bytes);
        char *exact = realloc(copy, bytes ? bytes : 1);
        if (read(&tokenizer, exact, bytes, "prefix") == SRNN_OK)
            sr_tokenizer_free(tokenizer);
        else
            assert_null(tokenizer);
        free(exact);
    }
    sr_bytes_free(&file);
}

static void cut_files_are_refused(void **state) {
    (void)state;
    check_prefixes(sample_json_file, sr_tokenizer_read_json, 37);
    check_prefixes(sample_sentencepiece_file, sr_tokenizer_read_sentencepiece, 13);
    check_prefixes(sample_llama2c_file, sr_tokenizer_read_llama2c, 13);
    sr_tokenizer *tokenizer;
    assert_int_equal(sr_tokenizer_read_json(&tokenizer, "", 0, "x"), SRNN_ERR_FORMAT);
    assert_int_equal(sr_tokenizer_read_sentencepiece(&tokenizer, "", 0, "x"), SRNN_ERR_FORMAT);
    assert_int_equal(sr_tokenizer_read_llama2c(&tokenizer, "", 0, "x"), SRNN_ERR_FORMAT);
}

/* ---- Names ---- */

static void write_file(const char *folder, const char *name, const char *data, size_t bytes) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void expect_load(const char *folder, const char *name, const char *kind, uint64_t *hash) {
    char path[256];
    sr_tokenizer *tokenizer;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (sr_tokenizer_load(&tokenizer, path) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_string_equal(sr_tokenizer_kind(tokenizer), kind);
    *hash = sr_tokenizer_hash(tokenizer);
    sr_tokenizer_free(tokenizer);
}

static void write_compressed(const char *folder, const char *name, const sr_bytes *file) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile compressed = gzopen(path, "wb");
    assert_non_null(compressed);
    assert_int_equal(gzwrite(compressed, file->data, (unsigned)file->count), file->count);
    assert_int_equal(gzclose(compressed), Z_OK);
}

static void names_find_files(void **state) {
    (void)state;
    static const char config[] = "{\"bos_token\": {\"content\": \"ab\"}, \"eos_token\": \"<s>\", "
                                 "\"model_max_length\": 1000000000000000019884624838656}";
    static const char *const names[] = {"tokenizer.json.gz", "tokenizer.json", "tokenizer.model",
                                        "tokenizer.bin", "tokenizer_config.json"};
    char folder[] = "/tmp/softrnn-tokenizer-XXXXXX";
    sr_bytes file = {0};
    uint64_t first, second;
    sr_tokenizer *tokenizer;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(sr_tokenizer_load(&tokenizer, folder), SRNN_ERR_IO);
    sample_llama2c_file(&file);
    write_file(folder, "tokenizer.bin", file.data, file.count);
    expect_load(folder, "", "llama2.c", &first);
    file.count = 0;
    sample_sentencepiece_file(&file);
    write_file(folder, "tokenizer.model", file.data, file.count);
    expect_load(folder, "", "SentencePiece BPE", &second);
    assert_true(first != second);
    file.count = 0;
    sample_json_file(&file);
    write_compressed(folder, "tokenizer.json.gz", &file);
    expect_load(folder, "", "BPE", &first);
    write_file(folder, "tokenizer.json", file.data, file.count);
    expect_load(folder, "tokenizer.json", "BPE", &second);
    assert_true(first == second);
    write_file(folder, "tokenizer_config.json", config, sizeof config - 1);
    assert_int_equal(sr_tokenizer_load(&tokenizer, folder), SRNN_OK);
    assert_int_equal(sr_tokenizer_bos(tokenizer), SAMPLE_FIRST + 1);
    assert_int_equal(sr_tokenizer_eos(tokenizer), 1);
    sr_tokenizer_free(tokenizer);
    write_file(folder, "tokenizer.json.gz", "not gzip", 8);
    char path[256];
    snprintf(path, sizeof path, "%s/tokenizer.json.gz", folder);
    assert_int_equal(sr_tokenizer_load(&tokenizer, path), SRNN_ERR_FORMAT);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(sr_tokenizer_load(&tokenizer, folder), SRNN_ERR_IO);
    assert_int_equal(sr_tokenizer_load(&tokenizer, "/dev/null"), SRNN_ERR_ARGUMENT);
    sr_bytes_free(&file);
}

/* The built-in tokenizer in files has the same ids. */
static void bytes_come_as_files(void **state) {
    (void)state;
    char folder[] = "/tmp/softrnn-tokenizer-XXXXXX", text[256];
    sr_tokenizer *tokenizer;
    sr_encoder *encoder;
    sr_tokens tokens = {0};
    assert_non_null(mkdtemp(folder));
    assert_int_equal(sr_tokenizer_write_bytes(folder), SRNN_OK);
    assert_int_equal(sr_tokenizer_load(&tokenizer, folder), SRNN_OK);
    assert_int_equal(sr_tokenizer_vocab_size(tokenizer), SR_BYTE_TOKENS);
    assert_int_equal(sr_tokenizer_bos(tokenizer), 256);
    assert_int_equal(sr_tokenizer_eos(tokenizer), 256);
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    assert_int_equal(sr_encoder_create(&encoder, tokenizer), SRNN_OK);
    assert_int_equal(sr_encoder_encode(encoder, &tokens, text, sizeof text), SRNN_OK);
    assert_int_equal(tokens.count, 256);
    for (uint32_t i = 0; i < 256; i++)
        assert_int_equal(tokens.ids[i], i);
    sr_tokens_free(&tokens);
    sr_encoder_free(encoder);
    sr_tokenizer_free(tokenizer);
    assert_int_equal(sr_tokenizer_copy_remove(folder), SRNN_OK);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsupported_things_are_named),
        cmocka_unit_test(wrong_things_are_named),
        cmocka_unit_test(odd_unknown_tokens_are_refused),
        cmocka_unit_test(long_added_tokens_are_refused),
        cmocka_unit_test(cut_files_are_refused),
        cmocka_unit_test(kinds_are_named),
        cmocka_unit_test(names_find_files),
        cmocka_unit_test(bytes_come_as_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
