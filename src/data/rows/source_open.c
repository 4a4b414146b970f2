/* source_open.c: opens a source by name. */
#include "data/rows/source_open.h"

#include "base/memory.h"
#include "data/rows/synthetic.h"
#include "data/shards/manifest.h"
#include "data/text/buffer.h"
#include "data/text/input.h"
#include "files/path.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20 };

static srnn_status from_shard(sr_dataset *dataset, const sr_shard *shard) {
    sr_shard *list;
    srnn_status status = sr_alloc((void **)&list, 1, sizeof *list);
    if (status != SRNN_OK) {
        sr_shard only = *shard;
        sr_shard_close(&only);
        return status;
    }
    *list = *shard;
    return sr_dataset_create(dataset, list, 1);
}

static srnn_status from_text(sr_dataset *dataset, const char *text, size_t bytes) {
    sr_shard shard;
    SR_TRY(sr_shard_from_text(&shard, text, bytes));
    return from_shard(dataset, &shard);
}

static srnn_status read_text(sr_bytes *text, sr_input *input) {
    size_t got;
    do {
        SR_TRY(sr_bytes_reserve(text, BLOCK_BYTES));
        SR_TRY(sr_input_read(input, text->data + text->count, BLOCK_BYTES, &got));
        text->count += got;
    } while (got > 0);
    return SRNN_OK;
}

static srnn_status read_file(sr_bytes *text, const char *path) {
    sr_input *input;
    SR_TRY(sr_input_open(&input, path));
    srnn_status status = read_text(text, input);
    sr_input_free(input);
    if (status == SRNN_OK && text->count == 0)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: the file is empty", path);
    return status;
}

/* Where the validation part of a text begins: never inside a character. */
static size_t cut_of(const char *text, size_t bytes, double share) {
    size_t cut = (size_t)((double)bytes * (1 - share));
    while (cut < bytes && ((unsigned char)text[cut] & 0xc0) == 0x80)
        cut++;
    return cut < bytes ? cut : bytes;
}

static srnn_status cut_text(sr_dataset datasets[SR_SPLITS], const char *text, size_t bytes,
                            double share) {
    if (!(share >= 0 && share < 1))
        return SR_FAIL(SRNN_ERR_ARGUMENT, "a validation share of %g leaves nothing to train on",
                       share);
    size_t cut = cut_of(text, bytes, share);
    if (cut < bytes)
        SR_TRY(from_text(&datasets[SR_SPLIT_VALIDATION], text + cut, bytes - cut));
    return from_text(&datasets[SR_SPLIT_TRAIN], text, cut);
}

static srnn_status open_text(sr_dataset datasets[SR_SPLITS], const char *where,
                             const sr_source_settings *settings) {
    sr_bytes text = {0};
    srnn_status status = read_file(&text, where);
    if (status == SRNN_OK)
        status = cut_text(datasets, text.data, text.count,
                          settings->validation ? 0 : settings->validation_share);
    text.count = 0;
    if (status == SRNN_OK && settings->validation) {
        status = read_file(&text, settings->validation);
        if (status == SRNN_OK)
            status = from_text(&datasets[SR_SPLIT_VALIDATION], text.data, text.count);
    }
    sr_bytes_free(&text);
    return status;
}

static srnn_status open_bin(sr_dataset datasets[SR_SPLITS], const char *where,
                            const sr_source_settings *settings) {
    const char *const paths[SR_SPLITS] = {where, settings->validation};
    for (int split = 0; split < SR_SPLITS; split++) {
        if (!paths[split])
            continue;
        sr_shard shard;
        SR_TRY(sr_shard_open_bin(&shard, paths[split], &settings->bin));
        SR_TRY(from_shard(&datasets[split], &shard));
    }
    return SRNN_OK;
}

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* The advice for a file given as the validation split of a folder of shards. */
static srnn_status refuse_file(const char *file, const char *folder) {
    char path[SR_PATH_BYTES];
    sr_manifest manifest;
    SR_TRY(sr_manifest_read(&manifest, folder));
    srnn_status status = sr_path_join(path, folder, manifest.tokenizer);
    if (status == SRNN_OK)
        status =
            SR_FAIL(SRNN_ERR_ARGUMENT,
                    "validation %s: %s is a folder of shards, so its validation data must be "
                    "one too: softrnn data prepare --tokenizer %s --validation 0 --out "
                    "validation %s, then --validation validation",
                    file, folder, manifest.tokenizer_is_built_in ? manifest.tokenizer : path, file);
    sr_manifest_free(&manifest);
    return status;
}

