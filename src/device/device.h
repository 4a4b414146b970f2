/* device.h: memory, ordering and graphs of a device; one table of functions per device.
 *
 * Only kernels access device memory; all other code uses the copies here. Kernels run in the order
 * in which they were launched; what they write may be read by the next one, and by the host after
 * wait, or after a copy out, which waits. */
#ifndef SR_DEVICE_DEVICE_H
#define SR_DEVICE_DEVICE_H

#include "base/status.h"
#include "softrnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The attention kernels of a device: attention/kernel.h. */
struct sr_attention_kernels;

/* What a device can do. */
enum {
    SR_DEVICE_IS_HOST = 1 << 0,          /* its memory is the host's; kernels are complete on
                                          * return */
    SR_DEVICE_CAPTURES = 1 << 1,         /* capture, replay, forget and coalesce are available */
    SR_DEVICE_READS_BACK_ASYNC = 1 << 2, /* readback_begin and readback_end are available */
};

struct srnn_device {
    char name[24]; /* "cpu", "cuda:0" */
    unsigned flags;
    int threads; /* for kernels on the host; 0: every core */
    const struct sr_attention_kernels *attention;
    void (*close)(srnn_device *device);

    /* ---- memory: 64-byte aligned at least, uninitialised unless zeroed */
    srnn_status (*allocate)(srnn_device *device, void **out, size_t bytes);
    void (*release)(srnn_device *device, void *memory); /* accepts NULL */
    srnn_status (*copy_in)(srnn_device *device, void *to, const void *host, size_t bytes);
    srnn_status (*copy_out)(srnn_device *device, void *host, const void *from, size_t bytes);
    srnn_status (*copy)(srnn_device *device, void *to, const void *from, size_t bytes);
    srnn_status (*zero)(srnn_device *device, void *memory, size_t bytes);

    /* ---- order: wait until all launched work is done; launch on this stream from now on (NULL:
     * the device's own) */
    srnn_status (*wait)(srnn_device *device);
    srnn_status (*stream)(srnn_device *device, void *stream);

    /* ---- graphs (SR_DEVICE_CAPTURES): capture keeps what `work` launches, and replay launches it
     * again with the same arguments, without calling `work`. coalesce calls `work` and launches the
     * same; in both, small kernels that belong together may be merged into one. */
    srnn_status (*coalesce)(srnn_device *device, srnn_status (*work)(void *context), void *context);
    srnn_status (*capture)(srnn_device *device, void **graph, srnn_status (*work)(void *context),
                           void *context);
    srnn_status (*replay)(srnn_device *device, void *graph);
    void (*forget)(srnn_device *device, void *graph); /* accepts NULL */

    /* ---- asynchronous readback (SR_DEVICE_READS_BACK_ASYNC): begin copies the bytes once
     * everything launched before is done, while later work runs; end waits for them. One at a time,
     * and nothing may write the bytes in between. */
    srnn_status (*readback_begin)(srnn_device *device, const void *from, size_t bytes);
    srnn_status (*readback_end)(srnn_device *device, void *host, size_t bytes);
};

static inline bool sr_device_is_host(const srnn_device *device) {
    return device->flags & SR_DEVICE_IS_HOST;
}
static inline bool sr_device_captures(const srnn_device *device) {
    return device->flags & SR_DEVICE_CAPTURES;
}

/* The same as plain calls. */
static inline srnn_status sr_device_allocate(srnn_device *device, void **out, size_t bytes) {
    return device->allocate(device, out, bytes);
}
static inline void sr_device_release(srnn_device *device, void *memory) {
    device->release(device, memory);
}
static inline srnn_status sr_device_copy_in(srnn_device *device, void *to, const void *host,
                                            size_t bytes) {
    return device->copy_in(device, to, host, bytes);
}
static inline srnn_status sr_device_copy_out(srnn_device *device, void *host, const void *from,
                                             size_t bytes) {
    return device->copy_out(device, host, from, bytes);
}
static inline srnn_status sr_device_copy(srnn_device *device, void *to, const void *from,
                                         size_t bytes) {
    return device->copy(device, to, from, bytes);
}
static inline srnn_status sr_device_zero(srnn_device *device, void *memory, size_t bytes) {
    return device->zero(device, memory, bytes);
}

/* Work that is launched repeatedly: initialise to {0}, end with sr_device_forget. */
typedef struct sr_graph {
    bool warm;      /* called once, so that everything it uses is loaded */
    void *captured; /* NULL: not yet */
} sr_graph;

/* Launches `work`: by a call the first time, or if the device does not capture; later by replaying
 * the captured graph. */
static inline srnn_status sr_device_repeat(srnn_device *device, sr_graph *graph,
                                           srnn_status (*work)(void *context), void *context) {
    const bool captures = sr_device_captures(device);
    if (!captures || !graph->warm) {
        graph->warm = true;
        return captures ? device->coalesce(device, work, context) : work(context);
    }
    if (!graph->captured)
        SR_TRY(device->capture(device, &graph->captured, work, context));
    return device->replay(device, graph->captured);
}

/* Drops the graph, for work that will use other memory. */
static inline void sr_device_forget(srnn_device *device, sr_graph *graph) {
    if (graph->captured)
        device->forget(device, graph->captured);
    graph->captured = NULL;
}

/* The CPU for problems without a device: always available, never closed. */
srnn_device *sr_device_cpu(void);

/* ---- the registry: each kind of device has a folder and a row in registry.c */

enum { SR_DEVICE_NAME = 24, SR_DEVICE_TEXT = 320 };

typedef struct sr_device_kind {
    const char *name; /* "cpu"; "cuda", where "cuda:1" is the second */
    bool numbered;    /* there may be several, counted from 0 */

    /* *count = the number of usable devices. If it is 0, *reason (static text) says why. */
    srnn_status (*count)(int *count, const char **reason);

    /* One line about device number `index`, for display. */
    srnn_status (*describe)(char text[SR_DEVICE_TEXT], int index);

    /* `threads`: for kernels on the host; 0: every core. */
    srnn_status (*open)(srnn_device **device, int index, int threads);
} sr_device_kind;

/* The kinds in the order of the table; NULL past the end. */
const sr_device_kind *sr_device_kind_at(size_t index);

typedef struct sr_device_choice {
    const sr_device_kind *kind;
    int index; /* 0 if none was given */
    bool has_index;
} sr_device_choice;

/* Resolves a device name ("cpu", "cuda", "cuda:1"; NULL: cpu), whether or not the device exists. */
srnn_status sr_device_choose(sr_device_choice *choice, const char *name);

#ifdef __cplusplus
}
#endif

#endif
