/* test_ops_cuda.c: every op of the CUDA backend, in float and in bf16, against plain double
 * arithmetic.
 *
 * Runs on a GPU, or on an emulated one; skipped where there is neither. */
#include "attention/state.h"
#include "base/bf16.h"
#include "ops/cuda/gemm/cublaslt.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sr_backend *gpu;

/* ---- numbers on the host and on the device ---- */

enum { ARRAYS = 256 };
static void *device_arrays[ARRAYS], *host_arrays[ARRAYS];
static int device_count, host_count;

static void *host_array(size_t bytes) {
    void *memory = calloc(bytes + 1, 1);
    assert_non_null(memory);
    assert_true(host_count < ARRAYS);
    return host_arrays[host_count++] = memory;
}

static void free_arrays(void) {
    while (host_count > 0)
        free(host_arrays[--host_count]);
    while (device_count > 0)
        sr_device_release(gpu->device, device_arrays[--device_count]);
}

static float noise(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

/* Numbers that are exact in the type. */
static float *numbers(int64_t count, uint32_t seed, srnn_dtype dtype) {
    float *x = host_array((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        x[i] = noise(&seed);
        if (dtype == SRNN_BF16)
            x[i] = sr_bf16_float(sr_bf16_of(x[i]));
    }
    return x;
}

static double *doubles(int64_t count) {
    return host_array((size_t)count * sizeof(double));
}

static void *device_bytes(const void *host, size_t bytes) {
    void *memory;
    assert_int_equal(sr_device_allocate(gpu->device, &memory, bytes + 1), SRNN_OK);
    assert_true(device_count < ARRAYS);
    device_arrays[device_count++] = memory;
    assert_int_equal(sr_device_copy_in(gpu->device, memory, host, bytes), SRNN_OK);
    assert_int_equal(srnn_device_wait(gpu->device), SRNN_OK); /* the host's copy may change now */
    return memory;
}

static void *on_device(const float *x, int64_t count, srnn_dtype dtype) {
    if (dtype == SRNN_F32)
        return device_bytes(x, (size_t)count * sizeof *x);
    uint16_t *narrow = host_array((size_t)count * sizeof *narrow);
    for (int64_t i = 0; i < count; i++)
        narrow[i] = sr_bf16_of(x[i]);
    return device_bytes(narrow, (size_t)count * sizeof *narrow);
}

static float *fetched(const void *memory, int64_t count, srnn_dtype dtype) {
    const size_t bytes = sr_element_bytes(dtype);
    float *x = host_array((size_t)count * sizeof *x);
    char *raw = host_array((size_t)count * bytes);
    assert_int_equal(sr_device_copy_out(gpu->device, raw, memory, (size_t)count * bytes), SRNN_OK);
    for (int64_t i = 0; i < count; i++) {
        uint16_t narrow;
        if (dtype == SRNN_F32) {
            memcpy(&x[i], raw + (size_t)i * bytes, bytes);
        } else {
            memcpy(&narrow, raw + (size_t)i * bytes, bytes);
            x[i] = sr_bf16_float(narrow);
        }
    }
    return x;
}

/* A matrix of noise with `gap` elements between its rows, on host and device. */
typedef struct both {
    float *host; /* (rows, columns), without gaps */
    sr_matrix device;
    int64_t offset; /* where it begins in its memory */
    void *memory;
} both;

static both matrix(int64_t rows, int64_t columns, int64_t gap, uint32_t seed, srnn_dtype dtype) {
    const int64_t stride = columns + gap;
    float *all = numbers(rows * stride + gap, seed, dtype);
    both m = {.host = host_array((size_t)(rows * columns) * sizeof(float)), .offset = gap / 2};
    for (int64_t r = 0; r < rows; r++)
        memcpy(m.host + r * columns, all + m.offset + r * stride, (size_t)columns * sizeof *all);
    m.memory = on_device(all, rows * stride + gap, dtype);
    m.device = (sr_matrix){sr_number_at(m.memory, m.offset, dtype),
                           rows,
                           columns,
                           stride,
                           dtype,
                           SR_HANDED_NUMBERS,
                           NULL};
    return m;
}

static float *fetched_matrix(both m) {
    const sr_matrix d = m.device;
    float *all = fetched(m.memory, m.offset + d.rows * d.stride, d.dtype);
    float *x = host_array((size_t)(d.rows * d.columns) * sizeof *x);
    for (int64_t r = 0; r < d.rows; r++)
        memcpy(x + r * d.columns, all + m.offset + r * d.stride, (size_t)d.columns * sizeof *x);
    return x;
}

/* As close as this type allows: the total error, and each element up to its rounding; each may err
 * by its slack (NULL: none) in addition. */
static void close_within(const float *got, const double *want, const double *slack, int64_t count,
                         srnn_dtype dtype) {
    const double each = dtype == SRNN_BF16 ? 1.0 / 128 : 1e-5;
    double difference = 0, size = 1e-30, allowed = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += pow((double)got[i] - want[i], 2);
        size += want[i] * want[i];
        allowed += slack ? slack[i] * slack[i] : 0;
    }
    const double typical = sqrt(size / (double)(count > 0 ? count : 1));
    assert_true(sqrt(difference) <=
                (dtype == SRNN_BF16 ? 3e-3 : 3e-6) * sqrt(size) + sqrt(allowed));
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs((double)got[i] - want[i]) <=
                    each * (fabs(want[i]) + typical) + (slack ? slack[i] : 0));
}

static void close_to(const float *got, const double *want, int64_t count, srnn_dtype dtype) {
    close_within(got, want, NULL, count, dtype);
}

static void right(srnn_status status) {
    if (status != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
}

/* ---- what goes with a matrix ---- */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static sr_matrix_note note_of(const void *at) {
    sr_matrix_note note;
    right(sr_device_copy_out(gpu->device, &note, at, sizeof note));
    return note;
}

static sr_matrix_note *new_note(void) {
    const sr_matrix_note nothing = {0};
    return device_bytes(&nothing, sizeof nothing);
}

/* ---- linear layers ---- */

typedef struct linear_case {
    int64_t rows, K, N[3];
    int count;
    int64_t gap;    /* between rows, and before the first: 1 leaves nothing aligned */
    bool apart;     /* weights do not follow each other */
    bool bias;      /* of the second layer, or the only one */
    int addend;     /* 0: none, 1: another matrix, 2: y itself */
    bool float_out; /* y is float for every number type */
} linear_case;

static const linear_case linear_cases[] = {
    {1, 1, {1}, 1, 0, false, false, 0, false},
    {3, 5, {7}, 1, 0, false, true, 1, false},
    {1, 64, {40, 24}, 2, 0, false, false, 0, false},
    {1, 2824, {35}, 1, 8, false, true, 1, true},
    {3, 512, {24, 8, 1}, 3, 0, false, false, 2, true},
    {7, 264, {24, 9}, 2, 8, true, true, 1, false},
    {8, 64, {130}, 1, 0, false, false, 0, true},
    {32, 1032, {33, 40}, 2, 8, false, false, 2, true},
    {27, 2568, {71}, 1, 0, false, false, 1, false},
    {17, 33, {9, 30, 1}, 3, 1, false, true, 1, false},
    {130, 72, {64, 80, 8}, 3, 0, false, false, 1, true},
    {129, 257, {31, 100}, 2, 2, true, true, 2, true},
    {65, 40, {16, 24}, 2, 8, true, false, 2, false},
    {300, 136, {264}, 1, 8, false, true, 0, true},
};

typedef struct linear_layers {
    float *weight[3], *bias[3];
    float *d_weight[3], *d_bias[3];
    sr_linear forward[3];
    sr_linear_gradient back[3];
    int64_t N;
} linear_layers;

static linear_layers layers_of(const linear_case *c) {
    linear_layers l = {0};
    for (int i = 0; i < c->count; i++)
        l.N += c->N[i];
    const int64_t gap = c->apart ? 16 : 0, all = c->K * l.N + gap * c->count;
    float *weights = numbers(all, 21, gpu->number), *gradients = numbers(all, 22, SRNN_F32);
    char *weight = on_device(weights, all, gpu->number);
    float *gradient = on_device(gradients, all, SRNN_F32);
    int64_t at = 0;
    for (int i = 0; i < c->count; at += c->N[i++] * c->K + gap) {
        const bool has_bias = c->bias && i == (c->count > 1);
        l.weight[i] = weights + at;
        l.d_weight[i] = gradients + at;
        l.bias[i] = has_bias ? numbers(c->N[i], 23, SRNN_F32) : NULL;
        l.d_bias[i] = has_bias ? numbers(c->N[i], 24, SRNN_F32) : NULL;
        l.forward[i] =
            (sr_linear){sr_number_at(weight, at, gpu->number),
                        has_bias ? on_device(l.bias[i], c->N[i], SRNN_F32) : NULL, .N = c->N[i]};
        l.back[i] =
            (sr_linear_gradient){gradient + at,
                                 has_bias ? on_device(l.d_bias[i], c->N[i], SRNN_F32) : NULL,
                                 c->N[i]};
    }
    return l;
}

static void check_forward(const linear_case *c, const linear_layers *l) {
    const srnn_dtype out = c->float_out ? SRNN_F32 : gpu->number;
    both x = matrix(c->rows, c->K, c->gap, 1, gpu->number);
    both y = matrix(c->rows, l->N, c->gap, 2, out), other = matrix(c->rows, l->N, 2, 3, out);
    double *want = doubles(c->rows * l->N);
    const float *addend = c->addend == 1 ? other.host : c->addend == 2 ? y.host : NULL;
    for (int64_t r = 0; r < c->rows; r++) {
        int64_t column = 0;
        for (int i = 0; i < c->count; i++)
            for (int64_t n = 0; n < c->N[i]; n++, column++) {
                double s = l->bias[i] ? (double)l->bias[i][n] : 0;
                s += addend ? (double)addend[r * l->N + column] : 0;
                for (int64_t k = 0; k < c->K; k++)
                    s += (double)x.host[r * c->K + k] * (double)l->weight[i][n * c->K + k];
                want[r * l->N + column] = s;
            }
    }
    const sr_matrix none = {0};
    right(gpu->linear_forward(gpu, y.device,
                              c->addend == 1   ? other.device
                              : c->addend == 2 ? y.device
                                               : none,
                              x.device, l->forward, c->count));
    close_to(fetched_matrix(y), want, c->rows * l->N, out);
}

static void check_backward(const linear_case *c, const linear_layers *l) {
    both x = matrix(c->rows, c->K, c->gap, 4, gpu->number);
    both d_y = matrix(c->rows, l->N, c->gap, 5, gpu->number);
    both d_x = matrix(c->rows, c->K, c->gap, 6, gpu->number);
    double *want = doubles(c->rows * c->K);
    int64_t column = 0;
    right(gpu->linear_backward_input(gpu, d_x.device, d_y.device, l->forward, c->count));
    right(gpu->linear_backward_weight(gpu, l->back, c->count, d_y.device, x.device));
    for (int i = 0; i < c->count; i++) {
        double *want_w = doubles(c->N[i] * c->K), *want_b = doubles(c->N[i]);
        for (int64_t n = 0; n < c->N[i]; n++, column++) {
            for (int64_t k = 0; k < c->K; k++)
                want_w[n * c->K + k] = (double)l->d_weight[i][n * c->K + k];
            want_b[n] = l->d_bias[i] ? (double)l->d_bias[i][n] : 0;
            for (int64_t r = 0; r < c->rows; r++) {
                const double d = (double)d_y.host[r * l->N + column];
                want_b[n] += d;
                for (int64_t k = 0; k < c->K; k++) {
                    want[r * c->K + k] += d * (double)l->weight[i][n * c->K + k];
                    want_w[n * c->K + k] += d * (double)x.host[r * c->K + k];
                }
            }
        }
        close_to(fetched(l->back[i].weight, c->N[i] * c->K, SRNN_F32), want_w, c->N[i] * c->K,
                 SRNN_F32);
        if (l->d_bias[i])
            close_to(fetched(l->back[i].bias, c->N[i], SRNN_F32), want_b, c->N[i], SRNN_F32);
    }
    close_to(fetched_matrix(d_x), want, c->rows * c->K, gpu->number);
}

static void linear(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof linear_cases / sizeof *linear_cases; i++) {
        const linear_layers l = layers_of(&linear_cases[i]);
        check_forward(&linear_cases[i], &l);
        check_backward(&linear_cases[i], &l);
        free_arrays();
    }
}

/* ---- linear layers with operands of 8 bits ---- */

/* The numbers of a format by its definition: `mantissa` bits and the exponent's bias. */
typedef struct format {
    int mantissa, bias;
    double largest;
} format;

static const format e4m3 = {3, 7, 448}, e5m2 = {2, 15, 57344};

/* The nearest multiple of the spacing of numbers around x, ties to even. */
static double nearest(double x, const format *f) {
    int exponent;
    if (x == 0)
        return x;
    frexp(x, &exponent);
    const int least = 1 - f->bias, own = exponent - 1 > least ? exponent - 1 : least;
    return ldexp(nearbyint(ldexp(x, f->mantissa - own)), own - f->mantissa);
}

