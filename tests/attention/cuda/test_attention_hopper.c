/* test_attention_hopper.c: the kernels for Hopper against a reference in double on random rows of
 * problems with many tiles, twice for the same bits. With the argument "large", on a GPU: five
 * large problems with their times, or one of them: "large 0" .. "large 4", and of one variant:
 * "large 0 norm", by one kernel: "large 0 norm hopper_ordered". */
#include "attention/kernel.h"
#include "base/bf16.h"
#include "device/device.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double OUTPUT_LIMIT = 6e-3, GRADIENT_LIMIT = 1e-2;
static srnn_device *gpu;

/* The normalisations that the reference implements. */
typedef enum ending { BY_SUM, BY_NORM, BY_LENGTH, AS_IT_IS } ending;
typedef struct variant {
    const char *spec;
    bool exponential;
    double clamp;
    ending ending;
} variant;

static const variant variants[] = {
    {"softmax", true, INFINITY, BY_SUM},
    {"norm", true, INFINITY, BY_NORM},
    {"softmax_divs", true, 5, BY_LENGTH},
    {"score=linear,normaliser=none", false, INFINITY, AS_IT_IS},
};

enum { Q, K, V, D_O, INPUTS };
enum { O, D_Q, D_K, D_V, OUTPUTS };
static const char *const output_names[OUTPUTS] = {"o", "dq", "dk", "dv"};

typedef struct run {
    srnn_problem problem;
    const variant *variant;
    const int64_t *offsets;
    bool steep;
    uint16_t *input[INPUTS], *output[OUTPUTS]; /* host */
    void *input_there[INPUTS], *output_there[OUTPUTS], *saved;
    srnn_plan *plan;
} run;

static int heads_of(const run *x, bool keys) {
    return keys ? x->problem.Hkv : x->problem.H;
}

static bool is_of_keys(int input) {
    return input == K || input == V;
}

static int64_t numbers_of(const run *x, bool keys) {
    const srnn_problem *p = &x->problem;
    return (int64_t)p->B * heads_of(x, keys) * p->T * p->D;
}

/* ---- numbers ---- */

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* About normal: the sum of four uniform numbers. */
static float random_number(uint64_t at) {
    const uint64_t bits = mix(at);
    const int sum = (int)(bits & 0xffff) + (int)(bits >> 16 & 0xffff) + (int)(bits >> 32 & 0xffff) +
                    (int)(bits >> 48);
    return (float)(sum - 131070) * (1.7320508f / 65536.0f);
}

/* The first third of the keys of each head is `longer` times as long, so that early keys get larger
 * weights. Large arrays are filled from a table, in another order each time. */
static void fill(run *x, int input, float longer) {
    enum { TABLE = 1 << 18 };
    static float table[TABLE];
    const int64_t count = numbers_of(x, is_of_keys(input));
    const int64_t head = (int64_t)x->problem.T * x->problem.D;
    for (int n = 0; n < TABLE; n++)
        table[n] = random_number((uint64_t)n ^ (uint64_t)input << 40);
    for (int64_t n = 0; n < count; n++) {
        const bool early = input == K && n % head < head / 3;
        const int64_t from = (n ^ n / TABLE * 40503) % TABLE;
        x->input[input][n] = sr_bf16_of(table[from] * (early ? longer : 1.0f));
    }
}

static double number_at(const uint16_t *numbers, int64_t at) {
    return (double)sr_bf16_float(numbers[at]);
}

/* ---- the reference: one query row ---- */

typedef struct reference {
    const run *x;
    double *w, *slope, *dw; /* (T): weights, their slopes by the logit, gradients of the weights */
    double *numerator, *o, *d_numerator; /* (D) */
    double d_row_sum;
    int64_t first;
} reference;

static int64_t row_of(const run *x, int b, int h, int64_t t, bool keys) {
    return (((int64_t)b * heads_of(x, keys) + h) * x->problem.T + t) * x->problem.D;
}

static int64_t document_start(const run *x, int b, int64_t t) {
    const int64_t token = (int64_t)b * x->problem.T + t;
    int64_t first = (int64_t)b * x->problem.T;
    for (int64_t n = 0; x->offsets && n < x->problem.documents; n++)
        if (x->offsets[n] <= token && x->offsets[n] > first)
            first = x->offsets[n];
    return first - (int64_t)b * x->problem.T;
}

