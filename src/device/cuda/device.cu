/* device.cu: the GPUs of this machine, and one of them as a device: memory, streams, graphs. */
#include "device/cuda/device.h"

#include "base/memory.h"
#include "base/threads.h"
#include "device/cuda/check.h"
#include "device/cuda/platform.h"
#include "device/cuda/staging.h"
#include "device/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copies to the host on its own stream. Created by the first readback. */
struct readback {
    cudaStream_t stream;
    cudaEvent_t written, copied;
    void *host; /* pinned memory, `bytes` of it */
    size_t bytes;
};

struct cuda_device {
    srnn_device base; /* first, so that a pointer to it is a pointer to the whole */
    int index;
    sr_cuda_device facts;
    cudaStream_t own, stream;           /* its own, and the one in use */
    const sr_cuda_coalescer_kind *kind; /* NULL: none is installed */
    sr_cuda_coalescer *coalescer;       /* NULL: not used yet, or not on this GPU */
    bool coalesces, captures;           /* now; and into a graph */
    void *lists;                        /* device memory, for coalescing without capture */
    readback reader;
    sr_staging staging;
};

/* A CUDA graph, and the task lists that its kernels read. */
struct graph {
    cudaGraphExec_t exec;
    void *lists; /* device memory */
};

static srnn_status count_gpus(int *count, const char **reason) {
    *count = 0;
    *reason = nullptr;
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error == cudaErrorNoDevice)
        *reason = "no NVIDIA GPU was found";
    else if (error == cudaErrorInsufficientDriver)
        *reason = "there is no NVIDIA driver, or one that is too old for this build's CUDA";
    else
        SR_CUDA(error);
    if (*reason) {
        *count = 0;
        /* clears the error, so that it is not reported again later */
        cudaGetLastError();
    }
    return SRNN_OK;
}

static srnn_status look(sr_cuda_device *device, int index) {
    cudaDeviceProp facts;
    SR_CUDA(cudaGetDeviceProperties(&facts, index));
    *device = {};
    snprintf(device->name, sizeof device->name, "%s", facts.name);
    device->memory_bytes = facts.totalGlobalMem;
    device->shared_bytes = facts.sharedMemPerBlockOptin;
    device->multiprocessors = facts.multiProcessorCount;
    device->capability_major = facts.major;
    device->capability_minor = facts.minor;
    return SRNN_OK;
}

static srnn_status describe(char text[SR_DEVICE_TEXT], int index) {
    sr_cuda_device facts;
    SR_TRY(look(&facts, index));
    snprintf(text, SR_DEVICE_TEXT, "%s, %.1f GiB, %d multiprocessors, compute capability %d.%d",
             facts.name, (double)facts.memory_bytes / 0x1p30, facts.multiprocessors,
             facts.capability_major, facts.capability_minor);
    return SRNN_OK;
}

static cuda_device *cuda_of(srnn_device *device) {
    return (cuda_device *)device;
}

cudaStream_t sr_cuda_stream(const srnn_device *device) {
    const cuda_device *cuda = (const cuda_device *)device;
    /* sets a thread-local index; an error will recur at the launch */
    cudaSetDevice(cuda->index);
    if (cuda->coalesces)
        cuda->kind->flush(cuda->coalescer, cuda->stream);
    return cuda->stream;
}

void sr_cuda_install_coalescer(srnn_device *device, const sr_cuda_coalescer_kind *kind) {
    ((cuda_device *)device)->kind = kind;
}

const sr_cuda_coalescer_kind *sr_cuda_coalescer_installed(const srnn_device *device) {
    return ((const cuda_device *)device)->kind;
}

sr_cuda_coalescer *sr_cuda_coalescer_open(const srnn_device *device) {
    const cuda_device *cuda = (const cuda_device *)device;
    return cuda->coalesces ? cuda->coalescer : nullptr;
}

