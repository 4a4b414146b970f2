/* test_attention_mma.c: attention in bf16 on a GPU, or on an emulated one, against the double
 * oracle: every variant, awkward shapes, the layout of a layer's arrays.
 *
 * Tolerances. A bf16 number has a relative error of up to 2^-9, 1.1e-3 in the mean. The plain
 * computation rounds features, factors on v, weights and the output once each, so an output is off
 * by 2e-3 to 3e-3 of its norm; a gradient by as much again for the saved numerator, the gradient of
 * the weights, and its own rounding. Twice that is 6e-3 and 1e-2. */
#include "attention/cuda/shared/computes.h"
#include "base/bf16.h"
#include "device/device.h"
#include "equation/facts.h"
#include "equation/support.h"
#include "test.h"
#include "verify/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double OUTPUT_LIMIT = 6e-3, GRADIENT_LIMIT = 1e-2;
enum { TENSORS = SR_OPERAND_DECAY + 1, HOLE = 0x7fff }; /* a NaN in gaps that must not be read */

/* The one that has everything first. */
enum { MMA, HOPPER, CHUNKED, EXPANDED, HOPPER_ORDERED, HOPPER_CHUNKED, KERNELS };
static const char *const kernels[KERNELS] = {[MMA] = "mma",
                                             [HOPPER] = "hopper",
                                             [CHUNKED] = "chunked",
                                             [EXPANDED] = "order2",
                                             [HOPPER_ORDERED] = "hopper_ordered",
                                             [HOPPER_CHUNKED] = "hopper_chunked"};

static srnn_device *gpu;

/* ---- one piece of device memory with all tensors of a call ---- */

/* The layout of tensors there: one after the other, (B, heads, T, width) each; or token by token,
 * q, k and v side by side as in a layer, with rows at multiples of 16 bytes or not. */
typedef enum arrangement { CONTIGUOUS, BY_TOKEN, BY_TOKEN_ODD } arrangement;

typedef struct place {
    int64_t offset, batch, head, time; /* in numbers */
    int heads, width;
} place;

typedef struct image {
    place operand[TENSORS], gradient[TENSORS], o, d_o;
    int64_t numbers;
    uint16_t *host;
    void *device;
} image;

/* Places `count` tensors of a token next to each other. */
static void place_together(image *im, place **tensors, int count, const srnn_problem *p,
                           arrangement how) {
    int64_t row = how == BY_TOKEN_ODD ? 3 : 0;
    for (int n = 0; n < count; n++) {
        place *t = tensors[n];
        const int64_t numbers = (int64_t)p->B * p->T * t->heads * t->width;
        if (how == CONTIGUOUS) {
            *t = (place){im->numbers,
                         (int64_t)t->heads * p->T * t->width,
                         (int64_t)p->T * t->width,
                         t->width,
                         t->heads,
                         t->width};
            im->numbers += (numbers + 7) / 8 * 8;
            continue;
        }
        t->offset = im->numbers + row;
        t->head = t->width;
        row += (int64_t)t->heads * t->width;
    }
    if (how == CONTIGUOUS)
        return;
    if (how == BY_TOKEN)
        row = (row + 7) / 8 * 8;
    for (int n = 0; n < count; n++) {
        tensors[n]->time = row;
        tensors[n]->batch = row * p->T;
    }
    im->numbers += (row * p->T * p->B + 7) / 8 * 8;
}

static image image_create(const srnn_problem *p, arrangement how) {
    image im = {0};
    const int heads[TENSORS] = {p->H, p->Hkv, p->Hkv, p->H, p->Hkv, p->Hkv};
    const int widths[TENSORS] = {p->D, p->D, p->Dv, 1, 1, 1};
    place *const sides[] = {im.operand, im.gradient};
    for (int side = 0; side < 2; side++) {
        place *tensors[TENSORS];
        for (int n = 0; n < TENSORS; n++) {
            tensors[n] = &sides[side][n];
            tensors[n]->heads = heads[n];
            tensors[n]->width = widths[n];
        }
        place_together(&im, tensors, 3, p, how);
        place_together(&im, tensors + 3, 3, p, how);
    }
    im.o = im.d_o = (place){.heads = p->H, .width = p->Dv};
    place_together(&im, (place *[]){&im.o}, 1, p, how);
    place_together(&im, (place *[]){&im.d_o}, 1, p, how);
    im.host = malloc((size_t)im.numbers * sizeof *im.host);
    assert_non_null(im.host);
    for (int64_t n = 0; n < im.numbers; n++)
        im.host[n] = HOLE;
    assert_int_equal(sr_device_allocate(gpu, &im.device, (size_t)im.numbers * 2), SRNN_OK);
    return im;
}

static void image_free(image *im) {
    sr_device_release(gpu, im->device);
    free(im->host);
}

