/* test_stop.c: calls that are cancelled end early with SRNN_ERR_INTERRUPTED. */
#include "softrnn.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPERANDS = 20 };

/* A problem of one head on one thread that takes longer than the interval between two polls. */
typedef struct long_call {
    const char *spec, *kernel;
    srnn_form form;
    int T;
} long_call;

static const long_call calls[] = {
    {"softmax", "flash", SRNN_FORM_PARALLEL, 16384},
    {"softmax", "generic", SRNN_FORM_PARALLEL, 4096},
    {"delta_net", "generic", SRNN_FORM_PARALLEL, 4096},
    {"order:2", "chunked", SRNN_FORM_CHUNKED, 32768},
    {"gla", "linear", SRNN_FORM_CHUNKED, 131072},
    {"rat", "pooled", SRNN_FORM_PARALLEL, 65536},
};

static int questions;

static bool stop_at_once(void *context) {
    (void)context;
    questions++;
    return true;
}

static srnn_problem problem_of(const long_call *call) {
    srnn_problem problem = {.B = 1,
                            .H = 1,
                            .T = call->T,
                            .D = 64,
                            .kernel = call->kernel,
                            .form = call->form,
                            .threads = 1};
    assert_int_equal(srnn_attention_parse(&problem.attention, call->spec), SRNN_OK);
    return problem;
}

static float *filled(size_t count, float value) {
    float *numbers = malloc(count * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t n = 0; n < count; n++)
        numbers[n] = value;
    return numbers;
}

/* Every operand of the problem, filled; free *memory. */
static srnn_operands operands_of(const srnn_problem *problem, float value,
                                 float *memory[MOST_OPERANDS]) {
    static const struct {
        const char *name;
        size_t at;
    } members[] = {{"q", offsetof(srnn_operands, q)},
                   {"k", offsetof(srnn_operands, k)},
                   {"v", offsetof(srnn_operands, v)},
                   {"output_gate", offsetof(srnn_operands, output_gate)},
                   {"decay", offsetof(srnn_operands, decay)},
                   {"write_gate", offsetof(srnn_operands, write_gate)},
                   {"pool_gate", offsetof(srnn_operands, pool_gate)},
                   {"norm_weight", offsetof(srnn_operands, norm_weight)}};
    srnn_operands operands = {0};
    srnn_operand operand;
    size_t index = 0;
    for (; srnn_operand_at(&operand, problem, index); index++) {
        size_t count = 1, member = 0;
        for (int axis = 0; axis < operand.rank; axis++)
            count *= (size_t)operand.sizes[axis];
        while (strcmp(members[member].name, operand.name) != 0)
            assert_true(++member < sizeof members / sizeof *members);
        memory[index] = filled(count, value);
        memcpy((char *)&operands + members[member].at, &memory[index], sizeof memory[index]);
    }
    memory[index] = NULL;
    return operands;
}

static void free_all(float *memory[MOST_OPERANDS]) {
    for (size_t n = 0; memory[n]; n++)
        free(memory[n]);
}

static bool has_gaps(const float *numbers, size_t count) {
    for (size_t n = 0; n < count; n++)
        if (isnan(numbers[n]))
            return true;
    return false;
}

static void check_stopped(srnn_status status, const float *written, size_t count) {
    assert_int_equal(status, SRNN_ERR_INTERRUPTED);
    assert_int_equal(questions, 1);
    assert_true(has_gaps(written, count)); /* it did not run to completion */
}

static void a_call_stops(void **state) {
    const long_call *call = *state;
    const srnn_problem problem = problem_of(call);
    float *memory[MOST_OPERANDS], *results[MOST_OPERANDS];
    const srnn_operands in = operands_of(&problem, 0.125f, memory),
                        gradients = operands_of(&problem, NAN, results);
    const size_t count = (size_t)call->T * 64;
    float *o = filled(count, NAN);
    srnn_plan *plan;
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    void *saved = aligned_alloc(64, srnn_plan_saved_bytes(plan));
    assert_non_null(saved);
    memset(saved, 0, srnn_plan_saved_bytes(plan));
    questions = 0;
    srnn_stop_when(stop_at_once, NULL);
    check_stopped(srnn_attention_forward(plan, (srnn_tensor){.data = o}, &in, saved), o, count);
    memset(o, 0, count * sizeof *o);
    questions = 0;
    check_stopped(srnn_attention_backward(plan, &gradients, (srnn_tensor){.data = o}, &in, saved),
                  gradients.q.data, count);
    srnn_stop_when(NULL, NULL);
    srnn_plan_free(plan);
    free(saved);
    free(o);
    free_all(memory);
    free_all(results);
}

