/* failing_allocator.c: a library to be preloaded: one allocation of a program fails (failing.h says
 * which).
 *
 * Allocations of libraries in C++ and of their thread runtime are not counted: they end the process
 * when one fails, which no caller can prevent. */
#include "failing.h"

#include <errno.h>

/* glibc's own functions. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

/* Adds the libraries whose allocations never fail. */
static int choose(struct dl_phdr_info *info, size_t size, void *context) {
    static const char *const names[] = {"libdnnl", "libgomp", "libstdc++", "libOpenCL", "ld-linux"};
    (void)size, (void)context;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (strstr(info->dlpi_name, names[n]))
            add_range(info);
    return 0;
}

__attribute__((constructor)) static void begin(void) {
    failing_begin(choose);
}

__attribute__((destructor)) static void end(void) {
    failing_end();
}

/* True if the allocation by `caller` is the one to fail. */
static bool fails(const void *caller) {
    if (!shared || in_ranges(caller) || failing_count() != fail_at)
        return false;
    atomic_store(&shared->failed, "allocation");
    errno = ENOMEM;
    return true;
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