static double dot(const uint16_t *a, const uint16_t *b, int D) {
    double sum = 0;
    for (int d = 0; d < D; d++)
        sum += number_at(a, d) * number_at(b, d);
    return sum;
}

/* Weights of row t, up to a common factor that cancels. */
static double reference_weights(reference *r, int b, int h, int64_t t) {
    const run *x = r->x;
    const int D = x->problem.D, kv = h / (x->problem.H / x->problem.Hkv);
    const bool free = x->variant->ending == BY_SUM || x->variant->ending == BY_NORM;
    double most = -INFINITY, sum = 0;
    r->first = document_start(x, b, t);
    for (int64_t j = r->first; j <= t; j++) {
        r->w[j] = dot(x->input[Q] + row_of(x, b, h, t, false),
                      x->input[K] + row_of(x, b, kv, j, true), D) /
                  sqrt(D);
        most = fmax(most, r->w[j]);
    }
    for (int64_t j = r->first; j <= t; j++) {
        const double s = r->w[j];
        if (!x->variant->exponential) {
            r->slope[j] = 1;
        } else {
            r->w[j] = exp(fmin(s, x->variant->clamp) - (free ? most : 0));
            r->slope[j] = s > x->variant->clamp ? 0 : r->w[j];
        }
        sum += r->w[j];
    }
    return sum;
}

/* o, and the gradients of numerator and row sum. */
static void reference_row(reference *r, int b, int h, int64_t t) {
    const run *x = r->x;
    const int D = x->problem.D, kv = h / (x->problem.H / x->problem.Hkv);
    const double sum = reference_weights(r, b, h, t);
    memset(r->numerator, 0, (size_t)D * sizeof *r->numerator);
    for (int64_t j = r->first; j <= t; j++)
        for (int d = 0; d < D; d++)
            r->numerator[d] += r->w[j] * number_at(x->input[V], row_of(x, b, kv, j, true) + d);
    double length = 0, along = 0;
    for (int d = 0; d < D; d++)
        length += r->numerator[d] * r->numerator[d];
    const double by[] = {sum, sqrt(length), (double)(t - r->first + 1), 1};
    const double divisor = by[x->variant->ending];
    const int64_t row = row_of(x, b, h, t, false);
    for (int d = 0; d < D; d++) {
        r->o[d] = r->numerator[d] / divisor;
        along += r->o[d] * number_at(x->input[D_O], row + d);
    }
    for (int d = 0; d < D; d++)
        r->d_numerator[d] = (number_at(x->input[D_O], row + d) -
                             (x->variant->ending == BY_NORM ? along * r->o[d] : 0)) /
                            divisor;
    r->d_row_sum = x->variant->ending == BY_SUM ? -along / divisor : 0;
    for (int64_t j = r->first; j <= t; j++) {
        r->dw[j] = r->d_row_sum;
        for (int d = 0; d < D; d++)
            r->dw[j] += r->d_numerator[d] * number_at(x->input[V], row_of(x, b, kv, j, true) + d);
    }
}

/* ---- errors ---- */

typedef struct error_sum {
    double difference, size; /* squares */
    int64_t count;
} error_sum;

static void error_add(error_sum *e, const uint16_t *got, int64_t row, const double *expected,
                      int D) {
    for (int d = 0; d < D; d++) {
        const double off = number_at(got, row + d) - expected[d];
        e->difference += off * off;
        e->size += expected[d] * expected[d];
    }
    e->count += D;
}

/* Errors of the gradients of q and k are measured against a part of their terms too, which are of
 * the size of the gradient of v: with steep weights, which select one key, the terms cancel and
 * only their rounding errors are left. */
static double relative_error(const error_sum *errors, int n, bool steep) {
    const error_sum *values = &errors[D_V];
    const double terms = sqrt(values->size / (double)values->count * (double)errors[n].count) *
                         (steep ? 1 : 1.0 / 16);
    return sqrt(errors[n].difference) / (sqrt(errors[n].size) + (n == D_Q || n == D_K ? terms : 0));
}

