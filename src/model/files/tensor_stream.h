/* tensor_stream.h: numbers between backend memory and files, a block at a time.
 *
 * A model that just fits memory can so be saved and loaded: no copy of it is ever whole. */
#ifndef SR_MODEL_FILES_TENSOR_STREAM_H
#define SR_MODEL_FILES_TENSOR_STREAM_H

#include "files/safetensors.h"
#include "ops/backend.h"

/* For sr_safetensors_writer_reader: `context` is the backend, a tensor's data lies in its memory as
 * float and is rounded to the tensor's type: F32, BF16 or F16. */
srnn_status sr_stream_out(void *context, void *to, const sr_tensor *tensor, size_t first,
                          size_t count);

/* to = numbers of a tensor, whose data are floats in host memory, rounded to its type. */
srnn_status sr_stream_round(void *to, const sr_tensor *tensor, size_t count);

/* to, backend memory, float or bf16, = the numbers of a tensor in a file, from `first` on, one for
 * each of to.columns. */
srnn_status sr_stream_in(sr_backend *backend, sr_matrix to, const sr_tensor *tensor, size_t first);

/* The same of numbers in host memory. */
srnn_status sr_stream_floats(sr_backend *backend, sr_matrix to, const float *numbers);

/* Fails with SRNN_ERR_IO if a tensor in the file at `path` is not these numbers (count), bit by
 * bit. */
srnn_status sr_stream_compare(sr_backend *backend, const float *numbers, size_t count,
                              const sr_tensor *tensor, const char *path);

#endif
