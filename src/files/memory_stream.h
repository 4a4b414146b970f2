/* memory_stream.h: open_memstream that reports running out of memory. */
#ifndef SR_FILES_MEMORY_STREAM_H
#define SR_FILES_MEMORY_STREAM_H

#include <stddef.h>
#include <stdio.h>

/* Like open_memstream: *text (zero-terminated; free() it) and *bytes are valid when the stream is
 * flushed or closed; NULL if memory runs out. open_memstream drops text for which there is no
 * memory and still closes successfully; this one fails, and so does every later fflush and
 * fclose. */
FILE *sr_memory_stream(char **text, size_t *bytes);

#endif
