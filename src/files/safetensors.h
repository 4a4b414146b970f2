/* safetensors.h: reading and writing files of named arrays.
 *
 * The format: 8 bytes with the length of a JSON header, the header (name -> dtype, shape, offsets;
 * "__metadata__" -> texts), then the data without gaps. */
#ifndef SR_FILES_SAFETENSORS_H
#define SR_FILES_SAFETENSORS_H

#include "base/status.h"
#include "files/tensor.h"

/* The key of the header that holds texts instead of a tensor. */
#define SR_SAFETENSORS_METADATA "__metadata__"

/* ---- reading: the file is mapped, and its header is treated as hostile */

typedef struct sr_safetensors sr_safetensors;

/* Fails with SRNN_ERR_FORMAT naming the file, the tensor and the reason. */
srnn_status sr_safetensors_open(sr_safetensors **file, const char *path);

/* The same for bytes in memory, which must outlive the result; `path` is for messages. */
srnn_status sr_safetensors_parse(sr_safetensors **file, const char *path, const void *data,
                                 size_t bytes);
void sr_safetensors_free(sr_safetensors *file);

/* The tensors in the order of their data. They belong to the file. */
size_t sr_safetensors_count(const sr_safetensors *file);
const sr_tensor *sr_safetensors_at(const sr_safetensors *file, size_t index);

/* The tensor with this name. NULL if there is none. */
const sr_tensor *sr_safetensors_find(const sr_safetensors *file, const char *name);

/* The same for one that must be there: fails naming the file and the tensor. */
srnn_status sr_safetensors_require(const sr_tensor **tensor, const sr_safetensors *file,
                                   const char *name);

/* A text of the metadata, or NULL. It belongs to the file. */
const char *sr_safetensors_metadata(const sr_safetensors *file, const char *key);

/* ---- writing: the same tensors and texts give the same bytes, in any order of addition */

typedef struct sr_safetensors_writer sr_safetensors_writer;

srnn_status sr_safetensors_writer_create(sr_safetensors_writer **writer);
void sr_safetensors_writer_free(sr_safetensors_writer *writer);

/* Adds the name, dtype, rank, shape and data of `tensor`; count and bytes follow from them. The
 * data must stay valid until the file is written; everything else is copied. */
srnn_status sr_safetensors_writer_add(sr_safetensors_writer *writer, const sr_tensor *tensor);

/* From now on the data of tensors is produced by `read`: to = `count` elements of the tensor from
 * element `first` on, in its type. The data may be in memory that only `read` can access, and is
 * never copied as a whole. */
typedef srnn_status (*sr_tensor_reader)(void *context, void *to, const sr_tensor *tensor,
                                        size_t first, size_t count);
void sr_safetensors_writer_reader(sr_safetensors_writer *writer, sr_tensor_reader read,
                                  void *context);

/* Adds a text, or replaces the one with the same key. */
srnn_status sr_safetensors_writer_metadata(sr_safetensors_writer *writer, const char *key,
                                           const char *value);

/* Replaces the file at `path` in one step (files/file.h). Every tensor is aligned for its type. */
srnn_status sr_safetensors_writer_write(const sr_safetensors_writer *writer, const char *path);

#endif