/* What a tensor becomes: scaled by the largest power of two that the format bears. */
static double *quantised(const float *x, int64_t count, const format *f) {
    double *out = doubles(count), largest = 0;
    int scale = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)x[i]));
    if (largest > 0)
        scale = (int)floor(log2(f->largest / largest));
    for (int64_t i = 0; i < count; i++)
        out[i] = ldexp(nearest(ldexp((double)x[i], scale), f), -scale);
    return out;
}

typedef struct fp8_case {
    int64_t rows, K, N;
    int64_t gap;     /* between rows */
    int64_t piece;   /* rows that are scaled together; 0: all */
    double range;    /* powers of ten over which numbers spread */
    bool fits, wide; /* sizes allow 8 bits; y is float */
} fp8_case;

static const fp8_case fp8_cases[] = {
    {33, 16, 16, 0, 0, 0, true, true},   {130, 80, 48, 16, 0, 0, true, false},
    {300, 64, 144, 0, 0, 6, true, true}, {129, 32, 64, 16, 0, 12, true, true},
    {32, 32, 32, 0, 0, 0, false, true},  {40, 24, 32, 0, 0, 0, false, true},
    {40, 32, 24, 0, 0, 0, false, true},  {40, 32, 32, 1, 0, 0, false, true},
};

static both spread(int64_t rows, int64_t columns, int64_t gap, uint32_t seed, double range) {
    both m = matrix(rows, columns, gap, seed, SRNN_BF16);
    uint16_t *narrow = host_array((size_t)(rows * m.device.stride + gap) * sizeof *narrow);
    for (int64_t i = 0; i < rows * columns; i++) {
        const double power = range * (0.5 * (double)noise(&seed) - 0.5);
        const uint16_t bits = sr_bf16_of((float)((double)m.host[i] * pow(10, power)));
        m.host[i] = sr_bf16_float(bits);
        narrow[m.offset + i / columns * m.device.stride + i % columns] = bits;
    }
    right(sr_device_copy_in(gpu->device, m.memory, narrow,
                            (size_t)(rows * m.device.stride + gap) * sizeof *narrow));
    right(srnn_device_wait(gpu->device));
    return m;
}

/* ---- what tensor cores lose of products of 8 bits ----
 *
 * Hopper's add the up to 32 products of an instruction and the sum so far in fixed point: each of
 * these addends is shifted to the largest exponent among them and keeps 14 bits with its sign, the
 * rest is cut off (DeepSeek-V3, arXiv 2412.19437, 3.5.2). If no addend is larger than M, the last
 * of these bits is worth 2^(floor(log2 M) - 12) at most, and an addend loses less than that. Sums
 * over K have K products and the sum so far once in each of K / 32 instructions, whether cuBLASLt
 * keeps that sum in the tensor core for all of K or, without fast accumulation and where K is
 * split, continues in float, which loses nothing by comparison. A sum so far is a sum of
 * consecutive products, so M is the larger of the largest product and of the range of the sums up
 * to each. Products that the kernels multiply in bf16 lose none of this. */
typedef struct narrow_sum {
    double sum, lowest, highest, largest;
    int64_t count;
} narrow_sum;

static bool loses_bits; /* whether products in 8 bits are cuBLASLt's */

static narrow_sum *narrow_sums(int64_t count) {
    return host_array((size_t)count * sizeof(narrow_sum));
}

static void add_product(narrow_sum *s, double product) {
    s->sum += product;
    s->lowest = fmin(s->lowest, s->sum);
    s->highest = fmax(s->highest, s->sum);
    s->largest = fmax(s->largest, fabs(product));
    s->count++;
}

static double lost(const narrow_sum *s) {
    enum { INSTRUCTION = 32, BITS = 12 };
    int exponent;
    const double most = fmax(s->largest, s->highest - s->lowest);
    if (!loses_bits || most == 0)
        return 0;
    frexp(most, &exponent); /* one above the logarithm's whole part */
    const int64_t instructions = (s->count + INSTRUCTION - 1) / INSTRUCTION;
    return (double)(s->count + instructions) * ldexp(1, exponent - 1 - BITS);
}

/* want (count), which has what is added to the products, becomes the sums; what they may lose. */
static double *finish(double *want, const narrow_sum *sums, int64_t count) {
    double *slack = doubles(count);
    for (int64_t i = 0; i < count; i++) {
        want[i] += sums[i].sum;
        slack[i] = lost(&sums[i]);
    }
    return slack;
}

/* A case's operands as they are multiplied. */
typedef struct fp8_operands {
    double *x, *w, *d_y;
} fp8_operands;

static double *in_pieces(const float *x, const fp8_case *c, int64_t columns, const format *f) {
    const int64_t piece = c->piece ? c->piece : c->rows;
    double *out = doubles(c->rows * columns);
    for (int64_t first = 0; first < c->rows; first += piece) {
        const int64_t count = (first + piece < c->rows ? piece : c->rows - first) * columns;
        memcpy(out + first * columns, quantised(x + first * columns, count, f),
               (size_t)count * sizeof *out);
    }
    return out;
}

static double *widened(const float *x, int64_t count) {
    double *out = doubles(count);
    for (int64_t i = 0; i < count; i++)
        out[i] = (double)x[i];
    return out;
}

static fp8_operands multiplied(const fp8_case *c, both x, both w, both d_y) {
    if (!c->fits)
        return (fp8_operands){widened(x.host, c->rows * c->K), widened(w.host, c->N * c->K),
                              widened(d_y.host, c->rows * c->N)};
    return (fp8_operands){in_pieces(x.host, c, c->K, &e4m3), quantised(w.host, c->N * c->K, &e4m3),
                          in_pieces(d_y.host, c, c->N, &e5m2)};
}

static void check_fp8(const fp8_case *c, bool adds) {
    const srnn_dtype out = c->wide ? SRNN_F32 : SRNN_BF16;
    both x = spread(c->rows, c->K, c->gap, 1, c->range), w = spread(c->N, c->K, 0, 2, c->range);
    both d_y = spread(c->rows, c->N, c->gap, 3, c->range);
    both y = matrix(c->rows, c->N, c->gap, 4, out), d_x = matrix(c->rows, c->K, c->gap, 5, out);
    both d_w = matrix(c->N, c->K, 0, 6, SRNN_F32);
    float *bias = numbers(c->N, 7, SRNN_F32), *d_bias = numbers(c->N, 8, SRNN_F32);
    const fp8_operands o = multiplied(c, x, w, d_y);
    const sr_linear layer = {.weight = w.device.data,
                             .bias = on_device(bias, c->N, SRNN_F32),
                             .N = c->N,
                             .fp8 = true};
    const sr_linear_gradient gradient = {d_w.device.data, on_device(d_bias, c->N, SRNN_F32), c->N};
    double *want_y = doubles(c->rows * c->N), *want_x = doubles(c->rows * c->K),
           *want_w = widened(d_w.host, c->N * c->K), *want_b = widened(d_bias, c->N);
    narrow_sum *sum_y = narrow_sums(c->rows * c->N), *sum_x = narrow_sums(c->rows * c->K),
               *sum_w = narrow_sums(c->N * c->K);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t n = 0; n < c->N; n++) {
            const double d = o.d_y[r * c->N + n];
            want_y[r * c->N + n] = (double)bias[n] + (adds ? (double)y.host[r * c->N + n] : 0);
            want_b[n] += (double)d_y.host[r * c->N + n];
            for (int64_t k = 0; k < c->K; k++) {
                add_product(&sum_y[r * c->N + n], o.x[r * c->K + k] * o.w[n * c->K + k]);
                add_product(&sum_x[r * c->K + k], d * o.w[n * c->K + k]);
                add_product(&sum_w[n * c->K + k], d * o.x[r * c->K + k]);
            }
        }
    const double *slack_y = finish(want_y, sum_y, c->rows * c->N),
                 *slack_x = finish(want_x, sum_x, c->rows * c->K),
                 *slack_w = finish(want_w, sum_w, c->N * c->K);
    right(
        gpu->linear_forward(gpu, y.device, adds ? y.device : (sr_matrix){0}, x.device, &layer, 1));
    right(gpu->linear_backward(gpu, &(sr_linear_backward){d_x.device, d_y.device, x.device, &layer,
                                                          &gradient, 1}));
    close_within(fetched_matrix(y), want_y, c->fits ? slack_y : NULL, c->rows * c->N, out);
    close_within(fetched_matrix(d_x), want_x, c->fits ? slack_x : NULL, c->rows * c->K, out);
    close_within(fetched_matrix(d_w), want_w, c->fits ? slack_w : NULL, c->N * c->K, SRNN_F32);
    close_to(fetched(gradient.bias, c->N, SRNN_F32), want_b, c->N, SRNN_F32);
    free_arrays();
}

static void layers_in_8_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * sizeof fp8_cases / sizeof *fp8_cases; i++)
        check_fp8(&fp8_cases[i / 2], i % 2);
}

/* Rows in pieces, as many as the workspace holds next to the weights, each with its own scale. */
enum { PIECE = 128, PIECES_K = 48, PIECES_N = 32 };

static void rows_in_pieces(void **state) {
    (void)state;
    const fp8_case c = {400, PIECES_K, PIECES_N, 0, PIECE, 2, true, true};
    check_fp8(&c, false);
    check_fp8(&c, true);
}

/* Layers side by side, each of which fits the workspace, but not both: bits of each alone. */
static void layers_beyond_the_workspace(void **state) {
    (void)state;
    enum { ROWS = PIECE, K = PIECES_K, EACH = PIECES_N, N = 2 * EACH };
    const both x = matrix(ROWS, K, 0, 1, SRNN_BF16), w = matrix(N, K, 0, 2, SRNN_BF16);
    const both d_y = matrix(ROWS, N, 0, 3, SRNN_BF16);
    float *y_of[2], *d_w_of[2];
    for (int apart = 0; apart < 2; apart++) {
        const both y = matrix(ROWS, N, 0, 4, SRNN_F32), d_x = matrix(ROWS, K, 0, 5, SRNN_F32);
        const both d_w = matrix(N, K, 0, 6, SRNN_F32);
        sr_linear layers[2];
        sr_linear_gradient gradients[2];
        for (int n = 0; n < 2; n++) {
            void *weight = sr_number_at(w.device.data, n * EACH * K, SRNN_BF16);
            layers[n] = (sr_linear){.weight = weight, .N = EACH, .fp8 = true};
            gradients[n] =
                (sr_linear_gradient){(float *)d_w.device.data + n * EACH * K, NULL, EACH};
        }
        const int count = apart ? 1 : 2;
        for (int n = 0; n < 2; n += count) {
            const sr_matrix out = sr_matrix_columns(y.device, n * EACH, count * EACH),
                            d_out = sr_matrix_columns(d_y.device, n * EACH, count * EACH);
            right(gpu->linear_forward(gpu, out, (sr_matrix){0}, x.device, layers + n, count));
            right(
                gpu->linear_backward(gpu, &(sr_linear_backward){d_x.device, d_out, x.device,
                                                                layers + n, gradients + n, count}));
        }
        y_of[apart] = fetched_matrix(y);
        d_w_of[apart] = fetched_matrix(d_w);
    }
    assert_memory_equal(y_of[0], y_of[1], sizeof(float) * ROWS * N);
    assert_memory_equal(d_w_of[0], d_w_of[1], sizeof(float) * N * K);
    free_arrays();
}

/* Layers side by side, of which one has a width that does not fit: that one is multiplied in bf16,
 * and all of them where the layer does not allow 8 bits. */
static void layers_side_by_side(void **state) {
    (void)state;
    enum { ROWS = 40, K = 32, FITS = 48, NOT = 8, N = FITS + NOT };
    both x = matrix(ROWS, K, 0, 1, SRNN_BF16), w = matrix(N, K, 0, 2, SRNN_BF16);
    both d_y = matrix(ROWS, N, 0, 3, SRNN_BF16), y = matrix(ROWS, N, 0, 4, SRNN_F32);
    for (int allowed = 0; allowed < 2; allowed++) {
        both d_x = matrix(ROWS, K, 0, 5, SRNN_F32), d_w = matrix(N, K, 0, 6, SRNN_F32);
        const sr_linear layers[] = {{w.device.data, NULL, .N = FITS, .fp8 = allowed},
                                    {sr_number_at(w.device.data, FITS * K, SRNN_BF16), NULL,
                                     .N = NOT, .fp8 = allowed}};
        const sr_linear_gradient gradients[] = {{d_w.device.data, NULL, FITS},
                                                {(float *)d_w.device.data + FITS * K, NULL, NOT}};
        const double *x8 = quantised(x.host, ROWS * K, &e4m3),
                     *w8 = quantised(w.host, FITS * K, &e4m3);
        float *own = host_array(sizeof(float) * ROWS * FITS);
        for (int r = 0; r < ROWS; r++)
            memcpy(own + r * FITS, d_y.host + r * N, sizeof(float) * FITS);
        const double *d8 = quantised(own, ROWS * FITS, &e5m2);
        double *want_y = doubles(ROWS * N), *want_x = doubles(ROWS * K),
               *want_w = widened(d_w.host, N * K);
        narrow_sum *sum_y = narrow_sums(ROWS * N), *sum_x = narrow_sums(ROWS * K),
                   *sum_w = narrow_sums(N * K);
        for (int r = 0; r < ROWS; r++)
            for (int n = 0; n < N; n++)
                for (int k = 0; k < K; k++) {
                    if (!allowed || n >= FITS) {
                        const double a = (double)x.host[r * K + k], b = (double)w.host[n * K + k];
                        const double d = (double)d_y.host[r * N + n];
                        want_y[r * N + n] += a * b;
                        want_x[r * K + k] += d * b;
                        want_w[n * K + k] += d * a;
                        continue;
                    }
                    const double d = d8[r * FITS + n];
                    add_product(&sum_y[r * N + n], x8[r * K + k] * w8[n * K + k]);
                    add_product(&sum_x[r * K + k], d * w8[n * K + k]);
                    add_product(&sum_w[n * K + k], d * x8[r * K + k]);
                }
        const double *slack_y = finish(want_y, sum_y, ROWS * N),
                     *slack_x = finish(want_x, sum_x, ROWS * K),
                     *slack_w = finish(want_w, sum_w, N * K);
        right(gpu->linear_forward(gpu, y.device, (sr_matrix){0}, x.device, layers, 2));
        right(gpu->linear_backward(gpu, &(sr_linear_backward){d_x.device, d_y.device, x.device,
                                                              layers, gradients, 2}));
        close_within(fetched_matrix(y), want_y, slack_y, ROWS * N, SRNN_F32);
        close_within(fetched_matrix(d_x), want_x, slack_x, ROWS * K, SRNN_F32);
        close_within(fetched_matrix(d_w), want_w, slack_w, N * K, SRNN_F32);
    }
    free_arrays();
}

