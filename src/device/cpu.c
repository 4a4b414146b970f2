/* cpu.c: the CPU as a device: host memory, kernels that are complete on return. */
#include "device/registry.h"

#include "base/memory.h"
#include "base/threads.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu_device {
    srnn_device base; /* first, so that a pointer to it is a pointer to the whole */
    size_t memory;    /* bytes available when it was opened; SIZE_MAX: unknown */
    size_t taken;     /* bytes allocated since, counted if there is a limit */
} cpu_device;

/* Bytes of memory available from the system, SIZE_MAX if unknown. */
static size_t available_memory(void) {
    char line[128];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1)
            break;
    if (file)
        fclose(file);
    return kilobytes ? (size_t)kilobytes * 1024 : SIZE_MAX;
}

/* Systems overcommit memory and kill the program when it is used; so allocations are counted
 * against what was available. */
static srnn_status allocate_counted(srnn_device *device, void **out, size_t bytes) {
    cpu_device *cpu = (cpu_device *)device;
    *out = NULL;
    if (bytes > cpu->memory || cpu->taken > cpu->memory - bytes)
        return SR_FAIL(SRNN_ERR_MEMORY,
                       "%.1f MB more are needed, but of the %.1f MB that were free %.1f MB are "
                       "taken: use a smaller batch or shorter rows (train also has --recompute "
                       "block)",
                       (double)bytes / 1e6, (double)cpu->memory / 1e6, (double)cpu->taken / 1e6);
    SR_TRY(sr_alloc(out, bytes, 1));
    cpu->taken += malloc_usable_size(*out);
    return SRNN_OK;
}

static void release_counted(srnn_device *device, void *memory) {
    if (memory)
        ((cpu_device *)device)->taken -= malloc_usable_size(memory);
    free(memory);
}

static srnn_status allocate(srnn_device *device, void **out, size_t bytes) {
    (void)device;
    return sr_alloc(out, bytes, 1);
}

static void release(srnn_device *device, void *memory) {
    (void)device;
    free(memory);
}

static srnn_status copy(srnn_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    memcpy(to, from, bytes);
    return SRNN_OK;
}

/* Gradients of a model are many megabytes, too much for one core. */
enum { ZERO_BYTES = 1 << 18 };

typedef struct zero_job {
    char *memory;
    size_t bytes;
} zero_job;

static void zero_stretch(void *context, int64_t task, int worker) {
    const zero_job *job = context;
    const size_t first = (size_t)task * ZERO_BYTES, left = job->bytes - first;
    (void)worker;
    memset(job->memory + first, 0, left < ZERO_BYTES ? left : ZERO_BYTES);
}

static srnn_status zero(srnn_device *device, void *memory, size_t bytes) {
    zero_job job = {memory, bytes};
    sr_parallel(zero_stretch, &job, (int64_t)((bytes + ZERO_BYTES - 1) / ZERO_BYTES),
                sr_thread_count(device->threads));
    return SRNN_OK;
}

static srnn_status wait_for_nothing(srnn_device *device) {
    (void)device;
    return SRNN_OK;
}

static srnn_status stream(srnn_device *device, void *stream) {
    (void)device;
    return stream ? SR_FAIL(SRNN_ERR_UNSUPPORTED, "the CPU has no streams") : SRNN_OK;
}

static void close_counted(srnn_device *device) {
    free(device);
}

static void close_nothing(srnn_device *device) {
    (void)device;
}

static srnn_device table = {
    .name = "cpu",
    .flags = SR_DEVICE_IS_HOST,
    .attention = &sr_cpu_attention,
    .close = close_nothing,
    .allocate = allocate,
    .release = release,
    .copy_in = copy,
    .copy_out = copy,
    .copy = copy,
    .zero = zero,
    .wait = wait_for_nothing,
    .stream = stream,
};

srnn_device *sr_device_cpu(void) {
    return &table;
}

static srnn_status count_one(int *count, const char **reason) {
    *count = 1;
    *reason = NULL;
    return SRNN_OK;
}

static srnn_status describe(char text[SR_DEVICE_TEXT], int index) {
    (void)index;
    snprintf(text, SR_DEVICE_TEXT, "%d threads", sr_thread_count(0));
    return SRNN_OK;
}

/* Allocates no more memory than was available when it was opened. */
static srnn_status open_counted(srnn_device **device, int index, int threads) {
    void *memory;
    (void)index;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(cpu_device)));
    cpu_device *cpu = memory;
    *cpu = (cpu_device){.base = table, .memory = available_memory()};
    cpu->base.threads = threads;
    cpu->base.close = close_counted;
    cpu->base.allocate = allocate_counted;
    cpu->base.release = release_counted;
    *device = &cpu->base;
    return SRNN_OK;
}

const sr_device_kind sr_device_kind_cpu = {
    .name = "cpu",
    .count = count_one,
    .describe = describe,
    .open = open_counted,
};
