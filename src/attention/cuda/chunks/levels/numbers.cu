/* numbers.cu: weights of levels from the caller's numbers, and their gradients, in float: lambda =
 * softplus(L z). */
#include "attention/cuda/chunks/lanes.h"
#include "attention/cuda/chunks/steps.h"
#include "device/cuda/check.h"

/* Thread n has level n % levels of head n / levels, of every token that its block has in turn: so a
 * token's numbers are read side by side. */
struct level_column {
    int h, level;
    float scale;

    SR_DEVICE explicit level_column(const sr_axes_call &call)
        : h((int)threadIdx.x / call.levels), level((int)threadIdx.x % call.levels),
          scale(call.in.level_scale[threadIdx.x]) {
    }

    template <class Use> SR_DEVICE void each(const sr_axes_call &call, const Use &use) const {
        const int64_t tokens = (int64_t)call.B * call.T;
        for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
            const chunk_token at = chunk_token_of(call, token);
            use(at, call.row(call.H, at.b, h, at.t) * call.levels + level,
                call.in.level_gate.at(at.b, h, at.t, level));
        }
    }
};

/* Weights. A thread owns a level of a head (level_column): global -> registers -> global. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_levels(const __grid_constant__ sr_axes_call call) {
    const level_column column(call);
    column.each(call, [&](const chunk_token &, int64_t n, float z) {
        call.scratch.level[n] = gate_softplus(column.scale * z);
    });
}

/* Gradients of z. A thread owns a level of a head (level_column): global -> registers -> global;
 * those of L are added up in registers and stored as partial sums. */
__global__ void __launch_bounds__(CHUNK_LANES_MAX, 1)
    chunk_levels_backward(const __grid_constant__ sr_axes_call call,
                          const __grid_constant__ chunk_partial partial) {
    const level_column column(call);
    float sum[1] = {};
    column.each(call, [&](const chunk_token &at, int64_t n, float z) {
        const float d = call.scratch.d_level[n] * gate_sigmoid(column.scale * z);
        sum[0] = fmaf(d, z, sum[0]);
        if (call.out.level_gate.data)
            call.out.level_gate.put(at.b, column.h, at.t, column.level, (double)(d * column.scale));
    });
    chunk_partial_store(partial, 0, sum);
}

/* More columns than threads of a block: the kernels of axes/. */
static bool has_columns(const sr_axes_call &call) {
    return call.H * call.levels <= CHUNK_LANES_MAX && (int64_t)call.B * call.T <= INT32_MAX;
}

static unsigned blocks_of(const sr_axes_call &call) {
    const int64_t tokens = (int64_t)call.B * call.T;
    const int most = CHUNK_LANES_ALL / (call.H * call.levels);
    return (unsigned)(tokens < most ? tokens : most);
}

srnn_status sr_chunks_levels(const sr_axes_call &call, cudaStream_t stream) {
    if (!call.scratch.level || !has_columns(call))
        return sr_axes_levels(call, stream);
    SR_CUDA(sr_launch(chunk_levels, dim3(blocks_of(call)), dim3((unsigned)(call.H * call.levels)),
                      0, stream, call));
    return SRNN_OK;
}

srnn_status sr_chunks_levels_backward(const sr_axes_call &call, float *sums, cudaStream_t stream) {
    if (call.levels == 0 || !has_columns(call))
        return sr_axes_levels_backward(call, stream);
    const int columns = call.H * call.levels;
    const chunk_partial partial = {sums, (int)blocks_of(call), 1, columns, 1};
    SR_CUDA(sr_launch(chunk_levels_backward, dim3((unsigned)partial.blocks),
                      dim3((unsigned)columns), 0, stream, call, partial));
    return sr_chunks_add_partial(call.out.level_scale, partial, {0, columns, 1, columns}, stream);
}
