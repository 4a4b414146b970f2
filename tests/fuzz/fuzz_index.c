/* fuzz_index.c: any bytes as the index of a model's files. */
#include "fuzz_file.h"
#include "model/files/weight_files.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_weight_files files;
    (void)fuzz_file("model.safetensors.index.json", data, size);
    if (sr_weight_files_open(&files, fuzz_folder()) == SRNN_OK)
        sr_weight_files_close(&files);
    return 0;
}
