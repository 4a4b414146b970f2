/* rows_best.c: which copy of the vectorised loops this machine runs. */
#include "backend/cpu/rows.h"

extern const sr_cpu_rows sr_cpu_rows_base;
#ifdef __x86_64__
extern const sr_cpu_rows sr_cpu_rows_v3, sr_cpu_rows_v4;

static const sr_cpu_rows *choose(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return &sr_cpu_rows_base;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
    return wide ? &sr_cpu_rows_v4 : &sr_cpu_rows_v3;
}
#else
static const sr_cpu_rows *choose(void) {
    return &sr_cpu_rows_base;
}
#endif

const sr_cpu_rows *sr_cpu_rows_best(void) {
    return choose();
}