/* Gradients of a few layers of one shape, each as large as given: the bits are those of gradients
 * that are measured, also where a size was not to be expected, and where one is NaN. */
static void gradients_as_expected(void **state) {
    (void)state;
    enum { ROWS = 144, K = 48, N = 80, LAYERS = 9 };
    static const int powers[LAYERS] = {0, 3, 4, 9, 2, -4, -11, 0, 1};
    float *d_x_of[2][LAYERS], *d_w_of[2][LAYERS];
    const both x = matrix(ROWS, K, 0, 1, SRNN_BF16), w = matrix(N, K, 0, 2, SRNN_BF16);
    for (int expects = 0; expects < 2; expects++) {
        right(gpu->expect_gradients(gpu, expects));
        for (int l = 0; l < LAYERS; l++) {
            const both d_x = matrix(ROWS, K, 0, 5, SRNN_BF16), d_w = matrix(N, K, 0, 6, SRNN_F32);
            const sr_linear layer = {.weight = w.device.data, .N = N, .fp8 = true};
            const sr_linear_gradient gradient = {d_w.device.data, NULL, N};
            float *d_y = numbers(ROWS * N, 20 + (uint32_t)l, SRNN_BF16);
            for (int i = 0; i < ROWS * N; i++)
                d_y[i] = ldexpf(d_y[i], powers[l]);
            if (l == LAYERS - 2)
                d_y[77] = (float)NAN;
            const sr_matrix d_out =
                sr_matrix_of(on_device(d_y, ROWS * N, SRNN_BF16), ROWS, N, SRNN_BF16);
            right(gpu->linear_backward(gpu, &(sr_linear_backward){d_x.device, d_out, x.device,
                                                                  &layer, &gradient, 1}));
            d_x_of[expects][l] = fetched_matrix(d_x);
            d_w_of[expects][l] = fetched_matrix(d_w);
        }
        right(gpu->expect_gradients(gpu, false));
    }
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < ROWS * K; i++) {
            const float *a = d_x_of[0][l], *b = d_x_of[1][l];
            assert_true(l == LAYERS - 2 ? isnan(a[i]) && isnan(b[i]) : a[i] == b[i]);
            if (i < N * K && l != LAYERS - 2)
                assert_true(d_w_of[0][l][i] == d_w_of[1][l][i]);
        }
    free_arrays();
}

/* ---- operands that other ops write in 8 bits ---- */

static double decoded(uint8_t code, const format *f) {
    const int exponent = (code & 0x7f) >> f->mantissa, rest = code & ((1 << f->mantissa) - 1);
    const double size = exponent == 0
                            ? ldexp(rest, 1 - f->bias - f->mantissa)
                            : ldexp((1 << f->mantissa) + rest, exponent - f->bias - f->mantissa);
    return (code & 0x7f) == 0x7f ? (double)NAN : code & 0x80 ? -size : size;
}

static sr_matrix new_codes(int64_t rows, int64_t columns) {
    const sr_matrix m =
        sr_matrix_of(on_device(numbers(rows * columns, 9, SRNN_BF16), rows * columns, SRNN_BF16),
                     rows, columns, SRNN_BF16);
    return sr_matrix_handed(m, SR_HANDED_CODES, new_note());
}

/* What codes stand for; both forms have the same. */
static double *numbers_of_codes(sr_matrix m, const format *f) {
    const int64_t count = m.rows * m.columns;
    uint8_t *codes = host_array((size_t)(2 * count));
    double *out = doubles(count);
    const double scale = (double)note_of(m.note).scale;
    right(sr_device_copy_out(gpu->device, codes, m.data, (size_t)(2 * count)));
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = i / m.columns, c = i % m.columns;
        assert_int_equal(codes[i], codes[count + c * m.rows + r]);
        out[i] = scale * decoded(codes[i], f);
    }
    return out;
}

/* Codes are the numbers of the format nearest to these, for a scale that leaves `spare` powers of
 * two unused: relative to the number, or to the smallest normal one. 1 + 2^-6: what bf16's sigmoid
 * adds. */
static void nearest_codes(const double *got, const double *want, int64_t count, const format *f,
                          int spare) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    const double normal = ldexp(largest / f->largest, spare + 2 - f->bias);
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs(got[i] - want[i]) <=
                    ldexp(fmax(fabs(want[i]), normal), -f->mantissa - 1) * (1 + 1.0 / 64) +
                        fabs(want[i]) / 128);
}

/* Numbers of which the k-th of row r is at r * row + k * step. */
typedef struct side {
    const double *numbers;
    int64_t row, step;
} side;

static void check_sums(sr_matrix got, side a, side b, int64_t depth, const float *addend) {
    const int64_t count = got.rows * got.columns;
    narrow_sum *sums = narrow_sums(count);
    double *want = addend ? widened(addend, count) : doubles(count);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < depth; k++)
            add_product(&sums[i], a.numbers[i / got.columns * a.row + k * a.step] *
                                      b.numbers[i % got.columns * b.row + k * b.step]);
    const double *slack = finish(want, sums, count);
    close_within(fetched(got.data, count, got.dtype), want, slack, count, got.dtype);
}

/* Norm, layers, SwiGLU and layer, and back, as a block has them. */
static void check_codes(int64_t rows, int64_t C, int64_t F, bool holds) {
    const both x = matrix(rows, C, 0, 1, SRNN_F32), scale = matrix(1, C, 0, 2, SRNN_F32);
    const both all = matrix(3 * F, C, 0, 3, SRNN_BF16); /* (C, F), then (2 F, C) */
    const float *w_down = all.host, *w_up = all.host + F * C;
    void *up_weight = sr_number_at(all.device.data, F * C, SRNN_BF16);
    const both up_at = matrix(rows, 2 * F, 0, 5, SRNN_BF16), y = matrix(rows, C, 0, 6, SRNN_F32);
    const both d_y = matrix(rows, C, 0, 7, SRNN_BF16), d_h = matrix(rows, F, 0, 8, SRNN_BF16);
    const both d_normed = matrix(rows, C, 0, 9, SRNN_BF16);
    const both d_w_up = matrix(2 * F, C, 0, 10, SRNN_F32), d_w_down = matrix(C, F, 0, 11, SRNN_F32);
    const sr_matrix normed = new_codes(rows, C), h = new_codes(rows, F);
    const sr_matrix d_up = new_codes(rows, 2 * F);
    const sr_matrix up = sr_matrix_handed(up_at.device, SR_HANDED_NUMBERS, h.note);
    const sr_linear ups[] = {{up_weight, NULL, F, false, true},
                             {sr_number_at(up_weight, F * C, SRNN_BF16), NULL, F, false, true}};
    const sr_linear down = {all.device.data, NULL, C, false, true};
    const sr_linear_gradient d_ups[] = {{d_w_up.device.data, NULL, F},
                                        {(float *)d_w_up.device.data + F * C, NULL, F}};
    const sr_linear_gradient d_down = {d_w_down.device.data, NULL, C};
    const sr_rmsnorm norm = {x.device.data,
                             scale.device.data,
                             on_device(numbers(rows, 12, SRNN_F32), rows, SRNN_F32),
                             1e-5f,
                             rows,
                             C,
                             normed.note};
    const sr_matrix d_h_measured = sr_matrix_handed(d_h.device, SR_HANDED_MEASURED, new_note());
    size_t held = 0;
    if (holds)
        right(gpu->hold_codes(gpu, &held, all.device.data, 3 * F * C));
    assert_true(holds == (held >= (size_t)(6 * F * C)));
    assert_true(gpu->takes_codes(gpu, ups, 2, rows, C) && gpu->takes_codes(gpu, &down, 1, rows, F));
    right(gpu->rmsnorm_forward(gpu, normed.data, &norm));
    right(gpu->linear_forward(gpu, up, (sr_matrix){0}, normed, ups, 2));
    right(gpu->swiglu_forward(gpu, h, up));
    right(gpu->linear_forward(gpu, y.device, (sr_matrix){0}, h, &down, 1));

    const double *normed8 = numbers_of_codes(normed, &e4m3), *h8 = numbers_of_codes(h, &e4m3);
    const double *w_up8 = quantised(w_up, 2 * F * C, &e4m3),
                 *w_down8 = quantised(w_down, C * F, &e4m3);
    double *want = doubles(rows * C), *want_h = doubles(rows * F), *want_d = doubles(rows * 2 * F);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0;
        for (int64_t c = 0; c < C; c++)
            squares += pow((double)x.host[r * C + c], 2);
        for (int64_t c = 0; c < C; c++)
            want[r * C + c] = (double)x.host[r * C + c] * (double)scale.host[c] /
                              sqrt(squares / (double)C + 1e-5);
    }
    nearest_codes(normed8, want, rows * C, &e4m3, (int)ceil(log2(sqrt((double)C))) + 1);
    check_sums(up, (side){normed8, C, 1}, (side){w_up8, C, 1}, C, NULL);
    const float *up_got = fetched_matrix(up_at);
    for (int64_t i = 0; i < rows * F; i++) {
        const double g = (double)up_got[i / F * 2 * F + i % F];
        want_h[i] = g / (1 + exp(-g)) * (double)up_got[i / F * 2 * F + F + i % F];
    }
    nearest_codes(h8, want_h, rows * F, &e4m3, 1);
    check_sums(y.device, (side){h8, F, 1}, (side){w_down8, F, 1}, F, NULL);

    float largest = 0;
    for (int64_t i = 0; i < rows * C; i++)
        largest = fmaxf(largest, fabsf(d_y.host[i]));
    const sr_matrix_note measured = {.largest = bits_of(largest)};
    const sr_matrix d_out =
        sr_matrix_handed(d_y.device, SR_HANDED_MEASURED, device_bytes(&measured, sizeof measured));
    right(gpu->linear_backward(gpu,
                               &(sr_linear_backward){d_h_measured, d_out, h, &down, &d_down, 1}));
    right(gpu->swiglu_backward(gpu, d_up, d_h_measured, up));
    right(gpu->linear_backward(gpu, &(sr_linear_backward){d_normed.device, d_up, normed, ups, d_ups,
                                                          2}));
    const double *d_y8 = quantised(d_y.host, rows * C, &e5m2),
                 *d_up8 = numbers_of_codes(d_up, &e5m2);
    check_sums(d_h.device, (side){d_y8, C, 1}, (side){w_down8, 1, F}, C, NULL);
    check_sums(d_w_down.device, (side){d_y8, 1, C}, (side){h8, 1, F}, rows, d_w_down.host);
    const float *d_h_got = fetched_matrix(d_h);
    for (int64_t i = 0; i < rows * F; i++) {
        const int64_t at = i / F * 2 * F + i % F;
        const double g = (double)up_got[at], s = 1 / (1 + exp(-g)), d = (double)d_h_got[i];
        want_d[at] = d * (double)up_got[at + F] * s * (1 + g * (1 - s));
        want_d[at + F] = d * g * s;
    }
    nearest_codes(d_up8, want_d, rows * 2 * F, &e5m2, 16);
    check_sums(d_normed.device, (side){d_up8, 2 * F, 1}, (side){w_up8, 1, C}, 2 * F, NULL);
    check_sums(d_w_up.device, (side){d_up8, 1, 2 * F}, (side){normed8, 1, C}, rows, d_w_up.host);
    gpu->drop_codes(gpu, all.device.data);
    free_arrays();
}

/* SwiGLU alone, with gates or what they multiply larger by `factor`: their sizes bound gradients.
 *  */
