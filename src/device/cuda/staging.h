/* staging.h (private): large copies from host memory, through pinned memory. */
#ifndef SR_DEVICE_CUDA_STAGING_H
#define SR_DEVICE_CUDA_STAGING_H

#include "device/cuda/check.h"

/* Two pieces of pinned memory, made by the first copy: one is filled while the GPU reads the
 * other. */
enum { SR_STAGES = 2 };

typedef struct sr_staging {
    char *host; /* (SR_STAGES, piece) */
    cudaEvent_t copied[SR_STAGES];
} sr_staging;

/* Fewer bytes are copied as fast by the runtime. */
enum { SR_STAGING_LEAST = 1 << 20 };

/* As cudaMemcpyAsync from pageable memory, of which the runtime copies a small piece at a time on
 * one thread: the host's memory may change on return. */
srnn_status sr_staging_copy(sr_staging *staging, void *to, const void *host, size_t bytes,
                            cudaStream_t stream);

/* After the stream's work. */
void sr_staging_free(sr_staging *staging);

#endif
