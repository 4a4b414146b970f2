/* whole_file.h: a file's content, decompressed. */
#ifndef SR_CLI_LINE_WHOLE_FILE_H
#define SR_CLI_LINE_WHOLE_FILE_H

#include "data/text/buffer.h"

/* Appends the content of a file to `text`. */
srnn_status whole_file_read(sr_bytes *text, const char *path);

#endif
