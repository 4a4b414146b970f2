/* fuzz_records.c: any bytes as the records of a run. */
#include "fuzz_file.h"
#include "study/results/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const names[] = {"metrics.jsonl", "timings.jsonl", "result.json"};
    sr_record record;
    sr_result result;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        (void)fuzz_file(names[i], data, size);
    (void)!sr_record_read(&record, fuzz_folder());
    sr_record_free(&record);
    (void)!sr_result_read(&result, fuzz_folder());
    return 0;
}
