/* device.cu: the GPUs of this machine, and one of them as a device: memory, order, recordings. */
#include "device/cuda/device.h"

#include "attention/cuda/decode/tasks.h"
#include "attention/cuda/kernels.h"
#include "base/memory.h"
#include "device/cuda/check.h"
#include "device/cuda/platform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Takes letters to the host beside the device's stream. All of it is made with the first letter. */
struct postman {
    cudaStream_t stream;
    cudaEvent_t written, delivered;
    void *letter; /* host memory, `bytes` of it */
    size_t bytes;
};

struct cuda_device {
    srnn_device base; /* first, so that a pointer to it is a pointer to the whole */
    int index;
    sr_cuda_device facts;
    cudaStream_t own, stream; /* its own, and the one in use */
    sr_chain *chain;          /* NULL: nothing was gathered yet, or it is too old for that */
    void *lists;              /* (SR_CHAIN_LISTS) device memory, for what is not recorded */
    postman letters;
};

/* A graph, and what its kernels read. */
struct recording {
    cudaGraphExec_t graph;
    void *lists; /* device memory */
};

srnn_status sr_cuda_device_count(int *count, const char **reason) {
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
        cudaGetLastError(); /* takes the error back, so that it is not seen again later */
    }
    return SRNN_OK;
}

srnn_status sr_cuda_device_describe(sr_cuda_device *device, int index) {
    cudaDeviceProp facts;
    SR_CUDA(cudaGetDeviceProperties(&facts, index));
    *device = {};
    snprintf(device->name, sizeof device->name, "%s", facts.name);
    device->memory_bytes = facts.totalGlobalMem;
    device->multiprocessors = facts.multiProcessorCount;
    device->capability_major = facts.major;
    device->capability_minor = facts.minor;
    return SRNN_OK;
}

static cuda_device *cuda_of(srnn_device *device) {
    return (cuda_device *)device;
}

cudaStream_t sr_cuda_stream(const srnn_device *device) {
    const cuda_device *cuda = (const cuda_device *)device;
    cudaSetDevice(
        cuda->index); /* a number in this thread; what fails will fail again at the launch */
    if (cuda->chain)
        sr_chain_start(cuda->chain, cuda->stream);
    return cuda->stream;
}

sr_chain *sr_cuda_chain(const srnn_device *device) {
    return ((const cuda_device *)device)->chain;
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
                   "batch or shorter rows (train also has --recompute)",
                   (double)bytes / 1e6, device->name, (double)available / 1e6, (double)whole / 1e6);
}

static void release(srnn_device *device, void *memory) {
    if (!memory)
        return;
    cudaStreamSynchronize(sr_cuda_stream(device)); /* kernels may still use it */
    cudaFree(memory);
}

static srnn_status copy_in(srnn_device *device, void *to, const void *host, size_t bytes) {
    SR_CUDA(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, sr_cuda_stream(device)));
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
    sr_cuda_stream(device); /* what was put off belongs to the one before */
    cuda->stream = stream ? (cudaStream_t)stream : cuda->own;
    return SRNN_OK;
}

/* ---- letters ---- */

