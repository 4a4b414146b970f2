/* memory.c: one address range, cut into allocations. */
#include "device/cuda/emulator/memory.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { PIECE_ALIGNMENT = 256, PAGE = 4096 };

/* An allocation ends where its pages end, as nearly as its alignment allows, so that an overrun
 * hits protected pages. Allocations are sorted by address, with a protected page between them. */
typedef struct piece {
    char *start, *pages;
    size_t bytes, page_bytes;
} piece;

static char *base;
static struct sigaction faulted_before;
static piece *pieces;
static size_t piece_count, piece_capacity, used_bytes;
static int opened;

static void say_touched(int signal, siginfo_t *info, void *context) {
    static const char text[] =
        "CUDA emulator: the host touched memory of the GPU; copy it, or launch a kernel\n";
    static const char wild[] = "CUDA emulator: an access beyond the GPU's memory\n";
    (void)context;
    if (sr_emulator_memory_has(info->si_addr)) {
        const ssize_t written = opened > 0 ? write(STDERR_FILENO, wild, sizeof wild - 1)
                                           : write(STDERR_FILENO, text, sizeof text - 1);
        (void)written;
    }
    /* On return the instruction faults again, with the previous handler. */
    sigaction(signal, &faulted_before, NULL);
}

static bool memory_reserve(void) {
    if (base != NULL)
        return true;
    void *range = mmap(NULL, SR_EMULATOR_MEMORY_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return false;
    base = range;
    /* Every launch changes the protection of all pages, of which a workspace has thousands. */
    madvise(range, SR_EMULATOR_MEMORY_BYTES, MADV_HUGEPAGE);
    struct sigaction action = {.sa_sigaction = say_touched, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, &faulted_before);
    return true;
}

void sr_emulator_memory_open(void) {
    if (opened++ > 0)
        return;
    for (size_t i = 0; i < piece_count; i++)
        mprotect(pieces[i].pages, pieces[i].page_bytes, PROT_READ | PROT_WRITE);
}

void sr_emulator_memory_close(void) {
    if (--opened > 0 || piece_count == 0)
        return;
    const piece *last = &pieces[piece_count - 1];
    mprotect(base, (size_t)(last->pages - base) + last->page_bytes, PROT_NONE);
}

/* Where this many bytes of pages fit with a protected page on both sides, and before which
 * allocation; NULL: nowhere. */
static char *gap_find(size_t page_bytes, size_t *before) {
    char *from = base + PAGE;
    for (*before = 0; *before < piece_count; ++*before) {
        const piece *next = &pieces[*before];
        if (next->pages - from >= (ptrdiff_t)(page_bytes + PAGE))
            break;
        from = next->pages + next->page_bytes + PAGE;
    }
    const size_t left = SR_EMULATOR_MEMORY_BYTES - (size_t)(from - base);
    return page_bytes + PAGE <= left ? from : NULL;
}

static bool pieces_grow(void) {
    if (piece_count < piece_capacity)
        return true;
    const size_t capacity = piece_capacity > 0 ? 2 * piece_capacity : 64;
    piece *more = realloc(pieces, capacity * sizeof *more);
    if (more == NULL)
        return false;
    pieces = more;
    piece_capacity = capacity;
    return true;
}

void *sr_emulator_memory_take(size_t bytes) {
    if (bytes > SR_EMULATOR_MEMORY_BYTES || !memory_reserve() || !pieces_grow())
        return NULL;
    const size_t page_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    size_t before;
    char *pages = gap_find(page_bytes, &before);
    if (pages == NULL)
        return NULL;
    const size_t before_start = (page_bytes - bytes) / PIECE_ALIGNMENT * PIECE_ALIGNMENT;
    char *start = pages + before_start;
    memmove(pieces + before + 1, pieces + before, (piece_count - before) * sizeof *pieces);
    pieces[before] = (piece){start, pages, bytes, page_bytes};
    piece_count++;
    used_bytes += bytes;
    sr_emulator_memory_open();
    ASAN_UNPOISON_MEMORY_REGION(pages, page_bytes);
    memset(pages, 0xff, page_bytes);
    ASAN_POISON_MEMORY_REGION(pages, before_start);
    ASAN_POISON_MEMORY_REGION(start + bytes, page_bytes - before_start - bytes);
    sr_emulator_memory_close();
    return start;
}

/* The allocation that contains the address; NULL: none. */
static const piece *piece_find(const void *address) {
    const char *at = address;
    size_t low = 0, high = piece_count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (pieces[middle].start + pieces[middle].bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < piece_count && pieces[low].start <= at ? &pieces[low] : NULL;
}

bool sr_emulator_memory_give(void *memory) {
    for (size_t i = 0; i < piece_count; i++) {
        if (pieces[i].start != memory)
            continue;
        madvise(pieces[i].pages, pieces[i].page_bytes, MADV_DONTNEED);
        mprotect(pieces[i].pages, pieces[i].page_bytes, PROT_NONE);
        used_bytes -= pieces[i].bytes;
        memmove(pieces + i, pieces + i + 1, (piece_count - i - 1) * sizeof *pieces);
        piece_count--;
        return true;
    }
    return false;
}

bool sr_emulator_memory_has(const void *address) {
    const char *at = address;
    return base != NULL && at >= base && at < base + SR_EMULATOR_MEMORY_BYTES;
}

bool sr_emulator_memory_holds(const void *address, size_t bytes) {
    const piece *p = piece_find(address);
    return p != NULL && bytes <= p->bytes - (size_t)((const char *)address - p->start);
}

void sr_emulator_memory_give_all(void) {
    while (piece_count > 0)
        sr_emulator_memory_give(pieces[0].start);
}

size_t sr_emulator_memory_used(void) {
    return used_bytes;
}
