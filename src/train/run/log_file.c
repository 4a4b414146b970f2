/* log_file.c: a file that a run appends to. */
#include "train/run/log_file.h"

#include "base/memory.h"
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct sr_log_file {
    char *path;
    int descriptor;
    int64_t length; /* in the file */
    char *waiting;  /* (waiting_bytes): appended, but not written yet */
    size_t waiting_bytes, capacity;
};

static srnn_status fail(const sr_log_file *file, const char *what) {
    return SR_FAIL(SRNN_ERR_IO, "%s: %s: %s", file->path, what, strerror(errno));
}

static srnn_status cut(sr_log_file *file, int64_t keep) {
    struct stat status;
    if (fstat(file->descriptor, &status) != 0)
        return fail(file, "cannot be measured");
    if (status.st_size < keep)
        return SR_FAIL(SRNN_ERR_FORMAT, "%s: shorter than the checkpoint remembers it", file->path);
    if (ftruncate(file->descriptor, keep) != 0 || lseek(file->descriptor, keep, SEEK_SET) < 0)
        return fail(file, "cannot be cut");
    file->length = keep;
    return SRNN_OK;
}

srnn_status sr_log_file_open(sr_log_file **file, const char *path, int64_t keep) {
    void *memory;
    *file = NULL;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **file));
    sr_log_file *created = memory;
    created->descriptor = -1;
    created->path = strdup(path);
    srnn_status status = created->path ? SRNN_OK : SR_FAIL(SRNN_ERR_MEMORY, "no memory");
    if (status == SRNN_OK)
        status = sr_descriptor_open_own(&created->descriptor, path, O_RDWR | O_CREAT);
    if (status == SRNN_OK)
        status = cut(created, keep);
    if (status != SRNN_OK) {
        sr_log_file_free(created);
        return status;
    }
    *file = created;
    return SRNN_OK;
}

void sr_log_file_free(sr_log_file *file) {
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->waiting);
    free(file->path);
    free(file);
}

static srnn_status keep(sr_log_file *file, const void *data, size_t bytes) {
    if (file->capacity - file->waiting_bytes < bytes) {
        const size_t capacity = 2 * (file->waiting_bytes + bytes);
        char *grown = realloc(file->waiting, capacity);
        if (!grown)
            return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for a record", file->path);
        file->waiting = grown;
        file->capacity = capacity;
    }
    memcpy(file->waiting + file->waiting_bytes, data, bytes);
    file->waiting_bytes += bytes;
    return SRNN_OK;
}

/* A partial write is truncated again, so that the file never ends in half a record. */
static srnn_status write_waiting(sr_log_file *file) {
    for (size_t done = 0; done < file->waiting_bytes;) {
        const ssize_t written =
            write(file->descriptor, file->waiting + done, file->waiting_bytes - done);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            const int reason = errno;
            (void)cut(file, file->length); /* the write error is reported */
            errno = reason;
            return fail(file, "cannot be written");
        }
        done += (size_t)written;
    }
    file->length += (int64_t)file->waiting_bytes;
    file->waiting_bytes = 0;
    return SRNN_OK;
}

srnn_status sr_log_file_append(sr_log_file *file, const void *data, size_t bytes) {
    SR_TRY(keep(file, data, bytes));
    return write_waiting(file);
}

srnn_status sr_log_file_sync(sr_log_file *file, int64_t *length) {
    SR_TRY(write_waiting(file));
    if (fsync(file->descriptor) != 0)
        return fail(file, "cannot be made durable");
    *length = file->length;
    return SRNN_OK;
}
