/* test_initial_state.c: rows cut into pieces, with the state and its gradient handed from one to
 * the other, give the outputs and gradients of the oracle for whole rows. */
#include "equation/facts.h"
#include "test.h"
#include "verify/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T = 61, PIECES = 4 };

/* Cuts at odd places: pieces of 1, 13, 30 and 17 tokens. */
static const int cuts[PIECES + 1] = {0, 1, 14, 44, T};

/* Besides the table. */
static const char *const others[] = {
    "order:1",
    "order:2",
    "order:3,decay",
    "power:2",
    "power:3,normaliser=row_sum",
    "linear_elu,decay,value_gate,output_gate,norm=rms",
    "delta_net,decay=learned",
    "gated_delta_net,normaliser=row_sum",
    "gla,normaliser=row_sum_min1",
    "gla,decay=given,decay_divisor=1,write=delta",
};

enum { OTHERS = sizeof others / sizeof *others };

static const char *spec_at(size_t n) {
    size_t named = 0;
    while (srnn_variant_at(named))
        named++;
    if (n < named)
        return srnn_variant_at(n)->name;
    return n - named < OTHERS ? others[n - named] : NULL;
}

/* The tokens of a piece of a contiguous array (B, heads, T, width). */
static srnn_tensor piece_of(void *data, int64_t heads, int64_t width, int from) {
    return (srnn_tensor){.data = data ? (double *)data + from * width : NULL,
                         .batch = heads * T * width,
                         .head = T * width,
                         .time = width};
}

static srnn_operands pieces_of(void *const arrays[SR_OPERANDS], const srnn_problem *p, int from) {
    srnn_operands out = {0};
    for (int n = 0; n < SR_OPERANDS; n++) {
        const sr_operand which = (sr_operand)n;
        const sr_operand_row *row = sr_operand_at(which);
        if (!arrays[n])
            continue;
        if (sr_operand_is_tensor(which))
            sr_operand_set_tensor(which, &out,
                                  piece_of(arrays[n], sr_extent_in(row->heads, p),
                                           sr_extent_in(row->width, p), from));
        else
            sr_operand_place(which, &out, arrays[n]);
    }
    return out;
}

/* Documents of a piece where every row has one that ends at token `end`; 0: none does. */
static int64_t piece_documents(int64_t offsets[8], const srnn_problem *p, int from, int past,
                               int end) {
    int64_t count = 0;
    for (int b = 0; b < p->B; b++) {
        offsets[count++] = (int64_t)b * (past - from);
        if (end > from && end < past)
            offsets[count++] = (int64_t)b * (past - from) + end - from;
    }
    offsets[count] = (int64_t)p->B * (past - from);
    return count;
}

typedef struct piece {
    srnn_plan *plan;
    void *saved;
    double *initial, *d_initial; /* NULL for the first */
} piece;

static void *numbers(int64_t count) {
    void *data = aligned_alloc(64, (size_t)(count * 8 + 64) / 64 * 64);
    assert_non_null(data);
    memset(data, 0xff, (size_t)(count * 8 + 64) / 64 * 64); /* NaN: what is not written shows */
    return data;
}