/* o and dq of a query row. */
static void check_query(error_sum *errors, reference *r, int b, int h, int64_t t) {
    const run *x = r->x;
    const int D = x->problem.D, kv = h / (x->problem.H / x->problem.Hkv);
    double *dq = calloc((size_t)D, sizeof *dq);
    assert_non_null(dq);
    reference_row(r, b, h, t);
    for (int64_t j = r->first; j <= t; j++)
        for (int d = 0; d < D; d++)
            dq[d] += r->slope[j] * r->dw[j] / sqrt(D) *
                     number_at(x->input[K], row_of(x, b, kv, j, true) + d);
    error_add(&errors[O], x->output[O], row_of(x, b, h, t, false), r->o, D);
    error_add(&errors[D_Q], x->output[D_Q], row_of(x, b, h, t, false), dq, D);
    free(dq);
}

/* dk and dv of key row j: all queries from j on attend to it. */
static void check_key(error_sum *errors, reference *r, int b, int kv, int64_t j) {
    const run *x = r->x;
    const srnn_problem *p = &x->problem;
    const int D = p->D, group = p->H / p->Hkv;
    double *dk = calloc(2 * (size_t)D, sizeof *dk), *dv = dk + D;
    assert_non_null(dk);
    for (int h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t t = j; t < p->T; t++) {
            reference_row(r, b, h, t);
            if (r->first > j)
                break;
            for (int d = 0; d < D; d++) {
                dk[d] += r->slope[j] * r->dw[j] / sqrt(D) *
                         number_at(x->input[Q], row_of(x, b, h, t, false) + d);
                dv[d] += r->w[j] * r->d_numerator[d];
            }
        }
    error_add(&errors[D_K], x->output[D_K], row_of(x, b, kv, j, true), dk, D);
    error_add(&errors[D_V], x->output[D_V], row_of(x, b, kv, j, true), dv, D);
    free(dk);
}

/* ---- a run ---- */

static void *take(const void *host, size_t bytes) {
    void *memory;
    assert_int_equal(sr_device_allocate(gpu, &memory, bytes), SRNN_OK);
    if (host)
        assert_int_equal(sr_device_copy_in(gpu, memory, host, bytes), SRNN_OK);
    return memory;
}

/* A plan for another variant; false where the device has no such kernel. */
static bool run_plan(run *x, const variant *which) {
    srnn_plan_free(x->plan);
    x->variant = which;
    x->problem.device = gpu;
    x->problem.dtype = SRNN_BF16;
    x->problem.Hkv = x->problem.Hkv ? x->problem.Hkv : x->problem.H;
    x->offsets = x->problem.offsets;
    assert_int_equal(srnn_attention_parse(&x->problem.attention, which->spec), SRNN_OK);
    return srnn_plan_create(&x->plan, &x->problem) == SRNN_OK;
}

/* The same, with memory that suffices for every variant. */
static bool run_create(run *x, const variant *which, float longer) {
    if (!run_plan(x, which))
        return false;
    x->steep = longer > 1;
    x->saved = take(NULL, srnn_plan_saved_bytes(x->plan));
    for (int n = 0; n < INPUTS; n++) {
        const size_t bytes = (size_t)numbers_of(x, is_of_keys(n)) * 2;
        x->input[n] = malloc(bytes);
        assert_non_null(x->input[n]);
        fill(x, n, longer);
        x->input_there[n] = take(x->input[n], bytes);
    }
    for (int n = 0; n < OUTPUTS; n++) {
        const size_t bytes = (size_t)numbers_of(x, n == D_K || n == D_V) * 2;
        x->output[n] = malloc(bytes);
        assert_non_null(x->output[n]);
        memset(x->output[n], 0xff, bytes); /* NaN, to detect elements that are not written */
        x->output_there[n] = take(x->output[n], bytes);
    }
    return true;
}

static void run_free(run *x) {
    for (int n = 0; n < INPUTS; n++) {
        free(x->input[n]);
        sr_device_release(gpu, x->input_there[n]);
    }
    for (int n = 0; n < OUTPUTS; n++) {
        free(x->output[n]);
        sr_device_release(gpu, x->output_there[n]);
    }
    sr_device_release(gpu, x->saved);
    srnn_plan_free(x->plan);
}

