/* cpu_level.c: the instruction set that kernels are selected for. */
#include "base/cpu_level.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {"base", "v3", "v4", "bf16", "amx"};

/* One more than the level in use; 0: not yet known. */
static atomic_int used;

const char *sr_cpu_level_name(sr_cpu_level level) {
    return names[level];
}

#if defined(__x86_64__)
/* All that a compiler may use for a level, as the psABI lists it. */
static bool has_v2(void) {
    return __builtin_cpu_supports("sse3") && __builtin_cpu_supports("ssse3") &&
           __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
           __builtin_cpu_supports("popcnt");
}

/* F16C, LZCNT and MOVBE by cpuid: not every compiler supports their names. */
static bool has_v3_scalars(void) {
    unsigned a, b, c, d;
    const unsigned movbe = 1U << 22, f16c = 1U << 29, osxsave = 1U << 27, lzcnt = 1U << 5;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    const bool first = (c & movbe) && (c & f16c) && (c & osxsave);
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(0x80000001U), "c"(0));
    return first && (c & lzcnt);
}

static bool has_v3(void) {
    return has_v2() && __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("fma") && has_v3_scalars();
}

static bool has_v4(void) {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

/* AMX_TILE and AMX_BF16, of which not every compiler knows the names, and the tiles' registers,
 * which Linux gives to a process that requests them. */
static bool has_amx(void) {
    unsigned a, b, c, d, enabled;
    const unsigned bf16 = 1U << 22, tile = 1U << 24, osxsave = 1U << 27, registers = 3U << 17;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(1), "c"(0));
    if (!(c & osxsave))
        return false;
    __asm__("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(7), "c"(0));
    if (!(d & bf16) || !(d & tile))
        return false;
    __asm__("xgetbv" : "=a"(enabled), "=d"(d) : "c"(0));
    if ((enabled & registers) != registers)
        return false;
#ifdef __linux__
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
#else
    return false;
#endif
}

static sr_cpu_level level_of_v4(void) {
    if (!__builtin_cpu_supports("avx512bf16"))
        return SR_CPU_V4;
    return has_amx() ? SR_CPU_AMX : SR_CPU_BF16;
}

sr_cpu_level sr_cpu_level_machine(void) {
    __builtin_cpu_init();
    return has_v4() ? level_of_v4() : has_v3() ? SR_CPU_V3 : SR_CPU_BASE;
}
#else
static bool has_v2(void) {
    return true;
}

sr_cpu_level sr_cpu_level_machine(void) {
    return SR_CPU_BASE;
}
#endif

bool sr_cpu_level_requested(void) {
    const char *word = getenv("SOFTRNN_CPU");
    return word && *word;
}

/* The level that SOFTRNN_CPU names; false if it names none. */
static bool requested_level(sr_cpu_level *level) {
    for (int n = SR_CPU_BASE; n <= SR_CPU_AMX; n++)
        if (strcmp(names[n], getenv("SOFTRNN_CPU")) == 0) {
            *level = (sr_cpu_level)n;
            return true;
        }
    return false;
}

static sr_cpu_level choose(void) {
    const sr_cpu_level best = sr_cpu_level_machine();
    sr_cpu_level requested;
    return sr_cpu_level_requested() && requested_level(&requested) && requested < best ? requested
                                                                                       : best;
}

sr_cpu_level sr_cpu_level_used(void) {
    int level = atomic_load(&used);
    if (!level) {
        level = (int)choose() + 1;
        atomic_store(&used, level);
    }
    return (sr_cpu_level)(level - 1);
}

void sr_cpu_level_use(sr_cpu_level level) {
    const sr_cpu_level best = sr_cpu_level_machine();
    atomic_store(&used, (int)(level < best ? level : best) + 1);
}

srnn_status sr_cpu_level_check(void) {
    sr_cpu_level level;
    if (!has_v2())
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "this processor has no SSE4.2, which the kernels are compiled for");
    if (sr_cpu_level_requested() && !requested_level(&level))
        return SR_FAIL(SRNN_ERR_ARGUMENT,
                       "SOFTRNN_CPU=%s: the levels are base, v3, v4, bf16 and amx",
                       getenv("SOFTRNN_CPU"));
    return SRNN_OK;
}
