/* log_file.h (private): a file that a run appends to and truncates to an earlier length when it
 * resumes. */
#ifndef SR_TRAIN_RUN_LOG_FILE_H
#define SR_TRAIN_RUN_LOG_FILE_H

#include "base/status.h"

typedef struct sr_log_file sr_log_file;

/* Opens or creates; bytes after the first `keep` are cut off. Fails if the file is shorter, or is a
 * link, a pipe or a folder. */
srnn_status sr_log_file_open(sr_log_file **file, const char *path, int64_t keep);
void sr_log_file_free(sr_log_file *file);

/* Appends and writes. If the write fails the call fails; the data is kept and written with the next
 * append. */
srnn_status sr_log_file_append(sr_log_file *file, const void *data, size_t bytes);

/* Syncs everything appended to disk; *length receives the file's length. */
srnn_status sr_log_file_sync(sr_log_file *file, int64_t *length);

#endif
