/* path.h: names of files in folders. */
#ifndef SR_FILES_PATH_H
#define SR_FILES_PATH_H

#include "base/status.h"

#include <stdbool.h>

/* The longest path, including the terminating zero. */
enum { SR_PATH_BYTES = 4096 };

/* path = what printf would print. Fails if it is too long. */
srnn_status sr_path_print(char path[SR_PATH_BYTES], const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* path = "folder/name". Fails if it is too long. */
srnn_status sr_path_join(char path[SR_PATH_BYTES], const char *folder, const char *name);

/* Whether a folder has an entry of this name. */
bool sr_path_has(const char *folder, const char *name);

#endif
