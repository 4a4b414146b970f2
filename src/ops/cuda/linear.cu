/* linear.cu: the GEMMs of linear layers side by side.
 *
 * Layers whose weights are contiguous in memory are one GEMM; the others, one each. */
#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/linear.h"
#include "ops/cuda/fp8/quantize.h"

/* y += bias. A thread owns one number of y: global -> register -> global. */
template <class N>
static __global__ void __launch_bounds__(256)
    add_bias(const sr_matrix y, const float *__restrict__ bias) {
    const int64_t row = grid_row(), c = grid_item();
    if (row >= y.rows || c >= y.columns)
        return;
    N *const at = (N *)y.data + row * y.stride + c;
    store_number(at, load_number(at) + bias[c]);
}

static srnn_status add_bias_to(sr_backend *backend, sr_matrix y, const float *bias) {
    const sr_row_grid blocks = sr_row_grid_of(y.rows, y.columns);
    if (y.rows == 0 || y.columns == 0)
        return SRNN_OK;
    if (y.dtype == SRNN_BF16)
        SR_CUDA(sr_launch(add_bias<sr_bf16>, blocks.grid, blocks.block, 0, sr_stream_of(backend), y,
                          bias));
    else
        SR_CUDA(sr_launch(add_bias<float>, blocks.grid, blocks.block, 0, sr_stream_of(backend), y,
                          bias));
    return SRNN_OK;
}

/* After the GEMM: gates have biases, the many other columns of the same GEMM have none. */
static srnn_status add_biases(sr_backend *backend, sr_matrix y, const sr_linear *layers,
                              int count) {
    int64_t first = 0;
    for (int i = 0; i < count; first += layers[i++].N)
        if (layers[i].bias)
            SR_TRY(add_bias_to(backend, sr_matrix_columns(y, first, layers[i].N), layers[i].bias));
    return SRNN_OK;
}

/* Layers that are one GEMM. */
struct piece {
    int64_t N;
    int count;
    bool fp8;
};

/* From the first layer on, as many as have contiguous weights (N, K). */
static piece next_piece(const sr_linear *layers, int count, int64_t K, srnn_dtype dtype) {
    piece p = {layers[0].N, 1, false};
    const int64_t row_bytes = K * (int64_t)sr_element_bytes(dtype);
    while (p.count < count &&
           layers[p.count].weight == (const char *)layers[0].weight + p.N * row_bytes)
        p.N += layers[p.count++].N;
    return p;
}

/* The same, as many as are multiplied alike: all in FP8, where its workspace holds their weights at
 * once, or none. */
static piece next_alike(const sr_backend *backend, const sr_linear *layers, int count,
                        sr_matrix x) {
    int merged = 1;
    sr_linear all = layers[0];
    const bool fp8 = sr_cuda_fp8_fits(backend, layers, x);
    for (; merged < count && sr_cuda_fp8_fits(backend, layers + merged, x) == fp8; merged++) {
        all.N += layers[merged].N;
        if (fp8 && !sr_cuda_fp8_fits(backend, &all, x))
            break;
    }
    piece p = next_piece(layers, merged, x.columns, x.dtype);
    p.fp8 = fp8;
    return p;
}

bool sr_cuda_takes_codes(const sr_backend *backend, const sr_linear *layers, int count,
                         int64_t rows, int64_t K) {
    const sr_matrix x = sr_matrix_of(nullptr, rows, K, SRNN_BF16);
    const piece p = next_alike(backend, layers, count, x);
    return p.fp8 && p.count == count && rows % SR_FP8_STEP == 0;
}

/* The model has asked whether codes are taken. */
static srnn_status check_codes(const sr_matrix *operands, int count, bool fp8) {
    for (int i = 0; i < count; i++)
        if (operands[i].handed == SR_HANDED_CODES && !fp8)
            return SR_FAIL(SRNN_ERR_ARGUMENT,
                           "a linear layer was handed %lld x %lld numbers of 8 "
                           "bits, which it does not take",
                           (long long)operands[i].rows, (long long)operands[i].columns);
    return SRNN_OK;
}

static int one_piece_of_gradients(int64_t *N, const sr_linear_gradient *layers, int count,
                                  int64_t K) {
    int taken = 1;
    *N = layers[0].N;
    while (taken < count && layers[taken].weight == layers[0].weight + *N * K)
        *N += layers[taken++].N;
    return taken;
}

/* y = x weight^T + addend, of one piece. */
static srnn_status multiply_piece(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                  const void *weight) {
    const sr_cuda_gemm_call product = {.a = x.data,
                                       .b = weight,
                                       .c = addend.data,
                                       .d = y.data,
                                       .a_stride = x.stride,
                                       .b_stride = x.columns,
                                       .c_stride = addend.stride,
                                       .d_stride = y.stride,
                                       .M = x.rows,
                                       .N = y.columns,
                                       .K = x.columns,
                                       .transpose_a = false,
                                       .transpose_b = true,
                                       .in = x.dtype,
                                       .out = y.dtype,
                                       .batch = {}};
    return sr_cuda_multiply(backend, &product);
}

