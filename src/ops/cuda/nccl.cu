/* nccl.cu: collectives between the GPUs of several ranks, by NCCL, which is loaded at run time. */
#include "ops/collective.h"

#include "base/memory.h"
#include "device/cuda/check.h"
#include "device/cuda/device.h"
#include "device/cuda/launch.h"
#include "device/cuda/platform.h"

#include <dlfcn.h>
#include <stdlib.h>

/* The part of NCCL's API that is used; unchanged since version 2.10. */
struct nccl_id {
    char bytes[SR_COLLECTIVE_ID];
};
enum {
    NCCL_INT8 = 0,
    NCCL_INT64 = 4,
    NCCL_FLOAT = 7,
    NCCL_DOUBLE = 8,
    NCCL_BFLOAT16 = 9,
    NCCL_SUM = 0
};
enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };

struct nccl_functions {
    const char *(*GetErrorString)(int result);
    int (*GetUniqueId)(nccl_id *id);
    int (*CommInitRank)(void **comm, int count, nccl_id id, int rank);
    int (*CommDestroy)(void *comm);
    int (*CommAbort)(void *comm);
    int (*CommGetAsyncError)(void *comm, int *result);
    int (*GroupStart)(void);
    int (*GroupEnd)(void);
    int (*AllReduce)(const void *from, void *to, size_t count, int type, int op, void *comm,
                     cudaStream_t stream);
    int (*Reduce)(const void *from, void *to, size_t count, int type, int op, int root, void *comm,
                  cudaStream_t stream);
    int (*Broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm,
                     cudaStream_t stream);
    int (*ReduceScatter)(const void *from, void *to, size_t count, int type, int op, void *comm,
                         cudaStream_t stream);
    int (*AllGather)(const void *from, void *to, size_t count, int type, void *comm,
                     cudaStream_t stream);
    int (*Send)(const void *from, size_t count, int type, int to, void *comm, cudaStream_t stream);
    int (*Recv)(void *to, size_t count, int type, int from, void *comm, cudaStream_t stream);
};

static nccl_functions nccl; /* handle of the library, which stays loaded */
static bool loaded;

struct sr_collective {
    srnn_device *device;
    void *comm;
    cudaStream_t stream;
    cudaEvent_t begun, ended;
    int *waits; /* host memory written by the GPU: it is at a join */
    bool failed;
    int rank, count;
};

#define SR_NCCL(call)                                                                       \
    do {                                                                                    \
        const int sr_nccl_result = (call);                                                  \
        if (sr_nccl_result != 0)                                                            \
            return SR_FAIL(SRNN_ERR_IO, "NCCL: %s: %s; NCCL_DEBUG=INFO prints more", #call, \
                           nccl.GetErrorString(sr_nccl_result));                            \
    } while (0)

/* ---- the library */

static srnn_status missing(const char *why) {
    return SR_FAIL(
        SRNN_ERR_UNSUPPORTED,
        "several ranks on GPUs need NCCL, which cannot be loaded: %s. Install it (Debian "
        "non-free and NVIDIA's packages: libnccl2), or let SOFTRNN_NCCL name its "
        "libnccl.so.2",
        why);
}

template <class F> static bool find(F *function, void *library, const char *name) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != nullptr;
}

static bool find_all(nccl_functions *f, void *library) {
    return find(&f->GetErrorString, library, "ncclGetErrorString") &&
           find(&f->GetUniqueId, library, "ncclGetUniqueId") &&
           find(&f->CommInitRank, library, "ncclCommInitRank") &&
           find(&f->CommDestroy, library, "ncclCommDestroy") &&
           find(&f->CommAbort, library, "ncclCommAbort") &&
           find(&f->CommGetAsyncError, library, "ncclCommGetAsyncError") &&
           find(&f->GroupStart, library, "ncclGroupStart") &&
           find(&f->GroupEnd, library, "ncclGroupEnd") &&
           find(&f->AllReduce, library, "ncclAllReduce") &&
           find(&f->Reduce, library, "ncclReduce") &&
           find(&f->Broadcast, library, "ncclBroadcast") &&
           find(&f->ReduceScatter, library, "ncclReduceScatter") &&
           find(&f->AllGather, library, "ncclAllGather") && find(&f->Send, library, "ncclSend") &&
           find(&f->Recv, library, "ncclRecv");
}

