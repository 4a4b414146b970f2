/* rope.cu: RoPE, in place. Bytes per number: 2 + 2 (bf16), 4 + 4 (float); the table stays in the
 * caches. */
#include "attention/cuda/shared/rope.h"
#include "ops/cuda/elements.h"

/* sign 1 applies RoPE, -1 its inverse, to the first `width` channels of each head. A thread owns W
 * channels of the first half of these and their partner channels of the second half, of one row:
 * loads both and their angles, global -> registers, rotates, stores both in place. */
template <class N, int W>
static __global__ void __launch_bounds__(256)
    apply_rope(N *x, int64_t stride, int64_t rows, const sr_rope rope, float sign) {
    const int64_t row = grid_row();
    const int half = rope.width / 2, item = grid_item(), head = item / (half / W);
    const int c = (item - head * (half / W)) * W;
    let_next_start();
    wait_for_previous();
    if (row >= rows || head >= rope.heads)
        return;
    const float *__restrict__ angles = rope.table + (int64_t)rope.positions[row] * rope.width + c;
    N *at = x + row * stride + (int64_t)head * rope.D + c;
    float cosine[W], sine[W], low[W], high[W], rotated_low[W], rotated_high[W];
    load_numbers<W>(cosine, angles);
    load_numbers<W>(sine, angles + half);
    load_numbers<W>(low, at);
    load_numbers<W>(high, at + half);
#pragma unroll
    for (int k = 0; k < W; k++) {
        rotated_low[k] = rotated(low[k], high[k], cosine[k], -sign * sine[k]);
        rotated_high[k] = rotated(high[k], low[k], cosine[k], sign * sine[k]);
    }
    store_numbers<W>(at, rotated_low);
    store_numbers<W>(at + half, rotated_high);
}

/* The same of neighbouring channels. A thread owns channels 2c and 2c + 1 of a head in one row:
 * loads both, rotates, stores both. */
template <class N>
static __global__ void __launch_bounds__(256)
    apply_neighbours(N *x, int64_t stride, int64_t rows, const sr_rope rope, float sign) {
    const int64_t row = grid_row();
    const int half = rope.width / 2, item = grid_item(), head = item / half, c = item % half;
    if (row >= rows || head >= rope.heads)
        return;
    const float *angles = rope.table + (int64_t)rope.positions[row] * rope.width + c;
    N *at = x + row * stride + (int64_t)head * rope.D + 2 * c;
    const float first = load_number(at), second = load_number(at + 1);
    store_number(at, rotated(first, second, angles[0], -sign * angles[half]));
    store_number(at + 1, rotated(second, first, angles[0], sign * angles[half]));
}

static srnn_status rotate_neighbours(sr_backend *backend, sr_matrix x, const sr_rope &rope,
                                     float sign) {
    const sr_row_grid blocks = sr_row_grid_of(x.rows, (int64_t)rope.heads * rope.width / 2);
    if (x.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(apply_neighbours<sr_bf16>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), (sr_bf16 *)x.data, x.stride, x.rows, rope, sign));
    else
        SR_CUDA(sr_launch(apply_neighbours<float>, blocks.grid, blocks.block, 0,
                          sr_stream_of(backend), (float *)x.data, x.stride, x.rows, rope, sign));
    return SRNN_OK;
}

static srnn_status rope_rows(sr_backend *backend, sr_matrix x, const sr_rope *given, float sign) {
    sr_rope rope = *given;
    rope.width = given->width ? given->width : given->D;
    const int half = rope.width / 2;
    /* heads and both halves of what rotates begin where a vector may */
    const sr_place places[] = {sr_place_of(x),
                               {x.data, rope.D, x.dtype},
                               {rope.table, rope.width, SRNN_F32}};
    if (x.rows == 0)
        return SRNN_OK;
    if (rope.neighbours)
        return rotate_neighbours(backend, x, rope, sign);
    return sr_with_access<8>(x.dtype, half, places, 3, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(x.rows, (int64_t)rope.heads * half / A::W);
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), apply_rope<typename A::N, A::W>,
                                blocks.grid, blocks.block, 0, sr_stream_of(backend),
                                (typename A::N *)x.data, x.stride, x.rows, rope, sign));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_rope_forward(sr_backend *backend, sr_matrix x, const sr_rope *rope) {
    return rope_rows(backend, x, rope, 1.0f);
}

srnn_status sr_cuda_rope_backward(sr_backend *backend, sr_matrix d_x, const sr_rope *rope) {
    return rope_rows(backend, d_x, rope, -1.0f);
}
