/* staging.cu: large copies from host memory, through pinned memory that several threads fill. */
#include "device/cuda/staging.h"

#include "base/threads.h"

#include <string.h>

static constexpr size_t PIECE = 8 << 20;
static constexpr size_t PART = 1 << 20; /* of a piece, which one thread copies, or reads in */
enum { MOST_THREADS = 8 };

struct piece {
    char *to;
    const char *from;
    size_t bytes;
};

static void copy_part(void *context, int64_t task, int worker) {
    const piece *p = (const piece *)context;
    const size_t at = (size_t)task * PART, left = p->bytes - at;
    (void)worker;
    memcpy(p->to + at, p->from + at, left < PART ? left : PART);
}

static srnn_status create(sr_staging *staging) {
    if (staging->host)
        return SRNN_OK;
    for (int i = 0; i < SR_STAGES; i++)
        if (!staging->copied[i])
            SR_CUDA(cudaEventCreateWithFlags(&staging->copied[i], cudaEventDisableTiming));
    SR_CUDA(cudaMallocHost((void **)&staging->host, SR_STAGES * PIECE));
    return SRNN_OK;
}

srnn_status sr_staging_copy(sr_staging *staging, void *to, const void *host, size_t bytes,
                            cudaStream_t stream) {
    const int cores = sr_thread_count(0), threads = cores < MOST_THREADS ? cores : MOST_THREADS;
    SR_TRY(create(staging));
    for (size_t at = 0; at < bytes; at += PIECE) {
        const int stage = (int)(at / PIECE % SR_STAGES);
        const size_t here = bytes - at < PIECE ? bytes - at : PIECE;
        piece of = {staging->host + stage * PIECE, (const char *)host + at, here};
        SR_CUDA(cudaEventSynchronize(staging->copied[stage])); /* the GPU has read it */
        sr_parallel(copy_part, &of, (int64_t)((here + PART - 1) / PART), threads);
        SR_CUDA(cudaMemcpyAsync((char *)to + at, of.to, here, cudaMemcpyHostToDevice, stream));
        SR_CUDA(cudaEventRecord(staging->copied[stage], stream));
    }
    return SRNN_OK;
}

void sr_staging_free(sr_staging *staging) {
    for (int i = 0; i < SR_STAGES; i++)
        if (staging->copied[i])
            cudaEventDestroy(staging->copied[i]);
    cudaFreeHost(staging->host);
}