bool sr_cuda_coalesces_graph(const srnn_device *device) {
    const cuda_device *cuda = (const cuda_device *)device;
    return cuda->coalesces && cuda->captures;
}

const sr_cuda_device *sr_cuda_facts(const srnn_device *device) {
    return &((const cuda_device *)device)->facts;
}

/* ---- memory ---- */

static srnn_status allocate(srnn_device *device, void **out, size_t bytes) {
    *out = nullptr;
    sr_cuda_stream(device);
    const cudaError_t error = cudaMalloc(out, bytes ? bytes : 1);
    if (error != cudaErrorMemoryAllocation) {
        SR_CUDA(error);
        return SRNN_OK;
    }
    size_t available = 0, whole = 0;
    cudaGetLastError();
    cudaMemGetInfo(&available, &whole);
    return SR_FAIL(SRNN_ERR_MEMORY,
                   "%.1f MB more are needed on %s, which has %.1f MB left of %.1f: use a smaller "
                   "batch or shorter rows (train also has --recompute block)",
                   (double)bytes / 1e6, device->name, (double)available / 1e6, (double)whole / 1e6);
}

static void release(srnn_device *device, void *memory) {
    if (!memory)
        return;
    cudaStreamSynchronize(sr_cuda_stream(device)); /* kernels may still use it */
    cudaFree(memory);
}

static srnn_status copy_in(srnn_device *device, void *to, const void *host, size_t bytes) {
    const cudaStream_t stream = sr_cuda_stream(device);
    if (bytes >= SR_STAGING_LEAST)
        return sr_staging_copy(&cuda_of(device)->staging, to, host, bytes, stream);
    SR_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream));
    return SRNN_OK;
}

static srnn_status wait_for_all(srnn_device *device) {
    SR_CUDA(cudaStreamSynchronize(sr_cuda_stream(device)));
    return SRNN_OK;
}

static srnn_status copy_out(srnn_device *device, void *host, const void *from, size_t bytes) {
    SR_CUDA(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, sr_cuda_stream(device)));
    return wait_for_all(device);
}

static srnn_status copy(srnn_device *device, void *to, const void *from, size_t bytes) {
    SR_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, sr_cuda_stream(device)));
    return SRNN_OK;
}

static srnn_status zero(srnn_device *device, void *memory, size_t bytes) {
    SR_CUDA(cudaMemsetAsync(memory, 0, bytes, sr_cuda_stream(device)));
    return SRNN_OK;
}

static srnn_status set_stream(srnn_device *device, void *stream) {
    cuda_device *cuda = cuda_of(device);
    sr_cuda_stream(device); /* queued launches belong to the previous stream */
    cuda->stream = stream ? (cudaStream_t)stream : cuda->own;
    return SRNN_OK;
}

/* ---- asynchronous readback ---- */

