/* file.c: maps files into memory and replaces files atomically. */
#include "files/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- descriptors */

enum { FIRST_FREE = 3 }; /* after stdin, stdout and stderr */

int sr_descriptor_open(const char *path, int flags) {
    const int low = open(path, flags | O_CLOEXEC, 0666);
    if (low < 0 || low >= FIRST_FREE)
        return low;
    const int descriptor = fcntl(low, F_DUPFD_CLOEXEC, FIRST_FREE);
    const int error = errno;
    close(low);
    errno = error;
    return descriptor;
}

srnn_status sr_descriptor_open_own(int *descriptor, const char *path, int flags) {
    struct stat facts;
    *descriptor = sr_descriptor_open(path, flags | O_NOFOLLOW | O_NONBLOCK);
    if (*descriptor < 0 && errno == ELOOP)
        return SR_FAIL(SRNN_ERR_IO, "%s: is a symbolic link, not a file", path);
    if (*descriptor < 0 && errno == ENXIO)
        return SR_FAIL(SRNN_ERR_IO, "%s: is a pipe, not a file", path);
    if (*descriptor < 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(*descriptor, &facts) == 0 && S_ISREG(facts.st_mode))
        return SRNN_OK;
    close(*descriptor);
    *descriptor = -1;
    return SR_FAIL(SRNN_ERR_IO, "%s: is not a regular file", path);
}

/* ---- mapping */

/* An empty file cannot be mapped; its data points here. */
static const uint8_t nothing;

static srnn_status map_descriptor(sr_mapping *mapping, int descriptor, const char *path) {
    struct stat facts;
    if (fstat(descriptor, &facts) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not read its size: %s", path, strerror(errno));
    if (S_ISDIR(facts.st_mode))
        return SR_FAIL(SRNN_ERR_IO, "%s: is a folder, not a file", path);
    if (!S_ISREG(facts.st_mode))
        return SR_FAIL(SRNN_ERR_IO, "%s: is not a regular file", path);
    if ((uintmax_t)facts.st_size > PTRDIFF_MAX)
        return SR_FAIL(SRNN_ERR_IO, "%s: does not fit the address space", path);
    if (facts.st_size == 0) {
        *mapping = (sr_mapping){&nothing, 0, descriptor};
        return SRNN_OK;
    }
    size_t bytes = (size_t)facts.st_size;
    void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not map %zu bytes: %s", path, bytes,
                       strerror(errno));
    *mapping = (sr_mapping){data, bytes, descriptor};
    return SRNN_OK;
}

srnn_status sr_mapping_open(sr_mapping *mapping, const char *path) {
    *mapping = (sr_mapping){0};
    /* Without O_NONBLOCK opening a named pipe would block until it has a writer. */
    int descriptor = sr_descriptor_open(path, O_RDONLY | O_NONBLOCK);
    if (descriptor < 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not open: %s", path, strerror(errno));
    srnn_status status = map_descriptor(mapping, descriptor, path);
    if (status != SRNN_OK)
        close(descriptor);
    return status;
}

srnn_status sr_mapping_check(const sr_mapping *mapping, const char *path) {
    struct stat facts;
    if (fstat(mapping->descriptor, &facts) == 0 && (uintmax_t)facts.st_size >= mapping->bytes)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_IO, "%s: it was made shorter while it was in use", path);
}

void sr_mapping_close(sr_mapping *mapping) {
    if (mapping->bytes > 0)
        munmap((void *)(uintptr_t)mapping->data, mapping->bytes);
    if (mapping->data)
        close(mapping->descriptor);
    *mapping = (sr_mapping){0};
}

/* ---- replacement */

enum { MOST_ATTEMPTS = 1000 };

struct sr_replacement {
    char *path;      /* the target */
    char *temporary; /* the new file until commit, in the same folder */
    int descriptor;  /* -1 once closed */
    bool committed;
};

#define TEMPORARY ".new-" /* between the target's name and a number, the same in every process */

/* Removes what a killed process left under this name. The writer of a temporary file holds its lock
 * until the file has its new name or none: one that can be locked was left behind. */
static void remove_left(const char *name) {
    struct stat opened, named;
    const int descriptor = open(name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (descriptor < 0)
        return;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &opened) == 0 &&
        lstat(name, &named) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
        unlink(name);
    close(descriptor);
}

/* False if the new file was removed before it was locked. */
static bool hold(int descriptor) {
    struct stat facts;
    return flock(descriptor, LOCK_EX) !=
               0 || /* a file system without locks: no process removes it */
           (fstat(descriptor, &facts) == 0 && facts.st_nlink > 0);
}

static int create_temporary(const char *name) {
    const int descriptor = sr_descriptor_open(name, O_WRONLY | O_CREAT | O_EXCL);
    if (descriptor >= 0 || errno != EEXIST)
        return descriptor;
    remove_left(name);
    return sr_descriptor_open(name, O_WRONLY | O_CREAT | O_EXCL);
}

