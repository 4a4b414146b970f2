/* absent.c: the CUDA backend of a build without CUDA: reports why there is none; stubs for
 * tests. */
#include "ops/backends.h"
#include "ops/collective.h"
#include "ops/cuda/gemm/gemm.h"

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

/* There is no device to open it for; the other functions of collective.h are never called. */
static srnn_status no_gpus(void) {
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "this build has no CUDA: its ranks compute on CPUs");
}

srnn_status sr_collective_id(char id[SR_COLLECTIVE_ID]) {
    (void)id;
    return no_gpus();
}

srnn_status sr_collective_open(sr_collective **collective, srnn_device *device,
                               const char id[SR_COLLECTIVE_ID], int rank, int count) {
    (void)device, (void)id, (void)rank, (void)count;
    *collective = NULL;
    return no_gpus();
}

void sr_collective_close(sr_collective *collective) {
    (void)collective;
}

void sr_collective_begin(sr_collective *collective) {
    (void)collective;
}

srnn_status sr_collective_look(sr_collective *collective, sr_collective_state *state) {
    (void)collective, (void)state;
    return no_gpus();
}

srnn_status sr_collective_fork(sr_collective *collective) {
    (void)collective;
    return no_gpus();
}

srnn_status sr_collective_join(sr_collective *collective) {
    (void)collective;
    return no_gpus();
}

srnn_status sr_collective_scatter(sr_collective *collective, float *own, const float *all,
                                  sr_divided divided) {
    (void)collective, (void)own, (void)all, (void)divided;
    return no_gpus();
}

srnn_status sr_collective_gather(sr_collective *collective, void *all, srnn_dtype dtype,
                                 sr_divided divided) {
    (void)collective, (void)all, (void)dtype, (void)divided;
    return no_gpus();
}

srnn_status sr_collective_exchange(sr_collective *collective, float *all, const int64_t *bounds) {
    (void)collective, (void)all, (void)bounds;
    return no_gpus();
}

srnn_status sr_collective_sum(sr_collective *collective, float *numbers, int64_t count) {
    (void)collective, (void)numbers, (void)count;
    return no_gpus();
}

srnn_status sr_collective_sum_doubles(sr_collective *collective, double *numbers, int64_t count) {
    (void)collective, (void)numbers, (void)count;
    return no_gpus();
}

srnn_status sr_collective_sum_integers(sr_collective *collective, int64_t *numbers, int64_t count) {
    (void)collective, (void)numbers, (void)count;
    return no_gpus();
}

srnn_status sr_collective_send(sr_collective *collective, const void *data, size_t bytes, int to) {
    (void)collective, (void)data, (void)bytes, (void)to;
    return no_gpus();
}

srnn_status sr_collective_begin_messages(sr_collective *collective) {
    (void)collective;
    return SRNN_OK;
}

srnn_status sr_collective_end_messages(sr_collective *collective) {
    (void)collective;
    return SRNN_OK;
}

srnn_status sr_collective_receive(sr_collective *collective, void *data, size_t bytes, int from) {
    (void)collective, (void)data, (void)bytes, (void)from;
    return no_gpus();
}
