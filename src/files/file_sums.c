/* file_sums.c: sizes and checksums of a folder's files, to detect later changes. */
#include "files/file_sums.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK_BYTES = 1 << 20 };

static srnn_status add_blocks(sr_file_sum *sum, int descriptor, unsigned char *block,
                              const char *path) {
    for (;;) {
        const ssize_t got = read(descriptor, block, BLOCK_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return SR_FAIL(SRNN_ERR_IO, "%s: cannot be read: %s", path, strerror(errno));
        if (got == 0)
            return SRNN_OK;
        sum->bytes += got;
        sum->crc = (int64_t)crc32_z((uLong)sum->crc, block, (size_t)got);
    }
}

static srnn_status sum_file(sr_file_sum *sum, const char *path) {
    int descriptor;
    void *block;
    sum->bytes = 0;
    sum->crc = (int64_t)crc32(0, NULL, 0);
    SR_TRY(sr_descriptor_open_own(&descriptor, path, O_RDONLY));
    srnn_status status = sr_alloc(&block, BLOCK_BYTES, 1);
    if (status == SRNN_OK) {
        status = add_blocks(sum, descriptor, block, path);
        free(block);
    }
    close(descriptor);
    return status;
}

srnn_status sr_file_sum_make(sr_file_sum *sum, const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    SR_TRY(sr_path_join(path, folder, name));
    if (strlen(name) >= sizeof sum->name)
        return SR_FAIL(SRNN_ERR_LIMIT, "%s: its name is too long", path);
    snprintf(sum->name, sizeof sum->name, "%s", name);
    return sum_file(sum, path);
}

static srnn_status add_sum(json_t *sums, const sr_file_sum *sum, const char *folder) {
    sr_json_set(sums, sum->name,
                json_pack("{s:I, s:I}", "bytes", (json_int_t)sum->bytes, "crc32",
                          (json_int_t)sum->crc));
    return sr_json_complete(sums, folder);
}

/* Adds every file whose checksum is not known. */
static srnn_status add_others(json_t *sums, const sr_names *names, const char *folder) {
    for (size_t i = 0; i < names->count; i++) {
        sr_file_sum sum;
        if (json_object_get(sums, names->names[i]))
            continue;
        SR_TRY(sr_file_sum_make(&sum, folder, names->names[i]));
        SR_TRY(add_sum(sums, &sum, folder));
    }
    return SRNN_OK;
}

/* A file checksummed by another rank must be visible here too, under this name. */
static srnn_status add_known(json_t *sums, const sr_names *names, const sr_file_sum *known,
                             const char *folder) {
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->names[i], known->name) == 0)
            return add_sum(sums, known, folder);
    return SR_FAIL(SRNN_ERR_IO,
                   "%s: has no %s, which was written elsewhere: is it the same folder everywhere?",
                   folder, known->name);
}

srnn_status sr_file_sums_make(json_t **sums, const char *folder, const sr_file_sum *known,
                              size_t count) {
    sr_names names;
    *sums = json_object();
    srnn_status status = sr_folder_list(&names, folder);
    if (status == SRNN_OK && !*sums)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for checksums", folder);
    for (size_t i = 0; status == SRNN_OK && i < count; i++)
        if (*known[i].name)
            status = add_known(*sums, &names, &known[i], folder);
    if (status == SRNN_OK)
        status = add_others(*sums, &names, folder);
    sr_names_free(&names);
    if (status != SRNN_OK) {
        json_decref(*sums);
        *sums = NULL;
    }
    return status;
}

static srnn_status check_file(const char *folder, const char *name, const json_t *want) {
    char path[SR_PATH_BYTES];
    sr_file_sum sum;
    if (strchr(name, '/'))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is not a file of this folder", folder, name);
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sum_file(&sum, path));
    if (sum.bytes != sr_json_integer_of(want, "bytes") ||
        sum.crc != sr_json_integer_of(want, "crc32"))
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: is damaged: not the bytes that were written", path);
    return SRNN_OK;
}

srnn_status sr_file_sums_check(const json_t *sums, const char *folder,
                               const sr_file_sums_part *part) {
    const char *name;
    json_t *want;
    size_t number = 0;
    json_object_foreach((json_t *)(uintptr_t)sums, name, want) {
        if (part->except && strncmp(name, part->except, strlen(part->except)) == 0)
            continue;
        if (part->count == 0 || number++ % part->count == part->index)
            SR_TRY(check_file(folder, name, want));
    }
    return SRNN_OK;
}
