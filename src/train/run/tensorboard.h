/* tensorboard.h (private): TensorBoard's event files: numbers by name and step, and texts. */
#ifndef SR_TRAIN_RUN_TENSORBOARD_H
#define SR_TRAIN_RUN_TENSORBOARD_H

#include "train/run/log_file.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if so many bytes of an event file are whole records, as their lengths say. */
bool sr_tensorboard_ends(const uint8_t *file, size_t bytes);

/* The record every event file starts with. */
srnn_status sr_tensorboard_begin(sr_log_file *file, double seconds);

/* One number; `seconds` since 1970. */
srnn_status sr_tensorboard_scalar(sr_log_file *file, double seconds, int64_t step, const char *name,
                                  double value);

/* A text of its own page, in Markdown. */
srnn_status sr_tensorboard_text(sr_log_file *file, double seconds, const char *name,
                                const char *text, size_t bytes);

#endif
