/* linear.cu: the GEMMs of a linear layer with operands of 8 bits. */
#include "ops/cuda/fp8/linear.h"

#include "base/memory.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/fp8/quantize.h"

#include <stdlib.h>

enum {
    SCALES = 3,       /* of the activations, the weights, the gradients */
    SCALE_BYTES = 16, /* of each: cuBLASLt 13.1 refuses a product whose scale is not aligned so */
    NOTES_AT = 256,   /* after the scales, each of which is followed by the largest size */
    HEADER_BYTES = NOTES_AT + SR_FP8_KINDS * (int)sizeof(sr_matrix_note), /* of gradients */
    ROWS_LEAST = 128,                                                     /* of a piece */
    PART_OF_MEMORY = 128 /* the workspace is this part of the GPU's memory */
};
static_assert(SCALE_BYTES % 16 == 0, "as sr_cublaslt_fp8 requires");
static_assert(SCALES * SCALE_BYTES <= NOTES_AT, "the header holds them");
static_assert(HEADER_BYTES % 256 == 0, "what follows is aligned");

srnn_status sr_cuda_fp8_open(sr_backend *backend, size_t bytes) {
    sr_backend_cuda *const cuda = (sr_backend_cuda *)backend;
    const sr_cuda_device *const facts = sr_cuda_facts(backend->device);
    const int capability = 10 * facts->capability_major + facts->capability_minor;
    if (capability < 89)
        return SR_FAIL(
            SRNN_ERR_UNSUPPORTED,
            "%s: %s has compute capability %d.%d; fp8 needs 8.9 (Ada) or newer: use bf16",
            backend->device->name, facts->name, facts->capability_major, facts->capability_minor);
    cuda->fp8_bytes = bytes > 0 ? bytes : facts->memory_bytes / PART_OF_MEMORY;
    return sr_device_allocate(backend->device, &cuda->fp8, cuda->fp8_bytes);
}

/* ---- sizes of gradients */

srnn_status sr_cuda_expect_gradients(sr_backend *backend, bool expects) {
    sr_backend_cuda *const cuda = (sr_backend_cuda *)backend;
    if (!cuda->fp8)
        return SRNN_OK;
    cuda->expects = expects;
    cuda->kind_count = 0;
    return expects ? sr_device_zero(backend->device, (char *)cuda->fp8 + NOTES_AT,
                                    SR_FP8_KINDS * sizeof(sr_matrix_note))
                   : SRNN_OK;
}

/* With the largest size of the last gradient of layers (N, K) since sr_cuda_expect_gradients, or 0;
 * NULL: nothing is expected, or of too many kinds. */
static sr_matrix_note *note_of_kind(sr_backend *backend, int64_t N, int64_t K) {
    sr_backend_cuda *const cuda = (sr_backend_cuda *)backend;
    int kind = 0;
    while (kind < cuda->kind_count && (cuda->kinds[kind].N != N || cuda->kinds[kind].K != K))
        kind++;
    if (!cuda->expects || kind == SR_FP8_KINDS)
        return nullptr;
    if (kind == cuda->kind_count)
        cuda->kinds[cuda->kind_count++] = {N, K};
    return (sr_matrix_note *)((char *)cuda->fp8 + NOTES_AT) + kind;
}

/* ---- weights */

/* Codes of weights that follow each other: two bytes a number, as far behind the first as these
 * are, then notes, one for every NOTE_EACH numbers. No layer in 8 bits has fewer. */
enum { NOTE_EACH = SR_FP8_STEP * SR_FP8_STEP };

struct sr_fp8_held {
    const char *weights;
    int64_t numbers;
    uint8_t *codes;
    sr_matrix_note *notes;
    int32_t *rows; /* host memory: of what was written with each note; 0: nothing yet */
    sr_fp8_held *next;
};

static void free_held(sr_backend *backend, sr_fp8_held *held) {
    sr_device_release(backend->device, held->codes);
    free(held->rows);
    free(held);
}