/* Between the image and a float array (B, heads, T, width) without gaps. */
static void image_write(image *im, const place *t, const float *from, const srnn_problem *p) {
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < p->T; i++)
                for (int d = 0; d < t->width; d++)
                    im->host[t->offset + b * t->batch + h * t->head + i * t->time + d] =
                        sr_bf16_of(*from++);
}

static void image_read(float *to, const image *im, const place *t, const srnn_problem *p) {
    for (int b = 0; b < p->B; b++)
        for (int h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < p->T; i++)
                for (int d = 0; d < t->width; d++)
                    *to++ = sr_bf16_float(
                        im->host[t->offset + b * t->batch + h * t->head + i * t->time + d]);
}

static srnn_tensor image_tensor(const image *im, const place *t) {
    return (srnn_tensor){(uint16_t *)im->device + t->offset, t->batch, t->head, t->time};
}

/* ---- a call on the device ---- */

static void *to_device(const float *from, int64_t count) {
    void *memory;
    assert_int_equal(sr_device_allocate(gpu, &memory, (size_t)count * sizeof *from), SRNN_OK);
    assert_int_equal(sr_device_copy_in(gpu, memory, from, (size_t)count * sizeof *from), SRNN_OK);
    return memory;
}

static int64_t elements_of(const attention_call *call, int which) {
    const sr_shape shape = sr_operand_shape((sr_operand)which, &call->problem);
    return sr_shape_numbers(&shape);
}

static srnn_tensor *tensor_in(srnn_operands *operands, int which) {
    srnn_tensor *const tensors[TENSORS] = {&operands->q,          &operands->k,
                                           &operands->v,          &operands->output_gate,
                                           &operands->value_gate, &operands->decay};
    return tensors[which];
}

static void **vector_in(srnn_operands *operands, int which) {
    void **const vectors[] = {&operands->norm_weight, &operands->norm_bias, &operands->value_power,
                              &operands->a_log,       &operands->dt_bias,   &operands->skip_weight,
                              &operands->level_scale, &operands->sinks};
    return vectors[which - SR_OPERAND_NORM_WEIGHT];
}

/* Forward and backward of a float call, in bf16 on the device; its results come back into it.
 * False: the kernel does not support it. */
static bool run_on_device(attention_call *call, arrangement how, const char *kernel) {
    srnn_problem problem = call->problem;
    problem.dtype = SRNN_BF16;
    problem.device = gpu;
    problem.kernel = kernel;
    srnn_plan *plan;
    if (srnn_plan_create(&plan, &problem) != SRNN_OK)
        return false;
    image im = image_create(&problem, how);
    srnn_operands in = {0}, gradients = {0};
    for (int which = 0; which < SR_OPERANDS; which++) {
        if (!call->host.operand[which])
            continue;
        if (which < TENSORS) {
            image_write(&im, &im.operand[which], call->host.operand[which], &problem);
            *tensor_in(&in, which) = image_tensor(&im, &im.operand[which]);
            *tensor_in(&gradients, which) = image_tensor(&im, &im.gradient[which]);
        } else {
            const int64_t count = elements_of(call, which);
            *vector_in(&in, which) = to_device(call->host.operand[which], count);
            *vector_in(&gradients, which) = to_device(call->host.gradient[which], count);
        }
    }
    image_write(&im, &im.d_o, call->host.d_o, &problem);
    assert_int_equal(sr_device_copy_in(gpu, im.device, im.host, (size_t)im.numbers * 2), SRNN_OK);
    void *saved;
    assert_int_equal(sr_device_allocate(gpu, &saved, srnn_plan_saved_bytes(plan)), SRNN_OK);
    assert_int_equal(srnn_attention_forward(plan, image_tensor(&im, &im.o), &in, saved), SRNN_OK);
    assert_int_equal(srnn_attention_backward(plan, &gradients, image_tensor(&im, &im.d_o), &in,
                                             saved),
                     SRNN_OK);
    if (srnn_device_wait(gpu) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    assert_int_equal(sr_device_copy_out(gpu, im.host, im.device, (size_t)im.numbers * 2), SRNN_OK);
    image_read(call->host.o, &im, &im.o, &problem);
    for (int which = 0; which < SR_OPERANDS; which++) {
        if (!call->host.operand[which])
            continue;
        if (which < TENSORS) {
            image_read(call->host.gradient[which], &im, &im.gradient[which], &problem);
            continue;
        }
        const int64_t count = elements_of(call, which);
        assert_int_equal(sr_device_copy_out(gpu, call->host.gradient[which],
                                            *vector_in(&gradients, which),
                                            (size_t)count * sizeof(float)),
                         SRNN_OK);
        sr_device_release(gpu, *vector_in(&in, which));
        sr_device_release(gpu, *vector_in(&gradients, which));
    }
    sr_device_release(gpu, saved);
    srnn_plan_free(plan);
    image_free(&im);
    return true;
}

/* ---- comparing ---- */

static void round_numbers(float *numbers, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        numbers[n] = sr_bf16_float(sr_bf16_of(numbers[n]));
}

/* An operand that is not of its usual size. */
typedef struct stretch {
    sr_operand which;
    double factor;
    bool negative; /* all of it */
} stretch;

/* What else is done to the operands of both calls; NULL: nothing. */
static void (*arrange)(attention_call *call);

/* The same numbers for both, exact in bf16. */
static void create_both(attention_call *call, attention_call *oracle, const srnn_problem *problem,
                        stretch by) {
    srnn_problem wide = *problem;
    wide.dtype = SRNN_F64;
    assert_int_equal(probe_create(call, problem, 7), SRNN_OK);
    for (int64_t n = 0; n < elements_of(call, (int)by.which); n++) {
        float *number = (float *)call->host.operand[by.which] + n;
        *number *= (float)by.factor;
        if (by.negative)
            *number = -fabsf(*number);
    }
    if (arrange)
        arrange(call);
    assert_int_equal(call_create(oracle, &wide), SRNN_OK);
    for (int which = 0; which < SR_OPERANDS; which++) {
        if (!call->host.operand[which])
            continue;
        if (which < TENSORS)
            round_numbers(call->host.operand[which], elements_of(call, which));
        for (int64_t n = 0; n < elements_of(call, which); n++)
            ((double *)oracle->host.operand[which])[n] =
                (double)((float *)call->host.operand[which])[n];
    }
    const sr_shape shape = sr_output_shape(problem);
    round_numbers(call->host.d_o, sr_shape_numbers(&shape));
    for (int64_t n = 0; n < sr_shape_numbers(&shape); n++)
        ((double *)oracle->host.d_o)[n] = (double)((float *)call->host.d_o)[n];
}

static double norm_of(const double *x, int64_t count) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum += x[n] * x[n];
    return sqrt(sum);
}

