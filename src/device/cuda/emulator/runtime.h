/* runtime.h: how a kernel enters the emulated GPU's queue. */
#ifndef SR_EMULATOR_RUNTIME_H
#define SR_EMULATOR_RUNTIME_H

#include "device/cuda/emulator/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queues the kernel, or records it. Its name is a literal; its arguments are from malloc, and pass
 * to the queue whatever comes of it. */
cudaError_t sr_emulator_launch(const sr_emulated_kernel *kernel, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
