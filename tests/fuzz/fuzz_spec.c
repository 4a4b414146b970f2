/* fuzz_spec.c: any text is a variant whose canonical text reads back the same, or is refused. */
#include "softrnn.h"

#include <stdlib.h>
#include <string.h>

/* The fuzzer calls it by this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    if (!text)
        abort();
    memcpy(text, data, size);
    text[size] = '\0';
    srnn_attention first, second;
    if (srnn_attention_parse(&first, text) == SRNN_OK) {
        char printed[512], again[512];
        if (srnn_attention_print(printed, sizeof printed, &first) >= sizeof printed ||
            srnn_attention_parse(&second, printed) != SRNN_OK)
            abort();
        srnn_attention_print(again, sizeof again, &second);
        if (strcmp(printed, again) != 0 || first.clamp != second.clamp ||
            first.epsilon != second.epsilon)
            abort();
        srnn_attention_state_numbers(&first, 256, 256);
    }
    free(text);
    return 0;
}
