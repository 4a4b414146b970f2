/* fuzz_model_llama2c.c: any bytes as a model of llama2.c. */
#include "fuzz_file.h"
#include "model/files/model_folder.h"
#include "ops/backend.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sr_backend *backend;
    sr_model *model;
    if (!backend && sr_backend_create(&backend, &(sr_backend_settings){.threads = 1}) != SRNN_OK)
        abort();
    if (sr_model_load_llama2c(&model, backend, fuzz_file("model.bin", data, size)) == SRNN_OK)
        sr_model_free(model);
    return 0;
}
