/* cpu_level.h: the instruction set that kernels are selected for: one choice for attention, row
 * operations and GEMMs.
 *
 * The best that the machine has, unless SOFTRNN_CPU requests a lower one: base, v3 or v4, after the
 * levels of the x86-64 psABI (base is its second); bf16 and amx, which add to v4 what multiplies
 * bf16 numbers. Computations in float are those of v4 there. */
#ifndef SR_BASE_CPU_LEVEL_H
#define SR_BASE_CPU_LEVEL_H

#include "base/status.h"

typedef enum sr_cpu_level {
    SR_CPU_BASE = 0, /* x86-64-v2; on other machines the only one */
    SR_CPU_V3,       /* AVX2, FMA and the rest of x86-64-v3 */
    SR_CPU_V4,       /* AVX-512 F, BW, CD, DQ, VL */
    SR_CPU_BF16,     /* AVX512_BF16 */
    SR_CPU_AMX,      /* AMX_TILE and AMX_BF16 */
} sr_cpu_level;

/* "base", "v3", "v4", "bf16", "amx". */
const char *sr_cpu_level_name(sr_cpu_level level);

/* The best level that this machine supports completely. */
sr_cpu_level sr_cpu_level_machine(void);

/* The level in use. */
sr_cpu_level sr_cpu_level_used(void);

/* Switches to another level, for tests and verify; no better than the machine's. Existing objects
 * such as plans keep theirs. */
void sr_cpu_level_use(sr_cpu_level level);

/* Fails if SOFTRNN_CPU is not a level, or the machine lacks instructions of the lowest one. */
srnn_status sr_cpu_level_check(void);

/* True if SOFTRNN_CPU requests a level. */
bool sr_cpu_level_requested(void);

#endif
