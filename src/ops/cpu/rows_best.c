/* rows_best.c: selects the copy of the vectorised loops, and of the products in bf16. */
#include "ops/cpu/pairs.h"
#include "ops/cpu/rows.h"

#include "base/cpu_level.h"

extern const sr_cpu_rows sr_cpu_rows_base;
#ifdef __x86_64__
extern const sr_cpu_rows sr_cpu_rows_v3, sr_cpu_rows_v4;
extern const sr_cpu_pairs sr_cpu_pairs_bf16, sr_cpu_pairs_amx;
#endif

const sr_cpu_rows *sr_cpu_rows_best(void) {
#ifdef __x86_64__
    switch (sr_cpu_level_used()) {
    case SR_CPU_AMX:
    case SR_CPU_BF16:
    case SR_CPU_V4:
        return &sr_cpu_rows_v4;
    case SR_CPU_V3:
        return &sr_cpu_rows_v3;
    case SR_CPU_BASE:
        break;
    }
#endif
    return &sr_cpu_rows_base;
}

const sr_cpu_pairs *sr_cpu_pairs_best(void) {
#ifdef __x86_64__
    switch (sr_cpu_level_used()) {
    case SR_CPU_AMX:
        return &sr_cpu_pairs_amx;
    case SR_CPU_BF16:
        return &sr_cpu_pairs_bf16;
    case SR_CPU_V4:
    case SR_CPU_V3:
    case SR_CPU_BASE:
        break;
    }
#endif
    return NULL;
}
