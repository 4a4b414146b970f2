/* channel.cu: the core of additive writes with a gate per channel: what it can do, and the steps of
 * a call. */
#include "attention/cuda/chunks/channel.h"
#include "base/memory.h"

static bool fits(const sr_chunk_shape &shape) {
    if (shape.delta || shape.sums_rows || shape.decays <= 1 || shape.F > 128 || shape.V > 128)
        return false;
    const int F = channel_width(shape.F), V = channel_width(shape.V);
    return channel_forward_bytes(F, V) <= shape.shared_bytes &&
           channel_backward_bytes(F, V) <= shape.shared_bytes;
}

struct channel_workspace {
    sr_bf16 *states;
    float *sums;
};

/* Of the backward pass; forward needs none. */
static channel_workspace workspace_of(const sr_chunk_shape &shape, sr_layout *layout) {
    const size_t F = (size_t)channel_width(shape.F), V = (size_t)channel_width(shape.V);
    const size_t heads = (size_t)shape.B * (size_t)shape.Hkv;
    const size_t chunks = heads * (size_t)chunk_count(shape.T);
    return {(sr_bf16 *)sr_layout_take(layout, chunks * F * V, sizeof(sr_bf16)),
            (float *)sr_layout_take(layout, heads * CHANNEL_SUMS * SR_CHUNK * F, sizeof(float))};
}

static size_t workspace_bytes(const sr_chunk_shape &shape, bool backward) {
    sr_layout layout = {};
    if (backward)
        workspace_of(shape, &layout);
    return layout.used;
}

static srnn_status forward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *,
                           cudaStream_t stream) {
    return channel_forward(call, shape, stream);
}

static srnn_status backward(const sr_chunk_call &call, const sr_chunk_shape &shape,
                            void *workspace, cudaStream_t stream) {
    sr_layout layout = {(char *)workspace, 0};
    const channel_workspace places = workspace_of(shape, &layout);
    SR_TRY(channel_states(call, places.states, stream));
    return channel_backward(call, places.states, places.sums, stream);
}

const sr_chunk_core sr_chunk_core_channel = {"channel", fits, workspace_bytes, forward, backward};
