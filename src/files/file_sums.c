/* file_sums.c: sizes and checksums of a folder's files, to see later that they are what they were. */
#include "files/file_sums.h"

#include "base/memory.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum { BLOCK_BYTES = 1 << 20 };

typedef struct file_sum {
    int64_t bytes;
    uLong crc;
} file_sum;

static srnn_status add_blocks(file_sum *sum, int descriptor, unsigned char *block,
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
        sum->crc = crc32_z(sum->crc, block, (size_t)got);
    }
}

static srnn_status sum_file(file_sum *sum, const char *path) {
    int descriptor;
    void *block;
    *sum = (file_sum){0, crc32(0, NULL, 0)};
    SR_TRY(sr_descriptor_open_own(&descriptor, path, O_RDONLY));
    srnn_status status = sr_alloc(&block, BLOCK_BYTES, 1);
    if (status == SRNN_OK) {
        status = add_blocks(sum, descriptor, block, path);
        free(block);
    }
    close(descriptor);
    return status;
}

static srnn_status add_file(json_t **sums, const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    file_sum sum;
    SR_TRY(sr_path_join(path, folder, name));
    SR_TRY(sum_file(&sum, path));
    sr_json_set(
        *sums, name,
        json_pack("{s:I, s:I}", "bytes", (json_int_t)sum.bytes, "crc32", (json_int_t)sum.crc));
    return sr_json_complete(*sums, path);
}

srnn_status sr_file_sums_make(json_t **sums, const char *folder) {
    sr_names names;
    *sums = json_object();
    srnn_status status = sr_folder_list(&names, folder);
    if (status == SRNN_OK && !*sums)
        status = SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for checksums", folder);
    for (size_t i = 0; status == SRNN_OK && i < names.count; i++)
        status = add_file(sums, folder, names.names[i]);
    sr_names_free(&names);
    if (status != SRNN_OK) {
        json_decref(*sums);
        *sums = NULL;
    }
    return status;
}

srnn_status sr_file_sums_check(const json_t *sums, const char *folder, const char *except) {
    const char *name;
    json_t *want;
    json_object_foreach((json_t *)(uintptr_t)sums, name, want) {
        char path[SR_PATH_BYTES];
        file_sum sum;
        if (except && strncmp(name, except, strlen(except)) == 0)
            continue;
        if (strchr(name, '/'))
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: %s is not a file of this folder", folder, name);
        SR_TRY(sr_path_join(path, folder, name));
        SR_TRY(sum_file(&sum, path));
        if (sum.bytes != sr_json_integer_of(want, "bytes") ||
            (json_int_t)sum.crc != sr_json_integer_of(want, "crc32"))
            return SR_FAIL(SRNN_ERR_FORMAT, "%s: is damaged: not the bytes that were written",
                           path);
    }
    return SRNN_OK;
}
