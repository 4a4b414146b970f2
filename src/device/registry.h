/* registry.h (private): the kinds of devices, each defined in its own folder. */
#ifndef SR_DEVICE_REGISTRY_H
#define SR_DEVICE_REGISTRY_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const sr_device_kind sr_device_kind_cpu, sr_device_kind_cuda;

/* Their attention kernels, which belong to a module above this one and are resolved at link
 * time. */
extern const struct sr_attention_kernels sr_cpu_attention, sr_cuda_attention;

#ifdef __cplusplus
}
#endif

#endif