static srnn_status load() {
    const char *named = getenv("SOFTRNN_NCCL");
    if (loaded)
        return SRNN_OK;
    void *library = dlopen(named && *named ? named : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return missing(dlerror());
    if (!find_all(&nccl, library)) {
        dlclose(library);
        return missing("it is too old: 2.10 or newer is needed");
    }
    loaded = true;
    return SRNN_OK;
}

srnn_status sr_collective_id(char id[SR_COLLECTIVE_ID]) {
    nccl_id made;
    SR_TRY(load());
    SR_NCCL(nccl.GetUniqueId(&made));
    memcpy(id, made.bytes, sizeof made.bytes);
    return SRNN_OK;
}

/* ---- opening */

static srnn_status fill(sr_collective *c, const char *id) {
    nccl_id known;
    memcpy(known.bytes, id, sizeof known.bytes);
    SR_TRY(load());
    sr_cuda_stream(c->device); /* makes its GPU current for this thread */
    SR_CUDA(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking));
    SR_CUDA(cudaEventCreateWithFlags(&c->begun, cudaEventDisableTiming));
    SR_CUDA(cudaEventCreateWithFlags(&c->ended, cudaEventDisableTiming));
    SR_CUDA(cudaHostAlloc(&c->waits, sizeof *c->waits, cudaHostAllocMapped));
    sr_collective_begin(c);
    SR_NCCL(nccl.CommInitRank(&c->comm, c->count, known, c->rank));
    return SRNN_OK;
}

srnn_status sr_collective_open(sr_collective **collective, srnn_device *device,
                               const char id[SR_COLLECTIVE_ID], int rank, int count) {
    void *memory;
    *collective = nullptr;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof **collective));
    sr_collective *c = (sr_collective *)memory;
    c->device = device;
    c->rank = rank;
    c->count = count;
    const srnn_status status = fill(c, id);
    if (status != SRNN_OK) {
        sr_collective_close(c);
        return status;
    }
    *collective = c;
    return SRNN_OK;
}

void sr_collective_close(sr_collective *c) {
    if (!c)
        return;
    sr_cuda_stream(c->device);
    if (c->failed)
        nccl.CommAbort(c->comm); /* otherwise pending work waits for ranks that are gone */
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    if (c->comm && !c->failed)
        nccl.CommDestroy(c->comm);
    if (c->begun)
        cudaEventDestroy(c->begun);
    if (c->ended)
        cudaEventDestroy(c->ended);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    cudaFreeHost(c->waits);
    free(c);
}

/* ---- progress */

void sr_collective_begin(sr_collective *c) {
    *(volatile int *)c->waits = 0;
}

/* A failed rank is detected only here: work that needs it never completes. */
static srnn_status check_others(sr_collective *c) {
    int error;
    SR_NCCL(nccl.CommGetAsyncError(c->comm, &error));
    if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS)
        return SRNN_OK;
    c->failed = true;
    return SR_FAIL(SRNN_ERR_IO,
                   "NCCL: a sum over the ranks cannot be ended: %s; NCCL_DEBUG=INFO prints more",
                   nccl.GetErrorString(error));
}

srnn_status sr_collective_look(sr_collective *c, sr_collective_state *state) {
    const cudaError_t error = cudaStreamQuery(sr_cuda_stream(c->device));
    *state = sr_collective_state{error == cudaSuccess, *(volatile int *)c->waits != 0};
    if (error != cudaErrorNotReady)
        SR_CUDA(error);
    return check_others(c);
}

/* One thread writes the host's flag, in mapped memory: 1 when the stream reaches a join, 0 behind
 * it, so that the host can distinguish a rank that waits for others from one that computes. */
static __global__ void report_waiting(volatile int *waits, int waiting) {
    *waits = waiting;
}

/* ---- work */

srnn_status sr_collective_fork(sr_collective *c) {
    SR_CUDA(cudaEventRecord(c->begun, sr_cuda_stream(c->device)));
    SR_CUDA(cudaStreamWaitEvent(c->stream, c->begun, 0));
    return SRNN_OK;
}

srnn_status sr_collective_join(sr_collective *c) {
    SR_CUDA(sr_launch(report_waiting, dim3(1), dim3(1), 0, sr_cuda_stream(c->device), c->waits, 1));
    SR_CUDA(cudaEventRecord(c->ended, c->stream));
    SR_CUDA(cudaStreamWaitEvent(sr_cuda_stream(c->device), c->ended, 0));
    SR_CUDA(sr_launch(report_waiting, dim3(1), dim3(1), 0, sr_cuda_stream(c->device), c->waits, 0));
    return SRNN_OK;
}

