/* failing.h: makes one call of a program fail: code shared by the preloaded libraries.
 *
 * SOFTRNN_FAIL_AT=N: the Nth call fails, counted from 1 over the process and its children; 0 or not
 * set: none. SOFTRNN_FAIL_COUNT=FILE: the number of calls is written there when the process ends,
 * and before it the name of the one that failed. */
#ifndef SR_TESTS_FAILING_H
#define SR_TESTS_FAILING_H

#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Shared by a process and its children. */
typedef struct failing {
    atomic_long count;
    const char *_Atomic failed; /* the name of the call */
} failing;

static failing *shared; /* NULL until counting begins */
static long fail_at;

/* The code of some libraries. */
enum { MOST_RANGES = 64 };
static struct { uintptr_t begin, end; } ranges[MOST_RANGES];
static int range_count;

static inline void add_range(const struct dl_phdr_info *info) {
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && range_count < MOST_RANGES) {
            ranges[range_count].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            ranges[range_count].end = ranges[range_count].begin + info->dlpi_phdr[i].p_memsz;
            range_count++;
        }
}

static inline bool in_ranges(const void *caller) {
    for (int i = 0; i < range_count; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end)
            return true;
    return false;
}

/* Call first, with a callback that adds the ranges of the relevant libraries. */
static inline void failing_begin(int (*choose)(struct dl_phdr_info *, size_t, void *)) {
    const char *text = getenv("SOFTRNN_FAIL_AT");
    fail_at = text ? atol(text) : 0;
    dl_iterate_phdr(choose, NULL);
    void *memory = (void *)syscall(SYS_mmap, NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared = memory == MAP_FAILED ? NULL : memory;
    if (!shared)
        abort();
}

/* Uses system calls only, as library calls may be intercepted. */
static inline void failing_end(void) {
    const char *path = getenv("SOFTRNN_FAIL_COUNT"), *name = atomic_load(&shared->failed);
    char text[64];
    const long file =
        path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (file < 0)
        return;
    const int length =
        snprintf(text, sizeof text, "%s %ld\n", name ? name : "none", atomic_load(&shared->count));
    if (syscall(SYS_write, file, text, (size_t)length) != length)
        abort();
    syscall(SYS_close, file);
}

/* Counts a call; returns its number. */
static inline long failing_count(void) {
    return atomic_fetch_add(&shared->count, 1) + 1;
}

#endif