static srnn_status make_held(sr_backend *backend, sr_fp8_held *held, size_t *bytes) {
    const size_t notes_at = ((size_t)held->numbers * 2 + 255) / 256 * 256;
    const size_t notes = (size_t)(held->numbers / NOTE_EACH) + 1;
    void *rows, *codes;
    SR_TRY(sr_alloc_zero(&rows, notes, sizeof *held->rows));
    held->rows = (int32_t *)rows;
    *bytes = notes_at + notes * sizeof *held->notes;
    SR_TRY(sr_device_allocate(backend->device, &codes, *bytes));
    held->codes = (uint8_t *)codes;
    held->notes = (sr_matrix_note *)(held->codes + notes_at);
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_hold(sr_backend *backend, size_t *bytes, const void *weights,
                             int64_t numbers) {
    sr_backend_cuda *const cuda = (sr_backend_cuda *)backend;
    void *memory;
    *bytes = 0;
    if (!cuda->fp8)
        return SRNN_OK;
    SR_TRY(sr_alloc_zero(&memory, 1, sizeof(sr_fp8_held)));
    sr_fp8_held *const held = (sr_fp8_held *)memory;
    held->weights = (const char *)weights;
    held->numbers = numbers;
    held->next = cuda->held;
    const srnn_status status = make_held(backend, held, bytes);
    if (status == SRNN_OK)
        cuda->held = held;
    else
        free_held(backend, held);
    return status;
}

void sr_cuda_fp8_drop(sr_backend *backend, const void *weights) {
    sr_fp8_held **at = &((sr_backend_cuda *)backend)->held;
    while (*at && (*at)->weights != weights)
        at = &(*at)->next;
    sr_fp8_held *const held = *at;
    if (!held)
        return;
    *at = held->next;
    free_held(backend, held);
}

/* Where codes of a piece's weights, (N, K), are held. */
struct place_of_codes {
    sr_matrix codes; /* data NULL: nowhere */
    int32_t *rows;
};

static place_of_codes find_codes(const sr_backend *backend, sr_matrix weights) {
    const sr_fp8_held *held = ((const sr_backend_cuda *)backend)->held;
    const char *const data = (const char *)weights.data;
    while (held && (data < held->weights ||
                    data >= held->weights + held->numbers * (int64_t)sizeof(sr_bf16)))
        held = held->next;
    if (!held)
        return {};
    const int64_t first = (data - held->weights) / (int64_t)sizeof(sr_bf16);
    weights.data = held->codes + 2 * first;
    return {sr_matrix_handed(weights, SR_HANDED_CODES, held->notes + first / NOTE_EACH),
            held->rows + first / NOTE_EACH};
}

void sr_cuda_fp8_close(sr_backend *backend) {
    sr_backend_cuda *const cuda = (sr_backend_cuda *)backend;
    while (cuda->held)
        sr_cuda_fp8_drop(backend, cuda->held->weights);
    sr_device_release(backend->device, ((sr_backend_cuda *)backend)->fp8);
}

/* Bytes of a quantised operand in the workspace, in either form. */
static int64_t operand_bytes(int64_t rows, int64_t columns) {
    return (2 * sr_fp8_padded(rows) * columns + 255) / 256 * 256;
}

/* Rows of a piece of x and d_y, in addition to the weights. */
static int64_t piece_rows(const sr_backend *backend, int64_t N, int64_t K) {
    const int64_t bytes = (int64_t)((const sr_backend_cuda *)backend)->fp8_bytes - HEADER_BYTES -
                          operand_bytes(N, K) - 2 * 256;
    const int64_t rows = bytes / (2 * (N + K)) / ROWS_LEAST * ROWS_LEAST;
    return sr_minimum(rows, ((int64_t)1 << 31) / sr_maximum(N, K) / ROWS_LEAST * ROWS_LEAST);
}

bool sr_cuda_fp8_fits(const sr_backend *backend, const sr_linear *layer, sr_matrix x) {
    return ((const sr_backend_cuda *)backend)->fp8 && layer->fp8 && x.dtype == SRNN_BF16 &&
           x.rows > SR_CUDA_MANY_ROWS && layer->N % SR_FP8_STEP == 0 &&
           x.columns % SR_FP8_STEP == 0 && sr_is_aligned(sr_place_of(x), 8) &&
           sr_is_aligned({layer->weight, x.columns, SRNN_BF16}, 8) &&
           piece_rows(backend, layer->N, x.columns) > 0;
}

/* ---- operands in the workspace ---- */

enum role { ACTIVATIONS, WEIGHTS, GRADIENTS };

struct quantised {
    sr_fp8_tensor tensor; /* with every form's address; only some are written */
    sr_fp8_format format;
    sr_matrix from; /* what is quantised, or was where it was written */
    int64_t across_stride;
};

/* Takes operands one after the other. */
struct places {
    sr_backend_cuda *cuda;
    int64_t used;

    /* Rows of x. Codes stay where they are; rows before the first are a multiple of 16. */
    quantised take(role own, sr_matrix x, int64_t first, int64_t rows) {
        char *const base = (char *)cuda->fp8, *const at = base + used;
        quantised q = {};
        used += operand_bytes(rows, x.columns);
        q.tensor.along = (uint8_t *)at;
        q.tensor.across = (uint8_t *)at + sr_fp8_padded(rows) * x.columns;
        q.tensor.rounded = (sr_bf16 *)at;
        q.tensor.scale = (float *)(base + own * SCALE_BYTES);
        q.tensor.largest = (uint32_t *)(q.tensor.scale + 1);
        q.format = own == GRADIENTS ? SR_FP8_E5M2 : SR_FP8_E4M3;
        q.from = sr_matrix_rows(x, first, rows);
        q.across_stride = sr_fp8_padded(rows);
        if (x.handed == SR_HANDED_CODES) {
            uint8_t *const codes = (uint8_t *)x.data;
            q.tensor.along = codes + first * x.columns;
            q.tensor.across = codes + x.rows * x.columns + first;
            q.tensor.scale = &x.note->scale;
            q.across_stride = x.rows;
        }
        return q;
    }
};

enum { ALONG = 1, ACROSS = 2, ROUNDED = 4 };

/* Writes the forms that are wanted and not there. `alike`: with the size of a gradient that should
 * be alike; or NULL. */
static srnn_status write(sr_backend *backend, const quantised &q, int forms,
                         sr_matrix_note *alike = nullptr) {
    sr_fp8_tensor to = q.tensor;
    if (q.from.handed == SR_HANDED_CODES)
        return forms & ROUNDED
                   ? sr_cuda_fp8_widen(backend, &to, q.from.rows * q.from.columns, q.format)
                   : SRNN_OK;
    to.along = forms & ALONG ? to.along : nullptr;
    to.across = forms & ACROSS ? to.across : nullptr;
    to.rounded = forms & ROUNDED ? to.rounded : nullptr;
    return alike && q.from.handed == SR_HANDED_NUMBERS
               ? sr_cuda_fp8_quantize_expected(backend, &to, q.from, alike)
               : sr_cuda_fp8_quantize(backend, &to, q.from, q.format);
}

/* Where codes of these weights are held, writes them in both forms, for forward and backward, and
 * puts them in the place of the numbers. */
static srnn_status write_codes(sr_backend *backend, sr_matrix *weights) {
    const place_of_codes at = find_codes(backend, *weights);
    const sr_matrix codes = at.codes, numbers = *weights;
    if (!codes.data)
        return SRNN_OK;
    uint8_t *const along = (uint8_t *)codes.data;
    const sr_fp8_tensor to = {along, along + codes.rows * codes.columns, nullptr,
                              &codes.note->scale, &codes.note->largest};
    *at.rows = (int32_t)codes.rows;
    *weights = codes;
    return sr_cuda_fp8_quantize(backend, &to, numbers, SR_FP8_E4M3);
}

/* The codes of these weights where forward has written them, of as many rows. */
static sr_matrix written_codes(const sr_backend *backend, sr_matrix weights) {
    const place_of_codes at = find_codes(backend, weights);
    return at.codes.data && *at.rows == weights.rows ? at.codes : weights;
}

/* ---- products ---- */

/* A GEMM as cuBLASLt takes it in 8 bits, and the same in bf16. */
struct product {
    sr_cuda_gemm_call narrow, rounded;
    sr_cublaslt_fp8 fp8;
};

static sr_cublaslt_place place_of(const sr_backend *backend) {
    const sr_backend_cuda *const cuda = (const sr_backend_cuda *)backend;
    return {sr_stream_of(backend), cuda->workspace, cuda->workspace_bytes};
}

static bool is_supported(const sr_backend *backend, const product &p) {
    const sr_backend_cuda *const cuda = (const sr_backend_cuda *)backend;
    const sr_cublaslt_place place = place_of(backend);
    return cuda->library && sr_cublaslt_supports(cuda->library, &p.narrow, &p.fp8, &place);
}

static srnn_status multiply(sr_backend *backend, const product &p, bool supported) {
    const sr_cublaslt_place place = place_of(backend);
    bool started;
    if (!supported)
        return sr_cuda_multiply(backend, &p.rounded);
    return sr_cublaslt_multiply(((sr_backend_cuda *)backend)->library, &started, &p.narrow, &p.fp8,
                                &place);
}

/* An operand of a GEMM, as it is or transposed. */
struct side {
    const quantised &operand;
    bool across;
};

/* d = a b^T + c: both operands with their rows along the sum. */
static product product_of(sr_matrix d, sr_matrix c, const side &left, const side &right,
                          bool fast) {
    const quantised &a = left.operand, &b = right.operand;
    product p = {};
    p.narrow.a = left.across ? a.tensor.across : a.tensor.along;
    p.narrow.b = right.across ? b.tensor.across : b.tensor.along;
    p.narrow.a_stride = left.across ? a.across_stride : a.from.columns;
    p.narrow.b_stride = right.across ? b.across_stride : b.from.columns;
    p.narrow.K = left.across ? sr_fp8_padded(a.from.rows) : a.from.columns;
    p.narrow.c = c.data;
    p.narrow.d = d.data;
    p.narrow.c_stride = c.stride;
    p.narrow.d_stride = d.stride;
    p.narrow.M = d.rows;
    p.narrow.N = d.columns;
    p.narrow.transpose_b = true;
    p.narrow.in = SRNN_BF16;
    p.narrow.out = d.dtype;
    p.fp8 = {a.format, b.format, a.tensor.scale, b.tensor.scale, fast};
    p.rounded = p.narrow;
    p.rounded.a = a.tensor.rounded;
    p.rounded.b = b.tensor.rounded;
    p.rounded.a_stride = a.from.columns;
    p.rounded.b_stride = b.from.columns;
    p.rounded.transpose_a = left.across;
    p.rounded.transpose_b = !right.across;
    p.rounded.K = left.across ? a.from.rows : a.from.columns;
    return p;
}

srnn_status sr_cuda_fp8_forward(sr_backend *backend, sr_matrix y, sr_matrix addend, sr_matrix x,
                                const void *weight) {
    const int64_t N = y.columns, K = x.columns, most = piece_rows(backend, N, K);
    sr_matrix weights = sr_matrix_of(const_cast<void *>(weight), N, K, SRNN_BF16);
    SR_TRY(write_codes(backend, &weights));
    for (int64_t first = 0; first < x.rows; first += most) {
        places at = {(sr_backend_cuda *)backend, HEADER_BYTES};
        const int64_t rows = sr_minimum(most, x.rows - first);
        const quantised w = at.take(WEIGHTS, weights, 0, N),
                        a = at.take(ACTIVATIONS, x, first, rows);
        const sr_matrix c = addend.data ? sr_matrix_rows(addend, first, rows) : sr_matrix{};
        const product p =
            product_of(sr_matrix_rows(y, first, rows), c, {a, false}, {w, false}, true);
        const bool supported = is_supported(backend, p);
        SR_TRY(write(backend, w, supported ? ALONG : ROUNDED));
        SR_TRY(write(backend, a, supported ? ALONG : ROUNDED));
        SR_TRY(multiply(backend, p, supported));
    }
    return SRNN_OK;
}

srnn_status sr_cuda_fp8_backward(sr_backend *backend, const sr_linear_backward *of, bool adds) {
    const int64_t N = of->d_y.columns, K = of->x.columns, most = piece_rows(backend, N, K);
    const sr_matrix weights =
        written_codes(backend,
                      sr_matrix_of(const_cast<void *>(of->layers->weight), N, K, SRNN_BF16));
    const sr_matrix gradient = sr_matrix_of(of->gradients->weight, N, K, SRNN_F32);
    sr_matrix_note *const alike = of->x.rows <= most ? note_of_kind(backend, N, K) : nullptr;
    for (int64_t first = 0; first < of->x.rows; first += most) {
        places at = {(sr_backend_cuda *)backend, HEADER_BYTES};
        const int64_t rows = sr_minimum(most, of->x.rows - first);
        const quantised w = at.take(WEIGHTS, weights, 0, N),
                        a = at.take(ACTIVATIONS, of->x, first, rows),
                        d = at.take(GRADIENTS, of->d_y, first, rows);
        const sr_fp8_factor factor = {d.tensor.scale, of->d_y.handed == SR_HANDED_NUMBERS
                                                          ? nullptr
                                                          : &of->d_y.note->largest};
        const sr_matrix to = sr_matrix_rows(of->d_x, first, rows);
        const sr_matrix c = adds ? to : sr_matrix{};
        const product inputs = product_of(to, c, {d, false}, {w, true}, false);
        const product weight_sums = product_of(gradient, gradient, {d, true}, {a, true}, false);
        const bool supported = is_supported(backend, inputs) && is_supported(backend, weight_sums);
        SR_TRY(write(backend, w, supported ? ACROSS : ROUNDED));
        SR_TRY(write(backend, d, supported ? ALONG | ACROSS : ROUNDED, alike));
        SR_TRY(write(backend, a, supported ? ACROSS : ROUNDED));
        if (of->d_x.handed == SR_HANDED_MEASURED)
            SR_TRY(sr_cuda_fp8_bound(backend, of->d_x.note, &factor, w.tensor.scale, N));
        SR_TRY(multiply(backend, inputs, supported));
        SR_TRY(multiply(backend, weight_sums, supported));
    }
    return SRNN_OK;
}
