/* delta.cu: the delta rule in chunks, without decay or with one per head: supported shapes,
 * workspace, and the steps of a call.
 *
 * Forward is one walk. Backward walks forward again for U, X and the states before chunks, then
 * back for the gradients of the states and of the values, and then finds all other gradients,
 * every chunk for itself. */
#include "attention/cuda/chunks/delta/walk.h"
#include "base/memory.h"

static bool fits(const sr_chunk_shape &shape) {
    return shape.delta && !shape.sums_rows && shape.decays <= 1 && shape.F <= 128 &&
           shape.V <= 128 && shape.capability >= 80 &&
           sr_delta_walk_bytes(shape.F) <= shape.shared_bytes &&
           sr_delta_outputs_bytes(shape.F, shape.V) <= shape.shared_bytes;
}

/* Rows and blocks start at multiples of 16 bytes: all counts are multiples of 8. */
static delta_places places_of(const sr_chunk_shape &shape, sr_layout *layout) {
    const size_t heads = (size_t)shape.B * (size_t)shape.Hkv;
    const size_t chunks = heads * (size_t)delta_chunks(shape.T);
    const size_t state = (size_t)shape.F * (size_t)shape.V;
    const auto take = [&](size_t count) {
        return (sr_bf16 *)sr_layout_take(layout, (count + 127) / 128 * 128, sizeof(sr_bf16));
    };
    delta_places places = {};
    places.states = take(chunks * state);
    places.d_states = take(chunks * state);
    places.used = take(heads * (size_t)shape.T * (size_t)shape.V);
    places.solved = take(chunks * SR_DELTA_PAIRS);
    return places;
}

static size_t workspace(const sr_chunk_shape &shape, bool backward) {
    sr_layout layout = {};
    if (backward)
        places_of(shape, &layout);
    return layout.used;
}

static srnn_status forward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *,
                           cudaStream_t stream) {
    return sr_delta_forward(call, shape, stream);
}

static srnn_status backward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *memory,
                            cudaStream_t stream) {
    sr_layout layout = {(char *)memory, 0};
    const delta_places places = places_of(shape, &layout);
    SR_TRY(sr_delta_states(call, shape, places, stream));
    SR_TRY(sr_delta_reverse(call, shape, places, stream));
    return sr_delta_outputs(call, places, stream);
}

const sr_chunk_core sr_chunk_core_delta = {"delta", true,     fits,   workspace,
                                           forward, backward, nullptr};