static void run_pieces(attention_call *run, int end) {
    const srnn_problem *p = &run->problem;
    piece pieces[PIECES + 1] = {0};
    int64_t sizes[4], offsets[8];
    assert_int_equal(srnn_states_sizes(sizes, p), SRNN_OK);
    const int64_t count = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    for (int n = 0; n < PIECES; n++) {
        srnn_problem own = *p;
        own.T = cuts[n + 1] - cuts[n];
        own.documents = piece_documents(offsets, p, cuts[n], cuts[n + 1], end);
        own.offsets = offsets;
        assert_int_equal(srnn_plan_create(&pieces[n].plan, &own), SRNN_OK);
        pieces[n].saved = numbers((int64_t)srnn_plan_saved_bytes(pieces[n].plan) / 8 + 1);
        pieces[n + 1].initial = numbers(count);
        pieces[n + 1].d_initial = numbers(count);
        const srnn_operands in = pieces_of(run->host.operand, p, cuts[n]);
        const srnn_states states = {.initial = pieces[n].initial, .final = pieces[n + 1].initial};
        if (srnn_attention_states_forward(pieces[n].plan,
                                          piece_of(run->host.o, p->H, p->Dv, cuts[n]), &in,
                                          pieces[n].saved, &states) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
    }
    memset(pieces[PIECES].d_initial, 0, (size_t)count * sizeof(double));
    for (int n = PIECES - 1; n >= 0; n--) {
        void *gradients[SR_OPERANDS];
        for (int m = 0; m < SR_OPERANDS; m++) {
            const sr_shape shape = sr_operand_shape((sr_operand)m, p);
            gradients[m] = run->host.gradient[m];
            if (gradients[m] && !sr_operand_is_tensor((sr_operand)m))
                gradients[m] = numbers(sr_shape_numbers(&shape));
        }
        const srnn_operands in = pieces_of(run->host.operand, p, cuts[n]),
                            out = pieces_of(gradients, p, cuts[n]);
        const srnn_states states = {.initial = pieces[n].initial,
                                    .d_final = pieces[n + 1].d_initial,
                                    .d_initial = pieces[n].d_initial};
        if (srnn_attention_states_backward(pieces[n].plan, &out,
                                           piece_of(run->host.d_o, p->H, p->Dv, cuts[n]), &in,
                                           pieces[n].saved, &states) != SRNN_OK)
            fail_msg("%s", srnn_error_detail());
        for (int m = 0; m < SR_OPERANDS; m++) {
            const sr_shape shape = sr_operand_shape((sr_operand)m, p);
            double *sum = run->host.gradient[m], *own = gradients[m];
            if (own == sum)
                continue;
            for (int64_t i = 0; i < sr_shape_numbers(&shape); i++)
                sum[i] = (n == PIECES - 1 ? 0.0 : sum[i]) + own[i];
            free(own);
        }
    }
    for (int n = 0; n <= PIECES; n++) {
        srnn_plan_free(pieces[n].plan);
        free(pieces[n].saved);
        free(pieces[n].initial);
        free(pieces[n].d_initial);
    }
}

/* Returns whether the variant has such a state. */
static bool check(const char *spec, int end) {
    srnn_problem problem = {.B = 2, .H = 4, .Hkv = 2, .T = T, .D = 6, .Dv = 10};
    attention_call oracle = {0}, run = {0};
    int64_t sizes[4], offsets[8];
    if (srnn_attention_parse(&problem.attention, spec) != SRNN_OK)
        fail_msg("%s", srnn_error_detail());
    problem.dtype = SRNN_F64;
    problem.form = SRNN_FORM_CHUNKED;
    problem.chunk = 16;
    problem.threads = 1;
    problem.documents = piece_documents(offsets, &problem, 0, T, end);
    problem.offsets = offsets;
    if (srnn_states_sizes(sizes, &problem) != SRNN_OK)
        return false;
    assert_int_equal(probe_oracle(&oracle, &problem, 7), SRNN_OK);
    assert_int_equal(probe_copy(&run, &problem, &oracle), SRNN_OK);
    run.problem.offsets = NULL;
    run_pieces(&run, end);
    const probe_errors errors = probe_errors_of(&run, &oracle, true);
    for (int n = 0; n < PROBE_TENSORS; n++)
        if (!(errors.of[n] < 1e-9))
            fail_msg("%s, document ends at %d: error %.3g of %s", spec, end, errors.of[n],
                     n == PROBE_OUTPUT ? "o" : sr_operand_at((sr_operand)n)->name);
    call_free(&oracle);
    call_free(&run);
    return true;
}

static void pieces_give_the_oracles_numbers(void **unused) {
    (void)unused;
    int checked = 0;
    for (size_t n = 0; spec_at(n); n++)
        checked += check(spec_at(n), 0) && check(spec_at(n), 29);
    assert_true(checked >= OTHERS + 5);
    print_message("%d variants\n", checked);
}

static void what_is_not_carried_is_named(void **unused) {
    (void)unused;
    static const char *const specs[][2] = {
        {"softmax", "has no fixed-size state"},
        {"log_linear_mamba2", "a state for each level"},
        {"linear_elu,normaliser=row_length", "the position of its tokens"},
        {"order:2,normaliser=cumulative_gate", "the running sum of its output gates"},
    };
    for (size_t n = 0; n < sizeof specs / sizeof *specs; n++) {
        srnn_problem problem = {.B = 1, .H = 2, .T = 3, .D = 4};
        int64_t sizes[4];
        assert_int_equal(srnn_attention_parse(&problem.attention, specs[n][0]), SRNN_OK);
        assert_int_equal(srnn_states_sizes(sizes, &problem), SRNN_ERR_UNSUPPORTED);
        if (!strstr(srnn_error_detail(), specs[n][1]))
            fail_msg("%s: %s", specs[n][0], srnn_error_detail());
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_give_the_oracles_numbers),
        cmocka_unit_test(what_is_not_carried_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
