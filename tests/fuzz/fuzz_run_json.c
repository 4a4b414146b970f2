/* fuzz_run_json.c: any bytes as the run.json of a checkpoint. */
#include "fuzz_file.h"
#include "train/run/progress.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const sr_run_settings settings = {
        .B = 2, .T = 8, .accumulate = 3, .steps = 10, .identity = "0"};
    sr_progress p;
    (void)fuzz_file("run.json", data, size);
    if (sr_progress_read(&p, &settings, 4, fuzz_folder()) == SRNN_OK &&
        (p.step != 4 || p.tokens != 192 || p.updates + p.skipped != 4 || p.metrics_bytes < 0))
        abort();
    (void)!sr_progress_check_files(fuzz_folder(), &(sr_file_sums_part){0});
    return 0;
}
