/* runtime.c: the host side of CUDA: work that is queued, captured and replayed.
 *
 * There is one queue for all streams, drained as late as allowed: only when the host waits for
 * something. A host that reads a result too early, or reuses a buffer that a copy has yet to read,
 * gets wrong numbers here as it might on a GPU. Work is done in the order of the calls, which every
 * order of streams allows. One lock guards everything. */
#include "device/cuda/emulator/runtime.h"

#include "base/clock.h"
#include "base/threads.h"
#include "device/cuda/emulator/cooperative.h"
#include "device/cuda/emulator/memory.h"

#include <pthread.h>
#include <stdio.h>

enum { DRIVER_VERSION = 13000, MULTIPROCESSORS = 132 };

typedef enum work_kind { KERNEL, COPY, FILL, CALL, EVENT, GRAPH } work_kind;

/* One item of work. A graph and the queue may both hold it. */
typedef struct work {
    work_kind kind;
    int holders;
    sr_emulated_kernel kernel; /* with its arguments */
    int64_t together;          /* this many neighbouring blocks are co-resident */
    struct {
        char *to;
        const char *from;
        size_t to_pitch, from_pitch, width, height;
    } copy;
    void *staged; /* a copy of the source, from memory that is not pinned */
    int value;    /* to fill with */
    cudaHostFn_t function;
    void *context;
    cudaEvent_t event;
    cudaGraphExec_t graph;
} work;

typedef struct work_list {
    work **work;
    size_t count, capacity;
} work_list;

struct CUgraph_st {
    work_list list;
    pthread_t thread; /* that captures it */
    bool everywhere;  /* while it is captured no thread may wait or allocate, not this one alone */
};

struct CUgraphExec_st {
    work_list list;
    int holders; /* its creator, and each launch in the queue */
};

struct CUstream_st {
    cudaGraph_t recording; /* NULL: not capturing */
    bool began;            /* capture began on this stream */
    struct CUstream_st *next;
};

/* May be destroyed before the queue reaches its last record: the queue keeps it alive. */
struct CUevent_st {
    cudaGraph_t recording; /* was recorded on a capturing stream */
    double seconds;
    bool waiting; /* recorded, and the queue has not reached it */
    int holders;
};

/* Host memory that the GPU reads and writes asynchronously. */
typedef struct pinned {
    char *start;
    size_t bytes;
    struct pinned *next;
} pinned;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static work_list queue;
static struct CUstream_st legacy_stream; /* NULL, to the caller */
static struct CUstream_st *streams = &legacy_stream;
static _Thread_local cudaError_t last_error; /* of this thread's calls */
static cudaError_t broken;                   /* of a kernel, permanent */
static uint64_t kernels_run;
static pinned *pinned_memory;

/* ---- lists of work ---- */

static void graph_release(cudaGraphExec_t graph);

static void event_release(cudaEvent_t event) {
    if (--event->holders == 0)
        free(event);
}

static void work_release(work *w) {
    if (--w->holders > 0)
        return;
    free((void *)(uintptr_t)w->kernel.arguments);
    free(w->staged);
    if (w->event != NULL)
        event_release(w->event);
    if (w->graph != NULL)
        graph_release(w->graph);
    free(w);
}

static bool list_add(work_list *list, work *w) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        work **more = realloc(list->work, capacity * sizeof *more);
        if (more == NULL)
            return false;
        list->work = more;
        list->capacity = capacity;
    }
    list->work[list->count++] = w;
    w->holders++;
    return true;
}

static void list_clear(work_list *list) {
    for (size_t i = 0; i < list->count; i++)
        work_release(list->work[i]);
    free(list->work);
    *list = (work_list){0};
}

static void graph_release(cudaGraphExec_t graph) {
    if (--graph->holders > 0)
        return;
    list_clear(&graph->list);
    free(graph);
}

/* ---- executing it ---- */

typedef struct grid {
    const sr_emulated_kernel *kernel;
    bool failed;
} grid;

