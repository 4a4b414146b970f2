/* fuzz_tokenizer_config.c: any bytes as the tokenizer_config.json next to a tokenizer. */
#include "data/tokenizer/tokenizer.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char plain[] =
        "{\"added_tokens\": [{\"id\": 2, \"content\": \"<s>\", \"special\": true}], "
        "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}";
    sr_tokenizer *tokenizer;
    (void)fuzz_file("tokenizer_config.json", data, size);
    const char *path = fuzz_file("tokenizer.json", (const uint8_t *)plain, sizeof plain - 1);
    if (sr_tokenizer_load(&tokenizer, path) == SRNN_OK)
        sr_tokenizer_free(tokenizer);
    return 0;
}