/* Norm of the difference by that of the oracle and `more`. */
static double error_of(const float *x, const double *expected, int64_t count, double more) {
    double sum = 0;
    for (int64_t n = 0; n < count; n++)
        sum += ((double)x[n] - expected[n]) * ((double)x[n] - expected[n]);
    return sum == 0 ? 0 : sqrt(sum) / (norm_of(expected, count) + more);
}

/* Added to a gradient's norm before dividing the error by it: a gradient whose terms cancel has the
 * absolute error of its terms, which are of the size of the gradient of v, or for learned vectors
 * of the sum of all terms. The plain computation has an error of 2.7e-2 in the gradient of q of
 * linear_elu, which is 80 times smaller than that of v. With one key, or with large scores that
 * select one, all terms cancel; terms of the gradient of k scale with the queries. */
static double size_of_terms(const attention_call *oracle, int which, double factor) {
    const double part = oracle->problem.T == 1 || factor > 1 ? 1 : 1.0 / 16;
    const int64_t values = elements_of(oracle, SR_OPERAND_V);
    const double terms = which < TENSORS ? (double)elements_of(oracle, which) / (double)values : 1;
    return part * norm_of(oracle->host.gradient[SR_OPERAND_V], values) * sqrt(terms) *
           (which == SR_OPERAND_K ? factor : 1);
}

static void check_results(const attention_call *call, const attention_call *oracle,
                          const char *spec, double factor, const char *kernel) {
    const srnn_problem *p = &call->problem;
    const sr_shape shape = sr_output_shape(p);
    const double output = error_of(call->host.o, oracle->host.o, sr_shape_numbers(&shape), 0);
    if (!(output <= OUTPUT_LIMIT))
        fail_msg("%s by %s, H %d/%d, T %d, D %d, Dv %d: output off by %g", spec, kernel, p->H,
                 p->Hkv, p->T, p->D, p->Dv, output);
    for (int which = 0; which < SR_OPERANDS; which++) {
        if (!call->host.gradient[which])
            continue;
        const double error =
            error_of(call->host.gradient[which], oracle->host.gradient[which],
                     elements_of(call, which), size_of_terms(oracle, which, factor));
        if (!(error <= GRADIENT_LIMIT))
            fail_msg("%s by %s, H %d/%d, T %d, D %d, Dv %d: gradient of %s off by %g", spec, kernel,
                     p->H, p->Hkv, p->T, p->D, p->Dv, sr_operand_at((sr_operand)which)->name,
                     error);
    }
}

