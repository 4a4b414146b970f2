/* rows_v4.c: the vectorised loops for x86-64-v4 (AVX-512). */
#define SR_ROWS_TABLE sr_cpu_rows_v4
#include "backend/cpu/rows_loops.h"
