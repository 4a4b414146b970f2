/* fuzz_study.c: libFuzzer program: any bytes as a study's file. */
#include "study/plan/study.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sr_study study;
    (void)sr_study_read(&study, "fuzz", (const char *)data, size);
    sr_study_free(&study);
    return 0;
}
