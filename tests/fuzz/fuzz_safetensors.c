/* fuzz_safetensors.c: any bytes are a safetensors file or are refused. */
#include "files/safetensors.h"

#include <stdlib.h>

/* The fuzzer calls it by this name. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_safetensors *file;
    if (sr_safetensors_parse(&file, "fuzz", data, size) != SRNN_OK)
        return 0;
    for (size_t i = 0; i < sr_safetensors_count(file); i++) {
        const sr_tensor *tensor = sr_safetensors_at(file, i);
        if (sr_safetensors_find(file, tensor->name) != tensor)
            abort();
        /* Reads every byte of the tensor: a range outside of the input is detected. */
        double *numbers = malloc(tensor->count * sizeof *numbers + 1);
        if (!numbers)
            abort();
        sr_tensor_to_double(numbers, tensor);
        free(numbers);
    }
    sr_safetensors_metadata(file, "format");
    sr_safetensors_free(file);
    return 0;
}
