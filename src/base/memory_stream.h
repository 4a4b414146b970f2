/* memory_stream.h: a stream into memory that does not lose text without a word. */
#ifndef SR_BASE_MEMORY_STREAM_H
#define SR_BASE_MEMORY_STREAM_H

#include <stddef.h>
#include <stdio.h>

/* As open_memstream: *text (with a zero behind it; free() it) and *bytes hold what was written when
 * the stream is flushed or closed; NULL if memory is short. Where open_memstream drops text for
 * which there is no memory and closes well, this one fails then, and in every fflush and fclose
 * after it. */
FILE *sr_memory_stream(char **text, size_t *bytes);

#endif
