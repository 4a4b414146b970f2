/* module.h (private): was the program started as one of several ranks, and what links them. */
#ifndef SR_RANKS_MODULE_H
#define SR_RANKS_MODULE_H

#include "base/status.h"
#include "ranks/link.h"

#include <stdbool.h>

/* *several: a launcher of MPI started this process. Fails if Slurm started several that do not know
 * of each other. */
srnn_status sr_ranks_started(bool *several);

/* Loads softrnn_mpi.so and opens its link. */
srnn_status sr_ranks_module_open(void **module, sr_link **link);

#endif
