/* file_sums.h: sizes and checksums of a folder's files, to detect later changes. */
#ifndef SR_FILES_FILE_SUMS_H
#define SR_FILES_FILE_SUMS_H

#include "base/status.h"

#include <jansson.h>

enum { SR_FILE_SUM_NAME = 64 };

typedef struct sr_file_sum {
    char name[SR_FILE_SUM_NAME]; /* "": unused entry */
    int64_t bytes, crc;
} sr_file_sum;

/* *sum = size and checksum of one file, which is read. */
srnn_status sr_file_sum_make(sr_file_sum *sum, const char *folder, const char *name);

/* *sums = { name: { "bytes": .., "crc32": .. } } of every file in the folder. All are read except
 * those in `known` (count), which must exist. The caller decrefs it. */
srnn_status sr_file_sums_make(json_t **sums, const char *folder, const sr_file_sum *known,
                              size_t count);

/* Which files to read: those whose names do not begin with `except` (NULL: all), and begin with
 * `only` (NULL: all), and of these every `count`-th from number `index` on (count 0: all), to share
 * the work. */
typedef struct sr_file_sums_part {
    const char *except, *only;
    size_t index, count;
} sr_file_sums_part;

/* Reads the files listed in `sums`; fails with SRNN_ERR_FORMAT, naming the first that differs. */
srnn_status sr_file_sums_check(const json_t *sums, const char *folder,
                               const sr_file_sums_part *part);

#endif
