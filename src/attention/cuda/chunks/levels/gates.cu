/* gates.cu: sums of gates up to the boundaries of the tree, and what gradients of gates have from
 * other chunks. */
#include "attention/cuda/chunks/levels/tree.h"
#include "device/cuda/check.h"

enum { GATES_THREADS = 256 };

/* A block owns a head of keys and values. A thread adds the gates of the chunk before its boundary
 * in double, to global memory; after a barrier warp 0 scans the windows, 32 at a time, beginning
 * again where a document's first boundary is. */
__global__ void __launch_bounds__(GATES_THREADS, 1)
    tree_boundary_sums(const __grid_constant__ sr_chunk_call call,
                       const __grid_constant__ tree_shape shape, double *sums) {
    const int b = (int)blockIdx.x / call.Hkv, head = (int)blockIdx.x % call.Hkv;
    const tree_row row = tree_row_of(call, b);
    const float *const gate = call.gate + call.row(call.Hkv, b, head, 0);
    double *const own = sums + shape.number(call, b, head, 0);
    for (int w = (int)threadIdx.x; w < shape.windows; w += GATES_THREADS) {
        const int boundary = row.boundary(w);
        double sum = 0;
        for (int t = max(boundary - SR_CHUNK, 0); t < boundary; t++)
            sum += row.first[t] == t ? 0 : (double)gate[t];
        own[w] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= SR_WARP)
        return;
    const int lane = (int)threadIdx.x;
    double carry = 0;
    for (int w0 = 0; w0 < shape.windows; w0 += SR_WARP) {
        const int w = w0 + lane;
        const int boundary = w < shape.windows ? row.boundary(w) : -1;
        double with = w < shape.windows ? own[w] : 0;
        int closed = boundary >= 0 && row.first[boundary] == boundary - SR_CHUNK;
        for (int distance = 1; distance < SR_WARP; distance *= 2) {
            const double earlier = shuffle_up(with, distance);
            const int earlier_closed = shuffle_up(closed, distance);
            if (lane >= distance) {
                with += closed ? 0 : earlier;
                closed |= earlier_closed;
            }
        }
        with += closed ? 0 : carry;
        if (w < shape.windows)
            own[w] = with;
        carry = shuffle(with, SR_WARP - 1);
    }
}

/* A warp owns the chunk that begins at the boundary in a window of a head: the lanes add what later
 * chunks have read across it, and what earlier ones have written across it, bit by bit, then every
 * gate of the chunk gets the sum. */
__global__ void __launch_bounds__(GATES_THREADS, 1)
    tree_gates_across(const __grid_constant__ sr_chunk_call call,
                      const __grid_constant__ tree_shape shape,
                      const __grid_constant__ tree_arrays tree) {
    const int lane = (int)threadIdx.x % SR_WARP;
    const int64_t number = (int64_t)blockIdx.x * (GATES_THREADS / SR_WARP) + threadIdx.x / SR_WARP;
    if (number >= (int64_t)call.B * call.Hkv * shape.windows)
        return;
    const int64_t head = number / shape.windows;
    const int window = (int)(number % shape.windows);
    const tree_row row = tree_row_of(call, (int)(head / call.Hkv));
    const int t0 = row.boundary(window);
    if (t0 < 0)
        return;
    const tree_chunk chunk = row.chunk(t0);
    const int start = row.first[t0], n = chunk.n;
    float sum = 0;
    for (int z = 0; z < TREE_NODES; z++) {
        const int begin = n >> z << z, past = begin + (1 << z); /* of the chunk's node */
        if (n >> z & 1) {
            for (int m = n + 1 + lane; m < past; m += SR_WARP) {
                const int t = start + SR_CHUNK * m;
                if (row.inside(t, start))
                    sum += tree.of_queries[(head * shape.windows + t / SR_CHUNK) * TREE_NODES + z];
            }
        } else if (row.inside(start + SR_CHUNK * past, start)) {
            for (int m = begin + lane; m < n; m += SR_WARP)
                sum += tree.of_keys[(head * shape.windows + (start + SR_CHUNK * m) / SR_CHUNK + 1) *
                                        TREE_NODES +
                                    z];
        }
    }
    sum = warp_sum(sum);
    for (int t = t0 + lane; t < chunk.span.past; t += SR_WARP)
        call.d_gate[head * call.T + t] += sum;
}

srnn_status tree_gates(const sr_chunk_call &call, const tree_arrays &tree, cudaStream_t stream) {
    if (call.decays)
        SR_CUDA(sr_launch(tree_boundary_sums, dim3((unsigned)(call.B * call.Hkv)),
                          dim3(GATES_THREADS), 0, stream, call, tree_shape_of(call), tree.sums));
    return SRNN_OK;
}

srnn_status tree_gates_backward(const sr_chunk_call &call, const tree_arrays &tree,
                                cudaStream_t stream) {
    const tree_shape shape = tree_shape_of(call);
    const int64_t warps = (int64_t)call.B * call.Hkv * shape.windows,
                  each = GATES_THREADS / SR_WARP;
    SR_CUDA(sr_launch(tree_gates_across, dim3((unsigned)((warps + each - 1) / each)),
                      dim3(GATES_THREADS), 0, stream, call, shape, tree));
    return SRNN_OK;
}
