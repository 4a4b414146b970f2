/* status.h: how failures are reported inside the library. */
#ifndef SR_BASE_STATUS_H
#define SR_BASE_STATUS_H

#include "softrnn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets this thread's detail text (printf style), with sr_text_escape, and returns `status`. */
srnn_status sr_fail(srnn_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The place that detects a failure: return SR_FAIL(SRNN_ERR_FORMAT, "%s: bad magic", path); */
#define SR_FAIL(...) sr_fail(__VA_ARGS__)

/* Everyone else forwards it: SR_TRY(sr_shard_open(&shard, path)); */
#define SR_TRY(call)                        \
    do {                                    \
        srnn_status sr_try_status = (call); \
        if (sr_try_status != SRNN_OK)       \
            return sr_try_status;           \
    } while (0)

#ifdef __cplusplus
}
#endif

#endif
