/* fuzz_tokenizer_llama2c.c: any bytes are a llama2.c tokenizer or are refused. */
#include "fuzz_tokenizer.h"

/* The fuzzer calls it by this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_tokenizer *tokenizer;
    if (sr_tokenizer_read_llama2c(&tokenizer, (const char *)data, size, "fuzz") == SRNN_OK)
        fuzz_tokenizer(tokenizer, (const char *)data, size);
    return 0;
}
