/* dataset.c: the shards of one split as one long sequence of tokens. */
#include "data/shards/dataset.h"

#include "base/hash.h"
#include "base/memory.h"
#include "data/shards/manifest.h"
#include "files/path.h"

#include <stdlib.h>
#include <sys/stat.h>

static srnn_status add_shard(sr_dataset *dataset, int64_t n) {
    const sr_shard *shard = &dataset->shards[n], *first = &dataset->shards[0];
    if (shard->tokenizer_hash != first->tokenizer_hash || shard->vocab != first->vocab ||
        shard->end_token != first->end_token)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s and %s were made with different tokenizers",
                       first->path, shard->path);
    if (shard->token_count > INT64_MAX / 2 - dataset->token_count)
        return SR_FAIL(SRNN_ERR_LIMIT, "%s: too many tokens in all", shard->path);
    dataset->token_count += shard->token_count;
    dataset->document_count += shard->document_count;
    dataset->token_starts[n + 1] = dataset->token_count;
    dataset->document_starts[n + 1] = dataset->document_count;
    return SRNN_OK;
}

srnn_status sr_dataset_create(sr_dataset *dataset, sr_shard *shards, int64_t count) {
    *dataset = (sr_dataset){.shards = shards, .shard_count = count, .end_token = -1};
    size_t starts = (size_t)count + 1;
    srnn_status status = sr_alloc_zero((void **)&dataset->token_starts, starts, sizeof(int64_t));
    if (status == SRNN_OK)
        status = sr_alloc_zero((void **)&dataset->document_starts, starts, sizeof(int64_t));
    for (int64_t n = 0; status == SRNN_OK && n < count; n++)
        status = add_shard(dataset, n);
    if (status != SRNN_OK) {
        sr_dataset_free(dataset);
        return status;
    }
    if (count > 0) {
        dataset->vocab = shards[0].vocab;
        dataset->end_token = shards[0].end_token;
    }
    return SRNN_OK;
}

/* Opens shard `n` and checks that it matches the manifest. */
static srnn_status open_listed(sr_shard *shard, const sr_manifest *manifest, int64_t n) {
    const sr_manifest_shard *listed = &manifest->shards[n];
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, manifest->folder, listed->file));
    srnn_status status = sr_shard_open(shard, path);
    if (status == SRNN_OK &&
        (shard->token_count != listed->tokens || shard->document_count != listed->documents ||
         shard->tokenizer_hash != manifest->tokenizer_hash || shard->vocab != manifest->vocab ||
         shard->end_token != manifest->end_token)) {
        status = SR_FAIL(SRNN_ERR_FORMAT, "%s: not the shard that %s/%s lists; prepare it again",
                         path, manifest->folder, SR_MANIFEST_NAME);
        sr_shard_close(shard);
    }
    return status;
}

static srnn_status open_shards(sr_dataset *dataset, const sr_manifest *manifest,
                               const bool wanted[SR_SPLITS]) {
    sr_shard *shards;
    SR_TRY(sr_alloc_zero((void **)&shards, (size_t)manifest->shard_count, sizeof *shards));
    int64_t count = 0;
    srnn_status status = SRNN_OK;
    for (int64_t n = 0; status == SRNN_OK && n < manifest->shard_count; n++) {
        if (!wanted[manifest->shards[n].split])
            continue;
        status = open_listed(&shards[count], manifest, n);
        count += status == SRNN_OK;
    }
    if (status == SRNN_OK)
        return sr_dataset_create(dataset, shards, count);
    while (count > 0)
        sr_shard_close(&shards[--count]);
    free(shards);
    return status;
}

static srnn_status open_wanted(sr_dataset *dataset, const char *folder,
                               const bool wanted[SR_SPLITS]) {
    *dataset = (sr_dataset){0};
    sr_manifest manifest;
    SR_TRY(sr_manifest_read(&manifest, folder));
    srnn_status status = open_shards(dataset, &manifest, wanted);
    dataset->vocab = manifest.vocab;
    dataset->end_token = manifest.end_token;
    sr_manifest_free(&manifest);
    return status;
}

