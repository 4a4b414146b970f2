/* path.c: names of files in folders. */
#include "files/path.h"

#include <stdio.h>

srnn_status sr_path_join(char path[SR_PATH_BYTES], const char *folder, const char *name) {
    if (snprintf(path, SR_PATH_BYTES, "%s/%s", folder, name) >= SR_PATH_BYTES)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%s: path too long", folder);
    return SRNN_OK;
}