srnn_status sr_cuda_linear_forward(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                   const sr_linear *layers, int count) {
    piece p;
    int64_t first = 0;
    for (int i = 0; i < count; i += p.count, first += p.N) {
        p = next_alike(backend, layers + i, count - i, x);
        SR_TRY(check_codes(&x, 1, p.fp8));
        const sr_matrix own = sr_matrix_columns(y, first, p.N);
        sr_matrix other = addend;
        other.data = sr_number_at(addend.data, first, y.dtype);
        other.columns = p.N;
        SR_TRY(p.fp8 ? sr_cuda_fp8_forward(backend, own, other, x, layers[i].weight)
                     : multiply_piece(backend, own, other, x, layers[i].weight));
    }
    return add_biases(backend, y, layers, count);
}

/* d_x = d_y weight of one piece, added if `adds`. */
static srnn_status multiply_input(sr_backend *backend, sr_matrix d_x, bool adds, sr_matrix d_y,
                                  const void *weight) {
    const sr_cuda_gemm_call product = {.a = d_y.data,
                                       .b = weight,
                                       .c = adds ? d_x.data : nullptr,
                                       .d = d_x.data,
                                       .a_stride = d_y.stride,
                                       .b_stride = d_x.columns,
                                       .c_stride = d_x.stride,
                                       .d_stride = d_x.stride,
                                       .M = d_x.rows,
                                       .N = d_x.columns,
                                       .K = d_y.columns,
                                       .transpose_a = false,
                                       .transpose_b = false,
                                       .in = d_y.dtype,
                                       .out = d_x.dtype,
                                       .batch = {}};
    return sr_cuda_multiply(backend, &product);
}

srnn_status sr_cuda_linear_backward_input(sr_backend *backend, sr_matrix d_x, sr_matrix d_y,
                                          const sr_linear *layers, int count) {
    piece p;
    int64_t first = 0;
    for (int i = 0; i < count; i += p.count, first += p.N) {
        p = next_piece(layers + i, count - i, d_x.columns, d_y.dtype);
        SR_TRY(multiply_input(backend, d_x, first > 0, sr_matrix_columns(d_y, first, p.N),
                              layers[i].weight));
    }
    return SRNN_OK;
}

static srnn_status add_bias_gradients(sr_backend *backend, const sr_linear_gradient *layers,
                                      int count, sr_matrix d_y) {
    int64_t first = 0;
    for (int i = 0; i < count; first += layers[i++].N)
        if (layers[i].bias)
            SR_TRY(sr_cuda_add_columns(backend, layers[i].bias,
                                       sr_matrix_columns(d_y, first, layers[i].N)));
    return SRNN_OK;
}

/* d_weight += d_y^T x, of weights that are contiguous. */
static srnn_status multiply_weight(sr_backend *backend, float *d_weight, sr_matrix d_y,
                                   sr_matrix x) {
    const sr_cuda_gemm_call product = {.a = d_y.data,
                                       .b = x.data,
                                       .c = d_weight,
                                       .d = d_weight,
                                       .a_stride = d_y.stride,
                                       .b_stride = x.stride,
                                       .c_stride = x.columns,
                                       .d_stride = x.columns,
                                       .M = d_y.columns,
                                       .N = x.columns,
                                       .K = x.rows,
                                       .transpose_a = true,
                                       .transpose_b = false,
                                       .in = d_y.dtype,
                                       .out = SRNN_F32,
                                       .batch = {}};
    return sr_cuda_multiply(backend, &product);
}

static srnn_status multiply_weights(sr_backend *backend, const sr_linear_gradient *layers,
                                    int count, sr_matrix d_y, sr_matrix x) {
    int64_t N, first = 0;
    for (int i = 0; i < count; first += N) {
        const int taken = one_piece_of_gradients(&N, layers + i, count - i, x.columns);
        SR_TRY(multiply_weight(backend, layers[i].weight, sr_matrix_columns(d_y, first, N), x));
        i += taken;
    }
    return SRNN_OK;
}

srnn_status sr_cuda_linear_backward_weight(sr_backend *backend, const sr_linear_gradient *layers,
                                           int count, sr_matrix d_y, sr_matrix x) {
    SR_TRY(add_bias_gradients(backend, layers, count, d_y));
    return multiply_weights(backend, layers, count, d_y, x);
}

/* The piece, as far as the gradients of its weights are contiguous too. */
static piece next_both(const sr_backend *backend, const sr_linear_gradient *gradients,
                       const sr_linear *layers, int count, sr_matrix x) {
    piece p = next_alike(backend, layers, count, x);
    p.count = one_piece_of_gradients(&p.N, gradients, p.count, x.columns);
    return p;
}