/* With the kernels from number `first` on. */
static void check_kernels(size_t first, const char *spec, srnn_problem problem, arrangement how,
                          stretch by) {
    const double factor = by.which == SR_OPERAND_Q ? by.factor : 1;
    attention_call call, oracle;
    if (srnn_attention_parse(&problem.attention, spec) != SRNN_OK)
        fail_msg("%s: %s", spec, srnn_error_detail());
    problem.Hkv = problem.Hkv ? problem.Hkv : problem.H;
    problem.Dv = problem.Dv ? problem.Dv : problem.D;
    create_both(&call, &oracle, &problem, by);
    assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
    for (size_t n = first; n < KERNELS; n++)
        if (run_on_device(&call, how, kernels[n]))
            check_results(&call, &oracle, spec, factor, kernels[n]);
        else if (n == first)
            fail_msg("%s: %s", spec, srnn_error_detail());
    call_free(&call);
    call_free(&oracle);
}

static void check_stretched(const char *spec, srnn_problem problem, arrangement how, stretch by) {
    check_kernels(MMA, spec, problem, how, by);
}

static void check_case(const char *spec, srnn_problem problem, arrangement how) {
    check_stretched(spec, problem, how, (stretch){.which = SR_OPERAND_Q, .factor = 1});
}

/* ---- cases ---- */

static void named_variants(void **state) {
    (void)state;
    const srnn_problem problem = {.B = 2, .H = 2, .T = 130, .D = 64};
    for (size_t n = 0; srnn_variant_at(n); n++)
        if (sr_computes(SR_CUDA_KV_CACHE, &srnn_variant_at(n)->attention, NULL))
            check_case(srnn_variant_at(n)->name, problem, n % 2 ? BY_TOKEN : CONTIGUOUS);
}

/* Every value of every axis that is not in the table, and combinations that interact. */
static void combinations(void **state) {
    (void)state;
    static const char *const specs[] = {
        "order:1",
        "order:2",
        "order:8,normaliser=row_length",
        "order:9",
        "order:12,clamp=1,decay",
        "elu:2",
        "relu:3,normaliser=none,norm=rms",
        "cosine:3",
        "power:2",
        "power:3,normaliser=row_length",
        "power:12",
        "power:11,normaliser=none,norm=l2",
        "softmax,decay",
        "norm,decay,value_gate,post_gate",
        "linear_elu,decay,value_gate,output_gate,norm=rms",
        "order:2,decay,value_gate,output_gate,post_gate,norm=l2",
        "order:2,value_gate,normaliser=cumulative_gate,norm=layer",
        "softmax,feature=unit,scale=one,post_gate",
        "softmax,feature=unit_heads,detach",
        "softmax,epsilon=0.5,norm=l2_scaled",
        "gate,normaliser=row_sum_min1,output_gate=inverse_cumulative,norm=layer",
        "softmax,normaliser=value_power,value_gate,norm=l2",
        "softmax,normaliser=cumulative_gate,output_gate=inverse_exp,post_gate,norm=rms",
        "score=linear,feature=relu,clamp=0.5,normaliser=row_sum_min1,detach",
    };
    static const int64_t offsets[] = {0, 40, 41, 90, 160, 180};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = 90, .D = 32, .Dv = 24};
        if (n % 2 == 0)
            check_case(specs[n], problem, n % 4 ? CONTIGUOUS : BY_TOKEN);
        problem.offsets = offsets;
        problem.documents = 5;
        if (n % 2)
            check_case(specs[n], problem, n % 4 == 1 ? BY_TOKEN_ODD : CONTIGUOUS);
        problem.D = problem.Dv = 64; /* of which Hopper has more kernels */
        check_case(specs[n], problem, n % 4 == 3 ? BY_TOKEN_ODD : BY_TOKEN);
    }
}

static void shapes(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax", "gated_softmax_decay", "elu:2", "order:9"};
    static const srnn_problem problems[] = {
        {.B = 1, .H = 1, .T = 1, .D = 8},
        {.B = 3, .H = 6, .Hkv = 2, .T = 7, .D = 16, .Dv = 24},
        {.B = 1, .H = 2, .T = 64, .D = 40},
        {.B = 1, .H = 2, .Hkv = 1, .T = 65, .D = 64, .Dv = 100},
        {.B = 1, .H = 2, .T = 130, .D = 128},
        {.B = 1, .H = 2, .Hkv = 1, .T = 129, .D = 256},
        {.B = 2, .H = 1, .T = 33, .D = 9, .Dv = 256},
        {.B = 1, .H = 1, .T = 257, .D = 64, .Dv = 1},
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t m = 0; m < sizeof problems / sizeof *problems; m++)
            check_case(specs[n], problems[m], (arrangement)((n + m) % 3));
}

static void documents(void **state) {
    (void)state;
    static const int64_t offsets[] = {0, 1, 64, 130, 131, 200, 256, 400};
    const srnn_problem problem = {
        .B = 2, .H = 2, .Hkv = 1, .T = 200, .D = 64, .Dv = 64, .offsets = offsets, .documents = 7};
    check_case("softmax", problem, BY_TOKEN);
    check_case("norm", problem, CONTIGUOUS);
    check_case("linear_elu", problem, BY_TOKEN);
    check_case("cumulative_gated_softmax_intended", problem, BY_TOKEN);
    check_case("gated_softmax_decay", problem, BY_TOKEN);
    check_case("linear_cosine", problem, BY_TOKEN);
}