static srnn_operands operands_of(void *const *memory, int q) {
    return (srnn_operands){.q = {.data = memory[q]},
                           .k = {.data = memory[q + 1]},
                           .v = {.data = memory[q + 2]}};
}

static void forward(run *x) {
    const srnn_operands in = operands_of(x->input_there, Q);
    assert_int_equal(srnn_attention_forward(x->plan, (srnn_tensor){.data = x->output_there[O]}, &in,
                                            x->saved),
                     SRNN_OK);
}

static void backward(run *x) {
    const srnn_operands in = operands_of(x->input_there, Q),
                        out = operands_of(x->output_there, D_Q);
    assert_int_equal(srnn_attention_backward(x->plan, &out,
                                             (srnn_tensor){.data = x->input_there[D_O]}, &in,
                                             x->saved),
                     SRNN_OK);
}

static void fetch(const run *x, uint16_t *const *to) {
    for (int n = 0; n < OUTPUTS; n++)
        assert_int_equal(sr_device_copy_out(gpu, to[n], x->output_there[n],
                                            (size_t)numbers_of(x, n == D_K || n == D_V) * 2),
                         SRNN_OK);
}

/* Runs twice; the bits must be the same. */
static void run_twice(run *x) {
    uint16_t *again[OUTPUTS];
    forward(x);
    backward(x);
    fetch(x, x->output);
    forward(x);
    backward(x);
    for (int n = 0; n < OUTPUTS; n++) {
        again[n] = malloc((size_t)numbers_of(x, n == D_K || n == D_V) * 2);
        assert_non_null(again[n]);
    }
    fetch(x, again);
    for (int n = 0; n < OUTPUTS; n++) {
        if (memcmp(x->output[n], again[n], (size_t)numbers_of(x, n == D_K || n == D_V) * 2) != 0)
            fail_msg("%s T%d D%d: other bits of %s the second time", x->variant->spec, x->problem.T,
                     x->problem.D, output_names[n]);
        free(again[n]);
    }
}

/* Its arrays in `memory`: 3 (T + D) numbers. */
static reference reference_in(const run *x, double *memory) {
    const size_t T = (size_t)x->problem.T, D = (size_t)x->problem.D;
    return (reference){.x = x,
                       .w = memory,
                       .slope = memory + T,
                       .dw = memory + 2 * T,
                       .numerator = memory + 3 * T,
                       .o = memory + 3 * T + D,
                       .d_numerator = memory + 3 * T + 2 * D};
}

/* Compares `queries` random query rows. */
static void check_queries(error_sum *errors, reference *r, int queries) {
    const srnn_problem *p = &r->x->problem;
    for (int n = 0; n < queries; n++) {
        const uint64_t at = mix((uint64_t)n + 77);
        check_query(errors, r, (int)(at % (uint64_t)p->B), (int)((at >> 16) % (uint64_t)p->H),
                    (int64_t)((at >> 32) % (uint64_t)p->T));
    }
}

/* Compares random rows: `queries` of all, `keys` among the last `late` of a sequence. */
static void check(const run *x, int queries, int keys, int late, char *text, size_t bytes) {
    const srnn_problem *p = &x->problem;
    const size_t T = (size_t)p->T, D = (size_t)p->D;
    error_sum errors[OUTPUTS] = {{0}};
    double *memory = malloc((3 * T + 3 * D) * sizeof *memory);
    assert_non_null(memory);
    reference r = reference_in(x, memory);
    check_queries(errors, &r, queries);
    for (int n = 0; n < keys; n++) {
        const uint64_t at = mix((uint64_t)n + 99), among = T < (uint64_t)late ? T : (uint64_t)late;
        check_key(errors, &r, (int)(at % (uint64_t)p->B), (int)((at >> 16) % (uint64_t)p->Hkv),
                  (int64_t)(T - 1 - (at >> 32) % among));
    }
    free(memory);
    size_t used = 0;
    bool wrong = false;
    for (int n = 0; n < OUTPUTS; n++) {
        const double error = relative_error(errors, n, x->steep);
        wrong = wrong || !(error <= (n == O ? OUTPUT_LIMIT : GRADIENT_LIMIT));
        used += (size_t)snprintf(text + used, bytes - used, " %s %.1e", output_names[n], error);
    }
    if (wrong)
        fail_msg("%s B%d H%d/%d T%d D%d: errors%s", x->variant->spec, p->B, p->H, p->Hkv, p->T,
                 p->D, text);
}

