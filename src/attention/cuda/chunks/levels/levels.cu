/* levels.cu: the core of additive writes with levels: what it can do, and the steps of a call. */
#include "attention/cuda/chunks/levels/tree.h"

static sr_bf16 *take_tiles(const sr_chunk_shape &shape, sr_layout *layout) {
    const size_t chunks = (size_t)shape.B * (size_t)shape.Hkv * (size_t)chunk_count(shape.T);
    const size_t tiles = (size_t)(tree_slices(shape.F) * tree_slices(shape.V));
    return (sr_bf16 *)sr_layout_take(layout, chunks * tiles * SR_CHUNK_SQUARE, sizeof(sr_bf16));
}

tree_arrays tree_arrays_of(const sr_chunk_shape &shape, bool backward, sr_layout *layout) {
    const size_t chunks = (size_t)shape.B * (size_t)shape.Hkv * (size_t)chunk_count(shape.T);
    tree_arrays tree = {};
    tree.sums = (double *)sr_layout_take(layout, chunks, sizeof(double));
    tree.states = take_tiles(shape, layout);
    if (!backward)
        return tree;
    tree.later = take_tiles(shape, layout);
    tree.of_queries = (float *)sr_layout_take(layout, chunks * TREE_NODES, sizeof(float));
    tree.of_keys = (float *)sr_layout_take(layout, chunks * TREE_NODES, sizeof(float));
    return tree;
}

static bool fits(const sr_chunk_shape &shape) {
    return !shape.delta && !shape.sums_rows && shape.decays <= 1 && shape.levels >= TREE_INSIDE &&
           shape.levels <= TREE_LEVELS && shape.F <= 128 && shape.V <= 128 &&
           tree_forward_bytes(shape.F) <= shape.shared_bytes &&
           tree_gradients_bytes(shape.F, shape.V) <= shape.shared_bytes;
}

static size_t workspace_bytes(const sr_chunk_shape &shape, bool backward) {
    sr_layout layout = {};
    tree_arrays_of(shape, backward, &layout);
    return layout.used;
}

static srnn_status forward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                           cudaStream_t stream) {
    sr_layout layout = {(char *)workspace, 0};
    const tree_arrays tree = tree_arrays_of(shape, false, &layout);
    SR_TRY(tree_gates(call, tree, stream));
    SR_TRY(tree_key_nodes(call, tree, stream));
    return tree_forward(call, tree, stream);
}

static srnn_status backward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                            cudaStream_t stream) {
    sr_layout layout = {(char *)workspace, 0};
    const tree_arrays tree = tree_arrays_of(shape, true, &layout);
    SR_TRY(tree_gates(call, tree, stream));
    SR_TRY(tree_key_nodes(call, tree, stream));
    SR_TRY(tree_query_nodes(call, tree, stream));
    SR_TRY(tree_gradients(call, tree, stream));
    return call.decays ? tree_gates_backward(call, tree, stream) : SRNN_OK;
}

const sr_chunk_core sr_chunk_core_levels = {"levels", false,    fits,   workspace_bytes,
                                            forward,  backward, nullptr};