/* Variants with a state, over several chunks of any width. */
static void chunks(void **state) {
    (void)state;
    static const char *const specs[] = {"linear_elu", "score=linear,normaliser=none,norm=l2",
                                        "linear_elu,decay,value_gate,output_gate,norm=rms",
                                        "score=linear,feature=unit_heads",
                                        "linear_cosine_intended"};
    static const int64_t offsets[] = {0, 1, 64, 130, 131, 300, 364, 600};
    static const srnn_problem problems[] = {
        {.B = 1, .H = 2, .T = 1, .D = 16, .Dv = 64},
        {.B = 1, .H = 4, .Hkv = 2, .T = 200, .D = 16, .Dv = 64},
        {.B = 2, .H = 2, .T = 300, .D = 64, .offsets = offsets, .documents = 7},
        {.B = 1, .H = 2, .T = 257, .D = 128},
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t m = 0; m < sizeof problems / sizeof *problems; m++)
            check_case(specs[n], problems[m], (arrangement)((n + m) % 3));
}

/* Variants with a state of order 2, over several of the shortest spans, which a short chunk
 * requests. */
static void spans(void **state) {
    (void)state;
    static const char *const specs[] = {"order:2", "power:2,normaliser=none,norm=l2",
                                        "order:2,decay,value_gate,output_gate,norm=rms", "order:1",
                                        "elu:2,normaliser=row_length"};
    static const int64_t offsets[] = {0, 1, 64, 130, 131, 300, 364, 600};
    static const srnn_problem problems[] = {
        {.B = 1, .H = 2, .T = 1, .D = 16, .Dv = 64, .chunk = 64},
        {.B = 1, .H = 4, .Hkv = 2, .T = 290, .D = 16, .Dv = 64, .chunk = 64},
        {.B = 2, .H = 2, .T = 300, .D = 40, .offsets = offsets, .documents = 7, .chunk = 64},
        {.B = 1, .H = 1, .T = 385, .D = 64, .Dv = 20, .chunk = 64},
        {.B = 1, .H = 2, .Hkv = 1, .T = 300, .D = 16, .Dv = 8}, /* two spans that are chosen */
    };
    const srnn_problem narrow = {.B = 2,
                                 .H = 2,
                                 .T = 300,
                                 .D = 11,
                                 .Dv = 33,
                                 .offsets = offsets,
                                 .documents = 7,
                                 .chunk = 64};
    /* All of them with the first problem, every other one with the rest. */
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t m = 0; m < sizeof problems / sizeof *problems; m++)
            if (n == 0 || (n + m) % 2)
                check_kernels(EXPANDED, specs[n], problems[m], (arrangement)((n + m) % 3),
                              (stretch){.which = SR_OPERAND_Q, .factor = 1});
    for (size_t n = 0; n < 3; n++) /* not order 1, whose sums of weights can be about zero */
        check_kernels(EXPANDED, specs[n], narrow, (arrangement)n,
                      (stretch){.which = SR_OPERAND_Q, .factor = 1});
    check_kernels(EXPANDED, "order:2", problems[3], BY_TOKEN,
                  (stretch){.which = SR_OPERAND_Q, .factor = 2048});
    /* A decay so strong that its inverse overflows. */
    check_kernels(EXPANDED, "order:2,decay", problems[3], BY_TOKEN,
                  (stretch){.which = SR_OPERAND_DECAY, .factor = 64, .negative = true});
}

/* The same with longer spans, of up to 1,024 tokens, as they are chosen for long texts. */
static void long_segments(void **state) {
    (void)state;
    static const srnn_problem problems[] = {
        {.B = 1, .H = 1, .T = 1324, .D = 64},
        {.B = 1, .H = 1, .T = 773, .D = 40, .chunk = 64},
    };
    for (size_t m = 0; m < sizeof problems / sizeof *problems; m++)
        check_kernels(EXPANDED, m == 0 ? "order:2,decay" : "order:2", problems[m], BY_TOKEN,
                      (stretch){.which = SR_OPERAND_Q, .factor = 1});
}

/* More heads than fit on a GPU at a time: the chunked kernel cuts the last of them into spans, as
 * it does all heads of the cases above. */
static void heads_left_over(void **state) {
    (void)state;
    const srnn_problem problem = {.B = 2, .H = 268, .Hkv = 134, .T = 193, .D = 8};
    check_kernels(CHUNKED, "linear_elu", problem, BY_TOKEN,
                  (stretch){.which = SR_OPERAND_Q, .factor = 1});
}

/* Tokens `from` .. `to` - 1 of a float array of `heads` heads and B = 1. */
typedef struct token_range {
    float *numbers;
    int heads, width, from, to;
} token_range;