static void check_swiglu_codes(float gate_factor, float up_factor) {
    enum { ROWS = 48, F = 32 };
    const both d_out = matrix(ROWS, F, 16, 1, SRNN_BF16);
    const sr_matrix h = new_codes(ROWS, F), d_x = new_codes(ROWS, 2 * F);
    float *x = numbers(ROWS * 2 * F, 2, SRNN_BF16);
    double *want = doubles(ROWS * F), *want_d = doubles(ROWS * 2 * F);
    for (int i = 0; i < ROWS * 2 * F; i++)
        x[i] *= i / F % 2 ? up_factor : gate_factor;
    for (int i = 0; i < ROWS * F; i++) {
        const int at = i / F * 2 * F + i % F;
        const double g = (double)x[at], up = (double)x[at + F], d = (double)d_out.host[i];
        const double sigmoid = 1 / (1 + exp(-g));
        want[i] = g * sigmoid * up;
        want_d[at] = d * up * sigmoid * (1 + g * (1 - sigmoid));
        want_d[at + F] = d * g * sigmoid;
    }
    const sr_matrix in = sr_matrix_handed(sr_matrix_of(on_device(x, ROWS * 2 * F, SRNN_BF16), ROWS,
                                                       2 * F, SRNN_BF16),
                                          SR_HANDED_NUMBERS, h.note);
    right(gpu->swiglu_forward(gpu, h, in));
    right(gpu->swiglu_backward(gpu, d_x, d_out.device, in));
    nearest_codes(numbers_of_codes(h, &e4m3), want, ROWS * F, &e4m3, 1);
    nearest_codes(numbers_of_codes(d_x, &e5m2), want_d, ROWS * 2 * F, &e5m2, 3);
    free_arrays();
}

/* A note with a size that is 2^power times `largest`; 0: none is known. */
static sr_matrix_note *note_before(double largest, int power) {
    const sr_matrix_note note = {.largest = power ? bits_of((float)ldexp(largest, power)) : 0};
    return device_bytes(&note, sizeof note);
}

static double largest_of(const double *x, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* SwiGLU after one whose largest size was 2^power times this one's: up to 2^-1 and 2^3 one scale
 * serves both, beyond that its own; its size is reported either way. */
static void check_swiglu_after(int power) {
    enum { ROWS = 272, F = 80 };
    const bool alike = power >= -1 && power <= 3;
    const sr_matrix h = new_codes(ROWS, F);
    float *x = numbers(ROWS * 2 * F, 2, SRNN_BF16);
    double *want = doubles(ROWS * F);
    for (int i = 0; i < ROWS * F; i++) {
        const int at = i / F * 2 * F + i % F;
        want[i] = (double)x[at] / (1 + exp(-(double)x[at])) * (double)x[at + F];
    }
    const double largest = largest_of(want, ROWS * F) * (power < 0 ? 0.99 : 1.01);
    const sr_matrix in = sr_matrix_handed(sr_matrix_of(on_device(x, ROWS * 2 * F, SRNN_BF16), ROWS,
                                                       2 * F, SRNN_BF16),
                                          SR_HANDED_NUMBERS, note_before(largest, power));
    right(gpu->swiglu_forward(gpu, h, in));
    nearest_codes(numbers_of_codes(h, &e4m3), want, ROWS * F, &e4m3, alike && power ? 5 : 1);
    const uint32_t bits = note_of(h.note).largest;
    float size;
    memcpy(&size, &bits, sizeof size);
    assert_true(fabs((double)size / largest_of(want, ROWS * F) - 1) < 1e-2);
    free_arrays();
}

/* The gradient of a norm in 8 bits, after one whose largest size was 2^power times this one's. */
static void check_norm_codes(int64_t rows, int64_t C, int power) {
    const bool alike = power >= -4 && power <= 6;
    const both x = matrix(rows, C, 0, 1, SRNN_F32), d_out = matrix(rows, C, 0, 2, SRNN_BF16);
    const both d_x = matrix(rows, C, 0, 3, SRNN_F32), plain = matrix(rows, C, 0, 3, SRNN_F32);
    const both scale = matrix(1, C, 0, 4, SRNN_F32),
               d_w[2] = {matrix(1, C, 0, 5, SRNN_F32), matrix(1, C, 0, 5, SRNN_F32)};
    float *const parts =
        on_device(numbers(SR_ROW_PARTS * C, 8, SRNN_F32), SR_ROW_PARTS * C, SRNN_F32);
    const sr_matrix codes = new_codes(rows, C), normed = matrix(rows, C, 0, 6, SRNN_BF16).device;
    const sr_rmsnorm norm = {x.device.data,
                             scale.device.data,
                             on_device(numbers(rows, 7, SRNN_F32), rows, SRNN_F32),
                             1e-5f,
                             rows,
                             C,
                             NULL};
    right(gpu->rmsnorm_forward(gpu, normed.data, &norm));
    right(gpu->rmsnorm_backward(gpu,
                                &(sr_rmsnorm_gradient){plain.device.data, normed.data,
                                                       d_w[0].device.data, parts, NULL, false},
                                d_out.device.data, &norm));
    const float *want = fetched_matrix(plain);
    const double *wide = widened(want, rows * C);
    const double largest = largest_of(wide, rows * C);
    sr_matrix_note *const note = note_before(largest * (power < 0 ? 1.01 : 0.99), power);
    const sr_rmsnorm_gradient gradient = {d_x.device.data, codes.data, d_w[1].device.data,
                                          parts,           note,       true};
    right(gpu->rmsnorm_backward(gpu, &gradient, d_out.device.data, &norm));
    assert_memory_equal(fetched_matrix(d_x), want, sizeof(float) * (size_t)(rows * C));
    close_to(fetched_matrix(d_w[1]), widened(fetched_matrix(d_w[0]), C), C, SRNN_F32);
    assert_int_equal(note_of(note).largest, bits_of((float)largest));
    nearest_codes(numbers_of_codes(sr_matrix_handed(codes, SR_HANDED_CODES, note), &e5m2), wide,
                  rows * C, &e5m2, alike && power ? 11 : 1);
    free_arrays();
}

/* The gradient of the loss in 8 bits is that in the place of the logits, which here stay. */
static void check_loss_codes(int64_t rows, int64_t V, float z) {
    const float scale = 0.125f;
    const both x = matrix(rows, V, 0, 1, SRNN_BF16), same = matrix(rows, V, 0, 1, SRNN_BF16);
    int32_t *targets = host_array((size_t)rows * sizeof *targets);
    for (int64_t r = 0; r < rows; r++)
        targets[r] = r % 5 == 4 ? -1 : (int32_t)(r * 7 % V);
    const int32_t *wanted = device_bytes(targets, (size_t)rows * sizeof *targets);
    float *losses[2] = {on_device(numbers(rows, 2, SRNN_F32), rows, SRNN_F32),
                        on_device(numbers(rows, 3, SRNN_F32), rows, SRNN_F32)};
    const sr_matrix codes = new_codes(rows, V);
    right(gpu->cross_entropy(gpu, losses[0], NULL, same.device,
                             &(sr_cross_entropy){.targets = wanted, .scale = scale, .z = z}));
    right(gpu->cross_entropy(gpu, losses[1], NULL, x.device,
                             &(sr_cross_entropy){wanted, scale, z, codes}));
    assert_memory_equal(fetched(losses[0], rows, SRNN_F32), fetched(losses[1], rows, SRNN_F32),
                        sizeof(float) * (size_t)rows);
    assert_memory_equal(fetched_matrix(x), x.host, sizeof(float) * (size_t)(rows * V));
    nearest_codes(numbers_of_codes(codes, &e5m2), widened(fetched_matrix(same), rows * V), rows * V,
                  &e5m2, 2);
    free_arrays();
}

static void sizes_as_expected(void **state) {
    (void)state;
    static const int powers[] = {0, 1, -1, 3, -4, 4, 6, -6, 9};
    for (size_t i = 0; i < sizeof powers / sizeof *powers; i++) {
        check_swiglu_after(powers[i]);
        check_norm_codes(48, 16, powers[i]);
        check_norm_codes(400, 144, powers[i]);
    }
    check_loss_codes(48, 80, 0);
    check_loss_codes(272, 1008, 0.01f);
    check_norm_codes(16, 2064, 1);
}

static void operands_in_8_bits(void **state) {
    (void)state;
    check_swiglu_codes(32, 1);
    check_swiglu_codes(1, 32);
    check_codes(48, 16, 16, false);
    check_codes(144, 80, 48, true);
    check_codes(272, 1040, 96, true); /* more columns than a block of the norm transposes at once */
    const sr_linear layer = {.N = 16, .fp8 = true};
    assert_false(gpu->takes_codes(gpu, &layer, 1, 40, 32)); /* rows are no multiple of 16 */
    assert_false(gpu->takes_codes(gpu, &layer, 1, 32, 32)); /* few rows */
    assert_false(gpu->takes_codes(gpu, &layer, 1, 48, 40));
}

static void operands_in_pieces(void **state) {
    (void)state;
    check_codes(400, PIECES_K, PIECES_N / 2, false);
    check_codes(400, PIECES_K, PIECES_N / 2, true);
}

/* A number that is not finite: what the norm makes of its row is not, nor is any product of a
 * tensor with one; zeros stay zeros. */
static void codes_of_nan(void **state) {
    (void)state;
    enum { ROWS = 48, C = 32, BAD = 20 };
    const float bad[] = {0, INFINITY, -INFINITY, NAN};
    const both w = matrix(C, C, 0, 2, SRNN_BF16), y = matrix(ROWS, C, 0, 3, SRNN_F32);
    const both scale = matrix(1, C, 0, 4, SRNN_F32);
    const sr_linear layer = {.weight = w.device.data, .N = C, .fp8 = true};
    for (int i = 0; i < 4; i++) {
        const sr_matrix normed = new_codes(ROWS, C), h = new_codes(ROWS, C / 2);
        float *x = numbers(ROWS * C, 1, SRNN_F32), *up = host_array(sizeof(float) * ROWS * C);
        for (int c = 0; c < C; c++)
            x[BAD * C + c] = 0;
        x[BAD * C + 5] = up[BAD * C + 5] = bad[i];
        const sr_rmsnorm norm = {on_device(x, ROWS * C, SRNN_F32),
                                 scale.device.data,
                                 on_device(numbers(ROWS, 12, SRNN_F32), ROWS, SRNN_F32),
                                 1e-5f,
                                 ROWS,
                                 C,
                                 normed.note};
        right(gpu->rmsnorm_forward(gpu, normed.data, &norm));
        right(gpu->linear_forward(gpu, y.device, (sr_matrix){0}, normed, &layer, 1));
        const float *got = fetched_matrix(y);
        for (int n = 0; n < ROWS * C; n++)
            assert_true(n / C != BAD ? isfinite(got[n]) : i == 0 ? got[n] == 0 : isnan(got[n]));
        const sr_linear narrow = {.weight = w.device.data, .N = C, .fp8 = true};
        right(gpu->swiglu_forward(gpu, h,
                                  sr_matrix_handed(sr_matrix_of(on_device(up, ROWS * C, SRNN_BF16),
                                                                ROWS, C, SRNN_BF16),
                                                   SR_HANDED_NUMBERS, h.note)));
        right(gpu->linear_forward(gpu, y.device, (sr_matrix){0}, h, &narrow, 1));
        got = fetched_matrix(y);
        for (int n = 0; n < ROWS * C; n++)
            assert_true(i == 0 ? got[n] == 0 : isnan(got[n]));
    }
    free_arrays();
}

/* A tensor of zeros stays one; with a number that is not finite nothing that follows is. */
static void zeros_and_infinities(void **state) {
    (void)state;
    enum { ROWS = 48, SIZE = 32 };
    const float bad[] = {0, INFINITY, -INFINITY, NAN};
    both w = matrix(SIZE, SIZE, 0, 2, SRNN_BF16), y = matrix(ROWS, SIZE, 0, 3, SRNN_F32);
    const sr_linear layer = {.weight = w.device.data, .N = SIZE, .fp8 = true};
    for (int i = 0; i < 4; i++) {
        float *x = host_array(sizeof(float) * ROWS * SIZE);
        x[ROWS * SIZE / 2] = bad[i];
        const sr_matrix in =
            sr_matrix_of(on_device(x, ROWS * SIZE, SRNN_BF16), ROWS, SIZE, SRNN_BF16);
        right(gpu->linear_forward(gpu, y.device, (sr_matrix){0}, in, &layer, 1));
        const float *got = fetched_matrix(y);
        for (int n = 0; n < ROWS * SIZE; n++)
            assert_true(i == 0 ? got[n] == 0.0f : isnan(got[n]));
    }
    free_arrays();
}

/* ---- norms ---- */

static void check_norm(int64_t rows, int64_t C, int64_t offset) {
    const srnn_dtype number = gpu->number;
    float *x = numbers(rows * C + offset, 1, SRNN_F32) + offset, *w = numbers(C, 2, SRNN_F32);
    float *d_out = numbers(rows * C, 3, number), *d_x = numbers(rows * C, 4, SRNN_F32);
    float *d_w = numbers(C, 5, SRNN_F32);
    const double epsilon = 1e-5;
    double *out = doubles(rows * C), *want_x = doubles(rows * C), *want_w = doubles(C);
    double *rstds = doubles(rows);
    for (int64_t c = 0; c < C; c++)
        want_w[c] = (double)(d_w[c] += 3); /* nothing that a single product could cancel */
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0, dot = 0;
        for (int64_t i = r * C; i < (r + 1) * C; i++) {
            squares += (double)x[i] * (double)x[i];
            dot += (double)x[i] * (double)d_out[i] * (double)w[i - r * C];
        }
        const double rstd = 1 / sqrt(squares / (double)C + epsilon);
        rstds[r] = rstd;
        for (int64_t c = 0, i = r * C; c < C; c++, i++) {
            out[i] = (double)x[i] * rstd * (double)w[c];
            want_x[i] = (double)d_x[i] + (double)d_out[i] * (double)w[c] * rstd -
                        (double)x[i] * dot * pow(rstd, 3) / (double)C;
            want_w[c] += (double)d_out[i] * (double)x[i] * rstd;
        }
    }
    const sr_rmsnorm norm = {(float *)on_device(x - offset, rows * C + offset, SRNN_F32) + offset,
                             on_device(w, C, SRNN_F32),
                             on_device(numbers(rows, 6, SRNN_F32), rows, SRNN_F32),
                             (float)epsilon,
                             rows,
                             C,
                             NULL};
    void *got = on_device(numbers(rows * C, 7, number), rows * C, number);
    right(gpu->rmsnorm_forward(gpu, got, &norm));
    close_to(fetched(got, rows * C, number), out, rows * C, number);
    close_to(fetched(norm.rstd, rows, SRNN_F32), rstds, rows, SRNN_F32);
    float *wide = on_device(d_x, rows * C, SRNN_F32);
    const sr_rmsnorm_gradient gradient = {wide,
                                          number == SRNN_F32 ? wide : got,
                                          on_device(d_w, C, SRNN_F32),
                                          on_device(numbers(SR_ROW_PARTS * C, 8, SRNN_F32),
                                                    SR_ROW_PARTS * C, SRNN_F32),
                                          new_note(),
                                          false};
    right(gpu->rmsnorm_backward(gpu, &gradient, on_device(d_out, rows * C, number), &norm));
    const float *got_x = fetched(wide, rows * C, SRNN_F32);
    float largest = 0;
    close_to(got_x, want_x, rows * C, SRNN_F32);
    for (int64_t i = 0; i < rows * C; i++)
        largest = fmaxf(largest, fabsf(got_x[i]));
    assert_int_equal(note_of(gradient.measured).largest, bits_of(largest));
    close_to(fetched(gradient.narrow, rows * C, number), want_x, rows * C, number);
    close_to(fetched(gradient.d_weight, C, SRNN_F32), want_w, C, SRNN_F32);
    free_arrays();
}