static uint3 block_index(const grid *g, uint64_t n) {
    const dim3 size = g->kernel->grid;
    return (uint3){(unsigned int)(n % size.x), (unsigned int)(n / size.x % size.y),
                   (unsigned int)(n / size.x / size.y)};
}

static void run_block(void *context, int64_t task, int worker) {
    grid *g = context;
    const uint64_t n = (uint64_t)task;
    (void)worker;
    if (__atomic_load_n(&g->failed, __ATOMIC_RELAXED))
        return;
    if (!sr_emulator_block_run(g->kernel, block_index(g, n), (n + kernels_run) % 2 == 0))
        __atomic_store_n(&g->failed, true, __ATOMIC_RELAXED);
}

/* A block on its own host thread. */
typedef struct lone_block {
    pthread_t thread;
    grid *grid;
    sr_emulated_party *party;
    int64_t first, number; /* of the party; of this one in it */
} lone_block;

static void *run_lone_block(void *context) {
    const lone_block *b = context;
    grid *g = b->grid;
    const uint64_t n = (uint64_t)(b->first + b->number);
    if (!sr_emulator_block_run_among(g->kernel, block_index(g, n), (n + kernels_run) % 2 == 0,
                                     b->party, (int)b->number))
        __atomic_store_n(&g->failed, true, __ATOMIC_RELAXED);
    return NULL;
}

/* Co-resident blocks: `first` and those after it. */
static void run_together(grid *g, int64_t first, int64_t blocks) {
    lone_block *all = calloc((size_t)blocks, sizeof *all);
    sr_emulated_party party = {.failed = &g->failed, .blocks = (int)blocks};
    int64_t started = 0;
    for (; all && started < blocks; started++) {
        all[started] = (lone_block){.grid = g, .party = &party, .first = first, .number = started};
        if (pthread_create(&all[started].thread, NULL, run_lone_block, &all[started]) != 0)
            break;
    }
    if (started < blocks)
        __atomic_store_n(&g->failed, true, __ATOMIC_RELAXED);
    for (int64_t n = 0; n < started; n++)
        pthread_join(all[n].thread, NULL);
    free(all);
}

static void run_kernel(const sr_emulated_kernel *kernel, int64_t together) {
    grid g = {kernel, false};
    const int64_t blocks =
        (int64_t)kernel->grid.x * (int64_t)kernel->grid.y * (int64_t)kernel->grid.z;
    for (int64_t first = 0; together > 0 && first < blocks && !g.failed; first += together)
        run_together(&g, first, together);
    if (together == 0)
        sr_parallel(run_block, &g, blocks, sr_thread_count(0));
    kernels_run++;
    if (g.failed)
        broken = cudaErrorLaunchFailure;
}

static void run_list(const work_list *list);

static void run_work(const work *w) {
    switch (w->kind) {
    case KERNEL:
        run_kernel(&w->kernel, w->together);
        break;
    case COPY:
        for (size_t row = 0; row < w->copy.height; row++)
            memmove(w->copy.to + row * w->copy.to_pitch, w->copy.from + row * w->copy.from_pitch,
                    w->copy.width);
        break;
    case FILL:
        memset(w->copy.to, w->value, w->copy.width);
        break;
    case CALL:
        w->function(w->context);
        break;
    case EVENT:
        w->event->seconds = sr_clock_seconds();
        w->event->waiting = false;
        break;
    case GRAPH:
        run_list(&w->graph->list);
        break;
    }
}

static void run_list(const work_list *list) {
    for (size_t i = 0; i < list->count && broken == cudaSuccess; i++)
        run_work(list->work[i]);
}

/* Drains the queue. */
static void drain(void) {
    if (queue.count == 0)
        return;
    sr_emulator_memory_open();
    run_list(&queue);
    sr_emulator_memory_close();
    list_clear(&queue);
}

/* ---- the calls ---- */

static cudaStream_t stream_of(cudaStream_t stream) {
    return stream == NULL ? &legacy_stream : stream;
}

