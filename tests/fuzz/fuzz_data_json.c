/* fuzz_data_json.c: any bytes as the description of prepared data. */
#include "data/shards/manifest.h"
#include "fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_manifest manifest;
    (void)fuzz_file(SR_MANIFEST_NAME, data, size);
    if (sr_manifest_read(&manifest, fuzz_folder()) == SRNN_OK)
        sr_manifest_free(&manifest);
    return 0;
}
