/* test_no_memory_attention.c: each allocation of the attention library's calls fails once: the call
 * fails with SRNN_ERR_MEMORY, or gives the right numbers, and nothing stays allocated. */
#include "softrnn.h"
#include "test.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- an allocator that counts, and fails once; the work runs on one thread */

/* glibc's own functions. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *memory);

static bool counting;
static long count, alive, fail_at;

static bool fails(void) {
    if (!counting || ++count != fail_at)
        return false;
    errno = ENOMEM;
    return true;
}

static void *counted(void *memory) {
    alive += counting && memory;
    return memory;
}

void *malloc(size_t bytes) {
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t number, size_t bytes) {
    return fails() ? NULL : counted(__libc_calloc(number, bytes));
}

void *realloc(void *old, size_t bytes) {
    if (fails())
        return NULL;
    void *memory = __libc_realloc(old, bytes);
    alive += counting && memory && !old;
    return memory;
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : counted(__libc_memalign(alignment, bytes));
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (fails())
        return ENOMEM;
    *out = counted(__libc_memalign(alignment, bytes));
    return *out ? 0 : ENOMEM;
}

void free(void *memory) {
    alive -= counting && memory;
    __libc_free(memory);
}

/* ---- the work: a variant over a sequence, forward and backward, and by pieces */

enum { B = 1, H = 2, T = 7, D = 4, NUMBERS = B * H * T * D, SAVED = 1 << 16 };

static const int64_t offsets[] = {0, 3, T}, others[] = {0, 5, T};
static float inputs[8][NUMBERS];

/* The results, all of which are compared. */
typedef struct results {
    float o[NUMBERS], pieces[NUMBERS], gradients[8][NUMBERS];
} results;

static srnn_operands operands_of(float (*numbers)[NUMBERS]) {
    return (srnn_operands){.q = {.data = numbers[0]},
                           .k = {.data = numbers[1]},
                           .v = {.data = numbers[2]},
                           .output_gate = {.data = numbers[3]},
                           .value_gate = {.data = numbers[4]},
                           .decay = {.data = numbers[5]},
                           .norm_weight = numbers[6],
                           .norm_bias = numbers[7]};
}

static srnn_status use_plan(srnn_plan *plan, results *out) {
    static _Alignas(64) char saved[SAVED];
    const srnn_operands in = operands_of(inputs), gradients = operands_of(out->gradients);
    const srnn_tensor o = {.data = out->o}, d_o = {.data = inputs[2]};
    assert_true(srnn_plan_saved_bytes(plan) <= sizeof saved);
    srnn_status status = srnn_plan_documents(plan, others, 2);
    if (status == SRNN_OK)
        status = srnn_attention_forward(plan, o, &in, saved);
    if (status == SRNN_OK)
        status = srnn_attention_backward(plan, &gradients, d_o, &in, saved);
    return status;
}

static srnn_status attend(const srnn_problem *problem, results *out) {
    srnn_plan *plan = NULL;
    srnn_status status = srnn_plan_create(&plan, problem);
    if (status == SRNN_OK)
        status = use_plan(plan, out);
    srnn_plan_free(plan);
    return status;
}

/* Token after token, through a copy of the state in the middle. */
static srnn_status feed(srnn_state *state, srnn_state *copy, results *out) {
    static char bytes[SAVED];
    srnn_status status = SRNN_OK;
    for (int t = 0; t < T && status == SRNN_OK; t++) {
        srnn_operands in = operands_of(inputs);
        float *const o = out->pieces + t * H * D;
        in.q.data = inputs[0] + t * H * D;
        status = srnn_state_feed(t < T / 2 ? state : copy, (srnn_tensor){.data = o}, &in, 1);
        if (status == SRNN_OK && t == T / 2 - 1) {
            const size_t size = srnn_state_saved_bytes(state);
            assert_true(size <= sizeof bytes);
            status = srnn_state_save(state, bytes, size);
            if (status == SRNN_OK)
                status = srnn_state_load(copy, bytes, size);
        }
    }
    return status;
}

static srnn_status by_pieces(const srnn_problem *problem, results *out) {
    srnn_problem piece = *problem;
    srnn_state *state = NULL, *copy = NULL;
    piece.T = 1;
    piece.offsets = NULL;
    piece.documents = 0;
    srnn_status status = srnn_state_create(&state, &piece);
    if (status == SRNN_OK)
        status = srnn_state_create(&copy, &piece);
    if (status == SRNN_OK)
        status = feed(state, copy, out);
    srnn_state_free(state);
    srnn_state_free(copy);
    return status;
}

static srnn_status work(const char *spec, srnn_form form, results *out) {
    srnn_device *device = NULL;
    srnn_problem problem = {.B = B, .H = H, .T = T, .D = D, .form = form, .threads = 1};
    problem.offsets = offsets;
    problem.documents = 2;
    memset(out, 0, sizeof *out);
    srnn_status status = srnn_attention_parse(&problem.attention, spec);
    if (status == SRNN_OK)
        status = srnn_device_open(&device, "cpu");
    if (status == SRNN_OK)
        problem.device = device;
    if (status == SRNN_OK)
        status = attend(&problem, out);
    if (status == SRNN_OK)
        status = by_pieces(&problem, out);
    srnn_device_close(device);
    return status;
}

static long try_all(const char *spec, srnn_form form) {
    static results right, got;
    assert_int_equal(work(spec, form, &right), SRNN_OK);
    for (fail_at = 1;; fail_at++) {
        count = alive = 0;
        counting = true;
        const srnn_status status = work(spec, form, &got);
        counting = false;
        if (alive != 0)
            fail_msg("%s: %ld allocations stay when number %ld fails", spec, alive, fail_at);
        if (status == SRNN_OK && memcmp(&got, &right, sizeof got) != 0)
            fail_msg("%s: other numbers when allocation %ld fails", spec, fail_at);
        if (status != SRNN_OK && (status != SRNN_ERR_MEMORY || !*srnn_error_detail()))
            fail_msg("%s: allocation %ld fails, and the call says %s", spec, fail_at,
                     srnn_status_name(status));
        if (status == SRNN_OK && count < fail_at)
            return count;
        if (count < fail_at)
            fail_msg("%s: fails with all the memory it asks for", spec);
    }
}

static void one_allocation_fails(void **state) {
    static const char *const specs[] = {"softmax", "gated_softmax", "norm",
                                        "linear_elu,decay,value_gate,output_gate,norm=rms",
                                        "order:2"};
    (void)state;
    for (size_t i = 0; i < 8; i++)
        for (size_t n = 0; n < NUMBERS; n++)
            inputs[i][n] = (float)sin((double)(i * NUMBERS + n));
    long tries = 0;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        tries += try_all(specs[i], SRNN_FORM_PARALLEL);
        if (i > 2)
            tries += try_all(specs[i], SRNN_FORM_CHUNKED);
    }
    assert_true(tries > 50);
    print_message("%ld allocations failed in turn\n", tries);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_allocation_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
