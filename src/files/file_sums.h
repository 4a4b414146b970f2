/* file_sums.h: sizes and checksums of a folder's files, to see later that they are what they
 * were. */
#ifndef SR_FILES_FILE_SUMS_H
#define SR_FILES_FILE_SUMS_H

#include "base/status.h"

#include <jansson.h>

enum { SR_FILE_SUM_NAME = 64 };

typedef struct sr_file_sum {
    char name[SR_FILE_SUM_NAME]; /* "": of no file */
    int64_t bytes, crc;
} sr_file_sum;

/* *sum of one file, read now. */
srnn_status sr_file_sum_make(sr_file_sum *sum, const char *folder, const char *name);

/* *sums = { name: { "bytes": .., "crc32": .. } } of every file in the folder, read now but for
 * those that are known (count), which must be there. The caller decrefs it. */
srnn_status sr_file_sums_make(json_t **sums, const char *folder, const sr_file_sum *known,
                              size_t count);

/* Which of the files to read: those whose names do not begin with `except` (NULL: all), and of
 * these every `count`-th, from number `index` on (0: all of them), so that several share the
 * work. */
typedef struct sr_file_sums_part {
    const char *except;
    size_t index, count;
} sr_file_sums_part;

/* Reads the files that `sums` lists, and fails with SRNN_ERR_FORMAT naming the first that is
 * another. */
srnn_status sr_file_sums_check(const json_t *sums, const char *folder,
                               const sr_file_sums_part *part);

#endif
