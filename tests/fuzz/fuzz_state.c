/* fuzz_state.c: any bytes as a saved state. */
#include "fuzz_file.h"
#include "softrnn.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static srnn_state *state;
    static uint8_t *bytes;
    if (!state) {
        srnn_problem problem = {.B = 1, .H = 1, .T = 1, .D = 2};
        if (srnn_attention_parse(&problem.attention, "order:2") != SRNN_OK ||
            srnn_state_create(&state, &problem) != SRNN_OK)
            abort();
        bytes = malloc(srnn_state_saved_bytes(state));
    }
    const size_t whole = srnn_state_saved_bytes(state);
    (void)srnn_state_load(state, data, size);
    /* What a fuzzer does not guess: its length, and its beginning. */
    if (!bytes || srnn_state_save(state, bytes, whole) != SRNN_OK)
        abort();
    memcpy(bytes + whole - (size < whole ? size : whole), data, size < whole ? size : whole);
    (void)srnn_state_load(state, bytes, whole);
    return 0;
}
