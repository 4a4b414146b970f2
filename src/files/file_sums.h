/* file_sums.h: sizes and checksums of a folder's files, to see later that they are what they were. */
#ifndef SR_FILES_FILE_SUMS_H
#define SR_FILES_FILE_SUMS_H

#include "base/status.h"

#include <jansson.h>

/* *sums = { name: { "bytes": .., "crc32": .. } } of every file in the folder, read now. The caller
 * decrefs it. */
srnn_status sr_file_sums_make(json_t **sums, const char *folder);

/* Reads the files that `sums` lists, but those whose names begin with `except` (NULL: none), and fails with
 * SRNN_ERR_FORMAT naming the first that is another. */
srnn_status sr_file_sums_check(const json_t *sums, const char *folder, const char *except);

#endif
