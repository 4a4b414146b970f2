/* batches.h (private): training batches read from a file, in file order. */
#ifndef SR_TRAIN_BATCHES_H
#define SR_TRAIN_BATCHES_H

#include "data/rows/source.h"

/* A source of the rows of tensor `ids` (steps, B, T+1) in a safetensors file: step s has the rows
 * ids[s]. `B` receives B. There is no validation split. */
srnn_status sr_batches_open(sr_source **source, int *B, const char *path);

#endif
