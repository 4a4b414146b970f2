/* fuzz_pattern.c: any bytes as a regular expression of a tokenizer. */
#include "data/text/pattern.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_pattern *pattern;
    if (sr_pattern_create_regex(&pattern, (const char *)data, size) == SRNN_OK)
        sr_pattern_free(pattern);
    return 0;
}