srnn_status sr_dataset_open(sr_dataset *dataset, const char *folder, sr_split split) {
    bool wanted[SR_SPLITS] = {false};
    wanted[split] = true;
    return open_wanted(dataset, folder, wanted);
}

srnn_status sr_dataset_open_all(sr_dataset *dataset, const char *folder) {
    return open_wanted(dataset, folder, (const bool[SR_SPLITS]){true, true});
}

uint64_t sr_dataset_sum(const sr_dataset *dataset, uint64_t hash) {
    for (int64_t n = 0; n < dataset->shard_count; n++) {
        const sr_shard *shard = &dataset->shards[n];
        hash = sr_hash_add(hash, (uint64_t)shard->token_count);
        hash = sr_hash_add(hash, (uint64_t)shard->token_crc << 32 | shard->index_crc);
    }
    return hash;
}

uint64_t sr_dataset_stamp(const sr_dataset *dataset, uint64_t hash) {
    for (int64_t n = 0; n < dataset->shard_count; n++) {
        const sr_shard *shard = &dataset->shards[n];
        struct stat facts = {0};
        if (shard->mapping.data && fstat(shard->mapping.descriptor, &facts) != 0)
            facts = (struct stat){0}; /* matches no stamp: all data is read */
        hash = sr_hash_add(hash, (uint64_t)facts.st_size);
        hash = sr_hash_add(hash, (uint64_t)facts.st_mtim.tv_sec);
        hash = sr_hash_add(hash, (uint64_t)facts.st_mtim.tv_nsec);
    }
    return hash;
}

srnn_status sr_dataset_verify(const sr_dataset *dataset) {
    for (int64_t n = 0; n < dataset->shard_count; n++)
        SR_TRY(sr_shard_verify(&dataset->shards[n]));
    return SRNN_OK;
}

void sr_dataset_free(sr_dataset *dataset) {
    for (int64_t n = 0; n < dataset->shard_count; n++)
        sr_shard_close(&dataset->shards[n]);
    free(dataset->shards);
    free(dataset->token_starts);
    free(dataset->document_starts);
    *dataset = (sr_dataset){0};
}

/* The n with starts[n] <= value < starts[n+1]. */
static int64_t find(const int64_t *starts, int64_t count, int64_t value) {
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (starts[middle] <= value)
            low = middle;
        else
            high = middle;
    }
    return low;
}

srnn_status sr_dataset_read(const sr_dataset *dataset, int32_t *ids, int64_t begin, int64_t count) {
    int64_t n = find(dataset->token_starts, dataset->shard_count, begin);
    while (count > 0) {
        int64_t left = dataset->token_starts[n + 1] - begin;
        int64_t piece = left < count ? left : count;
        SR_TRY(sr_shard_read(&dataset->shards[n], ids, begin - dataset->token_starts[n], piece));
        ids += piece;
        begin += piece;
        count -= piece;
        n++;
    }
    return SRNN_OK;
}

srnn_status sr_dataset_document(const sr_dataset *dataset, int64_t document, int64_t *begin,
                                int64_t *count) {
    int64_t n = find(dataset->document_starts, dataset->shard_count, document);
    SR_TRY(sr_shard_check(&dataset->shards[n]));
    const uint64_t *starts = dataset->shards[n].starts + (document - dataset->document_starts[n]);
    *begin = dataset->token_starts[n] + (int64_t)starts[0];
    *count = (int64_t)(starts[1] - starts[0]);
    return SRNN_OK;
}

int64_t sr_dataset_document_of(const sr_dataset *dataset, int64_t token) {
    int64_t n = find(dataset->token_starts, dataset->shard_count, token);
    return dataset->document_starts[n] +
           sr_shard_document_of(&dataset->shards[n], token - dataset->token_starts[n]);
}
