/* backends.h (private): the existing backends; sr_backend_create chooses one. */
#ifndef SR_OPS_BACKENDS_H
#define SR_OPS_BACKENDS_H

#include "ops/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As sr_backend_create, which has only read the name of the device. */
srnn_status sr_backend_cpu_create(sr_backend **backend, const sr_backend_settings *settings);
srnn_status sr_backend_cuda_create(sr_backend **backend, const sr_backend_settings *settings);

#ifdef __cplusplus
}
#endif

#endif