/* ---- cases ---- */

static const int64_t documents[] = {0, 1, 60, 200, 512, 513, 700, 1000, 1400};

/* Longer early keys move the reference of the exponentials (12), and too far for it to follow (20,
 * 60). */
static const struct {
    srnn_problem problem;
    float longer;
} problems[] = {
    {{.B = 1, .H = 2, .T = 700, .D = 64}, 1},
    {{.B = 1, .H = 2, .Hkv = 1, .T = 449, .D = 128}, 1},
    {{.B = 2, .H = 2, .Hkv = 1, .T = 700, .D = 64, .offsets = documents, .documents = 8}, 1},
    {{.B = 2, .H = 2, .T = 700, .D = 128, .offsets = documents, .documents = 8}, 1},
    {{.B = 1, .H = 1, .T = 65, .D = 128}, 1},
    {{.B = 1, .H = 1, .T = 700, .D = 64}, 12},
    {{.B = 1, .H = 1, .T = 300, .D = 128}, 60},
    {{.B = 2, .H = 2, .Hkv = 1, .T = 700, .D = 64, .offsets = documents, .documents = 8}, 20},
    {{.B = 1, .H = 1, .T = 1100, .D = 64}, 1},
};

static void random_rows(void **state) {
    (void)state;
    enum { ANY, ORDERED, CHUNKED, KERNELS, PROBLEMS = sizeof problems / sizeof *problems };
    static const char *const kernels[KERNELS] = {"hopper", "hopper_ordered", "hopper_chunked"};
    char text[200];
    for (size_t n = 0; n < KERNELS * PROBLEMS; n++)
        for (size_t m = 0; m < sizeof variants / sizeof *variants; m++) {
            run x = {.problem = problems[n % PROBLEMS].problem};
            const size_t kernel = n / PROBLEMS;
            x.problem.kernel = kernels[kernel];
            if ((kernel == ORDERED && !variants[m].exponential) ||
                (kernel == CHUNKED && (variants[m].exponential || x.problem.D != 64)))
                continue; /* it has no such scores, or heads */
            if (!run_create(&x, &variants[m], problems[n % PROBLEMS].longer))
                skip();
            run_twice(&x);
            check(&x, 40, 6, 1000, text, sizeof text);
            run_free(&x);
        }
}

/* Outputs only: all elements must be written, random rows are compared. */
static void check_outputs(run *x, int queries) {
    const srnn_problem *p = &x->problem;
    const size_t T = (size_t)p->T, D = (size_t)p->D;
    const size_t bytes = (size_t)numbers_of(x, false) * 2;
    memset(x->output[O], 0xff, bytes);
    assert_int_equal(sr_device_copy_in(gpu, x->output_there[O], x->output[O], bytes), SRNN_OK);
    forward(x);
    assert_int_equal(sr_device_copy_out(gpu, x->output[O], x->output_there[O], bytes), SRNN_OK);
    for (int64_t n = 0; n < numbers_of(x, false); n++)
        assert_true(isfinite(number_at(x->output[O], n)) != 0);
    error_sum errors[OUTPUTS] = {{0}};
    double *memory = malloc((3 * T + 3 * D) * sizeof *memory);
    assert_non_null(memory);
    reference r = reference_in(x, memory);
    check_queries(errors, &r, queries);
    free(memory);
    if (!(relative_error(errors, O, x->steep) <= OUTPUT_LIMIT))
        fail_msg("%s B%d H%d T%d D%d: error %.1e", x->variant->spec, p->B, p->H, p->T, p->D,
                 relative_error(errors, O, x->steep));
}

