/* module.h (private): detects an MPI launcher and loads the transport module. */
#ifndef SR_RANKS_MODULE_H
#define SR_RANKS_MODULE_H

#include "base/status.h"
#include "ranks/link.h"

#include <stdbool.h>

/* *several: an MPI launcher started this process. Fails if Slurm started several processes without
 * MPI. */
srnn_status sr_ranks_started(bool *several);

/* Loads softrnn_mpi.so and opens its link. */
srnn_status sr_ranks_module_open(void **module, sr_link **link);

#endif
