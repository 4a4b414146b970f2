/* test_reach.c: NaN, infinity or a gate that erases the past at one position affects only outputs
 * that depend on it: no earlier token, no other document, row or head. */
#include "equation/facts.h"
#include "test.h"
#include "verify/probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, HKV = 2, T = 200, GROUP = H / HKV, DOCUMENTS = 4 };

/* Boundaries inside tiles and on their edges (96). */
static const int64_t offsets[DOCUMENTS + 1] = {0, 50, 130, 200, 400};

static const int64_t places[] = {49, 50, 95, 96, 199, 200, 399}; /* of B * T */

static const char *const specs[] = {
    "softmax",
    "norm",
    "gated_softmax_decay",
    "linear_cosine",
    "order:2",
    "power:3,normaliser=row_length",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "order:2,decay,value_gate,normaliser=cumulative_gate,norm=layer",
    "gla",
    "gated_delta_net,normaliser=row_sum",
    "log_linear,decay=log_sigmoid",
    "softmax,decay=log_sigmoid,decay_place=logit",
    "softmax,decay=softplus",
    "forget",
    "score=linear,decay=softplus,value_gate=time_step,normaliser=none",
    "softmax,pool=7",
};

/* How a case is computed. */
typedef struct way {
    const char *name;
    srnn_form form;
    int chunk;
    const char *kernel;
    bool fed, backward;
} way;

static const way ways[] = {
    {"generic", SRNN_FORM_PARALLEL, 0, "generic", false, true},
    {"flash", SRNN_FORM_PARALLEL, 0, "flash", false, true},
    {"pooled", SRNN_FORM_PARALLEL, 0, "pooled", false, true},
    {"flash, fed", SRNN_FORM_PARALLEL, 0, NULL, true, false},
    {"chunked", SRNN_FORM_CHUNKED, 32, NULL, false, true},
    {"chunked, fed", SRNN_FORM_CHUNKED, 32, NULL, true, false},
    {"recurrent", SRNN_FORM_RECURRENT, 0, NULL, false, false},
};

/* The number that is not finite. D_O: in the gradient of the output. */
enum { D_O = SR_OPERANDS };
typedef struct poison {
    int operand;
    int64_t b, t;
    int head;
    bool across;   /* heads are mixed by the variant's feature */
    bool later;    /* the gate of a row is read by later rows too */
    bool whole;    /* a batch row is one document */
    double within; /* tolerated relative difference of others */
} poison;

static int64_t document_of(int64_t token) {
    int64_t document = 0;
    while (token >= offsets[document + 1])
        document++;
    return document;
}

static bool of_query(int operand) {
    return operand == SR_OPERAND_Q || operand == SR_OPERAND_OUTPUT_GATE ||
           operand == SR_OPERAND_LEVEL_GATE || operand == D_O;
}

typedef struct array {
    const char *name;
    const float *got, *clean;
    int heads;
    int64_t width;
    bool of_keys; /* has heads of keys */
    bool earlier; /* is a gradient of keys or values */
} array;

/* Whether the element at (b, head, t) of an array may be affected. */
static bool may_be_spoilt(const poison *p, const array *a, int64_t b, int head, int64_t t) {
    const bool query = of_query(p->operand);
    const int kv = query ? p->head / GROUP : p->head;
    const bool same_head =
        query && !a->of_keys ? head == p->head : (a->of_keys ? head : head / GROUP) == kv;
    if (b != p->b || !(same_head || p->across) ||
        (!p->whole && document_of(b * T + t) != document_of(p->b * T + p->t)))
        return false;
    /* Rows that depend on it: its own, and all later ones if it belongs to a key. */
    const bool spreads = !query || p->later;
    if (a->earlier)
        return spreads || t <= p->t;
    return t == p->t || (spreads && t > p->t);
}

static void check(const char *spec, const char *how, const poison *p, const array *a) {
    const int64_t rows = (int64_t)B * a->heads * T;
    double squares = 0;
    for (int64_t i = 0; i < rows * a->width; i++)
        squares += pow((double)a->clean[i], 2);
    const double size = sqrt(squares / (double)(rows * a->width));
    for (int64_t row = 0; row < rows; row++) {
        const int64_t t = row % T, b = row / T / a->heads;
        const int head = (int)(row / T % a->heads);
        if (may_be_spoilt(p, a, b, head, t))
            continue;
        for (int64_t i = row * a->width; i < (row + 1) * a->width; i++)
            if (!(fabs((double)a->got[i] - (double)a->clean[i]) <= p->within * size))
                fail_msg("%s, %s: operand %d at row %d, head %d, token %d reaches %s of row %d, "
                         "head %d, token %d: "
                         "%g, not %g",
                         spec, how, p->operand, (int)p->b, p->head, (int)p->t, a->name, (int)b,
                         head, (int)t, (double)a->got[i], (double)a->clean[i]);
    }
}

static srnn_status compute(attention_call *run, const way *w) {
    if (w->fed)
        return probe_feed(run, 4);
    return w->backward ? call_forward_backward(run) : call_forward(run);
}