/* What a call returns: its own error, or that of a kernel that failed since. Unlocks. */
static cudaError_t answer(cudaError_t error) {
    if (broken != cudaSuccess)
        error = broken;
    if (error != cudaSuccess)
        last_error = error;
    pthread_mutex_unlock(&lock);
    return error;
}

/* A capture that this thread must not disturb. */
static bool anything_records(void) {
    for (const struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (s->recording != NULL &&
            (s->recording->everywhere || pthread_equal(s->recording->thread, pthread_self())))
            return true;
    return false;
}

/* Allocation is not allowed during capture. Locks. */
static cudaError_t begin_outside(void) {
    pthread_mutex_lock(&lock);
    return anything_records() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

/* Nor is waiting. Locks. */
static cudaError_t begin_wait(void) {
    cudaError_t error = begin_outside();
    if (error == cudaSuccess)
        drain();
    return error;
}

/* Passes w, and its ownership, to the queue or the capturing graph; locked. */
static cudaError_t submit(work *w, cudaStream_t stream) {
    cudaGraph_t recording = stream_of(stream)->recording;
    w->holders = 1;
    const bool added = list_add(recording != NULL ? &recording->list : &queue, w);
    if (added && recording == NULL && w->kind == EVENT)
        w->event->waiting = true;
    work_release(w);
    return added ? cudaSuccess : cudaErrorMemoryAllocation;
}

static work *work_create(work_kind kind) {
    work *w = calloc(1, sizeof *w);
    if (w != NULL)
        w->kind = kind;
    return w;
}

static cudaError_t launch(const sr_emulated_kernel *kernel, cudaStream_t stream, int64_t together) {
    const dim3 g = kernel->grid, b = kernel->block;
    const size_t threads = (size_t)b.x * b.y * b.z;
    const bool right = threads > 0 && threads <= SR_EMULATOR_THREADS && b.z <= 64 && g.x > 0 &&
                       g.y > 0 && g.z > 0 && g.x < 1u << 31 && g.y < 1u << 16 && g.z < 1u << 16 &&
                       kernel->shared_bytes <= SR_EMULATOR_SHARED_BYTES &&
                       (together == 0 || (int64_t)g.x * g.y * g.z % together == 0);
    pthread_mutex_lock(&lock);
    work *w = right ? work_create(KERNEL) : NULL;
    if (w == NULL) {
        free((void *)(uintptr_t)kernel->arguments);
        return answer(right ? cudaErrorMemoryAllocation : cudaErrorInvalidConfiguration);
    }
    w->kernel = *kernel;
    w->together = together;
    return answer(submit(w, stream));
}

cudaError_t sr_emulator_launch(const sr_emulated_kernel *kernel, cudaStream_t stream) {
    return launch(kernel, stream, 0);
}

cudaError_t sr_emulator_launch_together(const sr_emulated_kernel *kernel, int size,
                                        cudaStream_t stream) {
    const int64_t blocks = (int64_t)kernel->grid.x * kernel->grid.y * kernel->grid.z;
    return launch(kernel, stream, size > 0 ? size : blocks);
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    cudaError_t error = begin_outside();
    *memory = NULL;
    if (error == cudaSuccess && bytes > 0) {
        *memory = sr_emulator_memory_take(bytes);
        error = *memory == NULL ? cudaErrorMemoryAllocation : cudaSuccess;
    }
    return answer(error);
}

cudaError_t cudaFree(void *memory) {
    cudaError_t error = begin_wait();
    if (error == cudaSuccess && memory != NULL && !sr_emulator_memory_give(memory))
        error = cudaErrorInvalidValue;
    return answer(error);
}

cudaError_t cudaMallocHost(void **memory, size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocDefault);
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags) {
    (void)flags;
    cudaError_t error = begin_outside();
    *memory = NULL;
    if (error != cudaSuccess)
        return answer(error);
    pinned *p = malloc(sizeof *p);
    char *start = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL || start == NULL) {
        free(p);
        free(start);
        return answer(cudaErrorMemoryAllocation);
    }
    *p = (pinned){start, bytes, pinned_memory};
    pinned_memory = p;
    *memory = start;
    return answer(cudaSuccess);
}

