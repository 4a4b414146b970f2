/* forward.cu: the walks of the delta rule by mma.sync, and which GPU has which. */
#include "attention/cuda/chunks/delta/forward.h"

/* Whether the walks by wgmma can compute a call. */
static bool by_wgmma(const sr_chunk_shape &shape) {
    return shape.capability == 90 && shape.F <= 64;
}

srnn_status sr_delta_forward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             cudaStream_t stream) {
    if (by_wgmma(shape))
        return sr_delta_wgmma_forward(call, shape, stream);
    const delta_places none = {};
    return call.F <= 64 ? start_forward_any<delta_products, 64, false>(call, shape, none, stream)
                        : start_forward_any<delta_products, 128, false>(call, shape, none, stream);
}

srnn_status sr_delta_states(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            const delta_places &places, cudaStream_t stream) {
    if (by_wgmma(shape))
        return sr_delta_wgmma_states(call, shape, places, stream);
    return call.F <= 64 ? start_forward_any<delta_products, 64, true>(call, shape, places, stream)
                        : start_forward_any<delta_products, 128, true>(call, shape, places, stream);
}