static void a_stopped_state_is_empty(void **state) {
    const long_call *call = *state;
    srnn_problem problem = problem_of(call);
    problem.kernel = NULL;
    float *memory[MOST_OPERANDS];
    const srnn_operands in = operands_of(&problem, 0.125f, memory);
    const size_t count = (size_t)call->T * 64;
    float *o = filled(count, NAN), *again = filled(count, NAN);
    srnn_state *stopped, *fresh;
    assert_int_equal(srnn_state_create(&stopped, &problem), SRNN_OK);
    assert_int_equal(srnn_state_create(&fresh, &problem), SRNN_OK);
    questions = 0;
    srnn_stop_when(stop_at_once, NULL);
    check_stopped(srnn_state_feed(stopped, (srnn_tensor){.data = o}, &in, call->T), o, count);
    srnn_stop_when(NULL, NULL);
    assert_int_equal(srnn_state_position(stopped), 0);
    const int few = 70;
    srnn_operands part = in; /* contiguous rows of one head */
    assert_int_equal(srnn_state_feed(stopped, (srnn_tensor){.data = o}, &part, few), SRNN_OK);
    assert_int_equal(srnn_state_feed(fresh, (srnn_tensor){.data = again}, &part, few), SRNN_OK);
    assert_memory_equal(o, again, (size_t)few * 64 * sizeof *o);
    srnn_state_free(stopped);
    srnn_state_free(fresh);
    free(o);
    free(again);
    free_all(memory);
}

static bool never(void *context) {
    (void)context;
    questions++;
    return false;
}

/* Polling does not change results, and calls of threads without a callback do not poll. */
static void questions_change_nothing(void **state) {
    (void)state;
    const long_call call = {"order:2", NULL, SRNN_FORM_CHUNKED, 16384};
    const srnn_problem problem = problem_of(&call);
    float *memory[MOST_OPERANDS];
    const srnn_operands in = operands_of(&problem, 0.125f, memory);
    const size_t count = (size_t)call.T * 64;
    float *o = filled(count, NAN), *again = filled(count, NAN);
    srnn_plan *plan;
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    questions = 0;
    assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = o}, &in, NULL), SRNN_OK);
    assert_int_equal(questions, 0);
    srnn_stop_when(never, NULL);
    assert_int_equal(srnn_attention_forward(plan, (srnn_tensor){.data = again}, &in, NULL),
                     SRNN_OK);
    srnn_stop_when(NULL, NULL);
    assert_memory_equal(o, again, count * sizeof *o);
    srnn_plan_free(plan);
    free(o);
    free(again);
    free_all(memory);
}

/* A callback that calls the library itself, as a signal handler in Python may. */
static bool ask_within(void *context) {
    srnn_plan *plan = *(srnn_plan **)context;
    float one = 1, o;
    const srnn_tensor number = {.data = &one};
    const srnn_operands in = {.q = number, .k = number, .v = number};
    questions++;
    return srnn_attention_forward(plan, (srnn_tensor){.data = &o}, &in, NULL) == SRNN_OK && o == 1;
}

static void callbacks_may_call(void **state) {
    (void)state;
    const long_call call = {"softmax", NULL, SRNN_FORM_PARALLEL, 16384};
    const srnn_problem problem = problem_of(&call);
    float *memory[MOST_OPERANDS];
    const srnn_operands in = operands_of(&problem, 0.125f, memory);
    float *o = filled((size_t)call.T * 64, NAN);
    srnn_plan *plan, *within;
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    assert_int_equal(srnn_plan_create(&within,
                                      &(srnn_problem){.B = 1, .H = 1, .Hkv = 1, .T = 1, .D = 1}),
                     SRNN_OK);
    questions = 0;
    srnn_stop_when(ask_within, &within);
    check_stopped(srnn_attention_forward(plan, (srnn_tensor){.data = o}, &in, NULL), o,
                  (size_t)call.T * 64);
    srnn_stop_when(NULL, NULL);
    srnn_plan_free(within);
    srnn_plan_free(plan);
    free(o);
    free_all(memory);
}

int main(void) {
    struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[0]),
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[1]),
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[2]),
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[3]),
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[4]),
        cmocka_unit_test_prestate(a_call_stops, (void *)(uintptr_t)&calls[5]),
        cmocka_unit_test_prestate(a_stopped_state_is_empty, (void *)(uintptr_t)&calls[0]),
        cmocka_unit_test_prestate(a_stopped_state_is_empty, (void *)(uintptr_t)&calls[3]),
        cmocka_unit_test_prestate(a_stopped_state_is_empty, (void *)(uintptr_t)&calls[4]),
        cmocka_unit_test(questions_change_nothing),
        cmocka_unit_test(callbacks_may_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
