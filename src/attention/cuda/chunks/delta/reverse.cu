/* reverse.cu: the reverse walk of the delta rule by mma.sync, and which GPU has which. */
#include "attention/cuda/chunks/delta/reverse.h"

srnn_status sr_delta_reverse(const sr_chunk_call &call, const sr_chunk_shape &shape,
                             const delta_places &places, cudaStream_t stream) {
    if (shape.capability == 90 && shape.F <= 64)
        return sr_delta_wgmma_reverse(call, shape, places, stream);
    return call.F <= 64 ? start_reverse<delta_products, 64>(call, shape, places, stream)
                        : start_reverse<delta_products, 128>(call, shape, places, stream);
}

size_t sr_delta_walk_bytes(int F) {
    return F <= 64 ? sizeof(reverse_slot<64>) : sizeof(reverse_slot<128>);
}