static void set_tokens(token_range r, int T, float value) {
    for (int h = 0; h < r.heads; h++)
        for (int64_t n = (int64_t)r.from * r.width; n < (int64_t)r.to * r.width; n++)
            r.numbers[(int64_t)h * T * r.width + n] = value;
}

static bool all_finite(token_range r, int T) {
    for (int h = 0; h < r.heads; h++)
        for (int64_t n = (int64_t)r.from * r.width; n < (int64_t)r.to * r.width; n++)
            if (!isfinite(r.numbers[(int64_t)h * T * r.width + n]))
                return false;
    return true;
}

static void check_finite_gradients(const attention_call *call, int from, int to, const char *what) {
    const srnn_problem *p = &call->problem;
    const int heads[] = {p->H, p->Hkv, p->Hkv}, widths[] = {p->D, p->D, p->Dv};
    for (int which = SR_OPERAND_Q; which <= SR_OPERAND_V; which++)
        if (!all_finite((token_range){call->host.gradient[which], heads[which], widths[which], from,
                                      to},
                        p->T))
            fail_msg("%s, D %d: gradient of %s is not finite", what, p->D,
                     sr_operand_at((sr_operand)which)->name);
}

/* NaN in one document does not reach another through a state: outside of the 128 tokens that are
 * computed together around the boundary, results are unaffected. */
static void documents_apart(void **state) {
    (void)state;
    enum { BEGIN = 400, TOGETHER = 128, T = 520 };
    static const int64_t offsets[] = {0, BEGIN, T};
    static const struct {
        size_t kernel;
        const char *spec;
        int Hkv, D, chunk;
    } cases[] = {{CHUNKED, "linear_elu", 1, 64, 0},
                 {CHUNKED, "linear_elu,decay", 1, 16, 0},
                 {CHUNKED, "score=linear,normaliser=none,norm=l2", 1, 64, 0},
                 {EXPANDED, "order:2", 1, 16, 64},
                 {EXPANDED, "order:2", 1, 16, 0},
                 {EXPANDED, "order:2,decay", 1, 64, 64},
                 {HOPPER_CHUNKED, "linear_elu", 2, 64, 0},
                 {HOPPER_CHUNKED, "score=linear,normaliser=none,norm=l2", 2, 64, 0}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        srnn_problem problem = {.B = 1,
                                .H = 2,
                                .Hkv = cases[n].Hkv,
                                .T = T,
                                .D = cases[n].D,
                                .Dv = cases[n].D,
                                .offsets = offsets,
                                .documents = 2,
                                .chunk = cases[n].chunk};
        const int first = BEGIN / TOGETHER * TOGETHER, after = first + TOGETHER;
        attention_call call;
        assert_int_equal(srnn_attention_parse(&problem.attention, cases[n].spec), SRNN_OK);
        for (int backward = 0; backward < 2; backward++) {
            assert_int_equal(probe_create(&call, &problem, 7), SRNN_OK);
            if (backward) {
                set_tokens((token_range){call.host.d_o, 2, problem.Dv, BEGIN, BEGIN + 1}, T, NAN);
            } else {
                set_tokens((token_range){call.host.operand[SR_OPERAND_K], 1, problem.D, BEGIN - 1,
                                         BEGIN},
                           T, NAN);
                set_tokens((token_range){call.host.operand[SR_OPERAND_V], 1, problem.Dv, BEGIN - 2,
                                         BEGIN - 1},
                           T, NAN);
            }
            assert_true(run_on_device(&call, BY_TOKEN, kernels[cases[n].kernel]));
            if (!all_finite((token_range){call.host.o, 2, problem.Dv, backward ? 0 : after, T}, T))
                fail_msg("%s, D %d: output is not finite", cases[n].spec, problem.D);
            check_finite_gradients(&call, backward ? 0 : after, backward ? first : T,
                                   cases[n].spec);
            call_free(&call);
        }
    }
}

/* Scores up to about 10^4, which leave the range of float as exponentials, high orders and
 * powers. */
