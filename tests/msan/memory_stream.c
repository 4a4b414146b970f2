/* memory_stream.c: files/memory_stream.c for MemorySanitizer. */
#include "files/memory_stream.h"

FILE *sr_memory_stream(char **text, size_t *bytes) {
    return open_memstream(text, bytes);
}