static srnn_status hire(postman *p) {
    if (p->delivered)
        return SRNN_OK;
    if (!p->stream)
        SR_CUDA(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    if (!p->written)
        SR_CUDA(cudaEventCreateWithFlags(&p->written, cudaEventDisableTiming));
    SR_CUDA(cudaEventCreateWithFlags(&p->delivered, cudaEventDisableTiming));
    return SRNN_OK;
}

static void dismiss(postman *p) {
    if (p->stream) {
        cudaStreamSynchronize(p->stream);
        cudaStreamDestroy(p->stream);
    }
    if (p->written)
        cudaEventDestroy(p->written);
    if (p->delivered)
        cudaEventDestroy(p->delivered);
    cudaFreeHost(p->letter);
}

/* A copy to memory that the GPU cannot reach by itself would wait for it. */
static srnn_status letter_room(postman *p, size_t bytes) {
    if (p->bytes >= bytes)
        return SRNN_OK;
    cudaFreeHost(p->letter);
    p->letter = nullptr;
    p->bytes = 0;
    SR_CUDA(cudaMallocHost(&p->letter, bytes));
    p->bytes = bytes;
    return SRNN_OK;
}

static srnn_status post(srnn_device *device, const void *from, size_t bytes) {
    postman *p = &cuda_of(device)->letters;
    const cudaStream_t stream = sr_cuda_stream(device);
    SR_TRY(hire(p));
    SR_TRY(letter_room(p, bytes));
    SR_CUDA(cudaEventRecord(p->written, stream));
    SR_CUDA(cudaStreamWaitEvent(p->stream, p->written, 0));
    SR_CUDA(cudaMemcpyAsync(p->letter, from, bytes, cudaMemcpyDeviceToHost, p->stream));
    SR_CUDA(cudaEventRecord(p->delivered, p->stream));
    return SRNN_OK;
}

static srnn_status collect(srnn_device *device, void *host, size_t bytes) {
    const postman *p = &cuda_of(device)->letters;
    SR_CUDA(cudaEventSynchronize(p->delivered));
    memcpy(host, p->letter, bytes);
    return SRNN_OK;
}

/* ---- gathering ---- */

/* What is needed for the first time. */
static srnn_status chain_take(cuda_device *cuda) {
    if (cuda->chain || cuda->facts.capability_major != 9)
        return SRNN_OK;
    SR_TRY(allocate(&cuda->base, &cuda->lists, SR_CHAIN_LISTS));
    return sr_chain_create(&cuda->chain, cuda->facts.multiprocessors, sr_cuda_stream(&cuda->base));
}

/* Small kernels that `work` starts are put together; `lists`: as sr_chain_open. */
static srnn_status gather_into(cuda_device *cuda, void *lists, bool recorded,
                               srnn_status (*work)(void *context), void *context) {
    if (!cuda->chain || sr_chain_is_open(cuda->chain))
        return work(context);
    sr_chain_open(cuda->chain, (char *)lists, recorded);
    const srnn_status status = work(context);
    sr_cuda_stream(&cuda->base); /* starts the rest */
    const srnn_status started = sr_chain_close(cuda->chain);
    return status != SRNN_OK ? status : started;
}

static srnn_status gather(srnn_device *device, srnn_status (*work)(void *context), void *context) {
    cuda_device *cuda = cuda_of(device);
    SR_TRY(chain_take(cuda));
    return gather_into(cuda, cuda->lists, false, work, context);
}

/* ---- recordings: graphs ---- */

static void forget(srnn_device *device, void *recorded) {
    recording *r = (recording *)recorded;
    if (!r)
        return;
    cudaStreamSynchronize(sr_cuda_stream(device));
    if (r->graph)
        cudaGraphExecDestroy(r->graph);
    cudaFree(r->lists);
    free(r);
}

static srnn_status capture(cuda_device *cuda, recording *r, srnn_status (*work)(void *context),
                           void *context) {
    const cudaStream_t stream = sr_cuda_stream(&cuda->base);
    cudaGraph_t graph = nullptr;
    SR_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    srnn_status status = gather_into(cuda, r->lists, true, work, context);
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    if (status == SRNN_OK && ended != cudaSuccess)
        status =
            SR_FAIL(SRNN_ERR_UNSUPPORTED, "CUDA: recording a step: %s", cudaGetErrorString(ended));
    if (status == SRNN_OK && cudaGraphInstantiate(&r->graph, graph, 0) != cudaSuccess)
        status = SR_FAIL(SRNN_ERR_UNSUPPORTED, "CUDA: a recorded step: %s",
                         cudaGetErrorString(cudaGetLastError()));
    if (graph)
        cudaGraphDestroy(graph);
    return status;
}

static srnn_status fill_recording(cuda_device *cuda, recording *r,
                                  srnn_status (*work)(void *context), void *context) {
    SR_TRY(chain_take(cuda));
    if (!cuda->chain)
        return capture(cuda, r, work, context);
    SR_TRY(allocate(&cuda->base, &r->lists, SR_CHAIN_LISTS));
    SR_TRY(capture(cuda, r, work, context));
    return sr_chain_send(cuda->chain, cuda->stream);
}

static srnn_status record(srnn_device *device, void **recorded, srnn_status (*work)(void *context),
                          void *context) {
    void *memory;
    *recorded = nullptr;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(recording)));
    const srnn_status status = fill_recording(cuda_of(device), (recording *)memory, work, context);
    if (status != SRNN_OK) {
        forget(device, memory);
        return status;
    }
    *recorded = memory;
    return SRNN_OK;
}

static srnn_status replay(srnn_device *device, void *recorded) {
    SR_CUDA(cudaGraphLaunch(((recording *)recorded)->graph, sr_cuda_stream(device)));
    return SRNN_OK;
}

/* ---- opening ---- */

static void close_device(srnn_device *device) {
    cuda_device *cuda = cuda_of(device);
    if (cuda->own) {
        cudaStreamSynchronize(sr_cuda_stream(device));
        dismiss(&cuda->letters);
        sr_chain_free(cuda->chain);
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
    SR_TRY(sr_cuda_device_describe(&cuda->facts, index));
    SR_TRY(check(&cuda->facts, index));
    snprintf(base->name, sizeof base->name, "cuda:%d", index);
    base->threads = 1;
    base->close = close_device;
    base->allocate = allocate;
    base->release = release;
    base->copy_in = copy_in;
    base->copy_out = copy_out;
    base->copy = copy;
    base->zero = zero;
    base->wait = wait_for_all;
    base->stream = set_stream;
    base->post = post;
    base->collect = collect;
    base->gather = gather;
    base->record = record;
    base->replay = replay;
    base->forget = forget;
    base->kernels = sr_cuda_attention_kernels;
    base->state_kernel = sr_cuda_state_kernel;
    base->chunked_pays = sr_cuda_chunked_pays;
    cuda->index = index;
    SR_CUDA(cudaSetDevice(index));
    SR_CUDA(cudaStreamCreateWithFlags(&cuda->own, cudaStreamNonBlocking));
    cuda->stream = cuda->own;
    return SRNN_OK;
}

srnn_status sr_device_cuda_open(srnn_device **device, int index) {
    int count;
    const char *reason;
    void *memory;
    *device = nullptr;
    SR_TRY(sr_cuda_device_count(&count, &reason));
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
