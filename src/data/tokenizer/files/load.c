/* load.c: resolves a tokenizer's name and opens its file. */
#include "data/tokenizer/parts.h"

#include "data/text/input.h"
#include "data/tokenizer/files/files.h"
#include "files/file.h"
#include "files/json.h"
#include "files/path.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { INFLATED_LIMIT = 1 << 30 };

typedef srnn_status read_function(sr_tokenizer **tokenizer, const char *data, size_t bytes,
                                  const char *name);

static const struct format {
    const char *suffix;
    const char *file; /* its name in a folder */
    read_function *read;
    bool compressed;
} formats[] = {
    {".json", "tokenizer.json", sr_tokenizer_read_json, false},
    {".json.gz", "tokenizer.json.gz", sr_tokenizer_read_json, true},
    {".model", "tokenizer.model", sr_tokenizer_read_sentencepiece, false},
    {".bin", "tokenizer.bin", sr_tokenizer_read_llama2c, false},
};

enum { FORMATS = sizeof formats / sizeof *formats };

srnn_status sr_fail_in(srnn_status status, const char *name) {
    char detail[768];
    snprintf(detail, sizeof detail, "%s", srnn_error_detail());
    return SR_FAIL(status, "%s: %s", name, detail);
}

static bool ends_in(const char *text, const char *suffix) {
    size_t length = strlen(text), ending = strlen(suffix);
    return length >= ending && strcmp(text + length - ending, suffix) == 0;
}

static const struct format *format_of(const char *path) {
    for (size_t i = 0; i < FORMATS; i++)
        if (ends_in(path, formats[i].suffix))
            return &formats[i];
    return NULL;
}

static srnn_status inflate_all(sr_bytes *out, sr_input *input, const char *path) {
    size_t got = 1;
    while (got > 0) {
        SR_TRY(sr_bytes_reserve(out, 1 << 16));
        SR_TRY(sr_input_read(input, out->data + out->count, out->capacity - out->count, &got));
        out->count += got;
        if (out->count > INFLATED_LIMIT)
            return SR_FAIL(SRNN_ERR_LIMIT, "%s: over %d bytes uncompressed", path, INFLATED_LIMIT);
    }
    return SRNN_OK;
}

static srnn_status read_compressed(sr_tokenizer **tokenizer, const struct format *format,
                                   const char *path) {
    sr_input *input;
    sr_bytes inflated = {0};
    SR_TRY(sr_input_open(&input, path));
    srnn_status status = inflate_all(&inflated, input, path);
    sr_input_free(input);
    if (status == SRNN_OK)
        status = format->read(tokenizer, inflated.data, inflated.count, path);
    sr_bytes_free(&inflated);
    return status;
}

static srnn_status read_file(sr_tokenizer **tokenizer, const struct format *format,
                             const char *path) {
    if (format->compressed)
        return read_compressed(tokenizer, format, path);
    sr_mapping file;
    SR_TRY(sr_mapping_open(&file, path));
    srnn_status status = format->read(tokenizer, (const char *)file.data, file.bytes, path);
    sr_mapping_close(&file);
    return status;
}

/* A token as "<s>" or as {"content": "<s>", ...}. */
static void take_token(const sr_tokenizer *tokenizer, int64_t *id, const json_t *token) {
    const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
    if (!json_is_string(content))
        return;
    int64_t found = sr_vocabulary_find(&tokenizer->vocabulary, json_string_value(content),
                                       json_string_length(content));
    if (found >= 0)
        *id = found;
}

bool sr_tokenizer_config_of(char config[SR_PATH_BYTES], const char *path) {
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) : 1;
    const struct format *format = format_of(path);
    struct stat entry;
    return format && format->read == sr_tokenizer_read_json &&
           sr_path_print(config, "%.*s/%s", folder, slash ? path : ".", SR_TOKENIZER_CONFIG) ==
               SRNN_OK &&
           stat(config, &entry) == 0;
}

/* BOS and EOS from tokenizer_config.json. */
static srnn_status read_config(sr_tokenizer *tokenizer, const char *path) {
    char config[SR_PATH_BYTES];
    sr_mapping file;
    if (!sr_tokenizer_config_of(config, path))
        return SRNN_OK;
    SR_TRY(sr_mapping_open(&file, config));
    json_error_t error;
    json_t *root;
    const bool read = sr_json_scan(&root, &error, (const char *)file.data, file.bytes,
                                   JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL);
    sr_mapping_close(&file);
    if (!read)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory to read it", config);
    if (!root)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: not JSON: %s at line %d", config, error.text,
                       error.line);
    take_token(tokenizer, &tokenizer->bos, json_object_get(root, "bos_token"));
    take_token(tokenizer, &tokenizer->eos, json_object_get(root, "eos_token"));
    json_decref(root);
    return SRNN_OK;
}

static srnn_status load_file(sr_tokenizer **tokenizer, const char *path) {
    const struct format *format = format_of(path);
    if (!format)
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "%s: a tokenizer is a .json, .json.gz, .model or .bin file, a folder with "
                       "one, or the word bytes",
                       path);
    SR_TRY(read_file(tokenizer, format, path));
    srnn_status status = read_config(*tokenizer, path);
    if (status != SRNN_OK) {
        sr_tokenizer_free(*tokenizer);
        *tokenizer = NULL;
    }
    return status;
}

const char *sr_tokenizer_file_name(size_t index) {
    return index < FORMATS ? formats[index].file : NULL;
}

const char *sr_tokenizer_name_of_copy(const char *path) {
    const struct format *format = format_of(path);
    return format ? format->file : NULL;
}

bool sr_tokenizer_is_built_in(const char *name) {
    return strcmp(name, "bytes") == 0;
}

srnn_status sr_tokenizer_find_file(char path[SR_PATH_BYTES], const char *name) {
    struct stat entry;
    if (stat(name, &entry) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: %s", name, strerror(errno));
    if (!S_ISDIR(entry.st_mode))
        return sr_path_print(path, "%s", name);
    for (size_t i = 0; i < FORMATS; i++) {
        SR_TRY(sr_path_join(path, name, formats[i].file));
        if (stat(path, &entry) == 0)
            return SRNN_OK;
    }
    return SR_FAIL(SRNN_ERR_IO,
                   "%s: no tokenizer.json, tokenizer.json.gz, tokenizer.model or tokenizer.bin "
                   "in this folder",
                   name);
}

srnn_status sr_tokenizer_load(sr_tokenizer **tokenizer, const char *name) {
    char path[SR_PATH_BYTES];
    *tokenizer = NULL;
    if (sr_tokenizer_is_built_in(name))
        return sr_tokenizer_create_bytes(tokenizer);
    SR_TRY(sr_tokenizer_find_file(path, name));
    return load_file(tokenizer, path);
}
