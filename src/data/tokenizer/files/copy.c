/* copy.c: copies a tokenizer's files next to the data encoded with it. */
#include "data/tokenizer/files/copy.h"

#include "data/tokenizer/bpe/json.h"
#include "data/tokenizer/files/files.h"
#include "data/tokenizer/parts.h"
#include "files/file.h"
#include "files/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

srnn_status sr_tokenizer_copy_find(sr_tokenizer_copy *copy, const char *name) {
    char path[SR_PATH_BYTES];
    *copy = (sr_tokenizer_copy){.name = name};
    if (sr_tokenizer_is_built_in(name))
        return SRNN_OK;
    SR_TRY(sr_tokenizer_find_file(path, name));
    copy->name = sr_tokenizer_name_of_copy(path);
    if (!copy->name)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: is not a tokenizer", path);
    copy->source = strdup(path);
    return copy->source ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", path);
}

static srnn_status remove_in(const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    if (unlink(path) != 0 && errno != ENOENT)
        return SR_FAIL(SRNN_ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    return SRNN_OK;
}

static srnn_status copy_file(const char *source, const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    sr_mapping mapping;
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sr_mapping_open(&mapping, source));
    srnn_status status = sr_file_replace(path, mapping.data, mapping.bytes);
    sr_mapping_close(&mapping);
    return status;
}

static bool lies_in(const char *source, const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    struct stat one, two;
    return sr_path_join(path, folder, name) == SRNN_OK && stat(source, &one) == 0 &&
           stat(path, &two) == 0 && one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

srnn_status sr_tokenizer_copy_write(const sr_tokenizer_copy *copy, const char *folder) {
    char config[SR_PATH_BYTES];
    if (!copy->source || lies_in(copy->source, folder, copy->name))
        return SRNN_OK;
    for (size_t i = 0; strcmp(sr_tokenizer_file_name(i), copy->name) != 0; i++)
        SR_TRY(remove_in(folder, sr_tokenizer_file_name(i)));
    SR_TRY(sr_tokenizer_config_of(config, copy->source)
               ? copy_file(config, folder, SR_TOKENIZER_CONFIG)
               : remove_in(folder, SR_TOKENIZER_CONFIG));
    return copy_file(copy->source, folder, copy->name);
}

bool sr_tokenizer_is_in(const char *folder) {
    char path[SR_PATH_BYTES];
    for (size_t i = 0; sr_tokenizer_file_name(i); i++)
        if (sr_path_join(path, folder, sr_tokenizer_file_name(i)) == SRNN_OK &&
            access(path, F_OK) == 0)
            return true;
    return false;
}

srnn_status sr_tokenizer_copy_into(const char *folder, const char *name) {
    sr_tokenizer_copy copy;
    SR_TRY(sr_tokenizer_copy_find(&copy, name));
    const srnn_status status = sr_tokenizer_copy_write(&copy, folder);
    free(copy.source);
    return status;
}

static srnn_status bytes_json(sr_bytes *json) {
    const sr_merges none = {0};
    sr_tokenizer *tokenizer;
    SR_TRY(sr_tokenizer_create_bytes(&tokenizer));
    const sr_bpe_json file = {.vocabulary = &tokenizer->vocabulary,
                              .merges = &none,
                              .special_first = (uint32_t)tokenizer->eos,
                              .special_count = 1};
    const srnn_status status = sr_bpe_json_write(json, &file);
    sr_tokenizer_free(tokenizer);
    return status;
}

srnn_status sr_tokenizer_write_bytes(const char *folder) {
    static const char config[] = "{\n"
                                 "  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                                 "  \"bos_token\": \"<|endoftext|>\",\n"
                                 "  \"eos_token\": \"<|endoftext|>\",\n"
                                 "  \"clean_up_tokenization_spaces\": false\n"
                                 "}\n";
    char path[SR_PATH_BYTES];
    sr_bytes json = {0};
    SR_TRY(sr_tokenizer_copy_remove(folder));
    SR_TRY(sr_path_join(path, folder, SR_TOKENIZER_CONFIG));
    SR_TRY(sr_file_replace(path, config, sizeof config - 1));
    SR_TRY(sr_path_join(path, folder, "tokenizer.json"));
    srnn_status status = bytes_json(&json);
    if (status == SRNN_OK)
        status = sr_file_replace(path, json.data, json.count);
    sr_bytes_free(&json);
    return status;
}

srnn_status sr_tokenizer_copy_remove(const char *folder) {
    for (size_t i = 0; sr_tokenizer_file_name(i); i++)
        SR_TRY(remove_in(folder, sr_tokenizer_file_name(i)));
    return remove_in(folder, SR_TOKENIZER_CONFIG);
}
