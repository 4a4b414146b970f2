/* status.c: status names and the thread-local detail text of the last failure. */
#include "base/status.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char detail[1024];

/* Details quote untrusted text from files, which is escaped. */
srnn_status sr_fail(srnn_status status, const char *format, ...) {
    char raw[sizeof detail];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(raw, sizeof raw, format, arguments);
    va_end(arguments);
    sr_text_escape(detail, sizeof detail, raw);
    return status;
}

const char *srnn_error_detail(void) {
    return detail;
}

const char *srnn_status_name(srnn_status status) {
    switch (status) {
    case SRNN_OK:
        return "success";
    case SRNN_ERR_ARGUMENT:
        return "wrong argument";
    case SRNN_ERR_MEMORY:
        return "out of memory";
    case SRNN_ERR_IO:
        return "input/output error";
    case SRNN_ERR_FORMAT:
        return "malformed file or text";
    case SRNN_ERR_UNSUPPORTED:
        return "not supported";
    case SRNN_ERR_LIMIT:
        return "over a limit";
    case SRNN_ERR_INTERRUPTED:
        return "interrupted";
    }
    return "unknown status";
}