static void norms(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 0},    {3, 5, 0},    {17, 64, 0},  {5, 1030, 0},
                                        {70, 128, 1}, {1200, 8, 0}, {2, 2600, 0}, {3, 4104, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        check_norm(shapes[i][0], shapes[i][1], shapes[i][2]);
}

/* ---- position ---- */

static void check_rope(int heads, int D, int64_t rows, int64_t gap) {
    enum { POSITIONS = 9 };
    both x = matrix(rows, (int64_t)heads * D, gap, 1, gpu->number);
    float *table = numbers((int64_t)POSITIONS * D, 2, SRNN_F32);
    int32_t *positions = host_array((size_t)rows * sizeof *positions);
    double *want = doubles(rows * heads * D), *back = doubles(rows * heads * D);
    for (int64_t r = 0; r < rows; r++)
        positions[r] = (int32_t)(r * 5 % POSITIONS);
    const sr_rope rope = {on_device(table, (int64_t)POSITIONS * D, SRNN_F32),
                          device_bytes(positions, (size_t)rows * sizeof *positions),
                          heads,
                          D,
                          0,
                          false};
    for (int64_t i = 0; i < rows * heads * D; i++) {
        const int64_t c = i % D, half = D / 2, r = i / (heads * D);
        const double cosine = (double)table[positions[r] * D + c % half];
        const double sine = (double)table[positions[r] * D + half + c % half];
        const double own = (double)x.host[i];
        const double other = c < half ? -(double)x.host[i + half] : (double)x.host[i - half];
        want[i] = own * cosine + other * sine;
        back[i] = own * cosine - other * sine;
    }
    right(gpu->rope_forward(gpu, x.device, &rope));
    close_to(fetched_matrix(x), want, rows * heads * D, gpu->number);
    x = matrix(rows, (int64_t)heads * D, gap, 1, gpu->number);
    right(gpu->rope_backward(gpu, x.device, &rope));
    close_to(fetched_matrix(x), back, rows * heads * D, gpu->number);
    free_arrays();
}

static void positions_turn(void **state) {
    (void)state;
    check_rope(1, 2, 1, 0);
    check_rope(3, 6, 5, 1);
    check_rope(4, 64, 37, 64);
    check_rope(20, 128, 3, 0);
}

/* Sequences that are fed one token each. */
typedef struct rope_case {
    const char *attention;
    int B, H, Hkv, D;
    int64_t gap;
} rope_case;

static srnn_state *state_of(const rope_case *c) {
    srnn_problem p = {.B = c->B,
                      .H = c->H,
                      .Hkv = c->Hkv,
                      .T = 2,
                      .D = c->D,
                      .dtype = gpu->number,
                      .form = SRNN_FORM_PARALLEL,
                      .device = gpu->device};
    srnn_state *state;
    right(srnn_attention_parse(&p.attention, c->attention));
    right(srnn_state_create(&state, &p));
    return state;
}

static srnn_tensor heads_of(sr_matrix m, int64_t first, int D) {
    return (srnn_tensor){.data = sr_number_at(m.data, first, m.dtype),
                         .batch = m.stride,
                         .head = D,
                         .time = m.stride};
}

/* Feeds q, k and v, side by side in the rows of x; out (B, H * D). */
static float *feed_one(srnn_state *state, const rope_case *c, sr_matrix x, sr_rope_angles turn) {
    const both o = matrix(c->B, (int64_t)c->H * c->D, 0, 3, gpu->number);
    const int64_t q = (int64_t)c->H * c->D, k = (int64_t)c->Hkv * c->D;
    const srnn_operands in = {.q = heads_of(x, 0, c->D),
                              .k = heads_of(x, q, c->D),
                              .v = heads_of(x, q + k, c->D)};
    right(sr_state_run(state, heads_of(o.device, 0, c->D), &in, 1, turn));
    sr_state_advance(state, 1);
    return fetched_matrix(o);
}

static void *saved_state(const srnn_state *state, size_t *bytes) {
    *bytes = srnn_state_saved_bytes(state);
    void *saved = host_array(*bytes);
    right(srnn_state_save(state, saved, *bytes));
    return saved;
}

/* A state that applies RoPE gives the same bits as one that is fed rotated q and k, and stores the
 * same. */
static void check_rotated_state(const rope_case *c) {
    enum { POSITIONS = 9, TOKENS = 5 };
    const int64_t rotated = c->H + c->Hkv, columns = (rotated + c->Hkv) * c->D;
    srnn_state *before = state_of(c), *inside = state_of(c);
    const float *table = numbers((int64_t)POSITIONS * c->D, 2, SRNN_F32);
    int32_t *positions = host_array((size_t)c->B * sizeof *positions);
    const float *angles = on_device(table, (int64_t)POSITIONS * c->D, SRNN_F32);
    assert_true(sr_state_applies_rope(inside, 1));
    for (uint32_t token = 0; token < TOKENS; token++) {
        both x = matrix(c->B, columns, c->gap, 10 + token, gpu->number);
        for (int b = 0; b < c->B; b++)
            positions[b] = (int32_t)((uint32_t)b * 5 + token) % POSITIONS;
        const int32_t *places = device_bytes(positions, (size_t)c->B * sizeof *positions);
        const sr_rope rope = {angles, places, (int)rotated, c->D, 0, false};
        const float *got = feed_one(inside, c, x.device, (sr_rope_angles){angles, places});
        right(gpu->rope_forward(gpu, sr_matrix_columns(x.device, 0, rotated * c->D), &rope));
        const float *want = feed_one(before, c, x.device, (sr_rope_angles){0});
        assert_memory_equal(got, want, (size_t)(c->B * c->H * c->D) * sizeof *got);
    }
    size_t bytes, same;
    const void *want = saved_state(before, &bytes), *got = saved_state(inside, &same);
    assert_int_equal(same, bytes);
    assert_memory_equal(got, want, bytes);
    srnn_state_free(before);
    srnn_state_free(inside);
    free_arrays();
}

