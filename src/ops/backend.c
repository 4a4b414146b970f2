/* backend.c: the one place where backends are made. */
#include "ops/backend.h"

#include "ops/backends.h"

#include <string.h>

srnn_status sr_backend_create(sr_backend **backend, const sr_backend_settings *settings) {
    const char *device = settings->device ? settings->device : "cpu";
    *backend = NULL;
    if (strcmp(device, "cpu") == 0)
        return sr_backend_cpu_create(backend, settings);
    if (strncmp(device, "cuda", 4) == 0)
        return sr_backend_cuda_create(backend, settings);
    return SR_FAIL(SRNN_ERR_ARGUMENT, "there is no device '%s': use cpu, cuda or cuda:N", device);
}

void sr_backend_free(sr_backend *backend) {
    if (backend)
        backend->destroy(backend);
}

int64_t sr_adamw_piece(const sr_adamw *a, int64_t from, bool *decays) {
    int64_t end = a->n;
    *decays = true;
    for (size_t i = 0; i < a->undecayed_count; i++) {
        const int64_t first = a->undecayed[i].first - a->first,
                      last = a->undecayed[i].end - a->first;
        if (last <= from)
            continue;
        *decays = from < first;
        end = *decays ? first : last;
        break;
    }
    return end < a->n ? end : a->n;
}
