/* moment_files.h (private): the optimiser's arrays in a checkpoint: as many as the weights, named
 * after them, so that the files say nothing of how a model or its ranks lay them out in memory.
 *
 * One file with whole arrays, or one of each rank with the parts it keeps: "mean.NAME@FIRST" is the
 * part of mean.NAME that begins with its number FIRST. Whatever files there are, any number of
 * ranks reads them. */
#ifndef SR_TRAIN_MOMENT_FILES_H
#define SR_TRAIN_MOMENT_FILES_H

#include "train/trainer.h"

/* What a rank keeps. */
typedef struct sr_moment_files {
    const sr_model *model;
    sr_trainer *trainer;
    const sr_ranks *ranks;
} sr_moment_files;

/* Writes this rank's file into the folder, and reads it back. Does nothing where another rank
 * writes the same numbers. */
srnn_status sr_moment_files_write(const sr_moment_files *moments, const char *folder);

/* Reads what this rank keeps from all files of the folder. */
srnn_status sr_moment_files_read(const sr_moment_files *moments, const char *folder);

#endif
