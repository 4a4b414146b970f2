/* epilogue.h (private): epilogue of a GEMM of few rows: pairs of columns that belong together.
 *
 * A channel and its RoPE partner, a gate and its up (SwiGLU), or else neighbours. */
#ifndef SR_OPS_CUDA_GEMM_EPILOGUE_H
#define SR_OPS_CUDA_GEMM_EPILOGUE_H

#include "ops/cuda/elements.h"
#include "ops/cuda/gemm/gemm.h"

struct column_pair {
    int first, second; /* N or more: none */
};

/* The number of pairs. */
SR_BOTH int pairs_of(const sr_few_rows_gemm &p) {
    return (int)(p.end.swiglu ? p.end.pair_columns : (p.product.N + 1) / 2);
}

/* Number `pair` of them; see sr_few_end. */
SR_DEVICE column_pair pair_of(const sr_few_end &end, int pair) {
    const int pair_columns = (int)end.pair_columns;
    if (end.swiglu)
        return {pair, pair + pair_columns};
    if (2 * pair >= pair_columns)
        return {2 * pair, 2 * pair + 1};
    const int half = end.rope.D / 2, first = pair + pair / half * half;
    return {first, first + half};
}

/* The position of a row, where RoPE is applied. */
SR_DEVICE int32_t position_of(const sr_few_rows_gemm &p, int row) {
    return p.end.swiglu || p.end.pair_columns == 0 ? 0 : p.end.rope.positions[row];
}

/* What the epilogue needs besides a pair's sums. */
struct pair_end {
    bool rotates;
    float cosine, sine, addend[2];
};

/* `position`: of the row. */
template <class Out>
SR_DEVICE pair_end pair_end_of(const sr_few_rows_gemm &p, int row, const column_pair &at,
                               int32_t position) {
    pair_end end = {!p.end.swiglu && at.first < p.end.pair_columns, 1, 0, {}};
    const Out *const c = (const Out *)p.product.c + row * p.product.c_stride;
    if (end.rotates) {
        const int D = p.end.rope.D;
        const float *const angles = p.end.rope.table + (int64_t)position * D + at.first % D;
        end.cosine = angles[0];
        end.sine = angles[D / 2];
    }
    if (p.product.c && at.first < p.product.N)
        end.addend[0] = load_number(c + at.first);
    if (p.product.c && at.second < p.product.N)
        end.addend[1] = load_number(c + at.second);
    return end;
}

/* Stores d's numbers of the pair, from its sums. */
template <class Out>
SR_DEVICE void store_pair(const sr_few_rows_gemm &p, int row, const column_pair &at,
                          const pair_end &end, float first, float second) {
    Out *const d = (Out *)p.product.d + row * p.product.d_stride;
    if (p.end.swiglu) {
        store_number(d + at.first, second * first * sigmoid_for<Out>(first));
        return;
    }
    if (end.rotates) {
        const float low = first;
        first = low * end.cosine - second * end.sine;
        second = second * end.cosine + low * end.sine;
    }
    store_number(d + at.first, first + end.addend[0]);
    if (at.second < p.product.N)
        store_number(d + at.second, second + end.addend[1]);
}

#endif
