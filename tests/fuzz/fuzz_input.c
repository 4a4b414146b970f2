/* fuzz_input.c: any bytes as a text, plain or compressed. */
#include "data/text/input.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[1 << 16];
    sr_input *input;
    size_t got;
    if (sr_input_open(&input, fuzz_file("text", data, size)) != SRNN_OK)
        return 0;
    while (sr_input_read(input, text, sizeof text, &got) == SRNN_OK && got > 0) {
    }
    sr_input_free(input);
    return 0;
}
