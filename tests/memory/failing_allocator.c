/* failing_allocator.c: a library to be preloaded: one allocation of a process fails.
 *
 * SOFTRNN_FAIL_AT=N: the Nth does, counted from 1; 0 or not set: none. SOFTRNN_FAIL_COUNT=FILE: their
 * number is written there when the process ends. A process that was forked goes on counting where its
 * parent was. Allocations of libraries in C++ and of their thread runtime are not counted: they end the
 * process when one fails, which no caller can prevent. */
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What glibc calls its own. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_long count;
static long fail_at;
static bool ready;

/* The code of libraries whose allocations are let through. */
enum { MOST_RANGES = 64 };
static struct { uintptr_t begin, end; } ranges[MOST_RANGES];
static int range_count;

static int add_ranges(struct dl_phdr_info *info, size_t size, void *context) {
    static const char *const names[] = {"libdnnl", "libgomp", "libstdc++", "libOpenCL", "ld-linux"};
    (void)size, (void)context;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        for (int i = 0; strstr(info->dlpi_name, names[n]) && i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_LOAD && range_count < MOST_RANGES) {
                ranges[range_count].begin = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                ranges[range_count].end = ranges[range_count].begin + info->dlpi_phdr[i].p_memsz;
                range_count++;
            }
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("SOFTRNN_FAIL_AT");
    fail_at = text ? atol(text) : 0;
    dl_iterate_phdr(add_ranges, NULL);
    ready = true;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("SOFTRNN_FAIL_COUNT");
    char text[32];
    const int descriptor = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666) : -1;
    if (descriptor < 0)
        return;
    const int length = snprintf(text, sizeof text, "%ld\n", atomic_load(&count));
    if (write(descriptor, text, (size_t)length) != length)
        abort();
    close(descriptor);
}

/* True if the allocation asked for from `caller` is the one to fail. */
static bool fails(const void *caller) {
    if (!ready)
        return false;
    for (int i = 0; i < range_count; i++)
        if ((uintptr_t)caller >= ranges[i].begin && (uintptr_t)caller < ranges[i].end)
            return false;
    const bool failing = atomic_fetch_add(&count, 1) + 1 == fail_at;
    if (failing)
        errno = ENOMEM;
    return failing;
}

void *malloc(size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t number, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(number, bytes);
}

void *realloc(void *old, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (fails(__builtin_return_address(0)))
        return ENOMEM;
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}
