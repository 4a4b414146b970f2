/* memory.c: aligned allocation with overflow checks. */
#include "base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

srnn_status sr_alloc(void **out, size_t count, size_t size) {
    *out = NULL;
    if (size != 0 && count > (SIZE_MAX - ALIGNMENT) / size)
        return SR_FAIL(SRNN_ERR_MEMORY, "%zu items of %zu bytes do not fit the address space",
                       count, size);
    size_t bytes = (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *out = aligned_alloc(ALIGNMENT, bytes ? bytes : ALIGNMENT);
    if (!*out)
        return SR_FAIL(SRNN_ERR_MEMORY, "could not allocate %zu bytes", bytes);
    return SRNN_OK;
}

srnn_status sr_alloc_zero(void **out, size_t count, size_t size) {
    SR_TRY(sr_alloc(out, count, size));
    memset(*out, 0, count * size);
    return SRNN_OK;
}

void *sr_layout_take(sr_layout *layout, size_t count, size_t size) {
    size_t start = layout->used;
    layout->used += (count * size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return layout->base ? layout->base + start : NULL;
}
