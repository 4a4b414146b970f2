/* fuzz_state.c: any bytes as a saved state. */
#include "base/hash.h"
#include "fuzz_file.h"
#include "softrnn.h"

#include <string.h>

enum { CHECKSUM_AT = 8 };

static void set_checksum(uint8_t *bytes, size_t size) {
    memset(bytes + CHECKSUM_AT, 0, sizeof(uint64_t));
    const uint64_t sum = sr_checksum_bytes(sr_hash_add(SR_HASH_BEGIN, size), bytes, size);
    memcpy(bytes + CHECKSUM_AT, &sum, sizeof sum);
}

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
    /* What a fuzzer cannot guess: its length, its beginning, and its checksum. */
    if (!bytes || srnn_state_save(state, bytes, whole) != SRNN_OK)
        abort();
    memcpy(bytes + whole - (size < whole ? size : whole), data, size < whole ? size : whole);
    set_checksum(bytes, whole);
    (void)srnn_state_load(state, bytes, whole);
    return 0;
}
