/* memory.c: aligned allocation with overflow checks. */
#include "base/memory.h"

#include "base/cpu_quota.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define WATCHED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WATCHED
#endif
#endif
#ifdef WATCHED
#include <sanitizer/asan_interface.h>
#endif

enum { ALIGNMENT = 64, LARGE_PAGE = 1 << 21 };

/* Requests huge pages, which the system may ignore: row-wise access would miss the TLB at every
 * small page. */
static void advise_huge_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t first = ((uintptr_t)memory + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    const uintptr_t past = ((uintptr_t)memory + bytes) / LARGE_PAGE * LARGE_PAGE;
    if (first < past)
        (void)madvise((void *)first, past - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

srnn_status sr_alloc(void **out, size_t count, size_t size) {
    *out = NULL;
    if (size != 0 && count > (SIZE_MAX - ALIGNMENT) / size)
        return SR_FAIL(SRNN_ERR_MEMORY, "%zu items of %zu bytes do not fit the address space",
                       count, size);
    size_t bytes = (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *out = aligned_alloc(ALIGNMENT, bytes ? bytes : ALIGNMENT);
    if (!*out)
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu bytes", bytes);
    advise_huge_pages(*out, bytes);
    return SRNN_OK;
}

srnn_status sr_alloc_zero(void **out, size_t count, size_t size) {
    SR_TRY(sr_alloc(out, count, size));
    memset(*out, 0, count * size);
    return SRNN_OK;
}

double sr_memory_bytes(void) {
    const double pages = (double)sysconf(_SC_PHYS_PAGES), size = (double)sysconf(_SC_PAGESIZE);
    const double whole = pages > 0 && size > 0 ? pages * size : (double)INFINITY;
    return fmin(whole, sr_memory_quota("/sys/fs/cgroup", "/proc/self/cgroup"));
}

/* Adds a poisoned gap after the `bytes` at `start`; memory may still be poisoned by an earlier
 * layout. */
static void set_apart(sr_layout *layout, size_t start, size_t bytes) {
#ifdef WATCHED
    layout->used += ALIGNMENT;
    if (layout->base) {
        ASAN_UNPOISON_MEMORY_REGION(layout->base + start, bytes);
        ASAN_POISON_MEMORY_REGION(layout->base + start + bytes, layout->used - start - bytes);
    }
#else
    (void)layout, (void)start, (void)bytes;
#endif
}

void *sr_layout_take(sr_layout *layout, size_t count, size_t size) {
    const size_t start = layout->used, bytes = count * size;
    layout->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (layout->apart)
        set_apart(layout, start, bytes);
    return layout->base ? layout->base + start : NULL;
}
