/* absent.c: the CUDA backend of a build without CUDA: the reason why there is none, and what tests ask of it. */
#include "backend/backends.h"
#include "backend/cuda/product.h"

srnn_status sr_backend_cuda_create(sr_backend **backend, const sr_backend_settings *settings) {
    *backend = NULL;
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s: this build has no CUDA: build it with `make cuda`",
                   settings->device);
}

int64_t sr_cuda_few_rows(const sr_backend *backend, int64_t N) {
    (void)backend;
    (void)N;
    return 0;
}
