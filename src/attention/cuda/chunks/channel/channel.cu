/* channel.cu: the core of gates per channel, additive writes or the delta rule: supported shapes,
 * workspace, and the steps of a call. */
#include "attention/cuda/chunks/channel/channel.h"
#include "base/memory.h"

static bool fits(const sr_chunk_shape &shape) {
    return !shape.sums_rows && shape.decays > 1 && shape.F <= 128 &&
           sr_channel_bytes(shape.F) <= shape.shared_bytes;
}

static channel_places places_of(const sr_chunk_shape &shape, bool backward, sr_layout *layout) {
    const size_t heads = (size_t)shape.B * (size_t)shape.Hkv, chunks = (size_t)chunk_count(shape.T);
    const size_t keys = heads * chunks, queries = keys * (size_t)shape.group;
    const size_t width = shape.F <= 64 ? 64 : 128, tile = SR_CHUNK * width;
    const size_t slices = ((size_t)shape.V + SR_CHUNK - 1) / SR_CHUNK;
    const auto take = [&](bool wanted, size_t count) {
        return wanted ? (sr_bf16 *)sr_layout_take(layout, count, sizeof(sr_bf16)) : nullptr;
    };
    channel_places places = {};
    places.queries = take(true, queries * tile);
    places.readers = take(shape.delta, keys * tile);
    places.writers = take(true, keys * tile);
    places.scores = take(true, queries * SR_DELTA_PAIRS);
    places.solved = take(shape.delta, keys * SR_DELTA_PAIRS);
    places.factors = (float *)sr_layout_take(layout, keys * CHANNEL_FACTORS * width, sizeof(float));
    places.used = take(backward && shape.delta, keys * slices * SR_CHUNK_SQUARE);
    places.states = take(backward, keys * slices * tile);
    places.d_states = take(backward, keys * slices * tile);
    return places;
}

static size_t workspace(const sr_chunk_shape &shape, bool backward) {
    sr_layout layout = {};
    places_of(shape, backward, &layout);
    return layout.used;
}

static srnn_status forward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *memory,
                           cudaStream_t stream) {
    sr_layout layout = {(char *)memory, 0};
    const channel_places places = places_of(shape, false, &layout);
    SR_TRY(sr_channel_prepare(call, places, stream));
    return sr_channel_forward(call, places, stream);
}

static srnn_status backward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *memory,
                            cudaStream_t stream) {
    sr_layout layout = {(char *)memory, 0};
    const channel_places places = places_of(shape, true, &layout);
    SR_TRY(sr_channel_prepare(call, places, stream));
    SR_TRY(sr_channel_states(call, places, stream));
    SR_TRY(sr_channel_reverse(call, places, stream));
    return sr_channel_outputs(call, places, stream);
}

const sr_chunk_core sr_chunk_core_channel = {"channel", false,    fits,   workspace,
                                             forward,   backward, nullptr};
