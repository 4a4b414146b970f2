/* device.h: where arrays live and attention kernels run, declared once for every device.
 *
 * A device is a table of functions, none of them NULL but those that say so. Its memory belongs to
 * its kernels: nobody else reads or writes it but through the copies here. Kernels run in the order
 * in which they were started; what they write may be read by the next one, and by the host after
 * wait, or after a copy out, which waits. */
#ifndef SR_DEVICE_DEVICE_H
#define SR_DEVICE_DEVICE_H

#include "attention/kernel.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct srnn_device {
    char name[24]; /* "cpu", "cuda:0" */
    int threads;   /* of the host's kernels; 0: every core */
    void (*close)(srnn_device *device);

    /* ---- memory: 64-byte aligned at least, uninitialised unless zeroed */
    srnn_status (*allocate)(srnn_device *device, void **out, size_t bytes);
    void (*release)(srnn_device *device, void *memory); /* accepts NULL */
    srnn_status (*copy_in)(srnn_device *device, void *to, const void *host, size_t bytes);
    srnn_status (*copy_out)(srnn_device *device, void *host, const void *from, size_t bytes);
    srnn_status (*copy)(srnn_device *device, void *to, const void *from, size_t bytes);
    srnn_status (*zero)(srnn_device *device, void *memory, size_t bytes);

    /* ---- order: everything started so far is over; kernels run on this stream from now on (NULL:
     * the device's own) */
    srnn_status (*wait)(srnn_device *device);
    srnn_status (*stream)(srnn_device *device, void *stream);

    /* ---- recording: what `work` starts is kept and started again by replay, with the same
     * arguments and without calling `work`; a device without a recorder (all NULL) calls it. gather calls it too, and
     * starts the same: what belongs together may be put together, here as in a recording. */
    srnn_status (*gather)(srnn_device *device, srnn_status (*work)(void *context), void *context);
    srnn_status (*record)(srnn_device *device, void **recording, srnn_status (*work)(void *context),
                          void *context);
    srnn_status (*replay)(srnn_device *device, void *recording);
    void (*forget)(srnn_device *device, void *recording); /* accepts NULL */

    /* ---- a letter to the host: what these bytes hold after all that was started before, while what is started later
     * goes on; one at a time, and nothing writes them before it is collected. Both NULL: nothing goes on while the host does
     * something else. */
    srnn_status (*post)(srnn_device *device, const void *from, size_t bytes);
    srnn_status (*collect)(srnn_device *device, void *host, size_t bytes);

    /* ---- attention: kernels, best first, ended by NULL; how states of a problem are kept, with a
     * fixed size or as keys and values (NULL: they are not) */
    const sr_attention_kernel *const *(*kernels)(void);
    const sr_state_kernel *(*state_kernel)(const srnn_problem *problem, bool fixed);

    /* Whether the chunked form of a problem that has a state is faster here than the parallel one. */
    bool (*chunked_pays)(const srnn_problem *problem);
};

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

/* Work that is done again and again: {0} at first, sr_device_forget at the end. */
typedef struct sr_repeated {
    bool warm;       /* it was called once, so that everything it uses is loaded */
    void *recording; /* NULL: not yet */
} sr_repeated;

/* Starts `work`: by calling it at first and where the device has no recorder, by a recording of it later. */
static inline srnn_status sr_device_repeat(srnn_device *device, sr_repeated *repeated,
                                           srnn_status (*work)(void *context), void *context) {
    if (!device->record || !repeated->warm) {
        repeated->warm = true;
        return device->gather ? device->gather(device, work, context) : work(context);
    }
    if (!repeated->recording)
        SR_TRY(device->record(device, &repeated->recording, work, context));
    return device->replay(device, repeated->recording);
}

/* Work that uses other memory from now on must be recorded again. */
static inline void sr_device_forget(srnn_device *device, sr_repeated *repeated) {
    if (repeated->recording)
        device->forget(device, repeated->recording);
    repeated->recording = NULL;
}

/* The CPU as problems without a device have it: always there, never closed. */
srnn_device *sr_device_cpu(void);

/* The CPU with `threads` threads (0: every core), which gives no more memory than the machine had
 * free when it was opened. */
srnn_status sr_device_cpu_open(srnn_device **device, int threads);

/* GPU number `index`, or the reason why there is none. */
srnn_status sr_device_cuda_open(srnn_device **device, int index);

#ifdef __cplusplus
}
#endif

#endif
