/* memory.h: aligned allocation with overflow checks. */
#ifndef SR_BASE_MEMORY_H
#define SR_BASE_MEMORY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* *out = count * size bytes, 64-byte aligned, uninitialised; free with free().
 * A zero count gives a valid pointer. Fails with SRNN_ERR_MEMORY on overflow or exhaustion. */
srnn_status sr_alloc(void **out, size_t count, size_t size);

/* The same, zeroed. */
srnn_status sr_alloc_zero(void **out, size_t count, size_t size);

/* Lays arrays out in one block. With base NULL it only measures: `used` is then the size to
 * allocate. */
typedef struct sr_layout {
    char *base;
    size_t used;
    /* Scratch, nothing that is copied or zeroed whole: in a build with AddressSanitizer its arrays
     * stand apart, and what lies between them may not be touched. */
#ifdef __cplusplus
    bool apart = false; /* kernels for GPUs need not say so */
#else
    bool apart;
#endif
} sr_layout;

/* The next count * size bytes, 64-byte aligned; NULL while measuring. */
void *sr_layout_take(sr_layout *layout, size_t count, size_t size);

#ifdef __cplusplus
}
#endif

#endif
