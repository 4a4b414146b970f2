/* column_sums.cu: deterministic sums down columns, in two kernels: parts of the rows, then the
 * parts. */
#include "ops/cuda/elements.h"

/* A block has 32 columns, and as many threads per column as it has warps. */
enum { PART_WARPS = 32, ROW_WARPS = 8, PART_ROWS = 256, PARTS = 256 };

/* The sum over the warps of a block, for each lane's column; valid in warp 0. `shared` holds one
 * number per thread. */
template <int warps> SR_DEVICE float sum_over_warps(float x, float *shared) {
    shared[threadIdx.y * SR_WARP + threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.y == 0)
        for (int warp = 1; warp < warps; warp++)
            x += shared[warp * SR_WARP + threadIdx.x];
    return x;
}

/* out += the sums of parts (count, columns). A block owns 32 columns, one per lane; warp w adds
 * parts w, w + 32, ... of global memory in registers; after a barrier warp 0 adds the warps' sums
 * from shared memory, in order, and adds the total to `out`. No atomics. */
static __global__ void __launch_bounds__(SR_WARP *PART_WARPS)
    add_parts(float *out, const float *__restrict__ parts, int64_t count, int64_t columns) {
    __shared__ float shared[SR_WARP * PART_WARPS];
    const int64_t column = (int64_t)blockIdx.x * SR_WARP + threadIdx.x;
    float sum = 0;
    if (column < columns)
#pragma unroll 4
        for (int64_t part = threadIdx.y; part < count; part += PART_WARPS)
            sum += parts[part * columns + column];
    sum = sum_over_warps<PART_WARPS>(sum, shared);
    if (threadIdx.y == 0 && column < columns)
        out[column] += sum;
}

/* parts (gridDim.y, columns) = sums over `part_rows` rows each. Block (x, y) owns 32 columns and
 * the rows of part y; warp w adds rows w, w + 8, ... in registers; after a barrier warp 0 adds the
 * warps' sums from shared memory, in order, and stores the part, for add_parts. */
template <class N>
static __global__ void __launch_bounds__(SR_WARP *ROW_WARPS)
    sum_rows(float *parts, const N *__restrict__ x, int64_t stride, int64_t rows, int64_t columns,
             int64_t part_rows) {
    __shared__ float shared[SR_WARP * ROW_WARPS];
    const int64_t column = (int64_t)blockIdx.x * SR_WARP + threadIdx.x;
    const int64_t first = (int64_t)blockIdx.y * part_rows;
    const int64_t end = min(first + part_rows, rows);
    float sum = 0;
    if (column < columns)
#pragma unroll 4
        for (int64_t row = first + threadIdx.y; row < end; row += ROW_WARPS)
            sum += load_number(x + row * stride + column);
    sum = sum_over_warps<ROW_WARPS>(sum, shared);
    if (threadIdx.y == 0 && column < columns)
        parts[blockIdx.y * columns + column] = sum;
}

srnn_status sr_cuda_add_parts(sr_backend *backend, float *out, const float *parts, int64_t count,
                              int64_t columns) {
    SR_CUDA(sr_launch(add_parts, dim3((unsigned)sr_pieces(columns, SR_WARP)),
                      dim3(SR_WARP, PART_WARPS), 0, sr_stream_of(backend), out, parts, count,
                      columns));
    return SRNN_OK;
}

srnn_status sr_cuda_add_columns(sr_backend *backend, float *out, sr_matrix x) {
    if (x.rows == 0 || x.columns == 0)
        return SRNN_OK;
    const int64_t affordable = sr_maximum(1, sr_workspace_floats(backend) / x.columns);
    const int64_t most = sr_minimum(affordable, sr_minimum(PARTS, sr_pieces(x.rows, PART_ROWS)));
    const int64_t part_rows = sr_pieces(x.rows, most), count = sr_pieces(x.rows, part_rows);
    const dim3 grid((unsigned)sr_pieces(x.columns, SR_WARP), (unsigned)count);
    float *parts = sr_workspace_of(backend);
    if (x.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(sum_rows<sr_bf16>, grid, dim3(SR_WARP, ROW_WARPS), 0,
                          sr_stream_of(backend), parts, (const sr_bf16 *)x.data, x.stride, x.rows,
                          x.columns, part_rows));
    else
        SR_CUDA(sr_launch(sum_rows<float>, grid, dim3(SR_WARP, ROW_WARPS), 0, sr_stream_of(backend),
                          parts, (const float *)x.data, x.stride, x.rows, x.columns, part_rows));
    return sr_cuda_add_parts(backend, out, parts, count, x.columns);
}