/* Creates a file in the target's folder under the first unused name. */
static srnn_status open_temporary(sr_replacement *replacement) {
    const char *path = replacement->path;
    int error = EEXIST;
    for (int attempt = 0; attempt < MOST_ATTEMPTS && error == EEXIST; attempt++) {
        free(replacement->temporary);
        if (asprintf(&replacement->temporary, "%s" TEMPORARY "%d", path, attempt) < 0) {
            replacement->temporary = NULL;
            return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", path);
        }
        replacement->descriptor = create_temporary(replacement->temporary);
        error = errno;
        if (replacement->descriptor >= 0 && hold(replacement->descriptor))
            return SRNN_OK;
        if (replacement->descriptor >= 0) {
            close(replacement->descriptor);
            replacement->descriptor = -1;
            error = EEXIST;
        }
    }
    free(replacement->temporary);
    replacement->temporary = NULL;
    return SR_FAIL(SRNN_ERR_IO, "%s: could not create a temporary file next to it: %s", path,
                   strerror(error));
}

/* A file that replaces another gets its permissions. */
static srnn_status copy_rights(const sr_replacement *replacement) {
    struct stat old;
    if (stat(replacement->path, &old) != 0)
        return SRNN_OK;
    if (!S_ISREG(old.st_mode))
        return SR_FAIL(SRNN_ERR_IO, "%s: exists and is not a regular file", replacement->path);
    if (fchmod(replacement->descriptor, old.st_mode & 07777) != 0)
        return SR_FAIL(SRNN_ERR_IO,
                       "%s: could not give the temporary file the same permissions: %s",
                       replacement->path, strerror(errno));
    return SRNN_OK;
}

srnn_status sr_replacement_create(sr_replacement **replacement, const char *path) {
    *replacement = NULL;
    sr_replacement *created = calloc(1, sizeof *created);
    if (created) {
        /* For a symbolic link, its target is replaced, not the link. */
        created->path = realpath(path, NULL);
        if (!created->path)
            created->path = strdup(path);
    }
    if (!created || !created->path) {
        free(created);
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its name", path);
    }
    created->descriptor = -1;
    srnn_status status = open_temporary(created);
    if (status == SRNN_OK)
        status = copy_rights(created);
    if (status != SRNN_OK) {
        sr_replacement_free(created);
        return status;
    }
    *replacement = created;
    return SRNN_OK;
}

srnn_status sr_replacement_write(sr_replacement *replacement, const void *data, size_t bytes) {
    const uint8_t *from = data;
    while (bytes > 0) {
        ssize_t written = write(replacement->descriptor, from, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return SR_FAIL(SRNN_ERR_IO, "%s: could not write: %s", replacement->path,
                           strerror(errno));
        from += written;
        bytes -= (size_t)written;
    }
    return SRNN_OK;
}

srnn_status sr_replacement_overwrite(sr_replacement *replacement, size_t offset, const void *data,
                                     size_t bytes) {
    const uint8_t *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(replacement->descriptor, from, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return SR_FAIL(SRNN_ERR_IO, "%s: could not write: %s", replacement->path,
                           strerror(errno));
        from += written;
        offset += (size_t)written;
        bytes -= (size_t)written;
    }
    return SRNN_OK;
}

/* A rename is durable only after its folder is synced. */
static srnn_status sync_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (!folder)
        return SR_FAIL(SRNN_ERR_MEMORY, "%s: no memory for its folder's name", path);
    int descriptor = sr_descriptor_open(folder, O_RDONLY | O_DIRECTORY);
    /* Some file systems cannot sync a folder and return EINVAL. */
    bool synced = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
    int error = errno;
    if (descriptor >= 0)
        close(descriptor);
    free(folder);
    if (!synced)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not make its new name durable: %s", path,
                       strerror(error));
    return SRNN_OK;
}

srnn_status sr_replacement_commit(sr_replacement *replacement) {
    const char *path = replacement->path;
    if (fsync(replacement->descriptor) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not write to the disk: %s", path, strerror(errno));
    if (rename(replacement->temporary, path) != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not replace it: %s", path, strerror(errno));
    replacement->committed = true;
    int closed = close(replacement->descriptor); /* and with it the lock */
    replacement->descriptor = -1;
    if (closed != 0)
        return SR_FAIL(SRNN_ERR_IO, "%s: could not finish writing: %s", path, strerror(errno));
    return sync_folder(path);
}

void sr_replacement_free(sr_replacement *replacement) {
    if (!replacement)
        return;
    if (replacement->temporary && !replacement->committed)
        unlink(replacement->temporary);
    if (replacement->descriptor >= 0)
        close(replacement->descriptor);
    free(replacement->temporary);
    free(replacement->path);
    free(replacement);
}

srnn_status sr_file_replace(const char *path, const void *data, size_t bytes) {
    sr_replacement *replacement;
    SR_TRY(sr_replacement_create(&replacement, path));
    srnn_status status = sr_replacement_write(replacement, data, bytes);
    if (status == SRNN_OK)
        status = sr_replacement_commit(replacement);
    sr_replacement_free(replacement);
    return status;
}