static srnn_status create_reader(readback *r) {
    if (r->copied)
        return SRNN_OK;
    if (!r->stream)
        SR_CUDA(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    if (!r->written)
        SR_CUDA(cudaEventCreateWithFlags(&r->written, cudaEventDisableTiming));
    SR_CUDA(cudaEventCreateWithFlags(&r->copied, cudaEventDisableTiming));
    return SRNN_OK;
}

static void destroy_reader(readback *r) {
    if (r->stream) {
        cudaStreamSynchronize(r->stream);
        cudaStreamDestroy(r->stream);
    }
    if (r->written)
        cudaEventDestroy(r->written);
    if (r->copied)
        cudaEventDestroy(r->copied);
    cudaFreeHost(r->host);
}

/* A copy to memory that is not pinned would block on the GPU. */
static srnn_status reserve_pinned(readback *r, size_t bytes) {
    if (r->bytes >= bytes)
        return SRNN_OK;
    cudaFreeHost(r->host);
    r->host = nullptr;
    r->bytes = 0;
    SR_CUDA(cudaMallocHost(&r->host, bytes));
    r->bytes = bytes;
    return SRNN_OK;
}

static srnn_status readback_begin(srnn_device *device, const void *from, size_t bytes) {
    readback *r = &cuda_of(device)->reader;
    const cudaStream_t stream = sr_cuda_stream(device);
    SR_TRY(create_reader(r));
    SR_TRY(reserve_pinned(r, bytes));
    SR_CUDA(cudaEventRecord(r->written, stream));
    SR_CUDA(cudaStreamWaitEvent(r->stream, r->written, 0));
    SR_CUDA(cudaMemcpyAsync(r->host, from, bytes, cudaMemcpyDeviceToHost, r->stream));
    SR_CUDA(cudaEventRecord(r->copied, r->stream));
    return SRNN_OK;
}

static srnn_status readback_end(srnn_device *device, void *host, size_t bytes) {
    const readback *r = &cuda_of(device)->reader;
    SR_CUDA(cudaEventSynchronize(r->copied));
    memcpy(host, r->host, bytes);
    return SRNN_OK;
}

/* ---- coalescing ---- */

/* Creates what the first coalesced call needs. */
static srnn_status create_coalescer(cuda_device *cuda) {
    if (!cuda->kind)
        return SRNN_OK;
    if (!cuda->coalescer)
        SR_TRY(cuda->kind->create(&cuda->coalescer, &cuda->facts, sr_cuda_stream(&cuda->base)));
    if (!cuda->coalescer || cuda->lists)
        return SRNN_OK;
    return allocate(&cuda->base, &cuda->lists, cuda->kind->list_bytes);
}

/* Small kernels that `work` launches are merged; `lists`: as sr_cuda_coalescer_kind.open. */
static srnn_status coalesce_into(cuda_device *cuda, void *lists, bool captured,
                                 srnn_status (*work)(void *context), void *context) {
    if (!cuda->coalescer || cuda->coalesces)
        return work(context);
    cuda->kind->open(cuda->coalescer, (char *)lists, captured);
    cuda->coalesces = true;
    cuda->captures = captured;
    const srnn_status status = work(context);
    sr_cuda_stream(&cuda->base); /* launches the rest */
    cuda->coalesces = false;
    const srnn_status launched = cuda->kind->close(cuda->coalescer);
    return status != SRNN_OK ? status : launched;
}

static srnn_status coalesce(srnn_device *device, srnn_status (*work)(void *context),
                            void *context) {
    cuda_device *cuda = cuda_of(device);
    SR_TRY(create_coalescer(cuda));
    return coalesce_into(cuda, cuda->lists, false, work, context);
}

/* ---- graphs ---- */

static void forget(srnn_device *device, void *captured) {
    graph *g = (graph *)captured;
    if (!g)
        return;
    cudaStreamSynchronize(sr_cuda_stream(device));
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    cudaFree(g->lists);
    free(g);
}

static srnn_status capture_stream(cuda_device *cuda, graph *g, srnn_status (*work)(void *context),
                                  void *context) {
    const cudaStream_t stream = sr_cuda_stream(&cuda->base);
    cudaGraph_t captured = nullptr;
    SR_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    srnn_status status = coalesce_into(cuda, g->lists, true, work, context);
    const cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    if (status == SRNN_OK && ended != cudaSuccess)
        status =
            SR_FAIL(SRNN_ERR_UNSUPPORTED, "CUDA: capturing a graph: %s", cudaGetErrorString(ended));
    if (status == SRNN_OK && cudaGraphInstantiate(&g->exec, captured, 0) != cudaSuccess)
        status = SR_FAIL(SRNN_ERR_UNSUPPORTED, "CUDA: instantiating a captured graph: %s",
                         cudaGetErrorString(cudaGetLastError()));
    if (captured)
        cudaGraphDestroy(captured);
    return status;
}

static srnn_status fill_graph(cuda_device *cuda, graph *g, srnn_status (*work)(void *context),
                              void *context) {
    SR_TRY(create_coalescer(cuda));
    if (!cuda->coalescer)
        return capture_stream(cuda, g, work, context);
    SR_TRY(allocate(&cuda->base, &g->lists, cuda->kind->list_bytes));
    SR_TRY(capture_stream(cuda, g, work, context));
    return cuda->kind->send(cuda->coalescer, cuda->stream);
}

static srnn_status capture(srnn_device *device, void **captured, srnn_status (*work)(void *context),
                           void *context) {
    void *memory;
    *captured = nullptr;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(graph)));
    const srnn_status status = fill_graph(cuda_of(device), (graph *)memory, work, context);
    if (status != SRNN_OK) {
        forget(device, memory);
        return status;
    }
    *captured = memory;
    return SRNN_OK;
}

