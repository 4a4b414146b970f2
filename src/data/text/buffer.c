/* buffer.c: growable arrays of token ids and of bytes. */
#include "data/text/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 64 };

/* Doubles, so that a long series of additions costs linear time. */
static srnn_status grow(void **data, size_t *capacity, size_t count, size_t more, size_t size) {
    if (more <= *capacity - count)
        return SRNN_OK;
    size_t limit = SIZE_MAX / 2 / size;
    if (more > limit || count > limit - more)
        return SR_FAIL(SRNN_ERR_MEMORY,
                       "a buffer of %zu + %zu items does not fit the address space", count, more);
    size_t wanted = *capacity ? *capacity * 2 : FIRST_CAPACITY;
    if (wanted < count + more)
        wanted = count + more;
    void *grown = realloc(*data, wanted * size);
    if (!grown)
        return SR_FAIL(SRNN_ERR_MEMORY, "could not grow a buffer to %zu bytes", wanted * size);
    *data = grown;
    *capacity = wanted;
    return SRNN_OK;
}

srnn_status sr_tokens_reserve(sr_tokens *tokens, size_t more) {
    void *data = tokens->ids;
    srnn_status status = grow(&data, &tokens->capacity, tokens->count, more, sizeof *tokens->ids);
    tokens->ids = data;
    return status;
}

srnn_status sr_bytes_reserve(sr_bytes *bytes, size_t more) {
    void *data = bytes->data;
    srnn_status status = grow(&data, &bytes->capacity, bytes->count, more, 1);
    bytes->data = data;
    return status;
}

srnn_status sr_tokens_push(sr_tokens *tokens, uint32_t id) {
    if (tokens->count == tokens->capacity)
        SR_TRY(sr_tokens_reserve(tokens, 1));
    tokens->ids[tokens->count++] = id;
    return SRNN_OK;
}

srnn_status sr_bytes_append(sr_bytes *bytes, const char *data, size_t count) {
    if (count == 0)
        return SRNN_OK;
    SR_TRY(sr_bytes_reserve(bytes, count));
    memcpy(bytes->data + bytes->count, data, count);
    bytes->count += count;
    return SRNN_OK;
}

void sr_tokens_free(sr_tokens *tokens) {
    free(tokens->ids);
    *tokens = (sr_tokens){0};
}

void sr_bytes_free(sr_bytes *bytes) {
    free(bytes->data);
    *bytes = (sr_bytes){0};
}