/* More tiles than blocks, and more than a block of the forward pass can record if few blocks run at
 * a time. Every tile is computed by some block, and again by it if its reference failed, which
 * happens in every other tile of T = 200; the next call computes all of them again. */
static void many_tiles(void **state) {
    (void)state;
    static const srnn_problem many[] = {{.B = 2, .H = 50, .T = 200, .D = 64},
                                        {.B = 9, .H = 100, .T = 1, .D = 64},
                                        {.B = 1, .H = 70, .T = 200, .D = 128}};
    for (size_t n = 0; n < sizeof many / sizeof *many; n++)
        for (size_t m = 0; m < 2; m++) { /* softmax, norm */
            run x = {.problem = many[n]};
            x.problem.kernel = "hopper";
            if (!run_create(&x, &variants[m], 30))
                skip();
            check_outputs(&x, 200);
            check_outputs(&x, 200);
            run_free(&x);
        }
}

/* ---- gradients of q and k with the inverse RoPE already applied ---- */

/* Arbitrary angles and positions. */
static double angle_at(int64_t position, int c) {
    return 0.37 * (double)position / (1 + c);
}

static int32_t position_at(int64_t token) {
    return (int32_t)(token * 7 % 100);
}

static sr_rope_angles turn_create(int64_t tokens, int D) {
    enum { POSITIONS = 100 };
    float *table = malloc((size_t)POSITIONS * (size_t)D * sizeof *table);
    int32_t *positions = malloc((size_t)tokens * sizeof *positions);
    assert_non_null(table);
    assert_non_null(positions);
    for (int64_t n = 0; n < POSITIONS; n++)
        for (int c = 0; c < D / 2; c++) {
            table[n * D + c] = (float)cos(angle_at(n, c));
            table[n * D + D / 2 + c] = (float)sin(angle_at(n, c));
        }
    for (int64_t n = 0; n < tokens; n++)
        positions[n] = position_at(n);
    const sr_rope_angles turn = {take(table, (size_t)POSITIONS * (size_t)D * sizeof *table),
                                 take(positions, (size_t)tokens * sizeof *positions)};
    free(table);
    free(positions);
    return turn;
}

/* Rows of `rotated` against those of `plain`, rotated back here. */
static void check_rotated(const run *x, const uint16_t *rotated, const uint16_t *plain, bool keys) {
    const int D = x->problem.D;
    for (int64_t row = 0; row < numbers_of(x, keys) / D; row++) {
        const int64_t t = row % x->problem.T, b = row / x->problem.T / heads_of(x, keys);
        const int32_t position = position_at(b * x->problem.T + t);
        for (int c = 0; c < D / 2; c++) {
            const double cosine = cos(angle_at(position, c)), sine = sin(angle_at(position, c));
            const double low = number_at(plain, row * D + c),
                         high = number_at(plain, row * D + c + D / 2);
            const double limit = 0x1p-7 * hypot(low, high) + 1e-30;
            assert_true(fabs(number_at(rotated, row * D + c) - (low * cosine + high * sine)) <=
                        limit);
            assert_true(fabs(number_at(rotated, row * D + c + D / 2) -
                             (high * cosine - low * sine)) <= limit);
        }
    }
}

static void inverse_rope(void **state) {
    (void)state;
    static const char *const kernels[] = {"hopper", "hopper_ordered"};
    for (size_t n = 0; n < 4; n++) {
        run x = {.problem = {.B = 2, .H = 2, .Hkv = 1, .T = 200, .D = n < 2 ? 64 : 128}};
        uint16_t *rotated[OUTPUTS];
        x.problem.kernel = kernels[n % 2];
        if (!run_create(&x, &variants[0], 1))
            skip();
        const srnn_operands in = operands_of(x.input_there, Q),
                            out = operands_of(x.output_there, D_Q);
        sr_rope_inverse back = {turn_create((int64_t)x.problem.B * x.problem.T, x.problem.D),
                                false};
        forward(&x);
        backward(&x);
        fetch(&x, x.output);
        assert_int_equal(sr_attention_rope_backward(x.plan, &out,
                                                    (srnn_tensor){.data = x.input_there[D_O]}, &in,
                                                    x.saved, &back),
                         SRNN_OK);
        assert_true(back.done);
        for (int m = 0; m < OUTPUTS; m++) {
            rotated[m] = malloc((size_t)numbers_of(&x, m == D_K || m == D_V) * 2);
            assert_non_null(rotated[m]);
        }
        fetch(&x, rotated);
        check_rotated(&x, rotated[D_Q], x.output[D_Q], false);
        check_rotated(&x, rotated[D_K], x.output[D_K], true);
        assert_memory_equal(rotated[D_V], x.output[D_V], (size_t)numbers_of(&x, true) * 2);
        for (int m = 0; m < OUTPUTS; m++)
            free(rotated[m]);
        sr_device_release(gpu, (void *)(uintptr_t)back.rope.table);
        sr_device_release(gpu, (void *)(uintptr_t)back.rope.positions);
        run_free(&x);
    }
}

