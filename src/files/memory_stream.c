/* memory_stream.c: open_memstream that reports running out of memory. */
#include "files/memory_stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct memory_stream {
    char **text;
    size_t *bytes;
    size_t capacity;
    bool failed; /* sticky */
} memory_stream;

static bool grow(memory_stream *stream, size_t more) {
    const size_t needed = *stream->bytes + more + 1;
    if (needed <= stream->capacity)
        return true;
    const size_t capacity = needed + needed / 2;
    char *grown = realloc(*stream->text, capacity);
    if (!grown)
        return false;
    *stream->text = grown;
    stream->capacity = capacity;
    return true;
}

static ssize_t write_more(void *cookie, const char *data, size_t count) {
    memory_stream *stream = cookie;
    if (stream->failed || !grow(stream, count)) {
        stream->failed = true;
        errno = ENOMEM;
        return 0; /* means failure here */
    }
    memcpy(*stream->text + *stream->bytes, data, count);
    *stream->bytes += count;
    (*stream->text)[*stream->bytes] = '\0';
    return (ssize_t)count;
}

/* For ftell only. */
static int tell(void *cookie, off64_t *offset, int whence) {
    const memory_stream *stream = cookie;
    if (*offset != 0 || whence != SEEK_CUR)
        return -1;
    *offset = (off64_t)*stream->bytes;
    return 0;
}

static int end(void *cookie) {
    memory_stream *stream = cookie;
    const bool failed = stream->failed;
    free(stream);
    if (failed)
        errno = ENOMEM;
    return failed ? -1 : 0;
}

FILE *sr_memory_stream(char **text, size_t *bytes) {
    memory_stream *stream = malloc(sizeof *stream);
    *text = NULL;
    *bytes = 0;
    if (!stream)
        return NULL;
    *stream = (memory_stream){.text = text, .bytes = bytes};
    FILE *out = NULL;
    if (grow(stream, 0)) {
        **text = '\0';
        out = fopencookie(stream, "w",
                          (cookie_io_functions_t){.write = write_more, .seek = tell, .close = end});
    }
    if (!out) {
        free(*text);
        *text = NULL;
        free(stream);
    }
    return out;
}
