/* whole_file.c: a file's content, decompressed. */
#include "cli/line/whole_file.h"

#include "data/text/input.h"

srnn_status whole_file_read(sr_bytes *text, const char *path) {
    enum { BLOCK = 1 << 20 };
    sr_input *input;
    size_t got = 0;
    SR_TRY(sr_input_open(&input, path));
    srnn_status status;
    do {
        status = sr_bytes_reserve(text, BLOCK);
        if (status == SRNN_OK)
            status = sr_input_read(input, text->data + text->count, BLOCK, &got);
        if (status == SRNN_OK)
            text->count += got;
    } while (status == SRNN_OK && got > 0);
    sr_input_free(input);
    return status;
}
