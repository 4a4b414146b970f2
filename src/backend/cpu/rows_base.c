/* rows_base.c: the vectorised loops for any machine. */
#define SR_ROWS_TABLE sr_cpu_rows_base
#include "backend/cpu/rows_loops.h"
