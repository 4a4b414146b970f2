/* file.h: reading a file as memory, and replacing one so that a crash leaves the old or the new. */
#ifndef SR_FILES_FILE_H
#define SR_FILES_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* open(2) with O_CLOEXEC for whatever this program reads or writes; -1 and errno on failure. Never
 * gives 0, 1 or 2: where those were closed, a message or a result would end up in the file. */
int sr_descriptor_open(const char *path, int flags);

/* The same for a regular file that is to be written; a link there is not followed, and a pipe does
 * not make it wait. *descriptor = -1 on failure. */
srnn_status sr_descriptor_open_own(int *descriptor, const char *path, int flags);

/* A file's bytes, read-only. */
typedef struct sr_mapping {
    const uint8_t *data; /* (bytes); never NULL in an open mapping, even of an empty file */
    size_t bytes;
    int descriptor; /* of the open file */
} sr_mapping;

/* Maps a regular file. The mapping outlives the name; a file that another process cuts shorter
 * meanwhile raises SIGBUS, so our own files are replaced, never rewritten in place. */
srnn_status sr_mapping_open(sr_mapping *mapping, const char *path);

/* Fails if the file has been cut shorter since it was mapped: for what stays mapped for long. */
srnn_status sr_mapping_check(const sr_mapping *mapping, const char *path);

/* Leaves { 0 }, which may be closed again. */
void sr_mapping_close(sr_mapping *mapping);

/* A file being written beside the one it will replace. */
typedef struct sr_replacement sr_replacement;

/* Starts writing; the file at `path`, if any, stays as it is until commit. What killed processes
 * left of their attempts to replace it is removed. */
srnn_status sr_replacement_create(sr_replacement **replacement, const char *path);

/* Appends bytes. After a failure only sr_replacement_free is left to do. */
srnn_status sr_replacement_write(sr_replacement *replacement, const void *data, size_t bytes);

/* Writes over bytes that were appended before, from byte `offset` on; appending goes on at the end.
 */
srnn_status sr_replacement_overwrite(sr_replacement *replacement, size_t offset, const void *data,
                                     size_t bytes);

/* Makes the new file durable and gives it its name. On failure the old file is still there. */
srnn_status sr_replacement_commit(sr_replacement *replacement);

/* Frees; removes what was written unless it was committed. */
void sr_replacement_free(sr_replacement *replacement);

/* The whole in one call. */
srnn_status sr_file_replace(const char *path, const void *data, size_t bytes);

#endif
