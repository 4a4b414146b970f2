/* rope.cu: RoPE, in place. Bytes per number: 2 + 2 (bf16), 4 + 4 (float); the table stays in the
 * caches. */
#include "attention/cuda/shared/rope.h"
#include "ops/cuda/elements.h"

/* sign 1 applies RoPE, -1 its inverse. A thread owns W channels of a head's first half and their
 * partner channels of the second half, of one row: loads both and their angles, global ->
 * registers, rotates, stores both in place. */
template <class N, int W>
static __global__ void __launch_bounds__(256)
    apply_rope(N *x, int64_t stride, int64_t rows, const sr_rope rope, float sign) {
    const int64_t row = grid_row();
    const int half = rope.D / 2, item = grid_item(), head = item / (half / W);
    const int c = (item - head * (half / W)) * W;
    let_next_start();
    wait_for_previous();
    if (row >= rows || head >= rope.heads)
        return;
    const float *__restrict__ angles = rope.table + (int64_t)rope.positions[row] * rope.D + c;
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

static srnn_status turn_rows(sr_backend *backend, sr_matrix x, const sr_rope *rope, float sign) {
    const sr_place places[] = {sr_place_of(x), {rope->table, rope->D, SRNN_F32}};
    const int half = rope->D / 2;
    if (x.rows == 0)
        return SRNN_OK;
    if ((rope->width && rope->width != rope->D) || rope->neighbours)
        return SR_FAIL(SRNN_ERR_UNSUPPORTED, "RoPE of a part of a head, or of neighbouring "
                                             "channels, on the GPU not yet: use --device cpu");
    return sr_with_access<8>(x.dtype, half, places, 2, [&](auto access) -> srnn_status {
        using A = decltype(access);
        const sr_row_grid blocks = sr_row_grid_of(x.rows, (int64_t)rope->heads * half / A::W);
        SR_CUDA(sr_launch_early(sr_may_start_early(backend), apply_rope<typename A::N, A::W>,
                                blocks.grid, blocks.block, 0, sr_stream_of(backend),
                                (typename A::N *)x.data, x.stride, x.rows, *rope, sign));
        return SRNN_OK;
    });
}

srnn_status sr_cuda_rope_forward(sr_backend *backend, sr_matrix x, const sr_rope *rope) {
    return turn_rows(backend, x, rope, 1.0f);
}

srnn_status sr_cuda_rope_backward(sr_backend *backend, sr_matrix d_x, const sr_rope *rope) {
    return turn_rows(backend, d_x, rope, -1.0f);
}
