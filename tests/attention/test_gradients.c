/* test_gradients.c: the gradients of every variant against central differences of the double
 * kernel. */
#include "base/random.h"
#include "equation/facts.h"
#include "equation/operands.h"
#include "equation/score.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, HKV = 2, T = 7, D = 3, DV = 5 };

/* Documents of 3 + 4 tokens in the first row, 7 in the second. */
static const int64_t offsets[] = {0, 3, 7, 14};

static srnn_problem sizes = {.dtype = SRNN_F64,
                             .B = B,
                             .H = H,
                             .Hkv = HKV,
                             .T = T,
                             .D = D,
                             .Dv = DV,
                             .offsets = offsets,
                             .documents = 3,
                             .kernel = "generic"};

static int64_t size_of(int operand) {
    const sr_shape shape = sr_operand_shape((sr_operand)operand, &sizes);
    return sr_shape_numbers(&shape);
}

typedef struct numbers {
    double *of[SR_OPERANDS];
} numbers;

static numbers numbers_create(void) {
    numbers n;
    for (int i = 0; i < SR_OPERANDS; i++)
        n.of[i] = calloc((size_t)size_of(i), sizeof(double));
    return n;
}

static void numbers_free(numbers n) {
    for (int i = 0; i < SR_OPERANDS; i++)
        free(n.of[i]);
}

static srnn_operands operands_of(numbers n) {
    srnn_operands operands = {0};
    for (int i = 0; i < SR_OPERANDS; i++)
        sr_operand_place((sr_operand)i, &operands, n.of[i]);
    return operands;
}

typedef struct fixture {
    srnn_plan *plan;
    const srnn_attention *attention;
    numbers in;
    double d_o[B * H * T * DV];
    double o[B * H * T * DV];
    double *saved;
    double frozen[B * H * T]; /* denominators of a detached variant */
} fixture;

/* sum(o * d_o); a detached normaliser keeps its initial value. */
static double loss(fixture *f) {
    srnn_operands in = operands_of(f->in);
    assert_int_equal(srnn_attention_forward(f->plan, (srnn_tensor){.data = f->o}, &in, f->saved),
                     SRNN_OK);
    double sum = 0.0;
    for (int64_t row = 0; row < B * H * T; row++)
        for (int d = 0; d < DV; d++) {
            double o = f->o[row * DV + d];
            if (f->attention->detach) {
                o = f->saved[row * DV + d] / f->frozen[row];
                if (f->attention->output_gate == SRNN_GATE_SIGMOID)
                    o *= sr_sigmoid(f->in.of[SR_OPERAND_OUTPUT_GATE][row]);
            }
            sum += o * f->d_o[row * DV + d];
        }
    return sum;
}

static void freeze_denominators(fixture *f) {
    const double *row_sum = f->saved + (B * H * T * DV + 7) / 8 * 8;
    for (int64_t row = 0; row < B * H * T; row++) {
        f->frozen[row] = row_sum[row] + f->attention->epsilon;
        if (f->attention->normaliser == SRNN_NORMALISER_ROW_SUM_MIN1)
            f->frozen[row] = fmax(row_sum[row], 1.0);
    }
}

static void check_operand(fixture *f, int operand, const double *gradient, const char *variant) {
    double difference = 0.0, norm = 0.0, scale = 0.0;
    for (int64_t n = 0; n < size_of(operand); n++) {
        double *x = &f->in.of[operand][n], saved = *x, h = 1e-5;
        *x = saved + h;
        double above = loss(f);
        *x = saved - h;
        double below = loss(f);
        *x = saved;
        double central = (above - below) / (2.0 * h);
        difference += (gradient[n] - central) * (gradient[n] - central);
        norm += central * central;
        scale = fmax(scale, fabs(above));
    }
    /* Differences of a loss of size `scale` cannot resolve more than its rounding over h. */
    double floor = 1e-9 * scale * sqrt((double)size_of(operand));
    if (!(sqrt(difference) <= 1e-6 * sqrt(norm) + floor))
        fail_msg("%s: gradient of %s is off by %g of %g", variant,
                 sr_operand_at((sr_operand)operand)->name, sqrt(difference), sqrt(norm));
}

static void check_variant(const char *spec) {
    fixture f = {0};
    assert_int_equal(srnn_attention_parse(&sizes.attention, spec), SRNN_OK);
    f.attention = &sizes.attention;
    f.in = numbers_create();
    /* `learned` is divided by 1024; other gates of this size would be 0 or 1 */
    const double decay = f.attention->decay == SRNN_DECAY_LEARNED ? 400.0 : 1.0;
    for (int i = 0; i < SR_OPERANDS; i++)
        for (int64_t n = 0; n < size_of(i); n++)
            f.in.of[i][n] = sr_random_normal(11, (uint64_t)i, (uint64_t)n) *
                            (i == SR_OPERAND_DECAY ? decay : 1.0);
    for (int64_t n = 0; n < B * H * T * DV; n++)
        f.d_o[n] = sr_random_normal(12, 0, (uint64_t)n);
    assert_int_equal(srnn_plan_create(&f.plan, &sizes), SRNN_OK);
    f.saved = aligned_alloc(64, srnn_plan_saved_bytes(f.plan));
    loss(&f);
    freeze_denominators(&f);

    numbers gradients = numbers_create();
    srnn_operands in = operands_of(f.in), out = operands_of(gradients);
    assert_int_equal(srnn_attention_backward(f.plan, &out, (srnn_tensor){.data = f.d_o}, &in,
                                             f.saved),
                     SRNN_OK);
    for (int i = 0; i < SR_OPERANDS; i++)
        if (sr_operand_used((sr_operand)i, f.attention))
            check_operand(&f, i, gradients.of[i], spec);
    numbers_free(gradients);
    numbers_free(f.in);
    free(f.saved);
    srnn_plan_free(f.plan);
}

static void named_variants(void **state) {
    (void)state;
    for (size_t n = 0; srnn_variant_at(n); n++)
        check_variant(srnn_variant_at(n)->name);
}

static void families_and_combinations(void **state) {
    (void)state;
    static const char *const specs[] = {
        "order:0",
        "order:1",
        "order:2",
        "order:5",
        "order:8",
        "order:20",
        "elu:2",
        "relu:3",
        "cosine:4",
        "power:2",
        "power:3",
        "score=linear,feature=elu1,scale=one,decay,value_gate,output_gate,post_gate,norm=rms",
        "score=taylor:2,decay,norm=l2,post_gate",
        "score=exp,decay,norm=l2_scaled,value_gate",
        "score=exp,decay",
        "score=exp,normaliser=row_sum_min1,decay,norm=layer,output_gate=inverse_cumulative",
        "score=exp,normaliser=cumulative_gate,norm=rms,output_gate,post_gate",
        "score=power:2,feature=unit_heads,normaliser=value_power,value_gate,norm=layer",
        "score=linear,feature=unit,normaliser=none,epsilon=0.25,output_gate=inverse_exp",
        "score=exp,clamp=0.5",
        "score=taylor:3,clamp=0.25,decay,normaliser=row_length",
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        check_variant(specs[n]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_variants),
        cmocka_unit_test(families_and_combinations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