cudaError_t cudaFreeHost(void *memory) {
    cudaError_t error = begin_wait();
    pinned **link = &pinned_memory;
    while (*link != NULL && (*link)->start != memory)
        link = &(*link)->next;
    pinned *found = *link;
    if (error != cudaSuccess || memory == NULL)
        return answer(error);
    if (found == NULL)
        return answer(cudaErrorInvalidValue);
    *link = found->next;
    free(found->start);
    free(found);
    return answer(cudaSuccess);
}

static bool is_pinned(const void *address) {
    for (const pinned *p = pinned_memory; p != NULL; p = p->next)
        if ((const char *)address >= p->start && (const char *)address < p->start + p->bytes)
            return true;
    return false;
}

/* Whether `bytes` bytes at `address` are device memory or not, as `on_device` says. */
static bool lies(const void *address, size_t bytes, bool on_device) {
    return on_device ? sr_emulator_memory_holds(address, bytes)
                     : address != NULL && !sr_emulator_memory_has(address);
}

/* CUDA reads memory that is not pinned before it returns, and has written to it when it returns. */
static bool stage(work *w) {
    char *staged = malloc(w->copy.width * w->copy.height);
    if (staged == NULL)
        return false;
    for (size_t row = 0; row < w->copy.height; row++)
        memcpy(staged + row * w->copy.width, w->copy.from + row * w->copy.from_pitch,
               w->copy.width);
    w->staged = staged;
    w->copy.from = staged;
    w->copy.from_pitch = w->copy.width;
    return true;
}

static cudaError_t copy_submit(const work *wanted, enum cudaMemcpyKind kind, cudaStream_t stream) {
    const size_t rows = wanted->copy.height, width = wanted->copy.width;
    if (rows == 0 || width == 0)
        return cudaSuccess;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to_device = sr_emulator_memory_has(wanted->copy.to);
        from_device = sr_emulator_memory_has(wanted->copy.from);
    }
    if (wanted->copy.to_pitch < width || wanted->copy.from_pitch < width ||
        !lies(wanted->copy.to, (rows - 1) * wanted->copy.to_pitch + width, to_device) ||
        !lies(wanted->copy.from, (rows - 1) * wanted->copy.from_pitch + width, from_device))
        return cudaErrorInvalidValue;
    work *w = work_create(COPY);
    if (w == NULL)
        return cudaErrorMemoryAllocation;
    w->copy = wanted->copy;
    const bool recorded = stream_of(stream)->recording != NULL;
    if (!recorded && !from_device && !is_pinned(w->copy.from) && !stage(w)) {
        free(w);
        return cudaErrorMemoryAllocation;
    }
    cudaError_t error = submit(w, stream);
    if (!recorded && !to_device && !is_pinned(wanted->copy.to))
        drain();
    return error;
}

