/* test_attention_cuda.c: every attention kernel of a GPU, real or emulated, against the double oracle. */
#include "device/device.h"
#include "probe.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static srnn_device *gpu;

/* The GPU's arrays of a call whose own are in the host's memory. */
typedef struct mirror {
    void *operand[OPERANDS], *gradient[OPERANDS], *o, *d_o, *saved;
} mirror;

static void *send(const void *host, size_t bytes) {
    void *memory;
    assert_int_equal(sr_device_allocate(gpu, &memory, bytes), SRNN_OK);
    if (host)
        assert_int_equal(sr_device_copy_in(gpu, memory, host, bytes), SRNN_OK);
    return memory;
}

static size_t operand_bytes(const attention_call *run, operand which) {
    const operand_shape shape = operand_shape_in(&run->problem, which);
    return (size_t)shape_elements(&shape) * sizeof(float);
}

static size_t output_bytes(const attention_call *run) {
    const operand_shape shape = output_shape_in(&run->problem);
    return (size_t)shape_elements(&shape) * sizeof(float);
}

static mirror mirror_create(const attention_call *run, size_t saved_bytes) {
    mirror m = {.o = send(NULL, output_bytes(run)),
                .d_o = send(run->host.d_o, output_bytes(run)),
                .saved = send(NULL, saved_bytes)};
    for (int which = 0; which < OPERANDS; which++) {
        if (!run->host.operand[which])
            continue;
        m.operand[which] = send(run->host.operand[which], operand_bytes(run, (operand)which));
        m.gradient[which] = send(NULL, operand_bytes(run, (operand)which));
    }
    return m;
}

static void mirror_free(mirror *m) {
    for (int which = 0; which < OPERANDS; which++) {
        sr_device_release(gpu, m->operand[which]);
        sr_device_release(gpu, m->gradient[which]);
    }
    sr_device_release(gpu, m->o);
    sr_device_release(gpu, m->d_o);
    sr_device_release(gpu, m->saved);
}

/* Output and gradients into the host's arrays. */
static void mirror_fetch(attention_call *run, const mirror *m) {
    assert_int_equal(sr_device_copy_out(gpu, run->host.o, m->o, output_bytes(run)), SRNN_OK);
    for (int which = 0; which < OPERANDS; which++)
        if (run->host.operand[which])
            assert_int_equal(sr_device_copy_out(gpu, run->host.gradient[which], m->gradient[which],
                                                operand_bytes(run, (operand)which)),
                             SRNN_OK);
}

/* Runs the call's problem on the GPU with this kernel; false if it does not support it. */
static bool run_on_gpu(attention_call *run, const char *kernel) {
    srnn_problem problem = run->problem;
    problem.device = gpu;
    problem.kernel = kernel;
    srnn_plan *plan;
    if (srnn_plan_create(&plan, &problem) != SRNN_OK)
        return false;
    mirror m = mirror_create(run, srnn_plan_saved_bytes(plan));
    attention_call on_gpu = *run;
    memcpy(on_gpu.device.operand, m.operand, sizeof m.operand);
    memcpy(on_gpu.device.gradient, m.gradient, sizeof m.gradient);
    const srnn_operands in = call_operands(&on_gpu), gradients = call_gradients(&on_gpu);
    assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = m.o}, &in, m.saved),
                     SRNN_OK);
    assert_int_equal(
        srnn_attention_backward(plan, &gradients, (srnn_tensor){.data = m.d_o}, &in, m.saved),
        SRNN_OK);
    mirror_fetch(run, &m);
    mirror_free(&m);
    srnn_plan_free(plan);
    return true;
}

/* Families, gates on scores that have none in the table, and scores of high order. */
static const char *const others[] = {
    "order:1",
    "order:4",
    "order:12",
    "elu:2",
    "cosine:3",
    "power:3",
    "power:16",
    "score=taylor:40,norm=l2",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "order:2,decay,value_gate,output_gate,post_gate,norm=l2",
    "order:2,value_gate,normaliser=cumulative_gate,norm=layer",
    "order:2,normaliser=row_sum_min1,detach,epsilon=0.1",
    "softmax,decay,clamp=0.5",
};

/* The text of case n: the named variants, then the others; NULL past the end. */
static const char *spec_at(size_t n) {
    size_t named = 0;
    while (srnn_variant_at(named))
        named++;
    if (n < named)
        return srnn_variant_at(n)->name;
    return n - named < sizeof others / sizeof *others ? others[n - named] : NULL;
}

static const int64_t documents[] = {0, 1, 18, 70, 71, 80, 140};

