/* cblas.h: the one function of CBLAS that the library calls, for builds with MemorySanitizer: the
 * output of a BLAS that was built without it would count as uninitialised. */
#ifndef SOFTRNN_TESTS_CBLAS_H
#define SOFTRNN_TESTS_CBLAS_H

typedef enum { CblasRowMajor = 101 } CBLAS_LAYOUT;
typedef enum { CblasNoTrans = 111, CblasTrans = 112 } CBLAS_TRANSPOSE;

/* c (M, N) = alpha a b + beta c, with a (M, K) and b (K, N), or their transposes as stored; ld*:
 * row stride in elements. With beta 0 c is not read. The parameters are those of CBLAS. */
void cblas_sgemm(CBLAS_LAYOUT layout, CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                 int M, int N, int K, float alpha, const float *a, int lda, const float *b, int ldb,
                 float beta, float *c, int ldc);

#endif