static void states_turn(void **state) {
    (void)state;
    static const rope_case cases[] = {
        {"softmax", 5, 3, 3, 64, 0},
        {"softmax", 7, 4, 2, 32, 16},
        {"softmax", 34, 12, 4, 16,
         5}, /* more rows than blocks, and rows that are not aligned to 16 bytes */
        {"norm", 6, 2, 1, 22, 3},
        {"norm", 6, 2, 1, 96, 8},
        {"softmax_taylor_80terms_intended", 5, 2, 2, 144, 0}};
    static const rope_case others[] = {{"softmax", 4, 2, 2, 64, 0}, {"linear_elu", 5, 2, 2, 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_rotated_state(&cases[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        srnn_state *made = state_of(&others[i]);
        assert_false(sr_state_applies_rope(made, 1));
        srnn_state_free(made);
    }
    srnn_state *made = state_of(&cases[0]);
    assert_false(sr_state_applies_rope(made, 2));
    srnn_state_free(made);
}

/* ---- activations ---- */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static void check_swiglu(int64_t rows, int64_t F, int64_t gap) {
    both x = matrix(rows, 2 * F, gap, 1, gpu->number), out = matrix(rows, F, gap, 2, gpu->number);
    both d_out = matrix(rows, F, gap, 3, gpu->number);
    both d_x = matrix(rows, 2 * F, gap, 4, gpu->number);
    double *want = doubles(rows * F), *want_x = doubles(rows * 2 * F);
    for (int64_t i = 0; i < rows * F; i++) {
        const int64_t at = i / F * 2 * F + i % F;
        const double g = (double)x.host[at], u = (double)x.host[at + F], s = sigmoid(g);
        want[i] = g * s * u;
        want_x[at] = (double)d_out.host[i] * u * s * (1 + g * (1 - s));
        want_x[at + F] = (double)d_out.host[i] * g * s;
    }
    right(gpu->swiglu_forward(gpu, out.device, x.device));
    right(gpu->swiglu_backward(gpu, d_x.device, d_out.device, x.device));
    close_to(fetched_matrix(out), want, rows * F, gpu->number);
    close_to(fetched_matrix(d_x), want_x, rows * 2 * F, gpu->number);
    free_arrays();
}

static void check_gelu(int64_t rows, int64_t F, int64_t gap) {
    both x = matrix(rows, F, gap, 1, gpu->number), out = matrix(rows, F, gap, 2, gpu->number);
    both d_out = matrix(rows, F, gap, 3, gpu->number);
    double *want = doubles(rows * F), *want_x = doubles(rows * F);
    for (int64_t i = 0; i < rows * F; i++) {
        const double v = (double)x.host[i], below = 0.5 * (1 + erf(v * M_SQRT1_2));
        want[i] = v * below;
        want_x[i] = (double)d_out.host[i] * (below + v * exp(-v * v / 2) / sqrt(2 * M_PI));
    }
    right(gpu->gelu_forward(gpu, out.device, x.device));
    right(gpu->gelu_backward(gpu, d_out.device, d_out.device, x.device));
    close_to(fetched_matrix(out), want, rows * F, gpu->number);
    close_to(fetched_matrix(d_out), want_x, rows * F, gpu->number);
    free_arrays();
}

static void activations(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 0}, {5, 7, 1}, {13, 64, 8}, {3, 2608, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_swiglu(shapes[i][0], shapes[i][1], shapes[i][2]);
        check_gelu(shapes[i][0], shapes[i][1], shapes[i][2]);
    }
}

/* ---- products of a norm, all at once for few rows ---- */

typedef struct normed_case {
    int64_t rows, C, gates; /* columns after the heads, with a bias */
    int heads, D, rotated;  /* `rotated` of the heads have RoPE */
} normed_case;

/* x (rows, C) times the norm's weights as in the product: for more than a few rows rounded to the
 * number type. */
static float *scaled_rows(const float *x, const float *norm, int64_t rows, int64_t C) {
    float *scaled = host_array((size_t)(rows * C) * sizeof *scaled);
    for (int64_t i = 0; i < rows * C; i++) {
        scaled[i] = x[i] * norm[i % C];
        if (gpu->number == SRNN_BF16 && rows > SR_CUDA_FEW_ROWS)
            scaled[i] = sr_bf16_float(sr_bf16_of(scaled[i]));
    }
    return scaled;
}

/* sum_k norm(x)[r][k] weight[n][k]. */
static double normed_product(const float *x, const float *scaled, const float *weight, int64_t C) {
    double squares = 0, sum = 0;
    for (int64_t k = 0; k < C; k++) {
        squares += (double)x[k] * (double)x[k];
        sum += (double)scaled[k] * (double)weight[k];
    }
    return sum / sqrt(squares / (double)C + 1e-5);
}

static sr_rmsnorm norm_over(const float *x, const float *weight, int64_t rows, int64_t C) {
    return (sr_rmsnorm){.x = on_device(x, rows * C, SRNN_F32),
                        .weight = on_device(weight, C, SRNN_F32),
                        .rstd = on_device(x, rows, SRNN_F32),
                        .epsilon = 1e-5f,
                        .rows = rows,
                        .C = C};
}

static void check_normed_linear(const normed_case *c) {
    const int64_t rotated = c->rotated * c->D, plain = c->heads * c->D, N = plain + c->gates;
    const int64_t positions = c->rows + 3;
    float *x = numbers(c->rows * c->C, 1, SRNN_F32), *norm = numbers(c->C, 2, SRNN_F32);
    float *weight = numbers(N * c->C, 3, gpu->number), *bias = numbers(c->gates, 4, SRNN_F32);
    float *table = numbers(positions * c->D, 5, SRNN_F32);
    const float *scaled = scaled_rows(x, norm, c->rows, c->C);
    int32_t *places = host_array((size_t)c->rows * sizeof *places);
    double *want = doubles(c->rows * N);
    for (int64_t r = 0; r < c->rows; r++) {
        places[r] = (int32_t)((r * 5 + 2) % positions);
        for (int64_t n = 0; n < N; n++)
            want[r * N + n] =
                normed_product(x + r * c->C, scaled + r * c->C, weight + n * c->C, c->C) +
                (n < plain ? 0 : (double)bias[n - plain]);
        for (int64_t n = 0; n < rotated; n++) {
            const int64_t half = c->D / 2;
            const float *angles = table + places[r] * c->D + n % c->D;
            double *low = want + r * N + n, before = *low;
            if (n % c->D >= half)
                continue;
            *low = before * (double)angles[0] - low[half] * (double)angles[half];
            low[half] = low[half] * (double)angles[0] + before * (double)angles[half];
        }
    }
    both y = matrix(c->rows, N, 8, 6, gpu->number);
    char *weights = on_device(weight, N * c->C, gpu->number);
    const sr_linear layers[] = {{weights, NULL, .N = plain},
                                {sr_number_at(weights, plain * c->C, gpu->number),
                                 on_device(bias, c->gates, SRNN_F32), .N = c->gates}};
    const sr_rope rope = {on_device(table, positions * c->D, SRNN_F32),
                          device_bytes(places, (size_t)c->rows * sizeof *places),
                          c->rotated,
                          c->D,
                          0,
                          false};
    const sr_norm_linear of = {norm_over(x, norm, c->rows, c->C),
                               on_device(x, c->rows * c->C, gpu->number),
                               layers,
                               c->gates ? 2 : 1,
                               c->rotated ? &rope : NULL,
                               NULL};
    right(gpu->norm_linear_forward(gpu, y.device, &of));
    close_to(fetched_matrix(y), want, c->rows * N, gpu->number);
    free_arrays();
}

static void check_normed_swiglu(int64_t rows, int64_t C, int64_t F) {
    float *x = numbers(rows * C, 1, SRNN_F32), *norm = numbers(C, 2, SRNN_F32);
    float *weight = numbers(2 * F * C, 3, gpu->number);
    const float *scaled = scaled_rows(x, norm, rows, C);
    double *want = doubles(rows * F);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < F; n++) {
            const float *from = scaled + r * C;
            const double g = normed_product(x + r * C, from, weight + n * C, C);
            want[r * F + n] =
                g * sigmoid(g) * normed_product(x + r * C, from, weight + (F + n) * C, C);
        }
    both out = matrix(rows, F, 8, 4, gpu->number), up = matrix(rows, 2 * F, 0, 5, gpu->number);
    char *weights = on_device(weight, 2 * F * C, gpu->number);
    const sr_linear layers[] = {{weights, NULL, .N = F},
                                {sr_number_at(weights, F * C, gpu->number), NULL, .N = F}};
    const sr_norm_linear of = {.norm = norm_over(x, norm, rows, C),
                               .normed = on_device(x, rows * C, gpu->number),
                               .layers = layers,
                               .count = 2};
    right(gpu->norm_swiglu_forward(gpu, out.device, up.device, &of));
    close_to(fetched_matrix(out), want, rows * F, gpu->number);
    free_arrays();
}

static void normed_products(void **state) {
    (void)state;
    static const normed_case cases[] = {{1, 8, 0, 1, 2, 0},
                                        {1, 264, 3, 3, 16, 2},
                                        {4, 1032, 5, 2, 8, 1},
                                        {3, 64, 1, 4, 64, 4},
                                        {2, 2056, 0, 5, 6, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_normed_linear(&cases[i]);
    check_normed_swiglu(1, 264, 7);
    check_normed_swiglu(4, 1032, 66);
    if (gpu->number == SRNN_BF16 && sr_cuda_few_rows(gpu, 1) < SR_CUDA_MANY_ROWS)
        return; /* more rows are computed in steps, with rounding at each */
    check_normed_linear(&(normed_case){11, 24, 3, 3, 8, 2});
    check_normed_linear(&(normed_case){32, 1032, 5, 3, 64, 2});
    check_normed_linear(&(normed_case){17, 264, 0, 7, 6, 5});
    check_normed_swiglu(9, 16, 5);
    check_normed_swiglu(32, 520, 66);
    check_normed_swiglu(29, 2056, 3);
}

static void largest_of_rows(void **state) {
    (void)state;
    static const int64_t columns[] = {1, 7, 264, 32000, 33001};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        const int64_t V = columns[i], rows = 4;
        float *x = numbers(rows * V, (uint32_t)i, gpu->number);
        int32_t want[4] = {0}, got[4] = {0};
        for (int64_t v = 0; v < V; v++) /* the last row is constant, except for a NaN */
            x[3 * V + v] = v == 0 && V > 1 ? NAN : -INFINITY;
        x[V + V / 2] = x[V + V - 1] = 2; /* the first of equals */
        want[1] = (int32_t)(V / 2);
        want[3] = V > 1;
        for (int64_t r = 0; r < 3; r += 2)
            for (int32_t v = 1; v < V; v++)
                if (x[r * V + v] > x[r * V + want[r]])
                    want[r] = v;
        int32_t *out = device_bytes(got, sizeof got);
        const sr_matrix m = sr_matrix_of(on_device(x, rows * V, gpu->number), rows, V, gpu->number);
        right(gpu->argmax(gpu, out, m));
        right(sr_device_copy_out(gpu->device, got, out, sizeof got));
        assert_memory_equal(got, want, sizeof want);
        free_arrays();
    }
}

/* ---- short convolution ---- */

typedef struct conv_case {
    int64_t B, T, C;
    int width;
    int64_t gap;
    bool bias, history;
} conv_case;

static const conv_case conv_cases[] = {
    {1, 1, 1, 1, 0, false, false},   {2, 5, 7, 4, 1, true, false},   {3, 70, 24, 4, 0, true, false},
    {2, 9, 72, 3, 8, false, true},   {1, 2, 40, 5, 0, true, true},   {2, 70, 20, 4, 4, true, true},
    {1, 90, 16, 64, 0, true, false}, {2, 300, 8, 2, 0, false, false}};

/* Channel c of the token j before row `row`; false if there is none. Its parameters are the members
 * of what it fills. */
static bool conv_input(double *x, const conv_case *c, const float *inputs, const float *history,
                       const int32_t *positions, int64_t row, int j, int64_t channel) {
    const int64_t token = row % c->T - j, cached = c->width - 1;
    if (positions[row] < j || (token < 0 && !history))
        return false;
    *x = (double)(token >= 0 ? inputs[(row - j) * c->C + channel]
                             : history[(row / c->T * cached + cached + token) * c->C + channel]);
    return true;
}

/* Documents of 7 tokens, or, with a history, one that continues. */
static int32_t *conv_positions(const conv_case *c) {
    int32_t *positions = host_array((size_t)(c->B * c->T) * sizeof *positions);
    for (int64_t row = 0; row < c->B * c->T; row++)
        positions[row] = (int32_t)(c->history ? row % c->T + 2 : row % c->T % 67);
    return positions;
}

static void check_conv(const conv_case *c) {
    const srnn_dtype number = gpu->number;
    const int64_t rows = c->B * c->T, cached = c->B * (c->width - 1) * c->C;
    both x = matrix(rows, c->C, c->gap, 1, number), out = matrix(rows, c->C, c->gap, 2, number);
    both d_out = matrix(rows, c->C, c->gap, 3, number), d_x = matrix(rows, c->C, c->gap, 4, number);
    float *weight = numbers(c->C * c->width, 5, SRNN_F32), *bias = numbers(c->C, 6, SRNN_F32);
    float *history = numbers(cached, 7, number), *d_w = numbers(c->C * c->width, 8, SRNN_F32);
    float *d_b = numbers(c->C, 9, SRNN_F32);
    int32_t *positions = conv_positions(c);
    double *want = doubles(rows * c->C), *want_x = doubles(rows * c->C);
    double *want_w = doubles(c->C * c->width), *want_b = doubles(c->C);
    float *d_h = numbers(cached, 10, number);
    double *want_h = doubles(cached);
    for (int64_t i = 0; i < cached; i++)
        want_h[i] = (double)d_h[i];
    for (int64_t i = 0; i < c->C * c->width; i++)
        want_w[i] = (double)d_w[i];
    for (int64_t i = 0; i < c->C; i++)
        want_b[i] = (double)d_b[i];
    for (int64_t i = 0; i < rows * c->C; i++) {
        const int64_t row = i / c->C, channel = i % c->C;
        double s = c->bias ? (double)bias[channel] : 0, v;
        for (int j = 0; j < c->width; j++)
            if (conv_input(&v, c, x.host, c->history ? history : NULL, positions, row, j, channel))
                s += v * (double)weight[channel * c->width + c->width - 1 - j];
        want[i] = s * sigmoid(s);
        const double d = (double)d_out.host[i] * sigmoid(s) * (1 + s * (1 - sigmoid(s)));
        want_b[channel] += d;
        for (int j = 0; j < c->width; j++)
            if (conv_input(&v, c, x.host, c->history ? history : NULL, positions, row, j,
                           channel)) {
                const int64_t tap = channel * c->width + c->width - 1 - j;
                const int64_t token = row % c->T - j, past = c->width - 1;
                double *const from = token >= 0
                                         ? &want_x[(row - j) * c->C]
                                         : &want_h[(row / c->T * past + past + token) * c->C];
                want_w[tap] += d * v;
                from[channel] += d * (double)weight[tap];
            }
    }
    const sr_short_conv conv = {x.device,
                                on_device(weight, c->C * c->width, SRNN_F32),
                                c->bias ? on_device(bias, c->C, SRNN_F32) : NULL,
                                device_bytes(positions, (size_t)rows * sizeof *positions),
                                c->width,
                                false,
                                c->T,
                                c->history ? on_device(history, cached, number) : NULL};
    right(gpu->short_conv_forward(gpu, out.device, &conv));
    close_to(fetched_matrix(out), want, rows * c->C, number);
    float *got_w = on_device(d_w, c->C * c->width, SRNN_F32);
    float *got_b = c->bias ? on_device(d_b, c->C, SRNN_F32) : NULL;
    right(gpu->short_conv_backward(gpu, d_x.device, got_w, got_b, d_out.device, &conv));
    close_to(fetched_matrix(d_x), want_x, rows * c->C, number);
    /* The exponential of bf16 kernels has fewer bits than these sums. */
    close_to(fetched(got_w, c->C * c->width, SRNN_F32), want_w, c->C * c->width, SRNN_F32);
    if (got_b)
        close_to(fetched(got_b, c->C, SRNN_F32), want_b, c->C, SRNN_F32);
    void *got_h = c->history ? on_device(d_h, cached, number) : NULL;
    if (got_h) {
        right(gpu->short_conv_history_backward(gpu, got_h, d_out.device, &conv));
        close_to(fetched(got_h, cached, number), want_h, cached, number);
    }
}

static void check_history(const conv_case *c) {
    const srnn_dtype number = gpu->number;
    const int64_t cached = c->width - 1, count = c->B * cached * c->C;
    both x = matrix(c->B * c->T, c->C, c->gap, 1, number);
    float *old = numbers(count, 2, number), *want = host_array((size_t)count * sizeof *want);
    void *got = on_device(numbers(count, 3, number), count, number);
    for (int64_t i = 0; i < count; i++) {
        const int64_t batch = i / (cached * c->C), row = i / c->C % cached, channel = i % c->C;
        const int64_t token = c->T - cached + row;
        want[i] = token >= 0 ? x.host[(batch * c->T + token) * c->C + channel]
                             : old[(batch * cached + cached + token) * c->C + channel];
    }
    const sr_short_conv conv = {.x = x.device,
                                .width = c->width,
                                .T = c->T,
                                .history = on_device(old, count, number)};
    right(gpu->short_conv_history(gpu, got, &conv));
    assert_memory_equal(fetched(got, count, number), want, (size_t)count * sizeof *want);
}

/* Rows that begin a document lose their state, also where a row has more numbers than a grid
 * threads. */
static void states_that_begin(void **state) {
    (void)state;
    static const int32_t positions[] = {0, 1, 2, 5, 6, 7, 0, 1, 0};
    static const int64_t columns[] = {1, 300, 270000};
    for (size_t n = 0; n < sizeof columns / sizeof *columns; n++) {
        const int64_t B = 3, T = 3, count = B * columns[n];
        float *want = numbers(count, 3, SRNN_F32);
        void *got = on_device(want, count, SRNN_F32);
        right(gpu->clear_starts(gpu, sr_matrix_of(got, B, columns[n], SRNN_F32),
                                device_bytes(positions, sizeof positions), T));
        memset(want, 0, (size_t)columns[n] * sizeof *want);
        memset(want + 2 * columns[n], 0, (size_t)columns[n] * sizeof *want);
        assert_memory_equal(fetched(got, count, SRNN_F32), want, (size_t)count * sizeof *want);
        free_arrays();
    }
}

static void short_convolutions(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof conv_cases / sizeof *conv_cases; i++) {
        check_conv(&conv_cases[i]);
        check_history(&conv_cases[i]);
        free_arrays();
    }
}

/* ---- embedding ---- */

/* Sums are computed row by row, as here: the same bits. */
static void check_embed(int64_t rows, int64_t C, int64_t V, int64_t gap) {
    both out = matrix(rows, C, gap, 1, SRNN_F32), d_out = matrix(rows, C, gap, 2, SRNN_F32);
    float *weight = numbers(V * C, 3, SRNN_F32), *d_weight = numbers(V * C, 4, SRNN_F32);
    float *want = host_array((size_t)(rows * C) * sizeof *want);
    int32_t *ids = host_array((size_t)rows * sizeof *ids);
    uint32_t seed = 5;
    for (int64_t r = 0; r < rows; r++) {
        ids[r] = (int32_t)((double)(noise(&seed) + 1) / 2 * (double)(V + 1)) - 1; /* some are -1 */
        if (ids[r] >= 0)
            memcpy(want + r * C, weight + ids[r] * C, (size_t)C * sizeof *want);
    }
    const int32_t *tokens = device_bytes(ids, (size_t)rows * sizeof *ids);
    float *sums = on_device(d_weight, V * C, SRNN_F32);
    right(gpu->embed_forward(gpu, out.device,
                             sr_matrix_of(on_device(weight, V * C, SRNN_F32), V, C, SRNN_F32),
                             tokens));
    right(gpu->embed_backward(gpu, sums, d_out.device, tokens));
    assert_memory_equal(fetched_matrix(out), want, (size_t)(rows * C) * sizeof *want);
    for (int64_t i = 0; i < rows * C; i++)
        if (ids[i / C] >= 0)
            d_weight[ids[i / C] * C + i % C] += d_out.host[i];
    assert_memory_equal(fetched(sums, V * C, SRNN_F32), d_weight, (size_t)(V * C) * sizeof *want);
    free_arrays();
}

static void embeddings(void **state) {
    (void)state;
    check_embed(1, 1, 3, 0);
    check_embed(5, 7, 2, 1);
    check_embed(256, 4, 300, 0);
    check_embed(257, 8, 1, 0);
    check_embed(1500, 12, 70, 4);
}

/* ---- loss ---- */

/* Its parameters are the op's, in double. */
static void want_losses(double *losses, int32_t *hits, double *gradient, const float *x, int64_t V,
                        int32_t target, double scale, double z) {
    double sum = 0, largest = -INFINITY;
    *losses = *hits = 0;
    memset(gradient, 0, (size_t)V * sizeof *gradient);
    if (target < 0)
        return;
    *hits = 1;
    for (int64_t v = 0; v < V; v++) {
        largest = fmax(largest, (double)x[v]);
        *hits = *hits && (v < target ? x[v] < x[target] : x[v] <= x[target]);
    }
    for (int64_t v = 0; v < V; v++)
        sum += exp((double)x[v] - largest);
    *losses = log(sum) + largest - (double)x[target];
    for (int64_t v = 0; v < V; v++)
        gradient[v] =
            scale * (exp((double)x[v] - largest) / sum * (1 + 2 * z * (log(sum) + largest)) -
                     (v == target));
}

static void check_losses(int64_t rows, int64_t V, int64_t gap, float size, float scale, float z) {
    const srnn_dtype number = gpu->number;
    both x = matrix(rows, V, gap, 1, number);
    int32_t *targets = host_array((size_t)rows * sizeof *targets);
    int32_t *want_hits = host_array((size_t)rows * sizeof *want_hits);
    double *want = doubles(rows), *gradient = doubles(rows * V);
    for (int64_t i = 0; i < rows * V; i++)
        x.host[i] = sr_bf16_float(sr_bf16_of(x.host[i] * size));
    for (int64_t r = 0; r < rows; r++) {
        float *row = x.host + r * V;
        targets[r] = (int32_t)(r * 7 % V);
        if (r % 3 == 1)
            row[targets[r]] = size; /* the largest, and often a tie */
        if (r % 6 == 1)
            row[V - 1] = row[V / 2] = size;
        if (r % 5 == 4)
            targets[r] = -1;
        if (r % 7 == 3 && V > 2)
            row[(targets[r] + 1) % V] = -INFINITY;
        want_losses(want + r, want_hits + r, gradient + r * V, row, V, targets[r], (double)scale,
                    (double)z);
    }
    float *spaced = numbers(rows * x.device.stride, 1, number);
    for (int64_t r = 0; r < rows; r++)
        memcpy(spaced + r * x.device.stride, x.host + r * V, (size_t)V * sizeof *spaced);
    x.memory = on_device(spaced, rows * x.device.stride, number);
    x.offset = 0;
    x.device.data = x.memory;
    float *losses = on_device(numbers(rows, 2, SRNN_F32), rows, SRNN_F32);
    int32_t *hits = device_bytes(targets, (size_t)rows * sizeof *hits);
    const int32_t *wanted = device_bytes(targets, (size_t)rows * sizeof *targets);
    right(gpu->cross_entropy(gpu, losses, hits, x.device,
                             &(sr_cross_entropy){.targets = wanted, .scale = scale, .z = z}));
    close_to(fetched(losses, rows, SRNN_F32), want, rows, SRNN_F32);
    int32_t *got_hits = host_array((size_t)rows * sizeof *got_hits);
    right(sr_device_copy_out(gpu->device, got_hits, hits, (size_t)rows * sizeof *hits));
    assert_memory_equal(got_hits, want_hits, (size_t)rows * sizeof *hits);
    if (scale != 0) {
        close_to(fetched_matrix(x), gradient, rows * V, number);
    }
    free_arrays();
}

static void losses(void **state) {
    (void)state;
    check_losses(1, 1, 0, 1, 1, 0);
    check_losses(11, 5, 1, 4, 0.25f, 0);
    check_losses(20, 64, 0, 4, 1, 0);
    check_losses(13, 1003, 0, 10, 1, 0);
    check_losses(9, 4096, 8, 9984, 0.5f, 0); /* about 10^4 */
    check_losses(9, 100, 0, 4, 0, 0);
    check_losses(20, 64, 0, 4, 1, 0.01f);
    check_losses(13, 1003, 0, 10, 0.25f, 0.001f);
}

/* A row of NaN gives NaN, is not a hit and does not affect its neighbours; an ignored row gives
 * zeros. */
static void losses_of_nan(void **state) {
    (void)state;
    enum { V = 40 };
    float *x = numbers(3 * V, 1, gpu->number);
    const int32_t targets[] = {3, 5, -1};
    int32_t hits[3];
    for (int v = 0; v < V; v++)
        x[v] = x[2 * V + v] = NAN;
    void *logits = on_device(x, 3 * V, gpu->number);
    float *out = on_device(x, 3, SRNN_F32);
    int32_t *got = device_bytes(targets, sizeof targets);
    const sr_cross_entropy of = {.targets = device_bytes(targets, sizeof targets), .scale = 1};
    right(gpu->cross_entropy(gpu, out, got, sr_matrix_of(logits, 3, V, gpu->number), &of));
    const float *values = fetched(out, 3, SRNN_F32),
                *gradient = fetched(logits, 3 * V, gpu->number);
    right(sr_device_copy_out(gpu->device, hits, got, sizeof hits));
    assert_true(isnan(values[0]) && isfinite(values[1]) && values[2] == 0);
    assert_true(hits[0] == 0 && hits[2] == 0);
    for (int v = 0; v < V; v++)
        assert_true(isfinite(gradient[V + v]) && gradient[2 * V + v] == 0);
    free_arrays();
}

/* A router of NaN gives NaN, so that it is seen, and not no expert at all; its neighbours do not
 * change. */
static void routers_of_nan(void **state) {
    (void)state;
    for (int renormalised = 0; renormalised < 2; renormalised++) {
        const float logits[] = {1, NAN, 2, 1, 0, 2};
        const sr_routing routing = {3, 2, renormalised, false};
        float *weights = on_device(logits, 6, SRNN_F32), sum = 0;
        right(gpu->route_forward(gpu, weights,
                                 sr_matrix_of(on_device(logits, 6, gpu->number), 2, 3, gpu->number),
                                 &routing));
        const float *got = fetched(weights, 6, SRNN_F32);
        for (int i = 0; i < 3; i++)
            sum += got[i];
        assert_true(isnan(sum));
        assert_true(got[3] > 0 && got[4] == 0 && got[5] > got[3]);
        free_arrays();
    }
}

/* ---- the step: tally, AdamW ---- */

static void tallies(void **state) {
    (void)state;
    for (int64_t rows = 0; rows < 3000; rows = rows * 3 + 1) {
        float *values = numbers(rows, 1, SRNN_F32);
        int32_t *targets = host_array((size_t)rows * sizeof *targets);
        int32_t *hits = host_array((size_t)rows * sizeof *hits);
        sr_step_stats want = {.loss = 2, .hits = 3, .targets = 4, .squares = 5, .updates = 6};
        sr_step_stats *stats = device_bytes(&want, sizeof want), got;
        want.squares = 0;
        for (int64_t i = 0; i < rows; i++) {
            targets[i] = i % 3 == 1 ? -1 : 1;
            hits[i] = i % 4 == 0;
            want.loss += (double)values[i];
            want.squares += (double)values[i] * (double)values[i];
            want.targets += targets[i] >= 0;
            want.hits += 2 * hits[i]; /* once more below */
        }
        const float *x = on_device(values, rows, SRNN_F32);
        const int32_t *t = device_bytes(targets, (size_t)rows * sizeof *targets);
        const int32_t *h = device_bytes(hits, (size_t)rows * sizeof *hits);
        right(gpu->stats_losses(gpu, stats, x, h, t, rows));
        right(gpu->stats_losses(gpu, stats, x, h, t, 0));
        const float *zeros = on_device(host_array((size_t)rows * sizeof *zeros), rows, SRNN_F32);
        right(gpu->stats_losses(gpu, stats, zeros, h, t, rows));
        right(gpu->stats_losses(gpu, stats, zeros, NULL, t, rows));
        right(gpu->stats_squares(gpu, stats, x, rows));
        right(sr_device_copy_out(gpu->device, &got, stats, sizeof got));
        assert_true(fabs(got.loss - want.loss) < 1e-9 && fabs(got.squares - want.squares) < 1e-9);
        assert_int_equal(got.hits, want.hits);
        assert_int_equal(got.targets, 4 + 3 * (want.targets - 4));
        assert_int_equal(got.updates, 6);
        free_arrays();
    }
}

typedef struct adamw_case {
    int64_t n;
    double loss, clip;
    float gradient; /* a value to insert among the gradients; 0: none */
    bool applied;
} adamw_case;

static const adamw_case adamw_cases[] = {{1, 1, 0, 0, true},           {5, 1, 0, 0, true},
                                         {1030, 1, 0.5, 0, true},      {4096, 1, 1e9, 0, true},
                                         {100, 1, 1, INFINITY, false}, {100, NAN, 1, 0, false},
                                         {100, INFINITY, 0, 0, false}};

static void check_adamw(const adamw_case *c) {
    const double rate = 1e-2, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, decay = 0.1;
    float *w = numbers(c->n, 1, SRNN_F32), *m = numbers(c->n, 2, SRNN_F32);
    float *v = numbers(c->n, 3, SRNN_F32), *g = numbers(c->n, 4, SRNN_F32);
    double *want_w = doubles(c->n), *want_m = doubles(c->n), *want_v = doubles(c->n), squares = 0;
    if (c->gradient != 0)
        g[c->n / 2] = c->gradient;
    for (int64_t i = 0; i < c->n; i++) {
        v[i] = fabsf(v[i]);
        squares += (double)g[i] * (double)g[i];
    }
    const sr_step_stats before = {.loss = c->loss,
                                  .learning_rate = rate,
                                  .targets = 8,
                                  .updates = 2};
    sr_step_stats *stats = device_bytes(&before, sizeof before), after;
    float *weight = on_device(w, c->n, SRNN_F32);
    const sr_adamw adamw = {.weight = weight,
                            .mean = on_device(m, c->n, SRNN_F32),
                            .square = on_device(v, c->n, SRNN_F32),
                            .gradient = on_device(g, c->n, SRNN_F32),
                            .working = gpu->number == SRNN_F32 ? (void *)weight
                                                               : on_device(w, c->n, gpu->number),
                            .n = c->n,
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .epsilon = epsilon,
                            .weight_decay = decay,
                            .clip = c->clip,
                            .nominal = 16};
    const double norm = sqrt(squares) * 2;
    const double factor = c->clip > 0 && norm > c->clip ? 2 * c->clip / norm : 2;
    for (int64_t i = 0; i < c->n; i++) {
        want_m[i] = beta1 * (double)m[i] + (1 - beta1) * factor * (double)g[i];
        want_v[i] = beta2 * (double)v[i] + (1 - beta2) * pow(factor * (double)g[i], 2);
        want_w[i] = (double)w[i] * (1 - rate * decay) -
                    rate / (1 - pow(beta1, 3)) * want_m[i] /
                        (sqrt(want_v[i] / (1 - pow(beta2, 3))) + epsilon);
        if (!c->applied)
            want_w[i] = (double)w[i], want_m[i] = (double)m[i], want_v[i] = (double)v[i];
    }
    right(gpu->stats_squares(gpu, stats, adamw.gradient, c->n));
    right(gpu->adamw(gpu, stats, &adamw));
    right(sr_device_copy_out(gpu->device, &after, stats, sizeof after));
    assert_int_equal(after.applied, c->applied);
    assert_int_equal(after.updates, c->applied ? 3 : 2);
    if (c->applied)
        assert_true(fabs(after.gradient_norm - norm) <= 1e-9 * norm);
    close_to(fetched(weight, c->n, SRNN_F32), want_w, c->n, SRNN_F32);
    close_to(fetched(adamw.mean, c->n, SRNN_F32), want_m, c->n, SRNN_F32);
    close_to(fetched(adamw.square, c->n, SRNN_F32), want_v, c->n, SRNN_F32);
    close_to(fetched(adamw.working, c->n, gpu->number), want_w, c->n, gpu->number);
    free_arrays();
}

static void updates(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof adamw_cases / sizeof *adamw_cases; i++)
        check_adamw(&adamw_cases[i]);
}

