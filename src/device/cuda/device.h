/* device.h: one GPU as a device, for the kernels that run on it. */
#ifndef SR_DEVICE_CUDA_DEVICE_H
#define SR_DEVICE_CUDA_DEVICE_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sr_cuda_device {
    char name[256];
    size_t memory_bytes;
    size_t shared_bytes; /* shared memory that one block can have */
    int multiprocessors;
    int capability_major, capability_minor; /* compute capability: 9, 0 is Hopper */
} sr_cuda_device;

/* For launches on an open device: its stream (a cudaStream_t), with its GPU made current for the
 * calling thread; and its facts. */
struct CUstream_st *sr_cuda_stream(const srnn_device *device);
const sr_cuda_device *sr_cuda_facts(const srnn_device *device);

/* ---- coalescing: small kernels merged into one
 *
 * While a device coalesces (srnn_device.coalesce, and capture), a coalescer may collect launches.
 * sr_cuda_stream flushes it first, so that other kernels do not depend on it. The only one, the
 * persistent decode kernel, belongs to ops, which installs it. */

typedef struct sr_cuda_coalescer sr_cuda_coalescer;

typedef struct sr_cuda_coalescer_kind {
    size_t list_bytes; /* device memory for what one coalesced call, or graph, collects */

    /* *coalescer stays NULL where the GPU does not support it. */
    srnn_status (*create)(sr_cuda_coalescer **coalescer, const sr_cuda_device *facts,
                          struct CUstream_st *stream);
    void (*destroy)(sr_cuda_coalescer *coalescer); /* accepts NULL */

    /* Collect from now on into `lists`; while a graph is captured nothing is copied there before
     * `send`. close fails if something could not be launched. */
    void (*open)(sr_cuda_coalescer *coalescer, char *lists, bool captured);
    void (*flush)(sr_cuda_coalescer *coalescer, struct CUstream_st *stream);
    srnn_status (*close)(sr_cuda_coalescer *coalescer);
    srnn_status (*send)(sr_cuda_coalescer *coalescer, struct CUstream_st *stream);
} sr_cuda_coalescer_kind;

void sr_cuda_install_coalescer(srnn_device *device, const sr_cuda_coalescer_kind *kind);

/* The installed kind, and the coalescer that collects now; NULL: none. */
const sr_cuda_coalescer_kind *sr_cuda_coalescer_installed(const srnn_device *device);
sr_cuda_coalescer *sr_cuda_coalescer_open(const srnn_device *device);

/* Whether it collects into a graph that is being captured. */
bool sr_cuda_coalesces_graph(const srnn_device *device);

#ifdef __cplusplus
}
#endif

#endif
