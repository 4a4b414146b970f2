/* moment_files.h (private): the optimizer's moments in a checkpoint. Arrays are named after the
 * weights, so that the files do not depend on the layout in memory or on the number of ranks.
 *
 * One file with whole arrays, or one file per rank with its parts: "mean.NAME@FIRST" is the part of
 * mean.NAME that begins at element FIRST. Any number of ranks can read either. */
#ifndef SR_TRAIN_MOMENT_FILES_H
#define SR_TRAIN_MOMENT_FILES_H

#include "train/trainer.h"

/* The moments that one rank stores. */
typedef struct sr_moment_files {
    const sr_model *model;
    sr_trainer *trainer;
    const sr_ranks *ranks;
} sr_moment_files;

/* Writes this rank's file into the folder, and reads it back. Does nothing if another rank writes
 * the same elements. */
srnn_status sr_moment_files_write(const sr_moment_files *moments, const char *folder);

/* Reads this rank's moments from all files of the folder. */
srnn_status sr_moment_files_read(const sr_moment_files *moments, const char *folder);

#endif
