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

/* Bytes of memory that this process may have at most: the machine's, or its control group's limit.
 * Allocations beyond may succeed, and end the process when they are written. */
double sr_memory_bytes(void);

/* Sub-allocates arrays from one block. With base NULL it only measures: `used` is then the size to
 * allocate. */
typedef struct sr_layout {
    char *base;
    size_t used;
    /* For scratch memory that is never copied or zeroed as a whole: with AddressSanitizer, poisoned
     * gaps separate the arrays. */
#ifdef __cplusplus
    bool apart = false; /* so that CUDA code need not set it */
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
