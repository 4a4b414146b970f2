/* shard_set.c: the shards of a folder while they are written. */
#include "data/shards/shard_set.h"

#include "base/memory.h"
#include "data/shards/manifest.h"
#include "files/json.h"
#include "files/path.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The index of a shard is held in memory until the shard is complete: 32 MiB at most. */
enum { MOST_DOCUMENTS = 1 << 22 };

struct sr_shard_set {
    char *folder;
    int64_t most_tokens;
    sr_shard_settings settings;
    sr_shard_writer *writers[SR_SPLITS]; /* NULL: none is open */
    int numbers[SR_SPLITS];              /* of the next shard */
    char name[64];
    json_t *list;
};

srnn_status sr_shard_set_create(sr_shard_set **set, const char *folder, int64_t most_tokens,
                                const sr_shard_settings *settings) {
    sr_shard_set *created;
    SR_TRY(sr_alloc_zero((void **)&created, 1, sizeof *created));
    *created = (sr_shard_set){.folder = strdup(folder),
                              .most_tokens = most_tokens,
                              .settings = *settings,
                              .list = json_array()};
    if (!created->folder || !created->list) {
        sr_shard_set_free(created);
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its shards", folder);
    }
    *set = created;
    return SRNN_OK;
}

static void print_name(char *name, size_t size, sr_split split, int number) {
    snprintf(name, size, "%s-%05d.tokens", sr_split_name(split), number);
}

static srnn_status start_shard(sr_shard_set *set, sr_split split) {
    char path[SR_PATH_BYTES], name[64];
    print_name(name, sizeof name, split, set->numbers[split]);
    SR_TRY(sr_path_join(path, set->folder, name));
    return sr_shard_writer_create(&set->writers[split], path, &set->settings);
}

static srnn_status finish_shard(sr_shard_set *set, sr_split split) {
    sr_shard_writer *writer = set->writers[split];
    char name[64];
    print_name(name, sizeof name, split, set->numbers[split]++);
    SR_TRY(sr_shard_writer_finish(writer));
    json_t *entry = json_pack("{s:s, s:s, s:I, s:I}", "file", name, "split", sr_split_name(split),
                              "tokens", (json_int_t)sr_shard_writer_tokens(writer), "documents",
                              (json_int_t)sr_shard_writer_documents(writer));
    sr_json_append(set->list, entry);
    SR_TRY(sr_json_complete(set->list, set->folder));
    sr_shard_writer_free(writer);
    set->writers[split] = NULL;
    return SRNN_OK;
}

srnn_status sr_shard_set_append(sr_shard_set *set, sr_split split, const uint32_t *ids,
                                size_t count) {
    const sr_shard_writer *writer = set->writers[split];
    if (writer && (sr_shard_writer_tokens(writer) + (int64_t)count > set->most_tokens ||
                   sr_shard_writer_documents(writer) == MOST_DOCUMENTS))
        SR_TRY(finish_shard(set, split));
    if (!set->writers[split])
        SR_TRY(start_shard(set, split));
    return sr_shard_writer_append(set->writers[split], ids, count);
}

srnn_status sr_shard_set_finish(sr_shard_set *set, json_t **list) {
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++)
        if (set->writers[split])
            SR_TRY(finish_shard(set, split));
    *list = json_incref(set->list);
    return SRNN_OK;
}

void sr_shard_set_free(sr_shard_set *set) {
    if (!set)
        return;
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++)
        sr_shard_writer_free(set->writers[split]);
    json_decref(set->list);
    free(set->folder);
    free(set);
}

/* True for the names of shards and of unfinished shards. */
static bool is_shard_name(const char *name) {
    for (sr_split split = SR_SPLIT_TRAIN; split < SR_SPLITS; split++) {
        size_t length = strlen(sr_split_name(split));
        if (strncmp(name, sr_split_name(split), length) != 0 || name[length] != '-')
            continue;
        const char *digits = name + length + 1;
        size_t count = strspn(digits, "0123456789");
        const char *suffix = digits + count;
        if (count >= 5 && strncmp(suffix, ".tokens", 7) == 0)
            return suffix[7] == 0 || strncmp(suffix + 7, ".new-", 5) == 0;
    }
    return false;
}

static srnn_status remove_entry(DIR *entries, const char *folder, const char *name) {
    if (unlinkat(dirfd(entries), name, 0) != 0 && errno != ENOENT)
        return SR_FAIL(SRNN_ERR_IO, "%s/%s: cannot remove: %s", folder, name, strerror(errno));
    return SRNN_OK;
}

srnn_status sr_shard_set_remove(const char *folder) {
    DIR *entries = opendir(folder);
    if (!entries)
        return SR_FAIL(SRNN_ERR_IO, "%s: cannot open the folder: %s", folder, strerror(errno));
    srnn_status status = remove_entry(entries, folder, SR_MANIFEST_NAME);
    for (struct dirent *entry; status == SRNN_OK && (entry = readdir(entries));)
        if (is_shard_name(entry->d_name))
            status = remove_entry(entries, folder, entry->d_name);
    closedir(entries);
    return status;
}
