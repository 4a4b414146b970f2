/* buffer.h: growable arrays of token ids and of bytes. */
#ifndef SR_DATA_TEXT_BUFFER_H
#define SR_DATA_TEXT_BUFFER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

/* { 0 } is empty; reuse by setting count to 0; free it with its function below. */
typedef struct sr_tokens {
    uint32_t *ids; /* (count) */
    size_t count, capacity;
} sr_tokens;

typedef struct sr_bytes {
    char *data; /* (count), not terminated; NULL until something is added */
    size_t count, capacity;
} sr_bytes;

/* Ensures capacity for `more` items past count. */
srnn_status sr_tokens_reserve(sr_tokens *tokens, size_t more);
srnn_status sr_bytes_reserve(sr_bytes *bytes, size_t more);

srnn_status sr_tokens_push(sr_tokens *tokens, uint32_t id);
srnn_status sr_bytes_append(sr_bytes *bytes, const char *data, size_t count);

/* Releases the memory and makes the buffer empty. */
void sr_tokens_free(sr_tokens *tokens);
void sr_bytes_free(sr_bytes *bytes);

#endif
