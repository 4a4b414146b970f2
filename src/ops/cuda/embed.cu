/* embed.cu: embedding lookup, and its gradient.
 *
 * Forward moves 8 bytes per number. Backward sorts the rows by token and gives each token that
 * occurs to one block, which adds the token's rows in order: no atomics, bitwise reproducible. It
 * moves 4 bytes per number of d_out, and 8 per number of those rows of d_weight that occur. */
#include "ops/cuda/elements.h"

enum { SORT_TILE = 256, AHEAD = 8 };

/* A thread owns W columns of one output row: copies them from the token's row of the table, global
 * -> registers -> global; a negative token gives zeros. */
template <class N, int W>
static __global__ void __launch_bounds__(256)
    copy_rows(const sr_matrix out, const N *weight, const int32_t *ids) {
    const int64_t row = grid_row(), c = (int64_t)grid_item() * W;
    /* first: the previous kernel may have written weights, which the next one reads before its
     * wait */
    wait_for_previous();
    let_next_start();
    if (row >= out.rows || c >= out.columns)
        return;
    float x[W] = {0};
    if (ids[row] >= 0)
        load_numbers<W>(x, weight + ids[row] * out.columns + c);
    store_numbers<W>((float *)out.data + row * out.stride + c, x);
}

/* A token and its row as one sort key; sorted, tokens come in order, and their rows too. Negative
 * tokens come last. */
SR_DEVICE uint64_t sort_key(int32_t id, int64_t row) {
    return (uint64_t)(uint32_t)id << 32 | (uint64_t)row;
}

/* Builds the keys, and sorts each tile of SORT_TILE of them. A block owns a tile, a thread one key:
 * keys go to shared memory, one barrier, and each thread counts the lesser keys of the tile; no two
 * are equal, so the count is the key's place in the block's part of the workspace. */
static __global__ void __launch_bounds__(SORT_TILE)
    sort_tiles(uint64_t *__restrict__ keys, const int32_t *__restrict__ ids, int64_t rows) {
    __shared__ uint64_t tile[SORT_TILE];
    const int64_t first = (int64_t)blockIdx.x * SORT_TILE, row = first + threadIdx.x;
    const uint64_t key = row < rows ? sort_key(ids[row], row) : UINT64_MAX;
    tile[threadIdx.x] = key;
    __syncthreads();
    int place = 0;
    for (int i = 0; i < SORT_TILE; i++)
        place += tile[i] < key;
    if (row < rows)
        keys[first + place] = key;
}

/* Merges neighbouring runs of `run` sorted keys. A thread owns one key: its place is its index in
 * its own run plus the number of lesser keys in the other run, found by binary search in global
 * memory. `to` and `from` alternate between launches. */
static __global__ void __launch_bounds__(256)
    merge_runs(uint64_t *__restrict__ to, const uint64_t *__restrict__ from, int64_t rows,
               int64_t run) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows)
        return;
    const uint64_t key = from[i];
    const int64_t pair = i / (2 * run) * 2 * run;
    const bool second = i - pair >= run;
    const int64_t other = second ? pair : min(pair + run, rows);
    int64_t low = other, high = second ? pair + run : min(pair + 2 * run, rows);
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (from[middle] < key)
            low = middle + 1;
        else
            high = middle;
    }
    to[(second ? i - run : i) + (low - other)] = key;
}

/* How many of the sorted keys belong to tokens up to this one. */
SR_DEVICE int64_t keys_up_to(const uint64_t *__restrict__ keys, int64_t count, uint32_t id) {
    int64_t low = 0, high = count;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if ((uint32_t)(keys[middle] >> 32) <= id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* d_weight += the rows of d_out. One block per key; only the block of a token's first key works: it
 * owns the token's row of d_weight, a thread W columns of it, and adds the token's rows of d_out in
 * order, eight loads in flight, global -> registers, then stores the sum once. No two blocks have
 * the same token. */
template <int W>
static __global__ void __launch_bounds__(512)
    add_rows(float *d_weight, const sr_matrix d_out, const uint64_t *__restrict__ keys) {
    const int64_t C = d_out.columns, first = blockIdx.x;
    const uint32_t id = (uint32_t)(keys[first] >> 32);
    if ((int32_t)id < 0 || (first > 0 && (uint32_t)(keys[first - 1] >> 32) == id))
        return;
    const int64_t end = keys_up_to(keys, d_out.rows, id);
    const float *__restrict__ from = (const float *)d_out.data;
    for (int64_t c = threadIdx.x * W; c < C; c += blockDim.x * W) {
        float sum[W], x[AHEAD][W];
        load_numbers<W>(sum, d_weight + id * C + c);
        for (int64_t i = first; i < end; i += AHEAD) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (i + k < end)
                    load_numbers<W>(x[k], from + (int64_t)(uint32_t)keys[i + k] * d_out.stride + c);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (i + k < end)
#pragma unroll
                    for (int w = 0; w < W; w++)
                        sum[w] += x[k][w];
        }
        store_numbers<W>(d_weight + id * C + c, sum);
    }
}

srnn_status sr_cuda_embed_forward(sr_backend *backend, sr_matrix out, sr_matrix weight,
                                  const int32_t *ids) {
    const sr_place places[] = {sr_place_of(out), sr_place_of(weight)};
    if (out.rows == 0)
        return SRNN_OK;
    return sr_with_access<4>(weight.dtype, out.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        using N = typename A::N;
        const sr_row_grid blocks = sr_row_grid_of(out.rows, out.columns / A::W);
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), copy_rows<N, A::W>, blocks.grid,
                                blocks.block, 0, sr_stream_of(backend), out, (const N *)weight.data,
                                ids));
        return SRNN_OK;
    });
}

/* *sorted (rows) = the keys in order, in the workspace. */
static srnn_status sort_rows(sr_backend *backend, uint64_t **sorted, const int32_t *ids,
                             int64_t rows) {
    uint64_t *keys = (uint64_t *)sr_workspace_of(backend), *other = keys + rows;
    if (4 * rows > sr_workspace_floats(backend) || rows > UINT32_MAX)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED,
                       "a batch of %lld tokens: CUDA sorts %lld at a time: use a smaller batch",
                       (long long)rows, (long long)sr_workspace_floats(backend) / 4);
    const dim3 blocks((unsigned)sr_pieces(rows, SORT_TILE)), threads(SORT_TILE);
    SR_CUDA(sr_launch(sort_tiles, blocks, threads, 0, sr_stream_of(backend), keys, ids, rows));
    for (int64_t run = SORT_TILE; run < rows; run *= 2) {
        SR_CUDA(sr_launch(merge_runs, blocks, threads, 0, sr_stream_of(backend), other, keys, rows,
                          run));
        uint64_t *merged = other;
        other = keys;
        keys = merged;
    }
    *sorted = keys;
    return SRNN_OK;
}

srnn_status sr_cuda_embed_backward(sr_backend *backend, float *d_weight, sr_matrix d_out,
                                   const int32_t *ids) {
    const sr_place places[] = {sr_place_of(d_out), {d_weight, d_out.columns, SRNN_F32}};
    uint64_t *keys = nullptr;
    if (d_out.rows == 0)
        return SRNN_OK;
    SR_TRY(sort_rows(backend, &keys, ids, d_out.rows));
    return sr_with_access<4>(SRNN_F32, d_out.columns, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        SR_CUDA(sr_launch(add_rows<A::W>, dim3((unsigned)d_out.rows),
                          dim3(sr_row_threads(2 * d_out.columns / A::W)), 0, sr_stream_of(backend),
                          d_weight, d_out, keys));
        return SRNN_OK;
    });
}
