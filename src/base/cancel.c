/* cancel.c: calls that stop on request. */
#include "base/cancel.h"

#include "base/clock.h"

/* Seconds between calls of the user's callback: it may cost microseconds, and the delay is not
 * noticeable. */
static const double interval = 0.05;

/* The callback of this thread's calls. */
static _Thread_local struct {
    bool (*should_stop)(void *context);
    void *context;
    double next;      /* time of the next call */
    atomic_bool stop; /* the callback's answer during this call */
} own;

/* The flag of the call that this thread works for, its own or another's; NULL: none. */
static _Thread_local atomic_bool *followed;

void srnn_stop_when(bool (*should_stop)(void *context), void *context) {
    own.should_stop = should_stop;
    own.context = context;
}

void sr_cancel_begin(void) {
    if (!own.should_stop)
        return;
    atomic_store(&own.stop, false);
    own.next = sr_clock_seconds() + interval;
    followed = &own.stop;
}

srnn_status sr_cancel_end(srnn_status status) {
    const bool stopped = followed && atomic_load(followed);
    followed = NULL;
    if (status == SRNN_OK && stopped)
        return SR_FAIL(SRNN_ERR_INTERRUPTED, "stopped on request: there is no result");
    return status;
}

/* The callback may itself call the library, as a handler of a signal in Python does: such calls
 * cannot be stopped, and leave the state of the outer call alone. */
static void poll_callback(void) {
    const double now = sr_clock_seconds();
    if (now < own.next)
        return;
    bool (*const should_stop)(void *context) = own.should_stop;
    own.should_stop = NULL;
    followed = NULL;
    const bool stop = should_stop(own.context);
    followed = &own.stop;
    own.should_stop = should_stop;
    own.next = sr_clock_seconds() + interval;
    if (stop)
        atomic_store(&own.stop, true);
}

bool sr_cancelled(void) {
    if (!followed)
        return false;
    if (followed == &own.stop && !atomic_load_explicit(&own.stop, memory_order_relaxed))
        poll_callback();
    return atomic_load_explicit(followed, memory_order_relaxed);
}

atomic_bool *sr_cancel_flag(void) {
    return followed;
}

void sr_cancel_follow(atomic_bool *flag) {
    followed = flag;
}
