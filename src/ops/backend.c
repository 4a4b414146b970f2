/* backend.c: the one place where backends are made. */
#include "ops/backend.h"

#include "ops/backends.h"

#include <string.h>

/* The kinds of devices (device/registry.c) that implement the ops of a model. */
static const struct {
    const char *kind;
    srnn_status (*create)(sr_backend **backend, const sr_backend_settings *settings);
} rows[] = {
    {"cpu", sr_backend_cpu_create},
    {"cuda", sr_backend_cuda_create},
};

srnn_status sr_backend_create(sr_backend **backend, const sr_backend_settings *settings) {
    sr_device_choice choice;
    *backend = NULL;
    SR_TRY(sr_device_choose(&choice, settings->device));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].kind, choice.kind->name) == 0)
            return rows[i].create(backend, settings);
    return SR_FAIL(SRNN_ERR_UNSUPPORTED, "%s computes attention only, not models",
                   choice.kind->name);
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
