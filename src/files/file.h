/* file.h: maps files into memory and replaces files atomically. */
#ifndef SR_FILES_FILE_H
#define SR_FILES_FILE_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* open(2) with O_CLOEXEC for every file of this program; -1 and errno on failure. Never returns 0,
 * 1 or 2: if those were closed, messages or results would end up in the file. */
int sr_descriptor_open(const char *path, int flags);

/* The same for a regular file that will be written; links are not followed and pipes do not block.
 * *descriptor = -1 on failure. */
srnn_status sr_descriptor_open_own(int *descriptor, const char *path, int flags);

/* A file's bytes, read-only. */
typedef struct sr_mapping {
    const uint8_t *data; /* (bytes); never NULL in an open mapping, even of an empty file */
    size_t bytes;
    int descriptor; /* of the open file */
} sr_mapping;

/* Maps a regular file. The mapping stays valid if the file is unlinked. Truncation by another
 * process raises SIGBUS, so softrnn's own files are replaced, never rewritten in place. */
srnn_status sr_mapping_open(sr_mapping *mapping, const char *path);

/* Fails if the file has been truncated since it was mapped: for long-lived mappings. */
srnn_status sr_mapping_check(const sr_mapping *mapping, const char *path);

/* Leaves { 0 }, which may be closed again. */
void sr_mapping_close(sr_mapping *mapping);

/* A file being written next to the one it will replace. */
typedef struct sr_replacement sr_replacement;

/* Starts writing; the file at `path`, if any, is unchanged until commit. Temporary files of killed
 * processes are removed. */
srnn_status sr_replacement_create(sr_replacement **replacement, const char *path);

/* Appends bytes. After a failure only sr_replacement_free may be called. */
srnn_status sr_replacement_write(sr_replacement *replacement, const void *data, size_t bytes);

/* Overwrites bytes appended before, from byte `offset` on; later appends are at the end. */
srnn_status sr_replacement_overwrite(sr_replacement *replacement, size_t offset, const void *data,
                                     size_t bytes);

/* Syncs the new file and renames it. On failure the old file is unchanged. */
srnn_status sr_replacement_commit(sr_replacement *replacement);

/* Frees; removes what was written unless it was committed. */
void sr_replacement_free(sr_replacement *replacement);

/* All of it in one call. */
srnn_status sr_file_replace(const char *path, const void *data, size_t bytes);

#endif
