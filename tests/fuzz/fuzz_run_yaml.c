/* fuzz_run_yaml.c: any bytes as the settings of a run. */
#include "fuzz_file.h"
#include "train/run/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_run_settings settings;
    if (sr_run_settings_create(&settings) == SRNN_OK)
        (void)!sr_run_settings_read(&settings, fuzz_file("run.yaml", data, size));
    sr_run_settings_free(&settings);
    return 0;
}
