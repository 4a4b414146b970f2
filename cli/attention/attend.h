/* attend.h: the request of `softrnn attend`, and its two modes. */
#ifndef SR_CLI_ATTENTION_ATTEND_H
#define SR_CLI_ATTENTION_ATTEND_H

#include "files/safetensors.h"

typedef struct attend_request {
    const char *in_path, *out_path;
    bool backward;

    /* attention, form, chunk, kernel, threads and dtype; no sizes */
    srnn_problem problem;
} attend_request;

/* The mode with q, k, v in the file: the equation alone. */
srnn_status attend_heads(const attend_request *request, const sr_safetensors *in);

/* The mode with x and weights in the file: a whole layer. */
srnn_status attend_layer(const attend_request *request, const sr_safetensors *in);

/* Shared by both modes. */

/* The tensor, checked to hold floating-point numbers of the given shape. */
srnn_status attend_require(const sr_tensor **tensor, const attend_request *request,
                           const sr_safetensors *in, const char *name, int rank,
                           const int64_t *shape);

/* The same if only the rank is known. */
srnn_status attend_require_rank(const sr_tensor **tensor, const attend_request *request,
                                const sr_safetensors *in, const char *name, int rank);

/* The packed documents; NULL and 0 if the file has none. Free *offsets. */
srnn_status attend_offsets(int64_t **offsets, int64_t *documents, const attend_request *request,
                           const sr_safetensors *in);

/* Records what was computed in the file's metadata. */
srnn_status attend_describe(sr_safetensors_writer *writer, const srnn_attention *attention);

#endif
