/* manifest.c: reads the description of a folder of prepared data. */
#include "data/shards/manifest.h"

#include "base/memory.h"
#include "files/json.h"
#include "files/path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static srnn_status wrong(const sr_manifest *manifest, const char *what) {
    return SR_FAIL(SRNN_ERR_FORMAT, "%s/%s: %s; prepare the data again", manifest->folder,
                   SR_MANIFEST_NAME, what);
}

static bool is_file_name(const char *name) {
    return name[0] != 0 && name[0] != '.' && !strchr(name, '/');
}

static srnn_status read_tokenizer(sr_manifest *manifest) {
    const char *hash;
    json_int_t vocab, end_token;
    int built_in;
    if (json_unpack(manifest->root, "{s:{s:s, s:b, s:s, s:s, s:I, s:I}}", "tokenizer", "file",
                    &manifest->tokenizer, "built_in", &built_in, "kind", &manifest->tokenizer_kind,
                    "hash", &hash, "vocabulary", &vocab, "end_of_document", &end_token) != 0)
        return wrong(manifest, "the tokenizer is not described");
    char *end;
    manifest->tokenizer_hash = strtoull(hash, &end, 16);
    if (strlen(hash) != 16 || *end != 0 || !is_file_name(manifest->tokenizer))
        return wrong(manifest, "the tokenizer's hash or file is impossible");
    if (vocab < 1 || vocab > INT32_MAX || end_token < -1 || end_token >= vocab)
        return wrong(manifest, "the tokenizer's vocabulary is impossible");
    manifest->tokenizer_is_built_in = built_in;
    manifest->vocab = (uint32_t)vocab;
    manifest->end_token = end_token;
    return SRNN_OK;
}

static srnn_status read_shard(sr_manifest *manifest, json_t *json, sr_manifest_shard *shard) {
    const char *split;
    json_int_t tokens, documents;
    if (json_unpack(json, "{s:s, s:s, s:I, s:I}", "file", &shard->file, "split", &split, "tokens",
                    &tokens, "documents", &documents) != 0)
        return wrong(manifest, "a shard is not described");
    if (!is_file_name(shard->file))
        return wrong(manifest, "a shard's file is not in this folder");
    shard->split = SR_SPLIT_TRAIN;
    while (shard->split < SR_SPLITS && strcmp(split, sr_split_name(shard->split)) != 0)
        shard->split++;
    if (shard->split == SR_SPLITS || tokens < 1 || documents < 1)
        return wrong(manifest, "a shard's split or size is impossible");
    shard->tokens = tokens;
    shard->documents = documents;
    return SRNN_OK;
}

static srnn_status read_shards(sr_manifest *manifest) {
    json_t *list = json_object_get(manifest->root, "shards");
    if (!json_is_array(list))
        return wrong(manifest, "there is no list of shards");
    size_t count = json_array_size(list);
    SR_TRY(sr_alloc_zero((void **)&manifest->shards, count, sizeof *manifest->shards));
    for (size_t n = 0; n < count; n++)
        SR_TRY(read_shard(manifest, json_array_get(list, n), &manifest->shards[n]));
    manifest->shard_count = (int64_t)count;
    return SRNN_OK;
}

static srnn_status load(sr_manifest *manifest) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, manifest->folder, SR_MANIFEST_NAME));
    if (access(path, F_OK) != 0)
        return SR_FAIL(SRNN_ERR_IO,
                       "%s: no folder of shards: it has no %s (softrnn data prepare makes them)",
                       manifest->folder, SR_MANIFEST_NAME);
    return sr_json_load(&manifest->root, path, 0);
}

static srnn_status read_all(sr_manifest *manifest) {
    SR_TRY(load(manifest));
    const char *format;
    int version;
    if (json_unpack(manifest->root, "{s:s, s:i}", "format", &format, "version", &version) != 0 ||
        strcmp(format, "softrnn data") != 0)
        return wrong(manifest, "it does not describe prepared data");
    if (version != 1)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s/%s: version %d; this program reads version 1",
                       manifest->folder, SR_MANIFEST_NAME, version);
    SR_TRY(read_tokenizer(manifest));
    return read_shards(manifest);
}

srnn_status sr_manifest_read(sr_manifest *manifest, const char *folder) {
    *manifest = (sr_manifest){.folder = strdup(folder)};
    if (!manifest->folder)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", folder);
    srnn_status status = read_all(manifest);
    if (status != SRNN_OK)
        sr_manifest_free(manifest);
    return status;
}

void sr_manifest_free(sr_manifest *manifest) {
    json_decref(manifest->root);
    free(manifest->shards);
    free(manifest->folder);
    *manifest = (sr_manifest){0};
}