static double milliseconds(void (*work)(run *), run *x) {
    enum { REPEATS = 20 };
    struct timespec from, to;
    usleep(60000); /* every measurement begins on an idle GPU */
    for (int n = 0; n < 3; n++)
        work(x);
    assert_int_equal(srnn_device_wait(gpu), SRNN_OK);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int n = 0; n < REPEATS; n++)
        work(x);
    assert_int_equal(srnn_device_wait(gpu), SRNN_OK);
    clock_gettime(CLOCK_MONOTONIC, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6) /
           REPEATS;
}

/* Checks the result, that two runs have the same bits, and prints the speed. */
static void measure(run *x) {
    const srnn_problem *p = &x->problem;
    const double product = (double)p->B * p->H * p->T * p->T * p->D * 1e-9; /* GFLOP, causal */
    char text[200];
    run_twice(x);
    void *const saved = x->saved;
    x->saved = NULL;
    const double alone = milliseconds(forward, x);
    x->saved = saved;
    const double with_saving = milliseconds(forward, x), back = milliseconds(backward, x);
    printf("B%-2d H%d T%-5d D%-3d %-28s forward %.3f ms %4.0f TFLOP/s, saving %.3f ms, "
           "backward %.3f ms %4.0f TFLOP/s\n",
           p->B, p->H, p->T, p->D, x->variant->spec, alone, 2 * product / alone, with_saving, back,
           5 * product / back);
    fflush(stdout);
    check(x, 32, 2, 100, text, sizeof text);
    printf("    errors%s\n", text);
}

/* All five problems, or the one with this number; all variants, or this one; the kernel chosen by
 * the library, or this one. */
static int large(const char *number, const char *spec, const char *kernel) {
    static const srnn_problem five[] = {{.B = 36, .H = 16, .T = 1024, .D = 64},
                                        {.B = 8, .H = 16, .T = 4096, .D = 64},
                                        {.B = 2, .H = 16, .T = 16384, .D = 64},
                                        {.B = 4, .H = 16, .T = 4096, .D = 128},
                                        {.B = 1, .H = 16, .T = 16384, .D = 128}};
    for (size_t n = 0; n < sizeof five / sizeof *five; n++) {
        run x = {.problem = five[n]};
        if (number && strtoul(number, NULL, 10) != n)
            continue;
        x.problem.kernel = kernel;
        if (!run_create(&x, &variants[0], 1)) {
            printf("%s\n", srnn_error_detail());
            return 1;
        }
        for (size_t m = 0; m < sizeof variants / sizeof *variants; m++) {
            if (spec && strcmp(spec, variants[m].spec) != 0)
                continue;
            assert_true(run_plan(&x, &variants[m]));
            measure(&x);
        }
        run_free(&x);
    }
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_rows), cmocka_unit_test(many_tiles),
                                       cmocka_unit_test(inverse_rope)};
    if (srnn_device_open(&gpu, "cuda") != SRNN_OK) {
        fprintf(stderr, "left out: %s\n", srnn_error_detail());
        return 77;
    }
    const bool one = argc > 2; /* only that problem */
    int failed = one ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
    if (argc > 1 && strcmp(argv[1], "large") == 0)
        failed += large(one ? argv[2] : NULL, argc > 3 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL);
    srnn_device_close(gpu);
    return failed;
}