static srnn_status replay(srnn_device *device, void *captured) {
    SR_CUDA(cudaGraphLaunch(((graph *)captured)->exec, sr_cuda_stream(device)));
    return SRNN_OK;
}

/* ---- opening ---- */

static void close_device(srnn_device *device) {
    cuda_device *cuda = cuda_of(device);
    if (cuda->own) {
        cudaStreamSynchronize(sr_cuda_stream(device));
        destroy_reader(&cuda->reader);
        sr_staging_free(&cuda->staging);
        if (cuda->kind)
            cuda->kind->destroy(cuda->coalescer);
        cudaFree(cuda->lists);
        cudaStreamDestroy(cuda->own);
    }
    free(cuda);
}

static srnn_status check(const sr_cuda_device *facts, int index) {
    if (facts->capability_major >= 8)
        return SRNN_OK;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                   "cuda:%d: %s has compute capability %d.%d; 8.0 (Ampere) or newer is needed",
                   index, facts->name, facts->capability_major, facts->capability_minor);
}

static srnn_status fill(cuda_device *cuda, int index) {
    srnn_device *base = &cuda->base;
    SR_TRY(look(&cuda->facts, index));
    SR_TRY(check(&cuda->facts, index));
    snprintf(base->name, sizeof base->name, "cuda:%d", index);
    base->flags = SR_DEVICE_CAPTURES | SR_DEVICE_READS_BACK_ASYNC;
    base->threads = 1;
    base->attention = &sr_cuda_attention;
    base->close = close_device;
    base->allocate = allocate;
    base->release = release;
    base->copy_in = copy_in;
    base->copy_out = copy_out;
    base->copy = copy;
    base->zero = zero;
    base->wait = wait_for_all;
    base->stream = set_stream;
    base->readback_begin = readback_begin;
    base->readback_end = readback_end;
    base->coalesce = coalesce;
    base->capture = capture;
    base->replay = replay;
    base->forget = forget;
    cuda->index = index;
    SR_CUDA(cudaSetDevice(index));
    if (sr_waits_asleep())
        (void)cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync); /* affects only speed */
    SR_CUDA(cudaStreamCreateWithFlags(&cuda->own, cudaStreamNonBlocking));
    cuda->stream = cuda->own;
    return SRNN_OK;
}

static srnn_status open_gpu(srnn_device **device, int index, int threads) {
    int count;
    const char *reason;
    void *memory;
    (void)threads;
    *device = nullptr;
    SR_TRY(count_gpus(&count, &reason));
    if (reason)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "cuda:%d: %s", index, reason);
    if (index >= count)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "cuda:%d: this machine has %d GPUs, counted from 0",
                       index, count);
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(cuda_device)));
    cuda_device *cuda = (cuda_device *)memory;
    const srnn_status status = fill(cuda, index);
    if (status != SRNN_OK) {
        free(cuda);
        return status;
    }
    *device = &cuda->base;
    return SRNN_OK;
}

extern "C" const sr_device_kind sr_device_kind_cuda = {
    "cuda", true, count_gpus, describe, open_gpu,
};
