/* absent.c: the CUDA backend of a build without CUDA: the reason why there is none. */
#include "backend/backends.h"

srnn_status sr_backend_cuda_create(sr_backend **backend, const sr_backend_settings *settings) {
    *backend = NULL;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: this build has no CUDA: build it with `make cuda`",
                   settings->device);
}
