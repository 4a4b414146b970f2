/* file_sums.c: sizes and checksums of a folder's files, to detect later changes. */
#include "files/file_sums.h"

#include "base/memory.h"
#include "base/threads.h"
#include "files/file.h"
#include "files/folder.h"
#include "files/json.h"
#include "files/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

/* One thread reads and sums a gigabyte in more than half a second. */
enum { BLOCK_BYTES = 1 << 20, PART_BYTES = 16 << 20, MOST_THREADS = 16 };

/* Of PART_BYTES of a file, or of what is left at its end. */
typedef struct part_sum {
    int64_t bytes;
    uLong crc;
    int error; /* errno; 0: it was read */
} part_sum;

typedef struct summing {
    int descriptor;
    unsigned char *blocks; /* (threads, BLOCK_BYTES) */
    part_sum *parts;       /* (count) */
    int64_t count;
} summing;

/* Reads its own part until it, or the file, ends. */
static void sum_part(void *context, int64_t task, int worker) {
    const summing *s = context;
    part_sum *part = &s->parts[task];
    unsigned char *block = s->blocks + (size_t)worker * BLOCK_BYTES;
    part->crc = crc32(0, NULL, 0);
    while (part->bytes < PART_BYTES) {
        const int64_t left = PART_BYTES - part->bytes;
        const ssize_t got =
            pread(s->descriptor, block, left < BLOCK_BYTES ? (size_t)left : BLOCK_BYTES,
                  (off_t)(task * PART_BYTES + part->bytes));
        if (got < 0 && errno == EINTR)
            continue;
        part->error = got < 0 ? errno : 0;
        if (got <= 0)
            return;
        part->bytes += got;
        part->crc = crc32_z(part->crc, block, (size_t)got);
    }
}

static srnn_status join_parts(sr_file_sum *sum, const summing *s, const char *path) {
    sum->bytes = 0;
    sum->crc = (int64_t)crc32(0, NULL, 0);
    for (int64_t i = 0; i < s->count; i++) {
        const part_sum *part = &s->parts[i];
        if (part->error)
            return SR_FAIL(SRNN_ERR_IO, "%s: cannot be read: %s", path, strerror(part->error));
        sum->bytes += part->bytes;
        sum->crc = (int64_t)crc32_combine((uLong)sum->crc, part->crc, (z_off_t)part->bytes);
    }
    return SRNN_OK;
}

static srnn_status sum_parts(sr_file_sum *sum, summing *s, const char *path) {
    const int cores = sr_thread_count(0), most = cores < MOST_THREADS ? cores : MOST_THREADS;
    const int threads = s->count < most ? (int)s->count : most;
    void *memory;
    SR_TRY(sr_alloc(&memory, (size_t)threads, BLOCK_BYTES));
    s->blocks = memory;
    srnn_status status = sr_alloc_zero(&memory, (size_t)s->count, sizeof *s->parts);
    if (status == SRNN_OK) {
        s->parts = memory;
        sr_parallel(sum_part, s, s->count, threads);
        status = join_parts(sum, s, path);
        free(s->parts);
    }
    free(s->blocks);
    return status;
}

static srnn_status sum_file(sr_file_sum *sum, const char *path) {
    struct stat facts;
    summing s = {0};
    SR_TRY(sr_descriptor_open_own(&s.descriptor, path, O_RDONLY));
    srnn_status status = SRNN_OK;
    if (fstat(s.descriptor, &facts) != 0)
        status = SR_FAIL(SRNN_ERR_IO, "%s: could not read its size: %s", path, strerror(errno));
    if (status == SRNN_OK) {
        s.count = (int64_t)facts.st_size / PART_BYTES + 1;
        status = sum_parts(sum, &s, path);
    }
    close(s.descriptor);
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

static bool begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

srnn_status sr_file_sums_check(const json_t *sums, const char *folder,
                               const sr_file_sums_part *part) {
    const char *name;
    json_t *want;
    size_t number = 0;
    json_object_foreach((json_t *)(uintptr_t)sums, name, want) {
        if ((part->except && begins(name, part->except)) ||
            (part->only && !begins(name, part->only)))
            continue;
        if (part->count == 0 || number++ % part->count == part->index)
            SR_TRY(check_file(folder, name, want));
    }
    return SRNN_OK;
}
