/* fuzz_file.h: bytes as a file, for parsers that take a path. */
#ifndef SR_TESTS_FUZZ_FILE_H
#define SR_TESTS_FUZZ_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A folder of this process, in memory if possible. */
static inline const char *fuzz_folder(void) {
    static char folder[] = "/dev/shm/softrnn-fuzz-XXXXXX", other[] = "/tmp/softrnn-fuzz-XXXXXX";
    static const char *made;
    if (!made)
        made = mkdtemp(folder) ? folder : mkdtemp(other);
    if (!made)
        abort();
    return made;
}

/* Writes the file `name` of the folder; its path, until the next call. */
static inline const char *fuzz_file(const char *name, const uint8_t *data, size_t size) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || write(file, data, size) != (ssize_t)size)
        abort();
    close(file);
    return path;
}

/* The fuzzer calls it by this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