/* CUDA's own parameters. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
    const work wanted = {.copy = {to, from, to_pitch, from_pitch, width, height}};
    pthread_mutex_lock(&lock);
    return answer(copy_submit(&wanted, kind, stream));
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    const work wanted = {.copy = {to, from, bytes, bytes, bytes, 1}};
    cudaError_t error = begin_wait();
    if (error == cudaSuccess)
        error = copy_submit(&wanted, kind, NULL);
    if (error == cudaSuccess)
        drain();
    return answer(error);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    if (bytes == 0)
        return answer(cudaSuccess);
    if (!sr_emulator_memory_holds(to, bytes))
        return answer(cudaErrorInvalidValue);
    work *w = work_create(FILL);
    if (w == NULL)
        return answer(cudaErrorMemoryAllocation);
    w->copy.to = to;
    w->copy.width = bytes;
    w->value = value;
    return answer(submit(w, stream));
}

cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return cudaMemsetAsync(to, value, bytes, NULL);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    pthread_mutex_lock(&lock);
    *total_bytes = SR_EMULATOR_MEMORY_BYTES;
    *free_bytes = SR_EMULATOR_MEMORY_BYTES - sr_emulator_memory_used();
    return answer(cudaSuccess);
}

/* ---- streams and events ---- */

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL)
        return answer(cudaErrorMemoryAllocation);
    (*stream)->next = streams;
    streams = *stream;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = begin_wait();
    struct CUstream_st **link = &streams;
    while (*link != NULL && *link != stream)
        link = &(*link)->next;
    if (stream == NULL || *link == NULL)
        return answer(cudaErrorInvalidResourceHandle);
    *link = stream->next;
    free(stream);
    return answer(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    (void)stream;
    return answer(begin_wait());
}

