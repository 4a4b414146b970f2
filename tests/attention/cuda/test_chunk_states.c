/* test_chunk_states.c: rows cut into pieces on a GPU, real or emulated, with the state and its
 * gradient handed from one to the other, give the numbers of whole rows in bf16. */
#include "attention/states.h"
#include "device/device.h"
#include "equation/facts.h"
#include "test.h"
#include "verify/probe.h"

#include <stdio.h>
#include <string.h>

enum { T = 135, PIECES = 3 };

/* In the middle of chunks. */
static const int cuts[PIECES + 1] = {0, 37, 101, T};

static srnn_device *gpu;

/* The tokens of a piece of a contiguous array (B, heads, T, width) of bf16 in device memory. */
static srnn_tensor piece_of(void *data, int64_t heads, int64_t width, int from) {
    return (srnn_tensor){.data = data ? (char *)data + 2 * from * width : NULL,
                         .batch = heads * T * width,
                         .head = T * width,
                         .time = width};
}

static srnn_operands pieces_of(void *const arrays[SR_OPERANDS], const srnn_problem *p, int from) {
    srnn_operands out = {0};
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand_row *row = sr_operand_at((sr_operand)n);
        if (!arrays[n])
            continue;
        if (sr_operand_is_tensor((sr_operand)n))
            sr_operand_set_tensor((sr_operand)n, &out,
                                  piece_of(arrays[n], sr_extent_in(row->heads, p),
                                           sr_extent_in(row->width, p), from));
        else
            sr_operand_place((sr_operand)n, &out, arrays[n]);
    }
    return out;
}

typedef struct piece {
    srnn_plan *plan;
    void *saved, *initial, *d_initial; /* device memory; the first piece has no states */
} piece;

static void *device_floats(int64_t count) {
    void *memory;
    assert_int_equal(sr_device_allocate(gpu, &memory, (size_t)count * sizeof(float)), SRNN_OK);
    assert_int_equal(sr_device_zero(gpu, memory, (size_t)count * sizeof(float)), SRNN_OK);
    return memory;
}

static void run_pieces(attention_call *run) {
    const srnn_problem *p = &run->problem;
    piece pieces[PIECES + 1] = {0};
    int64_t sizes[4];
    assert_int_equal(srnn_states_sizes(sizes, p), SRNN_OK);
    const int64_t count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    assert_int_equal(call_send(run), SRNN_OK);
    for (int n = 0; n < PIECES; n++) {
        srnn_problem own = *p;
        own.T = cuts[n + 1] - cuts[n];
        assert_int_equal(srnn_plan_create(&pieces[n].plan, &own), SRNN_OK);
        pieces[n].saved = device_floats((int64_t)srnn_plan_saved_bytes(pieces[n].plan) / 4 + 1);
        pieces[n + 1].initial = device_floats(count);
        pieces[n + 1].d_initial = device_floats(count);
        const srnn_operands in = pieces_of(run->device.operand, p, cuts[n]);
        const srnn_states states = {.initial = pieces[n].initial, .final = pieces[n + 1].initial};
        if (srnn_attention_states_forward(pieces[n].plan,
                                          piece_of(run->device.o, p->H, p->Dv, cuts[n]), &in,
                                          pieces[n].saved, &states) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
    }
    for (int n = PIECES - 1; n >= 0; n--) {
        const srnn_operands in = pieces_of(run->device.operand, p, cuts[n]),
                            out = pieces_of(run->device.gradient, p, cuts[n]);
        const srnn_states states = {.initial = pieces[n].initial,
                                    .d_final = pieces[n + 1].d_initial,
                                    .d_initial = pieces[n].d_initial};
        if (srnn_attention_states_backward(pieces[n].plan, &out,
                                           piece_of(run->device.d_o, p->H, p->Dv, cuts[n]), &in,
                                           pieces[n].saved, &states) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
    }
    assert_int_equal(call_fetch(run), SRNN_OK);
    for (int n = 0; n <= PIECES; n++) {
        srnn_plan_free(pieces[n].plan);
        sr_device_release(gpu, pieces[n].saved);
        sr_device_release(gpu, pieces[n].initial);
        sr_device_release(gpu, pieces[n].d_initial);
    }
}

/* Gradients of learned vectors are those of the first piece alone, and not compared. */
static void pieces_are_the_whole(void **unused) {
    (void)unused;
    static const char *const specs[] = {
        "score=linear,normaliser=none",
        "score=linear,normaliser=none,decay=log_sigmoid,norm=l2",
        "gla",
        "delta_net",
        "gated_delta_net",
        "kda",
    };
    for (size_t n = 0; n < 2 * sizeof specs / sizeof *specs; n++) {
        const size_t spec = n / 2;
        srnn_problem problem = {.B = 2, .H = 2, .Hkv = 2, .T = T, .D = 16, .device = gpu};
        problem.Dv = n % 2 ? 24 : 32; /* rows of 32 go to the core without those of axes/ */
        attention_call oracle = {0}, run = {0};
        probe_errors plain;
        if (srnn_attention_parse(&problem.attention, specs[spec]) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
        problem.dtype = SRNN_BF16;
        problem.form = SRNN_FORM_CHUNKED;
        problem.kernel = sr_states_kernel(&problem);
        assert_string_equal(problem.kernel, "chunks");
        assert_int_equal(probe_oracle(&oracle, &problem, 7), SRNN_OK);
        assert_int_equal(probe_plain_errors(&plain, &problem, &oracle), SRNN_OK);
        assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
        run_pieces(&run);
        const probe_errors errors = probe_errors_of(&run, &oracle, true);
        const double limit = probe_plain_limit(probe_worst(&plain));
        for (int m = 0; m < PROBE_TENSORS; m++) {
            const bool output = m == PROBE_OUTPUT;
            if (!output && !sr_operand_is_tensor((sr_operand)m))
                continue;
            if (!(errors.of[m] <= limit))
                fail_msg("%s: error %.3g of %s, limit %.3g", specs[spec], errors.of[m],
                         output ? "o" : sr_operand_at((sr_operand)m)->name, limit);
        }
        call_free(&oracle);
        call_free(&run);
    }
}

/* What a GPU does not carry is refused by the call. */
static void other_kernels_refuse(void **unused) {
    (void)unused;
    srnn_problem problem = {.B = 1, .H = 2, .T = 70, .D = 16, .device = gpu};
    srnn_plan *plan;
    assert_int_equal(srnn_attention_parse(&problem.attention, "linear_elu"), SRNN_OK);
    problem.form = SRNN_FORM_CHUNKED;
    assert_null(sr_states_kernel(&problem));
    assert_int_equal(srnn_plan_create(&plan, &problem), SRNN_OK);
    const srnn_states states = {0};
    const srnn_operands in = {0};
    assert_int_equal(srnn_attention_states_forward(plan, (srnn_tensor){0}, &in, NULL, &states),
                     SRNN_ERR_UNSUPPORTED);
    assert_non_null(strstr(srnn_error_detail(), "no initial and final states"));
    srnn_plan_free(plan);
}

int main(void) {
    if (srnn_device_open(&gpu, "cuda") != SRNN_OK) {
        fprintf(stderr, "left out: %s\n", srnn_error_detail());
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_the_whole),
        cmocka_unit_test(other_kernels_refuse),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    srnn_device_close(gpu);
    return failed;
}
