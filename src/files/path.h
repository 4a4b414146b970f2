/* path.h: names of files in folders. */
#ifndef SR_FILES_PATH_H
#define SR_FILES_PATH_H

#include "base/status.h"

enum { SR_PATH_BYTES = 4096 };

/* path = "folder/name". Fails if it is too long. */
srnn_status sr_path_join(char path[SR_PATH_BYTES], const char *folder, const char *name);

#endif