static void large_scores(void **state) {
    (void)state;
    const srnn_problem problem = {.B = 1, .H = 2, .T = 100, .D = 64};
    static const char *const specs[] = {"softmax",
                                        "norm",
                                        "softmax,decay",
                                        "gate",
                                        "gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
                                        "softmax_taylor_80terms_intended",
                                        "order:2",
                                        "order:8,norm=l2",
                                        "power:8",
                                        "power:12",
                                        "power:64,normaliser=none,norm=l2",
                                        "linear_elu"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        check_stretched(specs[n], problem, BY_TOKEN,
                        (stretch){.which = SR_OPERAND_Q, .factor = 2048});
    /* Half of sixteen logits are far below zero and alone in their tile: elements of the tile past
     * the end of the sequence must not affect the running maximum. */
    const srnn_problem alone = {.B = 4, .H = 4, .T = 1, .D = 64};
    for (size_t n = 0; n < 4; n++)
        check_stretched(specs[n], alone, BY_TOKEN,
                        (stretch){.which = SR_OPERAND_Q, .factor = 2048});
}

/* Rows so small that an l2 norm divides them by its floor, a fraction of the sum of their weights,
 * and rows of zeros. */
static void small_values(void **state) {
    (void)state;
    const srnn_problem problem = {.B = 1, .H = 2, .T = 150, .D = 64};
    static const char *const specs[] = {"norm", "norm,clamp=5",
                                        "norm,normaliser=row_length,output_gate,post_gate"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        check_stretched(specs[n], problem, BY_TOKEN,
                        (stretch){.which = SR_OPERAND_V, .factor = 0x1p-43});
        check_stretched(specs[n], problem, BY_TOKEN, (stretch){.which = SR_OPERAND_V, .factor = 0});
    }
}

/* Queries or keys of zeros have weights of zero under a power, and 0/0 is 0. */
static void rows_without_weights(void **state) {
    (void)state;
    static const char *const specs[] = {"power:2", "score=linear", "power:2,norm=l2,output_gate",
                                        "power:2,norm=rms,post_gate"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (int which = SR_OPERAND_Q; which <= SR_OPERAND_K; which++)
            check_stretched(specs[n], (srnn_problem){.B = 1, .H = 2, .T = 130, .D = 64}, CONTIGUOUS,
                            (stretch){.which = (sr_operand)which, .factor = 0});
}

/* Decay over several tiles of keys, with several heads of queries for one of keys. */
static void decays(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax,decay", "norm,decay", "gated_softmax_decay",
                                        "softmax,decay,clamp=5,normaliser=row_sum_min1"};
    const srnn_problem problem = {.B = 1, .H = 2, .Hkv = 1, .T = 450, .D = 64};
    const srnn_problem wide = {.B = 1, .H = 1, .T = 200, .D = 128};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        check_case(specs[n], problem, BY_TOKEN);
        check_case(specs[n], wide, CONTIGUOUS);
    }
    check_stretched("softmax,decay", problem, BY_TOKEN,
                    (stretch){.which = SR_OPERAND_DECAY, .factor = 4096});
}

/* ---- decays of every kind, windows, sinks, caps, the sigmoid ---- */

/* One row of the kernels that compute this. */
typedef struct axis_case {
    const char *spec;
    int hopper; /* the widest heads that those for Hopper compute; 0: none */
} axis_case;

static const axis_case axis_cases[] = {
    {"forget", 128},
    {"2mamba_e", 128},
    {"softmax,decay=neg_softplus,norm=rms", 128},
    {"norm,decay=bounded,decay_bound=2,dt_width=none", 128},
    {"norm,decay=given,clamp=5,normaliser=row_length", 128},
    {"softmax,decay=neg_softplus,decay_place=logit", 0},
    {"power:2,decay=bounded,decay_bound=3,dt_width=none", 64},
    {"power", 64},
    {"2mamba,window=100,norm=rms", 64},
    {"power,clamp=5", 0},
    {"order:9,decay=neg_softplus,window=33", 0},
    {"softmax,window=1", 128},
    {"softmax,window=37,sink=zero", 128},
    {"forget,window=100,sink=learned,output_gate", 128},
    {"norm,window=130,normaliser=row_length,post_gate", 128},
    {"softmax,cap=3,sink=learned", 128},
    {"norm,cap=2,clamp=1.5,window=90", 128},
    {"score=linear,cap=2,feature=relu,window=65", 128},
    {"softmax,cap=2,decay=log_sigmoid,decay_divisor=4,detach", 0},
    {"score=sigmoid,score_bias=-3,normaliser=none", 128},
    {"score=sigmoid,score_bias=-2,cap=4,window=50,norm=rms", 128},
    {"score=sigmoid,decay=log_sigmoid,decay_place=logit,normaliser=row_length", 0},
};

static const int64_t axis_offsets[] = {0, 1, 64, 130, 131, 200, 201, 333, 402};

static void check_axis(const axis_case *c, srnn_problem problem, arrangement how) {
    check_case(c->spec, problem, how);
    srnn_plan *plan;
    problem.kernel = "hopper";
    problem.dtype = SRNN_BF16;
    problem.device = gpu;
    problem.Hkv = problem.Hkv ? problem.Hkv : problem.H;
    assert_int_equal(srnn_attention_parse(&problem.attention, c->spec), SRNN_OK);
    const bool fits = (problem.D == 64 || problem.D == 128) && problem.D <= c->hopper;
    const bool made = srnn_plan_create(&plan, &problem) == SRNN_OK;
    srnn_plan_free(plan);
    if (made != fits)
        fail_msg("%s, D %d: %s on Hopper", c->spec, problem.D, made ? "computed" : "refused");
}