cudaError_t cudaDeviceSynchronize(void) {
    return answer(begin_wait());
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return cudaStreamSynchronize(stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    /* A stream that waits for captured work joins the capture; otherwise the queue's order
     * suffices. */
    if (event->recording != NULL)
        stream_of(stream)->recording = event->recording;
    return answer(cudaSuccess);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context) {
    pthread_mutex_lock(&lock);
    work *w = work_create(CALL);
    if (w == NULL)
        return answer(cudaErrorMemoryAllocation);
    w->function = function;
    w->context = context;
    return answer(submit(w, stream));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    *event = calloc(1, sizeof **event);
    if (*event == NULL)
        return answer(cudaErrorMemoryAllocation);
    (*event)->holders = 1;
    return answer(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    event_release(event);
    return answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    event->recording = stream_of(stream)->recording;
    work *w = work_create(EVENT);
    if (w == NULL)
        return answer(cudaErrorMemoryAllocation);
    w->event = event;
    event->holders++;
    return answer(submit(w, stream));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    if (event->waiting)
        drain();
    return answer(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return cudaEventSynchronize(event);
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    pthread_mutex_lock(&lock);
    if (start->waiting || end->waiting)
        return answer(cudaErrorNotReady);
    *milliseconds = (float)((end->seconds - start->seconds) * 1e3);
    return answer(cudaSuccess);
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    pthread_mutex_lock(&lock);
    if (stream == NULL || stream->recording != NULL)
        return answer(cudaErrorStreamCaptureUnsupported);
    stream->recording = calloc(1, sizeof *stream->recording);
    stream->began = stream->recording != NULL;
    if (stream->began) {
        stream->recording->thread = pthread_self();
        stream->recording->everywhere = mode == cudaStreamCaptureModeGlobal;
    }
    return answer(stream->began ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    pthread_mutex_lock(&lock);
    *graph = NULL;
    if (stream == NULL || !stream->began)
        return answer(cudaErrorStreamCaptureInvalidated);
    *graph = stream->recording;
    for (struct CUstream_st *s = streams; s != NULL; s = s->next)
        if (s->recording == *graph) {
            s->recording = NULL;
            s->began = false;
        }
    for (size_t i = 0; i < (*graph)->list.count; i++)
        if ((*graph)->list.work[i]->kind == EVENT)
            (*graph)->list.work[i]->event->recording = NULL;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    pthread_mutex_lock(&lock);
    *status = stream_of(stream)->recording != NULL ? cudaStreamCaptureStatusActive
                                                   : cudaStreamCaptureStatusNone;
    return answer(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    pthread_mutex_lock(&lock);
    *count = graph->list.count;
    return answer(nodes == NULL ? cudaSuccess : cudaErrorNotSupported);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph,
                                 unsigned long long flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    *executable = calloc(1, sizeof **executable);
    if (*executable == NULL)
        return answer(cudaErrorMemoryAllocation);
    (*executable)->holders = 1;
    for (size_t i = 0; i < graph->list.count; i++)
        if (!list_add(&(*executable)->list, graph->list.work[i])) {
            graph_release(*executable);
            *executable = NULL;
            return answer(cudaErrorMemoryAllocation);
        }
    return answer(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
    (void)executable;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    work *w = work_create(GRAPH);
    if (w == NULL)
        return answer(cudaErrorMemoryAllocation);
    w->graph = executable;
    executable->holders++;
    return answer(submit(w, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    pthread_mutex_lock(&lock);
    if (graph != NULL)
        list_clear(&graph->list);
    free(graph);
    return answer(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    pthread_mutex_lock(&lock);
    if (executable != NULL)
        graph_release(executable);
    return answer(cudaSuccess);
}

/* ---- the device ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : cudaErrorInvalidDevice;
}

/* The host never waits here: it does the work. */
cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *facts, int device) {
    if (device != 0)
        return cudaErrorInvalidDevice;
    *facts = (cudaDeviceProp){
        .name = "emulated GPU",
        .totalGlobalMem = SR_EMULATOR_MEMORY_BYTES,
        .sharedMemPerBlock = 48 * 1024,
        .sharedMemPerBlockOptin = SR_EMULATOR_SHARED_BYTES,
        .sharedMemPerMultiprocessor = SR_EMULATOR_SHARED_BYTES + 1024,
        .warpSize = SR_EMULATOR_WARP,
        .maxThreadsPerBlock = SR_EMULATOR_THREADS,
        .regsPerBlock = 65536,
        .major = 9,
        .multiProcessorCount = MULTIPROCESSORS,
        .l2CacheSize = 50 << 20,
        .memoryBusWidth = 64,
    };
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaDeviceProp facts;
    cudaError_t error = cudaGetDeviceProperties(&facts, device);
    if (error != cudaSuccess)
        return error;
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        *value = facts.maxThreadsPerBlock;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = facts.multiProcessorCount;
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = facts.l2CacheSize;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = facts.major;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = facts.minor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)facts.sharedMemPerMultiprocessor;
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)facts.sharedMemPerBlockOptin;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

/* Resets the device, also after a kernel that failed: memory is freed and the queue dropped. */
cudaError_t cudaDeviceReset(void) {
    pthread_mutex_lock(&lock);
    list_clear(&queue);
    sr_emulator_memory_give_all();
    broken = last_error = cudaSuccess;
    return answer(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return cudaSuccess;
}

/* ---- failures ---- */

cudaError_t cudaGetLastError(void) {
    pthread_mutex_lock(&lock);
    const cudaError_t error = broken != cudaSuccess ? broken : last_error;
    last_error = cudaSuccess;
    pthread_mutex_unlock(&lock);
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    pthread_mutex_lock(&lock);
    const cudaError_t error = broken != cudaSuccess ? broken : last_error;
    pthread_mutex_unlock(&lock);
    return error;
}

const char *cudaGetErrorName(cudaError_t error) {
#define NAME(error) \
    case error:     \
        return #error
    switch (error) {
        NAME(cudaSuccess);
        NAME(cudaErrorInvalidValue);
        NAME(cudaErrorMemoryAllocation);
        NAME(cudaErrorInvalidConfiguration);
        NAME(cudaErrorInsufficientDriver);
        NAME(cudaErrorNoDevice);
        NAME(cudaErrorInvalidDevice);
        NAME(cudaErrorNoKernelImageForDevice);
        NAME(cudaErrorInvalidResourceHandle);
        NAME(cudaErrorNotReady);
        NAME(cudaErrorIllegalAddress);
        NAME(cudaErrorLaunchTimeout);
        NAME(cudaErrorLaunchFailure);
        NAME(cudaErrorNotSupported);
        NAME(cudaErrorStreamCaptureUnsupported);
        NAME(cudaErrorStreamCaptureInvalidated);
        NAME(cudaErrorUnknown);
    }
#undef NAME
    return "an error without a name";
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorLaunchFailure ? sr_emulator_failure() : cudaGetErrorName(error);
}
