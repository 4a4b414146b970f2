/* fuzz_study_records.c: any bytes as the plan and the summary of a study, for a report. */
#include "fuzz_file.h"
#include "report/records/records.h"

#include <string.h>

/* The part before a zero is study.json, the rest summary.json; without one, both are all of it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_records records;
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t first = zero ? (size_t)(zero - data) : size;
    (void)fuzz_file("study.json", data, first);
    (void)fuzz_file("summary.json", zero ? zero + 1 : data, zero ? size - first - 1 : size);
    if (sr_records_read(&records, fuzz_folder()) == SRNN_OK)
        sr_records_free(&records);
    return 0;
}
