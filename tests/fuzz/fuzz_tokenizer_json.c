/* fuzz_tokenizer_json.c: any bytes are a tokenizer.json or are refused. */
#include "fuzz_tokenizer.h"

/* The fuzzer calls it by this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_tokenizer *tokenizer;
    if (sr_tokenizer_read_json(&tokenizer, (const char *)data, size, "fuzz") == SRNN_OK)
        fuzz_tokenizer(tokenizer, (const char *)data, size);
    return 0;
}
