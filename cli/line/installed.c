/* installed.c: files that were installed with the program. */
#include "cli/line/installed.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void installed_find(char path[SR_PATH_BYTES], const char *name) {
    char program[SR_PATH_BYTES];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(program, '/');
    if (slash && *name != '/' && access(name, F_OK) != 0) {
        *slash = '\0';
        const int bytes =
            snprintf(path, SR_PATH_BYTES, "%s/%s/%s", program, SOFTRNN_DATA_FROM_PROGRAM, name);
        if (bytes < SR_PATH_BYTES && access(path, F_OK) == 0)
            return;
    }
    snprintf(path, SR_PATH_BYTES, "%s", name);
}
