/* absent.c: the GPUs of a build without CUDA: none. */
#include "device/registry.h"

static const char *const REASON = "this build has no CUDA: build it with `make cuda`";

static srnn_status count_none(int *count, const char **reason) {
    *count = 0;
    *reason = REASON;
    return SRNN_OK;
}

static srnn_status describe(char text[SR_DEVICE_TEXT], int index) {
    text[0] = '\0';
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "cuda:%d: %s", index, REASON);
}

static srnn_status open_none(srnn_device **device, int index, int threads) {
    (void)threads;
    *device = NULL;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "cuda:%d: %s", index, REASON);
}

const sr_device_kind sr_device_kind_cuda = {
    .name = "cuda",
    .numbered = true,
    .count = count_none,
    .describe = describe,
    .open = open_none,
};
