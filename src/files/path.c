/* path.c: names of files in folders. */
#include "files/path.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

srnn_status sr_path_print(char path[SR_PATH_BYTES], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path, SR_PATH_BYTES, format, arguments);
    va_end(arguments);
    if (length < 0 || length >= SR_PATH_BYTES)
        return SR_FAIL(SRNN_ERR_ARGUMENT, "%.100s...: path too long", path);
    return SRNN_OK;
}

srnn_status sr_path_join(char path[SR_PATH_BYTES], const char *folder, const char *name) {
    return sr_path_print(path, "%s/%s", folder, name);
}

bool sr_path_has(const char *folder, const char *name) {
    char path[SR_PATH_BYTES];
    return sr_path_join(path, folder, name) == SRNN_OK && access(path, F_OK) == 0;
}
