/* rows_v3.c: the vectorised loops for x86-64-v3 (AVX2). */
#define SR_ROWS_TABLE sr_cpu_rows_v3
#include "backend/cpu/rows_loops.h"