static srnn_problem problem_of(const char *spec, const way *w) {
    srnn_problem problem = {.B = B, .H = H, .Hkv = HKV, .T = T, .D = 6, .Dv = 10};
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    problem.form = w->form;
    problem.chunk = w->chunk;
    problem.kernel = w->kernel;
    problem.offsets = w->fed ? NULL : offsets; /* pieces have no documents */
    problem.documents = w->fed ? 0 : DOCUMENTS;
    return problem;
}

static void compare(const char *spec, const way *w, const poison *p, const attention_call *got,
                    const attention_call *clean) {
    if (p->operand != D_O)
        check(spec, w->name, p,
              &(array){"the output", got->host.o, clean->host.o, H, clean->problem.Dv, false,
                       false});
    for (int which = 0; w->backward && which < SR_OPERANDS; which++) {
        if (!clean->host.gradient[which] || !sr_operand_is_tensor((sr_operand)which))
            continue;
        const sr_operand_row *row = sr_operand_at((sr_operand)which);
        const sr_shape shape = sr_operand_shape((sr_operand)which, &clean->problem);
        const bool of_keys = shape.sizes[1] == HKV;
        const array gradient = {row->name,
                                got->host.gradient[which],
                                clean->host.gradient[which],
                                (int)shape.sizes[1],
                                shape.rank == 4 ? shape.sizes[3] : 1,
                                of_keys,
                                which != SR_OPERAND_Q};
        check(spec, w->name, p, &gradient);
    }
}

/* A row that reads NaN is NaN. */
static void check_own_row(const char *spec, const way *w, const poison *p,
                          const attention_call *got) {
    const int head = p->operand == SR_OPERAND_Q ? p->head : p->head * GROUP;
    const int64_t Dv = got->problem.Dv;
    const float *o = (const float *)got->host.o + ((p->b * H + head) * T + p->t) * Dv;
    bool found = false;
    for (int64_t d = 0; d < Dv; d++)
        found |= isnan(o[d]);
    if (!found)
        fail_msg("%s, %s: NaN in operand %d at row %d, token %d is lost", spec, w->name, p->operand,
                 (int)p->b, (int)p->t);
}

static void spoil(attention_call *run, const poison *p, float value) {
    const sr_shape shape = p->operand == D_O
                               ? sr_output_shape(&run->problem)
                               : sr_operand_shape((sr_operand)p->operand, &run->problem);
    float *numbers = p->operand == D_O ? run->host.d_o : run->host.operand[p->operand];
    const int64_t width = shape.rank == 4 ? shape.sizes[3] : 1;
    numbers[((p->b * shape.sizes[1] + p->head) * T + p->t) * width + width / 2] = value;
}

/* Strong finite gates do not change others, except for the order of sums that overflow. */
static void try_place(const char *spec, const way *w, const attention_call *clean, poison p) {
    static const float values[] = {NAN, INFINITY, -1e5f, 1e5f, -3e38f, 3e38f};
    const size_t count = p.operand == SR_OPERAND_DECAY ? 6 : 2;
    for (size_t n = 0; n < count; n++) {
        const srnn_problem problem = problem_of(spec, w);
        attention_call run;
        assert_int_equal(probe_copy(&run, &problem, clean), SRNN_OK);
        p.within = isfinite(values[n]) ? 1e-5 : 1e-3;
        spoil(&run, &p, values[n]);
        assert_int_equal(compute(&run, w), SRNN_OK);
        compare(spec, w, &p, &run, clean);
        if (isnan(values[n]) && p.operand <= SR_OPERAND_V)
            check_own_row(spec, w, &p, &run);
        call_free(&run);
    }
}

static void try_way(const char *spec, const way *w) {
    const srnn_problem problem = problem_of(spec, w);
    const bool across = problem.attention.feature == SRNN_FEATURE_UNIT_HEADS;
    const bool cumulative = problem.attention.normaliser == SRNN_NORMALISER_CUMULATIVE_GATE;
    attention_call clean;
    assert_int_equal(probe_create(&clean, &problem, 3), SRNN_OK);
    assert_int_equal(compute(&clean, w), SRNN_OK);
    for (int operand = 0; operand <= D_O; operand++) {
        const bool used = operand == D_O ? w->backward
                                         : clean.host.operand[operand] &&
                                               sr_operand_is_tensor((sr_operand)operand);
        for (size_t n = 0; used && n < sizeof places / sizeof *places; n++)
            try_place(spec, w, &clean,
                      (poison){operand, places[n] / T, places[n] % T, 1, across,
                               operand == SR_OPERAND_OUTPUT_GATE && cumulative, w->fed, 0});
    }
    call_free(&clean);
}

/* Whether the requested kernel computes the problem. */
static bool has_kernel(const srnn_problem *problem) {
    srnn_plan *plan = NULL;
    const srnn_status status = srnn_plan_create(&plan, problem);
    srnn_plan_free(plan);
    assert_true(status == SRNN_OK || status == SRNN_ERR_UNSUPPORTED);
    return status == SRNN_OK;
}

static void numbers_reach_what_sees_them(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            const srnn_problem problem = problem_of(specs[n], &ways[i]);
            const bool parallel = ways[i].form == SRNN_FORM_PARALLEL;
            const bool supported = ways[i].kernel
                                       ? has_kernel(&problem)
                                       : parallel || srnn_attention_has_state(&problem.attention);
            if (supported)
                try_way(specs[n], &ways[i]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_reach_what_sees_them)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