/* The first for every variant, the others for one in each score's class. */
static const srnn_problem shapes[] = {
    {.B = 2, .H = 4, .Hkv = 2, .T = 70, .D = 20, .Dv = 12, .offsets = documents, .documents = 6},
    {.B = 1, .H = 1, .Hkv = 1, .T = 1, .D = 8, .Dv = 8},
    {.B = 1, .H = 2, .Hkv = 2, .T = 33, .D = 64, .Dv = 64},
    {.B = 1, .H = 3, .Hkv = 1, .T = 64, .D = 3, .Dv = 128},
    {.B = 2, .H = 2, .Hkv = 1, .T = 40, .D = 130, .Dv = 255},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static srnn_problem problem_of(const char *spec, size_t shape) {
    srnn_problem problem = shapes[shape];
    assert_int_equal(srnn_attention_parse(&problem.attention, spec), SRNN_OK);
    return problem;
}

/* Every kernel on the operands that `run` holds. A gate before a norm cancels in it: its gradient is what the sums of a
 * row leave of it in float. */
static void check_kernels(const char *spec, attention_call *run, const attention_call *oracle,
                          double limit) {
    const double gradient_limit = 1e-4;
    const srnn_problem *p = &run->problem;
    int ran = 0;
    for (size_t n = 0; srnn_kernel_name(gpu, n); n++) {
        const char *kernel = srnn_kernel_name(gpu, n);
        if (!run_on_gpu(run, kernel))
            continue;
        const double output = probe_output_error(run, oracle);
        const double gradient = probe_gradient_error(run, oracle);
        if (!(output <= limit) || !(gradient <= gradient_limit))
            fail_msg("%s, %s, H=%d Hkv=%d T=%d D=%d Dv=%d documents=%d: off by %g, gradients by %g",
                     spec, kernel, p->H, p->Hkv, p->T, p->D, p->Dv, (int)p->documents, output,
                     gradient);
        ran++;
    }
    assert_true(ran > 0);
}

static void check_problem(const char *spec, const srnn_problem *problem) {
    attention_call run, oracle;
    assert_int_equal(probe_oracle(&oracle, problem, 3), SRNN_OK);
    assert_int_equal(probe_create(&run, problem, 3), SRNN_OK);
    check_kernels(spec, &run, &oracle, probe_limit(problem, SRNN_FORM_PARALLEL));
    call_free(&run);
    call_free(&oracle);
}

static void every_variant(void **state) {
    (void)state;
    for (size_t n = 0; spec_at(n); n++) {
        const srnn_problem problem = problem_of(spec_at(n), 0);
        check_problem(spec_at(n), &problem);
    }
}

static void every_shape(void **state) {
    (void)state;
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,value_gate,norm=rms",
                                        "order:12"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++)
        for (size_t shape = 1; shape < SHAPES; shape++) {
            const srnn_problem problem = problem_of(specs[n], shape);
            check_problem(specs[n], &problem);
        }
}

/* Integers whose products float holds exactly, so that only the score is tested; |s| up to about 10^4. */
static void large_logits(void **state) {
    (void)state;
    static const char *const specs[] = {"softmax,scale=one", "norm,scale=one",
                                        "score=exp,scale=one,value_gate,output_gate,norm=rms"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        const srnn_problem problem = problem_of(specs[n], 0);
        srnn_problem wide = problem;
        wide.dtype = SRNN_F64;
        attention_call run, oracle;
        assert_int_equal(probe_create(&run, &problem, 6), SRNN_OK);
        assert_int_equal(probe_create(&oracle, &wide, 6), SRNN_OK);
        for (int which = OPERAND_Q; which <= OPERAND_K; which++) {
            float *narrow = run.host.operand[which];
            double *exact = oracle.host.operand[which];
            for (size_t i = 0; i < operand_bytes(&run, (operand)which) / sizeof *narrow; i++)
                exact[i] = (double)(narrow[i] = (which == OPERAND_Q ? 40.0f : 16.0f) *
                                                (float)(int)(2 * narrow[i]));
        }
        assert_int_equal(probe_oracle_run(&oracle), SRNN_OK);
        check_kernels(specs[n], &run, &oracle, 1e-6);
        call_free(&run);
        call_free(&oracle);
    }
}

/* An emulated GPU runs its threads in another order the second time. */
static void the_same_bits_twice(void **state) {
    (void)state;
    static const char *const specs[] = {"gated_softmax_decay", "linear_elu,value_gate,norm=layer"};
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        const srnn_problem problem = problem_of(specs[n], 0);
        attention_call one, two;
        assert_int_equal(probe_create(&one, &problem, 5), SRNN_OK);
        assert_int_equal(probe_create(&two, &problem, 5), SRNN_OK);
        assert_true(run_on_gpu(&one, NULL) && run_on_gpu(&two, NULL));
        assert_memory_equal(one.host.o, two.host.o, output_bytes(&one));
        for (int which = 0; which < OPERANDS; which++)
            if (one.host.operand[which])
                assert_memory_equal(one.host.gradient[which], two.host.gradient[which],
                                    operand_bytes(&one, (operand)which));
        call_free(&one);
        call_free(&two);
    }
}

int main(void) {
    if (srnn_device_open(&gpu, "cuda") != SRNN_OK) {
        fprintf(stderr, "left out: %s\n", srnn_error_detail());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant),
        cmocka_unit_test(every_shape),
        cmocka_unit_test(large_logits),
        cmocka_unit_test(the_same_bits_twice),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    srnn_device_close(gpu);
    return failed;
}