static srnn_status scatter(sr_collective *c, float *own, const float *all, sr_divided d) {
    if (d.each > 0)
        SR_NCCL(
            nccl.ReduceScatter(all, own, (size_t)d.each, NCCL_FLOAT, NCCL_SUM, c->comm, c->stream));
    if (d.rest > 0)
        SR_NCCL(nccl.Reduce(all + d.each * c->count, own + d.each, (size_t)d.rest, NCCL_FLOAT,
                            NCCL_SUM, c->count - 1, c->comm, c->stream));
    return SRNN_OK;
}

/* The calls for one array as one NCCL group. */
template <class Work> static srnn_status grouped(Work work) {
    SR_NCCL(nccl.GroupStart());
    const srnn_status status = work();
    const int ended = nccl.GroupEnd();
    SR_TRY(status);
    SR_NCCL(ended);
    return SRNN_OK;
}

srnn_status sr_collective_scatter(sr_collective *c, float *own, const float *all, sr_divided d) {
    return grouped([&] { return scatter(c, own, all, d); });
}

static srnn_status gather(sr_collective *c, char *all, size_t bytes, int type, sr_divided d) {
    char *rest = all + (size_t)d.each * (size_t)c->count * bytes;
    if (d.each > 0)
        SR_NCCL(nccl.AllGather(all + (size_t)d.each * (size_t)c->rank * bytes, all, (size_t)d.each,
                               type, c->comm, c->stream));
    if (d.rest > 0)
        SR_NCCL(nccl.Broadcast(rest, rest, (size_t)d.rest, type, c->count - 1, c->comm, c->stream));
    return SRNN_OK;
}

srnn_status sr_collective_gather(sr_collective *c, void *all, srnn_dtype dtype, sr_divided d) {
    const bool wide = dtype == SRNN_F32;
    return grouped(
        [&] { return gather(c, (char *)all, wide ? 4 : 2, wide ? NCCL_FLOAT : NCCL_BFLOAT16, d); });
}

static srnn_status exchange(sr_collective *c, float *all, const int64_t *bounds) {
    for (int r = 0; r < c->count; r++)
        if (bounds[r + 1] > bounds[r])
            SR_NCCL(nccl.Broadcast(all + bounds[r], all + bounds[r],
                                   (size_t)(bounds[r + 1] - bounds[r]), NCCL_FLOAT, r, c->comm,
                                   c->stream));
    return SRNN_OK;
}

srnn_status sr_collective_exchange(sr_collective *c, float *all, const int64_t *bounds) {
    return grouped([&] { return exchange(c, all, bounds); });
}

static srnn_status sum(sr_collective *c, void *numbers, int64_t count, int type) {
    SR_NCCL(nccl.AllReduce(numbers, numbers, (size_t)count, type, NCCL_SUM, c->comm, c->stream));
    return SRNN_OK;
}

srnn_status sr_collective_sum(sr_collective *c, float *numbers, int64_t count) {
    return sum(c, numbers, count, NCCL_FLOAT);
}

srnn_status sr_collective_sum_doubles(sr_collective *c, double *numbers, int64_t count) {
    return sum(c, numbers, count, NCCL_DOUBLE);
}

srnn_status sr_collective_sum_integers(sr_collective *c, int64_t *numbers, int64_t count) {
    return sum(c, numbers, count, NCCL_INT64);
}

srnn_status sr_collective_send(sr_collective *c, const void *data, size_t bytes, int to) {
    SR_NCCL(nccl.Send(data, bytes, NCCL_INT8, to, c->comm, c->stream));
    return SRNN_OK;
}

srnn_status sr_collective_receive(sr_collective *c, void *data, size_t bytes, int from) {
    SR_NCCL(nccl.Recv(data, bytes, NCCL_INT8, from, c->comm, c->stream));
    return SRNN_OK;
}

srnn_status sr_collective_begin_messages(sr_collective *c) {
    (void)c;
    SR_NCCL(nccl.GroupStart());
    return SRNN_OK;
}

srnn_status sr_collective_end_messages(sr_collective *c) {
    (void)c;
    SR_NCCL(nccl.GroupEnd());
    return SRNN_OK;
}
