/* tensorboard.h (private): TensorBoard's event files: scalars and texts. */
#ifndef SR_TRAIN_RUN_TENSORBOARD_H
#define SR_TRAIN_RUN_TENSORBOARD_H

#include "train/run/log_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if this many bytes of an event file end at a record boundary. */
bool sr_tensorboard_ends(const uint8_t *file, size_t bytes);

/* The first record of every event file. */
srnn_status sr_tensorboard_begin(sr_log_file *file, double seconds);

/* One number; `seconds` since 1970. */
srnn_status sr_tensorboard_scalar(sr_log_file *file, double seconds, int64_t step, const char *name,
                                  double value);

/* A text shown in TensorBoard's text tab, in Markdown. */
srnn_status sr_tensorboard_text(sr_log_file *file, double seconds, const char *name,
                                const char *text, size_t bytes);

#endif
