/* head.cu: the core of additive writes with a gate per head, or none: what it can do, how walks are
 * cut, and the steps of a call. */
#include "attention/cuda/chunks/head/head.h"

/* Resident blocks of a multiprocessor: of the forward walk by width of features, and of walks for
 * states. */
static int forward_blocks(int F) {
    const int width = head_width(F);
    return width == 64 ? 4 : width == 128 ? 2 : 1;
}
enum { STATES_BLOCKS = 4, SEGMENTS_MAX = 16, SEGMENT_CHUNKS = 2 };

/* Walks that are left after full waves of `together`, or all where they are fewer, are cut into as
 * many segments as fill one wave. */
static head_walks cut(head_walks walks, int together) {
    const int left = together > 0 ? walks.all() % together : walks.all();
    int most = left > 0 ? together / left : 1;
    if (most > SEGMENTS_MAX)
        most = SEGMENTS_MAX;
    if (most > walks.chunks / SEGMENT_CHUNKS)
        most = walks.chunks / SEGMENT_CHUNKS;
    walks.whole = walks.all();
    walks.count = 1;
    walks.each = walks.chunks;
    if (most <= 1)
        return walks;
    walks.whole -= left;
    walks.each = (walks.chunks + most - 1) / most;
    walks.count = (walks.chunks + walks.each - 1) / walks.each;
    return walks;
}

static head_walks walks_of(const sr_chunk_shape &shape, int heads) {
    head_walks walks = {};
    walks.B = shape.B;
    walks.heads = heads;
    walks.slices = head_slices(shape.V);
    walks.chunks = chunk_count(shape.T);
    walks.group = heads / shape.Hkv;
    walks.parts = head_slices(shape.F);
    return walks;
}

head_walks head_forward_walks(const sr_chunk_shape &shape) {
    head_walks walks = walks_of(shape, shape.H);
    walks.parts = head_width(shape.F) / SR_CHUNK; /* a block has all of them */
    return cut(walks, forward_blocks(shape.F) * shape.multiprocessors);
}

head_walks head_states_walks(const sr_chunk_shape &shape) {
    const head_walks walks = walks_of(shape, shape.Hkv);
    return cut(walks, STATES_BLOCKS * shape.multiprocessors / walks.parts);
}

static head_sums sums_of(const head_walks &walks, sr_layout *layout) {
    const size_t sums = (size_t)walks.sums(), parts = (size_t)walks.parts;
    return {(float *)sr_layout_take(layout, sums * parts * SR_PART_NUMBERS, sizeof(float)),
            (float *)sr_layout_take(layout, sums, sizeof(float))};
}

static head_states states_of(const sr_chunk_shape &shape, sr_layout *layout) {
    const size_t heads = (size_t)shape.B * (size_t)shape.Hkv;
    const size_t chunks = heads * (size_t)chunk_count(shape.T);
    const size_t parts = (size_t)head_slices(shape.F), slices = (size_t)head_slices(shape.V);
    const size_t ones = shape.sums_rows ? SR_CHUNK_STRIPS * SR_CHUNK : 0;
    return {(sr_bf16 *)sr_layout_take(layout, chunks * parts * slices * SR_CHUNK_SQUARE,
                                      sizeof(sr_bf16)),
            (float *)sr_layout_take(layout, chunks * parts * ones, sizeof(float))};
}

head_workspace head_workspace_of(const sr_chunk_shape &shape, bool backward, sr_layout *layout) {
    head_workspace workspace = {};
    const head_walks walks = backward ? head_states_walks(shape) : head_forward_walks(shape);
    workspace.sums = sums_of(walks, layout);
    if (backward) {
        workspace.before = states_of(shape, layout);
        workspace.later = states_of(shape, layout);
    }
    return workspace;
}

static bool fits(const sr_chunk_shape &shape) {
    return !shape.delta && shape.decays <= 1 && shape.F <= 256 && shape.V <= 256 &&
           head_forward_bytes(shape.F) <= shape.shared_bytes &&
           head_gradients_bytes(shape.F, shape.V) <= shape.shared_bytes;
}

static size_t workspace_bytes(const sr_chunk_shape &shape, bool backward) {
    sr_layout layout = {};
    head_workspace_of(shape, backward, &layout);
    return layout.used;
}

static srnn_status forward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                           cudaStream_t stream) {
    sr_layout layout = {(char *)workspace, 0};
    const head_walks walks = head_forward_walks(shape);
    const head_sums sums = head_workspace_of(shape, false, &layout).sums;
    SR_TRY(head_key_sums(call, walks, sums, stream));
    return head_forward(call, walks, sums, stream);
}

/* Whether gradients of a chunk are those of single.cu and shared.cu, with so much shared memory. */
static bool is_slice(const sr_chunk_shape &shape, size_t bytes) {
    return shape.group == 1 && !shape.sums_rows && shape.F <= 128 && shape.V <= SR_CHUNK &&
           bytes <= shape.shared_bytes;
}

static srnn_status backward(const sr_chunk_call &call, const sr_chunk_shape &shape, void *workspace,
                            cudaStream_t stream) {
    sr_layout layout = {(char *)workspace, 0};
    const head_walks walks = head_states_walks(shape);
    const head_workspace places = head_workspace_of(shape, true, &layout);
    SR_TRY(head_key_sums(call, walks, places.sums, stream));
    SR_TRY(head_key_states(call, walks, places.sums, places.before, stream));
    SR_TRY(head_query_sums(call, walks, places.sums, stream));
    SR_TRY(head_query_states(call, walks, places.sums, places.later, stream));
    const auto gradients = call.parts > 0                                ? head_shared_gradients
                           : is_slice(shape, head_single_bytes(shape.F)) ? head_single_gradients
                                                                         : head_gradients;
    return gradients(call, places.before, places.later, stream);
}

/* Blocks of shared gradients have as many heads of a chunk as leave eight for each place on the
 * GPU, where there are two on a multiprocessor. */
static int parts(const sr_chunk_shape &shape) {
    enum { BLOCKS = 2 * 8 };
    if (shape.shared == 0 || !is_slice(shape, head_shared_bytes(shape.F)))
        return 0;
    const int64_t chunks = (int64_t)shape.B * shape.shared * chunk_count(shape.T);
    const int sharing = shape.H / shape.shared;
    const int64_t each = sharing * chunks / (BLOCKS * shape.multiprocessors);
    const int heads = each < 1 ? 1 : each > sharing ? sharing : (int)each;
    return (sharing + heads - 1) / heads;
}

const sr_chunk_core sr_chunk_core_head = {"head",  false,    fits, workspace_bytes,
                                          forward, backward, parts};