srnn_status sr_cuda_linear_backward(sr_backend *backend, const sr_linear_backward *of) {
    piece p;
    int64_t first = 0;
    bool bounded = of->d_x.handed != SR_HANDED_MEASURED;
    if (!((const sr_backend_cuda *)backend)->fp8)
        return sr_linear_backward_steps(backend, of);
    if (!bounded)
        SR_TRY(sr_device_zero(backend->device, of->d_x.note, sizeof *of->d_x.note));
    for (int i = 0; i < of->count; i += p.count, first += p.N) {
        p = next_both(backend, of->gradients + i, of->layers + i, of->count - i, of->x);
        const sr_linear_backward own = {of->d_x,
                                        sr_matrix_columns(of->d_y, first, p.N),
                                        of->x,
                                        of->layers + i,
                                        of->gradients + i,
                                        p.count};
        const sr_matrix operands[] = {own.d_y, own.x};
        const bool fp8 = p.fp8 && sr_is_aligned(sr_place_of(own.d_y), 8);
        const bool whole = fp8 && p.count == of->count;
        SR_TRY(check_codes(operands, 2, whole));
        bounded = bounded || whole;
        if (fp8) {
            SR_TRY(sr_cuda_fp8_backward(backend, &own, first > 0));
        } else {
            SR_TRY(multiply_input(backend, of->d_x, first > 0, own.d_y, own.layers->weight));
            SR_TRY(multiply_weight(backend, own.gradients->weight, own.d_y, of->x));
        }
    }
    if (!bounded)
        SR_TRY(sr_cuda_fp8_measure(backend, &of->d_x.note->largest, of->d_x));
    return add_bias_gradients(backend, of->gradients, of->count, of->d_y);
}

/* ---- norm, GEMM and epilogue in one kernel ---- */

/* Whether the kernels for few rows support it: no bias before the epilogue, contiguous weights. */
static bool is_fused(const sr_backend *backend, const sr_norm_linear *of, int64_t end_columns) {
    int64_t first = 0;
    const piece p = next_piece(of->layers, of->count, of->norm.C, SRNN_BF16);
    if (backend->number != SRNN_BF16 || of->norm.C % 8 != 0 || p.count != of->count ||
        of->norm.rows > sr_cuda_few_rows(backend, p.N))
        return false;
    for (int i = 0; i < of->count; first += of->layers[i++].N)
        if (of->layers[i].bias && first < end_columns)
            return false;
    const sr_place places[] = {{of->norm.x, of->norm.C, SRNN_F32},
                               {of->norm.weight, 0, SRNN_F32},
                               {of->layers->weight, of->norm.C, SRNN_BF16}};
    bool aligned = true;
    for (int i = 0; i < 3; i++)
        aligned = aligned && sr_is_aligned(places[i], 8);
    return aligned;
}

static sr_few_rows_gemm fused_product(sr_matrix y, const sr_norm_linear *of) {
    sr_few_rows_gemm p = {};
    p.product.a = of->norm.x;
    p.product.b = of->layers->weight;
    p.product.d = y.data;
    p.product.a_stride = p.product.b_stride = p.product.K = of->norm.C;
    p.product.d_stride = y.stride;
    p.product.M = of->norm.rows;
    p.product.in = p.product.out = SRNN_BF16;
    for (int i = 0; i < of->count; i++)
        p.product.N += of->layers[i].N;
    p.norm = of->norm;
    return p;
}

srnn_status sr_cuda_norm_linear_forward(sr_backend *backend, sr_matrix y,
                                        const sr_norm_linear *of) {
    const int64_t rope_columns = of->rope ? (int64_t)of->rope->heads * of->rope->D : 0;
    if (y.rows == 0)
        return SRNN_OK;
    if (!is_fused(backend, of, rope_columns))
        return sr_norm_linear_steps(backend, y, of);
    sr_few_rows_gemm p = fused_product(y, of);
    p.end.pair_columns = rope_columns;
    if (of->rope)
        p.end.rope = *of->rope;
    if (of->rope_applied)
        *of->rope_applied = of->rope != nullptr;
    SR_TRY(sr_cuda_start_few(backend, &p));
    return add_biases(backend, y, of->layers, of->count);
}

srnn_status sr_cuda_norm_swiglu_forward(sr_backend *backend, sr_matrix out, sr_matrix up,
                                        const sr_norm_linear *of) {
    if (out.rows == 0)
        return SRNN_OK;
    if (!is_fused(backend, of, up.columns))
        return sr_norm_swiglu_steps(backend, out, up, of);
    sr_few_rows_gemm p = fused_product(out, of);
    p.end.swiglu = true;
    p.end.pair_columns = out.columns;
    return sr_cuda_start_few(backend, &p);
}
