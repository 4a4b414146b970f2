/* runtime.h: how a kernel enters the emulated GPU's queue. */
#ifndef SR_EMULATOR_RUNTIME_H
#define SR_EMULATOR_RUNTIME_H

#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel, or captures it. Its name is a literal; its arguments are from malloc, and are
 * owned by the queue even on failure. */
cudaError_t sr_emulator_launch(const sr_emulated_kernel *kernel, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