static void sums_and_copies(void **state) {
    (void)state;
    for (int64_t n = 1; n < 3000; n = n * 5 + 2) {
        for (int offset = 0; offset < 2; offset++) {
            float *x = numbers(n, 1, SRNN_F32), *y = numbers(n + 1, 2, SRNN_F32);
            double *want = doubles(n), *sum = doubles(n);
            for (int64_t i = 0; i < n; i++) {
                want[i] = (double)x[i];
                sum[i] = (double)x[i] + (double)y[offset + i];
            }
            const float *from = on_device(x, n, SRNN_F32);
            float *to = (float *)on_device(y, n + 1, SRNN_F32) + offset;
            void *narrow = on_device(y, n, gpu->number);
            float *wide = (float *)on_device(y, n + 1, SRNN_F32) + offset;
            right(gpu->narrow(gpu, narrow, from, n));
            right(gpu->widen(gpu, wide, narrow, n));
            right(gpu->add(gpu, to, from, n));
            close_to(fetched(narrow, n, gpu->number), want, n, gpu->number);
            assert_memory_equal(fetched(wide, n, SRNN_F32), fetched(narrow, n, gpu->number),
                                (size_t)n * sizeof *wide);
            close_to(fetched(to, n, SRNN_F32), sum, n, SRNN_F32);
            free_arrays();
        }
    }
}

