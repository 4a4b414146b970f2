/* cblas.c: a textbook matrix product. */
#include "cblas.h"

#include <assert.h>
#include <stddef.h>

static float at(const float *x, CBLAS_TRANSPOSE transpose, int stride, int row, int column) {
    return transpose == CblasNoTrans ? x[(ptrdiff_t)row * stride + column]
                                     : x[(ptrdiff_t)column * stride + row];
}

/* The parameters are those of CBLAS. */
void cblas_sgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                 int M, int N, int K, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc) {
    assert(layout == CblasRowMajor);
    (void)layout;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int k = 0; k < K; k++)
                sum +=
                    (double)at(a, transpose_a, lda, i, k) * (double)at(b, transpose_b, ldb, k, j);
            float *to = c + (ptrdiff_t)i * ldc + j;
            *to = alpha * (float)sum + (beta == 0 ? 0 : beta * *to);
        }
}
