/* fuzz_config.c: any bytes as the config.json of a model. */
#include "fuzz_file.h"
#include "model/config/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_model_config config;
    if (sr_model_config_read(&config, fuzz_file("config.json", data, size)) == SRNN_OK) {
        if (sr_model_config_check(&config) != SRNN_OK)
            abort();
        const sr_family *family; /* what was read can be written for other programs */
        if (sr_model_config_public(&family, &config) != SRNN_OK)
            abort();
        sr_model_config_free(&config);
    }
    return 0;
}