/* Rows with gaps between them, which must not change. */
static void check_added_rows(int64_t rows, int64_t columns, int64_t gap) {
    const int64_t stride = columns + gap, count = rows * stride;
    float *x = numbers(count, 1, gpu->number), *y = numbers(count, 2, gpu->number);
    double *want = doubles(count);
    for (int64_t i = 0; i < count; i++)
        want[i] = (double)y[i] + (i % stride < columns ? (double)x[i] : 0);
    sr_matrix to = {on_device(y, count, gpu->number),
                    rows,
                    columns,
                    stride,
                    gpu->number,
                    SR_HANDED_NUMBERS,
                    NULL};
    sr_matrix from = to;
    from.data = on_device(x, count, gpu->number);
    right(gpu->add_rows(gpu, to, from));
    close_to(fetched(to.data, count, gpu->number), want, count, gpu->number);
    for (int64_t i = 0; i < count; i++)
        want[i] = i % stride < columns ? (double)x[i] : want[i];
    right(gpu->copy_rows(gpu, to, from));
    close_to(fetched(to.data, count, gpu->number), want, count, gpu->number);
    free_arrays();
}

static void added_rows(void **state) {
    (void)state;
    check_added_rows(3, 64, 0);
    check_added_rows(70, 40, 8);
    check_added_rows(5, 7, 2);
    check_added_rows(2, 600, 1);
}

/* ---- a step: called, then captured and replayed, with the same bits ---- */

enum { STEP_ROWS = 300, STEP_C = 24, STEP_V = 40, STEP_N = (2 * STEP_V + 1) * STEP_C };

/* A model of a table, a norm and a head, in one arena in this order. */
typedef struct step {
    float *weight, *gradient, *mean, *square; /* (STEP_N) */
    char *working;                            /* (STEP_N), number type */
    float *x, *d_x, *rstd, *losses, *scratch;
    void *h, *d_h, *logits;
    int32_t *ids, *targets, *hits;
    sr_step_stats *stats;
} step;

static srnn_status run_step(void *context) {
    const step *s = context;
    const srnn_dtype number = gpu->number;
    const int64_t rows = STEP_ROWS, C = STEP_C, V = STEP_V, norm_at = V * C, head_at = norm_at + C;
    const sr_rmsnorm norm = {s->x, s->weight + norm_at, s->rstd, 1e-5f, rows, C, NULL};
    const sr_rmsnorm_gradient back = {s->d_x,
                                      number == SRNN_F32 ? (void *)s->d_x : s->d_h,
                                      s->gradient + norm_at,
                                      s->scratch,
                                      NULL,
                                      false};
    void *working = number == SRNN_F32 ? (void *)s->weight : s->working;
    const sr_linear head = {sr_number_at(working, head_at, number), NULL, .N = V};
    const sr_linear_gradient d_head = {s->gradient + head_at, NULL, V};
    const sr_matrix h = sr_matrix_of(s->h, rows, C, number), none = {0};
    const sr_matrix d_h = sr_matrix_of(s->d_h, rows, C, number);
    const sr_matrix logits = sr_matrix_of(s->logits, rows, V, number);
    const sr_matrix x = sr_matrix_of(s->x, rows, C, SRNN_F32);
    const sr_adamw adamw = {.weight = s->weight,
                            .mean = s->mean,
                            .square = s->square,
                            .gradient = s->gradient,
                            .working = working,
                            .n = STEP_N,
                            .beta1 = 0.9,
                            .beta2 = 0.95,
                            .epsilon = 1e-8,
                            .clip = 1,
                            .nominal = STEP_ROWS};
    SR_TRY(sr_device_zero(gpu->device, s->gradient, STEP_N * sizeof(float)));
    SR_TRY(sr_device_zero(gpu->device, s->d_x, STEP_ROWS * STEP_C * sizeof(float)));
    SR_TRY(gpu->embed_forward(gpu, x, sr_matrix_of(s->weight, V, C, SRNN_F32), s->ids));
    SR_TRY(gpu->rmsnorm_forward(gpu, s->h, &norm));
    SR_TRY(gpu->linear_forward(gpu, logits, none, h, &head, 1));
    SR_TRY(
        gpu->cross_entropy(gpu, s->losses, s->hits, logits,
                           &(sr_cross_entropy){.targets = s->targets, .scale = 1.0f / STEP_ROWS}));
    SR_TRY(gpu->stats_losses(gpu, s->stats, s->losses, s->hits, s->targets, rows));
    SR_TRY(gpu->linear_backward_weight(gpu, &d_head, 1, logits, h));
    SR_TRY(gpu->linear_backward_input(gpu, d_h, logits, &head, 1));
    SR_TRY(gpu->rmsnorm_backward(gpu, &back, s->d_h, &norm));
    SR_TRY(gpu->embed_backward(gpu, s->gradient, sr_matrix_of(s->d_x, rows, C, SRNN_F32), s->ids));
    SR_TRY(gpu->stats_squares(gpu, s->stats, s->gradient, STEP_N));
    return gpu->adamw(gpu, s->stats, &adamw);
}

static step make_step(void) {
    const srnn_dtype number = gpu->number;
    const int64_t activations_count = STEP_ROWS * STEP_C;
    const sr_step_stats stats = {.learning_rate = 0.1};
    int32_t *ids = host_array(STEP_ROWS * sizeof *ids);
    for (int i = 0; i < STEP_ROWS; i++)
        ids[i] = i * 7 % STEP_V;
    float *weights = numbers(STEP_N, 1, number), *zeros = host_array(STEP_N * sizeof *zeros);
    void *any = host_array(STEP_ROWS * STEP_V * sizeof(float));
    return (step){.weight = on_device(weights, STEP_N, SRNN_F32),
                  .gradient = on_device(zeros, STEP_N, SRNN_F32),
                  .mean = on_device(zeros, STEP_N, SRNN_F32),
                  .square = on_device(zeros, STEP_N, SRNN_F32),
                  .working = on_device(weights, STEP_N, number),
                  .x = on_device(any, activations_count, SRNN_F32),
                  .d_x = on_device(any, activations_count, SRNN_F32),
                  .rstd = on_device(any, STEP_ROWS, SRNN_F32),
                  .losses = on_device(any, STEP_ROWS, SRNN_F32),
                  .scratch = on_device(any, SR_ROW_PARTS * STEP_C, SRNN_F32),
                  .h = on_device(any, activations_count, number),
                  .d_h = on_device(any, activations_count, number),
                  .logits = on_device(any, STEP_ROWS * STEP_V, number),
                  .ids = device_bytes(ids, STEP_ROWS * sizeof *ids),
                  .targets = device_bytes(ids, STEP_ROWS * sizeof *ids),
                  .hits = device_bytes(ids, STEP_ROWS * sizeof *ids),
                  .stats = device_bytes(&stats, sizeof stats)};
}

static void steps(void **state) {
    (void)state;
    enum { STEPS = 3 };
    step called = make_step(), replayed = make_step();
    void *recording = NULL;
    sr_step_stats a, b;
    right(gpu->device->capture(gpu->device, &recording, run_step, &replayed));
    double first_loss = 0;
    for (int i = 0; i < STEPS; i++) {
        right(run_step(&called));
        right(gpu->device->replay(gpu->device, recording));
        right(sr_device_copy_out(gpu->device, &a, called.stats, sizeof a));
        right(sr_device_copy_out(gpu->device, &b, replayed.stats, sizeof b));
        assert_memory_equal(&a, &b, sizeof a);
        first_loss = i == 0 ? a.loss : first_loss;
    }
    assert_memory_equal(fetched(called.weight, STEP_N, SRNN_F32),
                        fetched(replayed.weight, STEP_N, SRNN_F32), STEP_N * sizeof(float));
    assert_int_equal(a.updates, STEPS);
    assert_int_equal(a.targets, STEPS * STEP_ROWS); /* the host would have reset it each time */
    assert_true(a.loss < STEPS * first_loss);
    gpu->device->forget(gpu->device, recording);
    free_arrays();
}

static int open_backend(bool bf16) {
    const sr_backend_settings settings = {.device = "cuda", .bf16 = bf16};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int open_float(void **state) {
    (void)state;
    return open_backend(false);
}

static int open_bf16(void **state) {
    (void)state;
    return open_backend(true);
}

static int open_fp8(void **state) {
    (void)state;
    const sr_backend_settings settings = {.device = "cuda", .fp8 = true};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int open_fp8_of_pieces(void **state) {
    (void)state;
    const sr_backend_settings settings = {.device = "cuda",
                                          .fp8 = true,
                                          .fp8_bytes = 1280 + 2 * PIECES_N * PIECES_K + 512 +
                                                       2 * (PIECES_N + PIECES_K) * PIECE};
    return sr_backend_create(&gpu, &settings) == SRNN_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    free_arrays();
    sr_backend_free(gpu);
    gpu = NULL;
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),
        cmocka_unit_test(norms),
        cmocka_unit_test(positions_turn),
        cmocka_unit_test(states_turn),
        cmocka_unit_test(activations),
        cmocka_unit_test(normed_products),
        cmocka_unit_test(largest_of_rows),
        cmocka_unit_test(short_convolutions),
        cmocka_unit_test(states_that_begin),
        cmocka_unit_test(embeddings),
        cmocka_unit_test(losses),
        cmocka_unit_test(losses_of_nan),
        cmocka_unit_test(routers_of_nan),
        cmocka_unit_test(tallies),
        cmocka_unit_test(updates),
        cmocka_unit_test(sums_and_copies),
        cmocka_unit_test(added_rows),
        cmocka_unit_test(steps),
    };
    if (open_backend(false) != 0) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    sr_backend_free(gpu);
    sr_cublaslt *library;
    right(sr_cublaslt_open(&library));
    loses_bits = library != NULL;
    sr_cublaslt_close(library);
    const struct CMUnitTest fp8_tests[] = {cmocka_unit_test(layers_in_8_bits),
                                           cmocka_unit_test(layers_side_by_side),
                                           cmocka_unit_test(gradients_as_expected),
                                           cmocka_unit_test(zeros_and_infinities),
                                           cmocka_unit_test(operands_in_8_bits),
                                           cmocka_unit_test(sizes_as_expected),
                                           cmocka_unit_test(codes_of_nan)};
    const struct CMUnitTest piece_tests[] = {cmocka_unit_test(rows_in_pieces),
                                             cmocka_unit_test(layers_beyond_the_workspace),
                                             cmocka_unit_test(operands_in_pieces)};
    return cmocka_run_group_tests_name("float", tests, open_float, close_backend) +
           cmocka_run_group_tests_name("bf16", tests, open_bf16, close_backend) +
           cmocka_run_group_tests_name("fp8", fp8_tests, open_fp8, close_backend) +
           cmocka_run_group_tests_name("fp8, small workspace", piece_tests, open_fp8_of_pieces,
                                       close_backend);
}