static void axes(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof axis_cases / sizeof *axis_cases; n++) {
        const axis_case *c = &axis_cases[n];
        check_axis(c, (srnn_problem){.B = 1, .H = 4, .Hkv = 2, .T = 259, .D = 64}, BY_TOKEN);
        check_axis(c,
                   (srnn_problem){.B = 2,
                                  .H = 2,
                                  .T = 201,
                                  .D = n % 2 ? 128 : 64,
                                  .offsets = axis_offsets,
                                  .documents = 8},
                   n % 3 ? CONTIGUOUS : BY_TOKEN);
        check_axis(c, (srnn_problem){.B = 1, .H = 2, .Hkv = 1, .T = 130, .D = n % 2 ? 64 : 128},
                   CONTIGUOUS);
    }
}

/* Gates of 0, and of -1e5, after which rows have forgotten everything before: in pairs, alone,
 * and at both ends of a tile. */
static void arrange_gates(attention_call *call) {
    static const int tokens[] = {0, 5, 63, 64, 65, 127, 190};
    const srnn_problem *p = &call->problem;
    float *gates = call->host.operand[SR_OPERAND_DECAY];
    for (int64_t n = 0; n < (int64_t)p->B * p->Hkv * p->T; n++)
        gates[n] = n % p->T < p->T / 2 ? 0 : gates[n] / 16;
    for (size_t n = 0; n < sizeof tokens / sizeof *tokens; n++)
        for (int h = 0; h < p->B * p->Hkv && tokens[n] < p->T; h++)
            gates[(int64_t)h * p->T + tokens[n]] = -1e5f;
}

/* Sinks 50 above all logits and 50 below. */
static void arrange_sinks(attention_call *call) {
    float *sinks = call->host.operand[SR_OPERAND_SINKS];
    for (int h = 0; h < call->problem.H; h++)
        sinks[h] = h % 2 ? 55 : -55;
}

static void strong_gates_and_sinks(void **state) {
    (void)state;
    static const char *const gates[] = {"softmax,decay=given", "norm,decay=given",
                                        "softmax,decay=given,decay_place=logit,cap=4",
                                        "softmax,decay=given,window=70", "power:2,decay=given"};
    static const char *const sinks[] = {"softmax,sink=learned", "forget,sink=learned,window=40"};
    for (int D = 64; D <= 128; D += 64) {
        const srnn_problem problem = {.B = 1, .H = 2, .T = 195, .D = D};
        arrange = arrange_gates;
        for (size_t n = 0; n < sizeof gates / sizeof *gates; n++)
            check_case(gates[n], problem, BY_TOKEN);
        arrange = arrange_sinks;
        for (size_t n = 0; n < sizeof sinks / sizeof *sinks; n++)
            check_case(sinks[n], problem, CONTIGUOUS);
        arrange = NULL;
    }
}

/* A form chosen automatically is supported by the device, for every variant. */
static void every_variant_has_a_kernel(void **state) {
    (void)state;
    for (size_t n = 0; srnn_variant_at(n); n++) {
        if (!sr_computes(SR_CUDA_KV_CACHE, &srnn_variant_at(n)->attention, NULL))
            continue; /* refused by name */
        srnn_plan *plan;
        const srnn_problem problem = {.attention = srnn_variant_at(n)->attention,
                                      .dtype = SRNN_BF16,
                                      .B = 1,
                                      .H = 2,
                                      .T = 2048,
                                      .D = 64,
                                      .device = gpu};
        if (srnn_plan_create(&plan, &problem) != SRNN_OK)
            fail_msg("%s: %s", srnn_variant_at(n)->name, srnn_error_detail());
        assert_string_not_equal(srnn_plan_kernel(plan), "generic");
        srnn_plan_free(plan);
    }
}

static int open_gpu(void **state) {
    (void)state;
    return srnn_device_open(&gpu, "cuda") == SRNN_OK ? 0 : -1;
}

static int close_gpu(void **state) {
    (void)state;
    srnn_device_close(gpu);
    return 0;
}

/* With an argument: the tests whose name it matches. */
int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_variants),
        cmocka_unit_test(combinations),
        cmocka_unit_test(shapes),
        cmocka_unit_test(documents),
        cmocka_unit_test(chunks),
        cmocka_unit_test(heads_left_over),
        cmocka_unit_test(spans),
        cmocka_unit_test(long_segments),
        cmocka_unit_test(documents_apart),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(small_values),
        cmocka_unit_test(rows_without_weights),
        cmocka_unit_test(decays),
        cmocka_unit_test(axes),
        cmocka_unit_test(strong_gates_and_sinks),
        cmocka_unit_test(every_variant_has_a_kernel),
    };
    srnn_device *found;
    if (srnn_device_open(&found, "cuda") != SRNN_OK) {
        printf("skipped: %s\n", srnn_error_detail());
        return 77;
    }
    srnn_device_close(found);
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
