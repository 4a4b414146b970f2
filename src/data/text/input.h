/* input.h: the bytes of a file, decompressed while they are read. */
#ifndef SR_DATA_TEXT_INPUT_H
#define SR_DATA_TEXT_INPUT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A file that is plain, gzip, zstd or xz; detected from its first bytes, not its name. Compressed
 * files may consist of several members one after the other, as `cat a.gz b.gz` gives. */
typedef struct sr_input sr_input;

srnn_status sr_input_open(sr_input **input, const char *path);
void sr_input_free(sr_input *input);

/* Reads 1 .. size bytes (size > 0); *got is 0 only at the end of the file. Compressed data that is
 * broken or cut off fails with SRNN_ERR_FORMAT and the position in the file. */
srnn_status sr_input_read(sr_input *input, void *bytes, size_t size, size_t *got);

/* True if the file is not compressed. */
bool sr_input_is_plain(const sr_input *input);

/* Bytes of the file read so far, before decompression. */
int64_t sr_input_position(const sr_input *input);

#endif
