/* coalesce.h: how the attention of one token joins the kernels that are merged into one.
 *
 * The persistent decode kernel (ops/cuda/decode) is above this module; it installs these functions
 * with the device. */
#ifndef SR_ATTENTION_CUDA_DECODE_COALESCE_H
#define SR_ATTENTION_CUDA_DECODE_COALESCE_H

#include "attention/cuda/decode/state.h"
#include "device/cuda/device.h"

/* Sequences of a batch that are decoded in one coalesced kernel. */
enum { SR_DECODE_ROWS = 4 };

/* Every coalescer that is installed is one of these. */
struct sr_attention_coalescer_kind {
    sr_cuda_coalescer_kind base; /* first, so that a pointer to it is a pointer to the whole */

    /* A feed of one token that needs no kernel before it; false: the caller launches it. */
    bool (*add_attention)(sr_cuda_coalescer *coalescer, const srnn_device *device,
                          const sr_attention_view<sr_bf16> &call,
                          const sr_kv_cache<sr_bf16> &memory);
};

/* False: the device does not coalesce now, or does not support this call. */
inline bool sr_coalesce_attention(const srnn_device *device, const sr_attention_view<sr_bf16> &call,
                                  const sr_kv_cache<sr_bf16> &memory) {
    sr_cuda_coalescer *const coalescer = sr_cuda_coalescer_open(device);
    const sr_cuda_coalescer_kind *const kind = sr_cuda_coalescer_installed(device);
    return coalescer && ((const sr_attention_coalescer_kind *)kind)
                            ->add_attention(coalescer, device, call, memory);
}

#endif