static srnn_status open_other_folder(sr_dataset datasets[SR_SPLITS], const char *where,
                                     const char *validation) {
    const sr_dataset *train = &datasets[SR_SPLIT_TRAIN], *other = &datasets[SR_SPLIT_VALIDATION];
    if (!is_folder(validation))
        return refuse_file(validation, where);
    SR_TRY(sr_dataset_open_all(&datasets[SR_SPLIT_VALIDATION], validation));
    if (train->shard_count > 0 && other->shard_count > 0 &&
        train->shards[0].tokenizer_hash != other->shards[0].tokenizer_hash)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s and %s were made with different tokenizers", where,
                       validation);
    return SRNN_OK;
}

static srnn_status open_folder(sr_dataset datasets[SR_SPLITS], const char *where,
                               const sr_source_settings *settings) {
    SR_TRY(sr_dataset_open(&datasets[SR_SPLIT_TRAIN], where, SR_SPLIT_TRAIN));
    return settings->validation
               ? open_other_folder(datasets, where, settings->validation)
               : sr_dataset_open(&datasets[SR_SPLIT_VALIDATION], where, SR_SPLIT_VALIDATION);
}

typedef enum data_kind { TEXT, BIN, FOLDER } data_kind;

static data_kind kind_of(const char *path) {
    const size_t length = strlen(path);
    if (is_folder(path))
        return FOLDER;
    return length > 4 && strcmp(path + length - 4, ".bin") == 0 ? BIN : TEXT;
}

/* Text read as tokens, or tokens as text, would be numbers like any others. */
static srnn_status check_kinds(const char *where, const char *validation) {
    static const char *const words[] = {
        [TEXT] = "text", [BIN] = "a .bin file of tokens", [FOLDER] = "a folder of shards"};
    const data_kind train = kind_of(where), other = validation ? kind_of(validation) : train;
    if (train == other || train == FOLDER) /* which has advice of its own */
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_ARGUMENT, "validation %s is %s, but %s is %s: both must be of one kind",
                   validation, words[other], where, words[train]);
}

static srnn_status open_datasets(sr_dataset datasets[SR_SPLITS], const char *where,
                                 const sr_source_settings *settings) {
    SR_TRY(check_kinds(where, settings->validation));
    switch (kind_of(where)) {
    case FOLDER:
        return open_folder(datasets, where, settings);
    case BIN:
        return open_bin(datasets, where, settings);
    case TEXT:
        break;
    }
    return open_text(datasets, where, settings);
}

/* Creates the shuffle, or frees the datasets if opening them failed. */
static srnn_status shuffle(sr_source **source, sr_dataset datasets[SR_SPLITS], srnn_status status,
                           const sr_source_settings *settings) {
    if (status != SRNN_OK) {
        for (int split = 0; split < SR_SPLITS; split++)
            sr_dataset_free(&datasets[split]);
        return status;
    }
    const sr_shuffle_settings how = {settings->seed, settings->T, settings->layout, settings->whole,
                                     settings->validation_half};
    return sr_shuffle_create(source, datasets, &how);
}

srnn_status sr_source_open(sr_source **source, const char *where,
                           const sr_source_settings *settings) {
    /* A name with a colon that is not a file was meant as a task: its error lists the tasks. */
    if (sr_synthetic_is(where) || (strchr(where, ':') && access(where, F_OK) != 0))
        return settings->validation
                   ? SR_FAIL(SRNN_ERR_ARGUMENT,
                             "validation %s: the synthetic task %s has its own validation rows",
                             settings->validation, where)
                   : sr_synthetic_create(source, where, settings->seed);
    sr_dataset datasets[SR_SPLITS] = {{0}};
    srnn_status status = open_datasets(datasets, where, settings);
    return shuffle(source, datasets, status, settings);
}

srnn_status sr_source_open_text(sr_source **source, const char *text, size_t bytes,
                                const sr_source_settings *settings) {
    sr_dataset datasets[SR_SPLITS] = {{0}};
    srnn_status status = cut_text(datasets, text, bytes, settings->validation_share);
    return shuffle(source, datasets, status, settings);
}
